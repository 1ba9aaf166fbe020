//! Copies of images that lie on other hosts' disks: their keepers write them, and bring them back. A host here is a keeper behind a remote shell, with directories that
//! nobody else names.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{Done, Place, Running, done, keepers, signal, stillwire, verified, wait_until};

const HOSTS: &str = "a:2@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3";

struct Hosts {
    place: Place,
    shared: String,
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Hosts {
    fn new() -> Hosts {
        let place = Place::new();
        let shared = place.folder.path().join("shared");
        fs::create_dir(&shared).expect("a directory can be made");
        Hosts { shared: text(&shared), place }
    }

    fn run(&self, script: &str, options: &[&str]) -> Running {
        let shell = self.place.remote_shell(script);
        let disks = text(&self.place.folder.path().join("disks"));
        let mut all = vec!["--ckpt-every", "60ms", "--parity", "xor", "--node-dir", &disks];
        all.extend(["--hosts", HOSTS, "--remote-shell", &shell, "--flush-to", &self.shared]);
        all.extend(options);
        self.place.run(&all)
    }

    /// The nodes' directories of the job.
    fn of_job(&self) -> PathBuf {
        let mut jobs = fs::read_dir(self.place.folder.path().join("disks")).expect("a folder");
        jobs.next().expect("a job").expect("an entry").path()
    }

    /// Two copies are there, and everything is killed.
    fn killed(&self, options: &[&str]) {
        let mut job = self.run("shift; cd /; exec \"$@\"", options);
        for _ in 0..2 {
            job.wait_for(" copied (");
        }
        job.signal("KILL");
        job.finish();
        wait_until("the guard has cleaned up", || self.place.lock_is_free());
    }

    fn copies(&self) -> Vec<String> {
        let listed = done(&mut stillwire(&["ls", "--json", &self.shared])).json()["jobs"][0].clone();
        let copies = listed["copies"].as_array().expect("a list").iter();
        copies.map(|copy| copy["generation"].as_str().expect("a name").to_owned()).collect()
    }

    fn are_whole(&self, options: &[&str]) {
        let verified = done(&mut stillwire(&[&["verify", &self.shared], options].concat()));
        assert!(
            verified.code == Some(0) && verified.stdout.contains("every byte is as it was copied"),
            "{verified:?}"
        );
    }

    fn go_on(&self, options: &[&str]) -> Done {
        self.place.let_end();
        let done = self.place.restart(&[&["--from", &self.shared], options].concat()).finish();
        verified(&done);
        done
    }

    /// The copies are named as one does who stands beside them.
    fn go_on_from_beside(&self, options: &[&str]) -> Done {
        self.place.let_end();
        let mut command = stillwire(&["restart", &self.place.job_text(), "--from", "shared"]);
        command.args(options).current_dir(self.place.folder.path());
        let done = Running::start(command).finish();
        verified(&done);
        done
    }
}

// Every disk is lost, and the launcher's directory too. Spares with nothing on their disks take the places of two hosts. Keepers have a working directory
// that is not the launcher's, as behind ssh.
#[test]
fn a_job_that_lost_all_its_hosts_goes_on_on_empty_ones() {
    let hosts = Hosts::new();
    hosts.killed(&[]);
    hosts.are_whole(&[]);
    let newest = hosts.copies().pop().expect("a copy");
    fs::remove_dir_all(hosts.of_job()).expect("directories");
    fs::remove_dir_all(hosts.place.job()).expect("a directory");
    let done = hosts.go_on_from_beside(&["--hosts", "d@127.0.0.4,e@127.0.0.5,a@127.0.0.1"]);
    done.says(&[
        &format!("bring what they had of it from {}", hosts.shared),
        "4 files were brought to 3 nodes",
        &format!("begins from generation {newest}"),
    ]);
}

// What a node still has stays there; the others bring theirs.
#[test]
fn only_what_is_lost_is_brought() {
    let hosts = Hosts::new();
    hosts.killed(&["--flush-every", "1", "--keep", "8"]);
    let newest = hosts.copies().pop().expect("a copy");
    for node in ["1", "2"] {
        fs::remove_dir_all(hosts.of_job().join(node)).expect("a directory");
    }
    let done = hosts.go_on(&[]);
    done.says(&["2 files were brought to 2 nodes", &format!("begins from generation {newest}")]);
}

// Host b has its own directory under the name of the shared one.
#[test]
fn a_place_that_hosts_do_not_share_is_refused() {
    let hosts = Hosts::new();
    let script = format!(
        "host=$1; shift; if [ $host = b ]; then exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none {}; exec \"$@\"' sh \"$@\"; fi; exec \"$@\"",
        hosts.shared
    );
    let refused = hosts.run(&script, &[]).finish();
    refused.says(&[
        "no rank can be started on b",
        &hosts.shared,
        "copies want a place that all hosts have in common",
    ]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(fs::read_dir(&hosts.shared).expect("a directory").count(), 0, "something is left there");
}

/// The folder of a copy that is being written.
fn begun(shared: &Path) -> Option<PathBuf> {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders = below(shared.to_owned()).flat_map(below).flat_map(below);
    folders.find(|folder| folder.is_dir() && !folder.join("copied").exists())
}

// The keeper of b stands still before it has written its part, and is killed when the other parts are there.
#[test]
fn a_keeper_that_dies_in_a_copy_costs_that_copy() {
    let hosts = Hosts::new();
    let shared = PathBuf::from(&hosts.shared);
    let mut job = hosts.run("shift; exec \"$@\"", &["--flush-keep", "64"]);
    job.wait_for(" copied (");
    let victim = keepers(job.pid())[1];
    let folder = loop {
        wait_until("a copy begins", || begun(&shared).is_some());
        signal(victim, "STOP");
        if let Some(folder) = begun(&shared) {
            let is_there = |rank: u32| folder.join(format!("rank-{rank:08}.places")).exists();
            wait_until("the other parts are written", || is_there(2) || [0, 1, 3].into_iter().all(is_there));
            if !is_there(2) {
                break folder;
            }
        }
        signal(victim, "CONT");
    };
    signal(victim, "KILL");
    wait_until("what was written is taken back", || !folder.exists());
    job.wait_for("all ranks run again");
    job.wait_for(" copied (");
    hosts.place.let_end();
    let done = job.finish();
    let epoch =
        folder.file_name().and_then(|name| name.to_str()?.strip_prefix("epoch-")?.parse::<u32>().ok());
    let epoch = epoch.expect("a folder of a copy");
    done.says(&[&format!("/{epoch} came to nothing: b: its keeper is gone; the job goes on")]);
    verified(&done);
    hosts.are_whole(&[]);
}

#[test]
fn the_key_goes_to_the_keepers_and_without_it_nothing_is_brought() {
    let hosts = Hosts::new();
    let key = |name: &str, digits: &str| {
        let path = hosts.place.folder.path().join(name);
        fs::write(&path, digits.repeat(32)).expect("a file can be written");
        text(&path)
    };
    let (key, other) = (key("key", "0f"), key("other", "1e"));
    hosts.killed(&["--key-file", &key]);
    hosts.are_whole(&["--key-file", &key]);
    fs::remove_dir_all(hosts.of_job()).expect("directories");
    let wrong = hosts.place.restart(&["--from", &hosts.shared, "--key-file", &other]).finish();
    wrong.says(&["is encrypted with another key"]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    hosts.go_on(&["--key-file", &key]);
}
