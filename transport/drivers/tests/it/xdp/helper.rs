//! Rails that a helper opens for threads without rights.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drivers::driver::Notice;
use drivers::xdp::helper::wire::{ANSWER_BYTES, Answer, Name, Request, Wanted};
use drivers::xdp::helper::{Event, Helper, HelperConfig, HelperError, Queues, Refusal, Rules, probe};
use drivers::xdp::{Attach, Rights, XdpConfig};
use drivers::{Driver, DriverError, Operation};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect,
    recvmsg, sendmsg, socket,
};

use crate::xdp::bridged::{Bridged, Host, bridged, ip, unprivileged};
use crate::xdp::rights::NOBODY;
use crate::xdp::{FRAMES, conforms_with, is_intact, numbers};

/// A helper in the namespace of the thread that started it, ended with this.
pub(crate) struct Serving {
    folder: PathBuf,
    path: PathBuf,
    stop: Option<OwnedFd>,
    pub(crate) events: mpsc::Receiver<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub(crate) fn start(attach: Attach) -> Serving {
        Serving::with(all(), |config| config.generic = attach == Attach::Generic)
    }

    pub(crate) fn with(rules: Rules, change: impl FnOnce(&mut HelperConfig)) -> Serving {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("stillwire-helper-{}-{number}", std::process::id()));
        let path = folder.join("nic.sock");
        let mut config = HelperConfig {
            mode: 0o666,
            detach_after: Duration::ZERO,
            ..HelperConfig::new(path.clone(), rules)
        };
        change(&mut config);
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

    pub(crate) fn end(&mut self) {
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

/// All users, at the device of a host.
pub(crate) fn all() -> Rules {
    Rules { uids: Vec::new(), devices: vec!["eth0".to_owned()] }
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
    serve_as(host, rules, |_| ())
}

pub(crate) fn serve_as(host: &Host, rules: Rules, change: fn(&mut HelperConfig)) -> Serving {
    host.run(move |_| Serving::with(rules, change))
}

/// How rails of the host are opened by it.
pub(crate) fn config(host: &Host, helper: &Serving) -> XdpConfig {
    let rights = Rights::Helper(helper.path().to_path_buf());
    host.run(move |config| XdpConfig { rights, ..config.clone() })
}

pub(crate) fn open(host: &Host, config: &XdpConfig) -> Result<drivers::xdp::XdpDriver, DriverError> {
    let config = config.clone();
    host.run(move |_| unprivileged(config))
}

/// Whether a program is at the host's device.
pub(crate) fn has_program(host: &Host) -> bool {
    host.run(|_| ip("link show eth0")).expect("the device").contains("prog/xdp")
}

pub(crate) fn refusal(opened: Result<drivers::xdp::XdpDriver, DriverError>) -> Refusal {
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
        let helper = serve(&here, all());
        let mut config = config(&here, &helper);
        config.queues_max = Some(1);
        assert!(!has_program(&here));
        let mut peer = far.open();
        let mut first = open(&here, &config).expect("a free queue");
        let mut second = open(&here, &config).expect("another one");
        assert!(first.is_by_helper() && first.queues() == 1);
        let third = refusal(open(&here, &config));
        assert_eq!(third, Refusal::Queues { left: 0, all: 2, elsewhere: Queues::default() });
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
        let mut helper = serve(&here, all());
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
        let helper = serve(&here, all());
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
            (only(&[0], &["eth0"]), Refusal::User),
            (only(&[], &["eth7"]), Refusal::Device),
            (only(&[], &[]), Refusal::Device),
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
        let mut helper = Serving::start(Attach::Native);
        let config = HelperConfig::new(helper.path().to_path_buf(), all());
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
        // Where others can put a socket of theirs in its place.
        std::fs::remove_file(&config.path).expect("our file");
        let folder = config.path.parent().expect("a folder");
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("our folder");
        let exposed = Helper::open(&config).map(|_| "a helper");
        assert!(matches!(exposed, Err(HelperError::Folder { mode: 0o777, .. })), "{exposed:?}");
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("our folder");
        nix::unistd::chown(folder, Some(nix::unistd::Uid::from_raw(NOBODY)), None).expect("root");
        let exposed = Helper::open(&config).map(|_| "a helper");
        assert!(matches!(exposed, Err(HelperError::Folder { uid: NOBODY, .. })), "{exposed:?}");
    });
}

/// A request for one queue of the device and a port.
pub(crate) fn wanted(address: &str) -> Wanted {
    Wanted {
        device: Name::new("eth0").expect("a name"),
        address: address.parse().expect("an address"),
        attach: None,
        queues_min: 1,
        queues_max: 1,
        wire_bytes_max: 1514,
        chunk_bytes: 2048,
        memory_bytes: 2048 * 1280,
    }
}

/// A connection to a helper.
pub(crate) fn connected(helper: &Path) -> OwnedFd {
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let connection = connection.expect("a socket");
    let patience = nix::sys::time::TimeVal::new(20, 0);
    nix::sys::socket::setsockopt(&connection, nix::sys::socket::sockopt::ReceiveTimeout, &patience)
        .expect("an option");
    connect(connection.as_raw_fd(), &UnixAddr::new(helper).expect("a path")).expect("it listens");
    connection
}

