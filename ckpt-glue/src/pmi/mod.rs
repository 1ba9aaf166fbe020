//! The server of PMI-1, through which the processes of an MPI library find each other.
//!
//! One machine for all ranks of a node. Its shell owns the sockets: it hands in what came over each, and sends what the
//! machine says. A rank begins with `init`, puts its address and gets those of others, meets them at barriers, and says
//! `finalize` before it ends. What a rank says wrong ends the job, with a reason: a client waits for its answer without end.
//!
//! ```text
//!   Silent --init--> Attached --finalize--> Finished
//!      |                |                      |
//!      +----------------+------- its end ------+--> Gone
//! ```

mod line;
mod store;

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use transport::{Instant, Rank};

use crate::limits::{
    PMI_KEY_BYTES_MAX, PMI_NAME_BYTES_MAX, PMI_NAMED_MAX, PMI_NEWS_EVERY, PMI_VALUE_BYTES_MAX,
};
use crate::queue::Queue;
pub use line::NoCommand;
use line::{Command, LineReader, Reply};
use store::{Services, Store};

/// What happens to the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Bytes came from a rank, in any pieces.
    Bytes {
        /// The rank.
        rank: Rank,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A rank will say nothing more: its process has ended, or has closed its connection.
    Gone {
        /// The rank.
        rank: Rank,
    },
}

/// What the server wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this line.
    Send {
        /// To whom.
        rank: Rank,
        /// With its end.
        line: String,
    },
    /// A rank has begun: it runs a program of an MPI library.
    Began {
        /// The rank.
        rank: Rank,
    },
    /// A rank has finished: it may end, as soon as it has the answer that follows.
    Finished {
        /// The rank.
        rank: Rank,
    },
    /// The program ends itself and all others (`MPI_Abort`).
    Aborted {
        /// The rank that asked.
        rank: Rank,
        /// Its code; never 0.
        code: u8,
    },
    /// The job cannot go on: end this rank, and with it the job.
    Broken {
        /// Whose fault it is.
        rank: Rank,
        /// Why.
        why: Broken,
    },
    /// A rank asked for what there is not; it has been told so, and its program decides.
    Refused {
        /// The rank.
        rank: Rank,
        /// What it asked for.
        what: Refused,
    },
    /// Ranks wait at a barrier for others, for so long.
    Waiting {
        /// Those that have not come.
        missing: Ranks,
        /// Since the first came.
        waited: Duration,
    },
}

/// Why a job cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// What came is no command.
    #[error("it sent {0} to the launcher's PMI server")]
    NoCommand(#[from] NoCommand),
    /// A command that the protocol does not have.
    #[error("it sent the command `{name}` to the launcher's PMI server, which PMI-1 does not have")]
    Unknown {
        /// The command.
        name: String,
    },
    /// A command without one of its keys.
    #[error("its PMI command `{name}` has no `{key}`")]
    Missing {
        /// The command.
        name: String,
        /// The key.
        key: &'static str,
    },
    /// A command that cannot come now.
    #[error("it sent the PMI command `{name}` {when}")]
    OutOfTurn {
        /// The command.
        name: String,
        /// What it had done before.
        when: &'static str,
    },
    /// It ended, and others wait for it.
    #[error("it ended without coming to a barrier at which {waiting} other ranks wait for it")]
    Left {
        /// How many wait.
        waiting: u32,
    },
    /// It did not come to the first barrier, which is a part of `MPI_Init`.
    #[error(
        "{missing} did not come to the first barrier of MPI_Init within {waited:?}; waited for by {waiting} (--start-timeout)"
    )]
    NeverCame {
        /// Those that have not come; the first is the one that is ended.
        missing: Ranks,
        /// How many wait.
        waiting: u32,
        /// Since the first came.
        waited: Duration,
    },
}

/// What a rank may ask for and not get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// More processes (`MPI_Comm_spawn`).
    Spawn,
}

/// Some ranks; a report names the first of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks(pub Vec<Rank>);

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (at, rank) in self.0.iter().take(PMI_NAMED_MAX).enumerate() {
            write!(f, "{} {rank}", if at == 0 { "" } else { "," })?;
        }
        match self.0.len().saturating_sub(PMI_NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Silent,
    Attached,
    Finished,
    Gone,
}

#[derive(Clone, Debug)]
struct Client {
    phase: Phase,
    lines: LineReader,
    /// Nothing that it says is heard any more.
    deaf: bool,
}

