//! PMI under cuts, crashes and rebirths: programs, their relays and the server, with messages of any delay. A program
//! checks whether its answers can be part of one history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ckpt_glue::control::{CutAt, CutMode, CutStatistics, Message};
use ckpt_glue::participant::{Input, Output, Participant};
use ckpt_glue::pmi::{self, Answer, Member, RankState, Relay, Request, Server};
use ckpt_glue::{ImageDigest, Sabotage};
use transport::{Epoch, Instant, Rank};

const ROUNDS: u64 = 4;

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap()
    }
}

/// A program's next action.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Init,
    Name,
    Put(u64),
    Publish(u64),
    /// Looks for another's key before all have met: it may be there.
    Peek(u64, u32),
    Barrier,
    /// Gets another's key after all have met: it must be there.
    Get(u64, u32),
    LookUp(u64),
    Finalize,
}

/// One rank's program: a list of steps, each of which waits for its answer.
#[derive(Clone, Debug)]
struct Program {
    rank: u32,
    steps: VecDeque<Step>,
    name: String,
    waits: bool,
    /// Keys that were there.
    seen: BTreeSet<(u64, u32)>,
}

impl Program {
    fn new(rank: u32, ranks: u32) -> Program {
        let others = || (0..ranks).filter(move |other| *other != rank);
        let mut steps = VecDeque::from([Step::Init, Step::Name]);
        for round in 0..ROUNDS {
            steps.push_back(Step::Put(round));
            // Rank 0 is busy while others look.
            steps.extend((rank == 0).then_some(Step::Publish(round)));
            steps.extend(others().flat_map(|other| [Step::Peek(round, other), Step::Peek(round, other)]));
            steps.push_back(Step::Barrier);
            steps.extend(others().map(|other| Step::Get(round, other)));
            steps.push_back(Step::LookUp(round));
            steps.extend((round % 2 == 1).then_some(Step::Barrier));
        }
        steps.push_back(Step::Finalize);
        Program { rank, steps, name: String::new(), waits: false, seen: BTreeSet::new() }
    }

    fn ask(&mut self) -> String {
        self.waits = true;
        let (rank, name) = (self.rank, &self.name);
        match &self.steps[0] {
            Step::Init => "cmd=init pmi_version=1 pmi_subversion=1\n".to_owned(),
            Step::Name => "cmd=get_my_kvsname\n".to_owned(),
            Step::Put(round) => format!("cmd=put kvsname={name} key=k{round}-{rank} value=v{round}.{rank}\n"),
            Step::Publish(round) => format!("cmd=publish_name service=s{round} port=p{round}\n"),
            Step::Peek(round, other) | Step::Get(round, other) => {
                format!("cmd=get kvsname={name} key=k{round}-{other}\n")
            }
            Step::Barrier => "cmd=barrier_in\n".to_owned(),
            Step::LookUp(round) => format!("cmd=lookup_name service=s{round}\n"),
            Step::Finalize => "cmd=finalize\n".to_owned(),
        }
    }

    /// Fails with a description if the server's answer is wrong.
    fn hear(&mut self, line: &str) -> Result<(), String> {
        let step =
            self.steps.pop_front().ok_or_else(|| format!("rank {}: {line} without a question", self.rank))?;
        self.waits = false;
        let is = |start: &str| line.starts_with(start);
        let fine = match &step {
            Step::Init => is("cmd=response_to_init ") && line.contains("rc=0"),
            Step::Name => {
                self.name = line.trim_end().rsplit_once('=').map_or("", |(_, name)| name).to_owned();
                is("cmd=my_kvsname ")
            }
            Step::Put(_) => is("cmd=put_result rc=0"),
            Step::Publish(_) => is("cmd=publish_result rc=0"),
            Step::Peek(round, other) | Step::Get(round, other) => {
                let found = line.contains(&format!("rc=0 msg=success value=v{round}.{other}"));
                let must = matches!(step, Step::Get(..)) || self.seen.contains(&(*round, *other));
                if found {
                    self.seen.insert((*round, *other));
                }
                found || (!must && is("cmd=get_result rc=-1"))
            }
            Step::Barrier => is("cmd=barrier_out"),
            Step::LookUp(round) => line.contains(&format!("port=p{round}")),
            Step::Finalize => is("cmd=finalize_ack"),
        };
        if fine { Ok(()) } else { Err(format!("rank {}: {step:?} was answered {line}", self.rank)) }
    }
}

