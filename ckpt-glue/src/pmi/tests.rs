//! The server as its clients see it, and clients that break the protocol.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;
use transport::{Instant, Rank};

use super::{Broken, Input, Member, NoCommand, Output, Ranks, Refused, Server, SpawnCommand};
use crate::limits::{
    PMI_FIELDS_MAX, PMI_KEY_BYTES_MAX, PMI_LINE_BYTES_MAX, PMI_LONG_BYTES_MAX, PMI_LONG_FIELDS_MAX,
    PMI_NEWS_EVERY, PMI_REPLY_BYTES_MAX, PMI_SPAWN_COMMANDS_MAX, PMI_SPAWN_PROCESSES_MAX,
    PMI_VALUE_BYTES_MAX,
};

const TIMEOUT: Duration = Duration::from_secs(7);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn server(ranks: u32) -> Server {
    Server::new("job".to_string(), ranks, TIMEOUT)
}

fn outputs(server: &mut Server) -> Vec<Output> {
    core::iter::from_fn(|| server.poll_output()).collect()
}

fn member(rank: u32) -> Member {
    Member::of_job(Rank(rank))
}

fn bytes(member: Member, text: &str) -> Input {
    Input::Bytes { member, bytes: text.as_bytes().to_vec() }
}

fn say(server: &mut Server, rank: u32, text: &str) -> Vec<Output> {
    say_as(server, member(rank), text)
}

fn say_as(server: &mut Server, member: Member, text: &str) -> Vec<Output> {
    server.handle(at(0), bytes(member, text));
    outputs(server)
}

/// The one line that a rank is answered.
fn ask(server: &mut Server, rank: u32, text: &str) -> String {
    ask_as(server, member(rank), text)
}

fn ask_as(server: &mut Server, member: Member, text: &str) -> String {
    let lines: Vec<String> = say_as(server, member, &format!("{text}\n"))
        .into_iter()
        .filter_map(|output| match output {
            Output::Send { member: to, line } if to == member => Some(line),
            _ => None,
        })
        .collect();
    let [line] = lines.as_slice() else { panic!("{text}: {lines:?}") };
    line.strip_suffix('\n').expect("a line").to_string()
}

/// A server whose ranks have all begun.
fn begun(ranks: u32) -> Server {
    let mut server = server(ranks);
    for rank in 0..ranks {
        let begun = say(&mut server, rank, "cmd=init pmi_version=1 pmi_subversion=1\n");
        assert!(begun.contains(&Output::Began { member: member(rank) }), "{begun:?}");
    }
    server
}

fn broken(outputs: &[Output]) -> Vec<(u32, Broken)> {
    let each = outputs.iter().filter_map(|output| match output {
        Output::Broken { member, why } => Some((member.rank.0, why.clone())),
        _ => None,
    });
    each.collect()
}

