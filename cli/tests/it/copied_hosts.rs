//! Copies of images that lie on other hosts' disks: their keepers write them, and bring them back. A host here is a keeper behind a remote shell, with directories that
//! nobody else names.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::namespaces::{Host, enter, tool};
use crate::support::programs::{library, steps, sum};
use crate::support::threads::Still;
use crate::support::{
    Done, Place, Running, children_of, done, keepers, signal, stillwire, verified, wait_until, write_key,
};

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
        self.run_on(HOSTS, script, options)
    }

    fn run_on(&self, hosts: &str, script: &str, options: &[&str]) -> Running {
        let shell = self.place.remote_shell(script);
        let disks = text(&self.place.folder.path().join("disks"));
        let mut all = vec!["--ckpt-every", "60ms", "--parity", "xor", "--node-dir", &disks];
        all.extend(["--hosts", hosts, "--remote-shell", &shell, "--flush-to", &self.shared]);
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
        let done = self.place.restart(&[&["--from", &self.shared, "--trust"], options].concat()).finish();
        verified(&done);
        done
    }

    /// The location of the copies is relative to the folder beside them.
    fn go_on_from_beside(&self, options: &[&str]) -> Done {
        self.place.let_end();
        let mut command = stillwire(&["restart", &self.place.job_text(), "--from", "shared", "--trust"]);
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

// Files that a node still has stay there; the other nodes fetch theirs.
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

/// A copy of a folder, with all that is below it.
fn copy_of(from: &Path, to: &Path) {
    let copied = done(std::process::Command::new("cp").arg("-a").args([from, to]));
    assert_eq!(copied.code, Some(0), "{copied:?}");
}

impl Hosts {
    /// Goes on, without a copy, until all ranks run, and is killed.
    fn another_life(&self) {
        let mut job = self.place.restart(&["--flush-to", &self.shared, "--flush-every", "1000000"]);
        job.wait_for("all ranks run");
        job.signal("KILL");
        job.finish();
        wait_until("the guard has cleaned up", || self.place.lock_is_free());
    }
}

// One host is left, and knows of a life of which there is no copy.
#[test]
fn a_launcher_whose_directory_is_lost_learns_from_the_nodes() {
    let hosts = Hosts::new();
    hosts.killed(&["--flush-every", "1", "--keep", "64"]);
    let newest = hosts.copies().pop().expect("a copy");
    hosts.another_life();
    for node in ["1", "2"] {
        fs::remove_dir_all(hosts.of_job().join(node)).expect("a directory");
    }
    fs::remove_dir_all(hosts.place.job()).expect("a directory");
    let done = hosts.go_on(&[]);
    done.says(&[
        "the nodes' records of the job's lives, up to 2.",
        "2 files were brought to 2 nodes",
        &format!("begins from generation {newest}"),
        "life 3.",
    ]);
}

#[test]
fn nodes_that_went_on_apart_are_reported_and_so_is_a_launcher_s_older_directory() {
    let hosts = Hosts::new();
    hosts.killed(&["--keep", "64"]);
    let folder = hosts.place.folder.path();
    let (job, disks, before) = (hosts.place.job(), folder.join("disks"), folder.join("before"));
    fs::create_dir(&before).expect("a directory can be made");
    copy_of(&job, &before.join("job"));
    copy_of(&disks, &before.join("disks"));
    hosts.another_life();
    // The launcher's directory is the one of before; the nodes' are not.
    fs::remove_dir_all(&job).expect("a directory");
    copy_of(&before.join("job"), &job);
    let older = hosts.place.restart(&[]).finish();
    wait_until("the guards have cleaned up", || hosts.place.lock_is_free());
    older.says(&["a knows life 2.", "that one is an older state", "`stillwire restart`"]);
    assert_eq!(older.code, Some(1), "{older:?}");
    // Host a goes its own way.
    let of_a = hosts.of_job().join("0");
    let aside = folder.join("aside");
    fs::rename(&of_a, &aside).expect("it can be renamed");
    for place in [&job, &disks] {
        fs::remove_dir_all(place).expect("a directory");
        copy_of(&before.join(place.file_name().expect("a name")), place);
    }
    hosts.another_life();
    fs::remove_dir_all(&of_a).expect("a directory");
    fs::rename(&aside, &of_a).expect("it can be renamed");
    fs::remove_dir_all(&job).expect("a directory");
    let apart = hosts.place.restart(&["--from", &hosts.shared, "--trust"]).finish();
    apart.says(&["knows life 2.", "it was restarted twice from the same state", "--hosts"]);
    assert_eq!(apart.code, Some(1), "{apart:?}");
}

// The thread that packs on b waits for its place, as for a server that is gone, and b itself goes on.
#[test]
fn a_part_that_hangs_is_given_up_and_the_next_copies_are_tried() {
    let hosts = Hosts::new();
    let mut job = hosts.run("shift; exec \"$@\"", &["--flush-keep", "64", "--flush-patience", "3s"]);
    job.wait_for(" copied (");
    let still = Still::new(keepers(job.pid())[1], "stillwire-copies");
    job.wait_for("b: it has made no progress for 3s, as if the place did not answer there");
    job.wait_for("b: its part of an older copy, which was given up, still waits for");
    drop(still);
    job.wait_for(" copied (");
    hosts.place.let_end();
    verified(&job.finish());
    hosts.are_whole(&[]);
}

/// Whole processes of so many bytes, one on each of three hosts, of which there is a copy; all is killed, and the disks are lost.
fn large_and_lost(hosts: &Hosts) -> (Vec<String>, String) {
    const STEPS: [&str; 3] = ["40", "50000", "100000000"];
    let shell = hosts.place.remote_shell("shift; cd /; exec \"$@\"");
    let disks = text(&hosts.place.folder.path().join("disks"));
    let enough = text(&hosts.place.enough());
    let mut command =
        stillwire(&["run", "-n", "3", "--ckpt-every", "300ms", "--ckpt-dir", &hosts.place.job_text()]);
    command.args(["--hosts", "a:1@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3", "--remote-shell", &shell]);
    command.args(["--node-dir", &disks, "--parity", "none", "--flush-to", &hosts.shared, "--", &steps()]);
    command.args(STEPS).args([&enough, "3"]).env("STILLWIRE_PROVIDER", library());
    let mut job = Running::start(command);
    job.wait_for(" copied (");
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || hosts.place.lock_is_free());
    let of_job = hosts.of_job();
    fs::remove_dir_all(&of_job).expect("directories");
    let names = (0..3).map(|node| text(&of_job.join(node.to_string()))).collect();
    fs::write(hosts.place.enough(), b"").expect("a file can be written");
    (names, sum(&[STEPS[0], "0", STEPS[2], &enough, "3"]))
}

