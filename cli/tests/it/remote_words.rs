//! The command that starts a keeper behind a remote shell, which passes all its words to a shell as one line, as ssh does.

use std::fs;
use std::process::Command;

use crate::support::{Place, STILLWIRE, done, stillwire};

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

/// A host that vanishes closes no connection, so ssh itself has to notice it (R31), and nobody is there to answer a question.
#[test]
fn ssh_is_to_give_up_a_host_that_does_not_answer() {
    let place = Place::new();
    let (folder, bin) = (place.folder.path(), place.folder.path().join("bin"));
    fs::create_dir(&bin).expect("a folder");
    let script = place.remote_shell(&format!(
        "echo \"$@\" >>{}/words\nwhile [ \"$1\" = -o ]; do shift 2; done\nshift; exec sh -c \"$*\"",
        folder.display()
    ));
    fs::rename(script, bin.join("ssh")).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut run = stillwire(&["run", "-q", "-n", "2", "--hosts", "a@127.0.0.1,b@127.0.0.2"]);
    run.args(["--parity", "none", "--", "echo", "hello"]).env("PATH", format!("{}:{path}", bin.display()));
    let ended = done(&mut run);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let words = fs::read_to_string(folder.join("words")).expect("ssh was started");
    assert_eq!(words.lines().count(), 2, "{words}");
    for line in words.lines() {
        assert!(line.contains("-o BatchMode=yes") && line.contains("-o ServerAliveInterval="), "{line}");
    }
}