struct Process {
    program: Program,
    relay: Relay,
    participant: Participant,
    /// On the way to the server and back.
    up: VecDeque<(Epoch, Message)>,
    down: VecDeque<Answer>,
    cut_waits: bool,
}

#[derive(Clone)]
enum Image {
    Running(Program, Box<Relay>),
    Exited(RankState),
}

struct World {
    ranks: u32,
    sabotage: Sabotage,
    server: Server,
    processes: BTreeMap<u32, Process>,
    /// Of the epoch that is being saved.
    images: BTreeMap<u32, Image>,
    saving: Option<Epoch>,
    /// The highest epoch that was named.
    named: Epoch,
    committed: Option<(Epoch, BTreeMap<u32, Image>)>,
    lives: u32,
    wrong: Option<String>,
}

impl World {
    fn new(ranks: u32, sabotage: Sabotage) -> World {
        let mut world = World {
            ranks,
            sabotage,
            server: server(ranks, 0, false),
            processes: BTreeMap::new(),
            images: BTreeMap::new(),
            saving: None,
            named: Epoch(0),
            committed: None,
            lives: 0,
            wrong: None,
        };
        world.begin();
        world
    }

    /// Begins a life from the committed generation, or from nothing.
    fn begin(&mut self) {
        self.lives += 1;
        self.saving = None;
        self.processes.clear();
        self.server = server(self.ranks, self.lives, self.committed.is_some());
        let (epoch, images) = self.committed.clone().unwrap_or((Epoch(0), BTreeMap::new()));
        self.named = epoch;
        for rank in 0..self.ranks {
            let (program, relay) = match images.get(&rank) {
                Some(Image::Exited(state)) => {
                    // It goes through the bytes of an image.
                    let part = RankState::parse(&state.emit()).unwrap();
                    self.server
                        .handle(Instant::ZERO, pmi::Input::State { rank: Rank(rank), part, last: true });
                    self.server
                        .handle(Instant::ZERO, pmi::Input::Gone { member: Member::of_job(Rank(rank)) });
                    continue;
                }
                Some(Image::Running(program, relay)) => {
                    let mut relay = Relay::clone(relay);
                    relay.begin_life();
                    (program.clone(), relay)
                }
                None => (Program::new(rank, self.ranks), Relay::new(self.sabotage)),
            };
            let participant = Participant::new(Rank(rank), CutMode::Instant, epoch, 0, Sabotage::none());
            let process = Process {
                program,
                relay,
                participant,
                up: VecDeque::new(),
                down: VecDeque::new(),
                cut_waits: false,
            };
            self.processes.insert(rank, process);
        }
        self.poll_server();
        (0..self.ranks).for_each(|rank| self.attend(rank));
    }

