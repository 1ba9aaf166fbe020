//! Users of the machine who mean harm to a helper, or to others that it serves. In each of these tests another user is served in time.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use drivers::xdp::Attach;
use drivers::xdp::helper::wire::{Answer, Name, Request};
use drivers::xdp::helper::{HelperConfig, Limit, Limits, Outcome, Queues, Refusal, Rules};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::xdp::bridged::{Host, bridged};
use crate::xdp::helper::{
    all, answer, config, connected, has_program, open, refusal, say, send, serve_as, wait_for, wanted,
};
use crate::xdp::rights::become_user;

/// A user who means harm, and one who does not.
const MALLORY: u32 = 65533;
const HONEST: u32 = 65532;

/// Within this an honest user is served.
const SERVED_WITHIN: Duration = Duration::from_secs(2);

/// Runs `work` in the host's namespace as that user.
fn as_user<T: Send + 'static>(host: &Host, uid: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    host.run(move |_| {
        let thread = std::thread::spawn(move || {
            become_user(uid);
            work()
        });
        thread.join().expect("no panic")
    })
}

/// Its program stays attached.
fn stays(config: &mut HelperConfig) {
    config.detach_after = Duration::from_secs(600);
}

fn probe() -> Vec<u8> {
    Request::Probe { device: Name::new("eth0").expect("a name") }.emit().to_vec()
}

/// An honest user is served at once; where the kernel still holds a queue that was given back, within the same time.
fn is_served(host: &Host, helper: &Path) {
    let path = helper.to_owned();
    let begun = Instant::now();
    let (answer, _) = as_user(host, HONEST, move || say(&path, &probe()));
    assert_eq!(answer, Some(Answer::Would));
    loop {
        let path = helper.to_owned();
        let request = Request::Open(wanted("10.9.0.1:0")).emit();
        let (answer, _) = as_user(host, HONEST, move || say(&path, &request));
        assert!(begun.elapsed() < SERVED_WITHIN, "after {:?}: {answer:?}", begun.elapsed());
        match answer {
            Some(Answer::Given { .. }) => return,
            Some(Answer::Refused(Refusal::Queues { .. })) => std::thread::sleep(Duration::from_millis(5)),
            other => panic!("{other:?}"),
        }
    }
}

/// A socket whose last closing takes a minute, because it lingers, and its peer does not read.
fn lingering(peers: &mut Vec<TcpStream>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut file = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    peers.push(listener.accept().expect("it connects").0);
    file.set_nonblocking(true).expect("a socket");
    while file.write(&[0; 1 << 16]).is_ok() {}
    SockRef::from(&file).set_linger(Some(Duration::from_secs(60))).expect("an option");
    file.set_nonblocking(false).expect("a socket");
    file
}

/// Descriptors of a user, served or not, that hang when they are closed, with requests and without. The helper takes none of them.
#[test]
fn descriptors_hold_up_nobody() {
    bridged("descriptors_hold_up_nobody", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 4;
        let here = bridge.host();
        for refuses in [true, false] {
            for uids in [vec![HONEST], vec![HONEST, MALLORY]] {
                let change: fn(&mut HelperConfig) = match refuses {
                    true => stays,
                    false => |config| {
                        stays(config);
                        config.refuse_descriptors = false;
                    },
                };
                let helper = serve_as(&here, Rules { uids, ..all() }, change);
                let path = helper.path().to_owned();
                // They are open until the end.
                let (connections, peers) = as_user(&here, MALLORY, move || {
                    let mut peers = Vec::new();
                    let connections: Vec<OwnedFd> = (0..20)
                        .map(|number| {
                            let connection = connected(&path);
                            let file = lingering(&mut peers);
                            let bytes = if number % 2 == 0 { probe() } else { vec![1] };
                            let files = vec![file.as_raw_fd(); 1 + number % 4];
                            let sent = send(&connection, &bytes, &files);
                            // Where it was sent, this is not the last closing.
                            std::thread::spawn(move || drop(file));
                            // Refused by the kernel where it can, or by a helper that has closed the connection already.
                            let refused = [nix::errno::Errno::EPERM, nix::errno::Errno::EPIPE];
                            let by_kernel = refuses && sent.is_err_and(|errno| refused.contains(&errno));
                            assert!(by_kernel || !refuses || cannot_refuse(), "{sent:?}");
                            connection
                        })
                        .collect();
                    (connections, peers)
                });
                is_served(&here, helper.path());
                drop(connections);
                is_served(&here, helper.path());
                drop(peers);
            }
        }
    });
}

/// Whether this kernel lets every user send descriptors (before Linux 6.16).
fn cannot_refuse() -> bool {
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut value = 0_i32;
    let mut bytes = 4;
    // SAFETY: an option of four bytes, written to four bytes.
    let rc = unsafe {
        libc::getsockopt(ours.as_raw_fd(), libc::SOL_SOCKET, 83, (&raw mut value).cast(), &raw mut bytes)
    };
    rc != 0
}

