//! Manipulated frames, over real sockets: damaged, of other jobs, under other keys, replayed. Each is dropped
//! and counted by reason, and the conversation goes on as if nothing had come (R7, R15, R21).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use drivers::Driver;
use drivers::udp::{UdpAddress, UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig, ReceiveBuffer, SendBuffer};
use transport::config::AuthLevel;
use transport::counters::Counters;
use transport::wire::{Frame, HEADER_BYTES, VERSION};
use transport::{
    Epoch, Event, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, PortId, Rank, RawAddress,
    Receive, Restart, Space,
};

const JOB: JobId = JobId(0xfeed);
const KEY: JobKey = JobKey([3; 16]);
const LIFE: Life = Life { counter: 1, nonce: 77 };
const LIMIT: Duration = Duration::from_secs(20);
/// Short and long enough for every kind of frame.
const SIZES: [usize; 3] = [40, 5000, 60_000];

fn id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

fn here() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)
}

fn rail(bind: SocketAddr) -> Box<dyn Driver> {
    Box::new(UdpDriver::open(&UdpConfig { frame_bytes_max: 1400, ..UdpConfig::new(bind) }).expect("a socket"))
}

fn config(job: JobId) -> PortConfig {
    PortConfig { auth: AuthLevel::Full, ..PortConfig::new(job.tag()) }
}

fn by_hand() -> EndpointConfig {
    EndpointConfig { helper: false, ..EndpointConfig::default() }
}

fn open(rank: u32, job: JobId, key: &JobKey, life: Life, bind: SocketAddr) -> Endpoint {
    let port = Port::new(config(job), id(rank), life, Epoch(0), Some(key));
    Endpoint::open(port, vec![rail(bind)], by_hand()).expect("an endpoint")
}

fn raw(at: SocketAddr) -> RawAddress {
    UdpAddress(at).into()
}

fn address_of(endpoint: &Endpoint) -> SocketAddr {
    UdpAddress::try_from(&endpoint.addresses()[0]).expect("a UDP address").0
}

fn counters(endpoint: &Endpoint) -> Counters {
    endpoint.with_port(|port| *port.counters())
}

/// Frames rejected for any reason.
fn dropped(counters: &Counters) -> u64 {
    counters.each().filter(|(name, _)| name.starts_with("dropped")).map(|(_, count)| count).sum()
}

fn contents(tag: u64) -> Vec<u8> {
    let bytes = SIZES[usize::try_from(tag).expect("small") % SIZES.len()];
    (0..bytes).map(|at| (at.wrapping_mul(31).to_le_bytes()[0]) ^ tag.to_le_bytes()[0]).collect()
}

/// An attacker between two ends: receives all frames from `a` to `b`, and passes them on.
struct Conversation {
    a: Endpoint,
    b: Endpoint,
    tap: UdpSocket,
    to_b: SocketAddr,
    heard: Vec<Vec<u8>>,
    link: LinkIndex,
    next_tag: u64,
}

impl Conversation {
    fn new() -> Conversation {
        let (a, b) = (open(0, JOB, &KEY, LIFE, here()), open(1, JOB, &KEY, LIFE, here()));
        Conversation::between(a, b, 0)
    }

    fn between(a: Endpoint, b: Endpoint, next_tag: u64) -> Conversation {
        let tap = UdpSocket::bind(here()).expect("a socket");
        tap.set_nonblocking(true).expect("a socket");
        let link = a.connect(id(1), &[raw(tap.local_addr().expect("bound"))]).expect("reachable");
        b.connect(id(0), &a.addresses()).expect("reachable");
        let to_b = address_of(&b);
        Conversation { a, b, tap, to_b, heard: Vec::new(), link, next_tag }
    }

    /// Passes on the frames of `a`.
    fn pass_on(&mut self) {
        let mut frame = [0; 65_536];
        while let Ok(bytes) = self.tap.recv(&mut frame) {
            self.heard.push(frame[..bytes].to_vec());
            self.tap.send_to(&frame[..bytes], self.to_b).expect("loopback");
        }
    }

