//! Every bound of this crate, with its unit and reason.

use core::time::Duration;

/// Ranks of one job.
pub const RANKS_MAX: u32 = 1 << 17;

/// Nodes of one job; each runs at least one rank.
pub const NODES_MAX: u32 = RANKS_MAX;

/// Bytes of one control frame after its length field. The largest message is a [`crate::Layout`] of [`NODES_MAX`]
/// shares of 8 bytes.
pub const CONTROL_BYTES_MAX: usize = 2 << 20;

/// Entries of one message that carries a list (addresses, image reports, links of a closed port); longer lists travel
/// as several messages. 1,024 image reports are about 120 KiB: one message of a tree node with 1,024 ranks below it.
pub const ENTRIES_MAX: usize = 1024;

/// Ports that one rank may register at its start.
pub const PORTS_PER_RANK_MAX: usize = 64;

/// Bytes of the text about a NIC in one message: a sentence with the name of a device and the reason of a refusal.
pub const NIC_WORDS_BYTES_MAX: usize = 512;

/// Bytes of the reason for which a rank has no image, in one message: it names files and addresses.
pub const REASON_BYTES_MAX: usize = 4096;

/// Rails that one port may register: no node has more NICs that are worth a rail.
pub const RAILS_PER_PORT_MAX: usize = 16;

/// Closed ports whose final counters a keeper answers for, over all its ranks. Port ids are never used again (R12),
/// so this bounds how often the programs of one node may close and open within a life.
pub const CLOSED_PORTS_MAX: usize = 1 << 12;

/// Links of all closed ports of one node. 24 bytes each.
pub const CLOSED_LINKS_MAX: usize = 1 << 20;

/// Children of one keeper in the tree: above this a tree is a star again.
pub const FAN_OUT_MAX: u32 = 1024;

/// Outputs that a machine may hold before its shell polls. A shell polls until nothing is left after every input; the
/// longest answer to one input is one message for each rank of a node and each chunk of the address table.
pub const OUTPUTS_MAX: usize = 1 << 20;

/// A rank may be raised by traffic by at most this many epochs (R3); more is left to the coordinator's command.
pub const EPOCH_STEP_MAX: u32 = transport::config::EPOCH_STEP_MAX;

/// Highest epoch that is named: a port with a higher one could not be loaded. One checkpoint a second gets there in 68 years.
pub const EPOCH_MAX: u32 = transport::config::EPOCH_MAX;

/// Longest time that a native rank, informed of a cut by traffic, waits for the coordinator's command to name the
/// point. The command left before the frame did; a tree of 17 levels takes milliseconds.
pub const COMMAND_GRACE: Duration = Duration::from_secs(2);

/// Longest time that the coordinator waits for the counts of all native ranks.
pub const POINT_ANSWER_MAX: Duration = Duration::from_secs(5);

/// After this time a keeper names a rank of its own that has not reported its count. This is before the
/// coordinator gives up, which knows only that a rank is missing.
pub const POINT_SILENCE: Duration = Duration::from_secs(2);

/// Counted points that the coordinator names ahead of the fastest rank, at most. A point that is too far ahead is not
/// reached within the time of a checkpoint.
pub const POINT_MARGIN_MAX: u64 = 1 << 20;

/// Counted points that the coordinator names ahead of the fastest rank, at least. A rank passes as many points as it has
/// time for while the command travels, and one more that it was just about to pass: with one point ahead, one checkpoint
/// in thirteen of a program with a point each millisecond was given up (24 of 324). A slow program comes to the second
/// point after one interval more.
pub const POINT_MARGIN_MIN: u64 = 2;

/// Least time that all ranks get to reach the named point. Ranks that have cut continue meanwhile, but cannot be heard
/// by ranks that have not: a point that is not reached costs a job this long.
pub const POINT_TIME_MIN: Duration = Duration::from_secs(1);

/// How many times as long as at their mean pace ranks may take to come to the point.
pub const POINT_TIME_PACES: u64 = 4;

/// Longest time for which a program stands at its point because a message of it has not been received. Messages that the
/// peers receive before the same point take milliseconds; one that is received only after it never will be in time.
pub const STAND_MAX: Duration = Duration::from_secs(1);

