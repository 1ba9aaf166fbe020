//! Jobs that go on without the command that has started them.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Done, Place, Running, done, signal, stillwire, verified, wait_until};

/// The id of a detached job, which does not outlive a test that fails.
struct Job(String);

impl std::ops::Deref for Job {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if std::thread::panicking() {
            done(&mut stillwire(&["kill", &self.0]));
        }
    }
}

/// Starts the sort with checkpoints, detached.
fn sort(place: &Place) -> Job {
    // The pipes of this command have an end only if nothing of the job holds them.
    let begun = place.run(&["--ckpt-every", "60ms", "--detach"]).finish();
    assert_eq!(begun.code, Some(0), "{begun:?}");
    begun.says(&["the job runs on without this terminal", "stillwire attach "]);
    Job(begun.stdout.trim().to_owned())
}

/// The entry of a job in `ps --json`.
fn listed(job: &str) -> Option<Value> {
    let listed = done(&mut stillwire(&["ps", "--json"])).json();
    listed["jobs"].as_array().expect("a list").iter().find(|found| found["job"] == job).cloned()
}

fn launcher(job: &str) -> u32 {
    let pid = listed(job).expect("it runs")["pid"].as_u64().expect("a process");
    u32::try_from(pid).expect("a process")
}

fn commits(job: &str) -> u64 {
    listed(job).and_then(|found| found["status"]["commits"].as_u64()).unwrap_or(0)
}

fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a line");
    line.trim().parse().expect("a number")
}

/// `job`: the id, or the directory if the job may end before the command begins.
fn attach(job: &str, options: &[&str]) -> Running {
    let mut command = stillwire(&["attach", job]);
    command.args(options);
    Running::start(command)
}

/// A job of one process that runs this script, detached in a folder of its own. `options`: of `run`.
fn script(place: &Place, options: &[&str], script: &str) -> Done {
    let mut command = stillwire(&["run", "-n", "1", "--detach"]);
    command.args(options).args(["--", "sh", "-c", script]).current_dir(place.folder.path());
    done(&mut command)
}

#[test]
fn a_detached_job_goes_on_and_whoever_attaches_gets_its_output_and_its_end() {
    let place = Place::new();
    let job = sort(&place);
    assert_eq!(job.len(), 32, "{}", &*job);
    wait_until("two commits", || commits(&job) >= 2);
    // One that looks, and goes away again.
    let seen = done(&mut stillwire(&["attach", &job[..8], "--no-wait"]));
    assert_eq!(seen.code, Some(0), "{seen:?}");
    seen.says(&["all ranks run", "committed"]);
    let mut leaving = attach(&job, &[]);
    leaving.wait_for("committed");
    leaving.signal("INT");
    let left = leaving.finish();
    assert_eq!(left.code, Some(130), "{left:?}");
    left.says(&["the job runs on; `stillwire kill "]);
    let mut staying = attach(&job, &[]);
    let mut reporting = attach(&job, &["--json"]);
    staying.wait_for("committed");
    reporting.wait_for("committed");
    place.let_end();
    verified(&staying.finish());
    let report = reporting.finish();
    assert_eq!(report.code, Some(0), "{report:?}");
    assert_eq!(report.json()["outcome"], "finished", "{report:?}");
    // By its directory, when it has ended.
    verified(&done(&mut stillwire(&["attach", &place.job_text()])));
    wait_until("nothing is left", || place.lock_is_free());
    let unknown = done(&mut stillwire(&["attach", &job]));
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    unknown.says(&["no running job has the id", "goes by its directory"]);
}

#[test]
fn a_launcher_that_is_killed_has_a_successor() {
    let place = Place::new();
    let job = sort(&place);
    let watching = attach(&place.job_text(), &[]);
    for _ in 0..2 {
        let killed = launcher(&job);
        wait_until("a commit", || commits(&job) >= 1);
        signal(killed, "KILL");
        wait_until("a successor", || listed(&job).is_some_and(|found| found["pid"] != killed));
    }
    wait_until("a commit", || commits(&job) >= 1);
    place.let_end();
    let ended = watching.finish();
    verified(&ended);
    let times = |words: &str| ended.stderr.matches(words).count();
    assert_eq!(times("was killed by SIGKILL"), 2, "{ended:?}");
    assert_eq!(times("the job is continued from generation"), 2, "{ended:?}");
    wait_until("nothing is left", || place.lock_is_free());
}