/// Files of images below a node's directory, and whether a name marks it as not whole.
fn images(node: &str) -> Vec<(String, bool)> {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = below(node.into()).filter(|path| path.is_dir()).flat_map(below).flat_map(below);
    let names = files.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let of_ranks = names.filter(|name| name.starts_with("rank-"));
    of_ranks.map(|name| (name.clone(), !name.ends_with(".image"))).collect()
}

fn restarted(hosts: &Hosts) -> Running {
    let mut command = stillwire(&["restart", &hosts.place.job_text(), "--from", &hosts.shared, "--trust"]);
    command.env("STILLWIRE_PROVIDER", library());
    Running::start(command)
}

#[test]
fn what_is_brought_ends_at_once_when_a_person_wants_it_and_a_keeper_that_dies_costs_its_own_part() {
    let hosts = Hosts::new();
    let (nodes, sum) = large_and_lost(&hosts);
    let is_begun = |node: &String| images(node).iter().any(|(_, is_half)| *is_half);
    let job = restarted(&hosts);
    wait_until("an image is being brought", || nodes.iter().any(is_begun));
    job.signal("INT");
    let stopped = job.finish();
    assert_ne!(stopped.code, Some(0), "{stopped:?}");
    let left: Vec<_> = nodes.iter().flat_map(|node| images(node)).collect();
    assert!(left.iter().all(|(_, is_half)| !is_half) && left.len() < 3, "{left:?}: {stopped:?}");

    let job = restarted(&hosts);
    wait_until("all images are being brought", || nodes.iter().all(is_begun));
    signal(keepers(job.pid())[1], "KILL");
    let done = job.finish();
    done.says(&[
        "2 files were brought to 2 nodes",
        "1 files were brought to 1 nodes",
        "begins from generation",
    ]);
    assert_eq!(done.code, Some(0), "{done:?}");
    for rank in 0..3 {
        assert!(done.stdout.contains(&format!("[{rank}] {sum}")), "{done:?}");
    }
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
    refused.says(&["no rank can be started on b", &hosts.shared, "copies need a place that all hosts share"]);
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
    done.says(&[&format!("/{epoch} was abandoned: b: its keeper is gone; the job goes on")]);
    verified(&done);
    hosts.are_whole(&[]);
}

