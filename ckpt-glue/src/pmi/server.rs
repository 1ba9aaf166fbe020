//! The machine: requests of clients, and the answers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Epoch, Instant, Rank};

use super::line::{self, Command, LineReader, Reply};
use super::member::{Member, Ranks};
use super::rebuild::Gathering;
use super::spawn::{self, Heard, Spawn};
use super::state::{Answer, Effect, Published, RankState, Request, Text};
use super::store::{NotKept, Services};
use super::world::{Asks, Barrier, Beginning, Phase, World};
use super::{Broken, Input, Output, Refused};
use crate::limits::{
    PMI_KEY_BYTES_MAX, PMI_NAME_BYTES_MAX, PMI_NEWS_EVERY, PMI_SPAWN_PROCESSES_MAX, PMI_VALUE_BYTES_MAX,
};
use crate::queue::Queue;

/// The key under which MPICH's own launcher has the ranks that have ended and without which a job goes on.
const DEAD_PROCESSES: &str = "PMI_dead_processes";

/// The server.
#[derive(Debug)]
pub struct Server {
    pub(super) name: String,
    /// Those of which a process may still speak; world 0 always.
    pub(super) worlds: BTreeMap<u32, World>,
    /// Worlds that were ever spawned: their numbers are not used again.
    spawned: u32,
    services: Services,
    pub(super) start_timeout: Duration,
    /// Highest epoch of a request that was taken (R25).
    pub(super) highest: Epoch,
    /// The next place in the order that others see.
    pub(super) place: u64,
    /// Until the restored ranks have reported their earlier requests.
    pub(super) gathering: Option<Gathering>,
    pub(super) outputs: Queue<Output>,
}

impl Server {
    /// A server for `ranks` ranks. `name`: of their space of keys; unlike any other's on this host, for MPI libraries name
    /// files after it. `start_timeout`: for the first barrier, from the first rank that comes to the last, and for spawned
    /// processes until they begin.
    ///
    /// # Panics
    /// If the name is longer than [`PMI_NAME_BYTES_MAX`] less the number of a world.
    #[must_use]
    pub fn new(name: String, ranks: u32, start_timeout: Duration) -> Server {
        assert!(name.len() + "-4294967295".len() <= PMI_NAME_BYTES_MAX, "a name of {} bytes", name.len());
        let worlds = BTreeMap::from([(0, World::of_job(name.clone(), ranks))]);
        Server {
            name,
            worlds,
            spawned: 0,
            services: Services::default(),
            start_timeout,
            highest: Epoch(0),
            place: 0,
            gathering: None,
            outputs: Queue::default(),
        }
    }