/// Part of the time of a checkpoint after which a rank that has not reached the named point gives up in any case; the rest
/// is for the images of those that have.
pub const POINT_TIME_SHARE: f32 = 0.75;

/// Factor by which misses widen the margin, as a power of two, at most.
pub const POINT_WIDENINGS_MAX: u32 = 12;

/// Checkpoints abandoned in a row for points that did not line up, after which the user is informed.
pub const MISALIGNED_REPORT_AFTER: u32 = 3;

/// Longest wait for reports from all nodes that their processes of the old life are dead (R9).
pub const FENCE_MAX: Duration = Duration::from_secs(30);

/// Longest wait for the outcome of a commit when all ranks have ended: as long as the store gets elsewhere.
pub const COMMIT_OUTCOME_MAX: Duration = FENCE_MAX;

/// A record that is not durable after this time is reported, and again after twice as long each time. The
/// coordinator keeps waiting: a record that may be on disk is neither abandoned nor decided anew (R1, R9).
pub const DISK_REPORT_AFTER: Duration = Duration::from_secs(10);

/// Longest pause between two attempts to recover. A life whose ranks have run for as long was worth its start, even if it has committed nothing:
/// after it pauses begin anew.
pub const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// How long the job waits, after a rank has ended by itself, for news of a fault that has made it do so: nodes report ends of one cause in any order. Longer than a report
/// takes through a tree of keepers, and no pause that a person would notice.
pub const EXIT_GRACE: Duration = Duration::from_millis(100);

/// Attempts to recover that a job file may ask for.
pub const RESTARTS_MAX: u32 = 1 << 16;

/// Bytes of a job file.
pub const JOB_FILE_BYTES_MAX: usize = 1 << 16;

/// Shortest interval between checkpoints that a job file may ask for: below it a job does nothing else.
pub const CHECKPOINT_EVERY_MIN: Duration = Duration::from_millis(1);

/// Shortest interval that is chosen for a job.
pub const AUTO_EVERY_MIN: Duration = Duration::from_millis(100);

/// Open operations that a rank's report of its waits names; further ones are counted.
pub const WAITS_PER_RANK_MAX: usize = 32;

/// Links with unacknowledged frames that such a report names; further ones are counted.
pub const OWED_LINKS_MAX: usize = 16;

/// Such reports in one message: 1 MiB if all are full.
pub const WAIT_REPORTS_MAX: usize = 512;

/// Longest wait of the coordinator for what all ranks wait for. Ranks answer within milliseconds; the rest is for a node that is busy.
pub const WAIT_ANSWER_MAX: Duration = Duration::from_secs(2);

/// By so much sooner each level of the tree of keepers names the ranks that have not answered, so that its word arrives in time.
pub const WAIT_ANSWER_STEP: Duration = Duration::from_millis(100);

/// Shortest time that a keeper gives its ranks to answer, however deep the tree is.
pub const WAIT_ANSWER_MIN: Duration = Duration::from_millis(500);

/// Time between two questions. What both answers share is what a rank waits for; a message takes far less.
pub const WAIT_ROUNDS_APART: Duration = Duration::from_millis(300);

/// A link with unacknowledged frames whose peer was not heard for so long counts as lost. Frames are sent again some hundred times by then.
pub const LINK_LOST_AFTER: Duration = Duration::from_secs(1);

/// Waiting ranks that one finding names; further ones are counted.
pub const FINDING_RANKS_MAX: usize = 16;

/// Findings of one diagnosis that are listed; further ones are counted.
pub const FINDINGS_MAX: usize = 64;

/// Longest interval that is chosen for a job: a person who looks once a day finds a checkpoint.
pub const AUTO_EVERY_MAX: Duration = Duration::from_secs(24 * 3600);

/// When a checkpoint is taken while its cost is not known: one more or less matters little, and without its cost nothing can be chosen.
pub const AUTO_FIRST: Duration = Duration::from_secs(1);

/// Intervals that differ by less than this factor are not reported.
pub const INTERVAL_REPORT_RATIO: f32 = 1.25;

