//! Output of ranks, over checkpoints and kills: no output from before a checkpoint is lost or comes twice, and no line has
//! another one in its middle.

use crate::support::programs::{library, program};
use crate::support::{Place, Running, signal, stillwire, wait_until};

const LINES: &str = "3000";

/// The program's text on one of its outputs when nothing happens to it.
fn undisturbed(errors: bool) -> String {
    let output = std::process::Command::new(program("prints")).args([LINES, "0"]).output().expect("it runs");
    String::from_utf8(if errors { output.stderr } else { output.stdout }).expect("words")
}

/// The shown lines of one output of one rank.
fn lines(shown: &str, rank: u32, word: &str) -> Vec<String> {
    let start = format!("[{rank}] ");
    let own = shown.lines().filter_map(|line| line.strip_prefix(&start));
    own.filter(|line| line.contains(word)).map(str::to_owned).collect()
}

/// Matches the shown lines with the printed text: each life shows a piece that begins at a cut, not behind the end of the piece before. Only its
/// last line may lack its end, and only its first line its begin. Returns where the pieces begin. `half`: a line that had no end yet when a launcher
/// was killed may be missing, up to the cut.
fn follow(printed: &str, shown: &[String], half: bool) -> Vec<usize> {
    let (mut at, mut begins) = (0, Vec::new());
    for (number, line) in shown.iter().enumerate() {
        let next = shown.get(number + 1);
        let goes_on = |from: usize| {
            let rest = &printed[from..];
            let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
            let whole = rest.starts_with(line.as_str()) && end == line.len() + 1;
            let next_fits =
                next.is_none_or(|next| rest.get(end..).is_some_and(|after| after.starts_with(next.as_str())));
            (whole, next_fits, from + end)
        };
        let (whole, _, end) = goes_on(at);
        if whole {
            at = end;
            continue;
        }
        if printed[at..].starts_with(line.as_str()) {
            // A life has ended in the middle of it.
            at += line.len();
            continue;
        }
        // The nearest place that fits: a life has begun.
        let last = if half { printed[at..].find('\n').map_or(at, |end| at + end) } else { at };
        let found = (0..last).rev().find(|from| {
            printed.is_char_boundary(*from) && {
                let (whole, next_fits, _) = goes_on(*from);
                whole && next_fits
            }
        });
        let from = found.unwrap_or_else(|| {
            let before: Vec<&String> = shown[number.saturating_sub(3)..=number].iter().collect();
            panic!("what comes before is missing at {at}: {before:?}, then {next:?}")
        });
        begins.push(from);
        at = goes_on(from).2;
    }
    assert_eq!(at, printed.len(), "the end is missing: {:?}", shown.last());
    begins
}

#[test]
fn what_is_printed_before_a_checkpoint_is_shown_once() {
    const KILLS: usize = 6;
    let place = Place::new();
    let enough = place.enough().display().to_string();
    let mut command =
        stillwire(&["run", "-n", "2", "--ckpt-every", "50ms", "--retries", "100", "--ckpt-dir"]);
    command.arg(place.job()).arg("--").arg(program("prints")).args([LINES, "300", &enough]);
    command.env("STILLWIRE_PROVIDER", library());
    let mut job = Running::start(command).reading();
    for kill in 0..KILLS {
        job.wait_for("committed");
        job.wait_for("committed");
        signal(job.ranks()[kill % 2], "KILL");
        job.wait_for("all ranks run again");
    }
    place.let_end();
    let done = job.finish_reading();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    for rank in 0..2 {
        for (errors, word, shown) in [(false, "out ", &done.stdout), (true, "err ", &done.stderr)] {
            let begins = follow(&undisturbed(errors), &lines(shown, rank, word), false);
            assert!(begins.len() <= KILLS, "{begins:?}");
            assert!(begins.is_sorted(), "a life went back behind a checkpoint: {begins:?}");
        }
    }
}

// A generation counts only when output from before it has been shown.
#[test]
fn a_launcher_that_is_killed_has_shown_what_its_last_checkpoint_holds() {
    const KILLS: usize = 4;
    let place = Place::new();
    let enough = place.enough().display().to_string();
    let mut command = stillwire(&["run", "-n", "2", "--ckpt-every", "50ms", "--ckpt-dir"]);
    command.arg(place.job()).arg("--").arg(program("prints")).args([LINES, "300", &enough]);
    let (mut out, mut err) = (String::new(), String::new());
    for kill in 0..=KILLS {
        command.env("STILLWIRE_PROVIDER", library());
        let mut job = Running::start(command).reading();
        if kill == KILLS {
            place.let_end();
        } else {
            job.wait_for("committed");
            job.wait_for("committed");
            job.signal("KILL");
        }
        let done = job.finish_reading();
        assert!(kill < KILLS || done.code == Some(0), "{}", done.stderr);
        out.push_str(&done.stdout);
        err.push_str(&done.stderr);
        err.push('\n');
        wait_until("the guard has cleaned up", || place.lock_is_free());
        command = stillwire(&["restart", &place.job_text()]);
    }
    for rank in 0..2 {
        for (errors, word, shown) in [(false, "out ", &out), (true, "err ", &err)] {
            let begins = follow(&undisturbed(errors), &lines(shown, rank, word), true);
            assert!(begins.len() <= KILLS && begins.is_sorted(), "{begins:?}");
        }
    }
}