/// Between the two, the registry has no entry of the job.
#[test]
fn a_job_goes_by_its_id_also_between_two_launchers() {
    let place = Place::new();
    let job = sort(&place);
    wait_until("a commit", || commits(&job) >= 1);
    let launcher = launcher(&job);
    let watcher = parent(launcher);
    signal(watcher, "STOP");
    signal(launcher, "KILL");
    wait_until("the guard has removed the entry", || {
        let jobs = launcher::registry::jobs().expect("the registry");
        !jobs.iter().any(|info| info.job == *job)
    });
    let seen = done(&mut stillwire(&["attach", &job[..8], "--no-wait"]));
    signal(watcher, "CONT");
    assert_eq!(seen.code, Some(0), "{seen:?}");
    seen.says(&["all ranks run", "committed"]);
    wait_until("a successor", || listed(&job).is_some_and(|found| found["pid"] != launcher));
    let mut watching = attach(&job, &[]);
    // It has found the job, which may end now.
    watching.wait_for("committed");
    place.let_end();
    verified(&watching.finish());
}

#[test]
fn a_job_is_ended_by_its_id_also_between_two_launchers() {
    let place = Place::new();
    let job = sort(&place);
    wait_until("a commit", || commits(&job) >= 1);
    let launcher = launcher(&job);
    let watcher = parent(launcher);
    let watching = attach(&place.job_text(), &[]);
    signal(watcher, "STOP");
    signal(launcher, "KILL");
    wait_until("the guard has removed the entry", || listed(&job).is_none());
    let ended = done(&mut stillwire(&["kill", &job[..8]]));
    signal(watcher, "CONT");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(watching.finish().code, Some(130));
    wait_until("nothing is left", || place.lock_is_free());
}

#[test]
fn the_entry_of_a_launcher_that_runs_is_not_replaced() {
    let (place, other) = (Place::new(), Place::new());
    let (job, running) = (sort(&place), sort(&other));
    wait_until("a commit", || commits(&job) >= 1);
    assert_eq!(done(&mut stillwire(&["kill", &job])).code, Some(0));
    wait_until("nothing is left", || place.lock_is_free() && listed(&job).is_none());
    let registry = launcher::registry::runtime_directory().expect("a folder");
    let entry = registry.join(&*job);
    std::fs::create_dir(&entry).expect("no entry is left");
    let info = std::fs::read_to_string(registry.join(&*running).join("info.json")).expect("it runs");
    std::fs::write(entry.join("info.json"), info.replace(&*running, &job)).expect("a file");
    let refused = place.restart(&[]).finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["runs already", "stillwire kill"]);
    assert!(entry.join("info.json").exists());
    // That launcher is gone.
    assert_eq!(done(&mut stillwire(&["kill", &running])).code, Some(0));
    wait_until("nothing is left", || other.lock_is_free() && listed(&running).is_none());
    place.let_end();
    verified(&place.restart(&[]).finish());
}

#[test]
fn a_detached_job_that_is_ended_has_no_successor() {
    let place = Place::new();
    let job = sort(&place);
    wait_until("a commit", || commits(&job) >= 1);
    let watching = attach(&place.job_text(), &["--new"]);
    let stopped = done(&mut stillwire(&["kill", &job]));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(watching.finish().code, Some(130));
    wait_until("nothing is left", || place.lock_is_free());
    // Signals to the watcher end the job, too, and a launcher that is killed meanwhile has none.
    let restarted = place.restart(&["--detach", "--json"]).finish();
    assert_eq!(restarted.code, Some(0), "{restarted:?}");
    assert_eq!(restarted.json()["job"], *job);
    let (launcher, watching) = (launcher(&job), attach(&place.job_text(), &[]));
    let watcher = parent(launcher);
    signal(launcher, "STOP");
    signal(watcher, "TERM");
    // The watcher reads its signals before it handles the end of its launcher.
    signal(launcher, "KILL");
    assert_eq!(watching.finish().code, Some(130));
    wait_until("nothing is left", || place.lock_is_free());
}

