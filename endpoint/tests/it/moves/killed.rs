//! Two processes, each with a port on a host of its own. Each dumps its port while messages are under way, continues,
//! and is killed; two others continue from the dumps, over another driver, life after life (R2 to R7, R10): no message
//! is lost, doubled or changed.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use drivers::fault::Faults;
use endpoint::{Completion, Endpoint};
use transport::matching::Pattern;
use transport::{Epoch, Life, LinkIndex, Port, RawAddress, Restart, Space};

use crate::moves::hosts::{Host, KEY, LENGTHS, Nic, by_hand, config, on_hosts};
use crate::moves::{DRAIN, every_ordered_pair};
use crate::support::{End, id};

/// Makes a process of this executable one of the two, which runs [`a_life`].
const ROLE: &str = "STILLWIRE_TEST_ROLE";
/// Begins the lines of a process that are for the test.
const TOLD: &str = "@ ";
/// How long anything may take that one of them waits for.
const LIMIT: Duration = Duration::from_secs(60);
/// Messages that a process receives in a life before the order to dump its port.
const MESSAGES: u64 = 12;
/// Messages that a process has under way, and receives that it has posted.
const AHEAD: u64 = 5;
/// Bytes of a port's section at which a payload is in it.
const PAYLOAD_BYTES: usize = 60_000;
/// The faults of some rails.
const LOSSY: &str = "loss=2%,dup=2%,reorder=2%,late=5%,seed=11";

/// A process's instructions.
struct Role {
    rank: u32,
    nic: Nic,
    life: u32,
    /// Messages that it sends in all its lives; any number until it is killed if `None`.
    last: Option<u64>,
    faults: String,
    folder: PathBuf,
}

impl Role {
    fn written(&self) -> String {
        let Role { rank, nic, life, last, faults, folder } = self;
        let last = last.unwrap_or(u64::MAX);
        format!("{rank} {nic:?} {life} {last} {faults} {}", folder.display())
    }

    fn read(text: &str) -> Role {
        let [rank, nic, life, last, faults, folder] =
            text.splitn(6, ' ').collect::<Vec<_>>().try_into().expect("six words");
        let nics = [Nic::Udp, Nic::Xdp, Nic::Verbs, Nic::Shm];
        Role {
            rank: rank.parse().expect("a rank"),
            nic: nics.into_iter().find(|of| format!("{of:?}") == nic).expect("a driver"),
            life: life.parse().expect("a life"),
            last: Some(last.parse().expect("a number")).filter(|last| *last != u64::MAX),
            faults: faults.to_owned(),
            folder: folder.into(),
        }
    }

    /// The file that a life of this rank goes on from.
    fn image(&self, life: u32) -> PathBuf {
        self.folder.join(format!("rank{}.life{life}", self.rank))
    }

    fn life(&self) -> Life {
        Life { counter: self.life, nonce: 5 }
    }
}

/// A program that sends and receives, and its place in that.
struct Program {
    end: End,
    posted: u64,
    /// Bytes of the section that was written in this life.
    cut: Option<usize>,
}

impl Program {
    fn begin(role: &Role, host: &Host) -> Program {
        let rails = host.rail(role.nic).expect("the device is free again");
        let (endpoint, counts) = if role.life == 1 {
            let port = Port::new(config(), id(role.rank), role.life(), Epoch(0), Some(&KEY));
            (Endpoint::open(port, rails, by_hand()), [0; 4])
        } else {
            let image = std::fs::read(role.image(role.life - 1)).expect("the last life has written it");
            let (counts, section) = image.split_at(32);
            let counts = std::array::from_fn(|i| {
                u64::from_le_bytes(counts[i * 8..i * 8 + 8].try_into().expect("eight bytes"))
            });
            let loaded = nic_freeze::load(nic_freeze::SECTION_VERSION, section, config(), Some(&KEY));
            let loaded = loaded.expect("a whole section");
            let restart = Restart::in_life(role.life());
            (Endpoint::restart(loaded.port, loaded.carried, rails, restart, by_hand()), counts)
        };
        let mut end = End::new(role.rank, endpoint.expect("an endpoint"), LinkIndex(0), LENGTHS);
        let [sent, done, received, posted] = counts;
        (end.sent, end.done, end.received) = (sent, done, received);
        Program { end, posted, cut: None }
    }

    /// Writes itself and its port down, and goes on, once in a life: the other may get the order first, and its frames
    /// then request it (R3). Bytes of the section.
    fn write_down(&mut self, role: &Role) -> usize {
        if let Some(bytes) = self.cut {
            return bytes;
        }
        let endpoint = self.end.endpoint.clone();
        let mut frozen = endpoint.freeze(DRAIN).expect("nothing is held");
        frozen.port_mut().set_epoch(Epoch(role.life));
        for completion in frozen.take_completions() {
            self.note(completion, role);
        }
        let mut section = Vec::new();
        nic_freeze::dump(frozen.port(), &mut section);
        nic_freeze::append_payloads(frozen.port(), frozen.buffers(), &mut section).expect("its memory");
        frozen.thaw();
        let counts = [self.end.sent, self.end.done, self.end.received, self.posted];
        let image = [counts.map(u64::to_le_bytes).concat(), section].concat();
        std::fs::write(role.image(role.life), &image).expect("room in the folder");
        *self.cut.insert(image.len() - 32)
    }

