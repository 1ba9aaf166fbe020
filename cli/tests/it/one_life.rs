//! One life at a time (R30): launchers that vanish behind connections that stay half open, keepers that stand still, guards that are killed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::programs::library;
use crate::support::threads::Still;
use crate::support::{
    Place, Running, children_of, keepers, parent, rank_of, runs, signal, stillwire, verified, wait_until,
};

/// The lease of ranks, at the usual heartbeat (250 ms, 8 of which may be missed, twice), and some time to end.
const LEASE: Duration = Duration::from_secs(4);

/// A remote shell whose connection nobody sees the end of: a process that knows nothing of the launcher holds both pipes of the keeper,
/// which is in a session of its own, as behind sshd.
fn half_open(place: &Place) -> String {
    let pipes = place.folder.path().join("pipes").display().to_string();
    place.remote_shell(&format!(
        "pipes={pipes}-$1; shift; mkdir $pipes; mkfifo $pipes/in $pipes/out\n\
         sleep 60 <>$pipes/in 3<>$pipes/out >/dev/null 2>&1 &\n\
         setsid \"$@\" <$pipes/in >$pipes/out 2>$pipes/errors &\n\
         cat $pipes/out 2>/dev/null &\n\
         exec cat >$pipes/in"
    ))
}

/// Running processes of ranks of this place's job, of all launchers.
fn ranks(place: &Place) -> BTreeSet<u32> {
    let until = place.enough().display().to_string();
    let all = std::fs::read_dir("/proc").expect("a proc file system");
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_rank = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).any(|word| word == until.as_bytes())
            && rank_of(*pid).is_some()
            && runs(*pid)
    };
    pids.filter(is_rank).collect()
}

fn is_guard(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| word == b"__guard")
}

fn saved(job: &mut Running) {
    job.wait_for("all ranks run");
    job.checkpoint();
}

