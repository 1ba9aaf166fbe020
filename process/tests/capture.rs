//! Programs are captured, again and again, and never notice.

mod support;

use std::process::Command;

use process::state::threads::At;
use support::{Image, compile, start};

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