    /// Whether the other has been cut already, so that this one must be.
    fn note(&mut self, completion: Completion, role: &Role) -> bool {
        match self.end.note(completion) {
            None => false,
            Some(Completion::CutRequired { epoch }) => {
                assert_eq!(epoch, Epoch(role.life), "the only cut of this life");
                true
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    /// One round: sends and posts, then receives.
    fn go_on(&mut self, role: &Role, last: u64) {
        let end = &mut self.end;
        if end.sent < last && end.sent - end.done < AHEAD && end.endpoint.can_send(end.link, 1) {
            end.send();
        }
        // A part of the messages comes before its receive.
        while self.posted < end.received + AHEAD && !end.sent.is_multiple_of(3) || self.posted <= end.received
        {
            end.post(self.posted);
            self.posted += 1;
        }
        match end.endpoint.poll() {
            Some(completion) => {
                if self.note(completion, role) {
                    self.write_down(role);
                }
            }
            None => {
                end.endpoint.wait(Duration::from_millis(1));
            }
        }
    }
}

fn report(words: &str) {
    // In one piece: the harness writes to the same place.
    std::io::stderr().write_all(format!("{TOLD}{words}\n").as_bytes()).expect("the test listens");
}

fn written(addresses: &[RawAddress]) -> String {
    let hex = |address: &RawAddress| address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    addresses.iter().map(hex).collect::<Vec<String>>().join(" ")
}

fn read(addresses: &str) -> Vec<RawAddress> {
    let byte = |hex: &[u8]| u8::from_str_radix(str::from_utf8(hex).expect("text"), 16).expect("hex");
    let address = |word: &str| RawAddress::new(&word.as_bytes().chunks(2).map(byte).collect::<Vec<_>>());
    addresses.split(' ').map(|word| address(word).expect("of an address's length")).collect()
}

/// The program of one of the two processes; does nothing elsewhere.
#[test]
fn a_life() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role = Role::read(&role);
    let host = Host::here(role.rank).with(role.faults.parse().expect("faults"));
    let (order, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if order.send(line.expect("text")).is_err() {
                break;
            }
        }
    });
    let mut program = Program::begin(&role, &host);
    report(&format!("at {}", written(&program.end.endpoint.addresses())));
    let peer = orders.recv_timeout(LIMIT).expect("the other's address");
    program.end.link = program.end.endpoint.connect(id(1 - role.rank), &read(&peer)).expect("reachable");
    live(&role, &mut program, &orders);
}