    /// A message from `a` to `b`, received and acknowledged.
    fn talk(&mut self) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let outgoing = Outgoing { space: Space(0), tag, data: 0, context: tag, silent: false };
        let receive = Receive {
            space: Space(0),
            source: None,
            tag,
            ignore: 0,
            bytes_max: 1 << 17,
            context: tag,
            multi: None,
        };
        // Every other receive is posted first.
        let buffer = || ReceiveBuffer::Owned(vec![0; 1 << 17]);
        if tag.is_multiple_of(2) {
            self.b.post_receive(receive, buffer()).expect("room");
        }
        let bytes = contents(tag);
        let payload = if bytes.len() <= self.a.copied_bytes_max() {
            SendBuffer::Copied(&bytes)
        } else {
            SendBuffer::Owned(bytes.clone())
        };
        self.a.send(self.link, outgoing, payload).expect("room");
        if !tag.is_multiple_of(2) {
            self.b.post_receive(receive, buffer()).expect("room");
        }
        let (mut sent, mut received) = (false, false);
        let started = Instant::now();
        while !(sent && received && self.a.with_port(Port::is_settled)) {
            assert!(started.elapsed() < LIMIT, "message {tag}: sent {sent}, received {received}");
            match self.a.poll() {
                Some(Completion::SendDone { context, .. }) => {
                    assert!(context == tag && !sent, "once, and this one");
                    sent = true;
                }
                Some(Completion::Report(event)) => panic!("{event:?}"),
                _ => {}
            }
            self.pass_on();
            match self.b.poll() {
                Some(Completion::Received { tag: found, bytes: length, buffer: Some(buffer), .. }) => {
                    assert!(found == tag && !received, "once, and this one");
                    assert_eq!(buffer[..usize::try_from(length).expect("small")], bytes);
                    received = true;
                }
                Some(Completion::Report(event)) => panic!("{event:?}"),
                _ => {}
            }
        }
        self.quiet();
    }

    /// Until nothing is on its way any more.
    fn quiet(&mut self) {
        let mut idle = Instant::now();
        while idle.elapsed() < Duration::from_millis(2) {
            let before = counters(&self.a).frames_received + counters(&self.b).frames_received;
            assert!(self.a.poll().is_none() && self.b.poll().is_none(), "nothing is left to tell");
            self.pass_on();
            if counters(&self.a).frames_received + counters(&self.b).frames_received != before {
                idle = Instant::now();
            }
        }
    }

    /// Sends `frame` to `b` from `socket`, and sees that `b` drops it: returns the counters before and after.
    fn inject(&mut self, socket: &UdpSocket, frame: &[u8]) -> (Counters, Counters) {
        let before = counters(&self.b);
        socket.send_to(frame, self.to_b).expect("loopback");
        let started = Instant::now();
        while counters(&self.b).frames_received == before.frames_received {
            assert!(started.elapsed() < LIMIT, "a frame of {} bytes does not come", frame.len());
            assert!(self.b.poll().is_none(), "a frame of {} bytes had an effect", frame.len());
        }
        let after = counters(&self.b);
        assert_eq!(dropped(&after), dropped(&before) + 1, "{frame:02x?}");
        assert_eq!(after.frames_counted, before.frames_counted, "{frame:02x?}");
        (before, after)
    }
}

fn stranger() -> UdpSocket {
    UdpSocket::bind(here()).expect("a socket")
}

/// True frames of every kind that `a` sends: with and without contact, copied, announced, data, acknowledgements.
fn true_frames(talk: &mut Conversation) -> Vec<Vec<u8>> {
    (0..6).for_each(|_| talk.talk());
    let mut kinds = std::collections::BTreeMap::new();
    for frame in &talk.heard {
        let parsed = Frame::parse(frame).expect("a true one");
        kinds.entry((parsed.header.kind as u8, parsed.contact.is_some())).or_insert_with(|| frame.clone());
    }
    assert!(kinds.len() >= 4, "{:?}", kinds.keys());
    kinds.into_values().collect()
}