fn a_launcher_vanishes(hosts: &str) {
    let place = Place::new();
    let shell = half_open(&place);
    let mut job =
        place.run(&["--hosts", hosts, "--remote-shell", &shell, "--parity", "none", "--ckpt-every", "1h"]);
    saved(&mut job);
    let old = ranks(&place);
    assert_eq!(old.len(), 4);
    let orphans: BTreeSet<u32> = old.iter().filter_map(|pid| parent(*pid)).collect();
    job.signal("KILL");
    job.finish();
    let since = Instant::now();
    assert_eq!(ranks(&place), old, "nobody has seen it");
    // The other end of a new connection.
    let shell = place.remote_shell("shift; exec \"$@\"");
    let mut job = place.restart(&["--remote-shell", &shell]).reading();
    job.wait_for("processes of an earlier launcher of this job still run here");
    // Two lives at once would be seen here.
    wait_until("the next life", || {
        let now = ranks(&place);
        let are_old = now.intersection(&old).count();
        assert!(are_old == 0 || are_old == now.len(), "of {old:?} beside others: {now:?}");
        now.len() == 4 && are_old == 0
    });
    assert!(since.elapsed() < 3 * LEASE, "{:?}", since.elapsed());
    wait_until("keepers without a launcher end", || !orphans.iter().any(|keeper| runs(*keeper)));
    job.wait_for("all ranks run");
    place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_restart_waits_for_ranks_whose_launcher_has_vanished() {
    a_launcher_vanishes("a:2@127.0.0.1,b:2@127.0.0.2");
}

#[test]
fn ranks_of_one_other_host_have_a_lease_too() {
    a_launcher_vanishes("a:4@127.0.0.1");
}

#[test]
fn a_keeper_that_stands_still_does_not_let_its_ranks_outlive_their_lease() {
    let place = Place::new();
    let mut job = place.run(&["--nodes", "2", "--parity", "none", "--ckpt-every", "1h"]);
    saved(&mut job);
    let keeper = *keepers(job.pid()).last().expect("two");
    let of_keeper: Vec<u32> =
        children_of(keeper).into_iter().filter(|pid| rank_of(*pid).is_some() && !is_guard(*pid)).collect();
    assert_eq!(of_keeper.len(), 2);
    signal(keeper, "STOP");
    let since = Instant::now();
    wait_until("its ranks end", || !of_keeper.iter().any(|pid| runs(*pid)));
    assert!(since.elapsed() > LEASE / 2, "{:?}: not by a heartbeat that was missed", since.elapsed());
    wait_until("it ends", || !runs(keeper));
    job.wait_for("all ranks run");
    place.let_end();
    verified(&job.finish());
}

/// A job on another host, its keeper, its rank, and the child of that.
fn with_a_child(place: &Place, shell: &str) -> (Running, [u32; 3]) {
    let script = "sleep 300 & echo $! >child.new; mv child.new child; exec sleep 299";
    let mut command = stillwire(&["run", "-n", "1", "--hosts", "a:1@127.0.0.1", "--remote-shell", shell]);
    command.args(["--ckpt-dir", "job", "--", "sh", "-c", script]).current_dir(place.folder.path());
    command.env("STILLWIRE_PROVIDER", library());
    let mut job = Running::start(command).reading();
    job.wait_for("all ranks run");
    let noted = place.folder.path().join("child");
    wait_until("the rank has a child", || noted.exists());
    let child: u32 = std::fs::read_to_string(noted).expect("a file").trim().parse().expect("a process id");
    let rank = parent(child).expect("a rank");
    (job, [parent(rank).expect("a keeper"), rank, child])
}

// Its launcher is gone, and its connection is half open: only the guard can kill processes there.
#[test]
fn a_guard_alone_kills_processes_after_their_lease() {
    let place = Place::new();
    let shell = half_open(&place);
    let (job, [keeper, rank, child]) = with_a_child(&place, &shell);
    let since = Instant::now();
    signal(keeper, "STOP");
    job.signal("KILL");
    job.finish_reading();
    let left = [keeper, rank, child].map(runs);
    assert_eq!(left, [true; 3], "{:?}: nobody has seen it", since.elapsed());
    wait_until("all of it ends", || ![keeper, rank, child].into_iter().any(runs));
    assert!(since.elapsed() < 2 * LEASE, "{:?}", since.elapsed());
}

// A host that is paused as a whole: nobody there can kill anything, and the ranks must not go on when it resumes.
#[test]
fn ranks_end_with_their_lease_although_the_guard_stands_still_too() {
    let place = Place::new();
    let shell = half_open(&place);
    let (job, [keeper, rank, child]) = with_a_child(&place, &shell);
    let guard = children_of(keeper).into_iter().find(|pid| is_guard(*pid)).expect("a guard");
    // The kernel continues a process group whose last parent ends, so SIGSTOP would not hold the guard.
    let still = Still::new(guard, "stillwire");
    [keeper, rank, child].into_iter().for_each(|pid| signal(pid, "STOP"));
    job.signal("KILL");
    job.finish_reading();
    wait_until("keeper and rank end", || ![keeper, rank].into_iter().any(runs));
    drop(still);
    wait_until("the guard ends the rest", || !runs(child));
}

#[test]
fn the_next_life_waits_for_the_last_process_of_the_one_before() {
    let place = Place::new();
    let shell = place.remote_shell("shift; exec \"$@\"");
    let (mut job, [keeper, rank, child]) = with_a_child(&place, &shell);
    let guard = children_of(keeper).into_iter().find(|pid| is_guard(*pid)).expect("a guard");
    // The stopped guard kills nobody; the kernel ends only the rank. SIGSTOP would not do: a process group whose last parent ends is continued.
    let still = Still::new(guard, "stillwire");
    signal(keeper, "KILL");
    job.wait_for("processes of an earlier launcher of this job still run here");
    assert_eq!([rank, child].map(runs), [false, true]);
    drop(still);
    job.wait_for("all ranks run");
    assert!(!runs(child));
    job.signal("INT");
    job.finish_reading();
}

#[test]
fn a_guard_that_is_killed_is_missed() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "1h"]);
    saved(&mut job);
    let keeper = keepers(job.pid())[0];
    let guard = children_of(keeper).into_iter().find(|pid| is_guard(*pid)).expect("a guard");
    signal(guard, "KILL");
    job.wait_for("its guard was killed");
    wait_until("the keeper ends", || !runs(keeper));
    job.wait_for("all ranks run");
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_lease_stands_still_while_the_job_does() {
    let place = Place::new();
    let mut job = place.run(&["--nodes", "2", "--parity", "none", "--ckpt-every", "1h"]);
    saved(&mut job);
    let before = ranks(&place);
    job.signal("TSTP");
    job.wait_for("the ranks stand still");
    std::thread::sleep(LEASE + Duration::from_secs(2));
    job.signal("CONT");
    job.wait_for("the ranks go on");
    // Nobody has ended them meanwhile, nor does now.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(ranks(&place), before);
    place.let_end();
    verified(&job.finish());
}