/// A user who is not served is refused when it connects, before it has sent anything.
#[test]
fn the_user_is_checked_before_anything_is_read() {
    let name = "the_user_is_checked_before_anything_is_read";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let here = bridge.host();
        let helper = serve_as(&here, Rules { uids: vec![HONEST], ..all() }, |_| ());
        let path = helper.path().to_owned();
        let begun = Instant::now();
        let (refused, _) = as_user(&here, MALLORY, move || answer(&connected(&path)));
        assert_eq!(refused, Some(Answer::Refused(Refusal::User)));
        assert!(begun.elapsed() < SERVED_WITHIN);
        is_served(&here, helper.path());
    });
}

/// One user floods the helper with connections, silent ones and half messages. The other is served all the while.
#[test]
fn a_flood_of_connections_holds_up_nobody() {
    bridged("a_flood_of_connections_holds_up_nobody", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 2;
        let here = bridge.host();
        let helper = serve_as(&here, all(), stays);
        let path = helper.path().to_owned();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flooding = std::sync::Arc::clone(&stop);
        let flood = here.run(move |_| {
            std::thread::spawn(move || {
                become_user(MALLORY);
                let (mut kept, mut refused) = (std::collections::VecDeque::new(), 0);
                while !flooding.load(std::sync::atomic::Ordering::Relaxed) {
                    let connection = connected(&path);
                    let _ = send(&connection, &probe()[..7], &[]);
                    kept.push_back(connection);
                    if kept.len() > 400
                        && let Some(oldest) = kept.pop_front()
                        && matches!(answer(&oldest).0, Some(Answer::Refused(Refusal::Limit { .. })))
                    {
                        refused += 1;
                    }
                }
                refused
            })
        });
        for _ in 0..20 {
            is_served(&here, helper.path());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let refused: u32 = flood.join().expect("no panic");
        assert!(refused > 0, "the flood has met no limit");
        // The lines about it are bounded.
        let of_user = helper.events.try_iter().filter(|event| event.uid == MALLORY).count();
        let most = usize::try_from(Limits::default().log_lines).expect("few") + 1;
        assert!(of_user <= 2 * most, "{of_user} lines");
    });
}

/// A user at its limits is refused with the limit's name; another is served.
#[test]
fn limits_are_each_users_own() {
    bridged("limits_are_each_users_own", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 4;
        let here = bridge.host();
        let request = |memory_bytes| {
            Request::Open(drivers::xdp::helper::wire::Wanted { memory_bytes, ..wanted("10.9.0.1:0") }).emit()
        };
        let few = serve_as(&here, all(), |config| {
            config.limits = Limits { rails: 2, memory_mib: 8, connections: 3, ..Limits::default() };
        });
        let path = few.path().to_owned();
        let ask = |memory_bytes| {
            let (path, request) = (path.clone(), request(memory_bytes));
            as_user(&here, MALLORY, move || say(&path, &request))
        };
        let limit = |limit, max| Some(Answer::Refused(Refusal::Limit { limit, max }));
        let first = ask(6 << 20);
        assert!(matches!(first.0, Some(Answer::Given { .. })), "{first:?}");
        assert_eq!(ask(3 << 20).0, limit(Limit::Memory, 8));
        let second = ask(2 << 20);
        assert!(matches!(second.0, Some(Answer::Given { .. })), "{second:?}");
        let third = ask(2048);
        assert_eq!(third.0, limit(Limit::Rails, 2));
        // It keeps its third connection.
        assert_eq!(ask(2048).0, limit(Limit::Connections, 3));
        is_served(&here, few.path());
        drop((first, third));
        wait_for("what the first rail had is free", || matches!(ask(6 << 20).0, Some(Answer::Given { .. })));
    });
}

/// The rank has the socket of its port too. It cannot give the port up, and one that it shares ends the rail: frames of a process that binds it are not taken.
#[test]
fn a_port_of_others_is_not_steered_away() {
    bridged("a_port_of_others_is_not_steered_away", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 2;
        let here = bridge.host();
        let helper = serve_as(&here, all(), |_| ());
        let path = helper.path().to_owned();
        let request = Request::Open(wanted("10.9.0.1:0")).emit();
        let (given, (connection, files)) = as_user(&here, MALLORY, move || say(&path, &request));
        assert!(matches!(given, Some(Answer::Given { .. })), "{given:?}");
        let port = Socket::from(files[0].try_clone().expect("a descriptor"));
        let address = port.local_addr().expect("bound").as_socket().expect("an address");
        disconnect(&port);
        let taken = as_user(&here, HONEST, move || UdpSocket::bind(address)).map(|_| "bound");
        assert_eq!(taken.map_err(|error| error.kind()), Err(std::io::ErrorKind::AddrInUse));
        port.set_reuse_address(true).expect("an option");
        let victim = as_user(&here, HONEST, move || {
            let victim = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
            victim.set_reuse_address(true).expect("an option");
            victim.bind(&SockAddr::from(address)).map(|()| victim)
        });
        let _victim = victim.expect("both share it");
        let begun = Instant::now();
        wait_for("the rail is over", || !has_program(&here));
        assert!(begun.elapsed() < SERVED_WITHIN, "after {:?}", begun.elapsed());
        let ended = helper.events.try_iter().any(|event| event.outcome == Outcome::Shared { address });
        assert!(ended, "it says so");
        is_served(&here, helper.path());
        drop((connection, files));
    });
}

