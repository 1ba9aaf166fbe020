//! Each bench runs, in a size that measures nothing, and its report has the keys that others rely on.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

fn report(arguments: &str) -> Value {
    let output =
        Command::new(BENCH).args(arguments.split(' ')).arg("--json").output().expect("the bench starts");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    let report: Value = serde_json::from_str(&text).expect("an object");
    assert_eq!(report["bench"], arguments.split(' ').next().unwrap_or_default());
    assert!(report["machine"]["cpu"].is_string());
    report
}

fn has_numbers(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row[key].is_number(), "{key} in {row}");
    }
}

#[test]
fn latency() {
    let report = report("latency --pairs 1 --runs 1 --rounds 50");
    has_numbers(&report, &["half_rtt_us", "bare_half_rtt_us", "ratio"]);
}

/// The quick form says that its figures are rough, as text and as JSON, and ends in time.
#[test]
fn quick_benches_end_soon_and_say_that_they_are_rough() {
    for bench in
        ["latency", "rate", "bulk", "loss", "protocol", "store", "parity", "parity --nodes 2", "freeze"]
    {
        let began = Instant::now();
        let words = format!("{bench} --quick");
        let json = report(&words);
        assert_eq!(json["quick"], true, "{json}");
        assert!(began.elapsed() < Duration::from_secs(60), "{bench}: {:?}", began.elapsed());
    }
    let output = Command::new(BENCH).args(["protocol", "--quick"]).output().expect("the bench starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("these figures are rough"), "{text}");
    assert!(report("protocol --runs 1")["quick"].is_null());
}

#[test]
fn bulk() {
    let report = report("bulk --runs 1 --mib 1");
    has_numbers(&report, &["gbytes_per_s", "tcp_gbytes_per_s", "ratio"]);
}

#[test]
fn protocol() {
    assert_eq!(report("protocol --runs 1")["rows"].as_array().map(Vec::len), Some(3));
}

#[test]
fn parity() {
    let report = report("parity --runs 2 --mib 1");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 9);
    for row in rows {
        has_numbers(row, &["bytes", "gbytes_per_s", "memcpy_gbytes_per_s", "ratio_to_memcpy"]);
        assert!(row["scheme"].is_string() && row["shape"].is_string(), "{row}");
        assert!(row["nodes"].is_number() == (row["shape"] == "encode"), "{row}");
        for key in ["link_gbytes_per_s", "disk_gbytes_per_s", "isal_gbytes_per_s"] {
            assert!(row.get(key).is_some_and(Value::is_null), "{key} in {row}");
        }
    }
}

/// Fields of a row of an encoding from end to end.
const ENCODING: [&str; 20] = [
    "nodes",
    "rails",
    "busiest_rail",
    "bytes",
    "dirty_percent",
    "seconds",
    "gbytes_per_s",
    "memcpy_gbytes_per_s",
    "ratio_to_memcpy",
    "link_gbytes_per_s",
    "disk_gbytes_per_s",
    "ratio_to_slowest",
    "network_s",
    "disk_s",
    "arithmetic_s",
    "formula_sum_s",
    "formula_max_s",
    "sent_bytes",
    "cores_used",
    "machine_used",
];

