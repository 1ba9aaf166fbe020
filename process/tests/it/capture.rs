//! Programs are captured, again and again, and never notice; an image holds the program's memory.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::support::{Image, Program, compile, preload, start};
use process::state::memory::Advice;
use process::state::threads::At;

#[test]
fn threads_in_every_kind_of_wait_do_not_notice() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(&mut Command::new(compile("waits", &[])));
    assert_eq!(program.line(), "ready");
    for round in 0..30 {
        let answer = program.capture(&path, if round % 5 == 4 { "sync" } else { "fork" });
        assert!(answer.contains(" threads=14 "), "{answer}");
    }
    let image = Image::open(&path);
    let in_handlers = image.state.threads.iter().filter(|thread| matches!(thread.at, At::Handler { .. }));
    assert_eq!(in_handlers.count(), 14);
    assert_eq!(image.state.threads.len(), 15);
    assert_eq!(program.finish(), "all came back\n");
}

/// Each kind of wait has a second, and a capture every few milliseconds. That it ends at all is the point.
#[test]
fn waits_end_in_time_although_captures_come_faster() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(Command::new(compile("timeouts", &[])).arg("1000"));
    assert_eq!(program.line(), "ready");
    let deadline = Instant::now() + crate::support::PATIENCE;
    let mut captures = 0;
    while !program.has_spoken() && Instant::now() < deadline {
        program.capture(&path, if captures % 5 == 4 { "sync" } else { "fork" });
        captures += 1;
    }
    assert!(captures > 1 && program.has_spoken(), "{captures} captures, and a wait has not ended");
    assert_eq!(program.line(), "all ended in time");
    assert_eq!(program.finish(), "");
}

/// Between the look at a thread and its signal, it may begin to wait. Which call it made then is seen in its code alone.
#[test]
fn a_thread_that_begins_to_wait_as_it_is_stopped_does_not_notice() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(&mut Command::new(compile("entering", &[])));
    assert_eq!(program.line(), "ready");
    for _ in 0..60 {
        program.capture(&path, "sync");
    }
    assert_eq!(program.finish(), "none was interrupted\n");
}

/// A wait that the kernel goes on with by itself, because the program was stopped and continued (SIGSTOP, a shell's ^Z).
#[test]
fn a_wait_that_was_continued_after_a_stop_is_not_interrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(Command::new(compile("timeouts", &[])).args(["1500", "continued"]));
    assert_eq!(program.line(), "ready");
    let state = |program: &Program| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.child.id())).expect("it lives");
        stat.rsplit(") ").next().and_then(|fields| fields.chars().next()).expect("a state")
    };
    for _ in 0..5 {
        // SAFETY: signals to our own child.
        assert_eq!(unsafe { libc::kill(program.child.id().cast_signed(), libc::SIGSTOP) }, 0);
        while state(&program) != 'T' {
            std::thread::yield_now();
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(program.child.id().cast_signed(), libc::SIGCONT) }, 0);
        while state(&program) == 'T' {
            std::thread::yield_now();
        }
        program.capture(&path, "fork");
    }
    assert_eq!(program.line(), "all ended in time");
    assert_eq!(program.finish(), "");
}

/// Captures a program ten times while it works; it checks itself.
fn undisturbed(command: &mut Command, last: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(command);
    let first = program.line();
    assert!(first.starts_with("ready"), "{first}");
    for round in 0..10 {
        program.capture(&path, if round % 3 == 2 { "sync" } else { "fork" });
        program.poke("x");
        assert_eq!(program.line(), "alive");
    }
    Image::open(&path);
    assert_eq!(program.finish(), last);
}

#[test]
fn live_vector_registers_are_kept() {
    undisturbed(&mut Command::new(compile("vectors", &[])), "all registers kept\n");
}

#[test]
fn signals_and_alternate_stacks_are_kept() {
    undisturbed(&mut Command::new(compile("handlers", &[])), "all signals counted\n");
}