/// `connect(AF_UNSPEC)`.
fn disconnect(socket: &Socket) {
    // SAFETY: all-zero bytes are a valid `sockaddr`, of AF_UNSPEC.
    let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
    let bytes = libc::socklen_t::try_from(size_of_val(&nobody)).expect("few");
    // SAFETY: the address is readable for its size during the call.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), &raw const nobody, bytes) };
    assert_eq!(rc, 0, "the kernel permits it");
}

/// Queues that other processes have are passed over, or named.
#[test]
fn queues_of_others_are_passed_over_and_named() {
    let name = "queues_of_others_are_passed_over_and_named";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        bridge.queues = 3;
        let here = bridge.host();
        let mut others = serve_as(&here, all(), |_| ());
        let mut of_others = config(&here, &others);
        of_others.queues_max = Some(1);
        let _theirs = open(&here, &of_others).expect("the first queue");
        // A rail keeps its queue when its helper is gone.
        others.end();
        let helper = serve_as(&here, all(), |_| ());
        let path = helper.path().to_owned();
        let ask = |least, most| {
            let mut wanted = wanted("10.9.0.1:0");
            (wanted.queues_min, wanted.queues_max) = (least, most);
            let (path, request) = (path.clone(), Request::Open(wanted).emit());
            as_user(&here, HONEST, move || say(&path, &request))
        };
        let held: Queues = [0].into_iter().collect();
        let refused = Refusal::Queues { left: 2, all: 3, elsewhere: held };
        assert_eq!(ask(3, 3).0, Some(Answer::Refused(refused)));
        assert!(refused.to_string().contains("hold queue 0"), "{refused}");
        // The kernel lets go late of those that the refused rail had for a moment.
        let given = Some(Answer::Given { attach: Attach::Native, queues: vec![1, 2] });
        wait_for("the other two are given", || ask(1, 3).0 == given);
    });
}

/// A program that somebody else has at the device is left alone, and named.
#[test]
fn a_program_of_others_is_left_alone_and_named() {
    let name = "a_program_of_others_is_left_alone_and_named";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let here = bridge.host();
        let helper = serve_as(&here, all(), |_| ());
        let theirs = here.open();
        let refused = refusal(open(&here, &config(&here, &helper)));
        let Refusal::Program { id, .. } = refused else { panic!("{refused:?}") };
        let listed = here.run(|_| crate::xdp::bridged::ip("link show eth0")).expect("the device");
        assert!(listed.contains(&format!("prog/xdp id {id} ")), "{id}: {listed}");
        drop(theirs);
        is_served(&here, helper.path());
    });
}

/// Attaching can reset the link: opening and closing rails again and again attaches the program once.
#[test]
fn rails_that_come_and_go_attach_nothing_again() {
    let name = "rails_that_come_and_go_attach_nothing_again";
    bridged(name, Attach::Native, false, None, |mut bridge| {
        let here = bridge.host();
        let most = drivers::limits::XDP_HELPER_ATTACHES_MAX;
        let keeps = serve_as(&here, all(), stays);
        let rails = config(&here, &keeps);
        for _ in 0..2 * most {
            drop(open(&here, &rails).expect("a free queue"));
            assert!(has_program(&here), "it stays for a while");
        }
        drop(keeps);
        assert!(!has_program(&here), "the helper has taken it with it");
        // One that detaches at once attaches only so often.
        let forgets = serve_as(&here, all(), |_| ());
        let rails = config(&here, &forgets);
        let refused = (0..=most).find_map(|_| open(&here, &rails).map(drop).err());
        let times = u32::try_from(most).expect("few");
        let refusal = Refusal::Attaches { times };
        assert_eq!(refused, Some(drivers::DriverError::HelperRefused { refusal }));
        assert!(!has_program(&here));
    });
}

/// The mode is the helper's own: the first user does not choose it for all others.
#[test]
fn a_user_does_not_choose_the_mode() {
    bridged("a_user_does_not_choose_the_mode", Attach::Native, false, None, |mut bridge| {
        bridge.queues = 2;
        let here = bridge.host();
        let helper = serve_as(&here, all(), stays);
        let mut rails = config(&here, &helper);
        rails.queues_max = Some(1);
        rails.attach = Some(Attach::Generic);
        assert_eq!(refusal(open(&here, &rails)), Refusal::Attached);
        rails.attach = None;
        let rail = open(&here, &rails).expect("a free queue");
        assert_eq!(rail.mode().0, Attach::Native);
        let generic = serve_as(&here, all(), |config| config.generic = true);
        let mut others = config(&here, &generic);
        others.attach = Some(Attach::Native);
        assert_eq!(refusal(open(&here, &others)), Refusal::Attached);
    });
}