/// The answer that comes over a connection, and the descriptors beside it.
pub(crate) fn answer(connection: &OwnedFd) -> (Option<Answer>, Vec<OwnedFd>) {
    let mut bytes = [0; ANSWER_BYTES + 1];
    let mut beside = nix::cmsg_space!([RawFd; 32]);
    // The socket's error comes before the bytes that were sent until then.
    for _ in 0..2 {
        let mut to = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let Ok(came) = recvmsg::<()>(connection.as_raw_fd(), &mut to, Some(&mut beside), flags) else {
            continue;
        };
        let mut files = Vec::new();
        for message in came.cmsgs().expect("room") {
            if let ControlMessageOwned::ScmRights(numbers) = message {
                // SAFETY: the kernel has just made these for us, and no other code knows them.
                files.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
        }
        let length = came.bytes;
        return (Answer::parse(&bytes[..length]).ok(), files);
    }
    (None, Vec::new())
}

/// Sends bytes and descriptors; whether the kernel has taken them.
pub(crate) fn send(connection: &OwnedFd, bytes: &[u8], files: &[RawFd]) -> nix::Result<usize> {
    let beside = [ControlMessage::ScmRights(files)];
    let beside = if files.is_empty() { &[][..] } else { &beside[..] };
    let message = [IoSlice::new(bytes)];
    sendmsg::<()>(connection.as_raw_fd(), &message, beside, MsgFlags::MSG_NOSIGNAL, None)
}

/// Sends bytes to a helper. Returns the answer, and what keeps it: the connection, and the descriptors that came.
pub(crate) fn say(helper: &Path, bytes: &[u8]) -> (Option<Answer>, (OwnedFd, Vec<OwnedFd>)) {
    let connection = connected(helper);
    // A helper that has refused us already has closed the connection.
    let _ = send(&connection, bytes, &[]);
    let (answer, files) = answer(&connection);
    (answer, (connection, files))
}

#[test]
fn only_an_address_of_the_device_that_is_free_is_given() {
    let name = "only_an_address_of_the_device_that_is_free_is_given";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        bridge.queues = 4;
        let (here, elsewhere) = (bridge.host(), bridge.host());
        let helper = serve(&here, all());
        let path = helper.path().to_path_buf();
        let ask = move |host: &Host, address: &str| {
            let (path, request) = (path.clone(), Request::Open(wanted(address)).emit());
            host.run(move |_| say(&path, &request))
        };
        let refused = |host: &Host, address: &str| match ask(host, address).0 {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("{address}: {other:?}"),
        };
        // Of another device, of any, of another host, of nobody.
        for address in ["127.0.0.1:0", "0.0.0.0:0", "10.9.0.2:0", "[::1]:0"] {
            assert_eq!(refused(&here, address), Refusal::Address, "{address}");
        }
        // The same address, in a namespace where it belongs to another device.
        elsewhere.ip("addr add 10.9.0.1/32 dev lo");
        assert_eq!(refused(&elsewhere, "10.9.0.1:0"), Refusal::Address);
        assert_eq!(refused(&here, "10.9.0.1:53"), Refusal::LowPort { least: 1024 });
        let others = here.run(|_| UdpSocket::bind("0.0.0.0:0")).expect("a free port");
        let port = others.local_addr().expect("bound").port();
        assert_eq!(refused(&here, &format!("10.9.0.1:{port}")), Refusal::Port);
        let (answer, kept) = ask(&here, "10.9.0.1:0");
        assert!(matches!(answer, Some(Answer::Given { .. })), "{answer:?}");
        assert_eq!(kept.1.len(), 3, "a port, memory, a queue");
        let name: nix::sys::socket::SockaddrIn =
            nix::sys::socket::getsockname(kept.1[0].as_raw_fd()).expect("bound");
        let bound = format!("10.9.0.1:{}", name.port());
        assert_eq!(refused(&here, &bound), Refusal::Port);
        // While it is served, no other process gets the port, even if the rail closes its socket.
        let (connection, files) = kept;
        drop(files);
        let again = bound.clone();
        let taken = here.run(move |_| UdpSocket::bind(again)).map(|_| "bound").expect_err("taken");
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        drop(connection);
        wait_for("the port is free", || {
            let bound = bound.clone();
            here.run(move |_| UdpSocket::bind(bound)).is_ok()
        });
        assert!(!has_program(&here));
    });
}

pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
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
        let helper = serve(&here, all());
        let config = config(&here, &helper);
        let mut rail = open(&here, &config).expect("a free queue");
        let refused = Some(Answer::Refused(Refusal::Request));
        let request = Request::Probe { device: Name::new("eth0").expect("a name") }.emit();
        for at in 0..24 {
            let mut damaged = request;
            damaged[at] ^= 0x81;
            assert_eq!(say(helper.path(), &damaged).0, refused, "byte {at}");
        }
        for length in [1, 63, 65, 60_000] {
            assert_eq!(say(helper.path(), &vec![0x53; length]).0, refused, "{length} bytes");
        }
        assert_eq!(say(helper.path(), &request).0, Some(Answer::Would));
        let mut peer = far.open();
        let came = numbers(&mut peer, &mut rail);
        assert!(came.len() * 10 >= FRAMES as usize * 9, "only {} came", came.len());
        assert!(rail.direct_frames().0 > 0);
    });
}
