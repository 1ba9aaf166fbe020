//! Components as dynamic libraries, built by a C compiler outside the tree: a detector and a recovery protocol that do their work, and those that are refused, crash, hang, or
//! give answers that cannot be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::hosts::Hosts;
use crate::support::{Place, Running, children_of, done, rank_of, signal, stillwire, verified};

/// A component whose faults are chosen when it is compiled.
const FAULTY: &str = r#"
#include <stdlib.h>
#include <unistd.h>
#include "stillwire_component.h"

#ifndef VERSION
#define VERSION STILLWIRE_COMPONENT_VERSION
#endif
#ifndef MORE
#define MORE 0
#endif
#ifndef MORE_FUNCTIONS
#define MORE_FUNCTIONS 0
#endif
#ifndef FAULT
#define FAULT return 0
#endif
#ifdef AT_LOAD
__attribute__((constructor)) static void load(void) { AT_LOAD; }
#endif

#ifdef DETECTOR
static uint32_t report(void *state, const struct stillwire_report *report) {
    if (!report->is_asked) return 0;
    FAULT;
}
static const struct stillwire_detector functions = {
    .size = sizeof functions + MORE_FUNCTIONS, .period_ms = 100, .report = report,
};
#define KIND STILLWIRE_DETECTOR
#else
static int react(void *state, const struct stillwire_fault *fault, struct stillwire_reaction *reaction) {
    FAULT;
}
static const struct stillwire_recovery functions = { .size = sizeof functions + MORE_FUNCTIONS, .react = react };
#define KIND STILLWIRE_RECOVERY
#endif

static const struct stillwire_component component = {
    .size = sizeof component + MORE, .version = VERSION, .kind = KIND, .name = "faulty", .functions = &functions,
};
const struct stillwire_component *stillwire_component(void) { return &component; }
"#;

/// The root of the tree, where the header and the examples are.
fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is a folder of the tree")
}

/// Compiles a component as its users do.
fn compile(place: &Place, name: &str, source: &Path, macros: &[&str]) -> PathBuf {
    let library = place.folder.path().join(format!("{name}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-I"]).arg(tree().join("include"));
    compiler.args(macros).arg("-o").arg(&library).arg(source);
    let compiled = done(&mut compiler);
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    library
}

fn example(place: &Place, name: &str) -> PathBuf {
    compile(place, name, &tree().join("examples/components").join(format!("{name}.c")), &[])
}

/// A component with these faults.
fn faulty(place: &Place, name: &str, macros: &[&str]) -> PathBuf {
    let source = place.folder.path().join("faulty.c");
    fs::write(&source, FAULTY).expect("a file");
    compile(place, name, &source, macros)
}

