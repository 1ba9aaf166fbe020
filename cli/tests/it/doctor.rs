//! `stillwire doctor`: problems are found, with their cures. Libraries are small C files with the right names.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use crate::support::{Done, done, stillwire};
use serde_json::Value;
use tempfile::TempDir;

const MPI: &str = r#"
#include <string.h>
int fi_version(void);
int MPI_Init(void) { return fi_version(); }
int MPI_Get_library_version(char *text, int *length) { strcpy(text, "Paper MPI\t9.8\nmore"); *length = 19; return 0; }
"#;

/// Offers the provider in OFFERED, and is of version MAJOR.MINOR.
const FABRIC: &str = r#"
#include <stddef.h>
struct attributes { void *fabric; char *name, *provider; };
struct info { struct info *next; long others[12]; struct attributes *fabric; };
static struct attributes attributes = { 0, 0, OFFERED };
static struct info info = { 0, { 0 }, &attributes };
unsigned fi_version(void) { return MAJOR << 16 | MINOR; }
int fi_getinfo(unsigned version, char *node, char *service, unsigned long flags, void *hints, struct info **out)
{
    *out = &info;
    return CODE;
}
"#;

fn cc(arguments: &[&str]) {
    let output = Command::new("cc").args(arguments).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A folder with a provider, an MPI library that is linked to a libfabric, and a program `prog` that is linked to it.
fn made(offered: &str, version: (u32, u32), code: i32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path).display().to_string();
    for (path, text) in [
        ("libstillwire_fi.so", ""),
        ("mpi.c", MPI),
        ("fabric.c", FABRIC),
        ("prog.c", "int MPI_Init(void); int main(void) { return MPI_Init(); }\n"),
    ] {
        fs::write(folder.path().join(path), text).unwrap();
    }
    let shared = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN"];
    let (major, minor) = (format!("-DMAJOR={}", version.0), format!("-DMINOR={}", version.1));
    let (offered, code) = (format!("-DOFFERED=\"{offered}\""), format!("-DCODE={code}"));
    let fabric = at("libfabric.so.1");
    cc(&[
        &shared[..],
        &["-Wl,-soname,libfabric.so.1", &major, &minor, &offered, &code, "-o", &fabric, &at("fabric.c")],
    ]
    .concat());
    let mpi = at("libmpi.so.12");
    cc(&[&shared[..], &["-Wl,-soname,libmpi.so.12", "-o", &mpi, &at("mpi.c"), &fabric]].concat());
    cc(&["-o", &at("prog"), &at("prog.c"), &mpi, "-Wl,-rpath,$ORIGIN"]);
    folder
}

fn doctor(folder: &Path, arguments: &[&str]) -> Done {
    let mut command = stillwire(&["doctor"]);
    done(command.args(arguments).env("STILLWIRE_PROVIDER", folder).current_dir(folder))
}

fn finding(done: &Done, what: &str) -> Value {
    let report = done.json();
    let found =
        report["findings"].as_array().unwrap().iter().find(|finding| finding["what"] == what).cloned();
    found.unwrap_or_else(|| panic!("{what}: {report}"))
}

#[test]
fn a_program_that_is_in_order() {
    let folder = made("stillwire", (1, 17), 0);
    let json = doctor(folder.path(), &["--json", "./prog"]);
    for (what, words) in [
        ("provider", "libstillwire_fi.so"),
        ("MPI", "Paper MPI 9.8 ("),
        ("libfabric", "1.17 ("),
        ("provider taken", "offers `stillwire`"),
    ] {
        let finding = finding(&json, what);
        assert_eq!(finding["state"], "ok", "{finding}");
        assert!(finding["found"].as_str().unwrap().contains(words), "{finding}");
    }
    let text = doctor(folder.path(), &["./prog", "--its", "arguments"]);
    assert!(
        text.stdout.lines().any(|line| line.starts_with("ok       MPI") && line.contains("libmpi.so.12")),
        "{text:?}"
    );
}

#[test]
fn a_libfabric_that_does_not_take_the_provider() {
    for (folder, what, words) in [
        (made("tcp", (2, 5), 0), "provider taken", "fi_getinfo gives 0"),
        (made("stillwire", (2, 5), -61), "provider taken", "fi_getinfo gives -61"),
        (made("stillwire", (1, 11), 0), "libfabric", "1.11"),
    ] {
        let json = doctor(folder.path(), &["--json", "./prog"]);
        assert_eq!(json.code, Some(3), "{json:?}");
        let finding = finding(&json, what);
        assert_eq!(finding["state"], "problem", "{finding}");
        assert!(
            finding["found"].as_str().unwrap().contains(words) && finding["fix"].is_string(),
            "{finding}"
        );
        let text = doctor(folder.path(), &["./prog"]);
        assert!(text.stdout.contains("PROBLEM") && text.stdout.contains("-> "), "{text:?}");
    }
}

