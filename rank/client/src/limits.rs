//! Every bound and time of this crate, with its unit and reason.

use core::time::Duration;

/// Bytes of the launch record's path field: the longest path that Linux takes (`PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;

/// Bytes of a launch record after its head: the path, and less than 256 bytes of everything else.
pub const LAUNCH_BYTES_MAX: usize = PATH_BYTES_MAX + 352;

/// Bytes of messages that wait for a keeper to read them. A rank sends a few hundred bytes per checkpoint and
/// none without a command, so that this is a keeper which has not read for thousands of reports.
pub const LINE_BYTES_MAX: usize = 256 << 10;

/// A keeper that has read nothing for so long, while something waits for it, is reported. It may be stopped for good reasons.
pub const LINE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Longest wait for the first answer of the keeper. All other ranks have to come up meanwhile; the launcher's own limit
/// is usually shorter, so this only ends a process whose launcher hangs.
pub const ENROL_MAX: Duration = Duration::from_secs(600);

/// Longest wait for the gate of a port, to look at what it waits for. A call holds the gate for microseconds; a copy of a long message, some
/// hundred.
pub const GATE_WAIT_MAX: Duration = Duration::from_millis(200);

/// Open receives, and open sends, of one port that are looked at: the gate is held meanwhile.
pub const OPEN_OPS_SEEN_MAX: usize = 4096;

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
