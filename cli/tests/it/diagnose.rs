//! Jobs that hang, each for a reason that `stillwire diagnose` has to name.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use session::{From, Session, Tags};

use crate::support::programs::{compiled, library};
use crate::support::{Done, Place, Running, done, signal, stillwire, wait_until};

/// How the ranks of a job hang.
const HANG: &str = "STILLWIRE_TEST_HANG";

/// Starts a job of this test's own executable, whose ranks run the test `name` and hang as `how` says. `prefix`: words before the program.
fn start(place: &Place, name: &str, ranks: u32, how: &str, options: &[&str], prefix: &[&str]) -> Running {
    let mut command = stillwire(&["run", "-n", &ranks.to_string(), "--ckpt-dir", &place.job_text()]);
    command.args(options).arg("--").args(prefix).arg(std::env::current_exe().expect("it runs"));
    command.args(["--exact", &format!("diagnose::{name}"), "--nocapture"]).env(HANG, how);
    command.env("XDG_STATE_HOME", place.state());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    job
}

/// In a rank: hangs, and does not return. `receive 1 7`: from rank 1 with tag 7; `compute`: without any call; and so on, rank by rank.
fn hang_if_asked() {
    let Ok(how) = std::env::var(HANG) else { return };
    if std::env::var_os("STILLWIRE_RANK").is_none() {
        return;
    }
    let mut session = Session::open().expect("a launcher started it");
    let own = how.split(", ").nth(session.rank() as usize).expect("one for each rank");
    for act in own.split(" then ") {
        let words: Vec<&str> = act.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().expect("a number");
        match words[0] {
            "receive" => drop(session.recv(number(1), u64::from(number(2))).expect("a message")),
            "receive-any" => drop(session.recv(From::Any, Tags::ANY).expect("a message")),
            "send" => session.send(number(1), u64::from(number(2)), vec![1; 100]).expect("it is taken"),
            // Longer than the messages that are copied: it waits for a receive.
            "deliver" => {
                let request = session.isend(number(1), u64::from(number(2)), vec![1; 1 << 20]);
                session.wait(request.expect("room")).expect("it is received");
            }
            "barrier" => session.barrier().expect("all come"),
            "compute" => loop {
                std::thread::park();
            },
            "finish" => return session.finalize().expect("all finish"),
            act => panic!("{act}"),
        }
    }
    panic!("it does not hang");
}

fn id(place: &Place, job: &Running) -> String {
    let mut ps = stillwire(&["ps", "--json"]);
    let jobs = done(ps.env("XDG_STATE_HOME", place.state())).json();
    let all = jobs["jobs"].as_array().expect("a list");
    let found = all.iter().find(|found| found["pid"] == job.pid()).expect("it runs");
    found["job"].as_str().expect("an id").to_owned()
}

fn diagnose(place: &Place, job: &Running, options: &[&str]) -> Done {
    let mut command = stillwire(&["diagnose", &id(place, job)]);
    let diagnosed = done(command.args(options).env("XDG_STATE_HOME", place.state()));
    assert_eq!(diagnosed.code, Some(0), "{diagnosed:?}");
    diagnosed
}

/// The diagnosis, once it has as many causes as this job has.
fn diagnosed(place: &Place, job: &Running, causes: usize) -> Value {
    let mut last = Value::Null;
    wait_until("all ranks hang", || {
        last = diagnose(place, job, &["--json"]).json();
        last["findings"].as_array().is_some_and(|findings| findings.len() == causes)
            && last["each_rank"].as_array().is_some_and(|ranks| {
                ranks.iter().all(|rank| rank["state"] != "communicating" && rank["state"] != "not-attached")
            })
    });
    assert_eq!(last["answer"], "diagnosed", "{last}");
    last
}

fn end(job: Running) {
    job.signal("INT");
    let done = job.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
}

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing:\n{text}");
    }
}

