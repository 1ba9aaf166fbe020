//! Programs that end themselves, and programs that connect late, or never, or not all: the outcome of the job, and its exit code.

use std::time::{Duration, Instant};

use crate::support::programs::library;
use crate::support::{Done, Place, Running, STILLWIRE, done, signal, stillwire, wait_until};

/// Runs a shell script on each rank.
fn script(options: &[&str], script: &str) -> Done {
    let mut command = stillwire(&["run"]);
    done(command.args(options).args(["--", "sh", "-c", script]).env("STILLWIRE_PROVIDER", library()))
}

/// Lines that ranks have printed.
fn printed(done: &Done, words: &str) -> usize {
    done.stdout.lines().filter(|line| line.ends_with(words)).count()
}

#[test]
fn a_program_that_never_connects_outlives_the_start_time_out_and_runs_once() {
    let place = Place::new();
    let job = place.job_text();
    // As it is; with points of its own wanted, of which it has none; saved as a whole process, which a shell with a child is not.
    for options in [&[][..], &["--ckpt-every", "1h", "--ckpt-dir", &job]] {
        for ranks in ["1", "2"] {
            let _ = std::fs::remove_dir_all(&job);
            let all = [&["-n", ranks, "--start-timeout", "200ms"], options].concat();
            let done = script(&all, "echo begun; sleep 1.5; true");
            assert_eq!(done.code, Some(0), "{done:?}");
            assert_eq!(printed(&done, "begun").to_string(), ranks, "{done:?}");
            for words in ["rolling back", "life 2", "--start-timeout", "have come up"] {
                assert!(!done.stderr.contains(words), "{words}: {done:?}");
            }
        }
    }
}

#[test]
fn a_program_that_never_connects_is_one_that_runs() {
    let runtime = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--start-timeout", "100ms", "--", "sleep", "60"]);
    command.env("XDG_RUNTIME_DIR", runtime.path());
    let job = Running::start(command);
    wait_until("both ranks are there", || job.ranks().len() == 2);
    let ps = || done(stillwire(&["ps", "--json"]).env("XDG_RUNTIME_DIR", runtime.path())).json();
    wait_until("it runs", || ps()["jobs"][0]["status"]["phase"] == "running");
    let status = ps()["jobs"][0]["status"].clone();
    assert_eq!(status["running"], 2, "{status}");
    assert!(
        status["each_rank"].as_array().unwrap().iter().all(|rank| rank["state"] == "running"),
        "{status}"
    );
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
}

#[test]
fn that_there_are_no_checkpoints_of_it_is_said_once_with_the_reason() {
    let place = Place::new();
    let mut command = stillwire(&["run", "-n", "1", "--ckpt-every", "50ms", "--start-timeout", "1s"]);
    command.arg("--ckpt-dir").arg(place.job()).env("STILLWIRE_PROVIDER", library());
    command.args([
        "--",
        "sh",
        "-c",
        &format!("until [ -e {} ]; do sleep 0.1; done", place.enough().display()),
    ]);
    let mut job = Running::start(command);
    job.wait_for("no checkpoint is taken before all ranks have connected");
    std::thread::sleep(Duration::from_secs(3));
    place.let_end();
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stderr.matches("no checkpoint is taken").count(), 1, "{done:?}");
    done.says(&["warning: no checkpoint was taken, as no rank connected"]);
}

#[test]
fn who_opens_no_session_while_another_waits_in_it_is_named() {
    let ring = format!("exec {STILLWIRE} example ring --steps 10");
    let options = ["-n", "2", "--start-timeout", "1s", "--json"];
    let started = Instant::now();
    let done = script(&options, &format!("[ $STILLWIRE_RANK = 1 ] && exec sleep 60; {ring}"));
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(done.code, Some(4), "{done:?}");
    let report = done.json();
    let reason = report["reason"].as_str().unwrap();
    assert_eq!(
        reason,
        "rank 1 did not open a session within 1s (--start-timeout), in which rank 0 waits for all ranks"
    );
    assert_eq!((&report["rollbacks"], &report["exit_code"]), (&0.into(), &4.into()), "{report}");
}

#[test]
fn who_opens_a_session_long_after_the_start_is_waited_for() {
    let ring = format!("sleep 2; exec {STILLWIRE} example ring --steps 10");
    let done = script(&["-n", "2", "--start-timeout", "1s"], &ring);
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn who_ends_well_without_a_session_in_which_another_waits_ends_the_job() {
    let ring = format!("exec {STILLWIRE} example ring --steps 10");
    for early in ["exit 0", "sleep 1; exit 0"] {
        let done = script(&["-n", "2"], &format!("[ $STILLWIRE_RANK = 1 ] && {{ {early}; }}; {ring}"));
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&["rank 1 exited with code 0 before it had finished"]);
        assert!(!done.stderr.contains("rolling back"), "{done:?}");
    }
}

/// The program's code, at once, once, and one line about it.
fn ended_with(done: &Done, rank: u32, code: i32) {
    assert_eq!(done.code, Some(code), "{done:?}");
    let line = format!("stillwire: rank {rank} exited with code {code}; the job ends with code {code}");
    assert_eq!(done.stderr.lines().filter(|said| **said == line).count(), 1, "{line}: {done:?}");
    assert_eq!(done.stderr.matches("exited").count(), 1, "{done:?}");
    for words in ["rolling back", "life 2", "SIGKILL"] {
        assert!(!done.stderr.contains(words), "{words}: {done:?}");
    }
}