#[test]
fn parity_from_end_to_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("parity.svg");
    let limits = "--link 100MB/s --disk 200MB/s";
    let report = report(&format!(
        "parity --nodes 2,3 --mib 2 --dirty 10,100,whole --runs 1 {limits} --folder {} --svg {}",
        folder.path().display(),
        svg.display()
    ));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 6);
    for row in rows {
        has_numbers(row, &ENCODING);
        assert!(row["scheme"] == "xor" && row["shape"].is_string() && row["machine_limited"].is_boolean());
        // Measured, and below the limits: a burst permits a few percent of the moved bytes at once.
        for (key, limit) in [("link", 0.1), ("disk", 0.2)] {
            let found = row[format!("{key}_gbytes_per_s")].as_f64().expect("a number");
            assert!(found > 0.0 && found < limit * 1.3 && found != limit, "{key} {found}");
            assert_eq!(row[format!("{key}_limit_gbytes_per_s")], limit);
        }
        let sent = row["sent_bytes"].as_u64().expect("a number");
        let changed = row["dirty_percent"].as_f64().expect("a number") / 100.0 * f64::from(2 << 20);
        assert!(f64::from(u32::try_from(sent).expect("few bytes")) < changed * 1.5, "{row}");
    }
    // Of a delta of all pages, and of its predecessor, each page is read: a whole image has no predecessor.
    for of_nodes in rows.chunks(3) {
        let [delta, whole] = [1, 2].map(|row| of_nodes[row]["read_bytes"].as_u64().expect("a number"));
        assert!(delta > 2 * whole - whole / 4, "{of_nodes:?}");
        assert!(of_nodes[1]["whole"] == false && of_nodes[2]["whole"] == true, "{of_nodes:?}");
    }
    let drawn = std::fs::read_to_string(svg).expect("a chart");
    assert!(drawn.starts_with("<svg ") && drawn.contains("SCore: sum") && drawn.contains("arithmetic"));
    // Nothing is left of the nodes.
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

/// Encodes once over one rail and over two. Returns the share of the busiest of two.
fn busiest_of_two_rails() -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display();
    let options = format!("parity --nodes 3 --mib 2 --runs 1 --rails 1,2 --link 100MB/s --folder {place}");
    let report = report(&options);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for (row, rails) in rows.iter().zip([1, 2]) {
        has_numbers(row, &ENCODING);
        assert_eq!(row["rails"], rails);
        assert_eq!(row["link_limit_gbytes_per_s"], 0.1 * f64::from(rails));
    }
    let busiest = |row: &Value| row["busiest_rail"].as_f64().expect("a number");
    assert!((busiest(&rows[0]) - 1.0).abs() < 1e-9, "{}", rows[0]);
    let share = busiest(&rows[1]);
    assert!((0.5..1.0).contains(&share), "both carry some: {}", rows[1]);
    // An uneven share is marked as not to be counted.
    assert!(share < 0.56 || rows[1]["machine_limited"] == true, "{}", rows[1]);
    share
}

// Measured by the frames over each rail. On a busy machine frames of one rail are missed while their receiver is off its processor. Then that rail is
// passed over for 10 ms (R24), of an encoding that takes some 40. So not every encoding has even shares, but where rails take turns one of a few has.
#[test]
fn parity_over_several_rails() {
    const ENCODINGS: usize = 8;
    let mut shares = Vec::new();
    while shares.iter().all(|share| *share >= 0.65) {
        assert!(shares.len() < ENCODINGS, "of two rails, the busiest carried {shares:?}");
        shares.push(busiest_of_two_rails());
    }
}

/// Takes the group figures of `all`, in their small form.
#[test]
fn figures_that_are_kept_can_be_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut charts = Vec::new();
    for (name, mut options) in bench::parity::group_figures(true) {
        options.folder = folder.path().to_owned();
        let report = bench::parity::run_group(&options).expect("a report");
        assert!(report.rows.len() > usize::from(name != "parity-lengths"), "{name}");
        charts.push((name, report.svg()));
    }
    for (name, mut options) in bench::parity::program_figures(true) {
        options.group.folder = folder.path().to_owned();
        let report = bench::parity::run_programs(&options).expect("a report");
        assert!(report.is_right && report.totals.len() == 2, "{name}");
        charts.push((name, report.svg()));
    }
    assert_eq!(
        charts.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["parity-nodes", "parity-lengths", "parity-dirty", "parity-programs", "parity-programs-rs"]
    );
    assert!(charts.iter().all(|(_, svg)| svg.contains("<circle")));
}