#[test]
fn a_deadlock_is_found_over_several_nodes_and_drawn() {
    hang_if_asked();
    let place = Place::new();
    let how = "receive 1 7, receive 0 8, deliver 1 9, barrier";
    let name = "a_deadlock_is_found_over_several_nodes_and_drawn";
    let job = start(&place, name, 4, how, &["--nodes", "3"], &[]);
    let found = diagnosed(&place, &job, 1);
    let cause = &found["findings"][0];
    assert_eq!(cause["cause"], "deadlock", "{found}");
    assert_eq!(cause["ranks"], serde_json::json!([0, 1]), "{found}");
    assert_eq!(cause["cycle"], serde_json::json!([0, 1]), "{found}");
    assert_eq!(cause["waiting"], serde_json::json!([2, 3]), "{found}");
    let wait = |rank: usize| &found["each_rank"][rank]["waits"][0];
    assert_eq!((&wait(0)["for"], &wait(0)["peer"]), (&"receive".into(), &1.into()), "{found}");
    assert_eq!((&wait(0)["tag"], &wait(1)["tag"]), (&7.into(), &8.into()), "{found}");
    assert_eq!((&wait(2)["for"], &wait(2)["peer"]), (&"match".into(), &1.into()), "{found}");
    assert_eq!(wait(2)["bytes"], 1 << 20, "{found}");
    assert_eq!(wait(3)["for"], "collective", "{found}");
    // The helper notes once a second which operations have begun.
    wait_until("the age of the send is known", || {
        let found = diagnose(&place, &job, &["--json"]).json();
        [0, 2].iter().all(|rank| found["each_rank"][rank]["waits"][0]["ms"].as_u64() >= Some(500))
    });
    let drawing = place.folder.path().join("waits.svg");
    let text = diagnose(&place, &job, &["--svg", drawing.to_str().expect("words")]).stdout;
    says(
        &text,
        &[
            "deadlock: ranks 0, 1 wait for each other, and for no other rank\n",
            "\n  rank 0 waits for a message of rank 1 (tag 7) for ",
            "\n  rank 1 waits for a message of rank 0 (tag 8) for ",
            "\n  2 ranks wait for this: 2, 3\n",
            "\n4 ranks: 4 waiting\n",
            "rank 2     waiting  for rank 1 to receive a message (tag 9, 1.0 MiB) for ",
        ],
    );
    let drawing = std::fs::read_to_string(&drawing).expect("it is drawn");
    says(
        &drawing,
        &["<svg xmlns=", "deadlock: ranks 0, 1 wait", "<title>rank 0 waits for a message of rank 1"],
    );
    assert_eq!(drawing.matches("<circle ").count(), 4 + 1, "ranks and a legend:\n{drawing}");
    assert_eq!(drawing.matches("marker-end").count(), 4, "an arrow for each rank:\n{drawing}");
    assert!(drawing.trim_end().ends_with("</svg>"), "{drawing}");
    end(job);
}

#[test]
fn a_receive_from_any_rank_is_in_a_deadlock_if_all_others_are() {
    hang_if_asked();
    let place = Place::new();
    let name = "a_receive_from_any_rank_is_in_a_deadlock_if_all_others_are";
    let job = start(&place, name, 3, "receive-any, receive 0 3, finish", &[], &[]);
    let found = diagnosed(&place, &job, 1);
    assert_eq!(found["findings"][0]["cause"], "deadlock", "{found}");
    assert_eq!(found["findings"][0]["ranks"], serde_json::json!([0, 1, 2]), "{found}");
    assert_eq!(found["each_rank"][0]["waits"][0]["peer"], Value::Null, "{found}");
    assert_eq!(found["each_rank"][2]["waits"][0]["for"], "finish", "{found}");
    says(
        &diagnose(&place, &job, &[]).stdout,
        &["for a message of any rank (any tag)", "for all other ranks to finish"],
    );
    end(job);
}

#[test]
fn a_rank_that_computes_while_others_wait_is_a_straggler() {
    hang_if_asked();
    let place = Place::new();
    let name = "a_rank_that_computes_while_others_wait_is_a_straggler";
    // The first may be helped by the third, which computes: so it is no deadlock that it waits for any rank.
    let job = start(&place, name, 3, "receive-any, receive 2 5, compute", &[], &[]);
    let found = diagnosed(&place, &job, 1);
    assert_eq!(found["findings"][0]["cause"], "straggler", "{found}");
    assert_eq!(found["findings"][0]["rank"], 2, "{found}");
    assert_eq!(found["findings"][0]["waiting"], serde_json::json!([0, 1]), "{found}");
    assert_eq!(found["each_rank"][2]["state"], "computing", "{found}");
    let process = format!("others wait for it (process {} on ", job.ranks()[2]);
    says(&diagnose(&place, &job, &[]).stdout, &["straggler: rank 2 computes", &process]);
    end(job);
}

