//! `stillwire restart` of whole processes with a resource that is missing, or another one: the message has the expected resource, the one that is
//! there, and the cure. Nothing is tried for long that would fail in the same way, and a job whose resources are put back goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::programs::library;
use crate::support::{Done, Place, Running, done, stillwire, wait_until};
use process::state::ProcessState;
use store::{CommitRequest, Directory, GenerationId, ImageClaim, JobDirectory, Section, kinds};

fn cc(arguments: &[&str], folder: &Path) {
    let output = Command::new("cc").args(arguments).current_dir(folder).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn make_library(folder: &Path, answer: &str) {
    let _ = fs::remove_file(folder.join("libanswer.so"));
    fs::write(folder.join("answer.c"), format!("int answer(void) {{ return {answer}; }}")).unwrap();
    cc(&["-shared", "-fPIC", "-o", "libanswer.so", "answer.c"], folder);
}

fn make_program(folder: &Path, optimisation: &str) {
    let _ = fs::remove_file(folder.join("steps"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/steps.c");
    let path = format!("-Wl,--no-as-needed,-rpath,{}", folder.display());
    cc(&[optimisation, "-o", "steps", source, "-L.", &path, "-lanswer"], folder);
}

/// A job of a program with a library of its own and a file that is open, saved and killed with its launcher.
struct Saved {
    place: Place,
    folder: PathBuf,
}

impl Saved {
    fn new() -> Saved {
        let place = Place::new();
        let folder = place.folder.path().canonicalize().expect("a folder");
        make_library(&folder, "42");
        make_program(&folder, "-O1");
        let work = folder.join("work");
        fs::create_dir(&work).unwrap();
        fs::write(work.join("data"), "before\n").unwrap();
        let enough = place.enough().display().to_string();
        let mut command =
            stillwire(&["run", "-n", "1", "--ckpt-every", "50ms", "--capture", "fork", "--ckpt-dir"]);
        command.arg(place.job()).args([
            "--",
            "sh",
            "-c",
            "exec ../steps 40 20000 100000 \"$0\" 3>>data",
            &enough,
        ]);
        command.current_dir(&work).env("STILLWIRE_PROVIDER", library());
        let mut job = Running::start(command);
        job.wait_for("committed");
        job.wait_for("committed");
        job.signal("KILL");
        drop(job.finish_reading());
        wait_until("the guard has cleaned up", || place.lock_is_free());
        Saved { place, folder }
    }

    fn restart(&self) -> Done {
        done(stillwire(&["restart", &self.place.job_text()]).env("STILLWIRE_PROVIDER", library()))
    }

    /// It is refused, and these words are the last ones of the message but for the cure.
    fn is_refused(&self, words: &[&str]) {
        let refused = self.restart();
        assert_eq!(refused.code, Some(4), "{refused:?}");
        let begun = refused.stderr.matches("begins from generation").count();
        assert!(begun <= 1, "tried again for nothing: {refused:?}");
        let reason =
            refused.stderr.lines().rfind(|line| line.contains("rank 0 cannot be restored from generation"));
        let reason = reason.unwrap_or_else(|| panic!("no reason: {refused:?}"));
        for word in words {
            assert!(reason.contains(word), "{word:?}: {reason}");
        }
        refused.says(&["is kept; go on with `stillwire restart"]);
    }

    fn goes_on(&self) {
        self.place.let_end();
        let ended = self.restart();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("[0] sum "), "{ended:?}");
        assert!(!ended.stdout.contains("[0] step 0 "), "{ended:?}");
    }
}

#[test]
fn the_executable() {
    let saved = Saved::new();
    let (path, away) = (saved.folder.join("steps"), saved.folder.join("away"));
    fs::rename(&path, &away).unwrap();
    let name = path.display().to_string();
    saved.is_refused(&[&name, "cannot be started: there is no such file"]);
    make_program(&saved.folder, "-O2");
    saved.is_refused(&[
        &name,
        "is of build",
        "and was of",
        "put the file back that was there at the checkpoint",
    ]);
    fs::rename(&away, &path).unwrap();
    saved.goes_on();
}

#[test]
fn a_library() {
    let saved = Saved::new();
    let (path, away) = (saved.folder.join("libanswer.so"), saved.folder.join("away"));
    fs::rename(&path, &away).unwrap();
    saved.is_refused(&["libanswer.so: cannot open shared object file"]);
    make_library(&saved.folder, "43");
    saved.is_refused(&[&path.display().to_string(), "is of build", "and was of", "put the file back"]);
    fs::rename(&away, &path).unwrap();
    saved.goes_on();
}

#[test]
fn the_working_directory() {
    let saved = Saved::new();
    let (work, away) = (saved.folder.join("work"), saved.folder.join("away"));
    fs::rename(&work, &away).unwrap();
    let refused = saved.restart();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&[&format!("its directory {} is not there", work.display())]);
    fs::rename(&away, &work).unwrap();
    saved.goes_on();
}

#[test]
fn an_open_file() {
    let saved = Saved::new();
    let (path, away) = (saved.folder.join("work/data"), saved.folder.join("away"));
    let name = format!("descriptor 3: \"{}\"", path.display());
    fs::copy(&path, &away).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2).unwrap();
    saved.is_refused(&[&name, "has 2 bytes, at the checkpoint it had 7", "put it back as it was"]);
    // In place: it is the same file again.
    fs::write(&path, fs::read(&away).unwrap()).unwrap();
    let kept = saved.folder.join("kept");
    fs::rename(&path, &kept).unwrap();
    saved.is_refused(&[&name, "cannot be opened", "put it back as it was"]);
    fs::copy(&kept, &path).unwrap();
    saved.is_refused(&[&name, "is not the file that was open at the checkpoint", "put that back"]);
    fs::rename(&kept, &path).unwrap();
    saved.goes_on();
}

