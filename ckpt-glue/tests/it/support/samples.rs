//! One control message of every kind, with fields that a test chooses.

use ckpt_glue::control::checkpoint::{
    ClosedLink, CutAt, CutMode, CutStatistics, ImageContent, ImageReport, MessageStates, NoImageReason,
    Point, PointSummary, Source,
};
use ckpt_glue::control::life::{FaultReport, JobPhase, JobStatus, NewLife, PortEntry, Registration, Watch};
use ckpt_glue::control::{Control, Found, Message, NicText, OwedLink, RankReport, Reason, Wait, WaitKind};
use ckpt_glue::pmi::{Answer, Effect, Published, RankState, Request, Text};
use ckpt_glue::{Decision, ExitStatus, GenerationId, ImageDigest, Layout, NodeIndex, Party};
use transport::{Epoch, JobId, Life, PortId, Rank, RawAddress};

/// Numbers from which fields are made.
pub(crate) struct Numbers<'a>(&'a [u64], usize);

impl<'a> Numbers<'a> {
    pub(crate) fn new(numbers: &'a [u64]) -> Numbers<'a> {
        Numbers(numbers, 0)
    }

    fn long(&mut self) -> u64 {
        self.1 += 1;
        self.0
            .get(self.1 % self.0.len().max(1))
            .copied()
            .unwrap_or(0)
            .rotate_left(u32::try_from(self.1).unwrap())
    }

    fn int(&mut self) -> u32 {
        u32::try_from(self.long() & 0xffff_ffff).unwrap()
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.long() & 0xff).unwrap()
    }

