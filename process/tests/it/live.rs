//! Programs move to fresh processes while they run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Program, compile, start};

/// A program, and where it is started again.
struct Moving {
    program: Program,
    executable: PathBuf,
    folder: tempfile::TempDir,
    moves: u32,
}

/// What came of an attempt to move.
enum Move {
    /// The program stands still, and a fresh process is ready to take over.
    Ready { fresh: Program, report: String },
    /// This kernel does not track written pages.
    Untracked,
}

impl Moving {
    fn start(name: &str, arguments: &[&str]) -> Moving {
        Moving::start_with(name, &[], arguments)
    }

    fn start_with(name: &str, options: &[&str], arguments: &[&str]) -> Moving {
        let folder = tempfile::tempdir().expect("a folder");
        let executable = compile(name, options);
        let mut command = Command::new(&executable);
        let file = folder.path().join("file");
        command.args(if name == "moving" || name == "mappings" { Some(&file) } else { None }).args(arguments);
        let mut program = start(&mut command);
        let first = program.line();
        assert!(first.starts_with("ready"), "{first}");
        Moving { program, executable, folder, moves: 0 }
    }

    fn is_alive(&mut self) {
        self.program.write(b"x");
        assert_eq!(self.program.line(), "alive");
    }

    /// Sends all of the program to a fresh process. Both wait for the word then.
    fn prepare(&mut self, rounds: u32, how: &str) -> Move {
        self.moves += 1;
        let socket = self.folder.path().join(format!("move-{}", self.moves));
        let mut fresh = start(Command::new(&self.executable).env("STILLWIRE_PRELOAD_RECEIVE", &socket));
        assert_eq!(fresh.answer(), "listening");
        self.program.send(&format!("move {} {rounds} {how} wait", socket.display()));
        let report = self.program.answer();
        if report.starts_with("failed: ") && how == "tracked" && is_untracked(&report) {
            return Move::Untracked;
        }
        if report.is_empty() {
            let status = self.program.child.wait().expect("it ends");
            panic!("it said {:?}, and ended with {status}", self.program.line());
        }
        assert!(report.starts_with("held "), "{report}");
        let ready = fresh.answer();
        let said = if ready.is_empty() { fresh.line() } else { String::new() };
        assert!(ready.starts_with("ready "), "{ready}{said}");
        Move::Ready { fresh, report }
    }

    /// Moves the program. `false`: this kernel does not track written pages.
    fn go(&mut self, rounds: u32, how: &str) -> bool {
        let Move::Ready { mut fresh, report } = self.prepare(rounds, how) else { return false };
        // On a busy machine a program may write more before it stops than there is room for copies.
        assert!(how == "tracked" || report.contains("whole=true"), "{report}");
        fresh.send("go");
        let answer = fresh.answer();
        let said = if answer.is_empty() { fresh.line() } else { String::new() };
        assert!(answer.starts_with("restored "), "{answer}{said}");
        std::mem::replace(&mut self.program, fresh).kill();
        true
    }

    /// Has the program go on where it is.
    fn give_up(&mut self, fresh: Program) {
        fresh.kill();
        self.program.send("go on");
        let answer = self.program.answer();
        assert!(answer.starts_with("released "), "{answer}");
    }
}

/// `ENOSYS`, `EPERM`, `EINVAL` or `EOPNOTSUPP` of the first call.
fn is_untracked(report: &str) -> bool {
    ["(os error 38)", "(os error 1)", "(os error 22)", "(os error 95)", "(os error 25)"]
        .iter()
        .any(|error| report.ends_with(error))
}

fn skipped(test: &str) {
    crate::skipped::skipped(test, "asynchronous write protection (Linux 6.7)");
}

const NOTHING_LOST: &str = "nothing was lost\n";

#[test]
fn a_program_moves_while_all_its_threads_run() {
    let mut moving = Moving::start("moving", &[]);
    moving.is_alive();
    for _ in 0..3 {
        if !moving.go(3, "tracked") {
            return skipped("a_program_moves_while_all_its_threads_run");
        }
        moving.is_alive();
        moving.is_alive();
    }
    assert_eq!(moving.program.finish(), NOTHING_LOST);
}

/// The words of the one that decides come late: the program stands still all the time.
#[test]
fn a_moved_program_stands_still_until_it_is_killed() {
    let mut moving = Moving::start("moving", &["16"]);
    let Move::Ready { mut fresh, .. } = moving.prepare(2, "tracked") else {
        return skipped("a_moved_program_stands_still_until_it_is_killed");
    };
    moving.program.write(b"x");
    fresh.send("go");
    assert!(fresh.answer().starts_with("restored "));
    fresh.write(b"x");
    assert_eq!(fresh.line(), "alive");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!moving.program.has_spoken(), "it ran on beside the moved one");
    std::mem::replace(&mut moving.program, fresh).kill();
    moving.is_alive();
    assert_eq!(moving.program.finish(), NOTHING_LOST);
}

#[test]
fn a_move_that_is_given_up_leaves_the_program_as_it_was() {
    let mut moving = Moving::start("moving", &["16"]);
    let image = moving.folder.path().join("image");
    for how in ["tracked", "untracked", "without-room", "tracked"] {
        let Move::Ready { fresh, .. } = moving.prepare(2, how) else {
            return skipped("a_move_that_is_given_up_leaves_the_program_as_it_was");
        };
        std::thread::sleep(Duration::from_millis(300));
        moving.give_up(fresh);
        moving.is_alive();
        moving.is_alive();
        moving.program.capture(&image, "fork");
    }
    assert!(moving.go(2, "tracked"));
    moving.is_alive();
    moving.program.capture(&image, "sync");
    moving.program.kill();
    moving.program = crate::support::restart(&image);
    moving.is_alive();
    assert!(moving.go(1, "tracked"));
    moving.is_alive();
    assert_eq!(moving.program.finish(), NOTHING_LOST);
}

