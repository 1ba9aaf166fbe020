//! The world: ranks, NICs, nodes, disks and a plan, in virtual time.

mod calm;
mod control;
mod coordinator;
mod disk;
mod event;
mod guards;
mod hosts;
mod image;
mod keepers;
mod moves;
mod node_disks;
mod port_freeze;
mod process;
mod progress;
mod pull;
mod rails;
mod rank;
mod station;
mod steps;
mod tasks;
mod tx_fast_path;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ckpt_glue::GenerationId;
use ckpt_glue::protection::seat::Seat;
use ckpt_glue::recovery::Beginning;
use store::{JobDirectory, Memory};
use transport::{AuthLevel, Epoch, JobId, JobKey, Life, Port, PortConfig, PortId, Rank};

use crate::engine::clock::Clock;
use crate::engine::digest::Digest;
use crate::engine::queue::{MILLI, Nanos, Queue, SECOND};
use crate::engine::random::Random;
use crate::engine::trace::Trace;
use crate::faults::FaultCounts;
use crate::judge::{Generation, Judges, Violation};
use crate::limits::{CALM_MAX, EVENTS_MAX};
use crate::network::{Checksum, Network};
use crate::plan::{Auth, Plan};
use crate::sabotage::Switches;
use crate::workload::script::Size;
use crate::workload::{Script, oracle};
use control::Connection;
use coordinator::JobShell;
use event::Event;
use keepers::KeeperShell;
use node_disks::NodeDisk;
use process::Process;
use station::Station;
use tasks::Tasks;

const STREAM_SCRIPT: u64 = 2;
const STREAM_NETWORK: u64 = 3;
const STREAM_TIMING: u64 = 4;

/// The job of every history.
pub(crate) const JOB: JobId = JobId(0x5157_0000_0000_0000_0000_0000_0000_0007);
/// Its key.
pub(crate) const KEY: JobKey = JobKey([7; 16]);
/// Moments that a plan can wait for.
const MOMENTS: usize = 7;

#[derive(Debug)]
struct Node {
    clock: Clock,
    up: bool,
}

/// Frames between two nodes are dropped until then.
struct Partition {
    one: u32,
    other: u32,
    until: Nanos,
}

/// A history in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Frames that reached a port.
    pub frames_delivered: u64,
    /// Checkpoints asked for.
    pub checkpoint_commands: u32,
    /// Processes and nodes that crashed.
    pub crashes: u32,
    /// Times that all ranks ran again after a crash.
    pub restarts: u32,
    /// Generations committed.
    pub commits: u64,
    /// The program came to its end with all ranks.
    pub is_whole: bool,
    /// How often each kind of fault occurred.
    pub faults: FaultCounts,
}