    /// Passes numbers over: the messages behind a kind that is no more keep their bytes.
    fn skip(&mut self, numbers: usize) -> &mut Self {
        self.1 += numbers;
        self
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.int() % bound
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn some<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| value(self))
    }

    fn some_of<T>(&mut self, value: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| value(self)).collect()
    }

    fn life(&mut self) -> Life {
        Life { counter: self.int(), nonce: self.long() }
    }

    fn epoch(&mut self) -> Epoch {
        Epoch(self.int())
    }

    fn rank(&mut self) -> Rank {
        Rank(self.int())
    }

    fn port(&mut self) -> PortId {
        PortId(self.long())
    }

    fn node(&mut self) -> NodeIndex {
        NodeIndex(self.int())
    }

    fn generation(&mut self) -> GenerationId {
        GenerationId { life: self.life(), epoch: self.epoch() }
    }

    fn exit(&mut self) -> ExitStatus {
        let number = self.byte();
        if self.flag() { ExitStatus::Code(number) } else { ExitStatus::Signal(number) }
    }

    fn point(&mut self) -> Point {
        Point { count: self.long(), rank: self.rank() }
    }

    fn port_entry(&mut self) -> PortEntry {
        let address = |numbers: &mut Self| {
            let bytes = [numbers.byte(); 28];
            let length = usize::try_from(numbers.below(29)).unwrap();
            RawAddress::new(&bytes[..length]).unwrap()
        };
        PortEntry { port: self.port(), rails: self.some_of(address) }
    }

    fn closed_link(&mut self) -> ClosedLink {
        ClosedLink { peer: self.port(), next: self.long(), expected: self.long() }
    }

    fn text(&mut self) -> Text {
        Text(self.some_of(Self::byte))
    }

    fn asked(&mut self) -> Request {
        Request { number: self.long(), text: self.text() }
    }

    fn answer(&mut self) -> Answer {
        let effect = match self.below(5) {
            0 => Effect::Nothing,
            1 => Effect::Began { name: self.text() },
            2 => Effect::Published { place: self.long() },
            3 => Effect::Met,
            _ => Effect::Finished,
        };
        Answer { number: self.long(), depends: self.epoch(), effect, text: self.text() }
    }

    /// A sample of a rank's state in PMI.
    pub(crate) fn rank_state(&mut self) -> RankState {
        RankState {
            name: self.text(),
            finished: self.flag(),
            barriers: self.long(),
            answered: self.long(),
            published: self.some_of(|numbers| Published { place: numbers.long(), text: numbers.text() }),
            pending: self.some(Self::asked),
        }
    }

    fn image(&mut self) -> ImageReport {
        let messages = MessageStates {
            to_send: self.long(),
            unacknowledged: self.long(),
            acknowledged: self.long(),
            unanswered: self.long(),
            delivered: self.long(),
        };
        let statistics = CutStatistics {
            stop_ns: self.long(),
            freeze_ns: self.long(),
            dump_ns: self.long(),
            thaw_ns: self.long(),
            write_ns: self.long(),
            delay_ns: self.some(|numbers| numbers.long().cast_signed()),
            messages,
            input_read: self.some(Self::long),
        };
        let content = match self.below(3) {
            0 => ImageContent::Commanded,
            1 => ImageContent::ByTraffic,
            _ => ImageContent::Exited { status: self.exit() },
        };
        ImageReport {
            rank: self.rank(),
            digest: ImageDigest(self.long()),
            bytes: self.long(),
            content,
            statistics,
        }
    }

    fn reason(&mut self) -> NoImageReason {
        let kind = self.int();
        if kind % 8 == 7 {
            return NoImageReason::Unreceived { count: self.long(), by: self.rank() };
        }
        match kind % 7 {
            0 => NoImageReason::PointPassed { point: self.long(), count: self.long() },
            1 => NoImageReason::PointMissed { point: self.some(Self::long), count: self.long() },
            2 => NoImageReason::Unsavable { what: self.int() },
            3 => NoImageReason::WriteFailed { errno: self.int() },
            4 => NoImageReason::Overtaken { by: self.epoch() },
            5 => NoImageReason::Ended {},
            _ => NoImageReason::Abandoned {},
        }
    }

    fn fault(&mut self) -> FaultReport {
        match self.below(13) {
            0 => FaultReport::RankDied { rank: self.rank(), status: self.exit() },
            1 => FaultReport::RankNotStarted { rank: self.rank(), errno: self.int() },
            2 => FaultReport::RankSilent {
                rank: self.rank(),
                by: self.some(Self::rank),
                silent_ms: self.long(),
            },
            3 => FaultReport::KeeperSilent { node: self.node() },
            4 => FaultReport::Inconsistent {
                port: self.port(),
                peer: self.port(),
                oldest: self.long(),
                next: self.long(),
                found: self.long(),
            },
            5 => FaultReport::StartTimedOut { running: self.int(), ranks: self.int() },
            6 => FaultReport::Aborted { rank: self.rank(), code: self.byte() },
            7 => FaultReport::KeeperOverdue { node: self.node() },
            8 => FaultReport::KeeperHeard { node: self.node() },
            9 => FaultReport::RankHeard { rank: self.rank(), by: self.rank() },
            10 => FaultReport::NodeCutOff { node: self.node(), silent_ms: self.long() },
            11 => FaultReport::NodeSuspected { node: self.node() },
            _ => FaultReport::DecisionFailed { errno: self.int() },
        }
    }

    fn summary(&mut self) -> PointSummary {
        PointSummary {
            ranks: self.int(),
            finalizing: self.int(),
            least: self.some(Self::point),
            most: self.some(Self::point),
            interval_ns_min: self.some(Self::long),
        }
    }

    fn new_life(&mut self) -> NewLife {
        let nodes = 1 + self.below(9);
        let layout = Layout::even(nodes + self.below(90), nodes, 1 + self.below(16)).unwrap();
        let watch = |numbers: &mut Self| Watch {
            beat_ns: numbers.long(),
            silence_ns: numbers.long(),
            lease_ns: numbers.long(),
        };
        let decision = Decision { life: self.life(), restore: self.some(Self::generation) };
        NewLife { decision, layout, watch: self.some(watch) }
    }

    fn wait(&mut self) -> Wait {
        let kinds = [
            WaitKind::Receive,
            WaitKind::Arrival,
            WaitKind::Room,
            WaitKind::Match,
            WaitKind::Delivery,
            WaitKind::Collective,
            WaitKind::Memory,
            WaitKind::Finish,
            WaitKind::Launcher,
        ];
        Wait {
            kind: kinds[usize::try_from(self.below(9)).unwrap()],
            peer: self.some(Self::rank),
            op: self.long(),
            tag: self.long(),
            ignore: self.long(),
            bytes: self.long(),
            age_ns: self.long(),
        }
    }

    fn owed_link(&mut self) -> OwedLink {
        OwedLink { peer: self.rank(), frames: self.long(), silent_ns: self.long(), is_broken: self.flag() }
    }

    fn rank_report(&mut self) -> RankReport {
        let found = match self.below(7) {
            0 => Found::Answered {
                in_call: self.flag(),
                sleeps: self.flag(),
                looks: self.long(),
                begun: self.long(),
            },
            1 => Found::GateHeld { tried_ns: self.long() },
            2 => Found::NotAttached,
            3 => Found::Ended,
            4 => Found::Dead,
            5 => Found::Silent { waited_ns: self.long() },
            _ => Found::KeeperSilent { waited_ns: self.long() },
        };
        RankReport {
            rank: self.rank(),
            found,
            waits: self.some_of(Self::wait),
            more_waits: self.int(),
            links: self.some_of(Self::owed_link),
            more_links: self.int(),
        }
    }

    fn status(&mut self) -> JobStatus {
        let phases = [
            JobPhase::Gathering,
            JobPhase::Fencing,
            JobPhase::BackingOff,
            JobPhase::Deciding,
            JobPhase::Starting,
            JobPhase::Running,
            JobPhase::Finishing,
            JobPhase::Over,
        ];
        JobStatus {
            phase: phases[usize::try_from(self.below(8)).unwrap()],
            life: self.some(Self::life),
            committed: self.some(Self::generation),
            commits: self.int(),
            rollbacks: self.int(),
            ranks: self.int(),
            running: self.int(),
            finalizing: self.int(),
            saving: self.some(Self::epoch),
        }
    }

    fn source(&mut self) -> Source {
        [Source::Timer, Source::Signal, Source::Command, Source::TimeLimit]
            [usize::try_from(self.below(4)).unwrap()]
    }

    /// One message of every kind. New ones come last: the others keep their bytes.
    pub(crate) fn messages(&mut self) -> Vec<Message> {
        let registration = Registration {
            rank: self.rank(),
            pid: self.int(),
            mode: if self.flag() { CutMode::Counted } else { CutMode::Instant },
            ports: self.some_of(Self::port_entry),
        };
        let at = if self.flag() { CutAt::Now } else { CutAt::Point { count: self.long() } };
        vec![
            Message::KeeperHello { node: self.node() },
            Message::Fence { counter: self.int(), first: self.flag() },
            Message::Fenced { counter: self.int(), node: self.node(), votes: self.flag() },
            Message::Ending { counter: self.int(), node: self.node() },
            Message::NewLife { new_life: self.new_life() },
            Message::Hello { registration },
            Message::Registered { ports: self.some_of(Self::port_entry), ranks: self.int() },
            Message::Addresses { ports: self.some_of(Self::port_entry) },
            Message::Start { epoch: self.epoch(), restore: self.some(Self::generation), ports: self.int() },
            Message::Running { ranks: self.int(), counted: self.int() },
            Message::Request { source: self.source() },
            Message::PointQuery { query: self.int() },
            Message::PointReport { query: self.int(), summary: self.summary() },
            Message::Cut { epoch: self.epoch(), at, time_left_ns: self.long() },
            Message::CutSeen { epoch: self.skip(2).epoch() },
            Message::ImageDone { epoch: self.epoch(), report: self.image() },
            Message::Images { epoch: self.epoch(), reports: self.some_of(Self::image) },
            Message::NoImage { epoch: self.epoch(), rank: self.rank(), reason: self.reason() },
            Message::Abandon { epoch: self.epoch() },
            Message::Committed { epoch: self.epoch() },
            Message::Fault { report: self.fault() },
            Message::Heartbeat { keepers: self.int(), asked_ns: self.long() },
            Message::Lease { asked_ns: self.long(), left_ns: self.long() },
            Message::Closed { port: self.port(), links: self.some_of(Self::closed_link), last: self.flag() },
            Message::ClosedQuery { port: self.port(), peer: self.port() },
            Message::ClosedAnswer {
                port: self.port(),
                peer: self.port(),
                link: self.some(Self::closed_link),
            },
            Message::Finalize { ranks: self.int() },
            Message::FinalizeDone,
            Message::Ended { ranks: self.int(), status: self.exit() },
            Message::PmiRequest { request: self.asked() },
            Message::PmiAnswer { answer: self.answer() },
            Message::PmiState { part: self.rank_state(), last: self.flag() },
            Message::Nic { words: NicText::new(&"udp (why)") },
            Message::HandOver { number: self.long(), nic: NicText::new(&"xdp:eth0") },
            Message::HandedOver { number: self.long(), refused: NicText::new(&"no") },
            Message::StatusQuery,
            Message::StatusReport { status: self.status() },
            Message::OpenRail { number: self.long(), nic: NicText::new(&"verbs"), anew: self.flag() },
            Message::RailOpened {
                number: self.long(),
                in_place: self.flag(),
                ports: self.some_of(Self::port_entry),
                refused: NicText::default(),
            },
            Message::MeetRails {
                number: self.long(),
                ports: self.some_of(Self::port_entry),
                last: self.flag(),
            },
            Message::RailsMet { number: self.long(), refused: NicText::new(&"no") },
            Message::ChangeRails { number: self.long(), decided: self.flag() },
            Message::RailLost { words: NicText::new(&"verbs:rxe0") },
            Message::Connecting { rank: self.rank() },
            Message::Left { rank: self.rank() },
            Message::Unsaved { reason: Reason::new(&"a pipe") },
            Message::Probe { number: self.long() },
            Message::ProbeAnswer { number: self.long(), node: self.node() },
            Message::Fault {
                report: FaultReport::RankNotRestored { rank: self.rank(), status: self.exit() },
            },
            Message::WaitQuery { query: self.int(), time_left_ns: self.long() },
            Message::WaitReports { query: self.int(), reports: self.some_of(Self::rank_report) },
            Message::RankLost { rank: self.rank(), status: self.exit() },
        ]
    }

    pub(crate) fn control(&mut self, message: Message) -> Control {
        let sender = match self.below(4) {
            0 => Party::Coordinator,
            1 => Party::Keeper(self.node()),
            2 => Party::Rank(self.rank()),
            _ => Party::Tool,
        };
        let job = JobId(u128::from(self.long()) << 64 | u128::from(self.long()));
        Control { job, life: self.life(), epoch: self.epoch(), sender, message }
    }
}
