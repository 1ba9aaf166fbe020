//! The bench of real jobs' checkpoints, which starts the launcher.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::support::{children_of, descendants, dev, done, launcher, library, runs, signal, wait_until};

/// The bench, with the launcher beside it and the provider.
fn bench(arguments: &[&str]) -> Command {
    launcher();
    let mut command = dev(&["bench", "parity", "--job"]);
    command.args(arguments).env("STILLWIRE_PROVIDER", library());
    command
}

#[test]
fn a_launcher_that_is_missing_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let nowhere = folder.path().join("no-launcher");
    let mut command = bench(&["--nodes", "2", "--quick"]);
    let missing = done(command.env("STILLWIRE_BIN", &nowhere));
    assert_eq!(missing.code, Some(1), "{missing:?}");
    let path = nowhere.display().to_string();
    missing.says(&[&path, "cargo build --release --package stillwire", "name it in STILLWIRE_BIN"]);
    // A program in a folder of its own has no launcher beside it.
    let alone = folder.path().join("stillwire-dev");
    std::fs::copy(crate::support::DEV, &alone).expect("a file");
    let options =
        ["bench", "parity", "--job", "--nodes", "2", "--mib", "1", "--runs", "1", "--json", "--folder"];
    let mut command = Command::new(&alone);
    command.args(options).arg(folder.path()).env_remove("STILLWIRE_BIN");
    done(&mut command).says(&[&folder.path().join("stillwire").display().to_string()]);
    // It takes the one that is named.
    let measured = done(command.env("STILLWIRE_BIN", launcher()).env("STILLWIRE_PROVIDER", library()));
    assert_eq!(measured.code, Some(0), "{measured:?}");
    assert_eq!(measured.json()["rows"].as_array().map(Vec::len), Some(2), "{measured:?}");
}

#[test]
fn checkpoints_of_jobs_are_measured_from_the_order_to_the_commit() {
    let name = "checkpoints_of_jobs_are_measured_from_the_order_to_the_commit";
    if Command::new("cc").arg("--version").output().is_err() {
        return crate::skipped::skipped(name, "no compiler `cc`");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("job.svg");
    let place = folder.path().display().to_string();
    let drawn = svg.display().to_string();
    let limits = ["--link", "20MB/s", "--disk", "40MB/s"];
    let mut bench = bench(&["--nodes", "2,3", "--mib", "4", "--runs", "1", "--json"]);
    bench.args(limits).args(["--folder", &place, "--svg", &drawn]);
    let measured = done(&mut bench);
    assert_eq!(measured.code, Some(0), "{measured:?}");
    let report = measured.json();
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "two numbers of nodes, the first checkpoint and the next one");
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {row}"));
        let times = ["pause_s", "written_s", "protected_s", "committed_s"].map(number);
        assert!(times.is_sorted() && times[0] > 0.0 && times[1] < times[2], "{row}");
        assert!(row["checkpoint"] == "first" || row["checkpoint"] == "next", "{row}");
        assert!(row["machine_limited"].is_boolean() && row["scheme"] == "xor", "{row}");
        // All of its memory, and the rest of a process's state.
        let memory = f64::from(4 << 20);
        assert!((1.0..1.5).contains(&(number("image_bytes") / memory)), "{row}");
        assert!((0.9..1.5).contains(&(number("sent_bytes") / memory)), "{row}");
        // Below the limits: the amount that a burst lets through at once is a few percent of that.
        assert!(number("seconds") > 0.9 * number("sent_bytes") / 20e6, "{row}");
        let through_disk = number("read_bytes") + number("written_bytes");
        assert!(number("seconds") > 0.9 * through_disk / 40e6, "{row}");
        // So do the ranks.
        assert!(times[1] > 0.9 * number("image_bytes") / 40e6, "{row}");
        assert!(number("cores_used") > 0.0 && number("link_alone_s") > 0.0 && number("disk_alone_s") > 0.0);
    }
    // The next one's changes lie beside the data from before it.
    let read = |row: usize| rows[row]["read_bytes"].as_u64().expect("a number");
    assert!(read(1) > read(0) * 3 / 2 && read(3) > read(2) * 3 / 2, "{report}");
    let drawn = std::fs::read_to_string(svg).expect("a chart");
    assert!(drawn.starts_with("<svg ") && drawn.contains("committed") && drawn.contains("sum of both"));
    // Nothing is left of the jobs.
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn every_shape_that_is_named_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let mut bench = bench(&["--nodes", "3", "--mib", "1", "--runs", "1"]);
    bench.args(["--shape", "ring,fan-in", "--folder", &place, "--json"]);
    let measured = done(&mut bench);
    assert_eq!(measured.code, Some(0), "{measured:?}");
    let report = measured.json();
    let shapes: Vec<&str> =
        report["rows"].as_array().expect("rows").iter().filter_map(|row| row["shape"].as_str()).collect();
    assert_eq!(shapes, ["ring", "ring", "fan-in", "fan-in"], "{report}");
}

