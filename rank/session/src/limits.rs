//! Every bound and time of this crate, with its unit and reason.

use core::time::Duration;

/// Requests that a program may have open at one time: each costs an entry here and one in the port.
pub const REQUESTS_MAX: usize = 1 << 20;

/// Regions that one program may protect. Each is a section of the image.
pub const REGIONS_MAX: usize = 1 << 16;

/// Longest wait for a NIC to give its buffers back at a cut. UDP gives them back at once.
pub const DRAIN_MAX: Duration = Duration::from_millis(200);

/// Memory speed that is assumed for the announcement of a pause, bytes per second: a slow copy. An estimate that is too
/// long only makes peers probe a little later.
pub const COPY_BYTES_PER_SECOND: u64 = 2 << 30;

/// Longest sleep while a program waits for a message: how late it notices events without a frame (a finished job).
pub const WAIT_SLICE: Duration = Duration::from_millis(20);

/// How often a program that stands at a point looks whether it may be saved.
pub const STAND_SLICE: Duration = Duration::from_micros(200);

/// How often a rank that has finished looks whether all others have.
pub const FINALIZE_SLICE: Duration = Duration::from_millis(5);

/// Polling before a sleep while there is a core for every rank. A sleep and a wake-up cost about 15 µs.
pub const SPIN: Duration = Duration::from_micros(50);

/// Polling before a sleep while ranks share cores: a rank that polls then keeps its peer from answering.
pub const SPIN_SHARED: Duration = Duration::from_micros(2);

/// How often the helper thread looks whether the program makes progress by itself.
pub const HELPER_TICK: Duration = Duration::from_millis(1);

/// Piece in which an image is handed to the store, if no limit has smaller ones; between two of them a cancelled image is noticed.
pub const WRITE_PIECE_BYTES: usize = 8 << 20;

/// Memory that is made ready before a freeze for the port's section, at most: far more than the queues of a thousand links. Beyond
/// it lies large payload, whose copy takes so much longer that the difference is not felt.
pub const PORT_ROOM_BYTES_MAX: usize = 16 << 20;
