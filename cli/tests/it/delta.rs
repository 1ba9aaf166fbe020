//! `stillwire delta`: files that the caller names, and folders of checkpoints.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use crate::support::{Done, PATIENCE, done, flip, stillwire, write_key};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).expect("a file can be written");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("it can be listed");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// `stillwire delta WORDS` with this folder as the current one.
    fn delta(&self, words: &str) -> Done {
        let mut command = stillwire(&["delta", "--json"]);
        command.args(words.split(' ')).current_dir(self.0.path()).env_remove("STILLWIRE_KEY");
        done(&mut command)
    }

    fn succeeds(&self, words: &str) -> serde_json::Value {
        let done = self.delta(words);
        assert_eq!(done.code, Some(0), "{words}: {done:?}");
        done.json()
    }

    /// It fails with these words, and leaves nothing behind.
    fn fails(&self, words: &str, says: &[&str]) {
        let before = self.names();
        let done = self.delta(words);
        assert_eq!(done.code, Some(1), "{words}: {done:?}");
        done.says(says);
        assert_eq!(self.names(), before, "{words}");
    }
}

/// So many bytes that do not repeat.
fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn files_that_the_caller_names() {
    let folder = Folder::new();
    let first = noise(1, 300_001);
    let mut second = first.clone();
    second[70_000] ^= 1;
    second.extend(noise(2, 5_000));
    let mut third = second.clone();
    third.truncate(200_000);
    third[10] ^= 1;
    for (name, content) in [("first", &first), ("second", &second), ("third", &third)] {
        folder.write(name, content);
    }
    let signed = folder.succeeds("sign first --to first.signature");
    assert_eq!((&signed["blocks"], &signed["content_bytes"]), (&74.into(), &300_001.into()));
    assert!(folder.read("first.signature").len() < 2_000);

    let made = folder
        .succeeds("make second --signature first.signature --to 1.delta --signature-to second.signature");
    // One block was changed, the last one has grown, one is new.
    assert_eq!(
        (&made["changed_blocks"], &made["changed_bytes"]),
        (&3.into(), &(4096 + 4096 + 305_001 - 74 * 4096).into())
    );
    folder.succeeds("make third --signature second.signature --to 2.delta");
    let applied = folder.succeeds("apply 1.delta 2.delta --base first --to result");
    assert_eq!((folder.read("result"), &applied["files"]), (third.clone(), &3.into()));
    folder.succeeds("apply 1.delta --base first --to result.second --threads 1");
    assert_eq!(folder.read("result.second"), second);

    // Without a signature, the base itself is compared; without either, the delta is full.
    folder.succeeds("make second --base first --to by-base.delta --block-bytes 512 --compress none");
    folder.succeeds("apply by-base.delta --base first --to result.by-base");
    assert_eq!(folder.read("result.by-base"), second);
    assert_eq!(folder.succeeds("make second --to full.delta")["base"], serde_json::Value::Null);
    folder.succeeds("apply full.delta --to result.full");
    assert_eq!(folder.read("result.full"), second);

    folder.fails("apply 2.delta --base first --to x", &["2.delta", "the base is another file"]);
    folder.fails("apply 1.delta --base third --to x", &["takes block", "which ends before"]);
    folder.fails("apply 1.delta --to x", &["needs a base", "none was given"]);
    folder.fails("apply full.delta --base first --to x", &["needs no base"]);
    folder.fails("apply 2.delta 1.delta --base first --to x", &["was made against content"]);
    folder.fails("apply 1.delta --base first --to result", &["exists already", "no file is overwritten"]);
    folder.fails("apply first --base first --to x", &["a delta was expected"]);
    folder.fails("make second --signature first --to x", &["packed bytes begin"]);
    folder.fails("make nothing --to x", &["nothing", "No such file"]);
    folder.fails("sign first --to nowhere/x", &["no such file or directory"]);
    folder.fails("sign . --to x", &["Is a directory"]);
    assert_eq!(folder.delta("sign first --to x --block-bytes 1000").code, Some(2));

    flip(&folder.path("1.delta"), 5_000);
    folder.fails("apply 1.delta --base first --to x", &["1.delta", "damaged"]);
}

#[test]
fn encrypted_files() {
    let folder = Folder::new();
    folder.write("file", &b"a secret ".repeat(5_000));
    let keys =
        [("key", format!("{}\n", "0f".repeat(32))), ("other", "1f".repeat(32)), ("short", "0f0f".into())];
    keys.iter().for_each(|(name, text)| write_key(&folder.path(name), text));
    folder.succeeds("make file --to delta --compress none --key-file key");
    assert!(!folder.read("delta").windows(8).any(|bytes| bytes == b"a secret"));
    folder.fails("apply delta --to x --key-file other", &["wrong key"]);
    folder.fails("apply delta --to x", &["encrypted", "no key was given"]);
    folder.fails("apply delta --to x --key-file short", &["short", "64 hexadecimal digits"]);
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(folder.path("key"), fs::Permissions::from_mode(mode)).expect("it is ours");
        let found = format!("key belongs to user {} and has mode {mode:04o}", nix::unistd::geteuid());
        folder.fails("apply delta --to x --key-file key", &[&found, "`chmod 600 key`"]);
    }
    fs::set_permissions(folder.path("key"), fs::Permissions::from_mode(0o400)).expect("it is ours");
    folder.succeeds("apply delta --to result --key-file key");
    assert_eq!(folder.read("result"), folder.read("file"));
    let mut by_variable = stillwire(&["delta", "apply", "delta", "--to", "result.variable"]);
    by_variable.current_dir(folder.0.path()).env("STILLWIRE_KEY", "0f".repeat(32));
    assert_eq!(done(&mut by_variable).code, Some(0));
    folder.succeeds("make file --to plain");
    folder.fails("apply plain --to x --key-file key", &["neither encrypted nor signed"]);

    folder.succeeds("add kept file --key-file key");
    folder.fails("add kept file --key-file other", &["wrong key"]);
    folder.fails("get kept --to x", &["no key was given"]);
    folder.succeeds("get kept --to result.kept --key-file key");
    assert_eq!(folder.read("result.kept"), folder.read("file"));
}

