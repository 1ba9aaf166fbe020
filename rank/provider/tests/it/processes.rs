//! Two processes. The child is this test program again, instructed by its environment.

use core::ffi::c_void;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;

use stillwire_fi::abi::*;

use crate::rig::{ADDRESS_BYTES, Rig, accepted, close, pattern, provider};

pub(crate) const CHILD: &str = "STILLWIRE_TEST_CHILD";
const MARK: &str = "child says ";

pub(crate) fn at(number: usize) -> *mut c_void {
    number as *mut c_void
}

/// Whether this is the process at the other end of a test.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A child process at the other ends of two pipes.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// This test program again, as the other end of a test.
    pub(crate) fn start(test: &str) -> Peer {
        Peer::spawn(&mut Peer::command(test))
    }

    /// As [`Peer::start`], with a key of its own. Its messages on standard error are for [`Peer::errors`].
    pub(crate) fn with_key(test: &str, key: &Path) -> Peer {
        Peer::spawn(Peer::command(test).env("STILLWIRE_KEY_FILE", key).stderr(Stdio::piped()))
    }

    /// As [`Peer::start`], over these rails only.
    pub(crate) fn over(test: &str, rails: &str) -> Peer {
        Peer::spawn(Peer::command(test).env("STILLWIRE_RAILS", rails))
    }

    /// As [`Peer::with_key`], with one more variable.
    pub(crate) fn with_variable(test: &str, key: &Path, variable: (&str, &str)) -> Peer {
        let mut command = Peer::command(test);
        Peer::spawn(command.env("STILLWIRE_KEY_FILE", key).env(variable.0, variable.1).stderr(Stdio::piped()))
    }

    /// Waits until it has stopped itself.
    pub(crate) fn stops(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let flags = nix::sys::wait::WaitPidFlag::WUNTRACED;
        let status = nix::sys::wait::waitpid(pid, Some(flags)).unwrap();
        assert!(matches!(status, nix::sys::wait::WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Lets a stopped one go on.
    pub(crate) fn goes_on(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    }

    /// The command for [`Peer::spawn`].
    pub(crate) fn command(test: &str) -> Command {
        provider();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(CHILD, "1");
        command
    }

    pub(crate) fn spawn(command: &mut Command) -> Peer {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Peer { child, input, output: BufReader::new(output) }
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn send(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    pub(crate) fn ends_well(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }

    /// The signal that has ended it.
    pub(crate) fn ends(mut self) -> Option<i32> {
        self.child.wait().unwrap().signal()
    }

    /// The messages on its standard error, once it has ended.
    pub(crate) fn errors(mut self) -> String {
        drop(self.input);
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

pub(crate) fn say(what: &str) {
    println!("\n{MARK}{what}");
}

pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn address(text: &str) -> [u8; ADDRESS_BYTES] {
    let bytes: Vec<_> =
        (0..ADDRESS_BYTES).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// The child owns memory and does nothing but wait for a word on a pipe: its helper alone serves.
fn passive_owner() {
    let rig = Rig::new();
    let mut memory = vec![0u8; 300_000];
    let region = rig.register(&mut memory, 9);
    say(&hex(&rig.address()));
    let checked = hear();
    assert_eq!(checked, "check");
    say(&format!("{}", memory == pattern(300_000, 4)));
    assert_eq!(hear(), "end");
    assert_eq!(close(region), 0);
}

#[test]
fn memory_of_a_process_that_computes_is_served() {
    if is_child() {
        return passive_owner();
    }
    let mut peer = Peer::start("processes::memory_of_a_process_that_computes_is_served");
    let rig = Rig::new();
    let owner = rig.insert(&address(&peer.hear()));
    let payload = pattern(300_000, 4);
    let mut back = vec![0u8; 300_000];
    // SAFETY: buffers live until the completions have been read.
    unsafe {
        for (offset, piece) in [(0, 8), (8, 299_992)] {
            let start = payload.as_ptr().add(offset).cast();
            accepted(&[], || {
                (rig.remote().write)(rig.ep, start, piece, null_mut(), owner, offset as u64, 9, at(1))
            });
            assert_eq!(rig.next(&[]).error, None);
        }
        let start = back.as_mut_ptr().cast();
        accepted(&[], || (rig.remote().read)(rig.ep, start, 300_000, null_mut(), owner, 0, 9, at(2)));
        assert_eq!(rig.next(&[]).error, None);
    }
    assert_eq!(back, payload);
    peer.send("check");
    assert_eq!(peer.hear(), "true");
    peer.send("end");
    peer.ends_well();
}

/// The child sends and closes at once.
fn hasty_sender() {
    let rig = Rig::new();
    let to = rig.insert(&address(&hear()));
    for number in 0..200u64 {
        let bytes = number.to_le_bytes();
        // SAFETY: injected bytes are copied at once.
        accepted(&[], || unsafe { (rig.plain().inject)(rig.ep, bytes.as_ptr().cast(), 8, to) });
    }
    drop(rig);
    say("closed");
}

#[test]
fn what_was_accepted_is_delivered_although_the_sender_closes_at_once() {
    if is_child() {
        return hasty_sender();
    }
    let test = "processes::what_was_accepted_is_delivered_although_the_sender_closes_at_once";
    let mut peer = Peer::start(test);
    let rig = Rig::new();
    peer.send(&hex(&rig.address()));
    // Longer than a silent peer would be waited for: this one only computes.
    std::thread::sleep(std::time::Duration::from_secs(6));
    for number in 0..200u64 {
        let mut buffer = [0u8; 8];
        // SAFETY: the buffer lives until the completion has been read.
        accepted(&[], || unsafe {
            (rig.plain().recv)(rig.ep, buffer.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, at(1))
        });
        assert_eq!(rig.next(&[]).error, None);
        assert_eq!(u64::from_le_bytes(buffer), number);
    }
    assert_eq!(peer.hear(), "closed");
    peer.ends_well();
}

/// A send that is never received, to an endpoint of the same process.
fn unheard_sender() {
    let (one, two) = (Rig::new(), Rig::new());
    let to = one.insert(&two.address());
    let payload = pattern(100_000, 1);
    // SAFETY: the payload outlives the endpoint.
    accepted(&[], || unsafe {
        (one.plain().send)(one.ep, payload.as_ptr().cast(), payload.len(), null_mut(), to, at(1))
    });
    drop(one);
}

#[test]
fn closing_does_not_wait_for_ever_for_a_peer_that_lives_and_never_receives() {
    if is_child() {
        return unheard_sender();
    }
    let test = "processes::closing_does_not_wait_for_ever_for_a_peer_that_lives_and_never_receives";
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let said = Peer::with_variable(test, &key, ("STILLWIRE_LINGER_S", "6")).errors();
    let waits: Vec<&str> =
        said.lines().filter(|line| line.contains("closing an endpoint has waited")).collect();
    assert!(
        waits.len() >= 2 && waits.iter().all(|line| line.contains("for peer 0 (fi_addr_stillwire://")),
        "{said}"
    );
    assert!(waits[0].contains("STILLWIRE_LINGER_S") && waits[0].contains("after 6s are lost"), "{said}");
    assert!(said.contains(" for 1 peers to receive their messages, and timed out"), "{said}");
}
