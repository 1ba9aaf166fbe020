//! Jobs whose launcher is lost with its host: another host continues them. A host is everything that a remote shell has started under its name; the
//! launcher's own is the launcher, its watcher, and the keeper and ranks beside them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    Done, Place, STILLWIRE, children_of, done, has_variable, parent, runs, signal, stillwire, verified,
    wait_until,
};

/// After which a host is lost here.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
const HOSTS: &str = "localhost:1@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3,d:1@127.0.0.4";
/// The launcher's host, as the others reach it.
const FIRST: &str = "127.0.0.1";

struct Job {
    place: Place,
    id: String,
}

impl Job {
    fn run(options: &[&str]) -> Job {
        let place = Place::new();
        let folder = place.folder.path().display().to_string();
        // The connection ends with the launcher; what it has started is in a session of its own.
        let shell = place.remote_shell(&format!(
            "host=$1; shift; [ ! -e {folder}/down-$host ] || exec sleep 60 2>/dev/null\n\
             exec 3<&0\n\
             setsid \"$@\" <&3 3<&- &\n\
             echo $! >{folder}/keeper-$host\n\
             exec 3<&-\n\
             wait"
        ));
        let disks = place.folder.path().join("disks").display().to_string();
        let usual = ["--remote-shell", &shell, "--ckpt-every", "200ms", "--node-timeout", "2s"];
        let mut all = [usual.as_slice(), &["--node-dir", &disks, "--parity", "xor", "--detach"]].concat();
        all.extend(options);
        let begun = place.run(&all).finish();
        assert_eq!(begun.code, Some(0), "{begun:?}");
        let job = Job { place, id: begun.stdout.trim().to_owned() };
        wait_until("a commit", || job.listed().is_some_and(|found| found["status"]["commits"] != 0));
        job
    }

    /// The entry in `ps --json`.
    fn listed(&self) -> Option<Value> {
        let listed = done(&mut stillwire(&["ps", "--json"])).json();
        listed["jobs"].as_array().expect("a list").iter().find(|found| found["job"] == *self.id).cloned()
    }

    fn launcher(&self) -> u32 {
        let pid = self.listed().expect("it runs")["pid"].as_u64().expect("a process");
        u32::try_from(pid).expect("a process")
    }

    fn directory(&self, node: u32) -> PathBuf {
        self.place.folder.path().join(format!("disks/stillwire-{}/{node}", self.id))
    }

    fn attach(&self, node: u32) -> crate::support::Running {
        let directory = self.directory(node).display().to_string();
        crate::support::Running::start(stillwire(&["attach", &directory]))
    }

    fn is_down(&self, host: &str) {
        std::fs::write(self.place.folder.path().join(format!("down-{host}")), b"").expect("a file");
    }

    /// Processes on the launcher's host.
    fn first_host(&self) -> Vec<u32> {
        let launcher = self.launcher();
        let watcher = parent(launcher).expect("a watcher");
        let is_keeper = |pid: &u32| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|file| file == Path::new(STILLWIRE))
        };
        let of_launcher = children_of(launcher);
        let keepers = of_launcher.iter().copied().filter(is_keeper).flat_map(children_of);
        [watcher, launcher].into_iter().chain(keepers).chain(of_launcher.iter().copied()).collect()
    }

    /// Everything of the launcher's host is gone at once, also for those that ask it later.
    fn lose_first(&self) {
        self.is_down(FIRST);
        kill_at_once(&self.first_host());
    }

    /// The same of another host.
    fn lose(&self, host: &str) {
        self.is_down(host);
        let keeper = self.keeper(host);
        kill_at_once(&children_of(keeper).into_iter().chain([keeper]).collect::<Vec<_>>());
    }

    /// The network to this host fails; everything there runs on.
    fn cut_off(&self, host: &str) {
        self.is_down(host);
        signal(self.keeper(host), "STOP");
    }

    fn heal(&self, host: &str) {
        std::fs::remove_file(self.place.folder.path().join(format!("down-{host}"))).expect("it was down");
    }

    fn keeper(&self, host: &str) -> u32 {
        let text = std::fs::read_to_string(self.place.folder.path().join(format!("keeper-{host}")));
        text.expect("it was started").trim().parse().expect("a process")
    }

    /// Processes that may continue the job, or do.
    fn successors(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").expect("a proc file system");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let state = format!("XDG_STATE_HOME={}", self.place.state().display());
        let is_one = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            words.any(|word| word == b"__successor") && has_variable(*pid, &state) && runs(*pid)
        };
        pids.filter(is_one).collect()
    }

    /// Nodes from which a launcher was started.
    fn begun(&self) -> Vec<u32> {
        (0..4).filter(|node| self.directory(*node).join("detached/run.json").exists()).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for pid in self.successors() {
            signal(pid, "TERM");
        }
        if self.listed().is_some() {
            done(&mut stillwire(&["kill", &self.id]));
        }
    }
}

