//! The time between checkpoints: chosen by the job, and changed while it runs.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Place, Running, done, signal, stillwire, verified, wait_until};

/// The job's status, as `ps` reports it.
fn status(place: &Place) -> Value {
    let mut ps: Command = stillwire(&["ps", "--json"]);
    let jobs = done(ps.env("XDG_STATE_HOME", place.state())).json()["jobs"].take();
    let path = place.job_text();
    let job = jobs.as_array().expect("a list").iter().find(|job| job["directory"] == path.as_str());
    job.unwrap_or_else(|| panic!("{path} is not among {jobs}"))["status"].clone()
}

fn id(job: &Running) -> String {
    let jobs = done(&mut stillwire(&["ps", "--json"])).json();
    let all = jobs["jobs"].as_array().expect("a list");
    let found = all.iter().find(|found| found["pid"] == job.pid()).expect("it runs");
    found["job"].as_str().expect("an id").to_owned()
}

fn tuned(job: &Running, every: &str) -> String {
    let tuned = done(&mut stillwire(&["tune", &id(job), "--ckpt-every", every]));
    assert_eq!(tuned.code, Some(0), "{tuned:?}");
    tuned.stdout
}

#[test]
fn a_job_chooses_its_interval_from_cost_and_failures() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "auto", "--retries", "100"]);
    job.wait_for("until the cost of one is measured");
    let line = job.wait_for("each costs the program");
    assert!(line.contains("checkpoints every") && line.contains("a failure is expected every"), "{line}");
    wait_until("a delay has been measured", || status(&place)["commits"].as_u64() >= Some(3));
    let chosen = |status: &Value| status["checkpoints"]["chosen"].clone();
    let before = chosen(&status(&place));
    assert_eq!(status(&place)["checkpoints"]["every"], "auto");
    for attempt in 0..4 {
        job.wait_for("committed");
        signal(job.ranks()[1], "KILL");
        job.wait_for("all ranks run again");
        if attempt == 0 {
            job.wait_for("from now on: the job fails more often than was expected");
        }
    }
    let after = chosen(&status(&place));
    let number =
        |chosen: &Value, key: &str| chosen[key].as_f64().unwrap_or_else(|| panic!("{key} in {chosen}"));
    assert!(number(&after, "mtbf_ms") < 60_000.0, "{after}");
    assert!(number(&after, "mtbf_ms") < number(&before, "mtbf_ms"), "{before}, {after}");
    assert!(number(&after, "cost_us") > 0.0, "{after}");
    place.let_end();
    verified(&job.finish());
}

#[test]
fn the_interval_of_a_running_job_is_changed_and_kept() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "1h"]);
    job.wait_for("all ranks run");
    assert_eq!(tuned(&job, "40ms"), "checkpoints every 40ms\n");
    job.wait_for("checkpoints every 40ms from now on, as asked");
    for _ in 0..3 {
        job.wait_for("committed (timer");
    }
    assert_eq!(tuned(&job, "off"), "checkpoints only on request\n");
    let (mut commits, mut since) = (status(&place)["commits"].clone(), Instant::now());
    let began = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        assert!(began.elapsed() < Duration::from_secs(30), "checkpoints go on");
        let now = status(&place)["commits"].clone();
        if now != commits {
            (commits, since) = (now, Instant::now());
        }
    }
    let chosen = tuned(&job, "auto");
    assert!(chosen.starts_with("checkpoints "), "{chosen}");
    job.wait_for("committed (timer");
    tuned(&job, "50ms");
    job.signal("INT");
    job.finish();
    // A restart goes on with the newest interval, or takes its own.
    let mut job = place.restart(&[]);
    job.wait_for("committed (timer");
    assert_eq!(status(&place)["checkpoints"]["every"], "50ms");
    job.signal("INT");
    job.finish();
    let mut job = place.restart(&["--ckpt-every", "off"]);
    job.wait_for("all ranks run");
    assert_eq!(status(&place)["checkpoints"]["every"], "off");
    place.let_end();
    verified(&job.finish());
}

#[test]
fn what_cannot_be_chosen_is_refused() {
    let place = Place::new();
    let refused = |options: &[&str], words: &[&str]| {
        let done = place.run(options).finish();
        assert_eq!(done.code, Some(2), "{done:?}");
        done.says(words);
    };
    refused(&["--ckpt-every", "sometimes"], &["`sometimes`", "auto, off, or a number and a unit"]);
    refused(&["--ckpt-every", "1us"], &["`1us`", "from 1ms to 366d"]);
    refused(&["--ckpt-every", "5m", "--mtbf", "1d"], &["--mtbf is for --ckpt-every auto"]);
    refused(&["--ckpt-budget", "1%"], &["--ckpt-budget is for --ckpt-every auto"]);
    refused(&["--ckpt-every", "auto", "--ckpt-budget", "2"], &["`2`", "percentage"]);
    refused(&["--ckpt-every", "auto", "--mtbf", "1ms"], &["expected at least 1s"]);
    let nothing = done(&mut stillwire(&["tune", "0123"]));
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    let unknown = done(&mut stillwire(&["tune", "0123", "--ckpt-every", "1m"]));
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
}
