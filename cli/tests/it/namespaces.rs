//! Jobs on a disk and a network of their own, which fill up, become read-only, go away, and have listeners.
//!
//! Each test runs itself again in namespaces of its own (the tools `unshare`, `mount`, `ip`), where it may do all that without
//! being anybody special; where the system does not allow that it is skipped with a message.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::namespaces::{enter, tool};
use crate::support::{Place, done, signal, stillwire, verified};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};

/// True outside, when the test `name` has run inside, or cannot. False inside: go on.
fn outside(name: &str) -> bool {
    let inside = enter("namespaces", name, &["--user", "--map-root-user", "--mount", "--net"]);
    inside.as_ref().err().inspect(|missing| crate::skipped::skipped(name, missing));
    if inside == Ok(true) {
        tool("ip", "link set lo up");
    }
    inside != Ok(true)
}

/// A place on a disk of so many KiB.
fn on_a_disk_of(kib: u32) -> Place {
    let place = Place::new();
    let at = place.job();
    fs::create_dir(&at).unwrap();
    tool("mount", &format!("-t tmpfs -o size={kib}k,mode=0700 tmpfs {}", at.display()));
    place
}

/// Takes all the room that there is, and all that becomes free, until it is dropped.
struct Filler {
    file: PathBuf,
    enough: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Filler {
    fn new(place: &Place) -> Filler {
        Filler::at(place.job().join("filler"))
    }

    fn at(file: PathBuf) -> Filler {
        let enough = Arc::new(AtomicBool::new(false));
        let mut open = fs::File::create(&file).unwrap();
        let mut fill = move || while open.write(&[7; 4096]).is_ok_and(|bytes| bytes > 0) {};
        fill();
        let over = Arc::clone(&enough);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                fill();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Filler { file, enough, thread: Some(thread) }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
        let _ = fs::remove_file(&self.file);
    }
}

#[test]
fn a_full_disk() {
    if outside("a_full_disk") {
        return;
    }
    let place = on_a_disk_of(8 << 10);
    let mut job = place.run(&["--ckpt-every", "40ms"]);
    job.wait_for("committed");
    job.wait_for("committed");
    let filler = Filler::new(&place);
    let given_up = job.wait_for("No space left on device");
    assert!(given_up.contains("was abandoned"), "{given_up}");
    let before = place.generations("committed");
    assert!(!before.is_empty());
    drop(filler);
    // Some room again, and there are checkpoints again.
    job.wait_for("committed");
    let filler = Filler::new(&place);
    job.wait_for("No space left on device");
    job.signal("KILL");
    let lost = job.finish();
    assert!(!lost.stderr.contains("rolling back"), "{lost:?}");
    crate::support::wait_until("the guard has cleaned up", || place.lock_is_free());
    // An abandoned generation leaves room, so one may still have been committed after the disk was full.
    let kept = place.generations("committed");
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(4), "{refused:?}");
    refused.says(&["No space left on device"]);
    assert_eq!(place.generations("committed"), kept, "nothing is lost");
    drop(filler);
    place.let_end();
    let done = place.restart(&[]).finish();
    verified(&done);
    done.says(&[&format!("begins from generation {}", kept.last().unwrap())]);
}