/// A guard or watcher that is killed first would react to the others' ends.
fn kill_at_once(processes: &[u32]) {
    for name in ["STOP", "KILL"] {
        processes.iter().for_each(|pid| signal(*pid, name));
    }
    wait_until("they are gone", || !processes.iter().any(|pid| runs(*pid)));
}

fn says(ended: &Done, words: &[&str]) {
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.says(words);
}

#[test]
fn another_host_continues_the_job_of_a_lost_launcher() {
    let job = Job::run(&["--hosts", HOSTS, "--on-host-loss", "spread"]);
    job.lose_first();
    let since = Instant::now();
    wait_until("a candidate begins", || !job.begun().is_empty());
    let waited = since.elapsed();
    assert!(waited > 2 * NODE_TIMEOUT, "{waited:?}: the watcher of the launcher's host comes first");
    let first = job.begun()[0];
    let mut watching = job.attach(first);
    watching.wait_for("is lost; this host");
    watching.wait_for("all ranks run");
    println!("begun after {waited:?}, all ranks run after {:?}", since.elapsed());
    watching.wait_for("committed");
    // The turns of all others have passed by then.
    let turns = NODE_TIMEOUT * 6;
    std::thread::sleep(turns.saturating_sub(since.elapsed()));
    wait_until("the others leave", || job.successors().len() == 2);
    let launcher = job.launcher();
    assert_eq!(job.successors().into_iter().find(|pid| *pid != launcher), parent(launcher));
    assert_eq!(job.begun(), [first], "one successor");
    job.place.let_end();
    verified(&watching.finish());
    wait_until("nothing is left", || job.successors().is_empty());
}

#[test]
fn a_spare_host_takes_the_place_of_the_lost_launchers_host() {
    let hosts = "localhost:2@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3";
    let job = Job::run(&["--hosts", hosts, "--spare-hosts", "e@127.0.0.5"]);
    job.lose_first();
    std::fs::remove_dir_all(job.directory(0)).expect("a directory");
    wait_until("a candidate begins", || !job.begun().is_empty());
    assert_eq!(job.begun(), [1]);
    let mut watching = job.attach(1);
    watching.wait_for("127.0.0.1 does not answer: e takes its place");
    watching.wait_for("all ranks run");
    watching.wait_for("committed");
    job.place.let_end();
    verified(&watching.finish());
}

#[test]
fn a_successor_that_is_lost_with_its_host_has_one_too() {
    let job = Job::run(&["--hosts", HOSTS, "--spare-hosts", "e@127.0.0.5", "--on-host-loss", "spread"]);
    job.lose_first();
    wait_until("a candidate begins", || !job.begun().is_empty());
    let first = job.begun()[0];
    let mut watching = job.attach(first);
    watching.wait_for("all ranks run");
    watching.wait_for("committed");
    // Others reach it under its address.
    ["b", "c", "d"]
        .iter()
        .zip(1..)
        .filter(|(_, node)| *node == first)
        .for_each(|(host, _)| job.is_down(host));
    job.is_down(&format!("127.0.0.{}", first + 1));
    kill_at_once(&job.first_host());
    let left = watching.finish();
    assert_eq!(left.code, Some(1), "{left:?}");
    wait_until("another candidate begins", || job.begun().len() == 2);
    let second = job.begun().into_iter().find(|node| *node != first).expect("another one");
    let mut watching = job.attach(second);
    watching.wait_for("all ranks run");
    watching.wait_for("committed");
    job.place.let_end();
    verified(&watching.finish());
}