    /// A server for ranks that have all been restored: it answers no rank before all of them have reported their
    /// earlier requests (R26), or have ended. `name` is used if none of them knows another one.
    ///
    /// # Panics
    /// As [`Server::new`].
    #[must_use]
    pub fn restored(name: String, ranks: u32, start_timeout: Duration) -> Server {
        let gathering = Some(Gathering::default());
        Server { gathering, ..Server::new(name, ranks, start_timeout) }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Bytes { member, bytes } => self.on_bytes(now, member, &bytes),
            Input::Request { rank, epoch, request } => self.on_request(now, rank, epoch, request),
            Input::State { rank, part, last } => self.on_state(now, rank, part, last),
            Input::Spawned { world, outcome } => self.on_spawned(world, outcome),
            Input::Gone { member } => {
                self.on_gone(member);
                self.build_if_reported(now);
            }
            Input::Lost { rank } => self.on_lost(rank),
        }
    }

    /// Handles timeouts that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |(_, world): &(&u32, &World)| world.due().is_some_and(|due| due <= now);
        let due: Vec<u32> = self.worlds.iter().filter(is_due).map(|(number, _)| *number).collect();
        for number in due {
            self.late_to_begin(now, number);
            self.late_to_barrier(now, number);
        }
        self.late_to_report(now);
    }

    /// When [`Server::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let reported = self.gathering.as_ref().and_then(|gathering| gathering.until);
        self.worlds.values().filter_map(World::due).chain(reported).min()
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
    }

    /// Whether a process has begun, and may have finished since.
    #[must_use]
    pub fn has_begun(&self, member: Member) -> bool {
        matches!(self.phase(member), Phase::Attached | Phase::Finished)
    }

    /// Whether a process has finished and may end.
    #[must_use]
    pub fn has_finished(&self, member: Member) -> bool {
        self.phase(member) == Phase::Finished
    }

    /// Whether a rank of the job speaks through a relay.
    #[must_use]
    pub fn is_relayed(&self, rank: Rank) -> bool {
        let client = self.worlds.get(&0).and_then(|world| world.client(rank));
        client.is_some_and(|client| client.relayed.is_some())
    }

    /// The PMI requests of an ended rank of the job: for its images from then on (R26).
    #[must_use]
    pub fn state(&self, rank: Rank) -> RankState {
        if let Some(reported) = self.reported(rank) {
            return reported.clone();
        }
        let Some(world) = self.worlds.get(&0) else { return RankState::default() };
        let Some(client) = world.client(rank) else { return RankState::default() };
        let relayed = client.relayed.clone().unwrap_or_default();
        RankState {
            name: if client.begun { world.name.as_str().into() } else { Text::default() },
            finished: true,
            barriers: client.barriers,
            answered: relayed.taken,
            published: relayed.published,
            pending: None,
        }
    }

    /// The name of a world, as its processes know it; `None` until all restored ranks have reported it.
    #[must_use]
    pub fn name_of(&self, world: u32) -> Option<&str> {
        let world = self.worlds.get(&world).filter(|_| self.gathering.is_none())?;
        Some(&world.name)
    }

    /// Barriers at which all processes of a world have met; world 0 is that of the ranks of the job.
    #[must_use]
    pub fn barriers_passed(&self, world: u32) -> u64 {
        self.worlds.get(&world).map_or(0, |world| world.barriers_passed)
    }

    /// Whether others wait for a process at a barrier of its world.
    #[must_use]
    pub fn is_awaited(&self, member: Member) -> bool {
        self.worlds.get(&member.world).is_some_and(|world| world.waiting_besides(member.rank) > 0)
    }

    fn phase(&self, member: Member) -> Phase {
        let client = self.worlds.get(&member.world).and_then(|world| world.client(member.rank));
        client.map_or(Phase::Gone, |client| client.phase)
    }

    fn late_to_begin(&mut self, now: Instant, number: u32) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let Some(beginning) = world.beginning.take_if(|beginning| beginning.until <= now) else { return };
        let waited = now.since(beginning.since);
        let missing = world.in_phase(Phase::Silent);
        if let Some(rank) = missing.0.first().copied() {
            self.break_off(Member { world: number, rank }, Broken::NeverBegan { missing, waited });
        }
    }

    fn late_to_barrier(&mut self, now: Instant, number: u32) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let (first, ranks) = (world.barriers_passed == 0, world.ranks());
        let Some(barrier) = world.barrier.as_mut().filter(|barrier| barrier.report_at <= now) else { return };
        let missing = Ranks(ranks.filter(|rank| !barrier.entered.contains(rank)).collect());
        let waiting = u32::try_from(barrier.entered.len()).unwrap_or(u32::MAX);
        let waited = now.since(barrier.since);
        barrier.report_at = now + PMI_NEWS_EVERY;
        match missing.0.first().copied() {
            Some(rank) if first => {
                self.break_off(
                    Member { world: number, rank },
                    Broken::NeverCame { missing, waiting, waited },
                );
            }
            _ => self.outputs.push(Output::Waiting { world: number, missing, waited }),
        }
    }

    fn on_bytes(&mut self, now: Instant, member: Member, bytes: &[u8]) {
        let Member { world, rank } = member;
        if let Some(client) = self.worlds.get_mut(&world).and_then(|world| world.client_mut(rank)) {
            if client.relayed.is_some() && !bytes.is_empty() {
                return self.break_off(member, Broken::TwoWays);
            }
            client.lines.feed(bytes);
        }
        loop {
            let client = self.worlds.get_mut(&world).and_then(|world| world.client_mut(rank));
            let Some(client) = client.filter(|client| !client.deaf) else { return };
            let done = match client.lines.next_command() {
                Ok(None) => return,
                Ok(Some(command)) => self.on_command(now, member, &command),
                Err(error) => Err(error.into()),
            };
            if let Err(why) = done {
                self.break_off(member, why);
            }
        }
    }

    /// A request of a rank through its relay.
    pub(super) fn on_request(&mut self, now: Instant, rank: Rank, epoch: Epoch, request: Request) {
        if let Some(gathering) = &mut self.gathering {
            // It has reported its state, and was not answered: this is an abort, or it has reported nothing yet.
            gathering.hold(rank, epoch, request);
            return;
        }
        let member = Member::of_job(rank);
        let Some(client) = self.worlds.get_mut(&0).and_then(|world| world.client_mut(rank)) else { return };
        let relayed = client.relayed.get_or_insert_default();
        let expected = relayed.taken + 1;
        if client.deaf || request.number < expected {
            return;
        }
        if request.number > expected {
            return self.break_off(member, Broken::Misnumbered { expected, found: request.number });
        }
        relayed.taken = request.number;
        let command = line::whole(&request.text.0);
        relayed.answering = Some(request);
        // R25
        self.highest = self.highest.max(epoch);
        let done = command.map_err(Broken::from).and_then(|command| self.on_command(now, member, &command));
        if let Err(why) = done {
            self.break_off(member, why);
        }
    }

    /// Ends a process, and listens to it no more.
    pub(super) fn break_off(&mut self, member: Member, why: Broken) {
        if let Some(client) =
            self.worlds.get_mut(&member.world).and_then(|world| world.client_mut(member.rank))
        {
            client.deaf = true;
        }
        self.outputs.push(Output::Broken { member, why });
    }

    fn on_gone(&mut self, member: Member) {
        let Some(world) = self.worlds.get_mut(&member.world) else { return };
        let waiting = world.waiting_besides(member.rank);
        let by = world.origin.map(|origin| origin.by);
        let Some(client) = world.client_mut(member.rank) else { return };
        let was = core::mem::replace(&mut client.phase, Phase::Gone);
        if was == Phase::Gone {
            return;
        }
        client.deaf = true;
        client.lines = LineReader::default();
        client.asks = Asks::Nothing;
        let over = member.world != 0 && world.living() == 0;
        match (waiting, was, by) {
            (1.., ..) => self.break_off(member, Broken::Left { waiting }),
            (0, Phase::Silent, Some(by)) => self.break_off(member, Broken::NotMpi { by }),
            _ => {}
        }
        if over {
            self.worlds.remove(&member.world);
        }
    }

    fn on_command(&mut self, now: Instant, member: Member, command: &Command) -> Result<(), Broken> {
        let Some(world) = self.worlds.get(&member.world) else { return Ok(()) };
        let Some(client) = world.client(member.rank) else { return Ok(()) };
        let out_of_turn = |when| Err(Broken::OutOfTurn { name: command.name.clone(), when });
        let is_abort = command.name == "abort";
        match (client.phase, command.name.as_str()) {
            (Phase::Silent, "init") => {
                self.on_init(now, member, command);
                return Ok(());
            }
            (Phase::Silent, _) => return out_of_turn("before `init`"),
            (Phase::Attached, "init") => return out_of_turn("a second time"),
            (Phase::Finished | Phase::Gone, _) => return out_of_turn("after `finalize`"),
            (Phase::Attached, _) => {}
        }
        if world.barrier.as_ref().is_some_and(|barrier| barrier.entered.contains(&member.rank)) && !is_abort {
            return out_of_turn("while it waits at a barrier");
        }
        match &client.asks {
            Asks::Waits if !is_abort => return out_of_turn("while it waits for processes that it spawns"),
            Asks::Part(_) if !is_abort && command.name != "spawn" => {
                return out_of_turn("between two parts of a `spawn`");
            }
            _ => {}
        }
        let reply = match command.name.as_str() {
            "get_maxes" => Reply::new("maxes")
                .with("kvsname_max", PMI_NAME_BYTES_MAX)
                .with("keylen_max", PMI_KEY_BYTES_MAX)
                .with("vallen_max", PMI_VALUE_BYTES_MAX),
            "get_appnum" => Reply::new("appnum").with("appnum", client.program),
            "get_universe_size" => Reply::new("universe_size").with("size", self.universe()),
            "get_my_kvsname" => Reply::new("my_kvsname").with("kvsname", &world.name),
            "put" | "publish_name" | "unpublish_name" => return self.keep(member, command),
            "get" => get(world, command)?,
            "getbyidx" => get_by_index(world, command)?,
            "lookup_name" => self.look_up(command)?,
            "barrier_in" => return self.on_barrier(now, member, command),
            "finalize" => return self.on_finalize(member),
            "abort" => {
                self.on_abort(member, command);
                return Ok(());
            }
            "spawn" => return self.on_spawn(now, member, command),
            name => return Err(Broken::Unknown { name: name.chars().take(40).collect() }),
        };
        self.send(member, reply);
        Ok(())
    }

    /// Processes that a program may count on.
    fn universe(&self) -> usize {
        self.worlds.get(&0).map_or(0, |world| world.clients.len())
    }

    fn send(&mut self, member: Member, reply: Reply) {
        self.answer(member, reply.emit(), Effect::Nothing);
    }

    /// Answers the request that a process waits for.
    fn answer(&mut self, member: Member, line: String, effect: Effect) {
        let client = self.worlds.get_mut(&member.world).and_then(|world| world.client_mut(member.rank));
        if let Some(relayed) = client.and_then(|client| client.relayed.as_mut()) {
            let Some(Request { number, .. }) = relayed.answering.take() else { return };
            let depends = self.highest;
            let answer = Answer { number, depends, effect, text: Text(line.into_bytes()) };
            self.outputs.push(Output::Answer { rank: member.rank, answer });
        } else if !line.is_empty() {
            self.outputs.push(Output::Send { member, line });
        }
    }

    fn on_init(&mut self, now: Instant, member: Member, command: &Command) {
        // We speak 1.1. A client of another protocol gets an error; a client of a later version gets this one.
        let speaks = command.number::<u32>("pmi_version") == Some(1);
        let reply = Reply::new("response_to_init").with("pmi_version", 1).with("pmi_subversion", 1);
        let reply = reply.with("rc", if speaks { 0 } else { -1 });
        let Some(world) = self.worlds.get_mut(&member.world).filter(|_| speaks) else {
            return self.send(member, reply);
        };
        let name = world.name.as_str().into();
        if let Some(client) = world.client_mut(member.rank) {
            client.phase = Phase::Attached;
            client.begun = true;
        }
        world.note_begun(now, self.start_timeout);
        self.answer(member, reply.emit(), Effect::Began { name });
        self.outputs.push(Output::Began { member });
    }

    fn on_barrier(&mut self, now: Instant, member: Member, command: &Command) -> Result<(), Broken> {
        if command.get("group").is_some_and(|group| group != "WORLD") {
            // PMI 1.2, of which we did not speak.
            let name = command.name.clone();
            return Err(Broken::OutOfTurn { name, when: "for a group, which PMI 1.1 does not have" });
        }
        let Some(world) = self.worlds.get_mut(&member.world) else { return Ok(()) };
        let passed = world.barriers_passed;
        if let Some(client) = world.client_mut(member.rank).filter(|client| client.barriers < passed) {
            // R26: others have been answered in a life before.
            client.barriers += 1;
            self.answer(member, barrier_out(), Effect::Met);
            return Ok(());
        }
        let first = if passed == 0 { self.start_timeout } else { PMI_NEWS_EVERY };
        let fresh = || Barrier { entered: BTreeSet::new(), since: now, report_at: now + first };
        let barrier = world.barrier.get_or_insert_with(fresh);
        barrier.entered.insert(member.rank);
        if world.is_barrier_full() {
            self.release_barrier(member.world);
            return Ok(());
        }
        // An ended rank will not come.
        let waiting = world.waiting_besides(member.rank) + 1;
        let gone = world.in_phase(Phase::Gone).0.into_iter().filter(|rank| !world.lost.contains(rank));
        let gone = gone.chain(world.in_phase(Phase::Finished).0).min();
        if let Some(rank) = gone {
            self.break_off(Member { rank, ..member }, Broken::Left { waiting });
        }
        Ok(())
    }

    fn release_barrier(&mut self, number: u32) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        world.barrier = None;
        world.barriers_passed += 1;
        for client in &mut world.clients {
            client.barriers += 1;
        }
        let here: Vec<Rank> = world.ranks().filter(|rank| !world.lost.contains(rank)).collect();
        for rank in here {
            self.answer(Member { world: number, rank }, barrier_out(), Effect::Met);
        }
    }

    /// R37: a rank of the job is gone, and the others go on.
    fn on_lost(&mut self, rank: Rank) {
        let Some(world) = self.worlds.get_mut(&0) else { return };
        let Some(client) = world.client_mut(rank) else { return };
        client.phase = Phase::Gone;
        client.deaf = true;
        client.lines = LineReader::default();
        client.asks = Asks::Nothing;
        if world.lost.contains(&rank) {
            return;
        }
        world.lost.push(rank);
        if let Some(barrier) = &mut world.barrier {
            barrier.entered.remove(&rank);
        }
        if world.is_barrier_full() {
            self.release_barrier(0);
        }
    }

    fn on_finalize(&mut self, member: Member) -> Result<(), Broken> {
        let Some(world) = self.worlds.get_mut(&member.world) else { return Ok(()) };
        if let Some(client) = world.client_mut(member.rank) {
            client.phase = Phase::Finished;
        }
        let waiting = world.waiting_besides(member.rank);
        // In this order: the process stands still until it has its answer.
        self.outputs.push(Output::Finished { member });
        self.answer(member, Reply::new("finalize_ack").with("rc", 0).emit(), Effect::Finished);
        if waiting > 0 { Err(Broken::Left { waiting }) } else { Ok(()) }
    }

    fn on_abort(&mut self, member: Member, command: &Command) {
        // A process has 8 bits of exit code, of which 0 means success.
        let code = command.number::<i64>("exitcode").unwrap_or(1);
        let code = u8::try_from(code & 0xff).ok().filter(|code| *code != 0).unwrap_or(1);
        if let Some(client) =
            self.worlds.get_mut(&member.world).and_then(|world| world.client_mut(member.rank))
        {
            client.deaf = true;
        }
        self.outputs.push(Output::Aborted { member, code });
    }

    fn on_spawn(&mut self, now: Instant, member: Member, command: &Command) -> Result<(), Broken> {
        let heard = {
            let Some(asks) = self.asks(member) else { return Ok(()) };
            let before = match core::mem::take(asks) {
                Asks::Part(spawning) => Some(spawning),
                Asks::Nothing | Asks::Waits => None,
            };
            spawn::hear(before, command)?
        };
        match heard {
            Heard::Part(spawning) => {
                if let Some(asks) = self.asks(member) {
                    *asks = Asks::Part(spawning);
                }
                // Its relay sends the next part then.
                self.answer(member, String::new(), Effect::Nothing);
            }
            Heard::Refused(why) => self.refuse(member, why),
            Heard::Whole(spawn) => {
                if let Err(why) = self.begin_world(now, member, spawn) {
                    self.refuse(member, why);
                }
            }
        }
        Ok(())
    }

    fn asks(&mut self, member: Member) -> Option<&mut Asks> {
        let world = self.worlds.get_mut(&member.world)?;
        world.client_mut(member.rank).map(|client| &mut client.asks)
    }

    /// Makes the world of a spawn, and has its processes started.
    fn begin_world(&mut self, now: Instant, by: Member, spawn: Spawn) -> Result<(), Refused> {
        let running: u32 = self.worlds.range(1..).map(|(_, world)| world.living()).sum();
        if running + spawn.processes > PMI_SPAWN_PROCESSES_MAX {
            return Err(Refused::Processes { asked: spawn.processes, running });
        }
        let number = self.spawned.checked_add(1).ok_or(Refused::Worlds)?;
        let name = format!("{}-{number}", self.name);
        let beginning = Beginning::new(now, self.start_timeout);
        let world = World::spawned(name, &spawn, by, beginning).map_err(|_| Refused::Keys)?;
        self.spawned = number;
        self.worlds.insert(number, world);
        if let Some(asks) = self.asks(by) {
            *asks = Asks::Waits;
        }
        self.outputs.push(Output::Spawn { by, world: number, commands: spawn.commands });
        Ok(())
    }

    fn refuse(&mut self, member: Member, why: Refused) {
        self.outputs.push(Output::Refused { member, why });
        self.send(member, Reply::new("spawn_result").with("rc", -1).with("msg", "refused"));
    }

    fn on_spawned(&mut self, number: u32, outcome: Result<(), &'static str>) {
        let Some(by) = self.worlds.get(&number).and_then(|world| world.origin).map(|origin| origin.by) else {
            return;
        };
        if outcome.is_err() {
            self.worlds.remove(&number);
        }
        // It may have gone meanwhile.
        let Some(asks) = self.asks(by).filter(|asks| matches!(asks, Asks::Waits)) else { return };
        *asks = Asks::Nothing;
        let reply = Reply::new("spawn_result");
        // Codes of single processes are not given: all run, or none does.
        self.send(
            by,
            match outcome {
                Ok(()) => reply.with("rc", 0),
                Err(word) => reply.with("rc", -1).with("msg", word),
            },
        );
    }

    /// A command that others see the effect of.
    fn keep(&mut self, member: Member, command: &Command) -> Result<(), Broken> {
        let done = self.change(member, command)?;
        let (name, word) = match command.name.as_str() {
            "put" => ("put_result", "msg"),
            "publish_name" => ("publish_result", "info"),
            _ => ("unpublish_result", "info"),
        };
        let reply = Reply::new(name).with("rc", if done.is_ok() { 0 } else { -1 });
        let reply = match done {
            Ok(()) if word == "msg" => reply.with(word, "success"),
            Ok(()) => reply.with(word, "ok"),
            Err(refused) if word == "msg" => reply.with(word, refused),
            Err(refused) => reply.with(word, refused).with("msg", refused),
        };
        let effect = if done.is_ok() { self.note_published(member) } else { Effect::Nothing };
        self.answer(member, reply.emit(), effect);
        Ok(())
    }

    /// Carries it out, or returns a word with the reason why not.
    pub(super) fn change(
        &mut self,
        member: Member,
        command: &Command,
    ) -> Result<Result<(), &'static str>, Broken> {
        let value = |key| needed(command, key);
        let done = match command.name.as_str() {
            "put" => {
                let Some(world) = self.worlds.get_mut(&member.world) else {
                    return Ok(Err("no_such_kvsname"));
                };
                if let Some(refused) = other_space(world, command)? {
                    return Ok(Err(refused));
                }
                world.store.put(value("key")?, value("value")?)
            }
            "publish_name" => self.services.publish(value("service")?, value("port")?),
            _ if self.services.unpublish(value("service")?) => Ok(()),
            _ => return Ok(Err("not_found")),
        };
        Ok(done.map_err(NotKept::word))
    }

    fn note_published(&mut self, member: Member) -> Effect {
        let place = self.place;
        self.place += 1;
        let client = self.worlds.get_mut(&member.world).and_then(|world| world.client_mut(member.rank));
        if let Some(relayed) = client.and_then(|client| client.relayed.as_mut())
            && let Some(asked) = &relayed.answering
        {
            relayed.published.push(Published { place, text: asked.text.clone() });
        }
        Effect::Published { place }
    }

    fn look_up(&self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("lookup_result");
        Ok(match self.services.lookup(needed(command, "service")?) {
            Some(port) => reply.with("rc", 0).with("info", "ok").with("port", port),
            None => reply.with("rc", -1).with("info", "not_found").with("msg", "not_found"),
        })
    }
}