#[test]
fn python_and_numpy_go_on() {
    let python = std::env::var_os("STILLWIRE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let has_numpy = Command::new(&python).args(["-c", "import numpy"]).output();
    if !has_numpy.is_ok_and(|output| output.status.success()) {
        return crate::skipped::skipped(
            "python_and_numpy_go_on",
            "python3 with numpy (STILLWIRE_TEST_PYTHON names one)",
        );
    }
    undisturbed(Command::new(python).arg(crate::support::program("matrix.py")), "numbers kept True\n");
}

#[test]
fn nothing_is_allocated_while_threads_stand_still_nor_in_the_child() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(&mut Command::new(compile("allocator", &["-rdynamic"])));
    assert_eq!(program.line(), "ready 1", "the program asks the library whether threads stand still");
    for round in 0..20 {
        program.capture(&path, if round % 2 == 1 { "sync" } else { "fork" });
    }
    assert_eq!(program.finish(), "no lock was needed\n");
}

/// Checks that the allocator above finds an allocation.
#[test]
fn an_allocation_in_the_stop_ends_the_program() {
    let mut program = start(&mut Command::new(compile("allocator", &["-rdynamic"])));
    assert_eq!(program.line(), "ready 1");
    assert_eq!(program.ask("allocate-in-stop"), "");
    assert_eq!(program.line(), "FAULT: memory was allocated while all threads stood still");
}

#[test]
fn memory_of_every_kind_is_in_the_image() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    for mode in ["fork", "sync"] {
        let mut program = start(Command::new(compile("memory", &[])).arg(folder.path()));
        let mut parts = Vec::new();
        loop {
            let line = program.line();
            if line == "ready" {
                break;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let address = u64::from_str_radix(words[1], 16).expect("an address");
            parts.push((words[0].to_owned(), address, words[2].parse::<usize>().expect("a length")));
        }
        program.capture(&path, mode);
        let image = Image::open(&path);
        for (part, (name, address, bytes)) in (0u64..).zip(&parts) {
            let saved =
                image.bytes(*address, *bytes).unwrap_or_else(|| panic!("{mode}: {name} is not saved"));
            for (at, word) in (0u64..).step_by(8).zip(saved.chunks_exact(8)) {
                let mixed = (1_000_003 + part).wrapping_mul(6_364_136_223_846_793_005);
                let mixed = mixed.wrapping_add(at.wrapping_mul(1_442_695_040_888_963_407));
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                assert_eq!(word, mixed ^ mixed >> 29, "{mode}: {name} at {at}");
            }
        }
        assert!(image.state.memory.pages() * 4096 < 64 << 20, "what was never touched is not saved");
        let address = |name: &str| parts.iter().find(|part| part.0 == name).expect("a part").1;
        for (name, advice) in
            [("huge", Advice::HUGE), ("not-forked", Advice::DONT_FORK), ("wiped", Advice::WIPE_ON_FORK)]
        {
            let region = image.state.memory.region_at(address(name)).expect("a region");
            assert!(region.advice.contains(advice), "{mode}: {name} {:?}", region.advice);
        }
        program.poke("x");
        assert_eq!(program.line(), "checked");
        assert_eq!(program.finish(), "memory kept\n");
    }
}

#[test]
fn a_thread_that_does_not_stop_is_named_and_all_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(&mut Command::new(compile("deaf", &[])));
    assert_eq!(program.line(), "ready");
    let answer = program.ask(&format!("capture {} fork", path.display()));
    assert!(answer.starts_with("failed: thread ") && answer.contains("did not stop within"), "{answer}");
    assert!(answer.contains("\"deaf\"") && answer.contains("blocked signals ffffffff"), "{answer}");
    program.poke("x");
    assert_eq!(program.line(), "alive");
    program.poke("l");
    assert_eq!(program.line(), "alive");
    program.capture(&path, "fork");
    assert_eq!(program.finish(), "went on\n");
}

