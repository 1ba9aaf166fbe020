//! Wrong command lines, wrong files, full disks, strangers on the network: a clear message or a counted drop, and the job
//! goes on where it can.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;

use crate::support::{Done, Place, STILLWIRE, done, stillwire, verified};

fn refused(arguments: &[&str], words: &[&str]) -> Done {
    let done = done(&mut stillwire(arguments));
    assert_eq!(done.code, Some(2), "{done:?}");
    done.says(words);
    done
}

#[test]
fn command_lines() {
    refused(&["run", "-n", "4", "--ckpt-evry", "5m", "--", "true"], &["--ckpt-evry", "--ckpt-every"]);
    refused(
        &["run", "-n", "0", "--", "true"],
        &["'0' for '--ranks <N>': expected a whole number from 1 to 4096"],
    );
    refused(
        &["run", "-n", "many", "--", "true"],
        &["'many' for '--ranks <N>': expected a whole number from 1 to 4096"],
    );
    refused(&["run", "--", "true"], &["--ranks"]);
    refused(&["run", "-n", "2"], &["PROGRAM"]);
    refused(
        &["run", "-n", "2", "--ckpt-every", "5", "--", "true"],
        &["`5` is not a time between checkpoints", "5m"],
    );
    refused(&["run", "-n", "2", "--ckpt-every", "0s", "--", "true"], &["from 1ms to 366d"]);
    for option in ["--ckpt-timeout", "--start-timeout"] {
        let words = [format!("'0s' for '{option} <D>'"), "expected at least 1ms".to_owned()];
        refused(&["run", "-n", "2", option, "0s", "--", "true"], &words.each_ref().map(String::as_str));
    }
    refused(&["run", "-n", "2", "--on-fault", "panic", "--", "true"], &["restart", "abort"]);
    refused(&["run", "-n", "2", "--env", "NAME", "--", "true"], &["expected NAME=VALUE, found `NAME`"]);
    refused(&["run", "-n", "2", "--bind", "300.1.1.1", "--", "true"], &["IPv4 or IPv6 address", "300.1.1.1"]);
    for command in ["sim", "bench"] {
        let words = format!("`{command}` is a command of `stillwire-dev`");
        refused(&[command], &[&words, "cargo run --release --package stillwire-dev"]);
        refused(&[command, "swarm", "--histories", "3", "--json"], &[&words]);
    }
    let words = ["as `stillwire ls` lists it", "or its epoch alone"];
    refused(&["restart", "here", "--generation", "newest"], &words);
    refused(&["demo", "--class", "Z"], &["S, W, A"]);
    refused(&["frobnicate"], &["frobnicate"]);
    refused(&["nic-helper", "--uid", "1000"], &["--interface <INTERFACE>"]);
}

#[test]
fn what_is_no_command_for_people_is_not_proposed_to_them() {
    for misspelt in ["frob", "demoo", "guard", "__frob", "probe"] {
        let done = refused(&[misspelt], &["unrecognized subcommand"]);
        for own in ["__guard", "__probe", "__component", "__demo-rank"] {
            assert!(!done.stderr.contains(own), "{done:?}");
        }
    }
    refused(&["demoo"], &["'demo'"]);
    // They are there all the same.
    let own = refused(&["__demo-rank"], &["--class", "--until"]);
    assert!(!own.stderr.contains("unrecognized"), "{own:?}");
}

#[test]
fn rails_in_the_environment_are_checked_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let run = |variable: &str, value: &str, by_option: bool| {
        let mut command = stillwire(&["run", "-n", "2", "--ckpt-dir"]);
        command.arg(folder.path().join("job"));
        if by_option {
            command.args(["--env", &format!("{variable}={value}")]);
        } else {
            command.env(variable, value);
        }
        let done = done(command.args(["--", STILLWIRE, "example", "ring", "--steps", "10"]));
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(!done.stderr.contains("life 1"), "{done:?}");
        assert!(!folder.path().join("job").exists());
        done
    };
    for by_option in [false, true] {
        let words = ["STILLWIRE_RAILS: the rails are 'foo', expected auto, nic, udp or shm"];
        run("STILLWIRE_RAILS", "foo", by_option).says(&words);
        run("STILLWIRE_FAULTS", "loss=lots", by_option).says(&["STILLWIRE_FAULTS: "]);
    }
}