#[test]
fn libraries_that_are_missing() {
    let folder = made("stillwire", (2, 5), 0);
    fs::remove_file(folder.path().join("libstillwire_fi.so")).unwrap();
    let without = doctor(folder.path(), &["--json", "./prog"]);
    assert_eq!((without.code, &finding(&without, "provider")["state"]), (Some(3), &"problem".into()));
    fs::write(folder.path().join("libfabric.so.1"), "not a library").unwrap();
    let without = doctor(folder.path(), &["--json", "./prog"]);
    let found = finding(&without, "MPI");
    assert!(found["found"].as_str().unwrap().contains("libfabric.so.1"), "the loader's own words: {found}");
    fs::remove_file(folder.path().join("libmpi.so.12")).unwrap();
    let without = doctor(folder.path(), &["--json", "./prog"]);
    assert!(
        finding(&without, "MPI")["found"].as_str().unwrap().contains("needs libmpi.so.12"),
        "{without:?}"
    );
}

#[test]
fn the_machine_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libstillwire_fi.so"), "").unwrap();
    let json = doctor(folder.path(), &["--json"]);
    for what in [
        "kernel",
        "reading peers",
        "shared memory",
        "huge pages",
        "receive buffers",
        "send buffers",
        "UDP send offload",
    ] {
        let finding = finding(&json, what);
        assert_eq!(finding["fix"].is_null(), finding["state"] == "ok", "{finding}");
    }
    let none = doctor(folder.path(), &["no-such-program-anywhere"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    none.says(&["no directory in PATH has such a program"]);
    let plain = doctor(folder.path(), &["--json", "sh", "-c", "true"]);
    assert!(finding(&plain, "MPI")["found"].as_str().unwrap().contains("none is linked"), "{plain:?}");
}

#[test]
fn a_process_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let start = |script: &str| {
        let mut child = Command::new("bash")
            .args(["-c", script])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line, "up\n");
        child
    };
    let close = "for fd in $(ls /proc/$$/fd); do [ $fd -lt 3 ] || eval \"exec $fd<&-\"; done;";
    let mut good = start(&format!("{close} exec 5>file; echo up; read x"));
    let seen = doctor(folder.path(), &["--json", "--pid", &good.id().to_string()]);
    assert_eq!(finding(&seen, "process")["state"], "ok");
    assert_eq!(seen.code, Some(0));
    let mut bad = start(&format!("{close} mkfifo fifo; exec 5<>fifo; echo up; read x"));
    let seen = doctor(folder.path(), &["--json", "--pid", &bad.id().to_string()]);
    let process = finding(&seen, "process");
    assert_eq!((seen.code, process["state"].as_str()), (Some(3), Some("problem")));
    let found = process["found"].as_str().unwrap();
    assert!(found.starts_with("descriptor 5 (") && found.contains("a named pipe"), "{found}");
    assert_eq!(process["fix"], "close it before a checkpoint");
    for child in [&mut good, &mut bad] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let gone = doctor(folder.path(), &["--json", "--pid", &good.id().to_string()]);
    assert!(finding(&gone, "process")["found"].as_str().unwrap().contains("cannot be inspected"));
}

#[test]
fn the_key_of_programs_without_a_launcher() {
    let folder = made("stillwire", (2, 5), 0);
    let place = tempfile::tempdir().unwrap();
    let (home, runtime) = (place.path().join("home"), place.path().join("run"));
    let key = runtime.join("stillwire").join("key");
    let look = |named: Option<&Path>| {
        let mut command = stillwire(&["doctor", "--json", "./prog"]);
        command.env("STILLWIRE_PROVIDER", folder.path()).current_dir(folder.path());
        command.env("HOME", &home).env("XDG_RUNTIME_DIR", &runtime).env_remove("STILLWIRE_KEY_FILE");
        command.envs(named.map(|named| ("STILLWIRE_KEY_FILE", named)));
        finding(&done(&mut command), "key")
    };
    let says = |finding: &Value, state: &str, words: &[&str]| {
        assert_eq!(finding["state"], state, "{finding}");
        let found = finding["found"].as_str().unwrap();
        assert!(words.iter().all(|words| found.contains(words)), "{finding}");
    };
    for directory in [&home, &runtime] {
        fs::DirBuilder::new().mode(0o700).create(directory).unwrap();
    }
    says(&look(None), "ok", &[key.to_str().unwrap(), "does not exist yet"]);
    assert!(!runtime.join("stillwire").exists(), "looking makes nothing");
    fs::DirBuilder::new().mode(0o700).create(runtime.join("stillwire")).unwrap();
    fs::write(&key, [1; 16]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let exposed = look(None);
    says(&exposed, "problem", &[key.to_str().unwrap(), "mode 644", "mode 600"]);
    assert!(exposed["fix"].as_str().unwrap().contains("STILLWIRE_KEY_FILE"), "{exposed}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let exists = look(None);
    says(&exists, "ok", &[key.to_str().unwrap(), "of this user on this host"]);
    assert!(!exists["found"].as_str().unwrap().contains("yet"), "{exists}");
    says(
        &look(Some(&home.join("k"))),
        "ok",
        &[home.join("k").to_str().unwrap(), "named by STILLWIRE_KEY_FILE"],
    );
}
