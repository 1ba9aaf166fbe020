//! Processes that no launcher has started share their user's key: all that they have is the provider.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

use stillwire_fi::abi::*;

use crate::processes::{Peer, address, at, hear, hex, is_child, say};
use crate::rig::{Rig, accepted, getinfo, steers};

const BYTES: usize = 100_000;

/// A user's directories, and nothing else of a launcher.
struct User {
    folder: tempfile::TempDir,
}

impl User {
    fn new() -> User {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "run"] {
            fs::DirBuilder::new().mode(0o700).create(folder.path().join(name)).unwrap();
        }
        User { folder }
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("run").join("stillwire").join("key")
    }

    /// A child of this user, without a variable of ours, of libfabric or of a launcher.
    fn command(&self, test: &str) -> Command {
        let mut command = Peer::command(test);
        for (name, _) in std::env::vars_os().filter(|(name, _)| steers(name)) {
            command.env_remove(name);
        }
        let at = |name| self.folder.path().join(name);
        command.env("HOME", at("home")).env("XDG_RUNTIME_DIR", at("run"));
        command
    }
}

/// One end of an exchange: sends as soon as it knows the other's address, and reports whether it received the
/// other's message.
fn end_of_exchange() {
    assert_eq!(hear(), "go");
    let rig = Rig::new();
    say(&hex(&rig.address()));
    let to = rig.insert(&address(&hear()));
    let (payload, mut buffer) = (crate::rig::pattern(BYTES, 7), vec![0u8; BYTES]);
    // SAFETY: both buffers live until the completions have been read.
    unsafe {
        let into = buffer.as_mut_ptr().cast();
        accepted(&[], || (rig.plain().recv)(rig.ep, into, BYTES, null_mut(), ADDR_UNSPEC, at(1)));
        let from = payload.as_ptr().cast();
        accepted(&[], || (rig.plain().send)(rig.ep, from, BYTES, null_mut(), to, at(2)));
        for _ in 0..2 {
            assert_eq!(rig.next(&[]).error, None);
        }
    }
    say(&(buffer == payload).to_string());
    // The first one to close must not leave the other waiting.
    assert_eq!(hear(), "end");
}

#[test]
fn two_processes_with_nothing_but_the_provider_exchange_messages() {
    if is_child() {
        return end_of_exchange();
    }
    let test = "keys::two_processes_with_nothing_but_the_provider_exchange_messages";
    let user = User::new();
    // One of them has no home.
    let mut homeless = user.command(test);
    let mut peers = [&mut user.command(test), homeless.env_remove("HOME")].map(Peer::spawn);
    // Both find no key, and make one.
    for peer in &mut peers {
        peer.send("go");
    }
    let addresses = peers.each_mut().map(Peer::hear);
    peers[0].send(&addresses[1]);
    peers[1].send(&addresses[0]);
    for peer in &mut peers {
        assert_eq!(peer.hear(), "true");
    }
    for mut peer in peers {
        peer.send("end");
        peer.ends_well();
    }
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
    let key = user.key();
    assert_eq!((mode(&key), mode(key.parent().unwrap())), (0o600, 0o700));
    assert_eq!(
        fs::read_dir(user.folder.path().join("home")).unwrap().count(),
        0,
        "nothing is left in the home"
    );
}

/// Makes something of a user's key, and returns words of the reason for which it is refused.
type Spoil = fn(&Path) -> &'static str;

const SPOILED: [Spoil; 5] = [
    |key| {
        fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap();
        "has mode 644; the key needs"
    },
    |key| {
        fs::set_permissions(key.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        "has mode 755; the key needs"
    },
    |key| {
        let moved = key.with_extension("moved");
        fs::rename(key, &moved).unwrap();
        symlink(&moved, key).unwrap();
        "is a symbolic link; the key needs a regular file"
    },
    |key| {
        fs::write(key, b"not a key").unwrap();
        "has 9 bytes, expected 16"
    },
    // Only root can give a file away.
    |key| match std::os::unix::fs::chown(key, Some(65534), None) {
        Ok(()) => "belongs to user 65534",
        Err(_) => {
            fs::write(key, b"").unwrap();
            "has 0 bytes"
        }
    },
];

#[test]
fn a_key_that_others_could_know_or_have_made_is_refused() {
    if is_child() {
        assert_eq!(getinfo(null()), Err(-libc::ENODATA));
        return;
    }
    let test = "keys::a_key_that_others_could_know_or_have_made_is_refused";
    for spoil in SPOILED {
        let user = User::new();
        fs::DirBuilder::new().mode(0o700).create(user.key().parent().unwrap()).unwrap();
        fs::write(user.key(), [5; 16]).unwrap();
        fs::set_permissions(user.key(), fs::Permissions::from_mode(0o600)).unwrap();
        let words = spoil(&user.key());
        let said = Peer::spawn(user.command(test).stderr(Stdio::piped())).errors();
        let line =
            said.lines().find(|line| line.contains("no key, so this provider offers nothing")).expect(&said);
        assert!(line.contains(words) && line.contains(user.folder.path().to_str().unwrap()), "{said}");
    }
}