/// Checkpoints whose cost counts: a program's memory grows and shrinks.
pub const COSTS_REMEMBERED: usize = 5;

/// Least interval that is chosen, in durations of a checkpoint: for as long as one is written, none is.
pub const AUTO_EVERY_DURATIONS: u32 = 2;

/// Checkpoints that fail in a row double a chosen interval so often at most.
pub const AUTO_DOUBLINGS_MAX: u32 = 10;

/// Longest duration that a job file may name: a year.
pub const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Least time before a time limit at which the last checkpoint begins: the ranks stop, and their last output is shown,
/// in the same time.
pub const TIME_LIMIT_LEAD_MIN: Duration = Duration::from_secs(1);

/// Times that the last checkpoint before a time limit gets, as a multiple of the longest before it. One of the timer
/// that has just begun comes first, and memory grows.
pub const TIME_LIMIT_MARGIN: u32 = 3;

/// How often the last checkpoint before a time limit is tried, if each attempt fails at once.
pub const TIME_LIMIT_TRIES: u32 = 4;

/// Silence after which a node is suspected (R33). Twice the time between heartbeats: one that is late is no suspicion.
pub const SUSPECTED_AFTER: Duration = Duration::from_millis(500);

/// Questions of the circulating probe for each time between heartbeats, at most: in a larger job a round takes longer.
pub const PROBES_PER_BEAT_MAX: u32 = 25;

/// A suspicion that lasts so many times the silence before it is shown. Most are withdrawn before.
pub const SUSPICION_SHOWN_AFTER: u32 = 2;

/// So long after its first report the silence of a node's data network is shown, and again after twice as long each time.
pub const DATA_SILENCE_SHOWN_AFTER: Duration = Duration::from_secs(2);

/// Ranks that hear nothing of a node which one report names.
pub const REPORTERS_NAMED_MAX: usize = 8;

/// Shortest time between heartbeats of keepers.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(1);

/// Heartbeats for which a node that does not answer a fence may take to get another keeper, before its place is given to another host.
pub const RECONNECT_BEATS: u32 = 4;

/// Silences from the answers of half of the nodes to a launcher's first fence until nothing of an earlier launcher runs anywhere (R32). That one takes one to
/// notice that it has no majority, and its last lease lasts for another one at most.
pub const EARLIER_SILENCES: u32 = 2;

/// The host that has got a node's place has so many times the silence of a lost keeper to answer; then the place may be given away again.
pub const REPLACE_SILENCES: u32 = 2;

/// A lease is shorter than the silence after which a keeper counts as lost by this part of it: in the meantime its guard ends its ranks (R31).
pub const LEASE_MARGIN_PART: u64 = 5;

/// Heartbeats that a keeper must miss at least before it counts as silent.
pub const HEARTBEATS_MISSED_MIN: u32 = 2;

const _: () =
    assert!(NODES_MAX as usize * 8 + 256 <= CONTROL_BYTES_MAX, "a layout fits in one control frame");
const _: () = assert!(
    WAIT_REPORTS_MAX * (64 + WAITS_PER_RANK_MAX * 46 + OWED_LINKS_MAX * 21) + 256 <= CONTROL_BYTES_MAX,
    "a full message of reports fits in one control frame"
);
const _: () = assert!(POINT_WIDENINGS_MAX < 64, "the margin is shifted in 64 bits");

/// Bytes of one line that a rank may send over PMI, its end included: the longest is a `put` with the longest name, key and
/// value.
pub const PMI_LINE_BYTES_MAX: usize = 2048;

/// Keys of one line of PMI. The longest command of the protocol has six.
pub const PMI_FIELDS_MAX: usize = 32;

/// Bytes of a PMI command that has several lines: a `spawn` with its arguments and hints.
pub const PMI_LONG_BYTES_MAX: usize = 1 << 20;

/// Bytes of a PMI request that travels in a control message: a `spawn` of a rank that is saved whole.
/// Messages that wait on a rank's line are bounded, too (`client::limits::LINE_BYTES_MAX`).
pub const PMI_REQUEST_BYTES_MAX: usize = 128 << 10;

