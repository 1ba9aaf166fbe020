//! `stillwire demo`: verified with a kill at any instant.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::programs::library;
use crate::support::{Running, children_of, done, runs, stillwire, wait_until};

fn demo(arguments: &[&str]) {
    let mut command = stillwire(&["demo", "--native", "--json", "--class", "S"]);
    let done = done(command.args(arguments));
    assert_eq!(done.code, Some(0), "{done:?}");
    let result = done.json();
    assert_eq!(result["verified"], true, "{result}");
    assert_eq!(result["program"], "native", "{result}");
    assert!(result["generations"].as_u64().unwrap() >= 3, "{result}");
    assert_eq!((&result["killed"], &result["rollbacks"]), (&1.into(), &1.into()), "{result}");
    assert!(result["seconds"].as_f64().unwrap() < 60.0, "{result}");
    let outcome = &result["outcome"];
    assert_eq!(outcome["partial_passed"], outcome["partial_expected"]);
    assert_eq!(outcome["full_passed"], outcome["full_expected"]);
    for generation in result["timeline"].as_array().unwrap() {
        assert_eq!(generation["ranks"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn ten_random_instants() {
    for _ in 0..10 {
        demo(&[]);
    }
}

// The checkpoints come every 250 ms: these lie before, in and behind the next one.
#[test]
fn chosen_instants() {
    for millis in ["0", "240", "252", "262"] {
        demo(&["--kill-after", millis]);
    }
}

#[test]
fn a_demo_that_is_ended_says_so() {
    let mut demo = Running::start(stillwire(&["demo", "--native", "--json", "--class", "S"]));
    demo.wait_for("committed");
    demo.signal("INT");
    let done = demo.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    assert_eq!(done.json()["verified"], false, "{done:?}");
}

#[test]
fn the_timeline_is_readable() {
    let done = done(&mut stillwire(&["demo", "--native"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    for words in
        ["committed", "kill -9", "rolling back", "all ranks run again", "verified", "rollbacks     1"]
    {
        assert!(done.stdout.contains(words), "{words}: {}", done.stdout);
    }
}

/// The demo with this script as its `mpicc`, or none; returns why it shows no MPI program. `$3` is the program that the script is to make.
fn without_mpi(mpicc: Option<&str>) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut path = std::ffi::OsString::from(folder.path());
    if let Some(script) = mpicc {
        let file = folder.path().join("mpicc");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        // The scripts need their tools.
        path.push(":");
        path.push(std::env::var_os("PATH").expect("a path"));
    }
    let mut command = stillwire(&["demo", "--json", "--class", "S"]);
    command.env("PATH", path).env("STILLWIRE_PROVIDER", library()).env("TMPDIR", folder.path());
    let done = done(&mut command);
    assert_eq!(done.code, Some(0), "{done:?}");
    let result = done.json();
    assert_eq!((&result["verified"], &result["program"]), (&true.into(), &"native".into()), "{result}");
    let why = result["why_native"].as_str().expect("words").to_owned();
    assert!(
        done.stderr.contains(&format!("no MPI program, but one with points of its own: {why}")),
        "{done:?}"
    );
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert!(left.iter().all(|name| name == "mpicc"), "{left:?}");
    why
}

#[test]
fn an_mpi_that_is_odd_is_no_reason_to_show_nothing() {
    assert_eq!(without_mpi(None), "there is no mpicc in PATH");
    let why = without_mpi(Some(
        "echo first >&2; echo sort.c: fatal error: nothing >&2; echo terminated >&2; exit 3",
    ));
    assert!(why.ends_with("mpicc fails: sort.c: fatal error: nothing"), "{why}");
    let why = without_mpi(Some("cp /bin/true \"$3\""));
    assert!(why.ends_with("mpicc makes no program of an MPI library"), "{why}");
    // A library with the name of MPICH's, which uses libfabric, and a program that ends at once.
    let why = without_mpi(Some(
        "d=$(dirname \"$3\"); echo 'char fabric[] = \"libfabric.so.1\";' > $d/l.c
         cc -shared -Wl,-soname,libmpi.so.12 -o $d/libmpi.so.12 $d/l.c; echo 'int main() { return 7; }' > $d/m.c
         cc -o \"$3\" $d/m.c -Wl,--no-as-needed $d/libmpi.so.12 -Wl,-rpath,$d",
    ));
    assert!(why.contains("its rehearsal ended with exit code 7: "), "{why}");
}

#[test]
fn a_demo_that_is_ended_before_its_job_runs_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let begun = folder.path().join("begun");
    let mpicc = folder.path().join("mpicc");
    let script = format!("#!/bin/sh\ntouch {}\nexec sleep 600\n", begun.display());
    std::fs::write(&mpicc, script).expect("a file");
    std::fs::set_permissions(&mpicc, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("a path"));
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).expect("a folder");
    let mut command = stillwire(&["demo", "--json"]);
    command.env("PATH", path).env("STILLWIRE_PROVIDER", library()).env("TMPDIR", &temporary);
    let demo = Running::start(command);
    wait_until("the compiler runs", || begun.exists());
    let compiler = children_of(demo.pid());
    demo.signal("INT");
    let done = demo.finish();
    assert_eq!((done.code, done.stdout.as_str()), (Some(130), ""), "{done:?}");
    assert_eq!(std::fs::read_dir(&temporary).expect("a folder").count(), 0, "{done:?}");
    assert!(compiler.len() == 1 && !runs(compiler[0]), "{compiler:?}");
}