#[test]
fn without_a_checkpoint_there_is_no_successor_and_the_job_fails() {
    let place = Place::new();
    let begun = script(&place, &["--ckpt-dir", "job"], "sleep 60");
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let watching = attach(&place.job_text(), &["--json"]);
    signal(launcher(begun.stdout.trim()), "KILL");
    let ended = watching.finish();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.says(&["was killed by SIGKILL", "no checkpoint was committed"]);
    assert_eq!(ended.json()["exit_code"], 4);
}

#[test]
fn if_the_watcher_is_killed_too_attach_says_that_nobody_is_left() {
    let place = Place::new();
    let job = sort(&place);
    wait_until("a commit", || commits(&job) >= 1);
    let watching = attach(&place.job_text(), &[]);
    let launcher = launcher(&job);
    signal(parent(launcher), "KILL");
    signal(launcher, "KILL");
    let ended = watching.finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    ended.says(&["are gone", "stillwire restart"]);
    wait_until("the guard has cleaned up", || place.lock_is_free());
    place.let_end();
    verified(&place.restart(&[]).finish());
}

#[test]
fn the_program_s_exit_code_is_passed_on() {
    let place = Place::new();
    // It ends before it counts as running.
    let ended = script(&place, &[], "echo early; exit 7");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(7), ""), "{ended:?}");
    ended.says(&["early"]);
    // Nobody asked for checkpoints: its output lies in a directory all the same.
    let begun =
        script(&place, &[], "echo late; echo waits >&2; while [ ! -e end ]; do sleep 0.1; done; exit 9");
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let mut watching = attach(begun.stdout.trim(), &[]);
    watching.wait_for("waits");
    std::fs::write(place.folder.path().join("end"), "").expect("written");
    let ended = watching.finish();
    assert_eq!(ended.code, Some(9), "{ended:?}");
    assert!(ended.stdout.contains("late"), "{ended:?}");
    let directory = place.folder.path().join(format!("stillwire-{}", &begun.stdout[..8]));
    assert_eq!(done(stillwire(&["attach"]).arg(directory)).code, Some(9));
}

#[test]
fn a_job_that_does_not_begin_says_so_where_it_was_started() {
    let place = Place::new();
    let mut command = stillwire(&["run", "-n", "1", "--detach", "--", "/no/such/program"]);
    let refused = done(command.current_dir(place.folder.path()));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["/no/such/program"]);
    assert_eq!(std::fs::read_dir(place.folder.path()).expect("a folder").count(), 0, "nothing is left");
    let usage = script(&place, &["--stdin", "0"], "true");
    assert_eq!(usage.code, Some(2), "{usage:?}");
    usage.says(&["--stdin", "--detach"]);
}

#[test]
fn ctrl_c_while_a_detached_job_starts_ends_it() {
    let place = Place::new();
    let mut command = stillwire(&["run", "-n", "1", "--detach", "--ckpt-dir", &place.job_text()]);
    command.args(["--", "sh", "-c", "echo started; sleep 60"]);
    let mut starting = Running::start(command);
    starting.wait_for("started");
    starting.signal("INT");
    let ended = starting.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    wait_until("nothing is left", || place.lock_is_free());
}

#[test]
fn a_job_in_the_foreground_cannot_be_attached_to() {
    let place = Place::new();
    let mut job = place.run(&[]);
    job.wait_for("all ranks run");
    let refused = done(&mut stillwire(&["attach", &place.job_text()]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["was not started with --detach"]);
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_connection_that_closes_does_not_end_the_job() {
    let place = Place::new();
    let mut command = Command::new("setsid");
    let shell = format!(
        "{} run -n 4 --ckpt-dir {} --ckpt-every 60ms --detach -- {} & wait $!; kill -HUP 0",
        crate::support::STILLWIRE,
        place.job_text(),
        place.sort().join(" ")
    );
    command.args(["--wait", "sh", "-c", &shell]).stdin(Stdio::null());
    command.env("XDG_STATE_HOME", place.state());
    let begun = done(&mut command);
    let job = Job(begun.stdout.trim().to_owned());
    assert_eq!(job.len(), 32, "{begun:?}");
    let before = commits(&job);
    wait_until("it goes on", || commits(&job) > before);
    place.let_end();
    verified(&attach(&place.job_text(), &[]).finish());
}
