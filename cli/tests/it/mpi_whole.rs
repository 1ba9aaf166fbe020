//! MPI programs under `stillwire run --ckpt-every`: saved at every place of their PMI, killed, and restored. A small C program speaks for an
//! MPI library; no rank sends a message to another here.

use std::path::{Path, PathBuf};

use crate::support::programs::compiled;
use crate::support::{Done, Place, Running, done, signal, stillwire, wait_until};

/// The provider's library, as cargo has built it for these tests.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a running test");
    let path = own.parent().expect("target/…/deps").join("libstillwire_fi.so");
    assert!(path.is_file(), "{}: a dependency of these tests", path.display());
    path
}

/// The client.
fn client() -> String {
    compiled("/tests/pmi/client.c")
}

const INIT: [&str; 4] = [
    "say:cmd=init pmi_version=1 pmi_subversion=1",
    "hear:cmd=response_to_init",
    "say:cmd=get_my_kvsname",
    "hear:cmd=my_kvsname",
];
const BARRIER: [&str; 2] = ["say:cmd=barrier_in", "hear:cmd=barrier_out"];
const END: [&str; 2] = ["say:cmd=finalize", "hear:cmd=finalize_ack"];

/// A list of steps.
#[derive(Default)]
struct Steps(Vec<String>);

impl Steps {
    fn then(mut self, steps: &[&str]) -> Steps {
        self.0.extend(steps.iter().map(|step| (*step).to_owned()));
        self
    }

    /// Only one rank does these.
    fn only(mut self, rank: u32, steps: &[&str]) -> Steps {
        self.0.extend(steps.iter().flat_map(|step| [format!("only:{rank}"), (*step).to_owned()]));
        self
    }

    fn put(self, key: &str) -> Steps {
        let say = format!("say:cmd=put kvsname=%k key={key}%r value=of%r");
        self.then(&[&say, "hear:cmd=put_result rc=0"])
    }

    /// Every rank gets this key of every rank.
    fn get(mut self, key: &str, ranks: u32) -> Steps {
        for rank in 0..ranks {
            self.0.push(format!("say:cmd=get kvsname=%k key={key}{rank}"));
            self.0.push(format!("hear:cmd=get_result rc=0 msg=success value=of{rank}"));
        }
        self.then(&[&format!("print:got {key}")])
    }

    /// Says that it is there, and waits until the test lets it go on.
    fn stop(self, place: &Place, name: &str) -> Steps {
        let (there, go) = (file(place, name, "at"), file(place, name, "go"));
        self.then(&[&format!("made:{there}"), &format!("wait:{go}")])
    }
}

fn file(place: &Place, name: &str, what: &str) -> String {
    place.folder.path().join(format!("{name}-{what}-")).display().to_string()
}

fn wait_at(place: &Place, name: &str, ranks: impl IntoIterator<Item = u32>) {
    for rank in ranks {
        let path = file(place, name, "at") + &rank.to_string();
        wait_until(&format!("rank {rank} is at {name}"), || Path::new(&path).exists());
    }
}

fn let_go(place: &Place, name: &str) {
    std::fs::write(file(place, name, "go"), b"").expect("a file can be written");
}

fn start(place: &Place, ranks: u32, options: &[&str], wrapper: &[&str], steps: &Steps) -> Running {
    let mut command = stillwire(&["run", "-n", &ranks.to_string(), "--ckpt-every", "100ms", "--ckpt-dir"]);
    command.arg(place.job()).args(options).arg("--").args(wrapper).arg(client()).args(&steps.0);
    Running::start({
        command.env("STILLWIRE_PROVIDER", library());
        command
    })
}

/// A checkpoint that began after this call is committed.
fn saved(job: &mut Running) {
    job.wait_for("committed");
    job.wait_for("committed");
}

fn kill_one(job: &mut Running, rank: usize) {
    signal(job.ranks()[rank], "KILL");
    job.wait_for("begins from generation");
    job.wait_for("all ranks run again");
}