#[test]
fn parity_of_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("parity.svg");
    let report = report(&format!(
        "parity --nodes 4 --scheme rs:2+2 --program mat,lu --checkpoints 2 --mib 2 --folder {} --svg {}",
        folder.path().display(),
        svg.display()
    ));
    assert_eq!(report["is_right"], true);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8, "two programs, two checkpoints, in two ways");
    for row in rows {
        has_numbers(row, &ENCODING);
        has_numbers(row, &["checkpoint", "image_bytes", "write_s"]);
        let incremental = row["way"] == "incremental";
        assert!(row["collect_s"].is_number() == incremental && row["scheme"] == "rs:2+2", "{row}");
    }
    // The programs write the same bytes on every machine.
    for (program, least, most) in [("mat", 95.0, 100.0), ("lu", 10.0, 60.0)] {
        let totals = report["totals"].as_array().expect("totals");
        let total = totals.iter().find(|total| total["program"] == program).expect("a total");
        for key in ["fewer_image_bytes_percent", "fewer_sent_bytes_percent"] {
            let fewer = total[key].as_f64().expect("a number");
            assert!((least..most).contains(&fewer), "{key} {total}");
        }
        has_numbers(total, &["less_encode_time_percent", "less_time_percent"]);
        assert!(total["repair_s"].as_f64() > Some(0.0), "{total}");
    }
    assert!(std::fs::read_to_string(svg).is_ok_and(|text| text.starts_with("<svg")));
}

#[test]
fn a_library_that_is_not_there_or_another_one_is_named() {
    for (library, what) in
        [("no-such-library.so", "no-such-library.so"), ("libc.so.6", "it has no ec_init_tables")]
    {
        let output =
            Command::new(BENCH).args(["parity", "--runs", "1", "--mib", "1", "--isal", library]).output();
        let output = output.expect("the bench starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(what) && said.contains("leave --isal out"),
            "{said}"
        );
    }
}

#[test]
fn rate() {
    let report = report("rate --pairs 1 --runs 1 --messages 5000");
    has_numbers(&report, &["messages_per_s", "bare_messages_per_s", "ratio"]);
}

#[test]
fn loss() {
    let report = report("loss --runs 1 --ppm 0,50000 --losses 100 --mib 8");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    has_numbers(&rows[0], &["loss_percent", "goodput_ratio"]);
    has_numbers(&rows[1], &["loss_percent", "goodput_ratio", "recovery_p50_us", "recovery_p99_us", "losses"]);
    // Injected and found: the wrapper loses 5 % of the frames of 1,000 round trips.
    assert!(rows[1]["losses"].as_u64().is_some_and(|losses| losses > 20), "{}", rows[1]);
    assert_eq!(rows[0]["losses"], 0);
}

#[test]
fn freeze() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("freeze.svg");
    let arguments = format!("freeze --samples 40 --links 1,12 --kib 0,64 --svg {}", svg.display());
    let report = report(&arguments);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    for row in rows {
        has_numbers(row, &["freeze_us_p50", "freeze_us_p99", "dump_us_p50", "dump_us_p99", "thaw_us_p50"]);
        has_numbers(row, &["thaw_us_p99", "links", "bytes_in_flight", "samples", "hints_us_p50"]);
        let bytes = |key: &str| row[key].as_u64().expect("a number");
        assert!(bytes("bytes_in_flight_counted") >= bytes("bytes_in_flight"), "{row}");
        assert!(bytes("burst_messages") > 0, "{row}");
    }
    assert_eq!([&rows[0]["links"], &rows[3]["links"], &rows[4]["links"]], [1, 12, 1024]);
    assert_eq!(rows[4]["name"], bench::freeze::DUMP_ROW);
    let drawn = std::fs::read_to_string(svg).expect("a chart");
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
}

/// The report of a bench that makes network namespaces; `None`: it cannot here.
fn report_of_namespaces(test: &str, arguments: &str) -> Option<Value> {
    let output =
        Command::new(BENCH).args(arguments.split(' ')).arg("--json").output().expect("the bench starts");
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    if reported.contains("no network namespaces") || reported.contains("AF_XDP needs CAP_") {
        crate::skipped::skipped(test, &reported);
        return None;
    }
    assert!(output.status.success(), "{arguments}: {reported}");
    Some(serde_json::from_slice(&output.stdout).expect("one object"))
}

