//! `run --encrypt`: the ranks' memory lies on no disk in the clear, and comes back with its key alone.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::programs::{library, steps, sum};
use crate::support::{Place, Running, done, flip, stillwire, verified, wait_until, write_key};
use store::image::ImageReader;
use store::{Directory, JobDirectory, Key, kinds};

const KEY: [u8; 32] = [0x0f; 32];
/// In the launcher's environment, so in the memory of every rank, and in no record of the job.
const MARK: (&str, &str) = ("OF_THE_LAUNCHER", "what-is-in-the-memory-of-every-rank-of-this-job");

fn key_file(place: &Place, name: &str, digits: &str) -> String {
    let path = place.folder.path().join(name);
    write_key(&path, &digits.repeat(32));
    path.display().to_string()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Bytes by which a piece is found.
const MARK_BYTES: usize = 32;

/// The files below a folder that have one of these pieces.
fn having(folder: &Path, pieces: &BTreeSet<Vec<u8>>) -> BTreeSet<String> {
    let first = |piece: &[u8]| usize::from(u16::from_be_bytes(*piece.first_chunk().expect("long enough")));
    // Most places are ruled out by their first two bytes.
    let mut firsts = vec![false; 1 << 16];
    pieces.iter().for_each(|piece| firsts[first(piece)] = true);
    let has = |path: &PathBuf| {
        let content = fs::read(path).unwrap_or_default();
        content.windows(MARK_BYTES).any(|window| firsts[first(window)] && pieces.contains(window))
    };
    let name = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    files(folder).into_iter().filter(has).map(name).collect()
}

/// Pieces of the secret sections of all images of a native program, but for data that everybody may read of them.
fn held(folder: &Path, key: Option<&Key>) -> BTreeSet<Vec<u8>> {
    let (mut pieces, mut open) = (BTreeSet::new(), HashSet::new());
    for path in files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "image")) {
        let mut storage = Directory::open(path.parent().expect("a folder")).expect("a folder");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let mut reader = ImageReader::open(&mut storage, &name).expect("an image");
        if let Some(key) = key {
            reader.unlock(&mut storage, key).expect("its key");
        }
        let content = fs::read(&path).expect("an image");
        let table = usize::try_from(reader.header().table_offset()).expect("a short file");
        open.extend(content[..64].windows(MARK_BYTES).map(<[u8]>::to_vec));
        open.extend(content[table..].windows(MARK_BYTES).map(<[u8]>::to_vec));
        for (number, entry) in (0..).zip(reader.entries()) {
            if !entry.is_encrypted() && key.is_some() {
                let public = reader.read_section(&mut storage, number).expect("a section");
                open.extend(public.windows(MARK_BYTES).map(<[u8]>::to_vec));
            }
            let memory = [kinds::SESSION_REGION, kinds::SESSION_STATE, kinds::PORT];
            if !memory.contains(&entry.kind) {
                continue;
            }
            let content = reader.read_section(&mut storage, number).expect("a section");
            let varied = |piece: &&[u8]| piece.iter().collect::<BTreeSet<_>>().len() > 12;
            let found = content.chunks_exact(MARK_BYTES).filter(varied).step_by(41).take(40);
            pieces.extend(found.map(<[u8]>::to_vec));
        }
    }
    pieces.retain(|piece| !open.contains(piece));
    assert!(pieces.len() > 20, "images hold something: {}", pieces.len());
    pieces
}

fn killed(mut job: Running, place: &Place, generations: usize) -> String {
    for _ in 0..generations {
        job.wait_for("committed");
    }
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || {
        place.lock_is_free() && !place.generations("committed").is_empty()
    });
    place.generations("committed").pop().expect("a generation")
}

/// A job of whole processes, which ends when it may.
fn whole(place: &Place, options: &[&str]) -> Running {
    let mut command =
        stillwire(&["run", "-n", "2", "--ckpt-every", "100ms", "--ckpt-dir", &place.job_text()]);
    command.args(options).args([
        "--",
        &steps(),
        "60",
        "10000",
        "1000000",
        &place.enough().display().to_string(),
        "3",
    ]);
    command.env("STILLWIRE_PROVIDER", library()).env(MARK.0, MARK.1);
    Running::start(command)
}

fn whole_sum(place: &Place) -> String {
    place.let_end();
    sum(&["60", "0", "1000000", &place.enough().display().to_string(), "3"])
}

/// Somebody wants the next images in the clear.
fn no_silent_job_file(place: &Place, key: &str) {
    let storage = Directory::open(place.job()).expect("a folder");
    let (_, file) = JobDirectory::open(storage.clone()).expect("a job");
    let mut silent = file.clone();
    silent.settings.remove("encrypt").expect("it says that images are encrypted");
    drop(JobDirectory::renew(storage.clone(), &silent).expect("room for it"));
    for options in [vec![], vec!["--key-file", key]] {
        let unsaid = done(stillwire(&["restart", &place.job_text()]).args(&options));
        unsaid.says(&[
            "images of this job are encrypted",
            "its job file names no key for new ones",
            "restore it",
        ]);
        assert_eq!(unsaid.code, Some(1));
    }
    drop(JobDirectory::renew(storage, &file).expect("room for it"));
}

