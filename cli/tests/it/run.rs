//! `stillwire run`: jobs that finish, lose processes, are stopped, lose their launcher.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{
    PATIENCE, Place, Running, children, done, outcome, runs, signal, stillwire, verified, wait_until,
};

#[test]
fn what_ranks_print_has_their_rank_in_front() {
    let mut command = stillwire(&["run", "-n", "3", "--quiet", "--", "sh", "-c"]);
    let done = done(command.arg("echo out $STILLWIRE_RANK of $STILLWIRE_RANKS; echo err >&2"));
    assert_eq!(done.code, Some(0), "{done:?}");
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] out 0 of 3", "[1] out 1 of 3", "[2] out 2 of 3"]);
    assert_eq!(done.stderr.lines().filter(|line| line.ends_with("] err")).count(), 3, "{done:?}");
}

#[test]
fn a_key_is_in_no_argument_and_no_environment() {
    let place = Place::new();
    let mut job = place.run(&[]);
    job.wait_for("all ranks run");
    for pid in job.ranks() {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let ours: Vec<&[u8]> =
            environment.split(|byte| *byte == 0).filter(|entry| entry.starts_with(b"STILLWIRE_")).collect();
        // A socket's number, a rank, a count, a place in /proc, an address: nothing that is long enough for a secret.
        assert_eq!(ours.len(), 5);
        let (place, address) = (b"STILLWIRE_KEY_FILE=/proc/", b"STILLWIRE_ADDRESS=127.0.0.1");
        let is_known = |entry: &[u8]| entry.starts_with(place) || entry == address;
        assert!(ours.iter().all(|entry| entry.len() < 24 || is_known(entry)), "{ours:?}");
    }
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_job_without_checkpoints_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        stillwire(&["run", "-n", "2", "--json", "--", crate::support::STILLWIRE, "example", "ring"]);
    let done = done(command.env("TMPDIR", folder.path()).args(["--steps", "200"]));
    let report = done.json();
    assert_eq!((done.code, &report["outcome"]), (Some(0), &"finished".into()), "{done:?}");
    assert_eq!(report["rollbacks"], 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

// Nothing is committed: nothing is lost with the directory.
#[test]
fn a_failed_job_without_checkpoints_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--", "sh", "-c", "exit 3"]);
    let done = done(command.env("TMPDIR", folder.path()));
    assert_eq!(done.code, Some(3), "{done:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_stopped_job_with_a_checkpoint_that_was_asked_for_says_where_it_is() {
    let (place, folder) = (Place::new(), tempfile::tempdir().unwrap());
    let mut command = stillwire(&["run", "-n", "4", "--"]);
    command.args(place.sort()).env("TMPDIR", folder.path());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    job.checkpoint();
    job.signal("INT");
    let done = job.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    done.says(&["is kept; go on with `stillwire restart", &left[0].display().to_string()]);
}

// Ranks that end while a commit record is being written: the report has all that is on disk, and no more is kept than wanted.
#[test]
fn the_last_commit_is_in_the_report() {
    for _ in 0..4 {
        let place = Place::new();
        let mut command =
            stillwire(&["run", "-n", "3", "--json", "--ckpt-every", "5ms", "--ckpt-dir", &place.job_text()]);
        let done =
            done(command.args(["--", crate::support::STILLWIRE, "example", "ring", "--steps", "1000"]));
        assert_eq!(done.code, Some(0), "{done:?}");
        let kept = place.generations("committed");
        assert_eq!(done.json()["committed"].as_str(), kept.last().map(String::as_str), "{done:?}");
        assert!(kept.len() <= 2, "{kept:?}");
    }
}

#[test]
fn a_killed_rank_is_noticed_at_once_and_the_job_rolls_back() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "60ms"]);
    job.wait_for("committed");
    let victims = job.ranks();
    assert_eq!(victims.len(), 4);
    let killed = Instant::now();
    signal(victims[2], "KILL");
    job.wait_for("rank 2 died (signal 9); rolling back");
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let life = job.wait_for("life 2.");
    assert!(life.contains("from generation 1."), "{life}");
    job.wait_for("all ranks run again");
    assert!(victims.iter().all(|pid| !runs(*pid)), "every process of the old life is dead");
    place.let_end();
    verified(&job.finish());
}