/// The paths that are measured in turns have frames of their own: each is there, and none is another one's figure.
#[test]
fn over_af_xdp() {
    let test = "over_af_xdp";
    for attach in ["native", "generic"] {
        let arguments = format!("latency --nic xdp --attach {attach} --pairs 1 --runs 2 --rounds 200");
        let Some(report) = report_of_namespaces(test, &arguments) else { return };
        has_numbers(
            &report,
            &["half_rtt_us", "bare_half_rtt_us", "udp_half_rtt_us", "ratio", "ratio_to_udp"],
        );
        assert_eq!(report["device"], format!("veth, {attach} program, copying"));
        assert_eq!([&report["ratio_max"], &report["ratio_to_udp_max"]], [1.25, 0.6]);
        let paths = ["half_rtt_us", "bare_half_rtt_us", "udp_half_rtt_us"].map(|key| report[key].to_string());
        assert_eq!(BTreeSet::from(paths).len(), 3, "{report}");
    }
    let arguments = "rate --nic xdp --pairs 1 --runs 1 --messages 5000";
    let Some(report) = report_of_namespaces(test, arguments) else { return };
    has_numbers(&report, &["messages_per_s", "bare_messages_per_s", "ratio", "ratio_to_bare_udp"]);
    for mtu in ["1500", "9000"] {
        let arguments = format!("bulk --nic xdp --runs 1 --mib 1 --mtu {mtu}");
        let Some(report) = report_of_namespaces(test, &arguments) else { return };
        has_numbers(&report["rows"][0], &["gbytes_per_s", "udp_gbytes_per_s", "bare_gbytes_per_s"]);
        has_numbers(&report["rows"][0], &["ratio_to_udp", "ratio_to_bare", "ratio"]);
    }
    let arguments = "freeze --nic xdp --samples 20 --links 1 --kib 0";
    let Some(report) = report_of_namespaces(test, arguments) else { return };
    has_numbers(&report["rows"][0], &["freeze_us_p50", "dump_us_p50", "thaw_us_p50"]);
}

#[test]
fn without_an_rdma_device_it_is_said() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        return crate::skipped::skipped("without_an_rdma_device_it_is_said", "a system without RDMA devices");
    }
    for bench in ["latency", "rate", "bulk", "freeze"] {
        let output = Command::new(BENCH).args([bench, "--nic", "verbs"]).output().expect("the bench starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("/sys/class/infiniband has none"), "{said}");
    }
}

#[test]
fn moves() {
    let Some(report) = report_of_namespaces("moves", "moves --moves 1") else { return };
    let rows = report["rows"].as_array().expect("rows");
    let pairs: BTreeSet<_> =
        rows.iter().map(|row| (row["from"].to_string(), row["to"].to_string())).collect();
    assert_eq!((rows.len(), pairs.len()), (9, 9), "{report}");
    for row in rows {
        assert_eq!(row["samples"], 2, "{row}");
        for time in ["freeze_us", "dump_us", "thaw_us", "close_us", "open_us"] {
            has_numbers(&row[time], &["p50", "p99"]);
        }
    }
    // Nine moves of two ports that have sent nine messages each before every one.
    assert_eq!(report["messages"], 162);
}