#[test]
fn a_job_goes_on_with_its_key_and_with_no_other() {
    let place = Place::new();
    let (key, other) = (key_file(&place, "key", "0f"), key_file(&place, "other", "1e"));
    let newest = killed(place.run(&["--ckpt-every", "60ms", "--encrypt", "--key-file", &key]), &place, 2);
    place.let_end();
    let job = place.job_text();
    let before: BTreeSet<PathBuf> = files(&place.job()).into_iter().collect();
    let forgotten = done(&mut stillwire(&["restart", &job]));
    forgotten.says(&["images of this job are encrypted", "no key was given", "--key-file or STILLWIRE_KEY"]);
    assert_eq!(forgotten.code, Some(1));
    let wrong = done(&mut stillwire(&["restart", &job, "--key-file", &other]));
    wrong.says(&["images of this job are encrypted with the key called", "the one that was given is called"]);
    assert_eq!(wrong.code, Some(1));
    assert_eq!(before, files(&place.job()).into_iter().collect(), "nothing is changed, nothing is begun");
    no_silent_job_file(&place, &key);

    let listed = done(&mut stillwire(&["ls", &job]));
    assert!(listed.stdout.contains("4 of its images are encrypted"), "{listed:?}");
    for options in [vec![], vec!["--key-file", &key]] {
        let checked = done(stillwire(&["verify", &job]).args(&options));
        assert_eq!(checked.code, Some(0), "{checked:?}");
    }
    let image = place.file(&newest, "rank-00000002.image").display().to_string();
    let shown = done(&mut stillwire(&["inspect", &image]));
    assert!(
        shown.code == Some(0) && shown.stdout.contains("encrypted") && !shown.stdout.contains("port 2"),
        "{shown:?}"
    );
    let shown = done(&mut stillwire(&["inspect", &image, "--key-file", &key]));
    assert!(shown.code == Some(0) && shown.stdout.contains("frames: "), "{shown:?}");
    let refused = done(&mut stillwire(&["inspect", &image, "--key-file", &other]));
    refused.says(&["rank-00000002.image", "encrypted with another key", "--key-file or STILLWIRE_KEY"]);
    assert_eq!(refused.code, Some(1));

    flip(Path::new(&image), 3000);
    let checked = done(&mut stillwire(&["verify", &job]));
    assert!(
        checked.code == Some(3) && checked.stdout.contains("rank 2: "),
        "a flipped byte is found without a key: {checked:?}"
    );
    flip(Path::new(&image), 3000);

    let mut again = stillwire(&["restart", &job]);
    again.env("STILLWIRE_KEY", "0f".repeat(32));
    let mut again = Running::start(again);
    again.wait_for(&format!("begins from generation {newest}"));
    verified(&again.finish());
}

// The native program: everything that lies on the disks of four nodes, with their parity, before one is lost and after it was rebuilt.
#[test]
fn nothing_of_a_program_lies_on_the_nodes_in_the_clear_and_a_lost_one_is_rebuilt_without_the_key() {
    for encrypts in [false, true] {
        let place = Place::new();
        let key = key_file(&place, "key", "0f");
        let mut options = vec!["--nodes", "4", "--parity", "xor", "--ckpt-every", "60ms"];
        options.extend(["--encrypt", "--key-file", &key].iter().filter(|_| encrypts));
        let newest = killed(place.run(&options), &place, 3);
        let pieces = held(&place.job(), encrypts.then_some(Key(KEY)).as_ref());
        let found = having(&place.job(), &pieces);
        if !encrypts {
            assert!(found.contains("rank-00000001.image"), "the search finds what is there: {found:?}");
            continue;
        }
        assert_eq!(found, BTreeSet::new(), "none of {} pieces", pieces.len());
        let raw = BTreeSet::from([KEY.to_vec(), "0f".repeat(16).into_bytes()]);
        assert_eq!(having(&place.job(), &raw), BTreeSet::new(), "the key");

        fs::remove_dir_all(place.job().join("nodes").join("2")).expect("a directory");
        let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
        assert_eq!(repaired.code, Some(0), "{repaired:?}");
        assert!(place.job().join("nodes").join("2").exists());
        let checked = done(&mut stillwire(&["verify", &place.job_text(), "--key-file", &key]));
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert_eq!(having(&place.job(), &pieces), BTreeSet::new());
        no_silent_job_file(&place, &key);
        let listed = done(&mut stillwire(&["ls", &place.job_text()]));
        assert!(listed.stdout.contains("4 of its images are encrypted"), "{listed:?}");
        place.let_end();
        let mut again = place.restart(&["--key-file", &key]);
        again.wait_for(&format!("begins from generation {newest}"));
        verified(&again.finish());
    }
}