/// The lines that a rank printed, in order and each once: after a restore a line may come again.
fn printed(done: &Done, rank: u32) -> Vec<String> {
    let start = format!("[{rank}] ");
    let mut lines: Vec<String> = Vec::new();
    for line in done.stdout.lines().filter_map(|line| line.strip_prefix(&start)) {
        if !lines.iter().any(|seen| seen == line) {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Keys, barriers and the end, with a stop at each place where a program may be saved.
fn all_of_it(place: &Place, ranks: u32) -> Steps {
    Steps::default()
        .then(&INIT)
        .put("a")
        .stop(place, "puts")
        .put("b")
        .then(&["say:cmd=publish_name service=s%r port=p%r", "hear:cmd=publish_result rc=0"])
        .then(&BARRIER)
        .get("a", ranks)
        .get("b", ranks)
        .then(&["say:cmd=lookup_name service=s1", "hear:cmd=lookup_result rc=0 info=ok port=p1"])
        .then(&[&format!("made:{}", file(place, "barrier", "at"))])
        .only(0, &[&format!("wait:{}", file(place, "barrier", "go"))])
        .then(&BARRIER)
        .then(&["print:met"])
        .get("b", ranks)
        .then(&END)
        .then(&["print:finished"])
        .stop(place, "end")
        .then(&["print:done"])
}

const ALL_LINES: [&str; 5] = ["got a", "got b", "met", "finished", "done"];

/// R25, R26
#[test]
fn a_rank_is_killed_at_every_place_of_its_pmi() {
    killed_at_every_place(&[]);
}

/// The same where each rank has a pid namespace, and there are two keepers.
#[test]
fn a_rank_with_a_namespace_is_killed_at_every_place_of_its_pmi() {
    let found = done(stillwire(&["doctor"]).env("STILLWIRE_PROVIDER", library())).stdout;
    if !found.lines().any(|line| line.starts_with("ok ") && line.contains("pid namespaces")) {
        let test = "a_rank_with_a_namespace_is_killed_at_every_place_of_its_pmi";
        return crate::skipped::skipped(test, "pid namespaces (`stillwire doctor`)");
    }
    killed_at_every_place(&["--pid-namespace", "--nodes", "2"]);
}

fn killed_at_every_place(options: &[&str]) {
    let place = Place::new();
    let mut job = start(&place, 3, options, &[], &all_of_it(&place, 3));
    wait_at(&place, "puts", 0..3);
    saved(&mut job);
    kill_one(&mut job, 1);
    saved(&mut job);
    kill_one(&mut job, 0);
    let_go(&place, "puts");
    // Two of three are in the barrier.
    wait_at(&place, "barrier", 0..3);
    saved(&mut job);
    kill_one(&mut job, 2);
    saved(&mut job);
    kill_one(&mut job, 0);
    let_go(&place, "barrier");
    wait_at(&place, "end", 0..3);
    saved(&mut job);
    kill_one(&mut job, 0);
    let_go(&place, "end");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    for rank in 0..3 {
        assert_eq!(printed(&done, rank), ALL_LINES, "rank {rank}: {done:?}");
    }
}

/// R26
#[test]
fn everything_is_killed_in_a_barrier_and_restarted_twice() {
    let place = Place::new();
    let mut job = start(&place, 3, &["--quiet"], &["env", "A=b"], &all_of_it(&place, 3));
    let_go(&place, "puts");
    let mut outputs = Vec::new();
    for _ in 0..2 {
        wait_at(&place, "barrier", 0..3);
        wait_until("a checkpoint after that", || place.generations("committed").len() >= 2);
        let newest = place.generations("committed").last().cloned();
        wait_until("and another", || place.generations("committed").last().cloned() != newest);
        let_go(&place, "no such place");
        job.signal("KILL");
        outputs.push(job.finish());
        wait_until("the guard has cleaned up", || place.lock_is_free());
        job = Running::start({
            let mut command = stillwire(&["restart", &place.job_text()]);
            command.env("STILLWIRE_PROVIDER", library());
            command
        });
    }
    job.wait_for("committed");
    let_go(&place, "barrier");
    let_go(&place, "end");
    outputs.push(job.finish());
    let last = outputs.last().expect("three lives");
    assert_eq!(last.code, Some(0), "{outputs:?}");
    for rank in 0..3 {
        assert_eq!(printed(last, rank), ["met", "got b", "finished", "done"], "rank {rank}: {outputs:?}");
    }
}

/// Others wait at a barrier for ranks of a node whose keeper is killed: nobody is to blame, and everybody goes back.
#[test]
fn a_keeper_is_killed_while_others_wait_in_a_barrier() {
    let place = Place::new();
    let (there, go) = (file(&place, "late", "at"), file(&place, "late", "go"));
    let late = [format!("made:{there}"), format!("wait:{go}")];
    let steps = Steps::default()
        .then(&INIT)
        .then(&BARRIER)
        .only(1, &late.each_ref().map(String::as_str))
        .then(&BARRIER)
        .then(&END)
        .then(&["print:done"]);
    let mut job = start(&place, 2, &["--nodes", "2"], &[], &steps);
    wait_at(&place, "late", [1]);
    saved(&mut job);
    crate::support::signal(crate::support::keepers(job.pid())[1], "KILL");
    job.wait_for("all ranks run again");
    saved(&mut job);
    std::fs::write(go, b"").expect("a file can be written");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!((0..2).all(|rank| printed(&done, rank).last().is_some_and(|line| line == "done")), "{done:?}");
}

/// R12, R26: values that an ended rank had put are there for others in every later life; its exit code is the job's.
#[test]
fn a_rank_that_has_ended_is_known_in_later_lives() {
    let place = Place::new();
    let steps = Steps::default()
        .then(&INIT)
        .put("a")
        .then(&BARRIER)
        .only(1, &END)
        .only(1, &["exit:6"])
        .stop(&place, "alone")
        .get("a", 3)
        .then(&END)
        .then(&["print:done"]);
    let mut job = start(&place, 3, &[], &[], &steps);
    wait_at(&place, "alone", [0, 2]);
    job.wait_for("rank 1 ended");
    for rank in [0, 1] {
        saved(&mut job);
        kill_one(&mut job, rank);
    }
    saved(&mut job);
    job.signal("KILL");
    drop(job.finish());
    wait_until("the guard has cleaned up", || place.lock_is_free());
    let_go(&place, "alone");
    let done = done(stillwire(&["restart", &place.job_text()]).env("STILLWIRE_PROVIDER", library()));
    assert_eq!(done.code, Some(6), "{done:?}");
    for rank in [0, 2] {
        assert_eq!(printed(&done, rank), ["got a", "done"], "{done:?}");
    }
}

/// Rank 0 spawns a process that begins, does this, and ends.
fn spawn(child: &str) -> Vec<String> {
    [
        "mcmd=spawn".to_owned(),
        "nprocs=1".to_owned(),
        format!("execname={}", client()),
        format!("arg1={}", INIT[0]),
        format!("arg2={}", INIT[1]),
        format!("arg3={child}"),
        format!("arg4={}", END[0]),
        format!("arg5={}", END[1]),
        "argcnt=5".to_owned(),
        "preput_num=0".to_owned(),
        "info_num=0".to_owned(),
        "endcmd".to_owned(),
    ]
    .map(|line| format!("say:{line}"))
    .to_vec()
}

/// The life ends with a rank that is the only one of its node: no rank is left there to be killed, and the processes that it had spawned end all the
/// same.
#[test]
fn what_a_rank_has_spawned_ends_with_its_life() {
    let place = Place::new();
    let child = spawn(&format!("wait:{}", file(&place, "child", "go")));
    let child: Vec<&str> = child.iter().map(String::as_str).collect();
    let steps = Steps::default()
        .then(&INIT)
        .then(&BARRIER)
        .stop(&place, "before")
        .only(0, &child)
        .only(0, &["hear:cmd=spawn_result rc=0"])
        .stop(&place, "after")
        .then(&END)
        .then(&["print:done"]);
    let mut job = start(&place, 2, &["--nodes", "2"], &[], &steps);
    wait_at(&place, "before", 0..2);
    saved(&mut job);
    let_go(&place, "before");
    job.wait_for("has spawned world 1");
    for _ in 0..2 {
        let (old, ranks) = (crate::support::children(job.pid()), job.ranks());
        crate::support::signal(ranks[0], "KILL");
        // Perhaps before all ranks run.
        job.wait_for("has spawned world 1");
        let spawned = |pid: &&u32| crate::support::has_variable(**pid, "PMI_SPAWNED=1");
        let last: Vec<u32> = old.iter().filter(spawned).copied().collect();
        wait_until("what was spawned is gone", || last.iter().all(|pid| !crate::support::runs(*pid)));
    }
    let_go(&place, "child");
    let_go(&place, "after");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!((0..2).all(|rank| printed(&done, rank).last().is_some_and(|line| line == "done")), "{done:?}");
}

#[test]
fn a_program_that_spawns_is_saved_no_more_and_goes_on() {
    let place = Place::new();
    let spawn = spawn("print:spawned");
    let spawn: Vec<&str> = spawn.iter().map(String::as_str).collect();
    let steps = Steps::default()
        .then(&INIT)
        .then(&BARRIER)
        .stop(&place, "before")
        .only(0, &spawn)
        .only(0, &["hear:cmd=spawn_result rc=0"])
        .stop(&place, "after")
        .then(&END);
    let mut job = start(&place, 2, &[], &[], &steps);
    wait_at(&place, "before", 0..2);
    saved(&mut job);
    let_go(&place, "before");
    wait_at(&place, "after", 0..2);
    job.wait_for("from now on there are no images: it asks for more processes");
    job.wait_for("was abandoned");
    let_go(&place, "after");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("[1:0] spawned"), "{done:?}");
}

#[test]
fn how_a_saved_program_ends_is_how_an_unsaved_one_does() {
    for (steps, code, words) in [
        (["only:1", "say:cmd=abort exitcode=7", "sleep:60"], 7, "rank 1 aborted the job (code 7)"),
        (["only:1", "exit:0", "sleep:60"], 4, "rank 1 exited with code 0 before it had finished"),
        (["only:1", "say:GET / HTTP/1.1", "sleep:60"], 4, "a line that begins with `GET / HTTP/1.1`"),
        (["only:1", "say:cmd=finalize", "exit:3"], 3, ""),
    ] {
        let place = Place::new();
        let all = Steps::default().then(&INIT).then(&BARRIER).then(&steps);
        let done = start(&place, 2, &[], &[], &all).finish();
        assert_eq!(done.code, Some(code), "{done:?}");
        done.says(&[words]);
    }
}

/// MPI libraries report an abort and exit at once.
#[test]
fn who_aborts_and_exits_is_heard() {
    let place = Place::new();
    let last = ["only:1", "say:cmd=abort exitcode=7", "only:1", "exit:9", "sleep:60"];
    let steps = Steps::default().then(&INIT).then(&BARRIER).then(&last);
    for _ in 0..10 {
        let done = start(&place, 2, &["--on-fault", "restart"], &[], &steps).finish();
        assert_eq!(done.code, Some(7), "{done:?}");
        done.says(&["rank 1 aborted the job (code 7)"]);
        std::fs::remove_dir_all(place.job()).expect("the job's directory");
    }
}

#[test]
fn a_rank_without_the_library_runs_and_is_not_saved() {
    let place = Place::new();
    let steps = Steps::default().then(&INIT).then(&BARRIER).stop(&place, "here").then(&END);
    let mut job = start(&place, 2, &[], &["sh", "-c", "\"$@\"; exit $?", "sh"], &steps);
    job.wait_for("cannot be saved, and so there will be no checkpoints");
    wait_at(&place, "here", 0..2);
    job.wait_for("was abandoned");
    let_go(&place, "here");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stderr.matches("cannot be saved, and so").count(), 1, "{done:?}");
}