#[test]
fn a_folder_of_checkpoints() {
    let folder = Folder::new();
    let mut content = noise(3, 40 * 4096);
    let mut contents = Vec::new();
    for number in 0..6usize {
        content[number * 4096] ^= 1;
        folder.write("state", &content);
        contents.push(content.clone());
        let added = folder.succeeds("add kept state --threshold 2.5");
        assert_eq!(added["number"], number);
    }
    let listed = folder.succeeds("ls kept");
    let bases: Vec<_> =
        listed["checkpoints"].as_array().unwrap().iter().map(|one| one["base_number"].clone()).collect();
    // Three blocks against one: the third delta is the base of those after it.
    assert_eq!(bases, [serde_json::Value::Null, 0.into(), 0.into(), 0.into(), 3.into(), 3.into()]);
    for (number, content) in contents.iter().enumerate() {
        folder.succeeds(&format!("get kept --number {number} --to got.{number}"));
        assert_eq!(&folder.read(&format!("got.{number}")), content);
    }
    folder.fails("get kept --number 9 --to x", &["checkpoint 9 is not there", "the newest is 5"]);
    folder.fails("get nowhere --to x", &["no such file or directory"]);
    let added = folder.succeeds("add kept state --keep 1");
    assert_eq!(added["removed"], serde_json::json!([5, 4, 2, 1]));
    folder.succeeds("get kept --to got.last");
    assert_eq!(&folder.read("got.last"), &contents[5]);

    flip(&folder.path("kept/00000003.delta"), 20);
    folder.fails("get kept --to x", &["damaged"]);
}

/// Waits until the file is there.
fn wait_for(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < PATIENCE, "{} does not come", path.display());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_stop_leaves_nothing_half_written() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        for (words, temporary) in
            [("make - --to delta", "delta.tmp"), ("add kept -", "kept/00000000.delta.tmp")]
        {
            let folder = Folder::new();
            let mut command = stillwire(&["delta"]);
            command
                .args(words.split(' '))
                .current_dir(folder.0.path())
                .stdin(Stdio::piped())
                .stderr(Stdio::piped());
            // Where this runs in the background of a shell, SIGINT is ignored, and would stay so.
            // SAFETY: `signal(2)` is one of the calls that are allowed between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    libc::signal(libc::SIGINT, libc::SIG_DFL);
                    Ok(())
                })
            };
            let mut child = command.spawn().expect("the executable starts");
            let mut input = child.stdin.take().expect("piped");
            wait_for(&folder.path(temporary));
            kill(Pid::from_raw(child.id().try_into().expect("a pid")), signal).expect("it runs");
            // It reads on until it looks.
            let zeros = vec![0; 1 << 20];
            while input.write_all(&zeros).is_ok() {}
            let output = child.wait_with_output().expect("it ends");
            assert_eq!(output.status.code(), Some(130), "{words} {signal}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("stopped"));
            let left: Vec<_> = folder.names().into_iter().filter(|name| name != "kept").collect();
            assert_eq!(left, [""; 0], "{words} {signal}");
            let kept = fs::read_dir(folder.path("kept")).into_iter().flatten();
            let names = kept.map(|entry| entry.expect("it can be listed").file_name());
            assert_eq!(names.filter(|name| name != "lock").count(), 0, "{words} {signal}");
        }
    }
}

#[test]
fn a_second_signal_ends_a_command_whatever_it_waits_for() {
    let folder = Folder::new();
    let mut command = stillwire(&["delta", "make", "-", "--to", "delta"]);
    let mut child =
        command.current_dir(folder.0.path()).stdin(Stdio::piped()).spawn().expect("the executable starts");
    wait_for(&folder.path("delta.tmp"));
    let status = format!("/proc/{}/status", child.id());
    let is_noticed = || {
        let text = fs::read_to_string(&status).expect("it runs");
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line of it");
        let caught = u64::from_str_radix(caught.trim(), 16).expect("a number");
        caught & 1 << (Signal::SIGTERM as i32 - 1) != 0
    };
    assert!(is_noticed());
    let pid = Pid::from_raw(child.id().try_into().expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    crate::support::wait_until("the first signal is taken", || !is_noticed());
    // It waits for input, which does not come.
    assert_eq!(child.try_wait().expect("it can be asked"), None);
    kill(pid, Signal::SIGTERM).expect("it runs");
    let ended = child.wait().expect("it ends");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(Signal::SIGTERM as i32));
}

#[test]
fn memory_does_not_grow_with_the_file() {
    let folder = Folder::new();
    let large = fs::File::create(folder.path("large")).expect("a file can be made");
    large.set_len(1 << 30).expect("a file with a hole");
    // Half of the file's size; most of it is address space that is only reserved.
    let limited = |words: &str| {
        let line = format!("ulimit -v 524288; exec \"$0\" delta {words}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line, crate::support::STILLWIRE]).current_dir(folder.0.path());
        let done = done(&mut command);
        assert_eq!(done.code, Some(0), "{words}: {done:?}");
    };
    limited("sign large --to signature");
    limited("make large --signature signature --to delta");
    limited("make large --to full");
    limited("apply full --to result --threads 1");
    let result = fs::File::open(folder.path("result")).expect("it was made");
    assert_eq!(result.metadata().expect("it can be asked").len(), 1 << 30);
}
