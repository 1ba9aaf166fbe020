//! Two jobs of one user on one host, at the same time: each has a key of its own, and a process of one cannot talk into the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use stillwire_fi::abi::*;

use crate::processes::{CHILD, address, at, hex, is_child};
use crate::rig::{Rig, accepted, close, provider};

const FOLDER: &str = "STILLWIRE_TEST_FOLDER";
const TEST: &str = "jobs::a_process_of_one_job_cannot_talk_into_another";

/// The launcher: beside this test program if the workspace was built, else built now.
fn launcher() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let path = folder.join("stillwire");
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--package", "stillwire", "--target-dir"])
            .arg(folder.parent().unwrap())
            .status();
        assert!(built.unwrap().success(), "the launcher cannot be built");
    }
    path
}

fn await_file(path: &Path) -> String {
    let started = Instant::now();
    loop {
        if let Ok(text) = fs::read_to_string(path) {
            return text;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whole or not at all.
fn put(path: &Path, text: &str) {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, text).unwrap();
    fs::rename(unfinished, path).unwrap();
}

/// Opens its memory and its receives to everybody, and must hear its own job alone.
fn listener(folder: &Path) {
    let (rig, friend) = (Rig::new(), Rig::new());
    let mut memory = vec![7u8; 100_000];
    let region = rig.register(&mut memory, 9);
    let mut buffer = [0u8; 16];
    // SAFETY: the buffer outlives the endpoint.
    accepted(&[], || unsafe {
        (rig.plain().recv)(rig.ep, buffer.as_mut_ptr().cast(), 16, null_mut(), ADDR_UNSPEC, at(1))
    });
    put(&folder.join("address"), &hex(&rig.address()));
    while !folder.join("spoken").exists() {
        assert_eq!(rig.poll(), None, "a stranger is heard");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rig.poll(), None, "a stranger is heard");
    assert!(memory.iter().all(|byte| *byte == 7), "a stranger has written");
    let to = friend.insert(&rig.address());
    // SAFETY: injected bytes are copied at once.
    accepted(&[&rig], || unsafe {
        (friend.plain().inject)(friend.ep, b"of the same job".as_ptr().cast(), 15, to)
    });
    let done = rig.next(&[&friend]);
    assert_eq!((done.error, &buffer[..15]), (None, &b"of the same job"[..]));
    assert_eq!(close(region), 0);
}

/// Sends, writes and reads where it does not belong.
fn stranger(folder: &Path) {
    let rig = Rig::new();
    let to = rig.insert(&address(&await_file(&folder.join("address"))));
    let payload = vec![1u8; 100_000];
    let mut back = vec![2u8; 100_000];
    // SAFETY: the buffers outlive the endpoint.
    unsafe {
        let start = payload.as_ptr().cast();
        accepted(&[], || (rig.plain().inject)(rig.ep, start, 16, to));
        accepted(&[], || (rig.plain().send)(rig.ep, start, 100_000, null_mut(), to, at(1)));
        accepted(&[], || (rig.remote().write)(rig.ep, start, 8, null_mut(), to, 0, 9, at(2)));
        accepted(&[], || (rig.remote().write)(rig.ep, start, 100_000, null_mut(), to, 0, 9, at(3)));
        let place = back.as_mut_ptr().cast();
        accepted(&[], || (rig.remote().read)(rig.ep, place, 100_000, null_mut(), to, 0, 9, at(4)));
    }
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        if let Some(done) = rig.poll() {
            // A short message is the provider's as soon as it is sent.
            assert_eq!(done.context, 0, "a stranger is answered");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(back.iter().all(|byte| *byte == 2), "a stranger has read");
    put(&folder.join("spoken"), "");
    // Closing would wait for the silent peer.
    std::mem::forget(rig);
}

fn job(role: &str, rails: &str, folder: &Path) -> Child {
    let reports = folder.join(role);
    fs::create_dir(&reports).unwrap();
    Command::new(launcher())
        .args(["run", "-n", "1", "--rails", rails, "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture", "--test-threads", "1"])
        .env_remove("STILLWIRE_KEY_FILE")
        .env("STILLWIRE_PROVIDER", std::env::current_exe().unwrap().with_file_name("libstillwire_fi.so"))
        .env("STILLWIRE_ADDRESS", "127.0.0.1")
        .env("STILLWIRE_PERIODIC_FREEZE_MS", "10")
        .env("STILLWIRE_PERIODIC_FREEZE_REPORT", &reports)
        .env(CHILD, role)
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Frames of others that ports of this role have dropped.
fn strangers(folder: &Path, role: &str) -> u64 {
    let reports = fs::read_dir(folder.join(role))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let counts = reports.map(|report| {
        let (_, rest) = report.split_once("\"strangers\":").expect("a count");
        rest.split(',').next().unwrap().parse::<u64>().unwrap()
    });
    counts.sum()
}

#[test]
fn a_process_of_one_job_cannot_talk_into_another() {
    if is_child() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        return if std::env::var_os(CHILD).unwrap() == "listener" {
            listener(&folder)
        } else {
            stranger(&folder)
        };
    }
    provider();
    for rails in ["udp", "shm"] {
        let folder = tempfile::tempdir().unwrap();
        let mut jobs = ["listener", "stranger"].map(|role| job(role, rails, folder.path()));
        for job in &mut jobs {
            assert!(job.wait().unwrap().success(), "a job over {rails} failed");
        }
        assert!(
            strangers(folder.path(), "listener") > 0,
            "over {rails}: what the stranger sent has not been counted"
        );
    }
}
