//! Programs that cannot be started, or do not behave; and the ways in which a job ends, each with its exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{
    Place, Running, STILLWIRE, children, done, flip, runs, signal, stillwire, verified, wait_until,
};

fn script(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn what_cannot_be_started_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let plain = script(folder.path(), "plain", "#!/bin/sh\n", 0o644);
    let job = folder.path().join("job");
    for (program, words) in [
        ("/no/such/program", "there is no such file"),
        ("no-such-program-anywhere", "no directory in PATH has such a program"),
        ("./plain", "is no file that may be executed"),
        (&plain.display().to_string(), "is no file that may be executed"),
        ("/tmp", "is no file that may be executed"),
        ("", "cannot be started"),
    ] {
        let mut command =
            stillwire(&["run", "-n", "2", "--ckpt-dir", &job.display().to_string(), "--", program]);
        let refused = done(command.current_dir(folder.path()));
        assert_eq!(refused.code, Some(1), "{program}: {refused:?}");
        refused.says(&[program, words]);
        assert!(!job.exists(), "{program}");
    }
    script(folder.path(), "good", "#!/bin/sh\n", 0o755);
    assert_eq!(done(stillwire(&["run", "-n", "2", "--", "./good"]).current_dir(folder.path())).code, Some(0));
    let path = format!("PATH={}:/bin:/usr/bin", folder.path().display());
    assert_eq!(done(&mut stillwire(&["run", "-n", "2", "--env", &path, "--", "good"])).code, Some(0));
}

#[test]
fn a_program_that_is_gone_at_a_restart_is_named() {
    let place = Place::new();
    let own = place.folder.path().join("own");
    fs::copy(STILLWIRE, &own).unwrap();
    let mut command =
        stillwire(&["run", "-n", "2", "--ckpt-every", "20ms", "--ckpt-dir", &place.job_text(), "--"]);
    command.arg(&own).args(["example", "ring", "--steps", "1000000000"]);
    let mut job = Running::start(command);
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    fs::remove_file(&own).unwrap();
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["own cannot be started: there is no such file"]);
}

#[test]
fn a_program_that_the_kernel_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let broken = script(folder.path(), "broken", "#!/no/such/interpreter\n", 0o755).display().to_string();
    let done_broken = done(&mut stillwire(&["run", "-n", "2", "--retries", "0", "--", &broken]));
    assert_eq!(done_broken.code, Some(4), "{done_broken:?}");
    done_broken.says(&["rank 0 could not be started", "No such file"]);
}

#[test]
fn a_rank_outside_of_a_job() {
    let alone = done(
        Command::new(STILLWIRE).arg("__demo-rank").args(["--class", "S", "--rounds", "1", "--until", "x"]),
    );
    assert_ne!(alone.code, Some(0));
    alone.says(&["not started as a rank of a job", "stillwire run"]);
}

/// Not a test by itself: ranks that open a session and do not end as they should.
#[test]
fn a_rank() {
    let Ok(end) = std::env::var("STILLWIRE_TEST_END") else { return };
    let session = session::Session::open().expect("a launcher");
    match end.as_str() {
        "silently" => std::process::exit(0),
        "aborting" => {
            let mut session = session;
            session.abort(9)
        }
        "after the end" => {
            session.finalize().expect("all finish");
            std::process::exit(5)
        }
        _ => std::process::exit(7),
    }
}

fn ends(end: &str, options: &[&str]) -> crate::support::Done {
    let own = std::env::current_exe().expect("it runs").display().to_string();
    let mut command = stillwire(&["run", "-n", "2", "--json", "--env", &format!("STILLWIRE_TEST_END={end}")]);
    done(command.args(options).args(["--", &own, "--exact", "programs::a_rank", "--nocapture"]))
}

#[test]
fn a_rank_that_leaves_without_finishing_has_failed() {
    for (end, words, code) in [
        ("silently", "exited with code 0 before it had finished", 4),
        ("with a code", "exited with code 7; the job ends with code 7", 7),
        ("aborting", "aborted the job (code 9); the job ends with code 9", 9),
    ] {
        for (options, rollbacks) in [(&[][..], 0), (&["--on-exit", "restart", "--retries", "1"], 1)] {
            let done = ends(end, options);
            assert_eq!(done.code, Some(code), "{done:?}");
            let report = done.json();
            // An abort by the program itself ends the job, also where exits are faults.
            let rollbacks = if end == "aborting" { 0 } else { rollbacks };
            assert_eq!((&report["outcome"], &report["rollbacks"]), (&"failed".into(), &rollbacks.into()));
            let reason = report["reason"].as_str().unwrap();
            assert!(
                reason.contains(words) || (rollbacks > 0 && reason.contains("exited with code")),
                "{report}"
            );
        }
    }
    let done = ends("after the end", &[]);
    assert_eq!((done.code, &done.json()["exit_code"]), (Some(5), &5.into()), "{done:?}");
    assert!(done.json()["reason"].as_str().unwrap().contains("ended with exit code 5 after it had finished"));
}

const DEAF: &str = "trap '' TERM INT HUP; while :; do sleep 1; done";