    fn poll_server(&mut self) {
        while let Some(output) = self.server.poll_output() {
            match output {
                pmi::Output::Answer { rank, answer } => {
                    if let Some(process) = self.processes.get_mut(&rank.0) {
                        process.down.push_back(answer);
                    }
                }
                pmi::Output::Broken { member, why } => {
                    self.wrong.get_or_insert(format!("{member} is ended: {why}"));
                }
                pmi::Output::Began { .. } | pmi::Output::Finished { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Plays a rank's agent for one round.
    fn attend(&mut self, rank: u32) {
        let Some(process) = self.processes.get_mut(&rank) else { return };
        while let Some(output) = process.participant.poll_output() {
            if let Output::TakeCut { epoch } = output {
                let image = Image::Running(process.program.clone(), Box::new(process.relay.clone()));
                if self.saving == Some(epoch) {
                    self.images.insert(rank, image);
                }
                let statistics = CutStatistics::default();
                let done = Input::Captured { epoch, digest: ImageDigest(1), bytes: 1, statistics };
                process.participant.handle(Instant::ZERO, done);
            }
        }
        let epoch = process.participant.epoch();
        process.relay.hand_over(epoch);
        while let Some(message) = process.relay.poll_message() {
            process.up.push_back((epoch, message));
        }
        self.commit();
    }

    fn commit(&mut self) {
        if self.images.len() == self.ranks as usize
            && let Some(epoch) = self.saving.take()
        {
            self.committed = Some((epoch, std::mem::take(&mut self.images)));
        }
    }

    fn begin_checkpoint(&mut self) {
        self.named = Epoch(self.named.0 + 1);
        self.saving = Some(self.named);
        self.images.clear();
        for rank in 0..self.ranks {
            match self.processes.get_mut(&rank) {
                Some(process) => process.cut_waits = true,
                None => drop(self.images.insert(rank, Image::Exited(self.server.state(Rank(rank))))),
            }
        }
    }

    fn exit(&mut self, rank: u32) {
        let process = self.processes.remove(&rank).expect("it runs");
        let state = self.server.state(Rank(rank));
        // The keeper's server knows the state of the rank's relay.
        assert_eq!(state, RankState { pending: None, ..process.relay.state().clone() });
        self.server.handle(Instant::ZERO, pmi::Input::Gone { member: Member::of_job(Rank(rank)) });
        if self.saving.is_some_and(|epoch| process.participant.epoch() < epoch) {
            self.images.insert(rank, Image::Exited(state));
            self.commit();
        }
    }

    /// One thing that can happen to a rank; `false`: nothing can.
    fn step(&mut self, rank: u32, dice: &mut Dice) -> bool {
        let Some(process) = self.processes.get_mut(&rank) else { return false };
        let line_end = process.relay.to_program().iter().position(|byte| *byte == b'\n');
        let is_done = process.program.steps.is_empty();
        let can = [
            !process.program.waits && !is_done,
            line_end.is_some(),
            !process.up.is_empty(),
            !process.down.is_empty(),
            process.cut_waits,
            is_done && process.up.is_empty(),
        ];
        let can: Vec<usize> = (0..can.len()).filter(|at| can[*at]).collect();
        if can.is_empty() {
            return false;
        }
        match can[dice.one_of(can.len())] {
            0 => {
                let line = process.program.ask();
                // In two pieces, as sockets like to have it.
                let (one, other) = line.split_at(dice.one_of(line.len()));
                process.relay.feed(one.as_bytes());
                process.relay.feed(other.as_bytes());
            }
            1 => {
                let end = line_end.unwrap() + 1;
                let line = String::from_utf8(process.relay.to_program()[..end].to_vec()).unwrap();
                process.relay.written(end);
                if let Err(wrong) = process.program.hear(&line) {
                    self.wrong.get_or_insert(wrong);
                }
            }
            2 => {
                let (epoch, message) = process.up.pop_front().unwrap();
                let rank = Rank(rank);
                let input = match message {
                    Message::PmiRequest { request } => pmi::Input::Request { rank, epoch, request },
                    Message::PmiState { part, last } => pmi::Input::State { rank, part, last },
                    other => panic!("{other:?}"),
                };
                self.server.handle(Instant::ZERO, input);
                self.poll_server();
            }
            3 => {
                let answer = process.down.pop_front().unwrap();
                let epoch = process.participant.epoch();
                if let Some(epoch) = process.relay.on_answer(epoch, answer) {
                    process.participant.handle(Instant::ZERO, Input::CutRequired { epoch });
                }
            }
            4 => {
                process.cut_waits = false;
                let cut = Message::Cut { epoch: self.named, at: CutAt::Now, time_left_ns: 1 << 40 };
                process.participant.handle(Instant::ZERO, Input::Message(cut));
            }
            _ => {
                self.exit(rank);
                return true;
            }
        }
        self.attend(rank);
        true
    }

    /// Runs until all programs have ended.
    fn run(mut self, seed: u64) -> Result<u32, String> {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut crashes, every) = (dice.below(6), 20 + dice.below(200));
        while !self.processes.is_empty() {
            if let Some(wrong) = self.wrong {
                return Err(wrong);
            }
            if crashes > 0 && dice.below(every) == 0 {
                crashes -= 1;
                self.begin();
            } else if self.saving.is_none() && dice.below(12) == 0 {
                self.begin_checkpoint();
            }
            let first = u32::try_from(dice.below(self.ranks.into())).unwrap();
            let moved = (0..self.ranks).any(|offset| self.step((first + offset) % self.ranks, &mut dice));
            if !moved && !self.processes.is_empty() {
                return Err(self.wrong.unwrap_or_else(|| "nothing happens any more".to_owned()));
            }
        }
        self.wrong.map_or(Ok(self.lives), Err)
    }
}

fn server(ranks: u32, life: u32, restored: bool) -> Server {
    let name = format!("job-{life}");
    let timeout = std::time::Duration::from_secs(60);
    if restored { Server::restored(name, ranks, timeout) } else { Server::new(name, ranks, timeout) }
}

/// R25, R26
#[test]
fn every_program_sees_one_history() {
    let mut lives = 0;
    for seed in 0..3000 {
        let ranks = 2 + u32::try_from(seed % 3).unwrap();
        match World::new(ranks, Sabotage::none()).run(seed) {
            Ok(lived) => lives += lived,
            Err(wrong) => panic!("seed {seed}, {ranks} ranks: {wrong}"),
        }
    }
    assert!(lives > 3000, "{lives} lives: nothing crashes");
}

#[cfg(feature = "sabotage")]
#[test]
fn r25_an_answer_from_after_the_cut_is_noticed() {
    let sabotage = Sabotage::out(ckpt_glue::Rule::PmiAhead);
    let wrong = (0..3000).find_map(|seed| World::new(3, sabotage).run(seed).err());
    let wrong = wrong.expect("the rule is out, and nobody notices");
    assert!(wrong.contains("contradict") || wrong.contains("was answered"), "{wrong}");
}

/// A rank that has an answer has it once, and one that has none gets it from the server of the next life.
#[test]
fn a_barrier_is_met_once_whatever_life_it_is_answered_in() {
    let mut server = server(2, 2, true);
    let state = |barriers, asked: Option<&str>| RankState {
        name: "job-1".into(),
        barriers,
        answered: 7,
        pending: asked.map(|text| Request { number: 8, text: text.into() }),
        ..RankState::default()
    };
    let report = |server: &mut Server, rank: u32, part: RankState| {
        server.handle(Instant::ZERO, pmi::Input::State { rank: Rank(rank), part, last: true });
        let outputs = std::iter::from_fn(|| server.poll_output());
        let answer = |output| match output {
            pmi::Output::Answer { rank, answer } => Some((rank, answer.number, answer.text)),
            _ => None,
        };
        outputs.filter_map(answer).collect::<Vec<_>>()
    };
    assert_eq!(report(&mut server, 0, state(1, None)), [], "not before all have reported");
    let answers = report(&mut server, 1, state(0, Some("cmd=barrier_in\n")));
    assert_eq!(answers, [(Rank(1), 8, "cmd=barrier_out rc=0\n".into())]);
    assert_eq!(server.barriers_passed(0), 1);
}

/// R26: the reports of restored ranks have to agree.
#[test]
fn ranks_that_contradict_each_other_are_not_answered() {
    let state = |name: &str, barriers| RankState { name: name.into(), barriers, ..RankState::default() };
    for (states, words) in [
        ([state("job-1", 1), state("job-1", 0)], "others have met it at a barrier to which it has not come"),
        ([state("job-1", 0), state("job-2", 0)], "another name for their keys"),
    ] {
        let mut server = server(2, 2, true);
        for (rank, part) in (0..).map(Rank).zip(states) {
            server.handle(Instant::ZERO, pmi::Input::State { rank, part, last: true });
        }
        let outputs: Vec<_> = std::iter::from_fn(|| server.poll_output()).collect();
        let Some(pmi::Output::Broken { member, why }) = outputs.last() else { panic!("{outputs:?}") };
        assert_eq!(*member, Member::of_job(Rank(1)));
        assert!(why.to_string().contains(words), "{why}");
    }
}

/// R26
#[test]
fn a_rank_that_does_not_report_is_named_after_a_time() {
    let mut server = server(3, 2, true);
    server.handle(Instant::ZERO, pmi::Input::State { rank: Rank(1), part: RankState::default(), last: true });
    server.handle(Instant::ZERO, pmi::Input::Gone { member: Member::of_job(Rank(2)) });
    let due = server.poll_timeout().expect("it waits");
    server.handle_timeout(due);
    let Some(pmi::Output::Broken { member, why }) = server.poll_output() else { panic!("nobody is named") };
    assert_eq!(member, Member::of_job(Rank(0)));
    assert!(why.to_string().starts_with("rank 0 did not report"), "{why}");
    assert_eq!(server.poll_timeout(), None);
}

/// A malformed request reaches the server, which knows PMI. A request before its turn waits, unless it is an
/// abort.
#[test]
fn a_relay_passes_on_what_is_said_one_at_a_time() {
    let asks = |relay: &mut Relay| {
        let messages = std::iter::from_fn(|| relay.poll_message());
        let text = |message| match message {
            Message::PmiRequest { request } => String::from_utf8(request.text.0).unwrap(),
            other => panic!("{other:?}"),
        };
        messages.map(text).collect::<Vec<_>>()
    };
    let mut relay = Relay::new(Sabotage::none());
    relay.feed(b"cmd=barrier_in\ncmd=finalize\n");
    assert_eq!(asks(&mut relay), ["cmd=barrier_in\n"]);
    let mut relay_of_two = Relay::new(Sabotage::none());
    relay_of_two.feed(b"cmd=barrier_in\n");
    relay_of_two.feed(b"cmd=abort exitcode=3\n");
    assert_eq!(asks(&mut relay_of_two), ["cmd=barrier_in\n", "cmd=abort exitcode=3\n"]);
    let mut garbage = Relay::new(Sabotage::none());
    garbage.feed(&[b'x'; 5000]);
    assert_eq!(asks(&mut garbage)[0].len(), ckpt_glue::limits::PMI_LINE_BYTES_MAX);
    assert!(!garbage.has_room(), "nothing more is heard");
    let mut spawning = Relay::new(Sabotage::none());
    let spawn = "mcmd=spawn\nnprocs=1\nexecname=x\nendcmd\n";
    spawning.feed(&spawn.as_bytes()[..20]);
    assert_eq!((asks(&mut spawning), spawning.unsavable()), (Vec::<String>::new(), None));
    spawning.feed(&spawn.as_bytes()[20..]);
    assert_eq!(
        (asks(&mut spawning), spawning.unsavable()),
        (vec![spawn.into()], Some(pmi::Unsavable::Spawns))
    );
}

/// A process that is executed in the rank's place bypasses the agent. An empty read is no message.
#[test]
fn who_speaks_past_its_relay_is_reported_from_who_says_nothing() {
    let mut server = server(1, 1, false);
    let mut outputs = |input| {
        server.handle(Instant::ZERO, input);
        std::iter::from_fn(|| server.poll_output()).collect::<Vec<_>>()
    };
    let request = Request { number: 1, text: "cmd=init pmi_version=1 pmi_subversion=1\n".into() };
    assert_eq!(outputs(pmi::Input::Request { rank: Rank(0), epoch: Epoch(0), request }).len(), 2);
    let member = Member::of_job(Rank(0));
    assert_eq!(outputs(pmi::Input::Bytes { member, bytes: Vec::new() }), []);
    let broken = pmi::Output::Broken { member, why: pmi::Broken::TwoWays };
    assert_eq!(outputs(pmi::Input::Bytes { member, bytes: b"cmd=init".to_vec() }), [broken]);
}