// Every way of capturing a process, and deltas on their bases.
#[test]
fn whole_processes_are_encrypted_and_restored_however_they_are_captured() {
    // Words of the memory that `steps` fills, between those that it touches later; and a value that every rank has on its stack.
    let words = |first: u64| (first..first + 4).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    let mut marks: BTreeSet<_> = (0..240).step_by(8).map(|page| words(page * 512 + 200)).collect();
    marks.insert(MARK.1.as_bytes()[..MARK_BYTES].to_vec());
    let clear = Place::new();
    killed(whole(&clear, &[]), &clear, 2);
    for mark in &marks {
        let found = having(&clear.job(), &BTreeSet::from([mark.clone()]));
        assert!(
            found.contains("rank-00000000.image"),
            "the search finds what is there: {mark:?} in {found:?}"
        );
    }
    for capture in ["fork", "scan", "content", "sync"] {
        let place = Place::new();
        let key = key_file(&place, "key", "0f");
        let options = ["--encrypt", "--key-file", &key, "--capture", capture];
        let newest = killed(whole(&place, &options), &place, 4);
        assert_eq!(having(&place.job(), &marks), BTreeSet::new(), "{capture}");
        let checked = done(&mut stillwire(&["verify", &place.job_text(), "--key-file", &key]));
        assert_eq!(checked.code, Some(0), "{checked:?}");
        let expected = whole_sum(&place);
        // A second life is saved and restored as the first one was: the key reaches a restored process, too.
        let mut again = place.restart(&["--key-file", &key]);
        again.wait_for(&format!("begins from generation {newest}"));
        let ended = again.finish();
        assert_eq!(ended.code, Some(0), "{capture}: {ended:?}");
        for rank in 0..2 {
            assert!(ended.stdout.contains(&format!("[{rank}] {expected}")), "{capture}: {ended:?}");
        }
    }
}

// The keeper of another host has the key from the launcher, and gives it to ranks, in later lives too.
#[test]
fn ranks_behind_a_remote_shell_get_the_key_and_no_command_line_has_it() {
    let place = Place::new();
    // No other test gives this key away: all processes of the machine are searched for it, those of tests beside this one too.
    let key = key_file(&place, "key", "d7");
    let shell = place.remote_shell("shift; exec env -u STILLWIRE_KEY \"$@\"");
    let disks = place.folder.path().join("disks").display().to_string();
    let hosts = ["--hosts", "a:1@127.0.0.1,b:1@127.0.0.2", "--remote-shell", &shell, "--node-dir", &disks];
    let mut job = whole(&place, &[&hosts[..], &["--encrypt", "--key-file", &key]].concat());
    job.wait_for("committed");
    let words = "d7".repeat(32);
    for process in fs::read_dir("/proc").expect("/proc").flatten() {
        for file in ["cmdline", "environ"] {
            let text = fs::read(process.path().join(file)).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&text).contains(&words), "{:?}/{file}", process.path());
        }
    }
    let victim = job.ranks()[1];
    crate::support::signal(victim, "KILL");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    let expected = whole_sum(&place);
    let ended = job.finish();
    assert!(ended.code == Some(0) && ended.stdout.contains(&format!("[1] {expected}")), "{ended:?}");
}

#[test]
fn a_copy_of_encrypted_images_is_brought_back() {
    let place = Place::new();
    let key = key_file(&place, "key", "0f");
    let shared = place.folder.path().join("shared");
    fs::create_dir(&shared).expect("a folder");
    let shared = shared.display().to_string();
    let options = ["--ckpt-every", "60ms", "--encrypt", "--key-file", &key, "--flush-to", &shared];
    let mut job = place.run(&options);
    job.wait_for(" copied (");
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    fs::remove_dir_all(place.job()).expect("a directory");
    place.let_end();
    let ended = place.restart(&["--from", &shared, "--key-file", &key]).finish();
    verified(&ended);
}

#[test]
fn what_would_come_to_nothing_is_refused() {
    let place = Place::new();
    let key = key_file(&place, "key", "0f");
    let job = place.job_text();
    let run = |options: &[&str]| {
        done(stillwire(&["run", "-n", "1"]).args(options).args(["--", "true"]).env_remove("STILLWIRE_KEY"))
    };
    let keyless = run(&["--ckpt-dir", &job, "--encrypt"]);
    keyless.says(&["--encrypt needs a key", "--key-file or STILLWIRE_KEY", "openssl rand -hex 32"]);
    let unsaved = run(&["--encrypt", "--key-file", &key]);
    unsaved.says(&["--encrypt encrypts images", "--ckpt-every"]);
    assert_eq!((keyless.code, unsaved.code), (Some(2), Some(2)));
    assert!(!place.job().exists());
}
