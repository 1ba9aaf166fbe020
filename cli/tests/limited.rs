//! What ranks write of images obeys the limit of their node's disk, however the image is taken: it takes at least as long as the limit says.

mod support;

use support::programs::{library, steps};
use support::{Place, Running, done, signal, stillwire};

/// Of a node, with two ranks each.
const LIMIT: &str = "disk=40M";
const RANK_BYTES_PER_S: f64 = 20e6;
const RANKS: f64 = 4.0;

/// What a burst lets through at once is little beside that.
const TOLERATED: f64 = 0.9;

fn run(place: &Place, options: &[&str], program: &[String]) -> Running {
    let mut command = stillwire(&["run", "-n", "4", "--nodes", "2", "--parity", "partner"]);
    command.args(["--encode-budget", LIMIT, "--ckpt-dir", &place.job_text()]).args(options);
    command.arg("--").args(program).env("STILLWIRE_PROVIDER", library());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    job
}

/// Takes one. Returns how many bytes all images had.
fn limited(job: &Running, what: &str) -> f64 {
    let name = job.seen.iter().find_map(|line| line.strip_prefix("stillwire: job ")?.split(',').next());
    let taken = done(&mut stillwire(&["checkpoint", name.expect("its name"), "--json"]));
    assert_eq!(taken.code, Some(0), "{what}: {taken:?}");
    let report = taken.json();
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{what}: no {key} in {report}"));
    let (bytes, written_s) = (number("bytes"), number("written_ms") / 1e3);
    // The longest one is no shorter than their mean.
    let least_s = TOLERATED * bytes / RANKS / RANK_BYTES_PER_S;
    assert!(written_s >= least_s, "{what}: {bytes} bytes of {RANKS} ranks in {written_s} s");
    bytes
}

#[test]
fn images_of_whole_processes_obey_the_disks_limit() {
    for capture in ["fork", "scan", "content"] {
        let place = Place::new();
        let enough = place.enough().display().to_string();
        // 8 MB, of which some pages change in every step.
        let program = [&steps(), "1000000", "20000", "8000000", &enough, "2"].map(str::to_owned);
        let mut job = run(&place, &["--capture", capture], &program);
        let whole = limited(&job, capture);
        assert!(whole > RANKS * 8e6, "{capture}: {whole} bytes");
        let next = limited(&job, capture);
        if capture != "fork" {
            assert!(next < whole * 0.9, "{capture}: {next} of {whole} bytes: no delta");
        }
        // Who was restored obeys it, too.
        signal(job.ranks()[1], "KILL");
        job.wait_for("all ranks run again");
        limited(&job, &format!("{capture}, restored"));
    }
}

#[test]
fn images_of_programs_with_points_of_their_own_obey_the_disks_limit() {
    let place = Place::new();
    let mut program = place.sort();
    let class = program.iter().position(|word| word == "S").expect("a class");
    "W".clone_into(&mut program[class]);
    let job = run(&place, &[], &program);
    let bytes = limited(&job, "at a point");
    assert!(bytes > 4e6, "{bytes} bytes");
}
