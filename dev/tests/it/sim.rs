//! `stillwire-dev sim` as a person uses it: histories that repeat, scenarios in files, reductions, and the errors of bad input.

use std::fs;
use std::process::Stdio;

use crate::support::{Done, dev, done, refused};
use serde_json::Value;

fn sim(arguments: &[&str]) -> Done {
    done(&mut dev(&[&["sim"], arguments].concat()))
}

#[test]
fn a_seed_prints_the_same_digest_every_time_and_in_a_swarm() {
    let digest = |arguments: &[&str]| sim(arguments).json()["digest"].as_str().map(str::to_owned);
    let run = digest(&["run", "--seed", "3", "--json"]);
    assert!(run.is_some());
    assert_eq!(run, digest(&["run", "--seed", "3", "--json", "--trace"]));
    assert_eq!(run, digest(&["swarm", "--histories", "1", "--first-seed", "3", "--json"]));
    assert_ne!(run, digest(&["run", "--seed", "4", "--json"]));
    let text = sim(&["run", "--seed", "3"]);
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    assert!(text.stdout.ends_with(&format!("digest {}\n", run.unwrap_or_default())));
}

#[test]
fn a_swarm_reports_under_the_keys_that_others_rely_on() {
    let report = sim(&["swarm", "--histories", "3", "--first-seed", "7", "--threads", "1", "--json"]).json();
    assert_eq!((&report["histories"], &report["violations"]), (&3.into(), &0.into()), "{report}");
    assert!(report["histories_per_minute"].as_f64().is_some_and(|speed| speed > 0.0), "{report}");
    assert!(report["faults"].is_object(), "{report}");
}

#[test]
fn the_help_of_scenarios_has_every_setting() {
    let help = sim(&["scenario", "--help"]).stdout;
    for setting in ::sim::scenario::SETTINGS {
        let line = format!("\n  {} {}", setting.name, setting.usual);
        assert!(help.contains(&line), "{line}: {help}");
        assert!(setting.meaning.lines().all(|meaning| help.contains(meaning)), "{line}: {help}");
    }
    assert!(
        help.contains("\n  pulls no") && help.contains("\n  mode instant                   ranks are"),
        "{help}"
    );
}

