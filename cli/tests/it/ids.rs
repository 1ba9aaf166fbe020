//! Ranks with pid namespaces: they, and their threads, have the same ids in every life.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use crate::support::programs::{library, program};
use crate::support::{
    Done, Place, Running, STILLWIRE, children, done, keepers, runs, signal, stillwire, wait_until,
};

/// The command, run by a user without privileges and without a way to get any: root becomes another user, others give up their ways alone.
fn ordinary(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--no-new-privs");
    if is_root() {
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ]);
        std::os::unix::fs::chown(place.folder.path(), Some(65_534), Some(65_534)).expect("root may");
    }
    command.arg(STILLWIRE).args(arguments);
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", place.folder.path()).env("HOME", place.folder.path());
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").expect("a proc file system").uid() == 0
}

/// Whether this machine lets these tests run; with root, also as another user.
fn is_possible(test: &str) -> bool {
    let place = Place::new();
    let report = |command: &mut Command| {
        let report = done(command.env("STILLWIRE_PROVIDER", library())).stdout;
        report.lines().any(|line| line.starts_with("ok ") && line.contains("pid namespaces"))
    };
    let possible = report(&mut stillwire(&["doctor"])) && report(&mut ordinary(&place, &["doctor"]));
    if !possible {
        crate::skipped::skipped(
            test,
            "pid namespaces for this user and for ordinary ones (`stillwire doctor`)",
        );
    }
    possible
}

/// A job of `ids` with the first words of its command line.
fn job(place: &Place, mut command: Command, options: &[&str]) -> Running {
    let file = |name: &str| place.folder.path().join(name);
    command.args(["-n", "3", "--ckpt-every", "50ms", "--ckpt-dir"]).arg(place.job()).args(options);
    command.arg("--").arg(program("ids")).arg(file("ids")).arg(file("enough"));
    Running::start({
        command.env("STILLWIRE_PROVIDER", library());
        command
    })
}

fn restart(place: &Place, options: &[&str]) -> Running {
    let mut command = stillwire(&["restart", &place.job_text()]);
    command.args(options).env("STILLWIRE_PROVIDER", library());
    Running::start(command)
}

fn saved(job: &mut Running) {
    job.wait_for("committed");
    job.wait_for("committed");
}

/// All three have kept their ids.
fn kept(done: &Done) {
    assert_eq!(done.code, Some(0), "{done:?}");
    for rank in 0..3 {
        assert!(done.stdout.contains(&format!("[{rank}] all ids kept\n")), "{done:?}");
    }
    assert!(!done.stdout.contains("FAULT"), "{done:?}");
}

/// Ids of the ranks in their namespaces.
fn ids(ranks: &[u32]) -> Vec<u32> {
    let of = |rank: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{rank}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).expect("Linux 4.1");
        line.split_whitespace().last().and_then(|id| id.parse().ok()).expect("an id")
    };
    ranks.iter().map(of).collect()
}

#[test]
fn killed_ranks_and_keepers_come_back_under_their_ids() {
    if !is_possible("killed_ranks_and_keepers_come_back_under_their_ids") {
        return;
    }
    let place = Place::new();
    let mut job = job(&place, stillwire(&["run"]), &["--pid-namespace"]);
    job.wait_for("all ranks run");
    let before = ids(&job.ranks());
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3, "nobody has the id of another: {before:?}");
    for round in 0..4 {
        saved(&mut job);
        let all = children(job.pid());
        let victim = if round == 3 { keepers(job.pid())[0] } else { job.ranks()[round] };
        signal(victim, "KILL");
        job.wait_for("all ranks run again");
        assert_eq!(ids(&job.ranks()), before);
        let guard_is_new = usize::from(round == 3);
        wait_until("what was there before is gone", || {
            all.iter().filter(|pid| runs(**pid)).count() <= 1 - guard_is_new
        });
    }
    place.let_end();
    kept(&job.finish());
}

/// A check of the test program: it notices other ids.
#[test]
fn without_namespaces_ids_are_others() {
    let place = Place::new();
    let mut job = job(&place, stillwire(&["run"]), &[]);
    saved(&mut job);
    signal(job.ranks()[1], "KILL");
    let done = job.finish();
    assert!(done.code.is_some_and(|code| code != 0), "{done:?}");
    assert!(done.stdout.contains("FAULT"), "{done:?}");
}

#[test]
fn an_ordinary_user_has_them_too() {
    if !is_possible("an_ordinary_user_has_them_too") {
        return;
    }
    let place = Place::new();
    let command = ordinary(&place, &["run"]);
    let mut job = job(&place, command, &["--pid-namespace"]);
    for _ in 0..2 {
        saved(&mut job);
        signal(job.ranks()[0], "KILL");
        job.wait_for("all ranks run again");
        for rank in job.ranks() {
            let status = std::fs::read_to_string(format!("/proc/{rank}/status")).expect("it runs");
            let rights = status.lines().filter(|line| line.starts_with("Cap") && !line.starts_with("CapBnd"));
            let rights: Vec<&str> = rights.collect();
            // The right to choose ids was for the restore alone.
            assert!(
                rights.len() >= 4 && rights.iter().all(|line| line.ends_with("\t0000000000000000")),
                "{rights:?}"
            );
        }
    }
    place.let_end();
    kept(&job.finish());
}