/// Commits one more generation, whose image is of a machine that differs from this one.
fn as_if_of_another_machine(saved: &Saved, change: impl Fn(&mut ProcessState)) {
    let newest = saved.place.generations("committed").pop().expect("one");
    let newest: GenerationId = newest.parse().expect("a generation");
    let storage = Directory::open(saved.place.job()).expect("a directory");
    let (mut directory, file) = JobDirectory::open(storage).expect("a job");
    let rank = transport::Rank(0);
    let reader = directory.open_committed_image(newest, rank).expect("an image");
    let mut sections = Vec::new();
    for (number, entry) in (0u32..).zip(reader.entries()) {
        let mut bytes = reader.read_section(directory.storage(), number).expect("a section");
        if entry.kind == kinds::PROCESS {
            let mut state = ProcessState::decode(entry.version, &bytes).expect("a state");
            change(&mut state);
            bytes = state.encode();
        }
        sections.push((entry.kind, entry.version, bytes));
    }
    let sections: Vec<Section<'_>> =
        sections.iter().map(|(kind, version, bytes)| Section::new(*kind, *version, bytes)).collect();
    let generation = GenerationId { life: newest.life, epoch: newest.epoch.next() };
    directory.begin_generation(generation).expect("a new one");
    let summary = directory.write_image(generation, rank, &sections).expect("room");
    let claim = ImageClaim { rank, node: 0, digest: summary.digest, bytes: summary.bytes };
    let nodes = vec!["node".to_owned()];
    let request =
        CommitRequest { generation, ranks: file.ranks, taken_unix_ms: 0, nodes, images: vec![claim] };
    directory.commit(&request).expect("it is whole");
}

/// Such an image is refused with these words.
fn of_another_machine(change: impl Fn(&mut ProcessState), words: &[&str]) {
    let saved = Saved::new();
    as_if_of_another_machine(&saved, change);
    saved.is_refused(words);
}

#[test]
fn the_machine() {
    of_another_machine(
        |state| state.machine.features.iter_mut().for_each(|word| *word = u32::MAX),
        &["this machine's processor lacks features", "restore it on a processor that has them"],
    );
    of_another_machine(
        |state| state.machine.architecture = "aarch64".to_owned(),
        &["the image was made on aarch64, this machine is x86_64", "restore it on a machine of its kind"],
    );
}

#[test]
fn the_right_to_write() {
    let saved = Saved::new();
    let job = saved.place.job_text();
    let mut command = stillwire(&["restart", &job]);
    if nix::unistd::geteuid().is_root() {
        // Modes do not bind root: so as somebody else.
        let open =
            |path: &Path| Command::new("chmod").arg("755").arg(path).status().expect("the tool `chmod`");
        open(&saved.folder);
        let read = Command::new("chmod").args(["-R", "a+rX", &job]).status();
        assert!(read.expect("the tool `chmod`").success());
        command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            crate::support::STILLWIRE,
            "restart",
            &job,
        ]);
    } else {
        assert!(
            Command::new("chmod").args(["-R", "a-w", &job]).status().expect("the tool `chmod`").success()
        );
    }
    let refused = done(command.env("STILLWIRE_PROVIDER", library()));
    assert!(Command::new("chmod").args(["-R", "u+w", &job]).status().expect("the tool `chmod`").success());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let others = ["is not safe from other users", "expected user 65534"];
    let own = ["permission denied; make it writable for this user"];
    let words = if nix::unistd::geteuid().is_root() { others.as_slice() } else { own.as_slice() };
    refused.says(&[&[job.as_str()], words].concat());
}