#[test]
fn the_trace_is_in_the_object_only_if_asked_for() {
    let object = |arguments: &[&str]| sim(arguments).json();
    let (with, without) =
        (object(&["run", "--seed", "3", "--json", "--trace"]), object(&["run", "--seed", "3", "--json"]));
    assert!(with["trace"].as_str().is_some_and(|trace| trace.lines().count() > 1000));
    assert_eq!(without["trace"], Value::Null);
    assert!(without["faults"].is_object() && without["violations"].is_array());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut command = dev(&["sim", "run", "--seed", "3"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the executable starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn the_plan_of_a_seed_is_a_scenario_with_the_same_history() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("seed.scenario");
    fs::write(&file, sim(&["run", "--seed", "3", "--plan"]).stdout).expect("a temporary file");
    let run = sim(&["scenario", &file.to_string_lossy(), "--json"]).json();
    assert_eq!(run["as_expected"], true);
    assert_eq!(run["outcomes"][0]["digest"], sim(&["run", "--seed", "3", "--json"]).json()["digest"]);
}

#[test]
fn a_scenario_that_comes_out_otherwise_is_a_wrong_result() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("wrong.scenario");
    fs::write(&file, "expect: lost\nseed 1\nmessages 50\n").expect("a temporary file");
    let run = sim(&["scenario", &file.to_string_lossy()]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(run.stdout.contains("NOT AS EXPECTED"), "{}", run.stdout);
}

#[test]
fn bad_scenarios_are_refused_with_their_line() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("bad.scenario");
    let path = file.to_string_lossy();
    fs::write(&file, "seed 1\n\nat 12 frames: sing\n").expect("a temporary file");
    let refused = sim(&["scenario", &path]);
    assert_eq!(refused.code, Some(1));
    refused.says(&["bad.scenario: line 3: expected", "'crash rank N'", "found 'sing'", "--help"]);
    fs::write(&file, [0xff, 0xfe]).expect("a temporary file");
    sim(&["scenario", &path]).says(&["expected", "65536 bytes", "no text"]);
    fs::write(&file, vec![b'#'; 65_537]).expect("a temporary file");
    sim(&["scenario", &path]).says(&["65536 bytes, found more"]);
    let missing = folder.path().join("none");
    sim(&["scenario", &missing.to_string_lossy()]).says(&["none: No such file"]);
}

#[test]
fn a_failing_history_is_reduced_to_a_scenario_that_bites() {
    const RULE: &str = "duplicate-filter";
    let hunt = sim(&["sabotage", "--rule", RULE, "--histories", "50", "--json"]).json();
    let report = hunt["rules"].as_array().and_then(|reports| reports.first()).expect("a report");
    assert_eq!((&report["rule"], &report["found"]), (&RULE.into(), &true.into()), "{report}");
    assert!(report["after_histories"].as_u64().is_some_and(|after| (1..=50).contains(&after)), "{report}");
    let seed = report["seed"].to_string();
    let shrunk = sim(&["shrink", "--seed", &seed, "--without", RULE, "--runs", "100"]);
    assert_eq!(shrunk.code, Some(0), "{}", shrunk.stderr);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("reduced.scenario");
    fs::write(&file, &shrunk.stdout).expect("a temporary file");
    let run = sim(&["scenario", &file.to_string_lossy(), "--json"]);
    assert_eq!((run.code, run.json()["as_expected"].clone()), (Some(0), Value::Bool(true)));
}

#[test]
fn what_cannot_be_reduced_or_taken_out_is_said() {
    let holds = sim(&["shrink", "--seed", "7"]);
    assert_eq!(holds.code, Some(1));
    holds.says(&["seed 7 breaks no property", "sim swarm"]);
    let unknown = sim(&["shrink", "--seed", "7", "--without", "99-none"]);
    assert_eq!(unknown.code, Some(2));
    unknown.says(&["99-none", "3-higher-epoch-data"]);
}

#[test]
fn messages_of_large_jobs_are_counted() {
    let report = sim(&["scale", "--ranks", "64", "--ranks-per-node", "8", "--json"]).json();
    let rows = report["rows"].as_array().expect("rows");
    let markers: Vec<u64> = rows.iter().filter_map(|row| row["flush"]["markers"].as_u64()).collect();
    assert_eq!(markers, [16 * 15, 32 * 31, 64 * 63]);
    assert!(report["ours_exponent"].as_f64() < report["flush_exponent"].as_f64());
    let text = sim(&["scale", "--ranks", "20"]).stdout;
    assert!(text.contains("messages grow with ranks^") && text.contains("events"), "{text}");
}

#[test]
fn jobs_that_cannot_be_are_refused() {
    let few = sim(&["scale", "--ranks", "3"]);
    assert_eq!(few.code, Some(2));
    few.says(&["expected 16 to 131072 ranks, found 3"]);
    sim(&["scale", "--ranks", "65536", "--ranks-per-node", "2"]).says(&["at most 4096 nodes, found 32768"]);
    sim(&["scale", "--ranks", "64", "--fan-out", "0"]).says(&["0"]);
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    refused(
        &["sim", "swarm", "--histories", "0"],
        &["'--histories <HISTORIES>': expected a whole number from 1 to"],
    );
    refused(
        &["sim", "swarm", "--threads", "0"],
        &["'--threads <THREADS>': expected a whole number from 1 to"],
    );
    refused(&["sim", "run", "--seed", "x"], &["'--seed <SEED>': expected a whole number from 0 to"]);
    let last = u64::MAX.to_string();
    refused(
        &["sim", "swarm", "--first-seed", &last, "--histories", "3"],
        &["3 histories from seed", "--first-seed"],
    );
}