#[test]
fn a_program_moves_without_tracking_and_without_room_for_copies() {
    let mut moving = Moving::start("moving", &["16"]);
    for how in ["untracked", "without-room", "untracked"] {
        if !moving.go(2, how) {
            return skipped("a_program_moves_without_tracking_and_without_room_for_copies");
        }
        moving.is_alive();
        moving.is_alive();
    }
    assert_eq!(moving.program.finish(), NOTHING_LOST);
}

#[test]
fn programs_of_many_kinds_move() {
    for (name, how, last) in [
        ("waits", "tracked", "all came back\n"),
        ("mutexes", "tracked", "all were owned\n"),
        ("changing", "tracked", "all was there\n"),
        ("vectors", "tracked", "all registers kept\n"),
        ("handlers", "tracked", "all signals counted\n"),
        ("settings", "untracked", "all as it was set\n"),
        ("mappings", "tracked", "all was there\n"),
        ("mappings", "untracked", "all was there\n"),
    ] {
        let mut moving = Moving::start(name, &[]);
        for rounds in [1, 3] {
            if !moving.go(rounds, how) {
                return skipped("programs_of_many_kinds_move");
            }
            moving.is_alive();
        }
        assert_eq!(moving.program.finish(), last, "{name}");
    }
}

/// The program ends if its allocator is entered while threads stand still.
#[test]
fn memory_comes_from_elsewhere_while_threads_stand_still() {
    let test = "memory_comes_from_elsewhere_while_threads_stand_still";
    let mut moving = Moving::start_with("allocator", &["-rdynamic"], &[]);
    for how in ["tracked", "untracked", "tracked"] {
        let Move::Ready { fresh, .. } = moving.prepare(2, how) else { return skipped(test) };
        moving.give_up(fresh);
    }
    for how in ["tracked", "untracked"] {
        assert!(moving.go(2, how));
    }
    assert_eq!(moving.program.finish(), "no lock was needed\n");
}

/// Moments at random, by the clock. `STILLWIRE_TEST_MOVES`: how many.
#[test]
fn a_program_moves_many_times() {
    let moves = std::env::var("STILLWIRE_TEST_MOVES").ok().and_then(|moves| moves.parse().ok());
    let mut moving = Moving::start("moving", &["8"]);
    for number in 0..moves.unwrap_or(12u32) {
        let jitter = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        std::thread::sleep(Duration::from_micros(u64::from(jitter.subsec_micros() % 20_000)));
        if !moving.go(number % 5, "tracked") {
            return skipped("a_program_moves_many_times");
        }
        if number % 3 == 0 {
            moving.is_alive();
        }
    }
    moving.is_alive();
    assert_eq!(moving.program.finish(), NOTHING_LOST);
}

fn number_in(report: &str, key: &str) -> f64 {
    let value = report.split(' ').find_map(|word| word.strip_prefix(key)).expect("a number");
    value.parse().expect("a number")
}

/// The time from the stop of a program of 1 GiB, which writes 1 % of its pages a second, to the first instruction of the moved
/// one. Nobody is asked in between.
#[test]
#[ignore = "measures: cargo test -p stillwire-process --release --test it -- --ignored --nocapture blackout"]
fn blackout() {
    let mib = std::env::var("STILLWIRE_TEST_MIB").unwrap_or("1024".to_owned());
    let writes = mib.parse::<u64>().expect("a number") * 256 / 100;
    let mut moving = Moving::start("moving", &[&mib, &writes.to_string()]);
    let mut all = Vec::new();
    for number in 0..10 {
        let socket: &Path = &moving.folder.path().join(format!("blackout-{number}"));
        let mut fresh = start(Command::new(&moving.executable).env("STILLWIRE_PRELOAD_RECEIVE", socket));
        assert_eq!(fresh.answer(), "listening");
        let began = Instant::now();
        moving.program.send(&format!("move {} 4 tracked go", socket.display()));
        let report = moving.program.answer();
        let took = began.elapsed();
        assert!(report.starts_with("held "), "{report}");
        let ready = fresh.answer();
        let answer = fresh.answer();
        let restored_ns: f64 = answer.strip_prefix("restored ").expect("restored").parse().expect("a time");
        let stopped_ns: f64 = report.split(' ').nth(1).expect("a time").parse().expect("a time");
        let blackout_ms = (restored_ns - stopped_ns) / 1e6;
        let since = |word: usize| {
            let at: f64 = ready.split(' ').nth(word).expect("a time").parse().expect("a time");
            (at - stopped_ns) / 1e6
        };
        let (received_ms, ready_ms) = (since(2), since(3));
        println!(
            "{blackout_ms:.2} ms (received {received_ms:.2}, ready {ready_ms:.2}) after {took:.2?}; {report}"
        );
        all.push((blackout_ms, number_in(&report, "bytes=")));
        std::mem::replace(&mut moving.program, fresh).kill();
        moving.is_alive();
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    println!("median of 10: {:.2} ms, {:.1} MiB in the stop", all[5].0, all[5].1 / 1048576.0);
    assert_eq!(moving.program.finish(), NOTHING_LOST);
}
