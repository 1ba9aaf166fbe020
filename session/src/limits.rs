//! Every bound and time of this crate, with its unit and reason.

use core::time::Duration;

/// Bytes of the launch record's path field: the longest path that Linux takes (`PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;

/// Bytes of a launch record after its head: the path, and less than 256 bytes of everything else.
pub const LAUNCH_BYTES_MAX: usize = PATH_BYTES_MAX + 352;

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

/// Bytes of messages that wait for a keeper to read them. A rank sends a few hundred bytes per checkpoint and
/// none without a command, so that this is a keeper which has not read for thousands of reports.
pub const LINE_BYTES_MAX: usize = 256 << 10;

/// A keeper that has read nothing for so long, while something waits for it, is reported. It may be stopped for good reasons.
pub const LINE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Longest wait for the first answer of the keeper. All other ranks have to come up meanwhile; the launcher's own limit
/// is usually shorter, so this only ends a process whose launcher hangs.
pub const ENROL_MAX: Duration = Duration::from_secs(600);

/// Time from the death of a rail to the first attempt to have it go on over UDP; twice as long before each further one.
pub const REVIVE_AFTER: Duration = Duration::from_millis(20);

/// Attempts in a row: the last one is 80 s after the first, by when a device that is set up anew has its address again.
pub const REVIVALS_MAX: u32 = 12;

/// A rail that has gone on for so long before it dies again is looked after as if it had never died.
pub const REVIVED_FOR: Duration = Duration::from_secs(60);

/// Longest wait for frames that only the closing rail takes, and time between two looks: they take a round trip, or as
/// long as a peer stands still. The launcher waits longer (`ckpt_glue::limits::RAIL_STEP_MAX`), so that it gets the
/// reason.
pub const ON_THEIR_WAY_MAX: Duration = Duration::from_secs(5);

/// Time between two such looks.
pub const ON_THEIR_WAY_LOOK: Duration = Duration::from_millis(2);

const _: () = assert!(ON_THEIR_WAY_MAX.as_nanos() * 2 <= ckpt_glue::limits::RAIL_STEP_MAX.as_nanos());