// R37
#[test]
fn ranks_that_are_lost_are_named_and_no_barrier_waits_for_them() {
    let mut server = begun(4);
    let dead = "cmd=get kvsname=job key=PMI_dead_processes";
    assert_eq!(ask(&mut server, 0, dead), "cmd=get_result rc=-1 msg=no_such_key value=unknown");
    for rank in [0, 3] {
        assert_eq!(say(&mut server, rank, "cmd=barrier_in\n"), []);
    }
    // One that is there, and one that never comes.
    server.handle(at(1), Input::Lost { rank: Rank(3) });
    assert_eq!(outputs(&mut server), []);
    server.handle(at(1), Input::Lost { rank: Rank(1) });
    server.handle(at(1), Input::Gone { member: member(1) });
    assert_eq!(outputs(&mut server), []);
    let met = say(&mut server, 2, "cmd=barrier_in\n");
    let to: Vec<Member> = met
        .iter()
        .map(|output| match output {
            Output::Send { member, line } if line.starts_with("cmd=barrier_out") => *member,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(to, [member(0), member(2)]);
    assert_eq!(ask(&mut server, 0, dead), "cmd=get_result rc=0 msg=success value=3,1");
    // The last one that is missed is lost while the others wait.
    assert_eq!(say(&mut server, 0, "cmd=barrier_in\n"), []);
    server.handle(at(2), Input::Lost { rank: Rank(2) });
    assert!(matches!(outputs(&mut server).as_slice(), [Output::Send { .. }]));
    assert_eq!(ask(&mut server, 0, "cmd=finalize"), "cmd=finalize_ack rc=0");
}

#[test]
fn as_many_lost_ranks_are_named_as_an_answer_holds() {
    let mut server = begun(1000);
    for rank in 1..1000 {
        server.handle(at(1), Input::Lost { rank: Rank(rank) });
    }
    let line = ask(&mut server, 0, "cmd=get kvsname=job key=PMI_dead_processes");
    assert!(
        line.starts_with("cmd=get_result rc=0 msg=success value=1,2,3,") && line.len() < PMI_REPLY_BYTES_MAX
    );
    assert!(!line.ends_with(','), "{line}");
}

#[test]
fn what_an_mpi_library_asks_is_answered() {
    let mut server = server(2);
    for (question, answer) in [
        (
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        ),
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=896"),
        ("cmd=get_appnum", "cmd=appnum appnum=0"),
        ("cmd=get_universe_size", "cmd=universe_size size=2"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=job"),
        (
            "cmd=get kvsname=job key=PMI_process_mapping",
            "cmd=get_result rc=0 msg=success value=(vector,(0,2,1))",
        ),
        ("cmd=get kvsname=job key=P0", "cmd=get_result rc=-1 msg=no_such_key value=unknown"),
        ("cmd=put kvsname=job key=P0 value=a\\ b=c", "cmd=put_result rc=0 msg=success"),
        ("cmd=get kvsname=job key=P0", "cmd=get_result rc=0 msg=success value=a\\ b=c"),
        ("cmd=put kvsname=job key=P0 value=d", "cmd=put_result rc=0 msg=success"),
        ("cmd=get kvsname=job key=P0", "cmd=get_result rc=0 msg=success value=d"),
        ("cmd=get kvsname=other key=P0", "cmd=get_result rc=-1 msg=no_such_kvsname value=unknown"),
        (
            "cmd=getbyidx kvsname=job idx=0",
            "cmd=getbyidx_results rc=0 nextidx=1 key=PMI_process_mapping val=(vector,(0,2,1))",
        ),
        ("cmd=getbyidx kvsname=job idx=1", "cmd=getbyidx_results rc=0 nextidx=2 key=P0 val=d"),
        ("cmd=getbyidx kvsname=job idx=2", "cmd=getbyidx_results rc=-2 reason=no_more_keyvals"),
        ("cmd=lookup_name service=s", "cmd=lookup_result rc=-1 info=not_found msg=not_found"),
        ("cmd=publish_name service=s port=p", "cmd=publish_result rc=0 info=ok"),
        (
            "cmd=publish_name service=s port=q",
            "cmd=publish_result rc=-1 info=already_published msg=already_published",
        ),
        ("cmd=lookup_name service=s", "cmd=lookup_result rc=0 info=ok port=p"),
        ("cmd=unpublish_name service=s", "cmd=unpublish_result rc=0 info=ok"),
        ("cmd=unpublish_name service=s", "cmd=unpublish_result rc=-1 info=not_found msg=not_found"),
        ("cmd=finalize", "cmd=finalize_ack rc=0"),
    ] {
        assert_eq!(ask(&mut server, 0, question), answer, "{question}");
    }
}

#[test]
fn another_version_is_reported_what_there_is() {
    let mut server = server(1);
    let answer = ask(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0");
    assert_eq!(answer, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1");
    assert!(!server.has_begun(member(0)));
    assert_eq!(broken(&say(&mut server, 0, "cmd=get_maxes\n")).len(), 1);
}

#[test]
fn a_barrier_lets_all_go_when_the_last_has_come() {
    let mut server = begun(3);
    for round in 0..3 {
        assert_eq!(say(&mut server, 1, "cmd=barrier_in\n"), []);
        assert_eq!(say(&mut server, 0, "cmd=barrier_in\n"), []);
        let line = "cmd=barrier_out rc=0\n".to_string();
        let all: Vec<Output> =
            (0..3).map(|rank| Output::Send { member: member(rank), line: line.clone() }).collect();
        assert_eq!(say(&mut server, 2, "cmd=barrier_in\n"), all, "round {round}");
        assert_eq!(server.poll_timeout(), None);
    }
}

#[test]
fn lines_may_come_in_any_pieces() {
    let text = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=job key=k value=v\n\
                mcmd=spawn\nnprocs=0\nexecname=x\nendcmd\ncmd=get kvsname=job key=k\ncmd=finalize\n";
    let mut whole = server(1);
    let expected = say(&mut whole, 0, text);
    assert_eq!(expected.len(), 8, "{expected:?}");
    for piece in 1..text.len() {
        let mut server = server(1);
        let mut heard = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            server.handle(at(0), Input::Bytes { member: member(0), bytes: bytes.to_vec() });
            heard.extend(outputs(&mut server));
        }
        assert_eq!(heard, expected, "{piece} bytes at a time");
    }
}

#[test]
fn no_reply_is_longer_than_a_client_can_read() {
    let mut server = begun(1);
    let (key, value) = ("k".repeat(PMI_KEY_BYTES_MAX), "v".repeat(PMI_VALUE_BYTES_MAX));
    let put = |key: &str, value: &str| format!("cmd=put kvsname=job key={key} value={value}");
    assert_eq!(ask(&mut server, 0, &put(&key, &value)), "cmd=put_result rc=0 msg=success");
    assert!(ask(&mut server, 0, &format!("cmd=get kvsname=job key={key}")).ends_with(&value));
    let longest = ask(&mut server, 0, "cmd=getbyidx kvsname=job idx=1");
    assert!(longest.len() < PMI_REPLY_BYTES_MAX && longest.ends_with(&value), "{longest}");
    for (line, word) in [
        (put(&format!("{key}k"), "v"), "key_too_long"),
        (put("k", &format!("{value}v")), "value_too_long"),
        (format!("cmd=publish_name service=s port={value}v"), "value_too_long"),
    ] {
        assert!(ask(&mut server, 0, &line).contains(word), "{word}");
    }
}

#[test]
fn what_is_no_command_ends_the_rank_and_nothing_after_it_is_heard() {
    let too_long = "x".repeat(PMI_LINE_BYTES_MAX);
    let fields = format!("cmd=get{}\n", " a=b".repeat(PMI_FIELDS_MAX));
    let endless = format!("mcmd=spawn\nexecname=a\n{}", "b\n".repeat(PMI_LONG_BYTES_MAX / 2));
    let line = format!("mcmd=spawn\n{}", "x".repeat(PMI_LONG_BYTES_MAX));
    let keys: String = (0..=PMI_LONG_FIELDS_MAX).map(|at| format!("arg{at}=\n")).collect();
    let keys = format!("mcmd=spawn\n{keys}");
    let none = |start: &str| NoCommand::NoName { start: start.to_string() };
    for (bytes, error) in [
        (too_long.as_bytes(), NoCommand::TooLong),
        (fields.as_bytes(), NoCommand::TooManyFields),
        (endless.as_bytes(), NoCommand::TooLarge),
        (line.as_bytes(), NoCommand::TooLarge),
        (keys.as_bytes(), NoCommand::TooManyFields),
        (b"\xff\xfe\n", NoCommand::NoText),
        (b"cmd=get\0\n", NoCommand::NoText),
        (b"\n", none("")),
        (b"GET / HTTP/1.1\n", none("GET / HTTP/1.1")),
        (b"cmd=\n", none("cmd=")),
        (b"key=k cmd=get\n", none("key=k cmd=get")),
        (b"\x1b[31m\n", none("\\u{1b}[31m")),
    ] {
        let mut server = begun(2);
        let mut bytes = bytes.to_vec();
        bytes.extend(b"cmd=get_maxes\n");
        server.handle(at(0), Input::Bytes { member: member(1), bytes });
        assert_eq!(broken(&outputs(&mut server)), [(1, Broken::NoCommand(error))]);
        assert_eq!(say(&mut server, 1, "cmd=get_maxes\n"), []);
        assert_eq!(ask(&mut server, 0, "cmd=get_appnum"), "cmd=appnum appnum=0", "others are served");
    }
}

#[test]
fn commands_that_cannot_be_end_the_rank() {
    for (text, words) in [
        ("cmd=get_everything\n", "`get_everything`"),
        ("cmd=put kvsname=job value=v\n", "`put` has no `key`"),
        ("cmd=put key=k value=v\n", "`put` has no `kvsname`"),
        ("cmd=get kvsname=job\n", "`get` has no `key`"),
        ("cmd=init pmi_version=1 pmi_subversion=1\n", "a second time"),
        ("cmd=barrier_in group=SELF\n", "for a group"),
        ("cmd=barrier_in\ncmd=get_maxes\n", "while it waits at a barrier"),
        ("cmd=barrier_in\ncmd=barrier_in\n", "while it waits at a barrier"),
        ("cmd=finalize\ncmd=get_maxes\n", "after `finalize`"),
    ] {
        let mut server = begun(2);
        let broken = broken(&say(&mut server, 0, text));
        let [(0, why)] = broken.as_slice() else { panic!("{text}: {broken:?}") };
        assert!(why.to_string().contains(words), "{text}: {why}");
    }
    let mut server = server(1);
    let said = broken(&say(&mut server, 0, "cmd=barrier_in\n"));
    assert!(said[0].1.to_string().contains("before `init`"), "{said:?}");
}

#[test]
fn a_rank_that_dies_breaks_the_barrier_at_which_it_is_waited_for() {
    // It dies while others wait; or it had died before they came; or it had finished.
    for how in ["meanwhile", "before", "finished before", "silently before"] {
        let mut server = if how == "silently before" { server(3) } else { begun(3) };
        if how == "silently before" {
            say(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1\n");
        }
        match how {
            "meanwhile" => assert_eq!(say(&mut server, 0, "cmd=barrier_in\n"), []),
            "finished before" => drop(say(&mut server, 2, "cmd=finalize\n")),
            _ => {}
        }
        server.handle(at(0), Input::Gone { member: member(2) });
        server.handle(at(0), Input::Gone { member: member(2) });
        let mut said = broken(&outputs(&mut server));
        if how != "meanwhile" {
            said.extend(broken(&say(&mut server, 0, "cmd=barrier_in\n")));
        }
        assert_eq!(said, [(2, Broken::Left { waiting: 1 })], "{how}");
    }
    // A rank that waits itself does not delay the others.
    let mut server = begun(3);
    say(&mut server, 0, "cmd=barrier_in\n");
    server.handle(at(0), Input::Gone { member: member(0) });
    assert_eq!(outputs(&mut server), []);
}

#[test]
fn a_rank_that_never_comes_to_the_first_barrier_is_named() {
    let mut server = begun(3);
    let enter = |rank| Input::Bytes { member: member(rank), bytes: b"cmd=barrier_in\n".to_vec() };
    server.handle(at(100), enter(0));
    server.handle(at(102), enter(2));
    assert_eq!(server.poll_timeout(), Some(at(107)));
    server.handle_timeout(at(106));
    assert_eq!(outputs(&mut server), []);
    server.handle_timeout(at(107));
    let said = broken(&outputs(&mut server));
    let [(1, why)] = said.as_slice() else { panic!("{said:?}") };
    let why = why.to_string();
    assert!(why.contains("rank 1 did not reach") && why.contains("7s; waited for by 2"), "{why}");
}

#[test]
fn later_barriers_are_the_programs_own_and_only_reported() {
    let mut server = begun(2);
    say(&mut server, 0, "cmd=barrier_in\n");
    say(&mut server, 1, "cmd=barrier_in\n");
    say(&mut server, 1, "cmd=barrier_in\n");
    for round in 1..4 {
        let due = at(0) + PMI_NEWS_EVERY * round;
        assert_eq!(server.poll_timeout(), Some(due));
        server.handle_timeout(due);
        let missing = Ranks(vec![Rank(0)]);
        assert_eq!(
            outputs(&mut server),
            [Output::Waiting { world: 0, missing, waited: PMI_NEWS_EVERY * round }]
        );
    }
    assert_eq!(say(&mut server, 0, "cmd=barrier_in\n").len(), 2);
    assert_eq!(server.poll_timeout(), None);
}

#[test]
fn a_program_that_aborts_is_heard_also_from_a_barrier() {
    for (text, code) in [
        ("cmd=abort exitcode=7\n", 7),
        ("cmd=barrier_in\ncmd=abort exitcode=7\n", 7),
        ("cmd=abort exitcode=-1\n", 255),
        ("cmd=abort exitcode=256\n", 1),
        ("cmd=abort exitcode=0\n", 1),
        ("cmd=abort exitcode=x\n", 1),
        ("cmd=abort\ncmd=abort exitcode=9\n", 1),
    ] {
        let mut server = begun(2);
        assert_eq!(say(&mut server, 1, text), [Output::Aborted { member: member(1), code }], "{text}");
    }
}

#[test]
fn once_a_rank_has_begun_the_others_have_a_limited_time_to() {
    let init = |rank| Input::Bytes {
        member: member(rank),
        bytes: b"cmd=init pmi_version=1 pmi_subversion=1\n".to_vec(),
    };
    let mut server = server(12);
    assert_eq!(
        server.poll_timeout(),
        None,
        "a program that has nothing to do with MPI has all the time that it wants"
    );
    server.handle(at(100), init(11));
    server.handle(at(106), init(1));
    outputs(&mut server);
    assert_eq!(server.poll_timeout(), Some(at(107)), "from the first on");
    server.handle_timeout(at(106));
    assert_eq!(outputs(&mut server), []);
    server.handle_timeout(at(107));
    let said = broken(&outputs(&mut server));
    let [(0, why)] = said.as_slice() else { panic!("{said:?}") };
    let words = "ranks 0, 2, 3, 4, 5, 6, 7, 8 and 2 more did not call MPI_Init within 7s (--start-timeout)";
    assert!(why.to_string().starts_with(words), "{why}");
    assert!(server.has_begun(member(11)) && !server.has_begun(member(0)) && !server.has_begun(member(99)));
    assert_eq!(server.poll_timeout(), None, "said once");
}

#[test]
fn a_program_whose_ranks_have_all_begun_has_all_the_time_that_it_wants() {
    let mut server = begun(3);
    assert_eq!(server.poll_timeout(), None);
    server.handle_timeout(at(1000));
    assert_eq!(outputs(&mut server), []);
}

/// A spawn of one program, so often.
fn spawn_text(processes: u32) -> String {
    format!("mcmd=spawn\nnprocs={processes}\nexecname=x\nendcmd\n")
}

/// Has rank 0 of the job spawn so many processes, which begin.
fn spawned(server: &mut Server, world: u32, processes: u32) {
    let said = say(server, 0, &spawn_text(processes));
    assert!(matches!(&said[..], [Output::Spawn { world: given, .. }] if *given == world), "{said:?}");
    server.handle(at(0), Input::Spawned { world, outcome: Ok(()) });
    let line = "cmd=spawn_result rc=0\n".to_string();
    assert_eq!(outputs(server), [Output::Send { member: member(0), line }]);
    for rank in 0..processes {
        let member = Member { world, rank: Rank(rank) };
        let begun = say_as(server, member, "cmd=init pmi_version=1 pmi_subversion=1\n");
        assert!(begun.contains(&Output::Began { member }), "{begun:?}");
    }
}

#[test]
fn a_spawn_is_a_world_of_its_own() {
    let mut server = begun(2);
    let text = "mcmd=spawn\nnprocs=2\nexecname=a b\ntotspawns=2\nspawnssofar=1\nargcnt=3\narg1=c d\narg2=e\nf=g\n\narg3=\n\
                preput_num=1\npreput_key_0=PORT\npreput_val_0=tag#0$\ninfo_num=1\ninfo_key_0=wdir\ninfo_val_0=/tmp\nendcmd\n";
    assert_eq!(say(&mut server, 1, text), []);
    let said = say(
        &mut server,
        1,
        "mcmd=spawn\nnprocs=1\nexecname=two\ntotspawns=2\nspawnssofar=2\nargcnt=0\nendcmd\n",
    );
    let first = SpawnCommand {
        processes: 2,
        program: "a b".into(),
        arguments: vec!["c d".into(), "e\nf=g\n".into(), String::new()],
        hints: vec![("wdir".into(), "/tmp".into())],
    };
    let second = SpawnCommand { processes: 1, program: "two".into(), arguments: vec![], hints: vec![] };
    assert_eq!(said, [Output::Spawn { by: member(1), world: 1, commands: vec![first, second] }]);
    server.handle(at(0), Input::Spawned { world: 1, outcome: Ok(()) });
    assert_eq!(
        outputs(&mut server),
        [Output::Send { member: member(1), line: "cmd=spawn_result rc=0\n".into() }]
    );

    let one = |rank| Member { world: 1, rank: Rank(rank) };
    for (rank, program) in [(0, 0), (1, 0), (2, 1)] {
        say_as(&mut server, one(rank), "cmd=init pmi_version=1 pmi_subversion=1\n");
        assert_eq!(ask_as(&mut server, one(rank), "cmd=get_appnum"), format!("cmd=appnum appnum={program}"));
    }
    for (question, answer) in [
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=job-1"),
        ("cmd=get kvsname=job-1 key=PORT", "cmd=get_result rc=0 msg=success value=tag#0$"),
        (
            "cmd=get kvsname=job-1 key=PMI_process_mapping",
            "cmd=get_result rc=0 msg=success value=(vector,(0,3,1))",
        ),
        ("cmd=get kvsname=job key=PORT", "cmd=get_result rc=-1 msg=no_such_kvsname value=unknown"),
        ("cmd=put kvsname=job-1 key=k value=v", "cmd=put_result rc=0 msg=success"),
        ("cmd=publish_name service=s port=p", "cmd=publish_result rc=0 info=ok"),
        ("cmd=get_universe_size", "cmd=universe_size size=2"),
    ] {
        assert_eq!(ask_as(&mut server, one(2), question), answer, "{question}");
    }
    // Names are common to all, keys and barriers are not.
    assert_eq!(ask(&mut server, 0, "cmd=lookup_name service=s"), "cmd=lookup_result rc=0 info=ok port=p");
    assert!(ask(&mut server, 0, "cmd=get kvsname=job key=k").contains("no_such_key"));
    assert_eq!(say(&mut server, 0, "cmd=barrier_in\n"), []);
    assert_eq!(say_as(&mut server, one(0), "cmd=barrier_in\n"), []);
    assert_eq!(say_as(&mut server, one(1), "cmd=barrier_in\n"), []);
    assert_eq!(say_as(&mut server, one(2), "cmd=barrier_in\n").len(), 3);
    assert_eq!((server.barriers_passed(0), server.barriers_passed(1)), (0, 1));
}

#[test]
fn what_cannot_be_started_is_reported_to_the_program() {
    let mut server = begun(1);
    assert_eq!(say(&mut server, 0, &spawn_text(2)).len(), 1);
    server.handle(at(0), Input::Spawned { world: 1, outcome: Err("no_such_program") });
    let line = "cmd=spawn_result rc=-1 msg=no_such_program\n".to_string();
    assert_eq!(outputs(&mut server), [Output::Send { member: member(0), line }]);
    // No process of that world is heard, and its number is not used again.
    assert_eq!(say_as(&mut server, Member { world: 1, rank: Rank(0) }, "cmd=init pmi_version=1\n"), []);
    assert_eq!(server.poll_timeout(), None);
    spawned(&mut server, 2, 1);

    let refused = |server: &mut Server, text: &str| match &say(server, 0, text)[..] {
        [Output::Refused { why, .. }, Output::Send { line, .. }] if line.contains("rc=-1") => *why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&mut server, &spawn_text(0)), Refused::None);
    let asked = PMI_SPAWN_PROCESSES_MAX;
    assert_eq!(refused(&mut server, &spawn_text(asked)), Refused::Processes { asked, running: 1 });
    assert_eq!(
        refused(&mut server, &spawn_text(u32::MAX)),
        Refused::Processes { asked: u32::MAX, running: 0 }
    );
    let key = "k".repeat(PMI_KEY_BYTES_MAX + 1);
    let text = format!(
        "mcmd=spawn\nnprocs=1\nexecname=x\npreput_num=1\npreput_key_0={key}\npreput_val_0=v\nendcmd\n"
    );
    assert_eq!(refused(&mut server, &text), Refused::Keys);
    // An ended process makes room.
    server.handle(at(0), Input::Gone { member: Member { world: 2, rank: Rank(0) } });
    assert_eq!(outputs(&mut server), []);
    assert!(matches!(say(&mut server, 0, &spawn_text(asked))[..], [Output::Spawn { world: 3, .. }]));
}

#[test]
fn a_spawn_that_is_not_right_ends_the_rank() {
    let many = format!(
        "mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns={}\nspawnssofar=1\nendcmd\n",
        PMI_SPAWN_COMMANDS_MAX + 1
    );
    let part = "mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns=2\nspawnssofar=1\nendcmd\n";
    for (text, words) in [
        ("mcmd=spawn\nnprocs=1\nendcmd\n".to_string(), "no `execname`"),
        ("mcmd=spawn\nexecname=x\nendcmd\n".to_string(), "no `nprocs`"),
        ("mcmd=spawn\nnprocs=-1\nexecname=x\nendcmd\n".to_string(), "no `nprocs`"),
        (
            "mcmd=spawn\nnprocs=1\nexecname=x\nargcnt=4000000000\narg1=a\nendcmd\n".to_string(),
            "fewer arguments",
        ),
        ("mcmd=spawn\nnprocs=1\nexecname=x\ninfo_num=1\nendcmd\n".to_string(), "fewer hints"),
        ("mcmd=spawn\nnprocs=1\nexecname=x\npreput_num=1\nendcmd\n".to_string(), "fewer keys"),
        (
            "mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns=2\nspawnssofar=2\nendcmd\n".to_string(),
            "not numbered",
        ),
        (many, "257 programs at once"),
        (format!("{part}{part}"), "not numbered"),
        (format!("{part}cmd=barrier_in\n"), "between two parts"),
        (format!("{}cmd=get_maxes\n", spawn_text(1)), "while it waits for processes"),
        (format!("{}{}", spawn_text(1), spawn_text(1)), "while it waits for processes"),
    ] {
        let mut server = begun(1);
        let broken = broken(&say(&mut server, 0, &text));
        let [(0, why)] = broken.as_slice() else { panic!("{text}: {broken:?}") };
        assert!(why.to_string().contains(words), "{text}: {why}");
    }
}

#[test]
fn spawned_processes_are_waited_for_with_a_limit() {
    let one = |rank| Member { world: 1, rank: Rank(rank) };
    let mut server = begun(1);
    server.handle(at(10), bytes(member(0), &spawn_text(2)));
    server.handle(at(10), Input::Spawned { world: 1, outcome: Ok(()) });
    server.handle(at(11), bytes(one(0), "cmd=init pmi_version=1 pmi_subversion=1\n"));
    outputs(&mut server);
    assert_eq!(server.poll_timeout(), Some(at(17)));
    server.handle_timeout(at(17));
    let said = outputs(&mut server);
    let [Output::Broken { member, why }] = &said[..] else { panic!("{said:?}") };
    assert_eq!(
        (*member, why.to_string().as_str()),
        (one(1), "rank 1 did not call MPI_Init within 7s (--start-timeout); those that have wait for it")
    );
    assert_eq!(member.to_string(), "rank 1 of spawned world 1");
    assert_eq!(server.poll_timeout(), None);

    // One that ends and has not called it is waited for in vain; one that has may end.
    for (begins, broken_off) in [(false, 1), (true, 0)] {
        let mut server = begun(1);
        say(&mut server, 0, &spawn_text(1));
        server.handle(at(0), Input::Spawned { world: 1, outcome: Ok(()) });
        if begins {
            say_as(&mut server, one(0), "cmd=init pmi_version=1 pmi_subversion=1\ncmd=finalize\n");
            assert!(server.has_finished(one(0)));
        }
        outputs(&mut server);
        server.handle(at(1), Input::Gone { member: one(0) });
        assert_eq!(broken(&outputs(&mut server)).len(), broken_off);
        assert_eq!(server.poll_timeout(), None, "its world is forgotten");
        assert_eq!(say_as(&mut server, one(0), "cmd=get_maxes\n"), []);
    }
}

#[test]
fn a_barrier_of_a_spawned_world_breaks_like_any_other() {
    let one = |rank| Member { world: 1, rank: Rank(rank) };
    let mut server = begun(1);
    spawned(&mut server, 1, 2);
    assert_eq!(say_as(&mut server, one(0), "cmd=barrier_in\n"), []);
    server.handle(at(1), Input::Gone { member: one(1) });
    let said = outputs(&mut server);
    assert_eq!(said, [Output::Broken { member: one(1), why: Broken::Left { waiting: 1 } }]);
    assert_eq!(
        say_as(&mut server, one(0), "cmd=abort exitcode=5\n"),
        [Output::Aborted { member: one(0), code: 5 }]
    );
    // The spawner may have ended before they start.
    let mut server = begun(2);
    say(&mut server, 0, &spawn_text(1));
    server.handle(at(0), Input::Gone { member: member(0) });
    server.handle(at(0), Input::Spawned { world: 1, outcome: Ok(()) });
    assert_eq!(outputs(&mut server), []);
}

/// Lines that are nearly right.
fn nearly() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "cmd=init pmi_version=1 pmi_subversion=1",
        "cmd=put kvsname=job key=k value=v",
        "cmd=get kvsname=job key=k",
        "cmd=getbyidx kvsname=job idx=0",
        "cmd=getbyidx kvsname=job idx=99999999999999999999",
        "cmd=publish_name service=s port=p",
        "cmd=lookup_name service=s",
        "cmd=unpublish_name service=s",
        "cmd=barrier_in",
        "cmd=finalize",
        "cmd=abort exitcode=3",
        "mcmd=spawn",
        "nprocs=2",
        "execname=x",
        "totspawns=2",
        "spawnssofar=1",
        "spawnssofar=2",
        "preput_num=1",
        "endcmd",
        "mcmd=spawn\nnprocs=1\nexecname=x\nendcmd",
        "cmd=",
        "cmd==",
        "= = =",
        "\\",
        "cmd=get kvsname=job key=\\ \\\\ \\",
    ]);
    prop_oneof![8 => words.prop_map(String::from), 1 => "\\PC{0,40}"]
}

proptest! {
    #[test]
    fn whatever_clients_say_replies_are_lines_and_nothing_panics(
        said in prop::collection::vec((0u32..5, nearly(), any::<bool>()), 0..60),
        raw in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut server = server(4);
        for (rank, text, gone) in said {
            server.handle(at(1), Input::Bytes { member: member(rank), bytes: format!("{text}\n").into_bytes() });
            if gone && text.is_empty() {
                server.handle(at(2), Input::Gone { member: member(rank) });
            }
            server.handle(at(2), Input::Spawned { world: rank, outcome: if gone { Ok(()) } else { Err("no") } });
        }
        server.handle(at(3), Input::Bytes { member: member(0), bytes: raw });
        server.handle_timeout(at(1000));
        for output in outputs(&mut server) {
            if let Output::Send { line, .. } = output {
                prop_assert!(line.starts_with("cmd=") && line.ends_with('\n'));
                prop_assert_eq!(line.matches('\n').count(), 1);
                prop_assert!(line.len() <= PMI_REPLY_BYTES_MAX);
            }
        }
    }
}
