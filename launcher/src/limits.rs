//! Every bound and time of the launcher, with its unit and reason.

use std::time::Duration;

/// Bytes of control messages that wait for one rank. A rank that does not read for so long is stopped or hangs; it is
/// ended, and the job rolls back.
pub(crate) const CONTROL_QUEUE_BYTES_MAX: usize = 16 << 20;

/// Descriptors of the launcher for one rank: two sockets, two pipes; while it is started, the other ends of them.
pub(crate) const DESCRIPTORS_PER_RANK: u64 = 4;

/// Descriptors of the launcher for everything else: files of the job, people's commands, a rank that is being started.
pub(crate) const DESCRIPTORS_BESIDE: u64 = 128;

/// Bytes of answers of PMI that wait for one rank, which asks and does not read.
pub(crate) const PMI_QUEUE_BYTES_MAX: usize = 1 << 20;

/// Time after the first barrier of an MPI program at which its ranks are looked at: by then most have their network, and a
/// job that runs past it has not been over yet.
pub(crate) const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Longest time from the first barrier until every rank has opened its network; a rank that then has none uses another one. Ranks of a host that other
/// work keeps busy were seen to take 2 s.
pub(crate) const NETWORK_LATE_MAX: Duration = Duration::from_secs(10);

/// Longest wait for the other ranks to end after one has ended with exit code 0 without MPI_Finalize: more than they need to return from `main` together,
/// and than a closing endpoint waits for a silent peer (5 s).
pub(crate) const UNFINISHED_MAX: Duration = Duration::from_secs(10);

/// Bytes read from one descriptor at once.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Bytes of standard input that a rank is given beyond those in its pipe, which holds 64 KiB. A rank that does not read gets no more.
pub(crate) const INPUT_WINDOW_BYTES: u64 = 256 << 10;

/// Time between two looks whether this process is in the foreground of the terminal that it is to read.
pub(crate) const INPUT_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Requests for bytes of kept input that wait for the thread that keeps it. A rank has at most four open (its window over [`READ_BYTES`]); above the
/// bound a rank's next request waits until the thread has answered one.
pub(crate) const INPUT_ASKS_MAX: usize = 1024;

/// Answers of that thread that wait for the launcher; the thread waits when there are so many. Each has at most [`READ_BYTES`].
pub(crate) const INPUT_EVENTS_MAX: usize = 64;

/// Bytes that a program on a terminal has not read, above which no more is typed. The kernel counts 4095 unread bytes, and takes more.
pub(crate) const KEYS_UNREAD_MAX: usize = 1024;

/// Time between two looks whether it has read them, and whether it has read the end of its input.
pub(crate) const KEYS_LOOK_EVERY: Duration = Duration::from_millis(20);
pub(crate) const END_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Reads from a rank's output in a row, before others have their turn.
pub(crate) const READS_MAX: usize = 4;

/// Bytes that a pipe holds at most (`/proc/sys/fs/pipe-max-size`); a program may have made its own that large.
pub(crate) const PIPE_BYTES_MAX: usize = 1 << 20;

/// Longest wait of a checkpoint, before its record is written, until the ranks' output has been shown. A reader that does not read for that long
/// holds up no checkpoint.
pub(crate) const SHOWN_MAX: Duration = Duration::from_millis(50);

/// Time after which a printer that had no room is asked again.
pub(crate) const ROOM_EVERY: Duration = Duration::from_millis(20);

/// Bytes of one output line of a program; a longer one is cut into several.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// Time after which the beginning of a line is shown, where somebody may wait for it: a prompt.
pub(crate) const PART_AFTER: Duration = Duration::from_millis(40);

/// Longest wait for keepers to report that their ranks stand still, before the launcher stops itself (Ctrl-Z).
pub(crate) const SUSPEND_MAX: Duration = Duration::from_secs(1);

/// Bytes of one frame between coordinator and keeper: the longest holds a rank's part in PMI.
pub(crate) const LINK_FRAME_BYTES_MAX: usize = 64 << 20;

/// Bytes of a version's name.
pub(crate) const VERSION_BYTES_MAX: usize = 64;

/// Bytes that wait on a link for the other end to read. An end that does not read for that long is stopped or hangs.
pub(crate) const LINK_QUEUE_BYTES_MAX: usize = 256 << 20;

/// Time between two attempts to take the lock of a node, and time after which a lock that is not free is reported.
pub(crate) const LOCK_LOOK_EVERY: Duration = Duration::from_millis(20);
pub(crate) const LOCK_REPORT_AFTER: Duration = Duration::from_millis(500);

/// Time that a keeper has to end its ranks itself when their lease is over, before its guard does.
pub(crate) const GUARD_GRACE: Duration = Duration::from_millis(200);

/// Longest wait of a keeper for the first word of the launcher that has started it.
pub(crate) const LINK_GREETING_MAX: Duration = Duration::from_secs(30);

/// Bytes of lines that a keeper hands over before the coordinator has shown earlier ones; more wait in the pipes of the processes that print.
pub(crate) const LINE_WINDOW_BYTES: u64 = 1 << 20;

/// Longest wait for a keeper to report, when the job is over, that its processes have ended; and to end itself, for their output and its files.
pub(crate) const KEEPER_END_MAX: Duration = Duration::from_secs(10);

/// First and longest time from the end of a keeper's process to the start of another one for its node; twice as long each time that it does not come up.
pub(crate) const KEEPER_AGAIN_AFTER: Duration = Duration::from_millis(100);
pub(crate) const KEEPER_AGAIN_MAX: Duration = Duration::from_secs(10);