fn barrier_out() -> String {
    Reply::new("barrier_out").with("rc", 0).emit()
}

fn get(world: &World, command: &Command) -> Result<Reply, Broken> {
    let reply = Reply::new("get_result");
    let key = needed(command, "key")?;
    let dead = if key == DEAD_PROCESSES { world.dead_processes() } else { None };
    Ok(match (other_space(world, command)?, dead.as_deref().or_else(|| world.store.get(key))) {
        (Some(refused), _) => reply.with("rc", -1).with("msg", refused).with("value", "unknown"),
        (None, Some(value)) => reply.with("rc", 0).with("msg", "success").with("value", value),
        (None, None) => reply.with("rc", -1).with("msg", "no_such_key").with("value", "unknown"),
    })
}

fn get_by_index(world: &World, command: &Command) -> Result<Reply, Broken> {
    let reply = Reply::new("getbyidx_results");
    let index: usize = needed(command, "idx")?.parse().unwrap_or(usize::MAX);
    Ok(match (other_space(world, command)?, world.store.at(index)) {
        (Some(refused), _) => reply.with("rc", -1).with("reason", refused),
        (None, Some((key, value))) => {
            reply.with("rc", 0).with("nextidx", index + 1).with("key", key).with("val", value)
        }
        (None, None) => reply.with("rc", -2).with("reason", "no_more_keyvals"),
    })
}

/// A process reads and writes the keys of its own world.
fn other_space(world: &World, command: &Command) -> Result<Option<&'static str>, Broken> {
    Ok((needed(command, "kvsname")? != world.name).then_some("no_such_kvsname"))
}

fn needed<'a>(command: &'a Command, key: &'static str) -> Result<&'a str, Broken> {
    command.get(key).ok_or_else(|| Broken::Missing { name: command.name.to_string(), key })
}