/// Runs until it is killed, or the parent has gone.
fn live(role: &Role, program: &mut Program, orders: &Receiver<String>) {
    let (begun, begun_at) = (program.end.received, Instant::now());
    let last = role.last.unwrap_or(u64::MAX);
    let mut is_ordered = false;
    loop {
        match orders.try_recv() {
            Ok(_) => {
                let bytes = program.write_down(role);
                report(&format!("cut {} {bytes}", program.end.sent));
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        program.go_on(role, last);
        let end = &program.end;
        let is_met = match role.last {
            None => end.received >= begun + MESSAGES,
            Some(last) => end.sent == last && end.done == last && end.received == last,
        };
        if is_met && !is_ordered {
            is_ordered = true;
            report("met");
        }
        let state = (end.sent, end.done, end.received, program.posted);
        assert!(begun_at.elapsed() < LIMIT, "life {}: {state:?} sent, done, received, posted", role.life);
        if is_ordered && role.last.is_some() {
            break;
        }
    }
    // A second copy of a message would be there without a receive by now, or arrive soon.
    let any = Pattern { space: Space(0), source: None, tag: 0, ignore: u64::MAX };
    for _ in 0..50 {
        assert_eq!(orders.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        assert!(program.end.look().is_none() && program.end.received == last, "a message came twice");
        assert!(program.end.endpoint.peek(&any).is_none(), "a message came twice, and waits for a receive");
    }
    report("whole");
    // The other may still miss an acknowledgement.
    while orders.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
        assert!(program.end.look().is_none() && begun_at.elapsed() < 2 * LIMIT, "nobody ends it");
    }
}

/// One of the two, which does not outlive the test.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Process {
    /// On the host that this thread is on.
    fn start(role: &Role) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this executable"))
            .args(["moves::killed::a_life", "--exact", "--nocapture", "--test-threads", "1"])
            .env(ROLE, role.written())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("another process of this executable");
        let lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines();
        Process { child, lines }
    }

    /// Its output after this word. It has its own time limit.
    fn hear(&mut self, word: &str) -> String {
        let mut others = VecDeque::new();
        for line in &mut self.lines {
            let line = line.expect("text");
            if let Some(reported) = line.strip_prefix(TOLD) {
                let reported = reported.strip_prefix(word);
                return reported.unwrap_or_else(|| panic!("expected {word}, found {line}")).trim().to_owned();
            }
            others.push_back(line);
        }
        panic!("ended without '{word}': {others:#?}");
    }

    fn order(&mut self, words: &str) {
        let stdin = self.child.stdin.as_mut().expect("it was asked for");
        stdin.write_all(format!("{words}\n").as_bytes()).expect("it listens");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two processes that know each other.
fn start(hosts: &[Host; 2], role: impl Fn(u32) -> Role) -> [Process; 2] {
    let mut both = hosts.each_ref().map(|host| {
        host.enter();
        Process::start(&role(host.rank))
    });
    let at = both.each_mut().map(|process| process.hear("at "));
    both[0].order(&at[1]);
    both[1].order(&at[0]);
    both
}

/// `nics`: the NICs of the two in each life.
fn lives(hosts: &[Host; 2], faults: &str, nics: impl Iterator<Item = [Nic; 2]>) {
    let started = Instant::now();
    let scratch = tempfile::tempdir().expect("a folder");
    let role = |life, nics: [Nic; 2], last| {
        let folder = scratch.path().to_owned();
        move |rank| Role {
            rank,
            nic: nics[usize::try_from(rank).expect("two hosts")],
            life,
            last,
            faults: faults.to_owned(),
            folder: folder.clone(),
        }
    };
    let (mut sent, mut with_payload, mut ended) = (0, 0, [Nic::Udp; 2]);
    let mut life = 0;
    for nics in nics {
        life += 1;
        let mut both = start(hosts, role(life, nics, None));
        both.iter_mut().for_each(|process| drop(process.hear("met")));
        // Now the one first, now the other, by some milliseconds, so that messages cross the cut both ways.
        let first = usize::from(life % 2 == 0);
        both[first].order("cut");
        std::thread::sleep(Duration::from_millis((life % 4).into()));
        both[1 - first].order("cut");
        for process in &mut both {
            let cut = process.hear("cut ");
            let (of, bytes) = cut.split_once(' ').expect("two numbers");
            sent = sent.max(of.parse().expect("a number"));
            with_payload += u32::from(bytes.parse::<usize>().expect("a number") > PAYLOAD_BYTES);
        }
        // Their messages from here on are lost.
        std::thread::sleep(Duration::from_millis((life % 7).into()));
        drop(both);
        ended = nics;
    }
    let last = sent + MESSAGES;
    let mut both = start(hosts, role(life + 1, ended, Some(last)));
    both.iter_mut().for_each(|process| drop(process.hear("met")));
    both.iter_mut().for_each(|process| drop(process.hear("whole")));
    assert!(with_payload > 0, "no section held a payload: nothing was under way at any cut");
    let took = started.elapsed().as_secs_f32();
    eprintln!("moved {life} times by a kill, {} messages checked, {took:.1} s", 2 * last);
}

#[test]
fn killed_ports_go_on_over_udp_af_xdp_and_shared_memory() {
    use Nic::{Shm, Udp, Xdp};
    // Every ordered pair of the three, and hosts that are not over the same.
    let way = [Udp, Udp, Xdp, Xdp, Shm, Shm, Udp, Shm, Xdp, Udp].map(|nic| [nic; 2]);
    let apart = [[Udp, Xdp], [Xdp, Udp], [Xdp, Xdp]];
    let nics = way.into_iter().chain(apart);
    on_hosts("killed_ports_go_on_over_udp_af_xdp_and_shared_memory", false, |hosts| {
        lives(&hosts, "loss=0%", nics.clone());
        lives(&hosts, LOSSY, nics);
    });
}

#[test]
fn killed_ports_go_on_over_all_drivers() {
    on_hosts("killed_ports_go_on_over_all_drivers", true, |hosts| {
        lives(&hosts, "loss=0%", every_ordered_pair().cycle().take(17));
    });
}

#[test]
fn killed_ports_go_on_over_all_drivers_that_lose_frames() {
    on_hosts("killed_ports_go_on_over_all_drivers_that_lose_frames", true, |hosts| {
        lives(&hosts, LOSSY, every_ordered_pair().cycle().take(17));
    });
}

#[test]
fn a_role_is_read_as_it_was_written() {
    let role =
        Role { rank: 1, nic: Nic::Shm, life: 7, last: None, faults: "loss=1%".into(), folder: "/a b".into() };
    assert_eq!(Role::read(&role.written()).written(), role.written());
    assert_eq!("loss=0%".parse(), Ok(Faults::NONE));
}
