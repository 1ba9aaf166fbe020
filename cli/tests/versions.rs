//! Keepers and launchers of versions that do not even have the same words: each says so, and what to do.

mod support;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use support::{Place, STILLWIRE, done, stillwire};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const OTHER: &str = "99.0.0-next.1";

/// A first frame of another version: what all versions have at its beginning, and what none has behind it.
fn frame(kind: u8, text: &str) -> Vec<u8> {
    let mut words = vec![kind, u8::try_from(text.len()).expect("short")];
    words.extend(text.as_bytes());
    words.extend([0xff; 40]);
    let mut frame = u32::try_from(words.len()).expect("short").to_le_bytes().to_vec();
    frame.extend(words);
    frame
}

fn told_by_keeper(words: &[u8]) -> Output {
    let mut keeper = Command::new(STILLWIRE)
        .arg("__keeper")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable starts");
    let mut to = keeper.stdin.take().expect("a pipe");
    to.write_all(words).expect("it reads");
    let output = keeper.wait_with_output().expect("its end");
    assert!(!output.status.success(), "{output:?}");
    output
}

#[test]
fn a_keeper_tells_a_launcher_of_another_version_which_one_it_has() {
    let output = told_by_keeper(&frame(0, OTHER));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words =
        format!("it has version {VERSION} of stillwire, and the launcher {OTHER}: install the same on both");
    assert!(said.contains(&words), "{output:?}");
    // As every version reads it: a frame of the second kind, and a text.
    let length = usize::try_from(u32::from_le_bytes(*output.stdout.first_chunk().expect("a length")));
    let frame = &output.stdout[4..];
    assert_eq!((length, frame[0], usize::from(frame[1])), (Ok(frame.len()), 1, words.len()), "{output:?}");
}

#[test]
fn a_launcher_names_the_version_of_another_keeper() {
    let place = Place::new();
    let said = place.folder.path().join("said");
    let shell = place.remote_shell(&format!("cat '{}'; exec cat > /dev/null", said.display()));
    let hosts = "localhost:1@127.0.0.1,other:1@127.0.0.1";
    let refused = |words: &[u8]| {
        std::fs::write(&said, words).expect("a file");
        let command = ["run", "-n", "2", "--hosts", hosts, "--remote-shell", &shell, "--", "true"];
        let refused = done(&mut stillwire(&command));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused
    };
    let words =
        format!("it has version {OTHER} of stillwire, and this is {VERSION}: install the same on both");
    let named = refused(&frame(0, OTHER));
    named.says(&["on other", &words]);
    assert!(!named.stderr.contains("no frame"), "{named:?}");
    // What begins otherwise, or with what is no version, is of nobody.
    for stray in [frame(0x7f, OTHER), frame(0, "no version"), frame(0, &"9".repeat(100)), frame(0, VERSION)] {
        refused(&stray).says(&["on other", "no frame"]);
    }
}