#[test]
fn without_a_checkpoint_the_job_starts_again_from_the_beginning() {
    let place = Place::new();
    let mut job = place.run(&[]);
    job.wait_for("all ranks run");
    signal(job.ranks()[0], "ABRT");
    let life = job.wait_for("life 2.");
    assert!(life.contains("from the beginning"), "{life}");
    place.let_end();
    verified(&job.finish());
}

// A process dies in any phase of the job (checkpoint, commit, start of a life): it recovers.
#[test]
fn a_job_survives_a_kill_at_any_instant() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "10ms", "--retries", "1000"]);
    job.wait_for("committed");
    let mut kills = 0;
    let mut pause = 1;
    let began = Instant::now();
    // After kills in a row the job pauses for longer and longer before its next attempt: six are enough.
    while kills < 15 && (kills < 6 || began.elapsed() < Duration::from_secs(20)) {
        assert!(began.elapsed() < crate::support::PATIENCE, "{kills} kills");
        // 1, 4, 13, 40, 25, ... ms: without a pattern, the same in every run.
        pause = (pause * 3 + 1) % 96;
        std::thread::sleep(Duration::from_millis(pause));
        let ranks = job.ranks();
        if let Some(victim) = ranks.get(kills % ranks.len().max(1)) {
            signal(*victim, "KILL");
            kills += 1;
        }
    }
    job.wait_for("all ranks run again");
    place.let_end();
    let done = job.finish();
    verified(&done);
    let rollbacks = done.stderr.matches("rolling back").count();
    assert!(rollbacks >= 4, "{rollbacks} rollbacks after {kills} kills");
}

#[test]
fn on_fault_abort_ends_the_job_with_a_report() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "60ms", "--on-fault", "abort"]);
    job.wait_for("committed");
    let ranks = job.ranks();
    signal(ranks[1], "KILL");
    let done = job.finish();
    assert_eq!(done.code, Some(137), "{done:?}");
    done.says(&["rank 1 died", "--on-fault abort", "is kept; go on with `stillwire restart"]);
    assert!(ranks.iter().all(|pid| !runs(*pid)));
    assert!(!place.generations("committed").is_empty());
}

#[test]
fn retries_are_bounded() {
    let mut command = stillwire(&["run", "-n", "2", "--retries", "2", "--json", "--", "sh", "-c"]);
    let done = done(command.arg("kill -ABRT $$"));
    assert_eq!(done.code, Some(134), "{done:?}");
    let report = done.json();
    assert_eq!((&report["outcome"], &report["rollbacks"]), (&"failed".into(), &2.into()), "{report}");
    assert!(report["reason"].as_str().unwrap().contains("died (signal 6)"), "{report}");
    done.says(&["2 attempts to recover"]);
}

fn leaves_nothing(place: &Place, job: Running, ranks: &[u32]) -> crate::support::Done {
    let guards = children(job.pid());
    let done = job.finish();
    wait_until("every process is gone", || ranks.iter().chain(&guards).all(|pid| !runs(*pid)));
    for state in ["writing", "complete", "abandoned", "collected"] {
        assert_eq!(place.generations(state), Vec::<String>::new(), "{state}");
    }
    done
}

#[test]
fn ctrl_c_leaves_no_process_and_no_half_generation() {
    for round in 0..4u64 {
        let place = Place::new();
        let mut job = place.run(&["--ckpt-every", "10ms"]);
        job.wait_for("committed");
        std::thread::sleep(Duration::from_millis(7 * round));
        let ranks = job.ranks();
        job.signal("INT");
        let done = leaves_nothing(&place, job, &ranks);
        assert_eq!(done.code, Some(130), "{done:?}");
        let kept = place.generations("committed");
        done.says(&["the job was stopped", &format!("generation {} is kept", kept.last().unwrap())]);
        assert!(kept.len() <= 2, "{kept:?}");
    }
}

#[test]
fn a_killed_launcher_leaves_no_process_and_no_half_generation() {
    for round in 0..4u64 {
        let place = Place::new();
        let mut job = place.run(&["--ckpt-every", "10ms"]);
        job.wait_for("committed");
        std::thread::sleep(Duration::from_millis(7 * round));
        let ranks = job.ranks();
        assert_eq!(ranks.len(), 4);
        job.signal("KILL");
        leaves_nothing(&place, job, &ranks);
    }
}