#[test]
fn damaged_frames_are_dropped_and_counted() {
    let mut talk = Conversation::new();
    let frames = true_frames(&mut talk);
    let socket = stranger();
    for frame in &frames {
        let links = talk.b.with_port(Port::links);
        // Cut off, everywhere in the head and at the last byte.
        for length in (0..frame.len().min(HEADER_BYTES + 100)).chain([frame.len() - 1]) {
            let (before, after) = talk.inject(&socket, &frame[..length]);
            assert_eq!(after.dropped_malformed, before.dropped_malformed + 1, "cut off at {length}");
        }
        // Longer than its header states.
        for more in [1, 500, 65_507 - frame.len()] {
            let longer = [frame.as_slice(), &vec![0x5a; more]].concat();
            let (before, after) = talk.inject(&socket, &longer);
            assert_eq!(after.dropped_malformed, before.dropped_malformed + 1, "{more} bytes too long");
        }
        for version in [0, VERSION + 1, 255] {
            let mut other = frame.clone();
            other[2] = version;
            let (before, after) = talk.inject(&socket, &other);
            assert_eq!(after.dropped_malformed, before.dropped_malformed + 1, "version {version}");
        }
        // One bit, anywhere: in the head every one, in the payload some.
        let head = Frame::parse(frame).expect("a true one").head_bytes;
        let payload_bits = (head * 8..frame.len() * 8).step_by(997);
        for bit in (0..head * 8).chain(payload_bits) {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            talk.inject(&socket, &flipped);
        }
        assert_eq!(talk.b.with_port(Port::links), links, "nobody has appeared");
        talk.talk();
    }
    let Counters { dropped_malformed, dropped_job, dropped_life, dropped_unknown_link, dropped_tag, .. } =
        counters(&talk.b);
    let each = [dropped_malformed, dropped_job, dropped_life, dropped_unknown_link, dropped_tag];
    assert!(each.iter().all(|count| *count > 0), "{each:?}");
}

/// Frames of a foreign port to `b`.
fn frames_of(job: JobId, key: &JobKey, life: Life) -> Vec<Vec<u8>> {
    let (a, b) = (open(0, job, key, life, here()), open(1, job, key, life, here()));
    let mut talk = Conversation::between(a, b, 0);
    (0..3).for_each(|_| talk.talk());
    talk.heard
}

