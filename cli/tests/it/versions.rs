//! Keepers and launchers of different builds: each reports that, with the cure; also if they do not even have the same words.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::support::{Place, STILLWIRE, done, stillwire};

/// A version that has other words behind the part that all versions share.
const OTHER: &str = "99.0.0-next.1";

/// A first frame: the beginning that all versions share, and behind it content that none has.
fn frame(kind: u8, text: &str) -> Vec<u8> {
    let mut words = vec![kind, u8::try_from(text.len()).expect("short")];
    words.extend(text.as_bytes());
    words.extend([0xff; 40]);
    let mut frame = u32::try_from(words.len()).expect("short").to_le_bytes().to_vec();
    frame.extend(words);
    frame
}

fn reported_by_keeper(words: &[u8]) -> Output {
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

/// A job over this host and another one, which is reached by this shell.
fn over_two(shell: &str) -> Command {
    let hosts = "localhost:1@127.0.0.1,other:1@127.0.0.1";
    stillwire(&["run", "-n", "2", "--hosts", hosts, "--remote-shell", shell, "--", "true"])
}

/// The first frames of a launcher and of the keeper of another host, as they lie on the link.
fn first_words(place: &Place) -> (Vec<u8>, Vec<u8>) {
    let said = |name: &str| place.folder.path().join(name);
    let (begin, ready) = (said("begin").display().to_string(), said("ready").display().to_string());
    let shell = place.remote_shell(&format!("shift; tee '{begin}' | \"$@\" | tee '{ready}'"));
    let done = done(&mut over_two(&shell));
    assert_eq!(done.code, Some(0), "{done:?}");
    let frame = |path: &str| {
        let bytes = std::fs::read(path).expect("what was said");
        let length = u32::from_le_bytes(*bytes.first_chunk().expect("a length"));
        bytes[..4 + usize::try_from(length).expect("small")].to_vec()
    };
    (frame(&begin), frame(&ready))
}

/// The version with which a frame begins.
fn version_of(frame: &[u8]) -> String {
    assert_eq!(frame[4], 0, "of the first kind");
    let text = &frame[6..6 + usize::from(frame[5])];
    String::from_utf8(text.to_vec()).expect("letters")
}

/// The same words of another version, which is as long.
fn with_version(mut frame: Vec<u8>, other: &str) -> Vec<u8> {
    frame[6..6 + other.len()].copy_from_slice(other.as_bytes());
    frame
}

/// A launcher's run with a keeper that begins with these bytes.
fn refused(place: &Place, words: &[u8]) -> crate::support::Done {
    let said = place.folder.path().join("said");
    std::fs::write(&said, words).expect("a file");
    let shell = place.remote_shell(&format!("cat '{}'; exec cat > /dev/null", said.display()));
    let refused = done(&mut over_two(&shell));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused
}

#[test]
fn two_builds_are_named_on_both_sides() {
    let place = Place::new();
    let (begin, ready) = first_words(&place);
    let own = version_of(&ready);
    assert_eq!(own, version_of(&begin));
    let (program, words) = own.split_once('+').expect("the version, and what tells builds of it apart");
    assert_eq!(program, env!("CARGO_PKG_VERSION"));
    // A person who looks for the one that differs finds it.
    assert_eq!(done(&mut stillwire(&["--version"])).stdout, format!("stillwire {own}\n"));
    let digits = |text: &str| text.replace(|digit: char| digit.is_ascii_digit(), "9");
    let letters = |text: &str| text.replace(|digit: char| digit.is_ascii_hexdigit(), "a");
    // An older version, and another build of this one.
    for other in [format!("{}+{words}", digits(program)), format!("{program}+{}", letters(words))] {
        // Of such a keeper this launcher hears.
        let said = refused(&place, &with_version(ready.clone(), &other));
        said.says(&[
            "on other",
            &format!("it has version {other} of stillwire, and this is {own}: install the same on both"),
        ]);
        // Such a launcher begins with this keeper.
        let output = reported_by_keeper(&with_version(begin.clone(), &other));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let words =
            format!("it has version {own} of stillwire, and the launcher {other}: install the same on both");
        assert!(said.contains(&words), "{output:?}");
    }
}

#[test]
fn a_keeper_reports_a_launcher_of_other_words_which_version_it_has() {
    let output = reported_by_keeper(&frame(0, OTHER));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = format!("of stillwire, and the launcher {OTHER}: install the same on both");
    assert!(said.contains("it has version ") && said.ends_with(&words), "{output:?}");
    // As every version reads it: a frame of the second kind, and a text.
    let length = usize::try_from(u32::from_le_bytes(*output.stdout.first_chunk().expect("a length")));
    let frame = &output.stdout[4..];
    assert_eq!(
        (length, frame[0], usize::from(frame[1])),
        (Ok(frame.len()), 1, frame.len() - 2),
        "{output:?}"
    );
}

#[test]
fn a_launcher_names_the_version_of_a_keeper_of_other_words() {
    let place = Place::new();
    let named = refused(&place, &frame(0, OTHER));
    named.says(&[
        "on other",
        &format!("it has version {OTHER} of stillwire, and this is "),
        "install the same on both",
    ]);
    assert!(!named.stderr.contains("no frame"), "{named:?}");
    // A frame that begins otherwise, has no version, or lacks the rest comes from no keeper.
    let own = version_of(&first_words(&place).1);
    for stray in [frame(0x7f, OTHER), frame(0, "no version"), frame(0, &"9".repeat(100)), frame(0, &own)] {
        refused(&place, &stray).says(&["on other", "no frame"]);
    }
}