/// An ordinary user's program without new privileges. `what` must be where that user may read it.
fn unprivileged(what: &Path) -> Command {
    let mut command = Command::new(what);
    // SAFETY: system calls alone, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            const NOBODY: u32 = 65_534;
            if libc::geteuid() == 0 {
                let gave_up = libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setgid(NOBODY) == 0
                    && libc::setuid(NOBODY) == 0;
                if !gave_up {
                    return Err(std::io::Error::last_os_error());
                }
            }
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    command
}

#[test]
fn an_ordinary_user_needs_no_privileges_and_where_no_fork_can_be_had_none_is_needed() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).expect("ours");
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        std::fs::copy(from, &to).expect("room for a copy");
        to
    };
    let waits = copy(&compile("waits", &[]), "waits");
    let library = copy(preload(), "libpreload.so");
    let path = folder.path().join("image");
    let mut program = crate::support::start_with(&mut unprivileged(&waits), &library);
    assert_eq!(program.line(), "ready");
    let forked = program.capture(&path, "fork");
    assert!(forked.starts_with("captured Fork "), "{forked}");
    assert_eq!(program.ask("processes 1"), "limited");
    let without = program.capture(&path, "fork");
    assert!(without.starts_with("captured Sync ") && without.contains("(no fork: "), "{without}");
    Image::open(&path);
    assert_eq!(program.ask("processes 1000"), "limited");
    assert!(program.capture(&path, "fork").starts_with("captured Fork "));
    assert_eq!(program.finish(), "all came back\n");
}

/// A program that waits for a handled signal to end its call would wait for ever if the call were made again.
#[test]
fn a_signal_that_comes_in_the_stop_ends_the_call_that_it_would_have_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    for (call, number) in [("pause", libc::SYS_pause), ("read", libc::SYS_read)] {
        let mut program = start(Command::new(compile("interrupted", &[])).arg(call));
        assert_eq!(program.line(), "ready");
        let place = format!("/proc/{}/syscall", program.child.id());
        let until_it_waits_in = |number: libc::c_long| {
            let call = format!("{number} ");
            while !std::fs::read_to_string(&place).expect("it lives").starts_with(&call) {
                std::thread::yield_now();
            }
        };
        // Earlier, the handler of the signal runs before the call, which nothing ends then.
        until_it_waits_in(number);
        program.send(&format!("capture-slowly {}", path.display()));
        // It waits in the handler of the stop.
        until_it_waits_in(libc::SYS_futex);
        // SAFETY: a signal to our own child.
        assert_eq!(unsafe { libc::kill(program.child.id().cast_signed(), libc::SIGUSR1) }, 0);
        let answer = program.answer();
        assert!(answer.starts_with("captured Sync "), "{answer}");
        assert_eq!(program.line(), "interrupted");
        assert_eq!(program.finish(), "");
    }
}

// Between the look at the process and its stop, the program runs.
#[test]
fn a_child_that_begins_after_the_look_makes_no_image() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(Command::new("sh").args(["-c", "echo ready; read x; echo end"]));
    assert_eq!(program.line(), "ready");
    let answer = program.ask(&format!("capture {} fork-with-late-child", path.display()));
    assert!(answer.starts_with("failed: ") && answer.contains("child processes"), "{answer}");
    let answer = program.ask(&format!("capture {} fork", path.display()));
    assert!(answer.starts_with("captured "), "{answer}");
    program.poke("\n");
    assert_eq!(program.finish(), "end\n");
}

#[test]
fn a_child_is_refused_by_name_before_anything_is_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(
        Command::new("sh").args(["-c", "sleep 600 & sleep 0.2; echo ready; read x; kill $!; wait; echo end"]),
    );
    assert_eq!(program.line(), "ready");
    let answer = program.ask(&format!("capture {} fork", path.display()));
    assert!(answer.starts_with("failed: this process cannot be saved: the child process "), "{answer}");
    assert!(answer.contains("(sleep)"), "{answer}");
    program.poke("\n");
    assert_eq!(program.finish(), "end\n");
}
