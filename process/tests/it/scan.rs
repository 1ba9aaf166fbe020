//! Captures of changed pages, on top of an image of all pages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Image, Program, compile, restart, start};

/// Begins to watch writes. `false`: this kernel cannot.
fn arm(program: &mut Program, test: &str) -> bool {
    let answer = program.ask("arm");
    if answer.starts_with("failed: ") {
        crate::skipped::skipped(test, &format!("asynchronous write protection (Linux 6.7; {answer})"));
        return false;
    }
    assert!(answer.starts_with("armed "), "{answer}");
    true
}

fn change(program: &mut Program) {
    program.write(b"x");
    assert_eq!(program.line(), "alive");
}

fn begin(name: &str) -> (Program, tempfile::TempDir, impl Fn(&str) -> PathBuf) {
    let program = start(&mut Command::new(compile(name, &[])));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_path_buf();
    (program, folder, move |name: &str| path.join(name))
}

fn written_bytes(path: &Path) -> u64 {
    Image::open(path).state.memory.pages() * 4096
}

#[test]
fn memory_that_changes_in_every_way_is_what_it_was() {
    let (mut program, _folder, path) = begin("changing");
    assert_eq!(program.line(), "ready");
    for generation in 0..4 {
        change(&mut program);
        if !arm(&mut program, "memory_that_changes_in_every_way_is_what_it_was") {
            return;
        }
        // A change between arming and the cut is in the image below, and again in the one on top.
        change(&mut program);
        let mode = if generation == 1 { "sync" } else { "fork" };
        program.capture(&path("whole"), mode);
        for round in 0..3 {
            // The first one has no change of the program's behind it.
            if round > 0 {
                change(&mut program);
            }
            let answer = program.capture(&path("changes"), "scan");
            assert!(answer.starts_with("captured Scan "), "{answer}");
        }
        let (whole, changes) = (written_bytes(&path("whole")), written_bytes(&path("changes")));
        assert!(changes > 0 && changes < whole * 3 / 4, "{changes} of {whole} bytes");
        program.kill();
        program = restart(&path("changes"));
        change(&mut program);
        change(&mut program);
        program.kill();
        program = restart(&path("changes"));
    }
    change(&mut program);
    assert_eq!(program.finish(), "all was there\n");
}

/// Arming again takes a new image of all pages; an older one on top of the older one does not change.
#[test]
fn an_image_on_top_belongs_to_the_one_that_was_below_it() {
    let (mut program, _folder, path) = begin("changing");
    assert_eq!(program.line(), "ready");
    for generation in ["first", "second"] {
        if !arm(&mut program, "an_image_on_top_belongs_to_the_one_that_was_below_it") {
            return;
        }
        program.capture(&path(&format!("{generation}-whole")), "fork");
        change(&mut program);
        program.capture(&path(generation), "scan");
        change(&mut program);
    }
    assert_eq!(program.finish(), "all was there\n");
    for generation in ["second", "first", "second-whole", "first-whole"] {
        let mut program = restart(&path(generation));
        change(&mut program);
        assert_eq!(program.finish(), "all was there\n", "{generation}");
    }
}

#[test]
fn more_changes_than_room_are_saved_by_a_fork_in_the_same_stop() {
    let (mut program, _folder, path) = begin("changing");
    assert_eq!(program.line(), "ready");
    if !arm(&mut program, "more_changes_than_room_are_saved_by_a_fork_in_the_same_stop") {
        return;
    }
    program.capture(&path("whole"), "fork");
    change(&mut program);
    let answer = program.capture(&path("again"), "scan-without-room");
    assert!(answer.starts_with("captured Fork "), "{answer}");
    program.kill();
    let mut program = restart(&path("again"));
    change(&mut program);
    assert_eq!(program.finish(), "all was there\n");
}

#[test]
fn other_programs_do_not_notice_and_come_back() {
    for (name, ready, last) in [
        ("waits", "ready", "all came back\n"),
        ("mutexes", "ready", "all were owned\n"),
        ("vectors", "ready ", "all registers kept\n"),
    ] {
        let (mut program, _folder, path) = begin(name);
        assert!(program.line().starts_with(ready));
        for _ in 0..3 {
            if !arm(&mut program, "other_programs_do_not_notice_and_come_back") {
                return;
            }
            program.capture(&path("whole"), "fork");
            change(&mut program);
            program.capture(&path("changes"), "scan");
            change(&mut program);
            program.kill();
            program = restart(&path("changes"));
            change(&mut program);
        }
        assert_eq!(program.finish(), last);
    }
}

#[test]
fn mappings_of_every_kind_are_what_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = start(Command::new(compile("mappings", &[])).arg(folder.path().join("data")));
    assert_eq!(program.line(), "ready");
    let (whole, changes) = (folder.path().join("whole"), folder.path().join("changes"));
    for _ in 0..3 {
        if !arm(&mut program, "mappings_of_every_kind_are_what_they_were") {
            return;
        }
        program.capture(&whole, "fork");
        change(&mut program);
        program.capture(&changes, "scan");
        program.kill();
        program = restart(&changes);
        change(&mut program);
    }
    assert_eq!(program.finish(), "all was there\n");
}

#[test]
fn nothing_is_allocated_while_pages_are_copied() {
    let (mut program, _folder, path) = {
        let program = start(&mut Command::new(compile("allocator", &["-rdynamic"])));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        (program, folder, path)
    };
    assert_eq!(program.line(), "ready 1", "the program asks the library whether threads stand still");
    if !arm(&mut program, "nothing_is_allocated_while_pages_are_copied") {
        return;
    }
    program.capture(&path.with_extension("whole"), "fork");
    for _ in 0..10 {
        program.capture(&path, "scan");
    }
    assert_eq!(program.finish(), "no lock was needed\n");
}
