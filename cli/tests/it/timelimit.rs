//! Jobs whose time is limited: saved before it is over, ended in order, and gone on with by `stillwire restart`.

use crate::support::programs::{library, steps, sum};
use crate::support::{Done, Place, done, runs, stillwire, verified};

#[test]
fn a_native_job_is_saved_before_its_limit_and_goes_on() {
    let place = Place::new();
    // No other checkpoint is taken.
    let mut first = place.run(&["--time-limit", "4s"]);
    first.wait_for("the time limit is near: the last checkpoint begins");
    let ranks = first.ranks();
    let first = first.finish();
    assert_eq!(first.code, Some(5), "{first:?}");
    let path = place.job().canonicalize().expect("it is there").display().to_string();
    first.says(&["the time limit of 4s has come; the job is saved", "(time limit; "]);
    first.says(&[&format!("is kept; go on with `stillwire restart {path}`")]);
    assert!(ranks.iter().all(|rank| !runs(*rank)));
    assert_eq!(place.generations("committed").len(), 1);

    // The limit given to `run` holds for every start.
    let second = place.restart(&["--json"]).finish();
    assert_eq!(second.code, Some(5), "{second:?}");
    let report = second.json();
    let words = |name: &str| report[name].as_str().expect("words").to_owned();
    assert_eq!((words("outcome"), report["exit_code"].as_u64()), ("time-limit".to_owned(), Some(5)));
    assert_eq!(words("reason"), "the time limit of 4s has come; the job is saved");
    assert_eq!(place.generations("committed").last(), Some(&words("committed")));

    // Unless this start is given another one.
    place.let_end();
    verified(&place.restart(&["--time-limit", "1h"]).finish());
}

#[test]
fn a_program_that_knows_nothing_of_it_needs_as_many_starts_as_it_needs() {
    let place = Place::new();
    // Steps of 60 ms: more than two limits' worth, of which a busy machine may need half a one to start, and to save.
    let arguments = ["150", "60000", "1000000"];
    let job = place.job_text();
    let mut command = stillwire(&["run", "-n", "2", "--time-limit", "4s", "--ckpt-dir", &job, "--"]);
    command.arg(steps()).args(arguments).env("STILLWIRE_PROVIDER", library());
    let mut starts = vec![done(&mut command)];
    while starts.last().is_some_and(|last| last.code == Some(5)) && starts.len() < 60 {
        starts.push(done(stillwire(&["restart", &job]).env("STILLWIRE_PROVIDER", library())));
    }
    let last = starts.last().expect("one");
    assert_eq!(last.code, Some(0), "{starts:?}");
    assert!(starts.len() >= 3, "{starts:?}");
    let sum = sum(&arguments);
    for rank in 0..2 {
        // The last that it prints, maybe before the checkpoint from which the other one goes on.
        let start = format!("[{rank}] ");
        let printed = starts.iter().flat_map(|done| done.stdout.lines());
        let last = printed.filter_map(|line| line.strip_prefix(&start)).next_back();
        assert_eq!(last, Some(sum.as_str()), "rank {rank}: {starts:?}");
        // Nothing is printed twice: the work after a checkpoint is not much, and nothing before it is lost.
        let steps = |done: &Done| {
            let start = format!("[{rank}] step ");
            let own = done
                .stdout
                .lines()
                .filter_map(|line| line.strip_prefix(&start)?.split(' ').next()?.parse().ok());
            own.collect::<Vec<u64>>()
        };
        let mut next = 0;
        for start in &starts {
            let steps = steps(start);
            let (first, last) = (steps.first().copied().unwrap_or(next), steps.last().copied());
            assert!(first <= next, "steps {next} to {first} of rank {rank} are lost: {starts:?}");
            next = last.map_or(next, |last| last + 1);
        }
        assert_eq!(next, 150);
    }
}

#[test]
fn a_job_that_cannot_be_saved_ends_all_the_same_and_says_so() {
    let place = Place::new();
    let job = place.job_text();
    let mut command = stillwire(&["run", "-n", "1", "--time-limit", "6s", "--ckpt-dir", &job, "--"]);
    // It has a child at once: long before half of the limit is over, which is when the last checkpoint begins.
    command.args(["timeout", "1000", "sleep", "1000"]).env("STILLWIRE_PROVIDER", library());
    let ended = done(&mut command);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.says(&[
        "rank 0 cannot be saved: ",
        "the time limit of 6s has come without a last checkpoint: rank 0 cannot be saved: ",
    ]);
    ended.says(&["nothing is saved"]);
    assert!(!ended.stderr.contains("go on with"), "{ended:?}");
    let refused = done(&mut stillwire(&["restart", &job]));
    refused.says(&["no committed generation to restart from"]);
}

#[test]
fn a_limit_before_the_job_has_come_up() {
    let place = Place::new();
    let job = place.job_text();
    let mut command = stillwire(&["run", "-n", "1", "--json", "--time-limit", "300ms", "--ckpt-dir", &job]);
    let ended = done(command.args(["--", "sh", "-c", "sleep 1000; true"]));
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["outcome"], &report["exit_code"]), (&"failed".into(), &4.into()), "{report}");
    let reason = report["reason"].as_str().expect("words");
    assert!(reason.contains("not all ranks ran") && reason.contains("nothing is saved"), "{report}");
}