#[test]
fn a_job_that_ends_by_itself_or_by_a_user_has_no_successor() {
    let job = Job::run(&["--hosts", HOSTS]);
    let ended = done(&mut stillwire(&["kill", &job.id]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_until("it has ended", || job.listed().is_none());
    let finished = Job::run(&["--hosts", HOSTS]);
    let watching = crate::support::Running::start(stillwire(&["attach", &finished.id]));
    finished.place.let_end();
    verified(&watching.finish());
    // Candidates are there from the end of a keeper on.
    for job in [job, finished] {
        wait_until("nothing is left", || job.place.lock_is_free());
        std::thread::sleep(NODE_TIMEOUT / 2);
        assert_eq!((job.successors(), job.begun()), (vec![], vec![]));
        let knows = |node: &u32| job.directory(*node).join("job-end").exists();
        assert_eq!((0..4).filter(knows).count(), 4, "each node, if one of them was cut off meanwhile");
    }
}

// The user's command has reached the other hosts only.
#[test]
fn a_host_that_was_cut_off_does_not_continue_a_job_that_was_ended() {
    let job = Job::run(&["--hosts", HOSTS]);
    job.cut_off("c");
    wait_until("c has a candidate", || !job.successors().is_empty());
    let ended = done(&mut stillwire(&["kill", &job.id]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    job.heal("c");
    wait_until("it has ended", || job.listed().is_none());
    wait_until("the candidate begins", || job.begun() == [2]);
    let refused = job.attach(2).finish();
    says(&refused, &["the job is not continued from this host", "the job was ended"]);
    assert!(!job.attach(2).finish().stderr.contains("all ranks run"));
    wait_until("nothing is left", || job.successors().is_empty());
    // A person may.
    let again = job.place.restart(&["--detach"]).finish();
    assert_eq!(again.code, Some(0), "{again:?}");
    let watching = crate::support::Running::start(stillwire(&["attach", &job.id]));
    job.place.let_end();
    verified(&watching.finish());
}

#[test]
fn a_user_ends_candidates_before_they_begin() {
    let job = Job::run(&["--hosts", HOSTS]);
    job.lose_first();
    wait_until("candidates", || job.successors().len() == 3);
    let ended = done(&mut stillwire(&["kill", &job.id]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_until("nothing is left", || job.successors().is_empty());
    assert_eq!(job.begun(), Vec::<u32>::new());
    let again = done(&mut stillwire(&["kill", &job.id]));
    assert_eq!(again.code, Some(1), "{again:?}");
}

#[test]
fn a_launcher_alone_is_the_matter_of_its_watcher() {
    let job = Job::run(&["--hosts", HOSTS]);
    let killed = job.launcher();
    signal(killed, "KILL");
    let mut watching = crate::support::Running::start(stillwire(&["attach", &job.place.job_text()]));
    watching.wait_for("the job is continued from generation");
    wait_until("another launcher", || job.listed().is_some_and(|found| found["pid"] != killed));
    std::thread::sleep(NODE_TIMEOUT * 6);
    wait_until("candidates leave", || job.successors().is_empty());
    assert_eq!(job.begun(), Vec::<u32>::new());
    job.place.let_end();
    verified(&watching.finish());
}

// Its host was cut off: launcher and watcher live, and find the job taken.
#[test]
fn a_launcher_that_comes_back_leaves_the_job_to_its_successor() {
    let job = Job::run(&["--hosts", HOSTS, "--on-host-loss", "spread"]);
    let launcher = job.launcher();
    let watcher = parent(launcher).expect("a watcher");
    job.is_down(FIRST);
    [watcher, launcher].iter().for_each(|pid| signal(*pid, "STOP"));
    // The registry of another host has no entry of it.
    let registry = launcher::registry::runtime_directory().expect("a folder");
    std::fs::remove_dir_all(registry.join(&job.id)).expect("the launcher's entry");
    wait_until("a candidate begins", || !job.begun().is_empty());
    let mut watching = job.attach(job.begun()[0]);
    watching.wait_for("all ranks run");
    [launcher, watcher].iter().for_each(|pid| signal(*pid, "CONT"));
    let old = crate::support::Running::start(stillwire(&["attach", &job.place.job_text()])).finish();
    println!("{}", old.stderr);
    assert!(matches!(old.code, Some(1 | 4)), "{old:?}");
    wait_until("they end", || !runs(launcher) && !runs(watcher));
    watching.wait_for("committed");
    assert!(!watching.has_printed("rolling back"), "{:?}", watching.seen);
    job.place.let_end();
    verified(&watching.finish());
}

#[test]
fn without_a_majority_a_successor_gives_up() {
    let hosts = "localhost:2@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3";
    // An attempt waits for logins for so long.
    let job = Job::run(&["--hosts", hosts, "--successor-tries", "5s", "--start-timeout", "5s"]);
    job.lose("c");
    job.lose_first();
    wait_until("a candidate begins", || !job.begun().is_empty());
    assert_eq!(job.begun(), [1]);
    let ended = job.attach(1).finish();
    says(
        &ended,
        &["the job is not continued from this host", "attempts in 5s have failed", "stillwire restart"],
    );
    wait_until("nothing is left", || job.successors().is_empty());
}

#[test]
fn two_hosts_have_no_successor() {
    let place = Place::new();
    let refused = place
        .run(&[
            "--hosts",
            "localhost:2@127.0.0.1,b:2@127.0.0.2",
            "--parity",
            "partner",
            "--detach",
            "--on-launcher-loss",
            "continue",
        ])
        .finish();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    refused.says(&["no other host can continue the job", "the job has 2 hosts"]);
    let attended = place.run(&["--on-launcher-loss", "continue"]).finish();
    assert_eq!(attended.code, Some(2), "{attended:?}");
    attended.says(&["--detach"]);
}
