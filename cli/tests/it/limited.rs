//! Images that ranks write, and parity that keepers fold, obey the limit of their node's disk: the work takes at least as long as the limit implies.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::programs::{library, steps};
use crate::support::{Place, Running, done, signal, stillwire, wait_until};

/// Of two nodes.
const RANKS: f64 = 4.0;

/// Beside that the bytes that a burst lets through at once are few.
const TOLERATED: f64 = 0.9;

/// A job whose nodes have this limit for their two ranks.
fn run(place: &Place, limit_mb_per_s: u32, options: &[&str], program: &[String]) -> Running {
    let mut command = stillwire(&["run", "-n", "4", "--nodes", "2", "--parity", "partner"]);
    let limit = format!("disk={limit_mb_per_s}M");
    command.args(["--encode-budget", &limit, "--ckpt-dir", &place.job_text()]).args(options);
    command.arg("--").args(program).env("STILLWIRE_PROVIDER", library());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    job
}

/// Takes one. Returns how many bytes all images had.
fn limited(job: &Running, limit_mb_per_s: u32, what: &str) -> f64 {
    let name = job.seen.iter().find_map(|line| line.strip_prefix("stillwire: job ")?.split(',').next());
    let taken = done(&mut stillwire(&["checkpoint", name.expect("its name"), "--json"]));
    assert_eq!(taken.code, Some(0), "{what}: {taken:?}");
    let report = taken.json();
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{what}: no {key} in {report}"));
    let (bytes, written_s) = (number("bytes"), number("written_ms") / 1e3);
    // The longest one is no shorter than their mean.
    let least_s = TOLERATED * bytes / RANKS / (f64::from(limit_mb_per_s) * 1e6 / 2.0);
    assert!(written_s >= least_s, "{what}: {bytes} bytes of {RANKS} ranks in {written_s} s");
    bytes
}

#[test]
fn images_of_whole_processes_obey_the_disks_limit() {
    for capture in ["fork", "scan", "content"] {
        let place = Place::new();
        let enough = place.enough().display().to_string();
        // 8 MB, of which some pages change in every step.
        let program = [&steps(), "1000000", "20000", "8000000", &enough, "3"].map(str::to_owned);
        let mut job = run(&place, 40, &["--capture", capture], &program);
        let whole = limited(&job, 40, capture);
        assert!(whole > RANKS * 8e6, "{capture}: {whole} bytes");
        // Long enough for a delta that takes some time.
        std::thread::sleep(Duration::from_millis(500));
        let next = limited(&job, 40, capture);
        if capture != "fork" {
            assert!(next > RANKS * 0.5e6, "{capture}: {next} bytes are soon written");
            assert!(next < whole * 0.9, "{capture}: {next} of {whole} bytes: no delta");
        }
        // A restored rank obeys it, too.
        signal(job.ranks()[1], "KILL");
        job.wait_for("all ranks run again");
        limited(&job, 40, &format!("{capture}, restored"));
    }
}

#[test]
fn images_of_programs_with_points_of_their_own_obey_the_disks_limit() {
    let place = Place::new();
    let mut program = place.sort();
    let class = program.iter().position(|word| word == "S").expect("a class");
    "W".clone_into(&mut program[class]);
    // It takes a moment to come to one, which is no part of the limit's time.
    let job = run(&place, 4, &[], &program);
    let bytes = limited(&job, 4, "at a point");
    assert!(bytes > 4e6, "{bytes} bytes");
}

/// How many generations have images there.
fn with_images(node: &Path) -> usize {
    let inside = |folder: &Path| -> Vec<_> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let has_images = |folder: &Path| {
        let is_image =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rank-"));
        inside(folder).iter().any(|path| is_image(path))
    };
    inside(node).iter().flat_map(|life| inside(life)).filter(|folder| has_images(folder)).count()
}

#[test]
fn parity_is_folded_below_the_disks_limit() {
    const LIMIT_MB_PER_S: u32 = 2;
    let place = Place::new();
    let enough = place.enough().display().to_string();
    let program = [&steps(), "1000000", "20000", "2000000", &enough, "3"].map(str::to_owned);
    let job = run(&place, LIMIT_MB_PER_S, &["--keep", "1", "--capture", "content"], &program);
    let node = place.job().join("nodes/0");
    limited(&job, LIMIT_MB_PER_S, "whole");
    std::thread::sleep(Duration::from_millis(500));
    let next = limited(&job, LIMIT_MB_PER_S, "a delta");
    let committed = Instant::now();
    assert_eq!(with_images(&node), 2, "what is not kept is there until parity builds upon it no more");
    wait_until("the older generation is removed", || with_images(&node) == 1);
    // A node has half of the changes in its parity, and reads as much as it writes.
    let least_s = 0.8 * next / (f64::from(LIMIT_MB_PER_S) * 1e6);
    let folded_s = committed.elapsed().as_secs_f64();
    assert!(folded_s >= least_s, "{next} bytes of images: folded in {folded_s} s, at the limit {least_s}");
    // A fold that is under way when the job ends is completed.
    limited(&job, LIMIT_MB_PER_S, "a third one");
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
    assert_eq!(with_images(&node), 1);
}