#[test]
fn a_program_that_ignores_signals_is_ended_all_the_same() {
    let runtime = tempfile::tempdir().unwrap();
    for way in ["TERM", "HUP", "INT", "kill"] {
        let mut command = stillwire(&["run", "-n", "2", "--", "sh", "-c", DEAF]);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        let job = Running::start(command);
        wait_until("both ranks are there", || job.ranks().len() == 2);
        let ranks = job.ranks();
        if way == "kill" {
            let mut ask = stillwire(&["kill", ""]);
            assert_eq!(done(ask.env("XDG_RUNTIME_DIR", runtime.path())).code, Some(0));
        } else {
            job.signal(way);
        }
        let done = job.finish();
        assert_eq!(done.code, Some(130), "{way}: {done:?}");
        done.says(&["the job was stopped"]);
        assert!(ranks.iter().all(|rank| !runs(*rank)), "{way}");
    }
}

#[test]
fn a_job_that_is_not_there() {
    let runtime = tempfile::tempdir().unwrap();
    for command in ["checkpoint", "kill"] {
        let refused = done(stillwire(&[command, "0123abcd"]).env("XDG_RUNTIME_DIR", runtime.path()));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.says(&["no running job has an id that begins with `0123abcd`", "stillwire ps"]);
    }
    let listed = done(stillwire(&["ps", "--json"]).env("XDG_RUNTIME_DIR", runtime.path()));
    assert_eq!(listed.json()["jobs"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_program_without_a_session_cannot_be_saved_and_says_so() {
    let runtime = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--", "sleep", "60"]);
    command.env("XDG_RUNTIME_DIR", runtime.path());
    let job = Running::start(command);
    wait_until("both ranks are there", || job.ranks().len() == 2);
    let refused = done(stillwire(&["checkpoint", ""]).env("XDG_RUNTIME_DIR", runtime.path()));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["its program opens no session"]);
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
}

#[test]
fn a_launcher_killed_together_with_its_guard_leaves_no_rank() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "10ms"]);
    job.wait_for("committed");
    let ranks = job.ranks();
    let guards: Vec<u32> = children(job.pid()).into_iter().filter(|child| !ranks.contains(child)).collect();
    assert_eq!((ranks.len(), guards.len()), (4, 1));
    signal(guards[0], "KILL");
    job.signal("KILL");
    job.finish();
    wait_until("every process is gone", || ranks.iter().chain(&guards).all(|pid| !runs(*pid)));
    // The next restart removes half-written generations.
    place.let_end();
    verified(&place.restart(&[]).finish());
    for state in ["writing", "complete", "abandoned", "collected"] {
        assert_eq!(place.generations(state), Vec::<String>::new(), "{state}");
    }
}

// A person who changes their mind at once, in any phase of the job.
#[test]
fn a_job_that_is_ended_while_it_starts() {
    for millis in [0, 2, 5, 10, 20, 40, 80] {
        let place = Place::new();
        let mut job = place.run(&["--ckpt-every", "10ms"]);
        job.wait_for("stillwire: job");
        std::thread::sleep(Duration::from_millis(millis));
        let processes = children(job.pid());
        job.signal("INT");
        let done = job.finish();
        // The very first instants belong to the system's own handling of the signal.
        assert!(matches!(done.code, Some(130) | None), "{millis} ms: {done:?}");
        wait_until("every process is gone", || processes.iter().all(|pid| !runs(*pid)));
    }
}

#[test]
fn quiet_is_quiet() {
    let place = Place::new();
    let mut command =
        stillwire(&["run", "-n", "4", "--quiet", "--ckpt-every", "20ms", "--ckpt-dir", &place.job_text()]);
    command.arg("--").args(place.sort());
    let mut job = Running::start(command);
    wait_until("generations are there", || {
        place.job().join("job").exists() && !place.generations("committed").is_empty()
    });
    signal(job.ranks()[1], "KILL");
    let life = |counter: u32| place.job().join(format!("decision-{counter:08}")).exists();
    wait_until("another life", || life(2));
    place.let_end();
    job.seen.clear();
    let done = job.finish();
    verified(&done);
    assert_eq!(done.stderr, "");
}

#[test]
fn every_exit_code_is_produced() {
    let code = |arguments: &[&str]| done(&mut stillwire(arguments)).code;
    assert_eq!(code(&["run", "-n", "2", "--", "true"]), Some(0));
    assert_eq!(code(&["ls", "/no/such/place"]), Some(1));
    assert_eq!(code(&["run", "-n", "two", "--", "true"]), Some(2));
    assert_eq!(code(&["run", "-n", "2", "--", "false"]), Some(1));
    assert_eq!(code(&["run", "-n", "1", "--on-fault", "abort", "--", "sh", "-c", "kill -9 $$"]), Some(137));
    let place = Place::new();
    let started = Instant::now();
    let generations = place.with_generations();
    assert!(started.elapsed() < crate::support::PATIENCE);
    flip(&place.file(&generations[0], "rank-00000000.image"), 20_000);
    assert_eq!(code(&["verify", &place.job_text()]), Some(3));
    let job = Running::start(stillwire(&["run", "-n", "1", "--", "sleep", "60"]));
    wait_until("it runs", || job.ranks().len() == 1);
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
}

#[test]
fn descriptors_are_enough_or_missed_at_once() {
    let run = |limit: &str, ranks: &str| {
        let script = format!("ulimit {limit}; exec {STILLWIRE} run --quiet -n {ranks} -- sh -c 'ulimit -Sn'");
        done(Command::new("sh").args(["-c", &script]))
    };
    let raised = run("-Sn 80", "30");
    assert_eq!(raised.code, Some(0), "{raised:?}");
    assert_eq!(raised.stdout.lines().filter(|line| line.ends_with("] 80")).count(), 30, "{raised:?}");
    let refused = run("-n 200", "30");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["30 ranks need 248 open files", "200 are allowed", "ulimit -n"]);
}