#[test]
fn help_has_the_exit_codes() {
    let help = done(&mut stillwire(&["--help"]));
    assert_eq!(help.code, Some(0));
    for words in ["Exit codes:", "130", "stillwire demo", "--json"] {
        assert!(help.stdout.contains(words), "{words}: {}", help.stdout);
    }
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    for command in ["ls", "verify", "restart"] {
        let done = done(&mut stillwire(&[command, &path]));
        assert_eq!(done.code, Some(1), "{done:?}");
        done.says(&["holds no job", "stillwire run --ckpt-dir"]);
    }
    let missing = done(&mut stillwire(&["inspect", "/no/such/file"]));
    assert_eq!(missing.code, Some(1), "{missing:?}");
    missing.says(&["/no/such/file: No such file", "expected an image, a manifest", "stillwire ls"]);
    let nowhere = done(&mut stillwire(&["run", "-n", "1", "--ckpt-dir", "/proc/nothing", "--", "true"]));
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
    nowhere.says(&[
        "/proc/nothing cannot be made: No such file",
        "(as /proc)",
        "another directory with --ckpt-dir",
    ]);
    for command in ["ls", "verify", "restart"] {
        let missing = done(&mut stillwire(&[command, "/no/such/place"]));
        assert_eq!(missing.code, Some(1), "{missing:?}");
        missing.says(&["/no/such/place: No such file or directory; expected the directory of a job"]);
        assert!(!missing.stderr.contains("stillwire ls"), "{missing:?}");
    }
    let file = folder.path().join("image");
    for (content, words) in [
        (b"".as_slice(), "found an empty file; `stillwire ls DIR` lists"),
        (
            b"root:x:0:0:root:/root:/bin/bash".as_slice(),
            "expected an image, a manifest or another file in a job's directory",
        ),
        (b"SWIM and no more".as_slice(), "cut off"),
        (
            b"stillwire job 1\nchecksum 0123456789abcdef\n".as_slice(),
            "every generation of the job needs it; put a copy",
        ),
        (b"stillwire decision 1\n".as_slice(), "no generation needs it"),
        (b"stillwire end 1\n".as_slice(), "remove it to go on"),
        (b"stillwire manifest 1\njob 0\n".as_slice(), "cut off"),
        (b"stillwire commit 9\n".as_slice(), "cut off"),
    ] {
        fs::write(&file, content).unwrap();
        let done = done(&mut stillwire(&["inspect", &file.display().to_string()]));
        assert_eq!(done.code, Some(1), "{done:?}");
        done.says(&[words]);
    }
    let lock = folder.path().join("lock");
    fs::write(&lock, b"").unwrap();
    done(&mut stillwire(&["inspect", &lock.display().to_string()]))
        .says(&["found the lock of a job's directory"]);
}

