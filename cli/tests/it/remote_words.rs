//! The command that starts a keeper behind a remote shell, which passes all its words to a shell as one line, as ssh does.

use std::fs;
use std::process::Command;

use crate::support::{Place, STILLWIRE, done};

#[test]
fn this_program_may_lie_in_a_folder_of_any_name() {
    let place = Place::new();
    let folder = place.folder.path().join("it's \"quoted\" $HOME `id`\n* and spaced");
    fs::create_dir(&folder).expect("a folder");
    let program = folder.join("stillwire");
    fs::copy(STILLWIRE, &program).expect("a copy of the executable");
    let shell = place.remote_shell("shift; exec sh -c \"$*\"");
    let mut run = Command::new(&program);
    run.args(["run", "-q", "-n", "2", "--hosts", "a@127.0.0.1,b@127.0.0.2", "--parity", "none"]);
    let ended = done(run.args(["--remote-shell", &shell, "--", "echo", "hello"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.matches("hello").count(), 2, "{ended:?}");
}
