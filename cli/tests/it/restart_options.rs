//! Options given to `restart` become the job's as soon as all ranks run with them, and the next restart need not repeat them. Options for one restart
//! alone stay so.

use std::fs;
use std::path::Path;

use crate::support::{Place, Running, stillwire, verified};
use store::JobFile;

fn file(folder: &Path) -> JobFile {
    JobFile::parse(&fs::read(folder.join("job")).expect("a job's file")).expect("a whole one")
}

fn setting(folder: &Path, name: &str) -> Option<String> {
    file(folder).settings.get(name).cloned()
}

fn nic(folder: &Path) -> Option<String> {
    let all = file(folder).environment;
    all.iter()
        .find_map(|entry| Some(String::from_utf8_lossy(entry.strip_prefix(b"STILLWIRE_NIC=")?).into_owned()))
}

/// Ends it when it runs and has saved something.
fn stopped(mut job: Running) {
    job.wait_for("all ranks run");
    job.checkpoint();
    job.signal("INT");
    job.finish();
}

/// A job on hosts that are this machine; the remote shell notes whom it was to reach, and does not reach `nobody`.
struct Hosts {
    place: Place,
}

impl Hosts {
    fn new() -> Hosts {
        let place = Place::new();
        let asked = place.folder.path().join("asked").display().to_string();
        let shell = place
            .remote_shell(&format!("echo $1 >> {asked}; [ $1 != nobody ] || exit 255; shift; exec \"$@\""));
        let disks = place.folder.path().join("disks").display().to_string();
        let hosts = "a@127.0.0.1,b@127.0.0.2,c@127.0.0.3,d@127.0.0.4";
        let options = ["--parity", "xor", "--node-dir", &disks, "--hosts", hosts, "--domains", "r1,r2,r3,r4"];
        stopped(place.run(&[&options[..], &["--remote-shell", &shell]].concat()));
        Hosts { place }
    }

    /// Hosts that the remote shell was to reach since the last question.
    fn asked(&self) -> Vec<String> {
        let path = self.place.folder.path().join("asked");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }

    fn node(&self, number: usize) -> std::path::PathBuf {
        let jobs = fs::read_dir(self.place.folder.path().join("disks")).expect("a folder");
        jobs.map(|entry| entry.expect("an entry").path()).next().expect("a job").join(number.to_string())
    }
}

#[test]
fn hosts_and_domains_that_a_restart_was_reported_are_the_job_s_from_then_on() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    assert_eq!(hosts.asked(), ["a", "b", "c", "d"]);
    let before = file(&place.job());
    let spare = "a@127.0.0.1,spare@127.0.0.5,c@127.0.0.3,d@127.0.0.4";
    stopped(place.restart(&["--hosts", spare, "--domains", "r1,r9,r3,r4"]));
    assert_eq!(hosts.asked(), ["a", "c", "d", "spare"]);
    // The option is not repeated.
    let mut job = place.restart(&[]);
    job.wait_for("all ranks run");
    assert_eq!(hosts.asked(), ["a", "c", "d", "spare"]);
    for folder in [place.job(), hosts.node(0), hosts.node(1)] {
        let kept = file(&folder);
        assert_eq!(kept.settings["domains"], "r1,r9,r3,r4");
        assert_eq!(kept.settings["hosts"], "a:1@127.0.0.1,spare:1@127.0.0.5,c:1@127.0.0.3,d:1@127.0.0.4");
        // All else is as it was.
        let mut other = kept.clone();
        for name in ["domains", "hosts"] {
            other.settings.insert(name.to_owned(), before.settings[name].clone());
        }
        assert_eq!(other, before);
    }
    place.let_end();
    verified(&job.finish());
}

#[test]
fn what_did_not_come_to_run_is_not_kept() {
    let hosts = Hosts::new();
    let place = &hosts.place;
    let before = file(&place.job());
    let wrong = "a@127.0.0.1,nobody@127.0.0.5,c@127.0.0.3,d@127.0.0.4";
    let done = place.restart(&["--hosts", wrong]).finish();
    assert_ne!(done.code, Some(0), "{done:?}");
    hosts.asked();
    // But a later restart has to know where ranks may run.
    let mut kept = file(&place.job());
    let former = kept.settings.remove("former-hosts").expect("hosts");
    assert_eq!(former, "0=a,1=b,1=nobody,2=c,3=d");
    kept.settings.remove("former-silence").expect("a time");
    assert_eq!(kept, before);
    assert_eq!(file(&hosts.node(0)), before);
    // Nor do a repair's options become the job's.
    let spare = "a@127.0.0.1,spare@127.0.0.5,c@127.0.0.3,d@127.0.0.4";
    let repaired = crate::support::done(&mut stillwire(&["repair", &place.job_text(), "--hosts", spare]));
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert_eq!(hosts.asked(), ["a", "c", "d", "spare"]);
    place.let_end();
    verified(&place.restart(&[]).finish());
    assert_eq!(hosts.asked(), ["a", "b", "c", "d"]);
}

#[test]
fn addresses_and_nics_are_kept_and_limits_of_time_are_not() {
    let place = Place::new();
    stopped(place.run(&["--nic", "auto"]));
    let folder = place.job();
    let config = setting(&folder, "config");
    assert_eq!(
        (setting(&folder, "bind").as_deref(), nic(&folder).as_deref()),
        (Some("127.0.0.1"), Some("auto"))
    );
    stopped(place.restart(&["--nic", "udp", "--bind", "127.0.0.2", "--time-limit", "1h"]));
    for options in [&[][..], &["--time-limit", "2h"]] {
        assert_eq!(
            (setting(&folder, "bind").as_deref(), nic(&folder).as_deref()),
            (Some("127.0.0.2"), Some("udp"))
        );
        assert_eq!(setting(&folder, "config"), config, "a limit of time is for one restart");
        stopped(place.restart(options));
    }
    place.let_end();
    verified(&place.restart(&[]).finish());
}

#[test]
fn copies_that_a_restart_begins_go_on() {
    let place = Place::new();
    stopped(place.run(&["--ckpt-every", "1h"]));
    let copies = place.folder.path().join("copies");
    fs::create_dir(&copies).expect("a folder");
    let to = copies.display().to_string();
    stopped(place.restart(&["--flush-to", &to, "--flush-keep", "3"]));
    let folder = place.job();
    let said = |name| setting(&folder, name);
    assert_eq!((said("flush-to"), said("flush-keep")), (Some(to), Some("3".to_owned())));
    let mut job = place.restart(&[]);
    job.wait_for("all ranks run");
    job.checkpoint();
    job.wait_for(" copied (");
    place.let_end();
    verified(&job.finish());
}
