//! `bench mpi` and `bench freeze --mpi` with a real MPICH. `tests/mpi/run` sets one up, builds the provider, and names their folders.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Folder of an MPICH with mpicc and mpiexec.
const MPICH: &str = "STILLWIRE_TEST_MPICH";
/// Folder of the provider's library.
const PROVIDER: &str = "STILLWIRE_TEST_PROVIDER";

/// A bench with these arguments; nothing where there is no MPICH.
fn bench(test: &str, arguments: &str) -> Option<Command> {
    let (Some(mpich), Some(provider)) = (std::env::var_os(MPICH), std::env::var_os(PROVIDER)) else {
        crate::skipped::skipped(test, "no MPICH and provider are named; tests/mpi/run sets them up");
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    let mut arguments = arguments.split(' ');
    command.args(arguments.next()).args(["--mpich".into(), mpich, "--provider".into(), provider]);
    command.args(arguments);
    Some(command)
}

#[test]
fn ours_and_a_peer_are_measured_and_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("mpi.svg");
    let test = "ours_and_a_peer_are_measured_and_compared";
    let arguments = "mpi --quick --stacks stillwire-shm,ofi-tcp --bytes 0,8,65536 --json";
    let Some(mut command) = bench(test, arguments) else { return };
    let output = command.arg("--svg").arg(&svg).output().expect("the bench starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (report["bench"].as_str(), report["left_out"].as_array().map(Vec::len)),
        (Some("mpi"), Some(0))
    );
    let rows = report["rows"].as_array().expect("rows");
    let places: Vec<(&str, u64)> = rows
        .iter()
        .map(|row| (row["stack"].as_str().expect("a name"), row["bytes"].as_u64().expect("a length")))
        .collect();
    let expected: Vec<(&str, u64)> =
        [0, 8, 65536].into_iter().flat_map(|bytes| [("stillwire-shm", bytes), ("ofi-tcp", bytes)]).collect();
    assert_eq!(places, expected);
    for row in rows {
        for figure in ["half_rtt_us", "messages_per_s"] {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure} in {row}");
        }
        assert_eq!(row["gbytes_per_s"].as_f64().map(|speed| speed > 0.0), Some(row["bytes"] != 0), "{row}");
        assert_eq!(row["ratio_to_tcp"].is_number(), row["stack"] == "stillwire-shm", "{row}");
    }
    // Four operations of two lengths under two stacks.
    assert_eq!(report["operations"].as_array().map(Vec::len), Some(16));
    assert!(std::fs::read_to_string(svg).expect("a chart").ends_with("</svg>\n"));
}

#[test]
fn a_stack_that_takes_too_long_is_ended_and_named() {
    let test = "a_stack_that_takes_too_long_is_ended_and_named";
    // A block of 10 s, in a run of 1 s at most.
    let arguments = "mpi --stacks ofi-tcp --bytes 8 --repetitions 1 --block-ms 10000 --run-seconds-max 1";
    let Some(mut command) = bench(test, arguments) else { return };
    let output = command.output().expect("the bench starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no stack could be measured: ofi-tcp: "), "{said}");
    assert!(said.contains("waited 1 s for mpiexec to"), "{said}");
}

#[test]
fn an_interrupted_bench_leaves_no_rank() {
    let test = "an_interrupted_bench_leaves_no_rank";
    let arguments = "mpi --stacks stillwire-shm --bytes 8 --repetitions 1 --block-ms 10000";
    let Some(mut command) = bench(test, arguments) else { return };
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut bench =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the bench starts");
        let mut lines = BufReader::new(bench.stderr.take().expect("a pipe")).lines();
        let measures = |line: &String| line.contains("stillwire-shm, repetition 1");
        assert!(lines.any(|line| measures(&line.expect("text"))), "it never came to measure");
        let until = Instant::now() + Duration::from_secs(30);
        let mut below = descendants(bench.id());
        // mpiexec, its proxy, two ranks.
        while below.len() < 4 {
            assert!(Instant::now() < until, "no ranks after 30 s: {below:?}");
            std::thread::sleep(Duration::from_millis(10));
            below = descendants(bench.id());
        }
        kill(Pid::from_raw(i32::try_from(bench.id()).expect("an id")), signal).expect("it runs");
        bench.wait().expect("it ends");
        while below.iter().any(|id| is_alive(*id)) {
            assert!(Instant::now() < until, "processes are still there after {signal}: {below:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn ports_are_frozen_under_a_program_that_does_not_notice() {
    let test = "ports_are_frozen_under_a_program_that_does_not_notice";
    let arguments = "freeze --mpi --seconds 3 --pairs 1 --every-ms 3 --handover --json";
    let Some(mut command) = bench(test, arguments) else { return };
    let output = command.output().expect("the bench starts");
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{why}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&report["bench"], &report["verified"]), (&"freeze_mpi".into(), &true.into()));
    let ranks = report["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2);
    for row in ranks.iter().chain([&report]) {
        let above_zero = ["freezes", "dumps_compared", "handovers", "frames_away", "frames_back"];
        for key in above_zero.iter().chain(&["freeze_us_p50", "dump_us_p99", "thaw_us_p999"]) {
            assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {row}");
        }
        assert_eq!((row["refused"].as_u64(), row["mismatches"].as_u64()), (Some(0), Some(0)), "{row}");
    }
    assert!(report["slowdown"].as_f64().is_some_and(|slowdown| slowdown > 0.0), "{report}");
}

/// A port that stands still for longer than a moment announces it to its peers.
#[test]
fn ports_stand_still_for_as_long_as_a_process_is_saved() {
    let test = "ports_stand_still_for_as_long_as_a_process_is_saved";
    let arguments = "freeze --mpi --seconds 3 --pairs 1 --every-ms 20 --pause-ms 10 --rails udp --json";
    let Some(mut command) = bench(test, arguments) else { return };
    let output = command.output().expect("the bench starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(report["freezes"].as_u64().is_some_and(|freezes| freezes > 10), "{report}");
}

#[test]
fn a_program_that_is_wrong_under_freezes_alone_is_reported_with_an_exit_code() {
    let test = "a_program_that_is_wrong_under_freezes_alone_is_reported_with_an_exit_code";
    for (program, code, words) in [
        ("exit 7", 1, "the program does not run without freezes either: mpiexec ended with"),
        ("exit ${STILLWIRE_PERIODIC_FREEZE_MS:-0}", 3, "WRONG: with freezes: mpiexec ended with"),
        (
            "echo right ${STILLWIRE_PERIODIC_FREEZE_MS:+not}",
            3,
            "with freezes: the program did not print 'right\n",
        ),
        // No MPI program at all.
        ("echo right", 3, "no port of rank 0 was frozen"),
    ] {
        let arguments = "freeze --mpi --seconds 1 --pairs 1 --ranks 1";
        let Some(mut command) = bench(test, arguments) else { return };
        if program.contains("echo") {
            command.args(["--expect", "right\n"]);
        }
        // MPICH's launcher does not always bear a process that ends before it has been looked at.
        let program = format!("sleep 0.3; {program}");
        let output = command.args(["--", "sh", "-c", &program]).output().expect("the bench starts");
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(code), "{program}: {said}");
        assert!(said.contains(words), "{program}: {said}");
    }
}

/// All processes below one.
fn descendants(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace().map(|id| id.parse().expect("an id"));
    children.flat_map(|id| std::iter::once(id).chain(descendants(id))).collect()
}

fn is_alive(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
