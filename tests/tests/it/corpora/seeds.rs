//! Whole examples of everything that is fuzzed, made by the code that writes it.

use std::collections::BTreeMap;

use ckpt_glue::control::{
    ClosedLink, ClosedPort, CutAt, CutMode, CutStatistics, ExitedRecord, FaultReport, Found, ImageContent,
    ImageReport, JobPhase, JobStatus, Message, NO_LIFE, NewLife, NicText, NoImageReason, OwedLink, Point,
    PointSummary, PortEntry, RankReport, Registration, Source, Wait, WaitKind, Watch, stream,
};
use ckpt_glue::pmi::{Answer, Effect, Published, RankState, Request};
use ckpt_glue::protection::seat::{Known, Seat};
use ckpt_glue::{Control, ControlKey, ExitStatus, JobConfig, Layout, NodeIndex, Party};
use drivers::capture::pcapng::{self, Direction, Packet};
use store::delta::ContentName;
use store::image::{ImageSummary, KindSummary, encode_encrypted_image, encode_image};
use store::packets::KeyUse;
use store::protect::{Extent, Piece};
use store::record::{
    BaseCopy, Content, ContentFile, Copied, CopiedFile, CopiedImage, CopiedRank, KeyName, ManifestImage,
    Seats,
};
use store::{
    CheckpointSettings, CommitRecord, Decision, End, GenerationId, Identity, ImageDigest, JobFile, Manifest,
    Section,
};
use transport::wire::{
    Body, Contact, Cts, Data, Eager, Flags, Frame, Header, Resync, Rts, Stopped, TAG_BYTES,
};
use transport::{Epoch, JobId, Life, LinkIndex, OpId, PortId, Rank, RawAddress, Space};

/// A file's name and content.
pub(crate) type Seed = (String, Vec<u8>);

/// The seeds of each target.
pub(crate) fn all() -> [(&'static str, Vec<Seed>); 14] {
    [
        ("frame", frame_seeds()),
        ("capture", capture_seeds()),
        ("pack", pack_seeds()),
        ("port", port_seeds()),
        ("dump", crate::corpora::dump_seeds::all()),
        ("process", crate::corpora::process_seeds::all()),
        ("protector", crate::corpora::protector_seeds::all()),
        ("image", image_seeds()),
        ("packets", crate::corpora::delta_seeds::packets()),
        ("delta", crate::corpora::delta_seeds::deltas()),
        ("manifest", record_seeds()),
        ("jobfile", job_file_seeds()),
        ("control", control_seeds()),
        ("scenario", scenario_seeds()),
    ]
}

const JOB: JobId = JobId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const LIFE: Life = Life { counter: 3, nonce: 0x0123_4567_89ab_cdef };

/// A rail over which each of the frames went, in turns in either direction.
fn capture_seeds() -> Vec<Seed> {
    vec![("few".to_owned(), captured(3)), ("frames".to_owned(), captured(usize::MAX))]
}

fn captured(most: usize) -> Vec<u8> {
    let mut file = Vec::new();
    pcapng::emit_head("udp 10.0.0.1:4000", &mut file);
    for (i, (_, frame)) in (0..).zip(frame_seeds().into_iter().take(most)) {
        let (direction, to) = match i % 2 {
            0 => (Direction::Out, Some("10.0.0.2:4000")),
            _ => (Direction::In, None),
        };
        let whole_bytes = u32::try_from(frame.len()).expect("a frame");
        let packet = Packet { at_ns: i, direction: Some(direction), bytes: &frame, whole_bytes, to };
        pcapng::emit_packet(&packet, &mut file);
    }
    file
}

/// Some of the frames below, and some that are no frames of ours: a pack does not know its content.
fn pack_seeds() -> Vec<Seed> {
    let frames = frame_seeds();
    let some = drivers::pack::whole(frames.iter().take(8).map(|(_, frame)| frame.as_slice()));
    let short = drivers::pack::whole([b"".as_slice(), b"a", b"PAC"]);
    vec![("frames".to_owned(), some), ("short".to_owned(), short)]
}

fn frame_seeds() -> Vec<Seed> {
    let op = OpId(0x1234_5678_9abc);
    let envelope = Eager { tag: 7, data: 8, total: 5, space: Space(1) };
    let rts = Rts { operation: op, tag: 7, data: 8, total: 1 << 33, space: Space(0), place: 0 };
    let bodies: [(&str, Body, &[u8]); 11] = [
        ("ack", Body::Ack, b""),
        ("probe", Body::Probe, b""),
        ("eager", Body::Eager(envelope), b"hello"),
        ("eager-first", Body::Eager(Eager { total: 99, ..envelope }), b"hello"),
        ("more", Body::More, b"world"),
        ("rts", Body::Rts(rts), b""),
        ("cts", Body::Cts(Cts { operation: op, total: 4096 }), b""),
        ("data", Body::Data(Data { operation: op, offset: 1 << 32 }), b"payload"),
        ("close", Body::Close, b""),
        ("stopped", Body::Stopped(Stopped { pause: 2, expected_ns: 5_000_000 }), b""),
        ("resync", Body::Resync(Resync { expected: 17, next: 40, heard: 1 }), b""),
    ];
    let contact = Contact {
        from: PortId(0x1111),
        to: PortId(0x2222),
        link: LinkIndex(9),
        address: RawAddress::new(&[127, 0, 0, 1, 0x39, 0x30]).expect("6 bytes are an address"),
    };
    let mut seeds = Vec::new();
    for (name, body, payload) in bodies {
        seeds.push((name.to_owned(), frame_bytes(body, None, payload)));
        seeds.push((format!("{name}-contact"), frame_bytes(body, Some(contact), payload)));
    }
    seeds
}

/// Body and payload of a frame.
type Said<'a> = (Body, &'a [u8]);