#[test]
fn what_a_rank_has_started_dies_with_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}; wait", file.display());
    let mut command = stillwire(&["run", "-n", "1", "--", "sh", "-c"]);
    command.arg(script);
    let job = Running::start(command);
    let pid = || std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
    wait_until("the child is there", || pid().is_some());
    let child = pid().unwrap();
    assert!(runs(child));
    job.signal("KILL");
    wait_until("the child is gone", || !runs(child));
}

/// A process that sends and sends fills no memory of the launcher (REQUEST_BYTES_MAX).
#[test]
fn a_request_without_end_is_cut_off() {
    let runtime = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "1", "--", "sleep", "600"]);
    command.env("XDG_RUNTIME_DIR", runtime.path());
    let job = Running::start(command);
    let socket = || {
        let jobs = std::fs::read_dir(runtime.path().join("stillwire")).ok()?;
        jobs.flatten()
            .flat_map(|job| std::fs::read_dir(job.path()))
            .flatten()
            .flatten()
            .find_map(|entry| UnixStream::connect(entry.path()).ok())
    };
    let mut connection = None;
    wait_until("the job has a socket", || {
        connection = socket();
        connection.is_some()
    });
    let mut connection = connection.unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    // An error: it was cut off already.
    let _ = connection.write_all(&[b'x'; 64 << 10]);
    let end = connection.read(&mut [0; 1]);
    assert!(
        matches!(&end, Ok(0)) || matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset),
        "{end:?}"
    );
    let listed = done(stillwire(&["ps", "--json"]).env("XDG_RUNTIME_DIR", runtime.path()));
    assert_eq!(listed.json()["jobs"][0]["pid"], job.pid(), "it answers others: {listed:?}");
    job.signal("INT");
    job.finish();
}

#[test]
fn a_running_job_can_be_listed_saved_and_ended() {
    let place = Place::new();
    let runtime = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "4", "--ckpt-dir", &place.job_text(), "--"]);
    command.args(place.sort()).env("XDG_RUNTIME_DIR", runtime.path());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    let ask = |arguments: &[&str]| done(stillwire(arguments).env("XDG_RUNTIME_DIR", runtime.path()));
    let listed = ask(&["ps", "--json"]).json();
    let name = listed["jobs"][0]["job"].as_str().unwrap().to_owned();
    assert_eq!(listed["jobs"][0]["status"]["phase"], "running");
    assert_eq!(listed["jobs"][0]["pid"], job.pid());
    assert_eq!(listed["jobs"][0]["status"]["committed_ms_ago"], serde_json::Value::Null);
    let before = listed["jobs"][0]["status"]["each_rank"].as_array().expect("a list").clone();
    let pids: Vec<u64> = before.iter().map(|rank| rank["pid"].as_u64().expect("it runs")).collect();
    assert_eq!(pids, job.ranks().into_iter().map(u64::from).collect::<Vec<_>>());
    assert!(before.iter().all(|rank| rank["pause_ns"].is_null() && rank["state"] == "running"), "{before:?}");
    // A rank that has passed the point already, on a busy machine, prevents it; not each time.
    let mut saved = ask(&["checkpoint", &name[..8], "--json"]);
    while saved.stderr.contains("was abandoned: rank") {
        saved = ask(&["checkpoint", &name[..8], "--json"]);
    }
    assert_eq!((saved.code, &saved.json()["answer"]), (Some(0), &"committed".into()), "{saved:?}");
    let generation = saved.json()["generation"].as_str().unwrap().to_owned();
    assert_eq!(place.generations("committed"), [generation]);
    // Nobody protects it.
    let saved = saved.json();
    assert!(saved["protected_ms"].is_null() && saved["nodes"] == serde_json::json!([]), "{saved}");
    assert!(saved["written_ms"].as_u64() <= saved["milliseconds"].as_u64(), "{saved}");
    let status = ask(&["ps", "--json"]).json()["jobs"][0]["status"].clone();
    assert!(status["committed_ms_ago"].as_u64().is_some_and(|ms| ms < 60_000), "{status}");
    for rank in status["each_rank"].as_array().expect("a list") {
        let number = |name: &str| rank[name].as_u64().expect("a number");
        assert!(number("pause_ns") > 0 && number("image_bytes") > 1000 && number("epoch") >= 1, "{rank}");
        assert!(rank["host"].as_str().is_some_and(|host| !host.is_empty()), "{rank}");
    }
    let shown = ask(&["ps"]).stdout;
    assert_eq!(shown.lines().count(), 2 + 4, "{shown}");
    for words in ["ago", "  rank 3 ", "running", "epoch ", "pause", "image"] {
        assert!(shown.contains(words), "{words:?}: {shown}");
    }
    assert_eq!(ask(&["kill", &name[..8]]).code, Some(0));
    let done = job.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    assert_eq!(ask(&["ps", "--json"]).json()["jobs"].as_array().unwrap().len(), 0);
    ask(&["checkpoint", &name[..8]]).says(&["no running job", "stillwire ps"]);
}

