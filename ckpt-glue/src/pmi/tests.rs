//! The server as its clients see it, and clients that do what they should not.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;
use transport::{Instant, Rank};

use super::{Broken, Input, NoCommand, Output, Refused, Server};
use crate::limits::{
    PMI_FIELDS_MAX, PMI_KEY_BYTES_MAX, PMI_LINE_BYTES_MAX, PMI_LONG_LINES_MAX, PMI_NEWS_EVERY,
    PMI_REPLY_BYTES_MAX, PMI_VALUE_BYTES_MAX,
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

fn say(server: &mut Server, rank: u32, text: &str) -> Vec<Output> {
    server.handle(at(0), Input::Bytes { rank: Rank(rank), bytes: text.as_bytes().to_vec() });
    outputs(server)
}

/// The one line that a rank is answered.
fn ask(server: &mut Server, rank: u32, text: &str) -> String {
    let lines: Vec<String> = say(server, rank, &format!("{text}\n"))
        .into_iter()
        .filter_map(|output| match output {
            Output::Send { rank: to, line } if to == Rank(rank) => Some(line),
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
        assert!(begun.contains(&Output::Began { rank: Rank(rank) }), "{begun:?}");
    }
    server
}

fn broken(outputs: &[Output]) -> Vec<(u32, Broken)> {
    let each = outputs.iter().filter_map(|output| match output {
        Output::Broken { rank, why } => Some((rank.0, why.clone())),
        _ => None,
    });
    each.collect()
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
fn another_version_is_told_what_there_is() {
    let mut server = server(1);
    let answer = ask(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0");
    assert_eq!(answer, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1");
    assert!(!server.has_begun(Rank(0)));
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
            (0..3).map(|rank| Output::Send { rank: Rank(rank), line: line.clone() }).collect();
        assert_eq!(say(&mut server, 2, "cmd=barrier_in\n"), all, "round {round}");
        assert_eq!(server.poll_timeout(), None);
    }
}

#[test]
fn lines_may_come_in_any_pieces() {
    let text = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=job key=k value=v\n\
                mcmd=spawn\nnprocs=1\nexecname=x\nendcmd\ncmd=get kvsname=job key=k\ncmd=finalize\n";
    let mut whole = server(1);
    let expected = say(&mut whole, 0, text);
    assert_eq!(expected.len(), 8, "{expected:?}");
    for piece in 1..text.len() {
        let mut server = server(1);
        let mut heard = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            server.handle(at(0), Input::Bytes { rank: Rank(0), bytes: bytes.to_vec() });
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
fn more_processes_are_refused_and_the_program_hears_it() {
    let mut server = begun(1);
    let said = say(&mut server, 0, "mcmd=spawn\nnprocs=2\nexecname=a b c\narg1=cmd=abort\nendcmd\n");
    let line = "cmd=spawn_result rc=-1 msg=stillwire_run_starts_no_more_processes\n".to_string();
    assert_eq!(
        said,
        [Output::Refused { rank: Rank(0), what: Refused::Spawn }, Output::Send { rank: Rank(0), line }]
    );
    assert_eq!(ask(&mut server, 0, "cmd=get_appnum"), "cmd=appnum appnum=0");
}

#[test]
fn what_is_no_command_ends_the_rank_and_nothing_after_it_is_heard() {
    let too_long = "x".repeat(PMI_LINE_BYTES_MAX);
    let fields = format!("cmd=get{}\n", " a=b".repeat(PMI_FIELDS_MAX));
    let endless = format!("mcmd=spawn\n{}", "a=b\n".repeat(PMI_LONG_LINES_MAX + 1));
    let none = |start: &str| NoCommand::NoName { start: start.to_string() };
    for (bytes, error) in [
        (too_long.as_bytes(), NoCommand::TooLong),
        (fields.as_bytes(), NoCommand::TooManyFields),
        (endless.as_bytes(), NoCommand::TooManyLines),
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
        server.handle(at(0), Input::Bytes { rank: Rank(1), bytes });
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
        server.handle(at(0), Input::Gone { rank: Rank(2) });
        server.handle(at(0), Input::Gone { rank: Rank(2) });
        let mut said = broken(&outputs(&mut server));
        if how != "meanwhile" {
            said.extend(broken(&say(&mut server, 0, "cmd=barrier_in\n")));
        }
        assert_eq!(said, [(2, Broken::Left { waiting: 1 })], "{how}");
    }
    // One that waits itself takes nobody else with it.
    let mut server = begun(3);
    say(&mut server, 0, "cmd=barrier_in\n");
    server.handle(at(0), Input::Gone { rank: Rank(0) });
    assert_eq!(outputs(&mut server), []);
}

#[test]
fn a_rank_that_never_comes_to_the_first_barrier_is_named() {
    let mut server = begun(3);
    let enter = |rank| Input::Bytes { rank: Rank(rank), bytes: b"cmd=barrier_in\n".to_vec() };
    server.handle(at(100), enter(0));
    server.handle(at(102), enter(2));
    assert_eq!(server.poll_timeout(), Some(at(107)));
    server.handle_timeout(at(106));
    assert_eq!(outputs(&mut server), []);
    server.handle_timeout(at(107));
    let said = broken(&outputs(&mut server));
    let [(1, why)] = said.as_slice() else { panic!("{said:?}") };
    let why = why.to_string();
    assert!(why.contains("rank 1 did not come") && why.contains("7s; waited for by 2"), "{why}");
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
        let missing = super::Ranks(vec![Rank(0)]);
        assert_eq!(outputs(&mut server), [Output::Waiting { missing, waited: PMI_NEWS_EVERY * round }]);
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
        assert_eq!(say(&mut server, 1, text), [Output::Aborted { rank: Rank(1), code }], "{text}");
    }
}

#[test]
fn silent_ranks_are_named_once_others_have_spoken() {
    let mut server = server(12);
    assert_eq!(server.silent(), None);
    for rank in [1, 11] {
        say(&mut server, rank, "cmd=init pmi_version=1 pmi_subversion=1\n");
    }
    let silent = server.silent().expect("ten are");
    assert_eq!(silent.to_string(), "ranks 0, 2, 3, 4, 5, 6, 7, 8 and 2 more");
    assert!(server.has_begun(Rank(11)) && !server.has_begun(Rank(0)) && !server.has_begun(Rank(99)));
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
        "endcmd",
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
            server.handle(at(1), Input::Bytes { rank: Rank(rank), bytes: format!("{text}\n").into_bytes() });
            if gone && text.is_empty() {
                server.handle(at(2), Input::Gone { rank: Rank(rank) });
            }
        }
        server.handle(at(3), Input::Bytes { rank: Rank(0), bytes: raw });
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
