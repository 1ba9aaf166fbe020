//! The bounds of the example programs, each with its unit and its reason.

/// Ranks of one IS job. Class S has 65,536 keys, and the first rank must hold the 20 keys that the iterations change,
/// besides a share worth sorting: 256 keys remain to each rank.
pub const IS_RANKS_MAX: u32 = 256;

/// Iterations of one IS round. Iteration `i` changes keys `i` and `i + 10`, and the official ranks are stated for those
/// changes only; a longer run repeats whole rounds.
pub const IS_ITERATIONS_MAX: u32 = 10;

/// Messages of one burst to one peer. A burst is sent without waiting, so all of it may have to be held by the
/// transport; 4,096 of the longest messages to a peer is as much as a test of back-pressure can use.
pub const BURST_MESSAGES_MAX: u32 = 4096;

/// Bytes of one burst message: enough to make each message a rendezvous of many fragments.
pub const BURST_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Ranks that [`crate::threads`] runs inside one process: one thread each.
pub const THREAD_RANKS_MAX: u32 = 256;