#[test]
fn frames_of_another_job_key_or_life_are_dropped_and_counted() {
    let mut talk = Conversation::new();
    talk.talk();
    let socket = stranger();
    let other_key = JobKey([4; 16]);
    let each = |talk: &mut Conversation, frames: Vec<Vec<u8>>, counter: fn(&Counters) -> u64| {
        for frame in frames {
            let (before, after) = talk.inject(&socket, &frame);
            assert_eq!(counter(&after), counter(&before) + 1, "{after:?}");
        }
        talk.talk();
    };
    each(&mut talk, frames_of(JobId(0xbeef), &KEY, LIFE), |counters| counters.dropped_job);
    each(&mut talk, frames_of(JOB, &other_key, LIFE), |counters| counters.dropped_tag);
    // Another life is another life, with the same counter too; an unauthentic frame is not reported either.
    let same_counter = Life { nonce: 78, ..LIFE };
    each(&mut talk, frames_of(JOB, &KEY, same_counter), |counters| counters.dropped_life);
    let later = Life { counter: 2, nonce: 78 };
    each(&mut talk, frames_of(JOB, &other_key, later), |counters| counters.dropped_life);
    // A true frame of a later life has no effect except one notice to the keeper.
    let mut reported = 0;
    for frame in frames_of(JOB, &KEY, later) {
        let before = counters(&talk.b);
        socket.send_to(&frame, talk.to_b).expect("loopback");
        let started = Instant::now();
        while counters(&talk.b).dropped_life == before.dropped_life {
            assert!(started.elapsed() < LIMIT, "it does not come");
            match talk.b.poll() {
                Some(Completion::Report(Event::NewerLife { life })) => {
                    assert_eq!(life, later);
                    reported += 1;
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
    while let Some(completion) = talk.b.poll() {
        assert!(matches!(completion, Completion::Report(Event::NewerLife { .. })), "{completion:?}");
        reported += 1;
    }
    assert_eq!(reported, 1);
    talk.talk();
}

/// Sends everything again that has been heard; all of it is a duplicate or a replay.
fn replay(talk: &mut Conversation, socket: &UdpSocket, frames: &[Vec<u8>]) {
    let before = counters(&talk.b);
    for frame in frames {
        talk.inject(socket, frame);
        talk.pass_on();
    }
    let after = counters(&talk.b);
    let seen = |counters: &Counters| counters.dropped_duplicate + counters.dropped_replayed;
    assert_eq!(seen(&after), seen(&before) + frames.len() as u64, "{after:?}");
    talk.quiet();
}

#[test]
fn true_frames_sent_again_have_no_effect() {
    let mut talk = Conversation::new();
    (0..6).for_each(|_| talk.talk());
    let (same, other) = (talk.tap.try_clone().expect("a descriptor"), stranger());
    let early = talk.heard.clone();
    replay(&mut talk, &same, &early);
    replay(&mut talk, &other, &early);
    talk.talk();
    // Later, in another order, and after a pause.
    (0..60).for_each(|_| talk.talk());
    let reversed: Vec<_> = early.iter().rev().cloned().collect();
    replay(&mut talk, &other, &reversed);
    std::thread::sleep(Duration::from_millis(150));
    let all = talk.heard.clone();
    replay(&mut talk, &same, &all);
    talk.talk();
    // To its own sender: it comes from no peer that the sender knows.
    let to_a = address_of(&talk.a);
    let before = counters(&talk.a);
    for frame in &all {
        let count = counters(&talk.a).frames_received;
        other.send_to(frame, to_a).expect("loopback");
        let started = Instant::now();
        while counters(&talk.a).frames_received == count {
            assert!(started.elapsed() < LIMIT, "it does not come");
            assert!(talk.a.poll().is_none());
        }
    }
    let after = counters(&talk.a);
    let turned = |counters: &Counters| counters.dropped_unknown_link + counters.dropped_tag;
    assert_eq!(turned(&after), turned(&before) + all.len() as u64, "{after:?}");
    talk.talk();
}

/// R21, R22: an old frame does not make a silent peer speak.
#[test]
fn true_frames_sent_again_are_no_sign_of_life() {
    let mut talk = Conversation::new();
    (0..6).for_each(|_| talk.talk());
    let back = talk.b.connect(id(0), &talk.a.addresses()).expect("reachable");
    let outgoing = Outgoing { space: Space(0), tag: 1 << 20, data: 0, context: 0, silent: false };
    talk.b.send(back, outgoing, SendBuffer::Copied(b"is anybody there?")).expect("room");
    // `a` is not polled.
    poll_until(&talk.b, "silence is reported", |completion| match completion {
        Completion::Report(Event::PeerSilent { peer, .. }) => peer == id(0),
        other => panic!("{other:?}"),
    });
    let socket = stranger();
    for frame in talk.heard.clone() {
        talk.inject(&socket, &frame);
    }
    let mut back = 0;
    let started = Instant::now();
    while !talk.b.with_port(Port::is_settled) {
        assert!(started.elapsed() < LIMIT, "the peer itself is not heard");
        assert!(talk.a.poll().is_none());
        talk.pass_on();
        back += u32::from(matches!(talk.b.poll(), Some(Completion::Report(Event::PeerBack { .. }))));
    }
    while let Some(completion) = talk.b.take_completion() {
        back += u32::from(matches!(completion, Completion::Report(Event::PeerBack { .. })));
    }
    assert_eq!(back, 1);
}

fn section_of(endpoint: &Endpoint) -> Vec<u8> {
    let mut frozen = endpoint.freeze(Duration::from_secs(1)).expect("nothing is held");
    frozen.port_mut().set_epoch(Epoch(1));
    let mut section = Vec::new();
    nic_freeze::dump(frozen.port(), &mut section);
    nic_freeze::append_payloads(frozen.port(), frozen.buffers(), &mut section).expect("its memory");
    section
}

fn restarted(section: &[u8], life: Life, bind: SocketAddr) -> Endpoint {
    let loaded = nic_freeze::load(nic_freeze::SECTION_VERSION, section, config(JOB), Some(&KEY));
    let loaded = loaded.expect("a whole section");
    Endpoint::restart(loaded.port, loaded.carried, vec![rail(bind)], Restart::in_life(life), by_hand())
        .expect("an endpoint")
}

#[test]
fn true_frames_of_a_life_have_no_effect_in_the_next() {
    let mut old = Conversation::new();
    (0..6).for_each(|_| old.talk());
    let sections = [section_of(&old.a), section_of(&old.b)];
    let Conversation { a, b, to_b, heard, next_tag, .. } = old;
    drop((a, b));
    let life = Life { counter: 2, nonce: 99 };
    let a = restarted(&sections[0], life, here());
    // At the very address of its predecessor.
    let b = restarted(&sections[1], life, to_b);
    let mut talk = Conversation::between(a, b, next_tag);
    let (same, other) = (talk.tap.try_clone().expect("a descriptor"), stranger());
    let old_life = |talk: &mut Conversation| {
        for (frame, socket) in heard.iter().zip([&same, &other].into_iter().cycle()) {
            let (before, after) = talk.inject(socket, frame);
            assert_eq!(after.dropped_life, before.dropped_life + 1, "{after:?}");
        }
    };
    // Before the two have heard each other in this life, and afterwards.
    old_life(&mut talk);
    talk.talk();
    old_life(&mut talk);
    let now = talk.heard.clone();
    replay(&mut talk, &other, &now);
    talk.talk();
}

fn send_to(a: &Endpoint, at: SocketAddr) {
    let link = a.connect(id(1), &[raw(at)]).expect("an address");
    let outgoing = Outgoing { space: Space(0), tag: 0, data: 0, context: 0, silent: false };
    a.send(link, outgoing, SendBuffer::Copied(&contents(0))).expect("room");
}

fn poll_until(a: &Endpoint, what: &str, mut met: impl FnMut(Completion) -> bool) {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < LIMIT, "{what}: not in time");
        if let Some(completion) = a.poll()
            && met(completion)
        {
            return;
        }
    }
}

fn receives_at(at: SocketAddr) -> Endpoint {
    let b = open(1, JOB, &KEY, LIFE, at);
    let receive =
        Receive { space: Space(0), source: None, tag: 0, ignore: 0, bytes_max: 100, context: 0, multi: None };
    b.post_receive(receive, ReceiveBuffer::Owned(vec![0; 100])).expect("room");
    b
}

fn both_until_done(a: &Endpoint, b: &Endpoint) {
    let (mut sent, mut received) = (0, 0);
    let started = Instant::now();
    while sent + received < 2 {
        assert!(started.elapsed() < LIMIT, "sent {sent}, received {received}");
        sent += u32::from(matches!(a.poll(), Some(Completion::SendDone { .. })));
        received += u32::from(matches!(b.poll(), Some(Completion::Received { .. })));
    }
    assert_eq!((sent, received), (1, 1));
}

/// R22: without a listener the kernel reports ECONNREFUSED. The peer may yet come up there.
#[test]
fn an_address_that_refuses_is_silence_and_kills_nothing() {
    let nobody = UdpSocket::bind(here()).expect("a socket");
    let at = nobody.local_addr().expect("bound");
    drop(nobody);
    let a = open(0, JOB, &KEY, LIFE, here());
    send_to(&a, at);
    poll_until(&a, "silence is reported", |completion| match completion {
        Completion::Report(Event::PeerSilent { peer, .. }) => peer == id(1),
        other => panic!("{other:?}"),
    });
    assert!(a.frames_by_rail()[0] > 1, "the rail lives, and it was tried again");
    both_until_done(&a, &receives_at(at));
}

/// R22: a host that takes everything and answers nothing.
#[test]
fn an_address_that_swallows_everything_is_silence_and_kills_nothing() {
    let hole = UdpSocket::bind(here()).expect("a socket");
    let at = hole.local_addr().expect("bound");
    let a = open(0, JOB, &KEY, LIFE, here());
    send_to(&a, at);
    poll_until(&a, "silence is reported", |completion| match completion {
        Completion::Report(Event::PeerSilent { peer, since, .. }) => {
            assert!(since >= transport::config::SLOW_AFTER);
            peer == id(1)
        }
        other => panic!("{other:?}"),
    });
    drop(hole);
    let b = receives_at(at);
    both_until_done(&a, &b);
    assert!(a.with_port(Port::is_settled));
}