#[test]
fn a_checkpoint_says_when_it_was_written_protected_and_committed_and_what_that_took() {
    let place = Place::new();
    let runtime = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "4", "--ckpt-dir", &place.job_text(), "--nodes", "4"]);
    command.args(["--parity", "xor", "--encode-budget", "link=2M", "--"]);
    command.args(place.sort()).env("XDG_RUNTIME_DIR", runtime.path());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    let ask = |arguments: &[&str]| done(stillwire(arguments).env("XDG_RUNTIME_DIR", runtime.path()));
    let listed = ask(&["ps", "--json"]).json();
    let name = &listed["jobs"][0]["job"].as_str().unwrap()[..8];
    let saved = ask(&["checkpoint", name, "--json"]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    let saved = saved.json();
    let number = |value: &serde_json::Value, key: &str| {
        value[key].as_u64().unwrap_or_else(|| panic!("{key} is no number: {saved}"))
    };
    let [written, protected, committed] =
        ["written_ms", "protected_ms", "milliseconds"].map(|key| number(&saved, key));
    assert!(written <= protected && protected <= committed && number(&saved, "pause_ns") > 0, "{saved}");
    let nodes = saved["nodes"].as_array().expect("a list");
    assert_eq!(
        nodes.iter().map(|node| node["node"].as_u64()).collect::<Vec<_>>(),
        (0..4).map(Some).collect::<Vec<_>>()
    );
    let mut longest_ms = 0;
    for node in nodes {
        let sent = number(node, "sent_bytes");
        assert!(
            number(node, "read_bytes") > 1000 && number(node, "written_bytes") > 1000 && sent > 1000,
            "{node}"
        );
        assert!(
            node["shape"].is_string() && number(node, "total_us") >= number(node, "network_us"),
            "{node}"
        );
        longest_ms = longest_ms.max(number(node, "total_us") / 1000);
    }
    assert!(protected - written + 1 >= longest_ms, "{saved}");
    let words = ask(&["checkpoint", name]).stdout;
    assert!(words.contains(" committed after ") && words.contains(", protected after "), "{words}");
    place.let_end();
    job.finish();
}

#[test]
fn a_checkpoint_of_a_launcher_that_is_stopped_is_not_waited_for_without_end() {
    let place = Place::new();
    let runtime = tempfile::tempdir().unwrap();
    let mut command =
        stillwire(&["run", "-n", "4", "--ckpt-timeout", "100ms", "--ckpt-dir", &place.job_text(), "--"]);
    command.args(place.sort()).env("XDG_RUNTIME_DIR", runtime.path());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    job.signal("STOP");
    let asked = done(stillwire(&["checkpoint", ""]).env("XDG_RUNTIME_DIR", runtime.path()));
    job.signal("CONT");
    assert_eq!(asked.code, Some(1), "{asked:?}");
    asked.says(&["waited for a checkpoint to be durable", &job.pid().to_string()]);
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_silent_rank_is_no_dead_one() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "60ms"]);
    job.wait_for("committed");
    let victim = job.ranks()[3];
    signal(victim, "STOP");
    job.wait_for("rank 3 has not answered for");
    signal(victim, "CONT");
    job.wait_for("committed");
    place.let_end();
    let done = job.finish();
    verified(&done);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    assert!(outcome(&done)["burst_messages"].as_u64().unwrap() > 0);
}
