//! Jobs that go on without ranks that have ended: `process = "ignore"`.

use std::fs;

use crate::support::{Done, Place, Running, STILLWIRE, done, runs, signal, stillwire, wait_until};

const IGNORE: &str = "[on]\nprocess = \"ignore, restart\"\nrepeated = \"ignore, restart\"\n";
const WORDS: &str = "the job goes on without it, and takes no more checkpoints (1 rank lost, 0 rolled back)";

/// A job whose first rank hands out tasks of 20 ms each.
fn tasks(place: &Place, tasks: u32, options: &[&str]) -> Running {
    let policy = place.folder.path().join("recovery.toml");
    fs::write(&policy, IGNORE).expect("a file");
    let mut command = stillwire(&["run", "-n", "4", "--recovery", &policy.display().to_string()]);
    command.args(options).args(["--", STILLWIRE, "example", "tasks", "--task-ms", "20", "--tasks"]);
    command.arg(tasks.to_string());
    Running::start(command)
}

/// Ends the process of a rank that runs, and waits for what the launcher says.
fn kill(job: &mut Running, rank: u32) -> String {
    let pid = job.ranks()[rank as usize];
    signal(pid, "KILL");
    let said = job.wait_for(WORDS);
    wait_until("the process is gone", || !runs(pid));
    said
}

/// All tasks were done although ranks were lost; the job ends as the first of them did.
fn done_without(done: &Done, lost: u32) {
    assert!(done.stdout.contains(&format!("{lost} ranks lost, verification successful")), "{done:?}");
    assert!(done.stderr.contains("and the job went on without it"), "{done:?}");
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    assert_eq!(done.code, Some(137), "{done:?}");
}

/// The job's number, as `ps` reports it.
fn id(job: &Running) -> String {
    let jobs = done(&mut stillwire(&["ps", "--json"])).json();
    let all = jobs["jobs"].as_array().expect("a list");
    let found = all.iter().find(|found| found["pid"] == job.pid()).expect("it runs");
    found["job"].as_str().expect("an id").to_owned()
}

// R37
#[test]
fn a_job_goes_on_without_a_rank_that_is_killed() {
    for options in [&["--rails", "shm"][..], &["--rails", "udp", "--nodes", "2"]] {
        let place = Place::new();
        let mut job = tasks(&place, 300, options);
        job.wait_for("all ranks run");
        let said = kill(&mut job, 2);
        assert!(said.contains("rank 2 died (signal 9)"), "{said}");
        kill(&mut job, 1);
        done_without(&job.finish(), 2);
    }
}

#[test]
fn nothing_is_saved_without_a_rank() {
    let place = Place::new();
    let directory = place.job().display().to_string();
    let mut job = tasks(&place, 1_200, &["--ckpt-dir", &directory, "--ckpt-every", "1h"]);
    job.wait_for("all ranks run");
    kill(&mut job, 3);
    let refused = done(&mut stillwire(&["checkpoint", &id(&job)]));
    refused.says(&["the job goes on without rank 3, of which there can be no image"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    done_without(&job.finish(), 1);
}

#[test]
fn the_loss_of_the_rank_that_the_others_need_ends_the_program() {
    let place = Place::new();
    let mut job = tasks(&place, 10_000, &[]);
    job.wait_for("all ranks run");
    kill(&mut job, 0);
    let done = job.finish();
    done.says(&["rank 0 has ended, and the job goes on without it"]);
    assert_eq!(done.code, Some(137), "{done:?}");
    assert!(!done.stdout.contains("verification"), "{done:?}");
}

#[test]
fn a_rank_is_not_ignored_where_the_job_is_to_end_at_every_fault() {
    let place = Place::new();
    let mut job = tasks(&place, 10_000, &["--on-fault", "abort"]);
    job.wait_for("all ranks run");
    signal(job.ranks()[1], "KILL");
    let done = job.finish();
    done.says(&["rank 1 died (signal 9)", "--on-fault abort"]);
    assert!(!done.stderr.contains(WORDS), "{done:?}");
}