#[test]
fn sizes_that_measure_nothing_are_refused() {
    for (arguments, words) in [
        ("latency --runs 0", "'--runs <RUNS>': expected a whole number from 1 to"),
        ("latency --pairs 0", "'--pairs <PAIRS>': expected a whole number from 1 to"),
        ("latency --rounds x", "'--rounds <ROUNDS>': expected a whole number from 1 to"),
        ("rate --messages 0", "'--messages <MESSAGES>': expected a whole number from 1 to"),
        ("bulk --mib 0", "'--mib <MIB>': expected a whole number from 1 to 1024"),
        ("bulk --mib 4,0", "invalid value '0' for '--mib <MIB>'"),
        ("bulk --runs 0", "--runs"),
        ("loss --ppm 99999999", "'--ppm <PPM>': expected a whole number from 0 to 1000000"),
        ("loss --losses 0", "--losses"),
        ("loss --mib 0", "--mib"),
        ("protocol --runs 0", "'--runs <RUNS>': expected a whole number from 1 to"),
        ("checkpointable --rounds 0", "--rounds"),
        ("freeze --samples 0", "--samples"),
        ("freeze --links 0", "'--links <LINKS>': expected a whole number from 1 to"),
        ("freeze --quick --links 4", "cannot be used with"),
        ("freeze --quick --kib 0", "cannot be used with"),
        ("freeze --quick --samples 9", "cannot be used with"),
        ("freeze --quick --no-dump-row", "cannot be used with"),
        ("mpi --quick --repetitions 3", "cannot be used with"),
        ("latency --quick --pairs 3", "cannot be used with"),
        ("pause --quick --mib 64", "cannot be used with"),
        ("parity --quick --runs 2", "cannot be used with"),
        ("freeze --mpi --quick --seconds 9", "cannot be used with"),
        ("parity --nodes 2 --budget NaN", "'--budget <BUDGET>': expected a number above 0 and at most 64"),
        ("parity --nodes 2 --budget -1", "'--budget <BUDGET>': expected a number above 0"),
        ("parity --nodes 2 --budget 0", "'--budget <BUDGET>': expected a number above 0"),
        (
            "parity --nodes 2 --dirty 0",
            "'--dirty <DIRTY>': expected `whole`, or a number above 0 and at most 100",
        ),
        ("parity --nodes 2 --dirty 10,-5", "'--dirty <DIRTY>': expected `whole`, or a number above 0"),
        ("parity --nodes 2 --dirty 100.5", "'--dirty <DIRTY>': expected `whole`, or a number above 0"),
        ("parity --nodes 2 --dirty nan", "'--dirty <DIRTY>': expected `whole`, or a number above 0"),
        ("parity --nodes 2 --program ft", "`ft` is no program; there are mat and lu"),
        ("parity --nodes 2 --program mat --dirty 5", "cannot be used with"),
        ("mpi --block-ms 0", "expected a whole number from 1 to 10000"),
    ] {
        let output = Command::new(BENCH).args(arguments.split(' ')).output().expect("the bench starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{arguments}: {said}");
    }
}

/// The measurement itself needs two builds, which `./check --long` makes.
#[test]
fn checkpointable_wants_one_program_of_each_build() {
    let output = Command::new(BENCH)
        .args(["checkpointable", "--with", BENCH, "--without", BENCH, "--pairs", "1"])
        .output()
        .expect("the bench starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is not a build without checkpoint support: swap --with and --without"), "{said}");
}

