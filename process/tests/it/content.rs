//! Captures of pages with changed contents, on top of an image of all pages. Needs no support of the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Image, Program, compile, restart, start};

fn change(program: &mut Program, byte: u8, answer: &str) {
    program.write(&[byte]);
    assert_eq!(program.line(), answer);
}

fn begin(name: &str) -> (Program, tempfile::TempDir, impl Fn(&str) -> PathBuf) {
    let program = start(&mut Command::new(compile(name, &[])));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_path_buf();
    (program, folder, move |name: &str| path.join(name))
}

fn pages(path: &Path) -> u64 {
    Image::open(path).state.memory.pages()
}

const WHOLE: [&str; 2] = ["fork-noted", "sync-noted"];
const CHANGES: [&str; 2] = ["fork-compared", "sync-compared"];

#[test]
fn memory_that_changes_in_every_way_is_what_it_was() {
    let (mut program, _folder, path) = begin("changing");
    assert_eq!(program.line(), "ready");
    for generation in 0..4 {
        change(&mut program, b'x', "alive");
        program.capture(&path("whole"), WHOLE[generation / 2]);
        for round in 0..3 {
            // The first one has no change of the program's behind it.
            if round > 0 {
                change(&mut program, b'x', "alive");
            }
            program.capture(&path("changes"), CHANGES[(generation + round) % 2]);
        }
        let (whole, changes) = (pages(&path("whole")), pages(&path("changes")));
        assert!(changes > 0 && changes < whole * 3 / 4, "{changes} of {whole} pages");
        program.kill();
        program = restart(&path("changes"));
        change(&mut program, b'x', "alive");
        change(&mut program, b'x', "alive");
        program.kill();
        program = restart(&path("changes"));
    }
    change(&mut program, b'x', "alive");
    assert_eq!(program.finish(), "all was there\n");
}

/// `tests/programs/returning.c`: pages of private and shared memory, and of a region that is mapped anew each time.
const CHANGED: u64 = 600 + 600 + 600;
/// The program's own stack, data and libraries, and the code that saves it: less than each of these.
const BESIDES: u64 = 400;

#[test]
fn what_holds_again_what_it_held_is_not_in_the_image() {
    let (mut program, _folder, path) = begin("returning");
    assert_eq!(program.line(), "a");
    program.capture(&path("whole"), "fork-noted");
    for (round, (byte, changed)) in [(b'a', 0), (b'b', CHANGED), (b'a', 0)].into_iter().enumerate() {
        change(&mut program, byte, &char::from(byte).to_string());
        let name = path(&format!("changes-{round}"));
        program.capture(&name, CHANGES[round % 2]);
        let written = pages(&name);
        assert!((changed..changed + BESIDES).contains(&written), "round {round}: {written} pages");
    }
    program.kill();
    // Each of them is the program as it was then: it compares all of its memory with that.
    for round in 0..3 {
        let mut restored = restart(&path(&format!("changes-{round}")));
        change(&mut restored, b'x', "x");
        change(&mut restored, b'c', "c");
        assert_eq!(restored.finish(), "all was there\n", "round {round}");
    }
}

/// Noting again takes a new image of all pages; an older one on top of the older one does not change. A
/// restored process has noted nothing.
#[test]
fn an_image_on_top_belongs_to_the_one_that_was_below_it() {
    let (mut program, _folder, path) = begin("returning");
    assert_eq!(program.line(), "a");
    for (generation, bytes) in [("first", b"ab"), ("second", b"cd")] {
        change(&mut program, bytes[0], &char::from(bytes[0]).to_string());
        program.capture(&path(&format!("{generation}-whole")), "fork-noted");
        change(&mut program, bytes[1], &char::from(bytes[1]).to_string());
        program.capture(&path(generation), "fork-compared");
    }
    program.kill();
    for generation in ["second", "first", "second-whole", "first-whole"] {
        let mut restored = restart(&path(generation));
        let reported = restored.ask(&format!("capture {} fork-compared", path("none").display()));
        assert!(
            generation.ends_with("-whole") || reported == "failed: nothing was noted",
            "{generation}: {reported}"
        );
        change(&mut restored, b'x', "x");
        assert_eq!(restored.finish(), "all was there\n", "{generation}");
    }
}

/// Whichever way takes the shorter pause: both are deltas on top of one image, and memory that is watched is compared, too.
#[test]
fn an_image_is_followed_by_a_scan_and_by_a_comparison() {
    let (mut program, _folder, path) = begin("changing");
    assert_eq!(program.line(), "ready");
    let ways = ["scan", "fork-compared", "scan", "sync-compared"];
    for way in ways {
        let armed = program.ask("arm");
        if armed.starts_with("failed: ") {
            let what = format!("asynchronous write protection (Linux 6.7; {armed})");
            return crate::skipped::skipped("an_image_is_followed_by_a_scan_and_by_a_comparison", &what);
        }
        change(&mut program, b'x', "alive");
        program.capture(&path("whole"), "fork-noted");
        for way in [way, ways[0], ways[1]] {
            change(&mut program, b'x', "alive");
            program.capture(&path(way), way);
        }
        program.kill();
        program = restart(&path("fork-compared"));
        change(&mut program, b'x', "alive");
        program.kill();
        // It was saved before the others.
        program = restart(&path(if way == "sync-compared" { way } else { "scan" }));
        change(&mut program, b'x', "alive");
    }
    assert_eq!(program.finish(), "all was there\n");
}

#[test]
fn mappings_of_every_kind_are_what_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = start(Command::new(compile("mappings", &[])).arg(folder.path().join("data")));
    assert_eq!(program.line(), "ready");
    let (whole, changes) = (folder.path().join("whole"), folder.path().join("changes"));
    for generation in 0..3 {
        program.capture(&whole, WHOLE[generation % 2]);
        change(&mut program, b'x', "alive");
        program.capture(&changes, CHANGES[generation / 2]);
        program.kill();
        program = restart(&changes);
        change(&mut program, b'x', "alive");
    }
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
        for round in 0..3 {
            program.capture(&path("whole"), WHOLE[round % 2]);
            change(&mut program, b'x', "alive");
            program.capture(&path("changes"), CHANGES[round % 2]);
            change(&mut program, b'x', "alive");
            program.kill();
            program = restart(&path("changes"));
            change(&mut program, b'x', "alive");
        }
        assert_eq!(program.finish(), last);
    }
}

#[test]
fn nothing_is_allocated_while_content_is_compared() {
    let mut program = start(&mut Command::new(compile("allocator", &["-rdynamic"])));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    assert_eq!(program.line(), "ready 1", "the program asks the library whether threads stand still");
    for mode in WHOLE {
        program.capture(&path.with_extension("whole"), mode);
        for round in 0..6 {
            program.capture(&path, CHANGES[round % 2]);
        }
    }
    assert_eq!(program.finish(), "no lock was needed\n");
}
