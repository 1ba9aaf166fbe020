//! Programs of the native interface as people write them: the example that its documentation names, and one whose points do not
//! line up.

use std::path::Path;
use std::process::Command;

use crate::support::{Place, Running, STILLWIRE, signal, stillwire};
use session::{Protect, Region, Session};

fn run(place: &Place, ranks: &str, every: &str, program: &Path) -> Command {
    let mut command =
        stillwire(&["run", "-n", ranks, "--ckpt-every", every, "--ckpt-dir", &place.job_text()]);
    command.arg("--").arg(program);
    command
}

#[test]
fn the_example_of_the_interface_survives_a_killed_rank() {
    // Cargo builds the examples of all packages with the tests of all packages.
    let ring = Path::new(STILLWIRE).parent().expect("a folder").join("examples/ring");
    let steps = 40_000;
    assert!(
        ring.is_file(),
        "{} is not there; cargo build --package stillwire-session --example ring makes it",
        ring.display()
    );
    let place = Place::new();
    let mut command = run(&place, "4", "20ms", &ring);
    command.arg(steps.to_string());
    let mut job = Running::start(command);
    job.wait_for("committed");
    signal(job.ranks()[2], "KILL");
    job.wait_for("rolling back");
    job.wait_for("all ranks run again");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    for rank in 0..4 {
        let line = format!("[{rank}] {steps} steps, token {steps}");
        assert_eq!(done.stdout.lines().filter(|found| *found == line).count(), 1, "{done:?}");
    }
}

/// Points of each rank. They differ by little: a rank that is far behind the point that is named gets long to come to it.
const POINTS: [u64; 2] = [500, 490];

struct Nothing([u8; 1]);

impl Protect for Nothing {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![Region::fixed(1, &mut self.0)]
    }
}

/// A rank that passes its points, and then computes until it is ended.
fn pass_points() -> ! {
    let mut session = Session::open().expect("a launcher started it");
    let mut state = Nothing([0]);
    session.protect(&mut state).expect("a byte");
    for _ in 0..POINTS[session.rank() as usize] {
        session.point(&mut state).expect("it runs");
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn ranks_that_pass_different_points_are_reported_so() {
    if std::env::var_os("STILLWIRE_RANK").is_some() {
        pass_points();
    }
    let place = Place::new();
    let mut command = run(&place, "2", "20ms", &std::env::current_exe().expect("it runs"));
    command.args(["--exact", "native::ranks_that_pass_different_points_are_reported_so", "--nocapture"]);
    let mut job = Running::start(command);
    let reported = job.wait_for("do not line up");
    for words in [
        "3 checkpoints in a row were abandoned: the program's points do not line up. Point 50",
        " was named when rank 1 had passed 490 and rank 0 had passed 500; rank ",
        " was then at ",
        "Every rank must pass the same points",
    ] {
        assert!(reported.contains(words), "{words:?}: {reported}");
    }
    job.signal("INT");
    let done = job.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
}