/// Bytes of entries in one part of a rank's PMI state.
pub const PMI_PART_BYTES_MAX: usize = 64 << 10;

/// Entries of one part of a rank's PMI state.
pub const PMI_PART_ENTRIES_MAX: usize = 1024;

/// Bytes of the PMI requests of one rank that others see, and which its image therefore holds. MPI libraries put some hundred bytes.
pub const PMI_KEPT_BYTES_MAX: usize = 8 << 20;

/// Keys of such a command. MPICH's own client stops at 1,000.
pub const PMI_LONG_FIELDS_MAX: usize = 4096;

/// Programs of one `spawn`, each with arguments of its own.
pub const PMI_SPAWN_COMMANDS_MAX: u32 = 256;

/// Spawned processes that run at one time in a job. A program that spawns without end gets an error before the machine
/// runs out of resources.
pub const PMI_SPAWN_PROCESSES_MAX: u32 = 1024;

/// Bytes of keys and values that a spawned world may put, for each of its processes.
pub const PMI_SPAWNED_STORE_BYTES_MAX: usize = 256 << 10;

/// Bytes of one line that clients of PMI-1 read: their buffer has 1,024, with a zero at its end.
pub const PMI_REPLY_BYTES_MAX: usize = 1023;

/// Bytes of the name of the space of keys, as clients get it.
pub const PMI_NAME_BYTES_MAX: usize = 256;

/// Bytes of a key.
pub const PMI_KEY_BYTES_MAX: usize = 64;

/// Bytes of a value: with the longest key and an index it fits in one reply.
pub const PMI_VALUE_BYTES_MAX: usize = 896;

/// Bytes of all keys and values of a job, and of all published names: 128 KiB for each of 4,096 ranks would be far more
/// than any MPI library puts.
pub const PMI_STORE_BYTES_MAX: usize = 512 << 20;

/// Time between two reports about a barrier that has not come about.
pub const PMI_NEWS_EVERY: Duration = Duration::from_secs(60);

/// Ranks that a report names one by one.
pub const PMI_NAMED_MAX: usize = 8;

const _: () = assert!(PMI_VALUE_BYTES_MAX + PMI_KEY_BYTES_MAX + 60 <= PMI_REPLY_BYTES_MAX);
const _: () =
    assert!(PMI_NAME_BYTES_MAX + PMI_KEY_BYTES_MAX + PMI_VALUE_BYTES_MAX + 64 <= PMI_LINE_BYTES_MAX);
const _: () =
    assert!(PMI_LINE_BYTES_MAX < PMI_PART_BYTES_MAX, "every request that others see fits in a part");
const _: () = assert!(PMI_REQUEST_BYTES_MAX + PMI_PART_BYTES_MAX < CONTROL_BYTES_MAX);

/// Longest wait for all ranks to have taken a step of a change to another NIC (R29): opening a device, which the kernel may still be closing; frames that
/// only the old rail takes; a rank that stands still.
pub const RAIL_STEP_MAX: Duration = Duration::from_secs(10);

/// Steps that such a change has at most: opened, opened anew, met, closed.
pub const RAIL_STEPS: u32 = 4;

/// Ranks that are named when one of these steps was not taken in time.
pub const RAIL_NAMED_MAX: usize = 8;

/// Attempts to rebuild one generation before a life begins; nodes that were lost meanwhile are asked anew in between.
pub const REPAIRS_MAX: u32 = 3;

/// Most process faults of one node that a policy may ask for before they are a fault of the node.
pub const REPEATED_FAULTS_MAX: u32 = 1000;

/// Longest wait for a node that may come back, beyond that for the end of its ranks.
pub const TRANSIENT_WITHIN_MAX: Duration = Duration::from_secs(3600);

/// Faults that are reported while a component is asked about another one, before its answer is not waited for any longer.
pub const HELD_FAULTS_MAX: usize = 1024;

/// Shortest silence between ranks of two nodes that a policy may take for a fault: links find another way, or retransmit, within seconds.
pub const NETWORK_AFTER_MIN: Duration = Duration::from_secs(5);
