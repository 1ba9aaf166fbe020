//! Programs are saved, killed and restored, generation after generation, and never notice.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Program, compile, restart, start};

/// Saves, kills and restores `program` three times; `between` is asked of every life.
fn three_generations(mut program: Program, between: &dyn Fn(&mut Program)) -> Program {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    for generation in 0..3 {
        between(&mut program);
        program.capture(&path, if generation == 1 { "sync" } else { "fork" });
        program = {
            program.kill();
            restart(&path)
        };
    }
    between(&mut program);
    program
}

/// Writes a byte, and waits for the program's answer.
fn is_alive(program: &mut Program) {
    program.write(b"x");
    assert_eq!(program.line(), "alive");
}

#[test]
fn threads_in_every_kind_of_wait_go_on() {
    let mut program = start(&mut Command::new(compile("waits", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "all came back\n");
}

/// Each life captures at once: it gets only the rest that the one before has left of every wait.
#[test]
fn waits_end_in_time_although_lives_are_shorter() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(Command::new(compile("timeouts", &[])).arg("1000"));
    assert_eq!(program.line(), "ready");
    let deadline = Instant::now() + crate::support::PATIENCE;
    let mut lives = 1;
    loop {
        program.capture(&path, if lives % 3 == 2 { "sync" } else { "fork" });
        // Its printed output is lost with it, unless it is read here.
        if program.has_spoken() || Instant::now() > deadline {
            break;
        }
        program.kill();
        program = restart(&path);
        lives += 1;
    }
    assert!(lives > 1 && program.has_spoken(), "{lives} lives, and a wait has not ended");
    assert_eq!(program.line(), "all ended in time");
    assert_eq!(program.finish(), "");
}

#[test]
fn mutexes_of_every_kind_keep_their_owners() {
    let mut program = start(&mut Command::new(compile("mutexes", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "all were owned\n");
}

#[test]
fn memory_of_every_kind_is_what_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = start(Command::new(compile("mappings", &[])).arg(folder.path().join("data")));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "all was there\n");
}

/// With any addresses that the kernel gives the new process, and any processes beside it.
#[test]
fn one_image_gives_many_lives() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(&mut Command::new(compile("waits", &[])));
    assert_eq!(program.line(), "ready");
    program.capture(&path, "fork");
    program.kill();
    for _ in 0..100 {
        let mut life = restart(&path);
        is_alive(&mut life);
        life.kill();
    }
    let mut lives: Vec<Program> = (0..8).map(|_| restart(&path)).collect();
    for life in &mut lives {
        is_alive(life);
    }
    // One ends, another is saved and goes on in a second generation; the others do not notice.
    assert_eq!(lives.remove(3).finish(), "all came back\n");
    let second = folder.path().join("second");
    lives[0].capture(&second, "fork");
    lives.push(restart(&second));
    for mut life in lives {
        is_alive(&mut life);
        assert_eq!(life.finish(), "all came back\n");
    }
}

/// Writes a line, and waits for the program's answer, which begins with `answer`.
fn answers(answer: &'static str) -> impl Fn(&mut Program) {
    move |program| {
        program.write(b"\n");
        let line = program.line();
        assert!(line.starts_with(answer), "{line}");
    }
}

#[test]
fn files_of_every_kind_are_what_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = start(Command::new(compile("files", &[])).arg(folder.path()));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &answers("step "));
    assert_eq!(program.finish(), "all as it was\n");
}

#[test]
fn pipes_and_pairs_of_sockets_lose_nothing() {
    let mut program = start(&mut Command::new(compile("pipes", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &answers("round "));
    assert_eq!(program.finish(), "nothing lost\n");
}

#[test]
fn events_are_counted_and_watched() {
    let mut program = start(&mut Command::new(compile("events", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &answers("round "));
    assert_eq!(program.finish(), "all counted\n");
}

#[test]
fn timers_of_every_kind_go_on() {
    let mut program = start(&mut Command::new(compile("timers", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &answers("round "));
    assert_eq!(program.finish(), "all in time\n");
}

#[test]
fn settings_of_threads_and_waiting_signals_are_what_they_were() {
    let mut program = start(&mut Command::new(compile("settings", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "all as it was set\n");
}

/// A timer may fire before the threads of a restored process have gone on. The call that its signal ends must end all the same.
#[test]
fn a_signal_that_comes_before_its_thread_goes_on_ends_the_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut program = start(Command::new(compile("alarmed", &[])).arg("8"));
    assert_eq!(program.line(), "ready");
    let deadline = Instant::now() + crate::support::PATIENCE;
    let mut lives = 1;
    loop {
        // Some of its time passes in every life.
        std::thread::sleep(Duration::from_millis(60));
        program.capture(&path, "fork");
        if program.has_spoken() || Instant::now() > deadline {
            break;
        }
        program.kill();
        program = restart(&path);
        lives += 1;
    }
    assert!(lives > 1 && program.has_spoken(), "{lives} lives, and a call has not ended");
    assert_eq!(program.line(), "no alarm was missed");
    assert_eq!(program.finish(), "");
}

/// Threads send themselves signals all the time: a copy of their own id on the way there is another one's by
/// then.
#[test]
fn signals_and_alternate_stacks_come_back() {
    let mut program = start(&mut Command::new(compile("handlers", &[])));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "all signals counted\n");
}

#[test]
fn live_vector_registers_come_back() {
    let mut program = start(&mut Command::new(compile("vectors", &[])));
    assert!(program.line().starts_with("ready "));
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "all registers kept\n");
}

#[test]
fn python_and_numpy_come_back() {
    let python = std::env::var_os("STILLWIRE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let has_numpy = Command::new(&python).args(["-c", "import numpy"]).output();
    if !has_numpy.is_ok_and(|output| output.status.success()) {
        let missing = "python3 with numpy (STILLWIRE_TEST_PYTHON names one)";
        return crate::skipped::skipped("python_and_numpy_come_back", missing);
    }
    let mut program = start(Command::new(python).arg(crate::support::program("matrix.py")));
    assert_eq!(program.line(), "ready");
    let program = three_generations(program, &is_alive);
    assert_eq!(program.finish(), "numbers kept True\n");
}