/// How often the launcher shows each keeper that it is there, and the silence after which a keeper takes it for gone: longer than a busy launcher needs, and
/// far shorter than a connection without traffic stays open.
pub(crate) const LAUNCHER_ALIVE_EVERY: Duration = Duration::from_secs(5);
pub(crate) const LAUNCHER_SILENT_MAX: Duration = Duration::from_secs(60);

/// Longest time from the start of another keeper for a node until it answers; then its connection is given up, and one more is tried, which has twice as
/// long: a login that takes more than ten seconds would otherwise never succeed. The longest is above the wait for a lost node by default (`FENCE_MAX`). The first
/// keepers of a job have as long as the job takes to begin.
pub(crate) const KEEPER_ANSWER_MAX: Duration = Duration::from_secs(10);
pub(crate) const KEEPER_ANSWER_LONGEST: Duration = Duration::from_secs(40);

/// Longest wait for the keeper of a node that leaves the job, which is to end and to leave no candidate behind. Its host may be slow.
pub(crate) const DISMISS_MAX: Duration = Duration::from_secs(15);

/// Longest wait of a launcher that ends with an error for keepers on other hosts, which are to leave no candidate behind.
pub(crate) const GIVE_UP_MAX: Duration = Duration::from_secs(1);

/// Longest wait for the status of a keeper's process that has closed its link.
pub(crate) const KEEPER_STATUS_MAX: Duration = Duration::from_millis(100);

/// Tasks that wait for one working thread. The machines ask for one thing after another, so only a disk that has stood still for many lives fills it. The
/// keeper refuses the next task of its node's directory; the launcher, which cannot decide without its disk, ends with an error.
pub(crate) const WORKER_TASKS_MAX: usize = 256;

/// Results of one working thread that wait for the main loop; the thread waits when there are so many.
pub(crate) const WORKER_RESULTS_MAX: usize = 256;

/// Descriptors that are looked at in one round.
pub(crate) const EVENTS_PER_ROUND: usize = 256;

/// Time that the last output of ended processes gets to arrive, if one of their own children still holds the pipe.
pub const OUTPUT_GRACE: Duration = Duration::from_millis(200);

/// Time between two lines about a job that does not run yet: a restore takes as long as it takes to read memory from a disk.
pub(crate) const NEWS_EVERY: Duration = Duration::from_secs(2);

/// Bytes of one request on the job's socket: a command's name and a flag.
pub(crate) const REQUEST_BYTES_MAX: usize = 4096;

/// People's commands that are connected at one time.
pub(crate) const CLIENTS_MAX: usize = 64;

/// Longest wait of a person's command for the answer of a job.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Jobs that `ps` lists.
pub(crate) const JOBS_MAX: usize = 4096;

/// Committed generations, the newest ones, which nodes with directories of their own learn before a life begins: from one of these it begins.
pub(crate) const GENERATIONS_TOLD_MAX: usize = 16;

/// Longest wait for a node to write down a record in its own directory, or to remove old generations; each report of progress begins it anew.
pub(crate) const NODE_ANSWER_MAX: Duration = Duration::from_secs(10);

/// Time between two lines about a copy that is being written, or brought back.
pub(crate) const COPY_NEWS_EVERY: Duration = Duration::from_secs(10);

/// Longest time by default in which a copy makes no progress, or one that is brought back: more than an object store's request may take with all its
/// attempts.
pub const COPY_SILENT_MAX: Duration = Duration::from_secs(180);

/// Images that are packed at once for a copy, on a machine with many processors: of each, two parts of an object are in memory.
pub(crate) const COPY_THREADS_MAX: usize = 8;

/// Time that a copy gets to end when nobody waits for it any longer.
pub(crate) const COPY_GRACE: Duration = Duration::from_secs(2);

/// The others give up a node that is silent for so long while a generation is protected or rebuilt, and with it that generation's protection.
pub(crate) const PROTECTOR_PATIENCE: Duration = Duration::from_secs(10);

/// Longest wait for the nodes to report how far they were with a generation that was not protected in time. The checkpoint is lost already; a node
/// that takes longer is the one that is looked for.
pub(crate) const LATE_ANSWER_MAX: Duration = Duration::from_secs(2);

/// Time between two words that images are being rebuilt.
pub(crate) const REPAIR_NEWS_EVERY: Duration = Duration::from_secs(2);

/// Longest wait for a rank to report that it goes over another NIC, or why not: it stands at a point, or is stopped.
pub(crate) const RAIL_MAX: Duration = Duration::from_secs(10);

/// Requests about a node's directory that wait for the lock of the node: one survey at a time, and what belongs to it.
pub(crate) const EARLY_REQUESTS_MAX: usize = 16;

/// Longest wait for a component to be loaded and to begin, and for each of its other answers: a recovery waits for it. A component that computes needs no time;
/// one that reads files of a slow file server may.
pub(crate) const COMPONENT_START_MAX: Duration = Duration::from_secs(10);
pub(crate) const COMPONENT_ANSWER_MAX: Duration = Duration::from_secs(3);

/// Questions to a component that are open, before news for which nobody waits are left out.
pub(crate) const COMPONENT_QUESTIONS_MAX: usize = 256;

/// Bytes of a component's answer: a name or a reason, and numbers.
pub(crate) const COMPONENT_ANSWER_BYTES_MAX: usize = 4096;

/// Shortest and longest time between two polls of a detector.
pub(crate) const COMPONENT_PERIOD_MIN: Duration = Duration::from_millis(100);
pub(crate) const COMPONENT_PERIOD_MAX: Duration = Duration::from_secs(3600);

/// Longest wait for the process of a component to end by itself, and time between two looks whether it has.
pub(crate) const COMPONENT_END_MAX: Duration = Duration::from_secs(1);
pub(crate) const COMPONENT_LOOK_EVERY: Duration = Duration::from_millis(5);