/// Conversations of a peer with the port of `properties::port`, each frame behind its length.
fn port_seeds() -> Vec<Seed> {
    let op = OpId(1);
    let address = RawAddress::new(&[1]).expect("a byte is an address");
    let contact = Contact {
        from: crate::corpora::properties::PEER,
        to: crate::corpora::properties::OWN,
        link: LinkIndex(0),
        address,
    };
    let eager = |total| Body::Eager(Eager { tag: 7, data: 8, total, space: Space(0) });
    let rts = Body::Rts(Rts { operation: op, tag: 7, data: 8, total: 100, space: Space(0), place: 0 });
    let resync = |heard| Body::Resync(Resync { expected: 0, next: 2, heard });
    let conversations: [(&str, &[Said<'_>]); 6] = [
        ("short", &[(eager(5), b"hello"), (eager(5), b"again"), (Body::Ack, b"")]),
        ("long", &[(eager(15), b"hello"), (Body::More, b"world"), (Body::More, b"there")]),
        (
            "pulled",
            &[
                (rts, b""),
                (Body::Data(Data { operation: op, offset: 20 }), &[1; 60]),
                (Body::Data(Data { operation: op, offset: 0 }), &[2; 20]),
                (Body::Close, b""),
            ],
        ),
        ("granted", &[(Body::Cts(Cts { operation: OpId(4), total: 100_000 }), b""), (Body::Ack, b"")]),
        ("paused", &[(Body::Stopped(Stopped { pause: 1, expected_ns: 2_000_000 }), b""), (Body::Probe, b"")]),
        ("restarted", &[(resync(0), b""), (eager(5), b"hello"), (resync(1), b"")]),
    ];
    let mut seeds = Vec::new();
    for (name, frames) in conversations {
        let mut bytes = Vec::new();
        for (number, (body, payload)) in (0..).zip(frames) {
            let mut frame = frame_of(*body, (number == 0).then_some(contact), payload);
            frame.header = Header {
                epoch: Epoch(1),
                seq: number,
                ack: number,
                transmission: number + 1,
                ..frame.header
            };
            frame.header.link = Some(0);
            let frame = emitted(&frame);
            bytes.extend(u16::try_from(frame.len()).expect("a short frame").to_le_bytes());
            bytes.extend(frame);
        }
        seeds.push((name.to_owned(), bytes));
    }
    seeds
}

fn frame_bytes(body: Body, contact: Option<Contact>, payload: &[u8]) -> Vec<u8> {
    emitted(&frame_of(body, contact, payload))
}

fn frame_of(body: Body, contact: Option<Contact>, payload: &[u8]) -> Frame<'_> {
    let header = Header {
        kind: body.kind(),
        job: JOB.tag(),
        life: LIFE,
        epoch: Epoch(5),
        link: contact.is_none().then_some(4),
        seq: 100,
        ack: 90,
        transmission: 120,
        echo: 80,
        window_bytes: 65_536,
        selective: 0b1011,
        window_frames: 64,
        flags: if contact.is_some() { Flags::CONTACT } else { Flags::ACK_NOW },
        payload_bytes: u32::try_from(payload.len()).expect("a short payload"),
        tag: [0xa5; TAG_BYTES],
    };
    Frame { header, contact, body, head_bytes: 0, payload }
}

fn emitted(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    let length = frame.emit(&mut bytes);
    bytes.truncate(length);
    bytes
}

fn image_seeds() -> Vec<Seed> {
    let identity = Identity { job: JOB, life: LIFE, epoch: Epoch(5), rank: Rank(2) };
    let section = |kind, id, bytes| Section { id, ..Section::new(kind, 1, bytes) };
    let image = |sections: &[Section<'_>]| encode_image(identity, sections).expect("a small image");
    let regions = [section(store::kinds::SESSION_REGION, 1, b"abc"), section(store::kinds::PORT, 9, b"")];
    let encrypted =
        encode_encrypted_image(identity, &regions, crate::corpora::properties::IMAGE_KEY, [9; 24]);
    vec![
        ("encrypted".to_owned(), encrypted.expect("a small image")),
        ("empty".to_owned(), image(&[])),
        ("two-sections".to_owned(), image(&regions)),
        ("exited".to_owned(), image(&[section(store::kinds::EXITED, 0, &[0, 1, 0, 0])])),
        ("aligned".to_owned(), image(&[section(store::kinds::PROCESS_MEMORY, 0x40_0000, &vec![7; 1 << 16])])),
    ]
}

fn record_seeds() -> Vec<Seed> {
    let generation = GenerationId { life: LIFE, epoch: Epoch(5) };
    let kinds = vec![
        KindSummary { kind: store::kinds::SESSION_REGION, sections: 4, bytes: 4096 },
        KindSummary { kind: store::kinds::PORT, sections: 1, bytes: 300 },
    ];
    let image = |rank| ManifestImage {
        rank: Rank(rank),
        node: rank % 2,
        file: format!("rank-{rank}.image"),
        summary: ImageSummary {
            digest: ImageDigest(0xabc + u64::from(rank)),
            bytes: 5000,
            kinds: kinds.clone(),
        },
    };
    let manifest = Manifest {
        job: JOB,
        generation,
        taken_unix_ms: 1_700_000_000_000,
        nodes: vec!["node-a".to_owned(), "node b".to_owned()],
        images: (0..3).map(image).collect(),
    };
    let bytes = manifest.emit();
    let images = manifest.images.iter().map(|image| image.summary.digest).collect();
    let commit = CommitRecord { job: JOB, generation, manifest: Manifest::checksum(&bytes), images };
    let decision = |from| Decision { job: JOB, life: LIFE, from }.emit();
    let file = |digest| CopiedFile { digest: ImageDigest(digest), bytes: 5000, stored_bytes: 700, footer: 9 };
    let image = |digest| CopiedImage { digest: ImageDigest(digest), bytes: 6000 };
    let rank = CopiedRank {
        image: image(2),
        base: None,
        content: ContentName(3 << 100),
        blocks_bytes: 300,
        places: file(7),
    };
    let upon = BaseCopy { generation, record: 8 };
    let key = KeyName { id: 5, usage: KeyUse::Encrypt };
    let copied = |key, base, upon: Option<BaseCopy>| Copied {
        job: JOB,
        generation,
        taken_unix_ms: 1_700_000_000_000,
        copied_unix_ms: 1_700_000_001_000,
        key,
        manifest: Manifest::checksum(&bytes),
        upon,
        becomes_base: upon.is_some(),
        since_whole: None,
        job_file: file(1),
        ranks: vec![rank, CopiedRank { base, ..rank }],
        signature: None,
    };
    let (plain, sealed) =
        (copied(None, None, None).emit(), copied(Some(key), Some(image(4)), Some(upon)).emit());
    let piece = |offset, page| Piece { offset, bytes: 5000, series: 77, page };
    let extents = vec![Extent { piece: piece(0, 9), place: 4 }, Extent { piece: piece(6000, 20), place: 1 }];
    let of_file = ContentFile { name: "image".to_owned(), bytes: 11_500, digest: ImageDigest(6), extents };
    let seat = |number, is_inherited| Seat { number, id: number.into(), parent: 7, is_inherited };
    let known = Known { taken: Some(seat(3, true)), tried: vec![seat(4, false), seat(5, true)] };
    let content = Content { job: JOB, generation, node: 1, files: vec![of_file] };
    vec![
        ("manifest".to_owned(), bytes),
        ("commit".to_owned(), commit.emit()),
        ("decision-fresh".to_owned(), decision(None)),
        ("decision-restart".to_owned(), decision(Some(generation))),
        ("end".to_owned(), End { job: JOB, life: LIFE, ended_unix_ms: 1_700_000_000_000 }.emit()),
        ("seats".to_owned(), Seats { job: JOB, known }.emit()),
        ("copied".to_owned(), plain),
        ("copied-sealed".to_owned(), sealed),
        ("content".to_owned(), content.emit()),
    ]
}

fn job_file_seeds() -> Vec<Seed> {
    let plain = JobFile {
        job: JOB,
        ranks: 4,
        checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
        directory: b"/tmp".to_vec(),
        command: vec![b"./app".to_vec()],
        environment: Vec::new(),
        settings: BTreeMap::new(),
    };
    let odd = JobFile {
        checkpoint: CheckpointSettings { every_ms: Some(300_000), keep: 3 },
        directory: b"/with space/\xff%\n".to_vec(),
        command: vec![b"./app".to_vec(), Vec::new(), b"--name=a b".to_vec()],
        environment: vec![b"OMP_NUM_THREADS=1".to_vec()],
        settings: BTreeMap::from([("on-fault".to_owned(), "restart".to_owned())]),
        ..plain.clone()
    };
    let config = JobConfig::default().emit().into_bytes();
    vec![("plain".to_owned(), plain.emit()), ("odd".to_owned(), odd.emit()), ("config".to_owned(), config)]
}

/// Plans as they are drawn, and every form of the language that those do not have.
fn scenario_seeds() -> Vec<Seed> {
    let drawn = (0..4).map(|seed| {
        let plan = sim::history::plan_of(seed);
        (format!("drawn-{seed}"), sim::scenario::write_plan(&plan).into_bytes())
    });
    let rare = "\
# Every form.
expect: holds
expect without 9-no-fence: commit_forgotten
seeds 3 to 12
ranks 8
nodes 3
mode counted
auth full
reserve 300
floors 200 frames, 3 commands, 1 restarts, crash by 150 frames
helper no
network still
drift 0 -12 300
at 1.5ms: checkpoint at once
at 2 frames: checkpoint when ready
at 12 frames: switch off node of other 2 for 1ms
on frozen #0: crash other 1
on restoring #2 after 7ns: switch off node of cause for 2ms
on dumping #1: rail 1 of rank 2 dead for 3us
on decided #0: rank 3 unsavable for 4us
on committing #9: stall rank 1 for 5us
on saved #2: crash cause
at 0ns: storm loss 12.5%, jitter 1us, for 1ms
at 0 frames: clock of node 1 jumps -1us
at 3 frames: partition nodes 0 and 2 for 9us
at 4 frames: break control of node 0
at 5 frames: disk full after 3 writes
at 6 frames: disk error after 4 writes
at 7 frames: power loss after 5 writes for 6us
";
    drawn.chain([("every-form".to_owned(), rare.as_bytes().to_vec())]).collect()
}

fn control_seeds() -> Vec<Seed> {
    let key = ControlKey::new(&crate::corpora::properties::CONTROL_KEY);
    let mut seeds = Vec::new();
    for (number, message) in (1..).zip(messages()) {
        let word = format!("{message:?}");
        let name = word.split(|symbol: char| !symbol.is_alphanumeric()).next().unwrap_or_default();
        let (life, sender) = match number % 4 {
            0 => (LIFE, Party::Coordinator),
            1 => (NO_LIFE, Party::Keeper(NodeIndex(1))),
            2 => (LIFE, Party::Rank(Rank(3))),
            _ => (NO_LIFE, Party::Tool),
        };
        let mut bytes = Vec::new();
        stream::emit(&key, number, &Control { job: JOB, life, epoch: Epoch(5), sender, message }, &mut bytes);
        seeds.push((format!("{number:02}-{}", name.to_lowercase()), bytes));
    }
    let stream = seeds.iter().take(4).flat_map(|(_, bytes)| bytes.clone()).collect();
    seeds.push(("stream".to_owned(), stream));
    let ports = vec![ClosedPort { port: PortId::of_rank(Rank(2), 0), links: vec![CLOSED; 3] }];
    seeds.push(("pmi-state".to_owned(), rank_state().emit()));
    seeds.push(("exited-record".to_owned(), ExitedRecord { status: ExitStatus::Code(0), ports }.emit()));
    seeds
}

const CLOSED: ClosedLink = ClosedLink { peer: PortId(0x1_0000_0000), next: 12, expected: 34 };

/// One message of every kind, the lists with an entry or two.
fn messages() -> Vec<Message> {
    let (epoch, node, rank) = (Epoch(6), NodeIndex(1), Rank(3));
    let generation = ckpt_glue::GenerationId { life: LIFE, epoch: Epoch(5) };
    let port = PortId::of_rank(rank, 0);
    let address = RawAddress::new(&[127, 0, 0, 1, 0x39, 0x30]).expect("6 bytes are an address");
    let ports = vec![PortEntry { port, rails: vec![address, address] }];
    let answer =
        Answer { number: 5, depends: epoch, effect: Effect::Met, text: "cmd=barrier_out rc=0\n".into() };
    let new_life = NewLife {
        decision: ckpt_glue::Decision { life: LIFE, restore: Some(generation) },
        layout: Layout::even(4, 2, 16).expect("a small layout"),
        watch: Some(Watch { beat_ns: 1, silence_ns: 2, lease_ns: 3 }),
    };
    let report = ImageReport {
        rank,
        digest: ckpt_glue::ImageDigest(0xabcd),
        bytes: 4096,
        content: ImageContent::Exited { status: ExitStatus::Signal(9) },
        statistics: CutStatistics::default(),
    };
    let status = JobStatus {
        phase: JobPhase::Running,
        life: Some(LIFE),
        committed: Some(generation),
        commits: 5,
        rollbacks: 1,
        ranks: 4,
        running: 4,
        finalizing: 0,
        saving: Some(epoch),
    };
    let summary = PointSummary::of(Point { count: 77, rank }, Some(1000));
    let registration = Registration { rank, pid: 4711, mode: CutMode::Counted, ports: ports.clone() };
    vec![
        Message::KeeperHello { node },
        Message::Fence { counter: 4, first: true },
        Message::Fenced { counter: 4, node, votes: true },
        Message::Ending { counter: 4, node },
        Message::NewLife { new_life },
        Message::Hello { registration },
        Message::Registered { ports: ports.clone(), ranks: 1 },
        Message::Addresses { ports },
        Message::Start { epoch, restore: Some(generation), ports: 4 },
        Message::Running { ranks: 2, counted: 2 },
        Message::Request { source: Source::Timer },
        Message::PointQuery { query: 1 },
        Message::PointReport { query: 1, summary },
        Message::Cut { epoch, at: CutAt::Now, time_left_ns: 1_000_000_000 },
        Message::Cut { epoch, at: CutAt::Point { count: 80 }, time_left_ns: 1_000_000_000 },
        Message::CutSeen { epoch },
        Message::ImageDone { epoch, report },
        Message::Images { epoch, reports: vec![report, report] },
        Message::NoImage { epoch, rank, reason: NoImageReason::PointMissed { point: Some(80), count: 79 } },
        Message::Abandon { epoch },
        Message::Committed { epoch },
        Message::Fault { report: FaultReport::RankDied { rank, status: ExitStatus::Signal(9) } },
        Message::RankLost { rank, status: ExitStatus::Signal(9) },
        Message::Heartbeat { keepers: 2, asked_ns: 3 },
        Message::Probe { number: 4 },
        Message::ProbeAnswer { number: 4, node },
        Message::Lease { asked_ns: 3, left_ns: 4 },
        Message::Closed { port, links: vec![CLOSED; 2], last: true },
        Message::ClosedQuery { port, peer: CLOSED.peer },
        Message::ClosedAnswer { port, peer: CLOSED.peer, link: Some(CLOSED) },
        Message::Finalize { ranks: 2 },
        Message::FinalizeDone,
        Message::Ended { ranks: 2, status: ExitStatus::Code(1) },
        Message::StatusQuery,
        Message::StatusReport { status },
        Message::PmiRequest { request: Request { number: 5, text: "cmd=barrier_in\n".into() } },
        Message::PmiAnswer { answer },
        Message::PmiState { part: rank_state(), last: true },
        Message::Nic { words: NicText::new(&"udp (ranks receive on a loopback address)") },
        Message::WaitQuery { query: 7, time_left_ns: 2_000_000_000 },
        Message::WaitReports { query: 7, reports: wait_reports() },
    ]
}

/// Of a rank that waits for another one, over a link that has lost it, and of one that does not answer.
fn wait_reports() -> Vec<RankReport> {
    let wait = Wait {
        kind: WaitKind::Receive,
        peer: Some(Rank(1)),
        op: 9,
        tag: 7,
        ignore: 0,
        bytes: 4096,
        age_ns: 3_000_000_000,
    };
    let owed = OwedLink { peer: Rank(1), frames: 2, silent_ns: 5_000_000_000, is_broken: false };
    let mut waiting =
        RankReport::of(Rank(0), Found::Answered { in_call: true, sleeps: true, looks: 80, begun: 9 });
    waiting.waits = vec![wait, Wait { kind: WaitKind::Finish, peer: None, ..wait }];
    waiting.links = vec![owed];
    vec![waiting, RankReport::of(Rank(1), Found::Silent { waited_ns: 1_900_000_000 })]
}

/// A rank's state after some PMI requests.
fn rank_state() -> RankState {
    RankState {
        name: "stillwire-7".into(),
        finished: false,
        barriers: 1,
        answered: 4,
        published: vec![Published { place: 2, text: "cmd=put kvsname=stillwire-7 key=k value=v\n".into() }],
        pending: Some(Request { number: 5, text: "cmd=barrier_in\n".into() }),
    }
}