#[test]
fn a_stopped_process_is_named_though_it_cannot_answer() {
    hang_if_asked();
    let place = Place::new();
    let name = "a_stopped_process_is_named_though_it_cannot_answer";
    let job = start(&place, name, 3, "receive 1 5, compute, receive 0 6", &["--nodes", "3"], &[]);
    let stopped = job.ranks()[1];
    signal(stopped, "STOP");
    let found = diagnosed(&place, &job, 1);
    assert_eq!(found["findings"][0]["cause"], "silent", "{found}");
    assert_eq!(found["findings"][0]["rank"], 1, "{found}");
    assert_eq!(found["findings"][0]["waiting"], serde_json::json!([0, 2]), "{found}");
    assert!(found["findings"][0]["waited_ms"].as_u64() >= Some(500), "{found}");
    let place_of = format!("its process may be stopped (process {stopped} on ");
    says(&diagnose(&place, &job, &[]).stdout, &["no answer: rank 1 has said nothing for ", &place_of]);
    signal(stopped, "CONT");
    // It answers again, and computes.
    assert_eq!(diagnosed(&place, &job, 1)["findings"][0]["cause"], "straggler");
    end(job);
}

#[test]
fn a_link_that_has_lost_its_peer_is_named_and_not_the_circle_over_it() {
    hang_if_asked();
    let place = Place::new();
    let name = "a_link_that_has_lost_its_peer_is_named_and_not_the_circle_over_it";
    // Every frame that the second rank sends is lost.
    let lossy = "if [ \"$STILLWIRE_RANK\" = 1 ]; then export STILLWIRE_FAULTS=loss=100%; fi; exec \"$@\"";
    let how = "receive 1 5, send 0 5 then receive 0 6";
    let job = start(&place, name, 2, how, &[], &["sh", "-c", lossy, "sh"]);
    let mut found = Value::Null;
    wait_until("the link counts as lost", || {
        found = diagnosed(&place, &job, 1);
        found["findings"][0]["cause"] == "lost-link"
    });
    let lost = &found["findings"][0];
    assert_eq!((&lost["from"], &lost["to"], &lost["frames"]), (&1.into(), &0.into(), &1.into()), "{found}");
    assert!(lost["silent_ms"].as_u64() >= Some(1000), "{found}");
    assert_eq!(lost["waiting"], serde_json::json!([0, 1]), "{found}");
    says(
        &diagnose(&place, &job, &[]).stdout,
        &["lost link: rank 0 has not acknowledged 1 frame of rank 1 for "],
    );
    end(job);
}

/// A program that knows nothing of all this, and speaks PMI as an MPI library does.
#[test]
fn a_program_of_an_mpi_library_waits_in_its_barrier_for_one_that_does_not_come() {
    let place = Place::new();
    let go = place.folder.path().join("go-");
    let mut command =
        stillwire(&["run", "-n", "2", "--ckpt-every", "1h", "--ckpt-dir", &place.job_text(), "--"]);
    command.arg(compiled("/tests/pmi/client.c")).args([
        "say:cmd=init pmi_version=1 pmi_subversion=1",
        "hear:cmd=response_to_init",
        "only:1",
        &format!("wait:{}", go.display()),
        "say:cmd=barrier_in",
        "hear:cmd=barrier_out",
        "say:cmd=finalize",
        "hear:cmd=finalize_ack",
    ]);
    command.env("STILLWIRE_PROVIDER", library()).env("XDG_STATE_HOME", place.state());
    let job = Running::start(command);
    let mut found = Value::Null;
    wait_until("the first rank is in its barrier", || {
        let id = done(stillwire(&["ps", "--json"]).env("XDG_STATE_HOME", place.state())).json();
        if id["jobs"][0]["status"]["running"] != 2 {
            return false;
        }
        found = diagnose(&place, &job, &["--json"]).json();
        found["each_rank"][0]["waits"][0]["for"] == "launcher"
    });
    assert_eq!(found["each_rank"][0]["state"], "waiting", "{found}");
    assert_eq!(found["each_rank"][1]["state"], "not-attached", "{found}");
    assert_eq!(found["findings"], serde_json::json!([]), "{found}");
    says(&diagnose(&place, &job, &[]).stdout, &["for all other ranks to start or end with MPI"]);
    std::fs::write(&go, b"").expect("a file");
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn a_job_whose_ranks_cannot_answer_says_so() {
    let place = Place::new();
    let unknown = done(stillwire(&["diagnose", "0123"]).env("XDG_STATE_HOME", place.state()));
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    let nothing = done(&mut stillwire(&["diagnose"]));
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    let job = start_sort(&place);
    let nowhere = Path::new("/nowhere/waits.svg");
    let mut command: Command = stillwire(&["diagnose", &id(&place, &job), "--svg"]);
    let failed = done(command.arg(nowhere).env("XDG_STATE_HOME", place.state()));
    assert_eq!(failed.code, Some(1), "{failed:?}");
    failed.says(&["/nowhere/waits.svg could not be written"]);
    place.let_end();
    assert_eq!(job.finish().code, Some(0));
}

/// A job that does not hang.
fn start_sort(place: &Place) -> Running {
    let mut job = place.run(&[]);
    job.wait_for("all ranks run");
    job
}