#[derive(Clone, Debug)]
struct Barrier {
    entered: BTreeSet<Rank>,
    since: Instant,
    report_at: Instant,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    name: String,
    clients: Vec<Client>,
    store: Store,
    services: Services,
    barrier: Option<Barrier>,
    barriers_passed: u64,
    start_timeout: Duration,
    outputs: Queue<Output>,
}

impl Server {
    /// A server for `ranks` ranks. `name`: of their space of keys; unlike any other's on this host, for MPI libraries name
    /// files after it. `start_timeout`: for the first barrier, from the first rank that comes to the last.
    ///
    /// # Panics
    /// If the name is longer than [`PMI_NAME_BYTES_MAX`].
    #[must_use]
    pub fn new(name: String, ranks: u32, start_timeout: Duration) -> Server {
        assert!(name.len() <= PMI_NAME_BYTES_MAX, "a name of {} bytes", name.len());
        let client = Client { phase: Phase::Silent, lines: LineReader::default(), deaf: false };
        let mut store = Store::default();
        // From node 0 on as many nodes as ranks, one rank on each. Whatever a library would do through shared memory of its own,
        // which no image of a rank could hold, it then does through its network, which is ours.
        let mapping = alloc::format!("(vector,(0,{ranks},1))");
        let kept = store.put("PMI_process_mapping", &mapping);
        debug_assert!(kept.is_ok(), "{kept:?}");
        Server {
            name,
            clients: alloc::vec![client; ranks as usize],
            store,
            services: Services::default(),
            barrier: None,
            barriers_passed: 0,
            start_timeout,
            outputs: Queue::default(),
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Bytes { rank, bytes } => self.on_bytes(now, rank, &bytes),
            Input::Gone { rank } => self.on_gone(rank),
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let first = self.barriers_passed == 0;
        let ranks = self.ranks();
        let Some(barrier) = self.barrier.as_mut().filter(|barrier| barrier.report_at <= now) else { return };
        let missing: Vec<Rank> = ranks.filter(|rank| !barrier.entered.contains(rank)).collect();
        let waiting = u32::try_from(barrier.entered.len()).unwrap_or(u32::MAX);
        let waited = now.since(barrier.since);
        barrier.report_at = now + PMI_NEWS_EVERY;
        match missing.first() {
            Some(rank) if first => {
                let why = Broken::NeverCame { missing: Ranks(missing.clone()), waiting, waited };
                self.break_off(*rank, why);
            }
            _ => self.outputs.push(Output::Waiting { missing: Ranks(missing), waited }),
        }
    }

    /// When [`Server::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.barrier.as_ref().map(|barrier| barrier.report_at)
    }