#[test]
fn an_interrupted_bench_leaves_no_process() {
    let mut bench = Command::new(BENCH)
        .args(["freeze", "--samples", "100000", "--links", "8", "--kib", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the bench starts");
    // A bench that takes longer than some seconds prints its progress.
    let began = Instant::now();
    let mut line = String::new();
    BufReader::new(bench.stderr.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("freeze: 1 of 2, 8 links, 0 bytes in flight; "), "{line}");
    assert!(line.ends_with(" s so far, no estimate yet\n"), "{line}");
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    let children = children_of(bench.id());
    assert!(children.len() > 8, "the port and its senders: {children:?}");
    let id = Pid::from_raw(i32::try_from(bench.id()).expect("an id"));
    // As Ctrl-C does, but also where this runs in the background of a shell, which has its jobs ignore SIGINT.
    kill(id, Signal::SIGTERM).expect("it runs");
    bench.wait().expect("it ends");
    let until = Instant::now() + Duration::from_secs(10);
    while children.iter().any(|id| is_alive(*id)) {
        assert!(Instant::now() < until, "measuring processes are still there after 10 s: {children:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).expect("a running process");
    children.split_whitespace().map(|id| id.parse().expect("an id")).collect()
}

fn is_alive(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn pause() {
    let report = report(
        "pause --samples 2 --mib 48,1000000 --ppm 10000,1000000 --turns 1 --pairs 3 --sequence-mib 48 --interval 1",
    );
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for row in rows {
        has_numbers(
            row,
            &[
                "resident_bytes",
                "dirty_fraction",
                "pause_ms_p50",
                "pause_ms_p99",
                "stop_us",
                "freeze_us",
                "thaw_us",
                "restart_ms",
                "bare_fork_ms",
            ],
        );
        assert!(row["pages"] == "4k" || row["pages"] == "thp");
        assert!(row["freeze_us"].as_f64() > Some(0.0) && row["thaw_us"].as_f64() > Some(0.0), "{row}");
        assert!(row.get("criu_pause_ms").is_some_and(Value::is_null), "{row}");
    }
    assert_eq!(report["overhead"].as_array().map(Vec::len), Some(2));
    // A process of a terabyte has no room anywhere.
    assert_eq!(report["skipped"].as_array().map(Vec::len), Some(2));
    let sequences = report["sequences"].as_array().expect("sequences");
    assert_eq!(sequences.len(), 4);
    for sequence in sequences {
        has_numbers(sequence, &["time_ratio", "time_ratio_low", "time_ratio_high", "interval_s"]);
        assert_eq!(sequence["kinds"].as_array().map(Vec::len), Some(3), "{sequence}");
        assert!(sequence["kinds"].as_array().is_some_and(|kinds| kinds[0] == "whole"), "{sequence}");
    }
}

#[test]
fn delta() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("delta.svg");
    let report = report(&format!("delta --quick --svg {}", svg.display()));
    for row in report["rates"].as_array().expect("rates") {
        has_numbers(row, &["block_bytes", "ratio_to_memcpy"]);
        has_numbers(&row["memcpy_gbytes_per_s"], &["median"]);
    }
    let series = report["series"].as_array().expect("series");
    assert_eq!(series.len(), 14, "two programs in seven ways");
    for row in series {
        has_numbers(
            row,
            &["content_bytes", "fewer_bytes_percent", "less_time_percent", "files", "restore_ms"],
        );
        assert_eq!(
            (&row["is_right"], row["stored_bytes"].as_array().map(Vec::len)),
            (&Value::Bool(true), Some(4))
        );
    }
    let fewer = |program: &str, way: &str| {
        let row = series.iter().find(|row| row["program"] == program && row["way"] == way);
        row.and_then(|row| row["fewer_bytes_percent"].as_f64()).expect("a number")
    };
    // The programs write the same bytes on every machine.
    assert!(fewer("MAT", "incremental") > 95.0 && fewer("MAT", "differential") < fewer("MAT", "adaptive"));
    assert!((10.0..60.0).contains(&fewer("LU", "incremental")));
    assert!(std::fs::read_to_string(svg).is_ok_and(|text| text.starts_with("<svg")));
}

#[test]
fn store() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("store.svg");
    let report = report(&format!("store --runs 1 --mib 2,4 --svg {}", svg.display()));
    assert_eq!(report["codecs"].as_array().map(Vec::len), Some(20));
    for row in report["codecs"].as_array().expect("codecs") {
        has_numbers(row, &["ratio", "pack_gbytes_per_s", "unpack_gbytes_per_s", "cores_used"]);
    }
    let sets = report["sets"].as_array().expect("sets");
    assert_eq!(sets.len(), 6);
    for row in sets {
        has_numbers(row, &["content_bytes", "stored_bytes", "restore_ms", "block_us", "cores_used"]);
        assert_eq!(row["is_right"], true);
    }
    assert!(std::fs::read_to_string(svg).is_ok_and(|text| text.starts_with("<svg")));
}