#[test]
fn encrypted_images_are_measured_beside_plain_ones() {
    if Command::new("cc").arg("--version").output().is_err() {
        return crate::skipped::skipped(
            "encrypted_images_are_measured_beside_plain_ones",
            "no compiler `cc`",
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let mut bench = bench(&["--encrypt", "--nodes", "2", "--mib", "64"]);
    bench.args(["--runs", "1", "--folder", &place, "--json"]);
    let report = done(&mut bench).json();
    let rows = report["rows"].as_array().expect("rows");
    let encrypted: Vec<Option<bool>> = rows.iter().map(|row| row["encrypted"].as_bool()).collect();
    assert_eq!(encrypted, [Some(false), Some(false), Some(true), Some(true)], "{report}");
    let bytes = |row: usize| rows[row]["image_bytes"].as_u64().expect("a number");
    // A tag of 16 bytes for each page; how many pages there are besides the memory differs a little.
    assert!(bytes(2) > bytes(0) + bytes(0) / 4096 * 8, "{report}");
}

/// A bench whose job runs, in a folder of its own; and the job's launcher.
fn measuring(folder: &Path) -> (Child, u32) {
    let mut bench = bench(&["--nodes", "2", "--mib", "1", "--runs", "1000"]);
    bench.arg("--folder").arg(folder);
    // As a shell at a terminal starts it.
    let bench = bench.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
    let bench = bench.spawn().expect("the executable starts");
    let mut launchers = Vec::new();
    wait_until("a job that has its directories", || {
        launchers = children_of(bench.id());
        let mut jobs = std::fs::read_dir(folder).expect("a folder").flatten();
        launchers.len() == 1 && jobs.any(|job| job.path().join("disks").exists())
    });
    (bench, launchers[0])
}

/// Receivers of a signal.
enum To {
    /// All that belong to a terminal's foreground.
    Terminal,
    Bench,
    Launcher,
}

#[test]
fn a_bench_that_is_stopped_or_fails_leaves_nothing() {
    for (to, name, code, words) in [
        (To::Terminal, "INT", 130, "it was stopped"),
        (To::Bench, "TERM", 130, "it was stopped"),
        (To::Launcher, "KILL", 1, "a job could not be measured"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (bench, launcher) = measuring(folder.path());
        let below = [descendants(launcher), vec![launcher]].concat();
        match to {
            To::Terminal => {
                let group = Pid::from_raw(i32::try_from(bench.id()).expect("a small number"));
                killpg(group, Signal::SIGINT).expect("it is there");
            }
            To::Bench => signal(bench.id(), name),
            To::Launcher => signal(launcher, name),
        }
        let ended = bench.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{name}: {said}");
        assert!(said.contains(words), "{name}: {said}");
        let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().collect();
        assert!(left.is_empty(), "{name}: {left:?}");
        wait_until("its processes are gone", || below.iter().all(|pid| !runs(*pid)));
    }
}