    /// The next thing to do; call until there is none.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
    }

    /// Whether a rank has begun, and may have finished since.
    #[must_use]
    pub fn has_begun(&self, rank: Rank) -> bool {
        self.client(rank).is_some_and(|client| matches!(client.phase, Phase::Attached | Phase::Finished))
    }

    /// Barriers at which all ranks have met.
    #[must_use]
    pub fn barriers_passed(&self) -> u64 {
        self.barriers_passed
    }

    /// Ranks that have said nothing; `None` if none has said anything, as in a job that has nothing to do with MPI.
    #[must_use]
    pub fn silent(&self) -> Option<Ranks> {
        let silent = |rank: &Rank| self.client(*rank).is_some_and(|client| client.phase == Phase::Silent);
        let silent: Vec<Rank> = self.ranks().filter(silent).collect();
        (!silent.is_empty() && silent.len() < self.clients.len()).then_some(Ranks(silent))
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..u32::try_from(self.clients.len()).unwrap_or(u32::MAX)).map(Rank)
    }

    fn client(&self, rank: Rank) -> Option<&Client> {
        self.clients.get(rank.0 as usize)
    }

    fn on_bytes(&mut self, now: Instant, rank: Rank, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(rank.0 as usize) else { return };
        client.lines.feed(bytes);
        while let Some(client) = self.clients.get_mut(rank.0 as usize).filter(|client| !client.deaf) {
            let done = match client.lines.next_command() {
                Ok(None) => return,
                Ok(Some(command)) => self.on_command(now, rank, &command),
                Err(error) => Err(error.into()),
            };
            if let Err(why) = done {
                self.break_off(rank, why);
            }
        }
    }

    /// Ends a rank, and listens to it no more.
    fn break_off(&mut self, rank: Rank, why: Broken) {
        if let Some(client) = self.clients.get_mut(rank.0 as usize) {
            client.deaf = true;
        }
        self.outputs.push(Output::Broken { rank, why });
    }

    fn on_gone(&mut self, rank: Rank) {
        let Some(client) = self.clients.get_mut(rank.0 as usize) else { return };
        if client.phase == Phase::Gone {
            return;
        }
        client.phase = Phase::Gone;
        client.deaf = true;
        client.lines = LineReader::default();
        let others = self.barrier.as_ref().map(|barrier| {
            u32::try_from(barrier.entered.iter().filter(|entered| **entered != rank).count())
                .unwrap_or(u32::MAX)
        });
        if let Some(waiting @ 1..) = others {
            self.break_off(rank, Broken::Left { waiting });
        }
    }

    fn on_command(&mut self, now: Instant, rank: Rank, command: &Command) -> Result<(), Broken> {
        let phase = self.client(rank).map_or(Phase::Gone, |client| client.phase);
        let out_of_turn = |when| Err(Broken::OutOfTurn { name: command.name.clone(), when });
        match (phase, command.name.as_str()) {
            (Phase::Silent, "init") => {
                self.on_init(rank, command);
                return Ok(());
            }
            (Phase::Silent, _) => return out_of_turn("before `init`"),
            (Phase::Attached, "init") => return out_of_turn("a second time"),
            (Phase::Finished | Phase::Gone, _) => return out_of_turn("after `finalize`"),
            (Phase::Attached, _) => {}
        }
        if self.barrier.as_ref().is_some_and(|barrier| barrier.entered.contains(&rank))
            && command.name != "abort"
        {
            return out_of_turn("while it waits at a barrier");
        }
        let reply = match command.name.as_str() {
            "get_maxes" => Reply::new("maxes")
                .with("kvsname_max", PMI_NAME_BYTES_MAX)
                .with("keylen_max", PMI_KEY_BYTES_MAX)
                .with("vallen_max", PMI_VALUE_BYTES_MAX),
            "get_appnum" => Reply::new("appnum").with("appnum", 0),
            "get_universe_size" => Reply::new("universe_size").with("size", self.clients.len()),
            "get_my_kvsname" => Reply::new("my_kvsname").with("kvsname", &self.name),
            "put" => self.put(command)?,
            "get" => self.get(command)?,
            "getbyidx" => self.get_by_index(command)?,
            "publish_name" => self.publish(command)?,
            "lookup_name" => self.look_up(command)?,
            "unpublish_name" => self.unpublish(command)?,
            "barrier_in" => return self.on_barrier(now, rank, command),
            "finalize" => return self.on_finalize(rank),
            "abort" => {
                self.on_abort(rank, command);
                return Ok(());
            }
            "spawn" => {
                self.outputs.push(Output::Refused { rank, what: Refused::Spawn });
                Reply::new("spawn_result")
                    .with("rc", -1)
                    .with("msg", "stillwire_run_starts_no_more_processes")
            }
            name => return Err(Broken::Unknown { name: name.chars().take(40).collect() }),
        };
        self.send(rank, reply);
        Ok(())
    }

    fn send(&mut self, rank: Rank, reply: Reply) {
        self.outputs.push(Output::Send { rank, line: reply.emit() });
    }

    fn on_init(&mut self, rank: Rank, command: &Command) {
        // We speak 1.1. Who wants another protocol is told so; who wants more of this one makes do with less.
        let speaks = command.number::<u32>("pmi_version") == Some(1);
        let reply = Reply::new("response_to_init").with("pmi_version", 1).with("pmi_subversion", 1);
        self.send(rank, reply.with("rc", if speaks { 0 } else { -1 }));
        if speaks {
            if let Some(client) = self.clients.get_mut(rank.0 as usize) {
                client.phase = Phase::Attached;
            }
            self.outputs.push(Output::Began { rank });
        }
    }

    fn on_barrier(&mut self, now: Instant, rank: Rank, command: &Command) -> Result<(), Broken> {
        if command.get("group").is_some_and(|group| group != "WORLD") {
            // PMI 1.2, of which we did not speak.
            let name = command.name.clone();
            return Err(Broken::OutOfTurn { name, when: "for a group, which PMI 1.1 does not have" });
        }
        let first = if self.barriers_passed == 0 { self.start_timeout } else { PMI_NEWS_EVERY };
        let fresh = || Barrier { entered: BTreeSet::new(), since: now, report_at: now + first };
        let barrier = self.barrier.get_or_insert_with(fresh);
        barrier.entered.insert(rank);
        let waiting = u32::try_from(barrier.entered.len() - 1).unwrap_or(u32::MAX);
        if barrier.entered.len() == self.clients.len() {
            self.barrier = None;
            self.barriers_passed += 1;
            for rank in self.ranks() {
                self.send(rank, Reply::new("barrier_out").with("rc", 0));
            }
            return Ok(());
        }
        // Who is gone will not come.
        let gone = |client: &Client| matches!(client.phase, Phase::Gone | Phase::Finished);
        if let Some(at) = self.clients.iter().position(gone) {
            let gone = Rank(u32::try_from(at).unwrap_or(u32::MAX));
            self.break_off(gone, Broken::Left { waiting: waiting + 1 });
        }
        Ok(())
    }

    fn on_finalize(&mut self, rank: Rank) -> Result<(), Broken> {
        if let Some(client) = self.clients.get_mut(rank.0 as usize) {
            client.phase = Phase::Finished;
        }
        // In this order: the rank stands still until it has its answer.
        self.outputs.push(Output::Finished { rank });
        self.send(rank, Reply::new("finalize_ack").with("rc", 0));
        match self.barrier.as_ref().map(|barrier| barrier.entered.len()) {
            Some(waiting) => Err(Broken::Left { waiting: u32::try_from(waiting).unwrap_or(u32::MAX) }),
            None => Ok(()),
        }
    }

    fn on_abort(&mut self, rank: Rank, command: &Command) {
        // A process has 8 bits of exit code, of which 0 says that all is well.
        let code = command.number::<i64>("exitcode").unwrap_or(1);
        let code = u8::try_from(code & 0xff).ok().filter(|code| *code != 0).unwrap_or(1);
        if let Some(client) = self.clients.get_mut(rank.0 as usize) {
            client.deaf = true;
        }
        self.outputs.push(Output::Aborted { rank, code });
    }

    fn put(&mut self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("put_result");
        if let Some(refused) = self.other_space(command)? {
            return Ok(reply.with("rc", -1).with("msg", refused));
        }
        let kept = self.store.put(needed(command, "key")?, needed(command, "value")?);
        Ok(match kept {
            Ok(()) => reply.with("rc", 0).with("msg", "success"),
            Err(error) => reply.with("rc", -1).with("msg", error.word()),
        })
    }

    fn get(&self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("get_result");
        let key = needed(command, "key")?;
        Ok(match (self.other_space(command)?, self.store.get(key)) {
            (Some(refused), _) => reply.with("rc", -1).with("msg", refused).with("value", "unknown"),
            (None, Some(value)) => reply.with("rc", 0).with("msg", "success").with("value", value),
            (None, None) => reply.with("rc", -1).with("msg", "no_such_key").with("value", "unknown"),
        })
    }

    fn get_by_index(&self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("getbyidx_results");
        let index: usize = needed(command, "idx")?.parse().unwrap_or(usize::MAX);
        Ok(match (self.other_space(command)?, self.store.at(index)) {
            (Some(refused), _) => reply.with("rc", -1).with("reason", refused),
            (None, Some((key, value))) => {
                reply.with("rc", 0).with("nextidx", index + 1).with("key", key).with("val", value)
            }
            (None, None) => reply.with("rc", -2).with("reason", "no_more_keyvals"),
        })
    }

    fn publish(&mut self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("publish_result");
        let kept = self.services.publish(needed(command, "service")?, needed(command, "port")?);
        Ok(match kept {
            Ok(()) => reply.with("rc", 0).with("info", "ok"),
            Err(error) => reply.with("rc", -1).with("info", error.word()).with("msg", error.word()),
        })
    }

    fn look_up(&self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("lookup_result");
        Ok(match self.services.lookup(needed(command, "service")?) {
            Some(port) => reply.with("rc", 0).with("info", "ok").with("port", port),
            None => reply.with("rc", -1).with("info", "not_found").with("msg", "not_found"),
        })
    }

    fn unpublish(&mut self, command: &Command) -> Result<Reply, Broken> {
        let reply = Reply::new("unpublish_result");
        Ok(if self.services.unpublish(needed(command, "service")?) {
            reply.with("rc", 0).with("info", "ok")
        } else {
            reply.with("rc", -1).with("info", "not_found").with("msg", "not_found")
        })
    }

    /// There is one space of keys.
    fn other_space(&self, command: &Command) -> Result<Option<&'static str>, Broken> {
        Ok((needed(command, "kvsname")? != self.name).then_some("no_such_kvsname"))
    }
}

fn needed<'a>(command: &'a Command, key: &'static str) -> Result<&'a str, Broken> {
    command.get(key).ok_or_else(|| Broken::Missing { name: command.name.to_string(), key })
}

#[cfg(test)]
mod tests;