// Its keeper, its ranks and its network are gone at one instant, while its part is the only one that is not written yet.
#[test]
fn a_host_that_vanishes_in_a_copy_costs_that_copy_and_another_one_takes_its_place() {
    let name = "a_host_that_vanishes_in_a_copy_costs_that_copy_and_another_one_takes_its_place";
    match enter("copied_hosts", name, &["--user", "--map-root-user", "--mount", "--net"]) {
        Ok(true) => {}
        Ok(false) => return,
        Err(missing) => return crate::skipped::skipped(name, &missing),
    }
    tool("ip", "link set lo up");
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a router");
    let hosts = Hosts::new();
    let entrances = hosts.place.folder.path().join("entrances");
    fs::create_dir(&entrances).expect("a directory can be made");
    let host = |name: &str, number: u32| {
        let host = Host::new(number);
        fs::write(entrances.join(name), host.entrance()).expect("a file can be written");
        host
    };
    let (_a, b, _c) = (host("a", 1), host("b", 2), host("c", 3));
    let shell = format!("host=$1; shift; cd /; . {}/$host", text(&entrances));
    let named = "a:2@10.78.1.1,b:1@10.78.2.1,c:1@10.78.3.1";
    let mut job = hosts.run_on(named, &shell, &["--flush-keep", "64"]);
    job.wait_for(" copied (");
    // The command that enters a namespace has the keeper as its child.
    let keeper = children_of(keepers(job.pid())[1])[0];
    let shared = PathBuf::from(&hosts.shared);
    let has = |folder: &Path, rank: u32| folder.join(format!("rank-{rank:08}.places")).exists();
    let (folder, still) = loop {
        let (still, mut waits) = (Still::new(keeper, "stillwire-copies"), None);
        wait_until("the other parts are written", || {
            waits = begun(&shared).filter(|folder| [0, 1, 3].into_iter().all(|rank| has(folder, rank)));
            waits.is_some()
        });
        // Rank 2's part may have been written before its keeper was stopped.
        if let Some(folder) = waits.filter(|folder| !has(folder, 2)) {
            break (folder, still);
        }
    };
    drop(b);
    drop(still);
    job.wait_for("was abandoned: b: its keeper is gone; the job goes on");
    wait_until("what was written is taken back", || !folder.exists());
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || hosts.place.lock_is_free());
    hosts.are_whole(&[]);
    fs::remove_dir_all(hosts.of_job().join("1")).expect("a directory");
    let _d = host("d", 4);
    hosts.go_on(&["--hosts", "a@10.78.1.1,d@10.78.4.1,c@10.78.3.1"]).says(&["begins from generation"]);
}

#[test]
fn the_key_goes_to_the_keepers_and_without_it_nothing_is_brought() {
    let hosts = Hosts::new();
    let key = |name: &str, digits: &str| {
        let path = hosts.place.folder.path().join(name);
        write_key(&path, &digits.repeat(32));
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

#[test]
fn keepers_sign_what_they_copy_and_bring_only_what_is_signed() {
    let hosts = Hosts::new();
    let key = hosts.place.folder.path().join("key");
    write_key(&key, &"0f".repeat(32));
    let key = text(&key);
    hosts.killed(&["--sign", &key]);
    hosts.are_whole(&["--sign", &key]);
    fs::remove_dir_all(hosts.of_job()).expect("directories");
    hosts.place.let_end();
    let done = hosts.place.restart(&["--from", &hosts.shared, "--sign", &key]).finish();
    verified(&done);
    done.says(&["files were brought to"]);
}