#[test]
fn a_rank_that_dies_while_the_disk_is_full() {
    if outside("a_rank_that_dies_while_the_disk_is_full") {
        return;
    }
    let place = on_a_disk_of(8 << 10);
    let mut job = place.run(&["--ckpt-every", "40ms", "--retries", "3"]);
    job.wait_for("committed");
    // Not even a record fits.
    let filler = Filler::new(&place);
    job.wait_for("No space left on device");
    signal(job.ranks()[1], "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&["rank 1 died", "No space left on device", "is kept; go on with `stillwire restart"]);
    let kept = place.generations("committed");
    drop(filler);
    place.let_end();
    let done = place.restart(&[]).finish();
    verified(&done);
    done.says(&[&format!("begins from generation {}", kept.last().unwrap())]);
}

/// A job of four nodes, of which node 1 has a small disk.
fn on_a_node_s_disk(kib: u32) -> (Place, PathBuf) {
    let place = Place::new();
    let at = place.job().join("nodes/1");
    fs::create_dir_all(&at).unwrap();
    tool("mount", &format!("-t tmpfs -o size={kib}k,mode=0700 tmpfs {}", at.display()));
    (place, at)
}

const FOUR_NODES: [&str; 6] = ["--ckpt-every", "40ms", "--nodes", "4", "--parity", "xor"];

// R27: it costs the generations that it cannot keep, and nothing else.
#[test]
fn a_full_disk_of_one_node() {
    if outside("a_full_disk_of_one_node") {
        return;
    }
    let (place, at) = on_a_node_s_disk(16 << 10);
    let mut job = place.run(&FOUR_NODES);
    job.wait_for("committed");
    job.wait_for("committed");
    let filler = Filler::at(at.join("filler"));
    let given_up = job.wait_for("No space left on device");
    assert!(!given_up.contains("rolling back"), "{given_up}");
    // The same reason is printed once, and counted.
    crate::support::wait_until("three checkpoints have failed", || {
        let listed = done(&mut stillwire(&["ps", "--json"])).json();
        listed["jobs"][0]["status"]["failing"]["times"].as_u64().is_some_and(|times| times >= 3)
    });
    job.signal("KILL");
    job.finish();
    crate::support::wait_until("the guard has cleaned up", || place.lock_is_free());
    let kept = place.generations("committed");
    drop(filler);
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&[&format!("begins from generation {}", kept.last().unwrap())]);
    verified(&done);
}

#[test]
fn a_read_only_disk_of_one_node() {
    if outside("a_read_only_disk_of_one_node") {
        return;
    }
    let (place, at) = on_a_node_s_disk(64 << 10);
    let mut job = place.run(&FOUR_NODES);
    job.wait_for("committed");
    make_read_only(&at);
    job.wait_for("was abandoned");
    assert!(remount("rw", &at));
    job.wait_for("committed");
    place.let_end();
    let done = job.finish();
    done.says(&["Read-only file system"]);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    verified(&done);
}

/// Remounts a disk, without the options that it has by now: the kernel names its owner by an id that an ordinary user's namespace does not have.
fn remount(how: &str, at: &Path) -> bool {
    let mut mount = Command::new("mount");
    mount.args(["--options-source", "disable", "-o"]).arg(format!("remount,{how}")).arg(at);
    mount.stderr(Stdio::null()).status().expect("mount is there").success()
}

/// Nothing may be being written just then.
fn make_read_only(at: &Path) {
    crate::support::wait_until("the disk is read-only", || remount("ro", at));
}

/// A rank dies while node 1 can write nothing: its generations count, and the job goes on from the newest one, without checkpoints until there is
/// room.
fn rank_dies(place: &Place, mut job: crate::support::Running, allow: impl FnOnce()) {
    job.wait_for("was abandoned");
    let kept = place.generations("committed");
    signal(job.ranks()[2], "KILL");
    let begins = job.wait_for("begins from");
    assert!(kept.iter().any(|kept| begins.contains(&format!("begins from generation {kept}"))), "{begins}");
    job.wait_for("all ranks run again");
    job.wait_for("was abandoned");
    allow();
    job.wait_for("committed");
    place.let_end();
    let done = job.finish();
    assert!(!done.stderr.contains("directory cannot be read"), "{done:?}");
    verified(&done);
}

#[test]
fn a_rank_dies_while_one_node_s_disk_is_full() {
    if outside("a_rank_dies_while_one_node_s_disk_is_full") {
        return;
    }
    let (place, at) = on_a_node_s_disk(16 << 10);
    let mut job = place.run(&FOUR_NODES);
    job.wait_for("committed");
    job.wait_for("committed");
    let filler = Filler::at(at.join("filler"));
    rank_dies(&place, job, || drop(filler));
}

#[test]
fn a_rank_dies_while_one_node_s_disk_is_read_only() {
    if outside("a_rank_dies_while_one_node_s_disk_is_read_only") {
        return;
    }
    let (place, at) = on_a_node_s_disk(64 << 10);
    let mut job = place.run(&FOUR_NODES);
    job.wait_for("committed");
    job.wait_for("committed");
    make_read_only(&at);
    rank_dies(&place, job, || assert!(remount("rw", &at)));
}

#[test]
fn a_read_only_disk() {
    if outside("a_read_only_disk") {
        return;
    }
    let place = on_a_disk_of(8 << 10);
    let at = place.job_text();
    let mut job = place.run(&["--ckpt-every", "40ms"]);
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    let kept = place.generations("committed");
    make_read_only(&place.job());
    for command in ["ls", "verify"] {
        let read = done(&mut stillwire(&[command, &at]));
        assert_eq!(read.code, Some(0), "{command}: {read:?}");
    }
    let refused = done(&mut stillwire(&["restart", &at]));
    assert_ne!(refused.code, Some(0), "{refused:?}");
    refused.says(&["Read-only file system"]);
    let fresh = format!("{at}/fresh");
    let refused = done(&mut stillwire(&["run", "-n", "1", "--ckpt-dir", &fresh, "--", "true"]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["Read-only file system", "fresh"]);
    assert!(remount("rw", &place.job()));
    place.let_end();
    let done = place.restart(&[]).finish();
    verified(&done);
    done.says(&[&format!("begins from generation {}", kept.last().unwrap())]);
}

/// R22: the network is gone for a while. Everybody is silent, nobody is taken for dead, and it goes on when it is back.
#[test]
fn a_network_that_goes_away() {
    if outside("a_network_that_goes_away") {
        return;
    }
    let place = Place::new();
    let mut job = place.run(&["--rails", "udp", "--ckpt-every", "60ms"]);
    job.wait_for("committed");
    tool("ip", "link set lo down");
    job.wait_for("has not answered for");
    std::thread::sleep(Duration::from_millis(500));
    tool("ip", "link set lo up");
    job.wait_for("committed");
    place.let_end();
    let done = job.finish();
    verified(&done);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
}

/// Packets of a job on the loopback interface, as its kernel sees them: IP header, UDP header, frame.
struct Listener(OwnedFd);

const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;

impl Listener {
    fn new() -> Listener {
        let all = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll);
        let all = all.expect("in a network of one's own everybody may listen");
        // Packets that come while nobody reads must not be lost.
        let _ = nix::sys::socket::setsockopt(&all, nix::sys::socket::sockopt::RcvBuf, &(64 << 20));
        Listener(all)
    }

    /// True frames that have passed since the last call, each once.
    fn heard(&self) -> Vec<Vec<u8>> {
        const ETHERNET_BYTES: usize = 14;
        let mut seen = BTreeSet::new();
        let mut buffer = vec![0; 1 << 17];
        while let Ok(bytes) = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            let packet = &buffer[ETHERNET_BYTES.min(bytes)..bytes];
            let is_udp = packet.len() > IP_BYTES + UDP_BYTES && packet[0] == 0x45 && packet[9] == 17;
            // Several frames in one packet, which nobody has taken apart yet, are left out.
            if is_udp && transport::wire::Frame::parse(&packet[IP_BYTES + UDP_BYTES..]).is_ok() {
                seen.insert(packet.to_vec());
            }
        }
        seen.into_iter().collect()
    }
}

/// Sends packets again as they were, from the same addresses to the same addresses.
fn again_as_they_were(packets: &[Vec<u8>]) {
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw);
    let raw = raw.expect("in a network of one's own everybody may");
    for packet in packets {
        let mut packet = packet.clone();
        // The kernel had left the checksum to the NIC; zero means that there is none.
        packet[IP_BYTES + 6..IP_BYTES + 8].fill(0);
        let to = nix::sys::socket::SockaddrIn::new(127, 0, 0, 1, 0);
        // A receiver whose buffer is full drops it, as it would any other.
        let _ = nix::sys::socket::sendto(raw.as_raw_fd(), &packet, &to, MsgFlags::empty());
    }
}

/// Sends the frames of packets from a socket of our own: to their address, or to each of `ports`.
fn again_by_a_stranger(packets: &[Vec<u8>], ports: Option<&[u16]>) {
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for packet in packets {
        let own = [u16::from_be_bytes([packet[IP_BYTES + 2], packet[IP_BYTES + 3]])];
        for port in ports.unwrap_or(&own) {
            let _ = stranger.send_to(&packet[IP_BYTES + UDP_BYTES..], ("127.0.0.1", *port));
        }
    }
}

/// R21, R7: true frames of the job, sent again at once, later, and in its next life.
#[test]
fn frames_that_somebody_has_recorded() {
    if outside("frames_that_somebody_has_recorded") {
        return;
    }
    let place = Place::new();
    let mut job = place.run(&["--rails", "udp", "--ckpt-every", "60ms"]);
    let listener = Listener::new();
    job.wait_for("committed");
    let mut recorded = listener.heard();
    assert!(recorded.len() > 100, "{} packets", recorded.len());
    recorded.truncate(5000);
    // A frame that is sent again arrives.
    let own = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut to_us = recorded[0].clone();
    to_us[IP_BYTES + 2..IP_BYTES + 4].copy_from_slice(&own.local_addr().expect("bound").port().to_be_bytes());
    again_as_they_were(std::slice::from_ref(&to_us));
    own.set_read_timeout(Some(crate::support::PATIENCE)).expect("a socket");
    let mut frame = vec![0; 1 << 17];
    let bytes = own.recv(&mut frame).expect("it comes");
    assert_eq!(frame[..bytes], to_us[IP_BYTES + UDP_BYTES..]);
    again_as_they_were(&recorded);
    again_by_a_stranger(&recorded, None);
    job.wait_for("committed");
    again_as_they_were(&recorded);
    again_by_a_stranger(&recorded, None);
    job.wait_for("committed");
    signal(job.ranks()[2], "KILL");
    job.wait_for("rolling back");
    job.wait_for("all ranks run again");
    let ports: Vec<u16> = job.ranks().into_iter().flat_map(crate::support::udp_ports).collect();
    assert!(ports.len() >= 4, "{ports:?}");
    again_by_a_stranger(&recorded, Some(&ports));
    job.wait_for("committed");
    place.let_end();
    let done = job.finish();
    verified(&done);
    assert_eq!(done.stderr.matches("rolling back").count(), 1, "{done:?}");
}