#[test]
fn files_of_a_job_are_described() {
    let place = Place::new();
    let generations = place.with_generations();
    let newest = generations.last().unwrap();
    let inspect = |name: &str| {
        let path = place.file(newest, name).display().to_string();
        let done = done(&mut stillwire(&["inspect", "--json", &path]));
        assert_eq!(done.code, Some(0), "{done:?}");
        done.json()
    };
    let image = inspect("rank-00000002.image");
    assert_eq!((&image["file"], &image["rank"]), (&"image".into(), &2.into()));
    let kinds: Vec<&str> = image["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| section["kind"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"port") && kinds.contains(&"session-region"), "{kinds:?}");
    let port = &image["ports"][0];
    assert_eq!((&port["port"], &port["links"]), (&"2/0".into(), &4.into()));
    assert_eq!(inspect("manifest")["images"].as_array().unwrap().len(), 4);
    assert_eq!(inspect("commit")["file"], "record");
    let text =
        done(&mut stillwire(&["inspect", &place.file(newest, "rank-00000000.image").display().to_string()]));
    assert!(text.stdout.contains("image of rank 0") && text.stdout.contains("port 0/0"), "{text:?}");
    assert_eq!(done(&mut stillwire(&["verify", &place.job_text()])).code, Some(0));
}

#[test]
fn an_address_that_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--bind", "203.0.113.7", "--", STILLWIRE]);
    let done = done(command.env("TMPDIR", folder.path()).args(["example", "ring", "--steps", "10"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["203.0.113.7", "expected an address of this host for --bind"]);
    // Nothing was made and nothing was started.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(!done.stderr.contains("life 1"), "{done:?}");
}

// A rank waits for its peer's address in vain.
#[test]
fn peers_that_cannot_be_reached() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--start-timeout", "3s"]);
    // Without the provider, whatever lies in the target folder: only points can be saved, and a rank that is in its session waits.
    command.env("STILLWIRE_PROVIDER", folder.path().join("libstillwire_fi.so"));
    command.arg("--ckpt-dir").arg(folder.path().join("job")).arg("--");
    // Rank 1 never opens its session, so rank 0 waits for its address in vain.
    let script = format!(
        "[ $STILLWIRE_RANK = 1 ] && while :; do sleep 1; done; exec {STILLWIRE} example ring --steps 10"
    );
    let done = done(command.args(["sh", "-c", &script]));
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&["0 of 2 ranks have come up", "rank 1 did not open a session within 3s (--start-timeout)"]);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
}

#[test]
fn a_full_disk_costs_checkpoints_and_nothing_else() {
    let place = Place::new();
    // A limit on the size of files is a disk that is full for images and not for records.
    let words: Vec<String> = place.sort();
    let script = format!(
        "ulimit -f 16; trap '' XFSZ; exec {STILLWIRE} run -n 4 --ckpt-every 40ms --ckpt-dir {} -- {}",
        place.job_text(),
        words.join(" ")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let mut job = crate::support::Running::start(command);
    // A rank that was at the named point already is another reason to give one up: not each of them gets to the disk.
    let full = "could not write its image: File too large";
    let said = job.wait_for(full);
    assert!(said.contains("was abandoned") && said.contains("cannot write"), "{said}");
    std::thread::sleep(std::time::Duration::from_secs(2));
    place.let_end();
    let done = job.finish();
    verified(&done);
    assert_eq!(done.stderr.matches("s  checkpoint").count(), done.stderr.matches("was abandoned").count());
    assert_eq!(done.stderr.matches(full).count(), 2, "once, and in the last words: {done:?}");
    done.says(&["warning: the last", "checkpoints failed; the reason of the last one: rank"]);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    assert_eq!(place.generations("committed"), Vec::<String>::new());
}

#[test]
fn a_disk_that_fills_up_keeps_the_generation_before() {
    let place = Place::new();
    let generations = place.with_generations();
    let script = format!("ulimit -f 16; trap '' XFSZ; exec {STILLWIRE} restart {}", place.job_text());
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let mut job = crate::support::Running::start(command);
    job.wait_for("could not write its image");
    job.signal("INT");
    job.finish();
    assert_eq!(place.generations("committed").last(), generations.last());
    let mut job = place.restart(&[]);
    let life = job.wait_for("begins from generation");
    assert!(life.contains(generations.last().unwrap().as_str()), "{life}");
    place.let_end();
    verified(&job.finish());
}

// Frames of strangers, noise or noise behind the right first bytes, at every length: all are dropped and the result is right.
#[test]
fn strangers_frames_have_no_effect() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "60ms"]);
    job.wait_for("committed");
    let ports: Vec<u16> = job.ranks().into_iter().flat_map(crate::support::udp_ports).collect();
    assert!(ports.len() >= 4, "{ports:?}");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..2000usize {
        let mut frame = [0u8; 200];
        for chunk in frame.chunks_mut(8) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        if round % 2 == 0 {
            frame[..3].copy_from_slice(&[0x53, 0x57, transport::wire::VERSION]);
        }
        let length = 1 + round % frame.len();
        for port in &ports {
            // The receiver's buffer may be full; that is a drop as well.
            let _ = socket.send_to(&frame[..length], ("127.0.0.1", *port));
        }
    }
    job.wait_for("committed");
    place.let_end();
    let done = job.finish();
    verified(&done);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
}
