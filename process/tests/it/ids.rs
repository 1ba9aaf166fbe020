//! Restored processes that keep the ids that they had, in a pid namespace of their own.

use std::path::Path;
use std::process::Command;

use crate::support::{Image, Program, begin_restart, compile, preload, restart, restart_with, start};

/// A shell that is the first process of a new pid namespace, with a /proc of it: as root of a user namespace where the user is not root.
fn namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["--", "sh", "-c", script, "sh"]);
    command
}

/// Starts the program that the shell was given, with the library, and ends as it did: not in the shell's place.
const PROGRAM: &str = "LD_PRELOAD=$PRELOAD STILLWIRE_PRELOAD_CONTROL=$CONTROL \"$@\"; exit $?";

/// Whether this machine lets ordinary users have such namespaces.
fn is_possible() -> bool {
    let output = namespace("echo 50 > /proc/sys/kernel/ns_last_pid && sh -c 'echo $$' && :").output();
    let possible = output.is_ok_and(|output| output.status.success() && output.stdout == b"51\n");
    if !possible {
        crate::skipped::skipped(
            "ids",
            "pid namespaces with a choice of ids (unshare --user --pid, ns_last_pid)",
        );
    }
    possible
}

/// Starts something as process `pid` of a new namespace.
fn under(pid: u32) -> Command {
    namespace(&format!("echo {} > /proc/sys/kernel/ns_last_pid && {PROGRAM}", pid - 1))
}

fn is_alive(program: &mut Program) {
    program.write(b"x");
    assert_eq!(program.line(), "alive");
}

fn restart_in_place(image: &Path) -> Program {
    let pid = Image::open(image).state.program.pid;
    restart_with(image, preload(), &|executable| {
        let mut command = under(pid);
        command.arg(executable).env("STILLWIRE_PRELOAD_IDS", "kept");
        command
    })
}

#[test]
fn ids_are_kept_over_three_generations() {
    if !is_possible() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut command = under(4321);
    command.arg(compile("ids", &[])).arg(folder.path().join("ids"));
    let mut program = start(&mut command);
    assert_eq!(program.line(), "ready");
    for generation in 0..3 {
        is_alive(&mut program);
        program.capture(&path, if generation == 1 { "sync" } else { "fork" });
        assert_eq!(Image::open(&path).state.program.pid, 4321);
        program.kill();
        program = restart_in_place(&path);
    }
    is_alive(&mut program);
    assert_eq!(program.finish(), "all ids kept\n");
}

/// Checks that the program sees a change of ids.
#[test]
fn without_a_namespace_ids_are_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(Command::new(compile("ids", &[])).arg(folder.path().join("ids")));
    assert_eq!(program.line(), "ready");
    is_alive(&mut program);
    program.capture(&path, "fork");
    program.kill();
    let mut program = restart(&path);
    program.write(b"x");
    let line = program.line();
    // Whichever of its threads looks first.
    let seen = ["FAULT gettid() is ", "FAULT the process in the file is "];
    assert!(seen.iter().any(|words| line.starts_with(words)), "{line}");
}

#[test]
fn every_program_is_restored_under_its_ids() {
    if !is_possible() {
        return;
    }
    for (name, is_given_file, question, last) in crate::support::PROGRAMS {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, data) = (folder.path().join("image"), folder.path().join("data"));
        if name == "files" {
            std::fs::create_dir(&data).expect("a folder");
        }
        let mut command = under(700);
        command.arg(compile(name, &[]));
        if is_given_file {
            command.arg(&data);
        }
        let mut program = start(&mut command);
        let line = program.line();
        assert!(line.starts_with("ready"), "{name}: {line}");
        for _ in 0..2 {
            program.write(question.as_bytes());
            program.line();
            program.capture(&path, "fork");
            program.kill();
            program = restart_in_place(&path);
        }
        program.write(question.as_bytes());
        program.line();
        assert_eq!(program.finish(), last, "{name}");
    }
}

#[test]
fn another_process_and_an_id_that_is_taken_are_refused() {
    if !is_possible() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut command = under(900);
    command.arg(compile("ids", &[])).arg(folder.path().join("ids"));
    let mut program = start(&mut command);
    assert_eq!(program.line(), "ready");
    program.capture(&path, "fork");
    program.kill();
    let refused = |script: &str| {
        let (program, answer) = begin_restart(&path, preload(), &|executable| {
            let mut command = namespace(script);
            command.arg(executable).env("STILLWIRE_PRELOAD_IDS", "kept").stderr(std::process::Stdio::piped());
            command
        });
        assert_eq!(answer, "");
        program.complaint()
    };
    let other = refused(&format!("echo 949 > /proc/sys/kernel/ns_last_pid && {PROGRAM}"));
    assert!(other.contains("is of process 900 and must keep its id, but this process is 950"), "{other}");
    // The first of the other threads has the next id.
    let first = "echo 900 > /proc/sys/kernel/ns_last_pid && { sleep 60 <&- >&- 2>&- & }";
    let taken = refused(&format!("{first} && echo 899 > /proc/sys/kernel/ns_last_pid && {PROGRAM}"));
    assert!(taken.contains("under the id that it had (17: it is taken"), "{taken}");
    assert!(taken.contains("(errno 0017)"), "{taken}");
}
