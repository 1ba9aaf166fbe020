//! The program against the oracle, over a transport that is nothing but a list.

use transport::{Buffers, OpId};

use super::oracle::final_digests;
use super::program::{Arrival, Body, Host, Program, Refused, Step};
use super::script::{Message, Script, Size, Wanted};
use crate::engine::random::Random;

struct Waiting {
    message: Message,
    data: u64,
    bytes: Vec<u8>,
    op: OpId,
    port: u32,
    silent: bool,
}

struct Posted {
    rank: u32,
    port: u32,
    wanted: Wanted,
    op: OpId,
}

#[derive(Default)]
struct Lists {
    rank: u32,
    ops: u64,
    sent: Vec<Waiting>,
    posted: Vec<Posted>,
}

impl Host for Lists {
    fn send(
        &mut self,
        m: &Message,
        port: u32,
        data: u64,
        silent: bool,
        body: Body<'_>,
    ) -> Result<OpId, Refused> {
        self.ops += 1;
        let bytes = match body {
            Body::Copied(bytes) => bytes.to_vec(),
            Body::User(_) => Vec::new(),
        };
        self.sent.push(Waiting { message: *m, data, bytes, op: OpId(self.ops), port, silent });
        Ok(OpId(self.ops))
    }

    fn post(
        &mut self,
        port: u32,
        wanted: &Wanted,
        _: u64,
        _: u64,
        _: &mut impl Buffers,
    ) -> Result<OpId, Refused> {
        self.ops += 1;
        self.posted.push(Posted { rank: self.rank, port, wanted: *wanted, op: OpId(self.ops) });
        Ok(OpId(self.ops))
    }
}

fn takes(posted: &Posted, waiting: &Waiting) -> bool {
    posted.rank == waiting.message.to
        && posted.port == waiting.port
        && posted.wanted.source.is_none_or(|source| source == waiting.message.from)
        && (posted.wanted.tag ^ waiting.message.tag()) & !posted.wanted.ignore == 0
}

/// Runs the ranks in random order, matching at random moments; saves and loads each program now and then.
fn run(script: &Script, random: &mut Random) -> Vec<u64> {
    let mut lists = Lists::default();
    let mut programs: Vec<Program> = (0..script.ranks).map(|rank| Program::new(script, rank)).collect();
    let mut finished = 0;
    let mut steps = 0;
    while finished < programs.len() {
        steps += 1;
        assert!(steps < 1_000_000, "the ranks wait for each other");
        let at = random.index(programs.len());
        lists.rank = u32::try_from(at).unwrap();
        let step = programs[at].step(script, &mut lists);
        if random.percent(2) {
            let mut saved = Vec::new();
            programs[at].save(&mut saved);
            programs[at] = Program::load(&saved).unwrap();
        }
        if random.percent(50) {
            exchange(&mut lists, &mut programs);
        }
        finished = programs.iter().filter(|program| program.round() == script.round_count()).count();
        assert!(step != Step::Finished || programs[at].round() == script.round_count());
    }
    assert!(programs.iter().all(|program| program.damaged == 0));
    programs.iter().map(Program::digest).collect()
}

/// Matches everything that can be, oldest message and oldest receive first.
fn exchange(lists: &mut Lists, programs: &mut [Program]) {
    let mut at = 0;
    while at < lists.sent.len() {
        let Some(receive) = lists.posted.iter().position(|posted| takes(posted, &lists.sent[at])) else {
            at += 1;
            continue;
        };
        let posted = lists.posted.remove(receive);
        let sent = lists.sent.remove(at);
        let sender = usize::try_from(sent.message.from).unwrap();
        let bytes = if sent.message.from_user_buffer {
            programs[sender].payload(sent.port, sent.op).unwrap().to_vec()
        } else {
            sent.bytes
        };
        let receiver = &mut programs[usize::try_from(sent.message.to).unwrap()];
        receiver.receives[usize::try_from(sent.port).unwrap()].place(posted.op, 0, &bytes);
        let length = bytes.len() as u64;
        assert!(receiver.received(&Arrival {
            port: sent.port,
            op: posted.op,
            from: sent.message.from,
            tag: sent.message.tag(),
            data: sent.data,
            bytes: length,
            sent_bytes: length,
        }));
        assert!(sent.silent || programs[sender].send_done(sent.port, sent.op));
    }
}

#[test]
fn every_order_of_execution_ends_as_the_oracle_says() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let ranks = 2 + u32::try_from(seed % 4).unwrap();
        let size = Size { messages_min: 200, messages_reserved: 0, copied_bytes_max: 256, bytes_max: 1500 };
        let script = Script::generate(&mut random, ranks, 1 + u32::try_from(seed % 2).unwrap(), size);
        assert_eq!(run(&script, &mut random), final_digests(&script), "seed {seed}");
    }
}