#[test]
fn a_launcher_that_was_killed_leaves_nothing_and_a_restart_keeps_ids_by_itself() {
    if !is_possible("a_launcher_that_was_killed_leaves_nothing_and_a_restart_keeps_ids_by_itself") {
        return;
    }
    let place = Place::new();
    let options = ["--pid-namespace", "--nodes", "2", "--parity", "none"];
    let mut running = job(&place, stillwire(&["run"]), &options);
    saved(&mut running);
    let before = ids(&running.ranks());
    let mut all = children(running.pid());
    all.extend(keepers(running.pid()));
    // Ranks, the first processes of their namespaces, and for each node a keeper and a guard.
    assert_eq!(all.len(), 3 + 3 + 2 + 2);
    running.signal("KILL");
    running.finish();
    wait_until("every process is gone", || all.iter().all(|pid| !runs(*pid)) && place.lock_is_free());
    // Ranks of two nodes come together on one.
    let mut job = restart(&place, &["--nodes", "1"]);
    job.wait_for("all ranks run");
    assert_eq!((ids(&job.ranks()), keepers(job.pid()).len()), (before.clone(), 1));
    saved(&mut job);
    job.signal("INT");
    job.finish();
    let mut job = restart(&place, &["--nodes", "3"]);
    job.wait_for("all ranks run");
    assert_eq!(ids(&job.ranks()), before);
    place.let_end();
    kept(&job.finish());
}

#[test]
fn a_job_can_get_namespaces_later() {
    if !is_possible("a_job_can_get_namespaces_later") {
        return;
    }
    let place = Place::new();
    let mut job = job(&place, stillwire(&["run"]), &[]);
    saved(&mut job);
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    let mut job = restart(&place, &["--pid-namespace"]);
    job.wait_for("all ranks run");
    saved(&mut job);
    signal(job.ranks()[2], "KILL");
    job.wait_for("all ranks run again");
    saved(&mut job);
    job.signal("INT");
    let first = job.finish();
    assert!(!first.stdout.contains("FAULT"), "{first:?}");
}

#[test]
fn giving_them_up_is_reported() {
    if !is_possible("giving_them_up_is_reported") {
        return;
    }
    let place = Place::new();
    let mut job = job(&place, stillwire(&["run"]), &["--pid-namespace", "--on-fault", "abort"]);
    saved(&mut job);
    job.signal("INT");
    job.finish();
    let done = restart(&place, &["--no-pid-namespace"]).finish();
    done.says(&["warning: ranks had pid namespaces, and get new ids now"]);
    // Whichever of its threads looks first.
    let seen = ["FAULT gettid() is", "FAULT the process in the file is"];
    assert!(seen.iter().any(|words| done.stdout.contains(words)), "{done:?}");
}

/// For each way in which they are unavailable the message has the cure.
#[test]
fn where_there_are_none_the_next_step_is_reported() {
    if !is_possible("where_there_are_none_the_next_step_is_reported") {
        return;
    }
    let refused = |setting: &str, start: &str, words: &[&str]| {
        let place = Place::new();
        let script = format!("echo 0 > /proc/sys/user/{setting} && exec {start} \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-current-user", "--keep-caps", "sh", "-c", &script, "sh", STILLWIRE]);
        command
            .args(["run", "-n", "1", "--pid-namespace", "--ckpt-every", "1s", "--ckpt-dir"])
            .arg(place.job());
        let done = done(command.args(["--", "true"]).env("STILLWIRE_PROVIDER", library()));
        assert_eq!(done.code, Some(1), "{done:?}");
        done.says(&["no rank can be started on ", "a pid namespace for a rank is not available"]);
        done.says(words);
        done.says(&["or start without --pid-namespace"]);
    };
    // A user with the right to make namespaces makes no user namespace first.
    let without_rights = "setpriv --bounding-set=-all --inh-caps=-all";
    let words = ["cannot make a user namespace: No space", "raise user.max_user_namespaces"];
    refused("max_user_namespaces", without_rights, &words);
    refused("max_pid_namespaces", "", &["cannot make a pid namespace: No space", "user.max_pid_namespaces"]);
    refused("max_mnt_namespaces", "", &["cannot make a mount namespace: No space"]);
}

#[test]
fn it_is_for_programs_that_are_saved_as_whole_processes() {
    let refused = |arguments: &[&str], words: &[&str]| {
        let place = Place::new();
        let mut command = stillwire(&["run", "-n", "1", "--pid-namespace"]);
        let done = done(
            command.args(arguments).current_dir(place.folder.path()).env("STILLWIRE_PROVIDER", library()),
        );
        assert_eq!(done.code, Some(2), "{done:?}");
        done.says(words);
    };
    refused(&["--", "true"], &["--pid-namespace", "nobody asks for checkpoints (--ckpt-every"]);
    let native = [STILLWIRE, "__demo-rank", "--class", "S", "--rounds", "1"];
    refused(
        &[&["--ckpt-every", "1s", "--"], &native[..]].concat(),
        &["names the points at which it is saved"],
    );
}