/// A history in the making.
pub struct World {
    plan: Plan,
    script: Script,
    queue: Queue<Event>,
    trace: Trace,
    counts: FaultCounts,
    /// Frames that left past all queues.
    frames_fast: u64,
    /// Messages that were received by the fast path.
    messages_fast: u64,
    judges: Judges,
    network: Network,
    stations: Vec<Station>,
    nodes: Vec<Node>,
    processes: Vec<Process>,
    keepers: Vec<KeeperShell>,
    job: Option<JobShell>,
    /// The life goes on without a rank (R37): its program has no result.
    is_maimed: bool,
    connections: Vec<Connection>,
    tasks: Tasks,
    directory: JobDirectory<Memory>,
    /// Images that have been written, with the judges' records of them.
    images: Vec<(store::GenerationId, Rank, Generation)>,
    /// The host of each node, spare hosts that nobody has taken, and hosts that are cut off, each with the end of that.
    hosts: Vec<u32>,
    spares_left: u32,
    /// Hosts on which ranks of the job may run, as the job's file names them.
    ranked_hosts: BTreeSet<u32>,
    cuts: BTreeMap<u32, Nanos>,
    /// The keeper that has taken the lock of each node last, on each host.
    locks: BTreeMap<(u32, u32), u32>,
    /// The nodes' own directories, where they have any.
    node_disks: Vec<NodeDisk>,
    /// The seat that the job's directory holds (R34).
    held_seat: Option<Seat>,
    /// Nodes whose part of the newest committed generation is lost, and since when.
    gone: BTreeMap<u32, Nanos>,
    /// When each node has sealed what it keeps of a generation for the others.
    sealed_at: BTreeMap<(GenerationId, u32), Nanos>,
    partitions: Vec<Partition>,
    /// On their way to another NIC, and bytes of the longest frame of the one that was decided last.
    change: Option<rails::Change>,
    frame_bytes_max: u32,
    timing: Random,
    sabotage: Switches,
    /// Lives that were decided, in order, and how many times the job has been started or rolled back.
    lives: Vec<Life>,
    life_number: u32,
    jobs_started: u32,
    /// A checkpoint has been asked for and its outcome is not known.
    asking: bool,
    /// Nodes that were suspected in this life (R33), and the node whose new keeper says hello at this moment.
    suspected: BTreeSet<u32>,
    greeting: Option<u32>,
    operator_called: bool,
    operator_restarts: u32,
    /// For how long the head node stays off after it has lost power in the middle of a write.
    power_down: Nanos,
    steps_by_frames: Vec<(u64, usize)>,
    /// Number of the life in which the first crash happened, and crashes after which all ranks ran again.
    crash_life: Option<u32>,
    restarts: u32,
    /// Generations committed since the last collection of old ones came to its end.
    collections_missed: u32,
    moments: [u32; MOMENTS],
    /// When the last planned fault has ceased.
    calm_at: Nanos,
    /// When the newest checkpoint has begun.
    begun_at: Nanos,
    /// Checkpoints in a row that were abandoned then.
    abandoned_in_calm: u32,
    /// One was committed that had begun long after the last fault.
    has_saved_in_calm: bool,
    /// Until then no committed generation can be read.
    unreadable_until: Nanos,
    frames_delivered: u64,
    control_messages: u64,
    checkpoint_commands: u32,
    checkpoints_begun: u32,
    crashes: u32,
    over: bool,
    digest: Digest,
    /// Events handled.
    pub events: u64,
}

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn port_config(plan: &Plan) -> PortConfig {
    let mut config = PortConfig::new(JOB.tag());
    config.auth = match plan.auth {
        Auth::Off => AuthLevel::Off,
        Auth::Header => AuthLevel::Header,
        Auth::Full => AuthLevel::Full,
    };
    config.eager_bytes_max = 512;
    config.link_copied_bytes_max = 8 << 10;
    config.network = plan.congested;
    if plan.tight_bounds {
        config.link_copied_bytes_max = 2 << 10;
        config.link_window_bytes = 1 << 10;
        config.unexpected_bytes_max = 4 << 10;
        config.unexpected_entries_max = 64;
        config.reorder_bytes_max = 2 << 10;
    }
    config
}

