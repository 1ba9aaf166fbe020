//! The world: ranks, NICs, nodes, disks and a plan, in virtual time.

mod event;
mod process;
mod progress;
mod station;
mod wire;

use transport::{AuthLevel, Epoch, JobId, JobKey, Life, Port, PortConfig, PortId, RailIndex, Rank};

use crate::engine::clock::Clock;
use crate::engine::queue::{Nanos, Queue, SECOND};
use crate::engine::random::Random;
use crate::engine::trace::{Trace, Who};
use crate::faults::FaultCounts;
use crate::judge::{Judges, Violation};
use crate::limits::EVENTS_MAX;
use crate::network::nic::NicId;
use crate::network::{Checksum, Network};
use crate::plan::{Auth, Plan};
use crate::trace;
use crate::workload::script::Size;
use crate::workload::{Program, Script, oracle};
use drivers::Driver as _;
use event::Event;
use process::{NEVER, Phase, Process};
use station::Station;

const STREAM_SCRIPT: u64 = 2;
const STREAM_NETWORK: u64 = 3;
const STREAM_TIMING: u64 = 4;

struct Node {
    clock: Clock,
}

/// Frames between two nodes are dropped until then.
struct Partition {
    one: u32,
    other: u32,
    until: Nanos,
}

/// A history in the making.
pub struct World {
    plan: Plan,
    script: Script,
    queue: Queue<Event>,
    trace: Trace,
    counts: FaultCounts,
    judges: Judges,
    network: Network,
    stations: Vec<Station>,
    nodes: Vec<Node>,
    processes: Vec<Process>,
    partitions: Vec<Partition>,
    timing: Random,
    frames_delivered: u64,
    finished: u32,
    /// Events handled.
    pub events: u64,
}

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl World {
    /// A world for `plan`.
    #[must_use]
    pub fn new(plan: Plan, trace: bool) -> World {
        let size = Size {
            messages_min: plan.messages_min,
            copied_bytes_max: 512,
            bytes_max: plan.message_bytes_max,
        };
        let script =
            Script::generate(&mut Random::stream(plan.seed, STREAM_SCRIPT), plan.ranks, plan.ports, size);
        let checksum = match plan.auth {
            Auth::Off => Checksum::WholeFrame,
            Auth::Header => Checksum::BehindHead(transport::wire::HEADER_BYTES as u32),
            Auth::Full => Checksum::None,
        };
        let frame_bytes_max = at(plan.frame_bytes_max);
        let network =
            Network::new(frame_bytes_max, plan.weather, checksum, Random::stream(plan.seed, STREAM_NETWORK));
        let node_of = |rank: u32| rank * plan.nodes / plan.ranks;
        let mut stations = Vec::new();
        for rank in 0..plan.ranks {
            for _ in 0..plan.ports {
                for rail in 0..plan.rails {
                    let id = NicId(u32::try_from(stations.len()).unwrap_or(u32::MAX));
                    stations.push(Station::new(id, rank, rail, node_of(rank), frame_bytes_max));
                }
            }
        }
        let nodes = (0..plan.nodes)
            .map(|n| Node { clock: Clock::new(u64::from(n) * 77 * SECOND + 1, plan.drift[at(n)]) })
            .collect();
        let judges = Judges::new(&script);
        let timing = Random::stream(plan.seed, STREAM_TIMING);
        World {
            script,
            queue: Queue::default(),
            trace: Trace::new(trace),
            counts: FaultCounts::default(),
            judges,
            network,
            stations,
            nodes,
            processes: Vec::new(),
            partitions: Vec::new(),
            timing,
            frames_delivered: 0,
            finished: 0,
            events: 0,
            plan,
        }
    }

    fn port_config(&self) -> PortConfig {
        let mut config = PortConfig::new(JobId(7).tag());
        config.auth = match self.plan.auth {
            Auth::Off => AuthLevel::Off,
            Auth::Header => AuthLevel::Header,
            Auth::Full => AuthLevel::Full,
        };
        config.eager_bytes_max = 512;
        config.link_copied_bytes_max = 8 << 10;
        config.network = self.plan.congested;
        if self.plan.tight_bounds {
            config.link_copied_bytes_max = 2 << 10;
            config.link_window_bytes = 2 << 10;
            config.unexpected_bytes_max = 8 << 10;
            config.unexpected_entries_max = 32;
            config.reorder_bytes_max = 4 << 10;
        }
        config
    }

    fn start(&mut self, rank: u32) {
        let number = u32::try_from(self.processes.len()).unwrap_or(u32::MAX);
        let life = Life { counter: 1, nonce: 99 };
        let rails = at(self.plan.rails);
        let mut ports = Vec::new();
        for p in 0..self.plan.ports {
            let mut port = Port::new(
                self.port_config(),
                PortId::of_rank(Rank(rank), p),
                life,
                Epoch(0),
                Some(&JobKey([7; 16])),
            );
            let first = at(rank * self.plan.ports + p) * rails;
            for rail in 0..rails {
                self.stations[first + rail].open(number);
                let nic = &self.stations[first + rail].nic;
                port.add_rail(nic.local_address(), nic.caps().frame_bytes_max);
            }
            for peer in 0..self.plan.ranks {
                let link = port.connect(PortId::of_rank(Rank(peer), p));
                for rail in 0..rails {
                    let id = NicId(u32::try_from(at(peer * self.plan.ports + p) * rails + rail).unwrap_or(0));
                    let address =
                        self.stations[first + rail].nic.resolve(&id.address()).expect("our own address");
                    port.set_path(link, RailIndex(u8::try_from(rail).unwrap_or(0)), address);
                }
            }
            ports.push(port);
        }
        self.processes.push(Process {
            number,
            rank,
            node: rank * self.plan.nodes / self.plan.ranks,
            life,
            life_number: 1,
            epoch: 0,
            phase: Phase::Running,
            ports,
            frozen: Vec::new(),
            program: Program::new(&self.script, rank),
            finished: false,
            busy_until: 0,
            stalled_until: 0,
            wake_at: NEVER,
            timer_at: NEVER,
        });
        self.wake(number, self.queue.now() + 1);
    }

    fn cut_required(&mut self, _number: u32, _epoch: Epoch) {}

    fn rank_finished(&mut self, number: u32) {
        self.finished += 1;
        trace!(self.trace, self.queue.now(), Who::Rank(self.processes[at(number)].rank), "finished");
    }

    /// Runs the history to its end.
    pub fn run(&mut self) {
        for rank in 0..self.plan.ranks {
            self.start(rank);
        }
        while self.finished < self.plan.ranks {
            let Some(event) = self.queue.pop() else { break };
            self.events += 1;
            if self.events > EVENTS_MAX || self.queue.now() > 60 * SECOND {
                let rounds = self.processes.iter().map(|p| p.program.round()).collect();
                self.judges.report(Violation::Stuck {
                    rounds,
                    virtual_ms: self.queue.now() / 1_000_000,
                    why: format!("{} events", self.events),
                });
                break;
            }
            match event {
                Event::Arrive(frame) => self.frame_arrives(frame),
                Event::Read(station) => self.read_frames(station),
                Event::Wake(process) => self.on_wake(process),
                Event::Timer(process) => self.on_timer(process),
                Event::Thaw(_) => {}
            }
        }
        let expected = oracle::final_digests(&self.script);
        for process in &self.processes {
            let expected = expected[at(process.rank)];
            let found = process.program.digest();
            if expected != found {
                self.judges.report(Violation::WrongResult { rank: process.rank, expected, found });
            }
        }
        let all = self.judges.order.finished();
        self.judges.check(all);
    }

    /// For experiments.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{} frames, {} events, {} rounds, {} us, {:?}",
            self.frames_delivered,
            self.events,
            self.script.round_count(),
            self.queue.now() / 1000,
            self.judges.violations()
        )
    }

    /// Counters of all ports that are not zero, for reports of histories that are stuck.
    #[must_use]
    pub fn ports_text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        for process in &self.processes {
            for port in &process.ports {
                let _ = write!(
                    text,
                    "rank {} port {}: round {} unexpected {}B reorder {}B",
                    process.rank,
                    port.id(),
                    process.program.round(),
                    port.unexpected_bytes(),
                    port.reorder_bytes()
                );
                let _ = write!(
                    text,
                    " settled {} due {:?} wake {} timer {} busy {} {}",
                    port.is_settled(),
                    port.poll_timeout(),
                    process.wake_at,
                    process.timer_at,
                    process.busy_until,
                    process.program.position(),
                );
                for (name, n) in port.counters().each().filter(|(_, n)| *n > 0) {
                    let _ = write!(text, " {name}={n}");
                }
                text.push('\n');
            }
        }
        text
    }

    /// Violations so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        self.judges.violations()
    }

    /// The trace so far.
    #[must_use]
    pub fn trace_text(&self) -> &str {
        self.trace.text()
    }
}
