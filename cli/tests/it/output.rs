//! Ranks that print without end, and readers that stop reading or go away: the job goes on, and can be ended.

use std::process::Command;

use crate::support::{Place, Running, STILLWIRE, done, runs, stillwire, verified, wait_until};

// Its output comes faster than anybody can look at it.
#[test]
fn a_rank_that_never_stops_printing_keeps_nobody_from_ending_the_job() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" run -n 1 -- yes > /dev/null", STILLWIRE]);
    let job = Running::start(command);
    wait_until("it runs", || job.ranks().len() == 1);
    let ranks = job.ranks();
    std::thread::sleep(std::time::Duration::from_millis(100));
    job.signal("INT");
    let done = job.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    assert!(ranks.iter().all(|rank| !runs(*rank)));
}

#[test]
fn a_reader_that_stops_reading_stops_nothing() {
    let place = Place::new();
    let words = place.sort().join(" ");
    // Rank 1 has a child that prints without end; nobody reads it before the job has ended.
    let script = format!("[ $STILLWIRE_RANK = 1 ] && yes & exec {words}");
    let mut command =
        stillwire(&["run", "-n", "4", "--ckpt-every", "40ms", "--ckpt-dir", &place.job_text(), "--"]);
    command.args(["sh", "-c", &script]);
    let mut job = Running::start(command);
    for _ in 0..5 {
        job.wait_for("committed");
    }
    crate::support::signal(job.ranks()[2], "KILL");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    let ranks = job.ranks();
    job.signal("INT");
    let done = job.finish();
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    assert!(ranks.iter().all(|rank| !runs(*rank)));
    assert!(done.stdout.len() < 32 << 20, "{} bytes were kept for nobody", done.stdout.len());
    assert!(!place.generations("committed").is_empty());
}

// Output from before a rank's end is printed, however late it is read.
#[test]
fn a_slow_reader_misses_nothing() {
    let mut command = stillwire(&["run", "-n", "2", "--", "sh", "-c"]);
    command.arg("seq 1 200000; echo the last of $STILLWIRE_RANK");
    let job = Running::start(command);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let done = job.finish_reading();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    for rank in 0..2 {
        let mine = done.stdout.lines().filter(|line| line.starts_with(&format!("[{rank}] "))).count();
        assert_eq!(mine, 200_001);
        assert!(done.stdout.contains(&format!("[{rank}] the last of {rank}\n")));
    }
}

#[test]
fn a_full_disk_is_an_error_and_no_crash() {
    let place = Place::new();
    place.with_generations();
    let image = place.file(place.generations("committed").last().unwrap(), "rank-00000000.image");
    let (job, image) = (place.job_text(), image.display().to_string());
    for arguments in [&["ps"][..], &["ps", "--json"], &["ls", &job], &["verify", &job], &["inspect", &image]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child = stillwire(arguments).stdout(full).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("No space left on device") && !stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    place.with_generations();
    let directory = place.job_text();
    for command in ["ls", "verify", "ls --json", "verify --json"] {
        let script = format!("{{ sleep 0.1; {STILLWIRE} {command} {directory}; }} | true");
        let done = done(Command::new("sh").args(["-c", &script]));
        assert!(!done.stderr.contains("panicked"), "{command}: {done:?}");
    }
    // A job does not end because nobody reads it any more: neither the output of its ranks nor its messages.
    place.let_end();
    let script = format!(
        "{{ {STILLWIRE} restart {directory} 2>&1; echo $? > {directory}.code; }} | head -n 1 > /dev/null"
    );
    let done = done(Command::new("sh").args(["-c", &script]));
    assert!(!done.stderr.contains("panicked"), "{done:?}");
    let code = || std::fs::read_to_string(format!("{directory}.code")).unwrap_or_default();
    wait_until("the job has ended", || !code().is_empty());
    assert_eq!(code().trim(), "0");
    // It has finished: its result is seen by running its last part again.
    let newest = place.generations("committed").pop().expect("the last one is kept");
    let again = place.restart(&["--generation", &newest]).finish();
    verified(&again);
}
