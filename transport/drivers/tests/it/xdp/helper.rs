//! Rails that a helper opens for threads without rights.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drivers::driver::Notice;
use drivers::xdp::helper::wire::{ANSWER_BYTES, Answer, Name, Request, Wanted};
use drivers::xdp::helper::{Event, Helper, HelperConfig, HelperError, Refusal, Rules, probe};
use drivers::xdp::{Attach, Rights, XdpConfig};
use drivers::{Driver, DriverError, Operation};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
};

use crate::xdp::bridged::{Bridged, Host, bridged, ip, unprivileged};
use crate::xdp::rights::NOBODY;
use crate::xdp::{FRAMES, conforms_with, is_intact, numbers};

/// A helper in the namespace of the thread that started it, ended with this.
pub(crate) struct Serving {
    folder: PathBuf,
    path: PathBuf,
    stop: Option<OwnedFd>,
    events: mpsc::Receiver<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub(crate) fn start() -> Serving {
        Serving::with(Rules::default())
    }

    fn with(rules: Rules) -> Serving {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("stillwire-helper-{}-{number}", std::process::id()));
        let path = folder.join("nic.sock");
        let config = HelperConfig { path: path.clone(), mode: 0o666, group: None, rules };
        let mut helper = Helper::open(&config).expect("rights");
        let (stopped, stop) = nix::unistd::pipe().expect("a pipe");
        let (report, events) = mpsc::channel();
        let serve = move || {
            let served = helper.run(stopped.as_fd(), &mut |event| {
                let _ = report.send(event.clone());
            });
            served.expect("it can wait");
        };
        let thread = std::thread::spawn(serve);
        Serving { folder, path, stop: Some(stop), events, thread: Some(thread) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn end(&mut self) {
        // The other end of the pipe is readable then.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn by_helper(bridge: &mut Bridged) {
    bridge.by_helper = true;
}

#[test]
fn rails_of_a_helper_conform_natively() {
    conforms_with("rails_of_a_helper_conform_natively", Attach::Native, false, None, by_helper);
}

#[test]
fn rails_of_a_helper_conform_generically_over_several_queues() {
    let change = |bridge: &mut Bridged| {
        by_helper(bridge);
        bridge.queues = 4;
    };
    let name = "rails_of_a_helper_conform_generically_over_several_queues";
    conforms_with(name, Attach::Generic, true, None, change);
}

/// A helper in a host's namespace; no other process uses the host's own rights.
fn serve(host: &Host, rules: Rules) -> Serving {
    host.run(move |_| Serving::with(rules))
}

/// How rails of the host are opened by it.
fn config(host: &Host, helper: &Serving) -> XdpConfig {
    let rights = Rights::Helper(helper.path().to_path_buf());
    host.run(move |config| XdpConfig { rights, ..config.clone() })
}

fn open(host: &Host, config: &XdpConfig) -> Result<drivers::xdp::XdpDriver, DriverError> {
    let config = config.clone();
    host.run(move |_| unprivileged(config))
}

/// Whether a program is at the host's device.
fn has_program(host: &Host) -> bool {
    host.run(|_| ip("link show eth0")).expect("the device").contains("prog/xdp")
}

fn refusal(opened: Result<drivers::xdp::XdpDriver, DriverError>) -> Refusal {
    match opened.map(|_| "a rail") {
        Err(DriverError::HelperRefused { refusal }) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rails_share_a_device_and_its_program() {
    bridged("rails_share_a_device_and_its_program", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 2;
        let (far, here) = (bridge.host(), bridge.host());
        let helper = serve(&here, Rules::default());
        let mut config = config(&here, &helper);
        config.queues_max = Some(1);
        assert!(!has_program(&here));
        let mut peer = far.open();
        let mut first = open(&here, &config).expect("a free queue");
        let mut second = open(&here, &config).expect("another one");
        assert!(first.is_by_helper() && first.queues() == 1);
        let third = refusal(open(&here, &config));
        assert_eq!(third, Refusal::Queues { left: 0, all: 2 });
        for rail in [&mut first, &mut second] {
            for came in [numbers(rail, &mut peer), numbers(&mut peer, rail)] {
                assert!(came.iter().all(|frame| is_intact(frame)));
                assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
            }
        }
        // The peer sends by the queue by which it received last: both have been reached around the kernel by one at least.
        let direct = |rail: &drivers::xdp::XdpDriver| rail.direct_frames();
        assert!(direct(&first).1 > 0 && direct(&second).1 > 0);
        assert!(direct(&first).0 + direct(&second).0 > 0);
        drop(first);
        assert!(has_program(&here), "the other one needs it");
        let came = numbers(&mut peer, &mut second);
        assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
        let mut third = open(&here, &config).expect("what the first one had");
        let came = numbers(&mut peer, &mut third);
        assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
        drop((second, third));
        assert!(!has_program(&here), "nobody needs it");
    });
}

#[test]
fn a_rail_outlives_its_helper_and_says_that_it_is_gone() {
    let name = "a_rail_outlives_its_helper_and_says_that_it_is_gone";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let (far, here) = (bridge.host(), bridge.host());
        let mut helper = serve(&here, Rules::default());
        let config = config(&here, &helper);
        let mut peer = far.open();
        let mut rail = open(&here, &config).expect("a free queue");
        let _ = numbers(&mut peer, &mut rail);
        assert_eq!(rail.poll_notice(), None);
        helper.end();
        assert!(!has_program(&here), "it has taken its program with it");
        let direct = rail.direct_frames().0;
        for came in [numbers(&mut peer, &mut rail), numbers(&mut rail, &mut peer)] {
            assert!(came.iter().all(|frame| is_intact(frame)));
            assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
        }
        assert_eq!(rail.direct_frames().0, direct, "nothing sends frames around the kernel any more");
        assert_eq!(rail.poll_notice(), Some(Notice::HelperGone));
        assert_eq!(rail.poll_notice(), None, "once");
        // A new one offers its queues again.
        drop(rail);
        let error = open(&here, &config).map(|_| "a rail").expect_err("no helper");
        assert!(matches!(error, DriverError::HelperUnreachable { .. }), "{error}");
        let helper = serve(&here, Rules::default());
        let config = crate::xdp::helper::config(&here, &helper);
        let mut rail = open(&here, &config).expect("a free queue");
        let _ = numbers(&mut peer, &mut rail);
        assert!(rail.direct_frames().0 > 0);
    });
}

#[test]
fn whom_it_does_not_serve_is_reported() {
    bridged("whom_it_does_not_serve_is_reported", Attach::Native, false, None, |mut bridge| {
        let here = bridge.host();
        let only = |uids: &[u32], devices: &[&str]| Rules {
            uids: uids.to_vec(),
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (rules, expected) in [
            (only(&[0], &[]), Refusal::User),
            (only(&[], &["eth7"]), Refusal::Device),
            (only(&[1, 2], &["eth7"]), Refusal::User),
        ] {
            let helper = serve(&here, rules);
            assert_eq!(refusal(open(&here, &config(&here, &helper))), expected);
            let event = helper.events.recv_timeout(Duration::from_secs(20)).expect("it tells");
            assert!(event.to_string().contains(&format!("of user {NOBODY}: refused")), "{event}");
        }
        let helper = serve(&here, only(&[NOBODY], &["eth0"]));
        let mut config = config(&here, &helper);
        drop(open(&here, &config).expect("the user and the device that it serves"));
        let path = helper.path().to_path_buf();
        assert_eq!(
            here.run(move |_| probe(&path, "eth0")).err(),
            Some(DriverError::HelperRefused { refusal: Refusal::User })
        );
        config.interface = "none".to_owned();
        let error = open(&here, &config).map(|_| "a rail").expect_err("no device");
        assert!(matches!(error, DriverError::CannotOpen { operation: Operation::FindDevice, .. }), "{error}");
    });
}

#[test]
fn one_helper_has_one_socket() {
    bridged("one_helper_has_one_socket", Attach::Native, false, None, |_| {
        let mut helper = Serving::start();
        let config = HelperConfig {
            path: helper.path().to_path_buf(),
            mode: 0o600,
            group: None,
            rules: Rules::default(),
        };
        let another = Helper::open(&config).map(|_| "a helper");
        assert!(matches!(another, Err(HelperError::Another { .. })), "{another:?}");
        helper.end();
        assert!(!config.path.exists());
        // A killed helper leaves a socket without a listener.
        let left = std::os::unix::net::UnixListener::bind(&config.path).expect("a socket");
        drop(left);
        drop(Helper::open(&config).expect("the place of one that is gone"));
        std::fs::write(&config.path, "a file").expect("a file");
        let instead = Helper::open(&config).map(|_| "a helper");
        assert!(matches!(instead, Err(HelperError::NoSocket { .. })), "{instead:?}");
    });
}

/// Sends bytes to a helper. Returns the answer, and the connection.
fn say(helper: &Path, bytes: &[u8], files: &[RawFd]) -> (Option<Answer>, OwnedFd) {
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let connection = connection.expect("a socket");
    connect(connection.as_raw_fd(), &UnixAddr::new(helper).expect("a path")).expect("it listens");
    let beside = [ControlMessage::ScmRights(files)];
    let beside = if files.is_empty() { &[][..] } else { &beside[..] };
    let sent =
        sendmsg::<()>(connection.as_raw_fd(), &[IoSlice::new(bytes)], beside, MsgFlags::MSG_NOSIGNAL, None);
    sent.expect("it listens");
    let mut answer = [0; ANSWER_BYTES + 1];
    let came = recv(connection.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap_or(0);
    (Answer::parse(&answer[..came]).ok(), connection)
}

#[test]
fn what_is_no_proof_of_an_address_gets_nothing() {
    bridged("what_is_no_proof_of_an_address_gets_nothing", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 4;
        let (here, elsewhere) = (bridge.host(), bridge.host());
        let helper = serve(&here, Rules::default());
        let wanted = Wanted {
            device: Name::new("eth0").expect("a name"),
            attach: None,
            queues_min: 1,
            queues_max: 1,
            wire_bytes_max: 1514,
            chunk_bytes: 2048,
        };
        let request = Request::Open(wanted).emit();
        let memory = memfd_create(c"frames", MFdFlags::MFD_ALLOW_SEALING).expect("memory");
        nix::unistd::ftruncate(&memory, 2048 * 1280).expect("memory");
        let unsealed = memory.as_raw_fd();
        let sealed = nix::unistd::dup(&memory).expect("a descriptor");
        let socket_here = here.run(|config| UdpSocket::bind(config.bind)).expect("a free port");
        let udp = socket_here.as_raw_fd();
        let asked = |files: &[RawFd]| match say(helper.path(), &request, files).0 {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert_eq!(asked(&[udp, unsealed]), Refusal::Memory);
        let seals = nix::fcntl::SealFlag::F_SEAL_SHRINK;
        nix::fcntl::fcntl(&sealed, nix::fcntl::FcntlArg::F_ADD_SEALS(seals)).expect("a memory file");
        let sealed = sealed.as_raw_fd();
        // Too few, too many, none.
        for files in [&[][..], &[udp], &[udp, sealed, sealed], &[udp; 100]] {
            assert_eq!(asked(files), Refusal::Request);
        }
        let address = |socket: &UdpSocket| socket.local_addr().expect("bound").port();
        let loopback = here.run(|_| UdpSocket::bind("127.0.0.1:0")).expect("a free port");
        let wildcard = here.run(|_| UdpSocket::bind("0.0.0.0:0")).expect("a free port");
        let another = elsewhere.run(|config| UdpSocket::bind(config.bind)).expect("a free port");
        let stream = here.run(|config| std::net::TcpListener::bind(config.bind)).expect("a free port");
        let unbound =
            here.run(|_| socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None));
        let unbound = unbound.expect("a socket");
        // The same address, in a namespace where it belongs to another device.
        let twin = elsewhere.run(|_| {
            ip("addr add 10.9.0.1/32 dev lo").expect("an address");
            UdpSocket::bind("10.9.0.1:0").expect("a free port")
        });
        for file in [
            loopback.as_raw_fd(),
            wildcard.as_raw_fd(),
            another.as_raw_fd(),
            stream.as_raw_fd(),
            unbound.as_raw_fd(),
            twin.as_raw_fd(),
            sealed,
        ] {
            assert_eq!(asked(&[file, sealed]), Refusal::Address);
        }
        let (answer, kept) = say(helper.path(), &request, &[udp, sealed]);
        assert!(matches!(answer, Some(Answer::Given { .. })), "{answer:?}");
        assert_eq!(asked(&[udp, sealed]), Refusal::Port, "{}", address(&socket_here));
        // While it is served, no other process gets the port, even if the rail closes its socket.
        let bound = socket_here.local_addr().expect("bound");
        drop(socket_here);
        let taken = here.run(move |_| UdpSocket::bind(bound)).map(|_| "bound").expect_err("taken");
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        drop(kept);
        wait_for("the port is free", || here.run(move |_| UdpSocket::bind(bound)).is_ok());
        assert!(!has_program(&here));
    });
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "not after 20 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nonsense_is_answered_and_harms_nobody() {
    bridged("nonsense_is_answered_and_harms_nobody", Attach::Native, false, None, |mut bridge| {
        let (far, here) = (bridge.host(), bridge.host());
        let helper = serve(&here, Rules::default());
        let config = config(&here, &helper);
        let mut rail = open(&here, &config).expect("a free queue");
        let refused = Some(Answer::Refused(Refusal::Request));
        let request = Request::Probe { device: Name::new("eth0").expect("a name") }.emit();
        for at in 0..24 {
            let mut damaged = request;
            damaged[at] ^= 0x81;
            assert_eq!(say(helper.path(), &damaged, &[]).0, refused, "byte {at}");
        }
        for length in [1, 39, 41, 60_000] {
            assert_eq!(say(helper.path(), &vec![0x53; length], &[]).0, refused, "{length} bytes");
        }
        let own = std::fs::File::open("/dev/null").expect("a file");
        assert_eq!(say(helper.path(), &request, &[own.as_raw_fd(); 253]).0, Some(Answer::Would));
        // Many silent connections: they are dropped when others want to come.
        let silent: Vec<_> = (0..drivers::limits::XDP_HELPER_CONNECTIONS_MAX * 2)
            .map(|_| socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None))
            .map(|socket| {
                let socket = socket.expect("a socket");
                let address = UnixAddr::new(helper.path()).expect("a path");
                connect(socket.as_raw_fd(), &address).expect("it listens");
                socket
            })
            .collect();
        assert_eq!(say(helper.path(), &request, &[]).0, Some(Answer::Would));
        drop(silent);
        // A client that sends a second message loses its rail.
        let mut peer = far.open();
        let came = numbers(&mut peer, &mut rail);
        assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
        assert!(rail.direct_frames().0 > 0);
    });
}