/// A file of reactions with a component, whose path is relative to it.
fn file(place: &Place, kind: &str, library: &Path, argument: &str) -> String {
    let path = place.folder.path().join("components.toml");
    let name = library.file_name().and_then(|name| name.to_str()).expect("a name");
    let text = format!("[components]\n{kind} = \"{name}\"\n{kind}-argument = \"{argument}\"\n");
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// A job of four ranks of which everything is saved once.
fn saved(place: &Place, options: &[&str]) -> Running {
    let mut job = place.run(&[&["--ckpt-every", "200ms"], options].concat());
    job.wait_for("is loaded");
    job.wait_for("committed");
    job
}

fn kill_a_rank(job: &Running) {
    signal(*job.ranks().first().expect("a rank"), "KILL");
}

fn ranks_on(hosts: &Hosts, host: &str) -> Vec<u32> {
    children_of(hosts.keeper(host)).into_iter().filter_map(rank_of).collect()
}

#[test]
fn a_detector_that_watches_a_file_moves_the_node_that_it_names() {
    let hosts = Hosts::new();
    let failing = hosts.path("failing");
    let file =
        file(&hosts.place, "detector", &example(&hosts.place, "watch_file"), &failing.display().to_string());
    let checked = done(&mut stillwire(&["recovery", "check", &file]));
    let line = "detector `watch-file` (";
    assert!(checked.stdout.contains(line) && checked.stdout.contains("asked every 500ms"), "{checked:?}");
    let options = ["--parity", "xor", "--spare-hosts", "e@127.0.0.5", "--recovery", &file];
    let mut job = hosts.run(&options);
    job.wait_for("detector `watch-file` is loaded");
    job.wait_for("committed");
    fs::write(&failing, "x unknown\nc memory errors\n").expect("a file");
    job.wait_for("detector `watch-file` suspects c (memory errors)");
    job.wait_for("e takes the place of c, which leaves the job");
    let again = job.wait_for("all ranks run again");
    assert!(again.contains("(permanent fault, migration of node 2: 4 ranks rolled back)"), "{again}");
    assert_eq!(ranks_on(&hosts, "e"), [2]);
    // There is no further host, and the job continues.
    fs::write(&failing, "d\n").expect("a file");
    job.wait_for("detector `watch-file` suspects d; d keeps its place: there is no spare host");
    job.wait_for("committed");
    hosts.place.let_end();
    let ended = job.finish();
    verified(&ended);
    assert_eq!(ended.stderr.matches("rolling back").count(), 1, "{ended:?}");
}

#[test]
fn a_recovery_protocol_prefers_a_host() {
    let hosts = Hosts::new();
    let file = file(&hosts.place, "recovery", &example(&hosts.place, "prefer_hosts"), "f");
    let spares = "e@127.0.0.5,f@127.0.0.6";
    let options = ["--parity", "xor", "--spare-hosts", spares, "--recovery", &file];
    let mut job = hosts.run(&options);
    job.wait_for("recovery protocol `prefer-hosts` is loaded");
    job.wait_for("committed");
    // A lost host: first the fault is transient, and the preference holds when the host is lost for good.
    hosts.vanish("b");
    job.wait_for("recovery protocol `prefer-hosts`: f is preferred (its name begins with f)");
    job.wait_for("b does not answer any more: f takes its place");
    job.wait_for("all ranks run again");
    assert_eq!(ranks_on(&hosts, "f"), [1]);
    hosts.place.let_end();
    verified(&job.finish());
}

#[test]
fn a_component_of_another_version_or_size_is_refused_with_both_numbers() {
    let place = Place::new();
    let refusals: [(&str, &[&str], &[&str]); 7] = [
        ("version", &["-DVERSION=7"], &["has version 7 of", "expected version 1"]),
        ("size", &["-DMORE=8"], &["its description has 40 bytes", "expected 32 bytes in version 1"]),
        ("table", &["-DMORE_FUNCTIONS=16"], &["its table of functions has 48 bytes", "expected 32 bytes"]),
        ("short", &["-DMORE=-4"], &["has 28 bytes", "expected 32 bytes", "stillwire_component.h of this"]),
        ("kind", &["-DDETECTOR"], &["it is a detector; expected a recovery protocol"]),
        ("crash", &["-DAT_LOAD=abort()"], &["its process was ended by signal 6 (SIGABRT)"]),
        ("exit", &["-DAT_LOAD=_exit(3)"], &["its process has exited with code 3"]),
    ];
    let refused = |file: &str, expected: &[&str]| {
        let options = ["run", "-n", "2", "--ckpt-dir", "d", "--recovery", file, "--", "true"];
        for command in [&["recovery", "check", file][..], &options, &["restart", "d", "--recovery", file]] {
            let refused = done(&mut stillwire(command));
            refused.says(expected);
            assert_eq!(refused.code, Some(2), "{refused:?}");
        }
    };
    for (name, macros, expected) in refusals {
        refused(&file(&place, "recovery", &faulty(&place, name, macros), ""), expected);
    }
    let detector = faulty(&place, "detector", &["-DDETECTOR", "-DMORE_FUNCTIONS=8"]);
    refused(&file(&place, "detector", &detector, ""), &["has 48 bytes", "expected 40 bytes"]);
    let missing = Path::new("missing.so");
    refused(
        &file(&place, "recovery", missing, ""),
        &["recovery protocol /", "missing.so: it cannot be loaded"],
    );
    let other = place.folder.path().join("other.c");
    fs::write(&other, "int other;\n").expect("a file");
    let other = compile(&place, "other", &other, &[]);
    refused(&file(&place, "recovery", &other, ""), &["it exports no function stillwire_component"]);
    let unwilling = example(&place, "watch_file");
    refused(&file(&place, "detector", &unwilling, ""), &["its function open returned 1; expected 0"]);
    let text = place.folder.path().join("text.toml");
    fs::write(&text, "[components]\nrecovery-argument = \"x\"\n").expect("a file");
    refused(&text.display().to_string(), &["components.recovery-argument is x; expected none"]);
}

/// A rank is killed, the component fails, and the job goes on by itself; a second fault asks nobody.
fn goes_on(kind: &str, macros: &[&str], expected: &str) {
    let place = Place::new();
    let file = file(&place, kind, &faulty(&place, "faulty", macros), "");
    let mut job = saved(&place, &["--recovery", &file]);
    kill_a_rank(&job);
    let part = if kind == "recovery" { "recovery protocol" } else { kind };
    let failed = job.wait_for(&format!("the built-in {part} takes over"));
    assert!(failed.contains(expected), "{failed}");
    assert!(failed.contains(&format!("{part} `faulty` (/")), "{failed}");
    let again = job.wait_for("all ranks run again");
    assert!(again.contains("(process fault, restart: 4 ranks rolled back)"), "{again}");
    job.wait_for("committed");
    kill_a_rank(&job);
    job.wait_for("all ranks run again");
    place.let_end();
    let ended = job.finish();
    verified(&ended);
    assert_eq!(ended.stderr.matches("takes over").count(), 1, "{ended:?}");
}

#[test]
fn a_recovery_protocol_that_crashes_does_not_take_the_job_down() {
    goes_on("recovery", &["-DFAULT=abort()"], "its process was ended by signal 6 (SIGABRT)");
}

#[test]
fn a_detector_that_crashes_does_not_take_the_job_down() {
    goes_on("detector", &["-DDETECTOR", "-DFAULT=return *(volatile uint32_t *)8"], "signal 11 (SIGSEGV)");
}

#[test]
fn a_recovery_protocol_that_hangs_does_not_take_the_job_down() {
    goes_on("recovery", &["-DFAULT=pause(); return 0"], "it has not answered within 3s");
}

#[test]
fn a_detector_that_hangs_does_not_take_the_job_down() {
    goes_on("detector", &["-DDETECTOR", "-DFAULT=pause(); return 0"], "it has not answered within 3s");
}

#[test]
fn answers_that_cannot_be_do_not_reach_the_job() {
    goes_on(
        "detector",
        &["-DDETECTOR", "-DFAULT=return 77"],
        "it gives a process fault the model 77; expected 0",
    );
    let fault = "-DFAULT=reaction->protocol = 9; return 1";
    goes_on("recovery", &[fault], "it answers a process fault with protocol 9; expected 0");
    let fault = "-DFAULT=reaction->candidate = 5; return 1";
    goes_on("recovery", &[fault], "it prefers candidate 5; expected -1, as there is none");
}

#[test]
fn a_component_can_choose_the_model_and_the_protocol() {
    let place = Place::new();
    let detector = faulty(&place, "detector", &["-DDETECTOR", "-DFAULT=return STILLWIRE_REPEATED"]);
    let mut job = saved(&place, &["--recovery", &file(&place, "detector", &detector, "")]);
    kill_a_rank(&job);
    job.wait_for("detector `faulty`: a repeated fault");
    let again = job.wait_for("all ranks run again");
    assert!(again.contains("(repeated fault, restart: 4 ranks rolled back)"), "{again}");
    place.let_end();
    verified(&job.finish());
    let place = Place::new();
    let fault = "-DFAULT=reaction->protocol = STILLWIRE_STOP; return 1";
    let file = file(&place, "recovery", &faulty(&place, "recovery", &[fault]), "");
    let mut job = saved(&place, &["--recovery", &file]);
    kill_a_rank(&job);
    job.wait_for("recovery protocol `faulty`: stop");
    let ended = job.finish();
    ended.says(&["the reaction to process faults is stop"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    // A restart has the component of before. If it is gone, the job does without.
    fs::remove_file(place.folder.path().join("recovery.so")).expect("it was there");
    let mut job = place.restart(&[]);
    job.wait_for("the built-in recovery protocol takes over");
    job.wait_for("committed");
    kill_a_rank(&job);
    job.wait_for("all ranks run again");
    place.let_end();
    verified(&job.finish());
}