impl World {
    /// A world for `plan`.
    #[must_use]
    pub fn new(plan: Plan, trace: bool) -> World {
        let size = Size {
            messages_min: plan.messages_min,
            messages_reserved: plan.messages_reserved,
            copied_bytes_max: 512,
            bytes_max: plan.message_bytes_max,
        };
        let script =
            Script::generate(&mut Random::stream(plan.seed, STREAM_SCRIPT), plan.ranks, plan.ports, size);
        let checksum = match plan.auth {
            Auth::Off => Checksum::WholeFrame,
            Auth::Header => {
                Checksum::BehindHead(u32::try_from(transport::wire::HEADER_BYTES).unwrap_or(u32::MAX))
            }
            Auth::Full => Checksum::None,
        };
        let frame_bytes_max = plan.frame_bytes_max;
        let network = Network::new(
            at(plan.longest_frame()),
            plan.conditions,
            checksum,
            Random::stream(plan.seed, STREAM_NETWORK),
        );
        let nodes = (0..plan.nodes)
            .map(|n| Node {
                clock: Clock::new(u64::from(n) * 77 * SECOND + SECOND, plan.drift[at(n)]),
                up: true,
            })
            .collect();
        let judges = Judges::new(&script, &port_config(&plan));
        let timing = Random::stream(plan.seed, STREAM_TIMING);
        World {
            script,
            queue: Queue::default(),
            trace: Trace::new(trace),
            counts: FaultCounts::default(),
            frames_fast: 0,
            messages_fast: 0,
            judges,
            network,
            stations: Vec::new(),
            nodes,
            processes: Vec::new(),
            keepers: Vec::new(),
            job: None,
            is_maimed: false,
            connections: Vec::new(),
            tasks: Tasks::default(),
            directory: disk::new_directory(plan.ranks).expect("an empty disk takes a job's directory"),
            images: Vec::new(),
            hosts: (0..plan.nodes).collect(),
            spares_left: plan.spares,
            ranked_hosts: (0..plan.nodes).collect(),
            cuts: BTreeMap::new(),
            locks: BTreeMap::new(),
            node_disks: vec![NodeDisk::default(); at(plan.nodes)],
            held_seat: None,
            gone: BTreeMap::new(),
            sealed_at: BTreeMap::new(),
            partitions: Vec::new(),
            change: None,
            frame_bytes_max,
            timing,
            sabotage: Switches::default(),
            lives: Vec::new(),
            life_number: 0,
            jobs_started: 0,
            asking: false,
            suspected: BTreeSet::new(),
            greeting: None,
            operator_called: false,
            operator_restarts: 0,
            power_down: MILLI,
            steps_by_frames: Vec::new(),
            crash_life: None,
            restarts: 0,
            collections_missed: 0,
            moments: [0; MOMENTS],
            calm_at: 0,
            begun_at: 0,
            abandoned_in_calm: 0,
            has_saved_in_calm: false,
            unreadable_until: 0,
            frames_delivered: 0,
            control_messages: 0,
            checkpoint_commands: 0,
            checkpoints_begun: 0,
            crashes: 0,
            over: false,
            digest: Digest::default(),
            events: 0,
            plan,
        }
    }

    fn new_port(&self, id: PortId, life: Life) -> Port {
        let mut port = Port::new(port_config(&self.plan), id, life, Epoch(0), Some(&KEY));
        self.sabotage.apply(&mut port);
        port
    }

    /// Takes rules out of the protocol; before the history begins.
    pub fn take_out(&mut self, switches: Switches) {
        self.sabotage = switches;
        self.directory = disk::new_directory(self.plan.ranks)
            .expect("an empty disk takes a job's directory")
            .with_sabotage(switches.store());
    }

    /// Runs the history to its end.
    pub fn run(&mut self) {
        self.start();
        while self.step() {}
    }

    /// Begins the history; then [`World::step`] goes on with it.
    pub fn start(&mut self) {
        self.judge_panics(|world| {
            world.prepare_steps();
            world.start_job(Beginning::Fresh, 0, false);
        });
    }

    /// One event of the history; false when it is over and judged.
    pub fn step(&mut self) -> bool {
        if !self.over {
            self.judge_panics(World::go_on);
        }
        !self.over
    }

    /// A machine that panics has broken a property like any other.
    fn judge_panics(&mut self, what: impl FnOnce(&mut World)) {
        // The world may be inconsistent after a panic, but nobody looks at it again: the history is over.
        let done = catch_unwind(AssertUnwindSafe(|| what(self)));
        if let Err(panic) = done {
            self.judges.report(Violation::of_panic(&*panic));
            self.over = true;
        }
    }