#[test]
fn a_program_that_exits_with_a_code_ends_the_job_with_it_once() {
    let place = Place::new();
    let job = place.job_text();
    for options in [&[][..], &["--ckpt-every", "1h", "--ckpt-dir", &job], &["--quiet"]] {
        let _ = std::fs::remove_dir_all(&job);
        let started = Instant::now();
        let done = script(&[&["-n", "1"], options].concat(), "echo begun; exit 3");
        ended_with(&done, 0, 3);
        assert_eq!(printed(&done, "begun"), 1, "{done:?}");
        let _ = std::fs::remove_dir_all(&job);
        // The others are ended.
        let others = "echo begun; [ $STILLWIRE_RANK = 1 ] && exit 7; sleep 60";
        let done = script(&[&["-n", "3"], options].concat(), others);
        ended_with(&done, 1, 7);
        assert!(printed(&done, "begun") <= 3, "{done:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }
    let report = script(&["-n", "2", "--json"], "exit 5").json();
    assert_eq!(
        (&report["outcome"], &report["exit_code"], &report["rollbacks"]),
        (&"failed".into(), &5.into(), &0.into())
    );
    assert!(
        report["reason"].as_str().unwrap().ends_with("exited with code 5; the job ends with code 5"),
        "{report}"
    );
}

#[test]
fn of_several_codes_the_first_counts() {
    let one_after_the_other = "sleep 0.$((STILLWIRE_RANK * 3)); exit $((STILLWIRE_RANK + 3))";
    let done = script(&["-n", "3"], one_after_the_other);
    assert_eq!(done.code, Some(3), "{done:?}");
}

#[test]
fn who_wants_it_has_an_exit_treated_as_a_fault() {
    let place = Place::new();
    let seen = place.enough();
    let text = format!("[ -e {0} ] && exit 0; touch {0}; exit 3", seen.display());
    let once = script(&["-n", "1", "--on-exit", "restart"], &text);
    assert_eq!(once.code, Some(0), "{once:?}");
    once.says(&["rank 0 exited with code 3; rolling back", "life 2"]);
    let always = script(&["-n", "1", "--on-exit", "restart", "--retries", "1", "--json"], "exit 3");
    let report = always.json();
    assert_eq!((always.code, &report["rollbacks"]), (Some(3), &1.into()), "{report}");
    let aborted = script(&["-n", "1", "--on-exit", "restart", "--on-fault", "abort"], "exit 3");
    assert_eq!(aborted.code, Some(3), "{aborted:?}");
    assert!(!aborted.stderr.contains("rolling back"), "{aborted:?}");
}

#[test]
fn a_signal_is_a_fault_as_before() {
    let done = script(&["-n", "1", "--retries", "1"], "kill -ABRT $$");
    assert_eq!(done.code, Some(134), "{done:?}");
    done.says(&["rank 0 died (signal 6); rolling back", "1 attempts to recover"]);
}

/// A program notices that a peer is gone, and gives up: that is the fault's doing.
#[test]
fn who_exits_because_another_was_killed_is_rolled_back_with_it() {
    for round in 0..5 {
        let place = Place::new();
        let folder = place.folder.path().display();
        let text = format!(
            "cd {folder}; [ -e killed ] && exit 0; echo $$ > pid$STILLWIRE_RANK; [ $STILLWIRE_RANK = 1 ] && exec sleep 60; \
             until [ -s pid1 ]; do :; done; while kill -0 $(cat pid1) 2> /dev/null; do :; done; exit 7"
        );
        let mut command = stillwire(&["run", "-n", "2", "--", "sh", "-c"]);
        command.arg(text);
        let job = Running::start(command);
        let pid =
            || std::fs::read_to_string(place.folder.path().join("pid1")).ok()?.trim().parse::<u32>().ok();
        wait_until("rank 1 is there", || pid().is_some());
        std::fs::write(place.folder.path().join("killed"), b"").unwrap();
        signal(pid().unwrap(), "KILL");
        let done = job.finish();
        assert_eq!(done.code, Some(0), "round {round}: {done:?}");
        done.says(&["rank 1 died (signal 9); rolling back", "life 2"]);
    }
}

#[test]
fn on_exit_is_the_job_s_until_a_restart_says_otherwise() {
    let place = Place::new();
    let config = || {
        let bytes = std::fs::read(place.job().join("job")).expect("a job's file");
        store::JobFile::parse(&bytes).expect("a whole one").settings["config"].clone()
    };
    let stopped = |mut job: Running| {
        job.wait_for("all ranks run");
        job.checkpoint();
        job.signal("INT");
        job.finish();
    };
    stopped(place.run(&["--on-exit", "restart"]));
    assert!(config().contains(r#""on_exit": "restart""#), "{}", config());
    stopped(place.restart(&[]));
    assert!(config().contains(r#""on_exit": "restart""#), "{}", config());
    stopped(place.restart(&["--on-exit", "fail"]));
    assert!(config().contains(r#""on_exit": "fail""#), "{}", config());
}
