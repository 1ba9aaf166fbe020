//! A person asks why a job hangs: the question goes down the tree of keepers, and the answers come up.

use std::time::Duration;

use ckpt_glue::control::{Found, RankReport, Wait, WaitKind};
use ckpt_glue::diagnosis::{Cause, Diagnosis, RankState};
use ckpt_glue::limits::{WAIT_ANSWER_MAX, WAIT_ROUNDS_APART};
use ckpt_glue::{NodeIndex, job};
use transport::Rank;

use crate::support::{World, config};

/// A job of as many ranks as nodes, of which those that are named wait for others.
fn hanging(nodes: u32, waits: &[(u32, u32)]) -> World {
    let mut settings = config();
    // A node that is gone may not answer for as long as a diagnosis takes.
    settings.keeper.heartbeats_missed_max = 1000;
    let mut world = World::new(nodes, nodes, 2, settings);
    world.run_ms(200);
    for (rank, peer) in waits {
        let found = Found::Answered { in_call: true, sleeps: true, looks: 1, begun: 1 };
        let mut report = RankReport::of(Rank(*rank), found);
        let peer = Some(Rank(*peer));
        report.waits =
            vec![Wait { kind: WaitKind::Receive, peer, op: 1, tag: 7, ignore: 0, bytes: 8, age_ns: 9 }];
        world.waits.insert(Rank(*rank), report);
    }
    world.take_transcript();
    world
}

fn ask(world: &mut World) {
    let now = world.now;
    world.job.handle(now, job::Input::Diagnose);
}

/// The only diagnosis of a world so far.
fn diagnosis(world: &mut World) -> Diagnosis {
    assert_eq!(world.diagnoses.len(), 1);
    *world.diagnoses.remove(0).expect("the ranks run")
}

fn causes(diagnosis: &Diagnosis) -> Vec<&Cause> {
    diagnosis.findings.iter().map(|finding| &finding.cause).collect()
}

#[test]
fn a_question_takes_as_many_messages_as_there_are_nodes_and_ranks() {
    let mut world = hanging(15, &(0..15).map(|rank| (rank, (rank + 1) % 15)).collect::<Vec<_>>());
    ask(&mut world);
    world.run_until(world.now + WAIT_ROUNDS_APART / 2);
    assert_eq!(world.diagnoses, []);
    let messages = |transcript: &str| transcript.lines().filter(|line| line.contains(": waits")).count();
    let first = world.take_transcript();
    // Down to each node and each rank, and up from each.
    assert_eq!(messages(&first), 4 * 15, "{first}");
    world.run_until(world.now + WAIT_ROUNDS_APART);
    let again = world.take_transcript();
    assert_eq!(messages(&again), 4 * 15, "asked twice: {again}");
    let found = diagnosis(&mut world);
    let all: Vec<u32> = (0..15).collect();
    assert_eq!(causes(&found), [&Cause::Deadlock { ranks: all.clone(), cycle: all }]);
}

#[test]
fn a_rank_and_a_node_that_do_not_answer_are_named_in_time() {
    // Node 1 has nodes 3 and 4 below it, and node 2 node 5.
    let mut world = hanging(6, &[(0, 1), (1, 0), (2, 5), (3, 0), (4, 0)]);
    world.cut_off.insert(NodeIndex(1));
    ask(&mut world);
    // A second person, who gets the same answer.
    ask(&mut world);
    world.run_until(world.now + 2 * WAIT_ANSWER_MAX + WAIT_ROUNDS_APART + Duration::from_millis(1));
    let found = diagnosis(&mut world);
    let states: Vec<RankState> = found.each_rank.iter().map(|rank| rank.state).collect();
    let [waiting, silent, gone] = [RankState::Waiting, RankState::Silent, RankState::NodeSilent];
    assert_eq!(states, [waiting, gone, waiting, gone, gone, silent]);
    let silent: Vec<u32> = causes(&found)
        .iter()
        .map(|cause| match cause {
            Cause::Silent { rank, waited_ms, .. } => {
                assert!(*waited_ms >= 500, "{cause:?}");
                *rank
            }
            cause => panic!("{cause:?}"),
        })
        .collect();
    assert_eq!(silent[..2], [1, 5], "those that others wait for come first: {silent:?}");
    assert_eq!(silent.len(), 4);
}

#[test]
fn a_life_that_ends_ends_the_question_too() {
    let mut world = World::new(2, 1, 2, config());
    ask(&mut world);
    world.run_ms(1);
    assert_eq!(world.diagnoses, [None], "no ranks run yet");
    let mut world = hanging(2, &[(0, 1)]);
    ask(&mut world);
    world.run_ms(100);
    assert_eq!(world.diagnoses, []);
    world.end(1, ckpt_glue::ExitStatus::Signal(9));
    world.run_ms(100);
    assert_eq!(world.diagnoses, [None]);
    // Of the life before: it is not counted in the next.
    world.waits.insert(Rank(1), RankReport::of(Rank(1), Found::Ended));
    world.run_ms(1000);
    ask(&mut world);
    world.run_ms(1000);
    assert!(matches!(&world.diagnoses[..], [None, Some(_)]), "{:?}", world.diagnoses);
}