    fn go_on(&mut self) {
        match self.queue.pop() {
            Some(event) => {
                self.events += 1;
                self.digest.add(self.queue.now());
                self.digest.add(event.code());
                if self.events > EVENTS_MAX {
                    self.stuck(format!("{EVENTS_MAX} events"));
                } else if self.queue.now() > self.calm_at + CALM_MAX {
                    self.stuck("not over long after the last fault".to_owned());
                }
                self.dispatch(event);
            }
            None => self.stuck("nothing will ever happen again".to_owned()),
        }
        if self.over && !self.judges.has_failed() {
            self.judge_end();
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Arrive(frame) => self.frame_arrives(frame),
            Event::Read(station) => self.read_frames(station),
            Event::Wake(process) => self.on_wake(process),
            Event::Timer(process) => self.on_timer(process),
            Event::JobTimer(job) => self.on_job_timer(job),
            Event::NodesTimer(job) => self.on_nodes_timer(job),
            Event::KeeperTimer(keeper) => self.on_keeper_timer(keeper),
            Event::Task(place) => self.on_task(place),
        }
    }

    /// Ends the history: it does not get on.
    pub(crate) fn stuck(&mut self, why: String) {
        let mut waits: Vec<String> = (0..self.plan.ranks).map(|rank| self.rank_waits(rank)).collect();
        waits.push(match &self.job {
            None => "there is no coordinator".to_owned(),
            Some(job) => {
                let status = job.machine.status();
                format!("the coordinator is {:?}, saving {:?}", status.phase, status.saving)
            }
        });
        let virtual_ms = self.queue.now() / MILLI;
        self.judges.report(Violation::Stuck { virtual_ms, why, waits });
        self.over = true;
    }

    /// Describes the events that a rank waits for.
    fn rank_waits(&self, rank: u32) -> String {
        let Some(process) = self.process_of(Rank(rank)).map(|number| &self.processes[at(number)]) else {
            return format!("rank {rank} has no process");
        };
        let mut text =
            format!("rank {rank}, {:?}, {}", process.phase, process.program.waits_for(&self.script));
        for port in &process.ports {
            let unsettled =
                if port.is_settled() { "all frames acknowledged" } else { "frames unacknowledged or unsent" };
            text += &format!(", port {} {unsettled}", port.id());
        }
        text
    }

    fn judge_end(&mut self) {
        if self.is_maimed {
            return self.judge_store();
        }
        let expected = oracle::final_digests(&self.script);
        for rank in 0..self.plan.ranks {
            let Some(process) = self.newest_process(rank, |_| true) else { continue };
            let (number, expected, found) = (process.number, expected[at(rank)], process.program.digest());
            if expected != found {
                self.judges.report(Violation::WrongResult { rank, expected, found });
            }
            let all = self.judges.order.finished(number, rank, self.script.round_count());
            self.judges.check(all);
        }
        let counted = self.judges.ends.over();
        self.judges.check(counted);
        self.judge_store();
    }

    /// Counts of the events so far.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts {
            frames_delivered: self.frames_delivered,
            checkpoint_commands: self.checkpoint_commands,
            crashes: self.crashes,
            restarts: self.restarts,
            commits: self.judges.restored.commits().len() as u64,
            is_whole: !self.is_maimed,
            faults: self.counts,
        }
    }

    /// The events so far, in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{} frames, {} at once, {} events, {} rounds, {} us, {} commands, {} begun, {} commits, {} crashes, {} lives, {} operator, {} control, {:?}",
            self.frames_delivered,
            self.frames_fast,
            self.events,
            self.script.round_count(),
            self.queue.now() / 1000,
            self.checkpoint_commands,
            self.checkpoints_begun,
            self.judges.restored.commits().len(),
            self.crashes,
            self.life_number,
            self.operator_restarts,
            self.control_messages,
            self.judges.violations()
        )
    }

    /// Violations so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.judges.violations()
    }

    /// The lines of the trace since they were taken last.
    #[must_use]
    pub fn take_trace(&mut self) -> String {
        self.trace.take()
    }

    /// Digest of all events so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}
