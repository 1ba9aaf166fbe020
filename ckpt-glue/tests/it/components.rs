//! Components that are asked about faults: what waits for their answer, and what does not.

use crate::support::{World, config};
use ckpt_glue::control::{FaultReport, Message};
use ckpt_glue::job::{Event, Input};
use ckpt_glue::limits::HELD_FAULTS_MAX;
use ckpt_glue::recovery::{
    Answer, Confidence, Ending, Fault, FaultModel, Loaded, Plan, Question, RecoveryProtocol, StopReason,
};
use ckpt_glue::{ExitStatus, NodeIndex};
use transport::Rank;

const KILLED: ExitStatus = ExitStatus::Signal(9);

/// Four ranks on two nodes that run, with these components.
fn running(detector: bool, recovery: bool) -> World {
    let mut world = World::new(4, 2, 16, config());
    world.component(Input::Loaded(Loaded { detector, recovery }));
    world.run_ms(40);
    world.asked.clear();
    world
}

/// The faults that had a reaction.
fn reactions(world: &World) -> Vec<(Fault, Plan)> {
    let action = |event: &Event| match event {
        Event::Reported { action, .. } => *action,
        _ => None,
    };
    world.events.iter().filter_map(action).collect()
}

/// The open question.
fn question(world: &World) -> (u64, Question) {
    let open =
        world.asked.iter().rev().find_map(|(number, question)| number.map(|number| (number, *question)));
    open.expect("a component is asked")
}

fn answer(world: &mut World, answer: Answer) {
    let (number, _) = question(world);
    world.component(Input::Answered { number, answer });
}

#[test]
fn without_components_nobody_is_asked() {
    let mut world = running(false, false);
    world.end(0, KILLED);
    world.run_ms(20);
    assert!(world.asked.is_empty());
    assert_eq!(reactions(&world).len(), 1);
}

#[test]
fn a_detector_gives_a_fault_another_model() {
    let mut world = running(true, false);
    world.end(2, KILLED);
    world.run_ms(20);
    assert!(
        matches!(question(&world).1, Question::Report { fault: Some(fault), .. } if fault.model == FaultModel::Process)
    );
    assert!(reactions(&world).is_empty(), "its answer is waited for");
    answer(&mut world, Answer::Model(FaultModel::Permanent));
    let (fault, plan) = reactions(&world)[0];
    assert_eq!(fault.model, FaultModel::Permanent);
    assert!(matches!(plan, Plan::Migrate { node: NodeIndex(1), .. }), "{plan:?}");
}

#[test]
fn a_model_whose_reaction_could_be_to_wait_is_not_taken() {
    for model in [FaultModel::Network, FaultModel::Program, FaultModel::Inconsistent] {
        let mut world = running(true, false);
        world.end(2, KILLED);
        world.run_ms(20);
        answer(&mut world, Answer::Model(model));
        assert_eq!(reactions(&world)[0].0.model, FaultModel::Process);
    }
}

#[test]
fn a_recovery_protocol_chooses_the_reaction() {
    use RecoveryProtocol::{Migration, Restart, Stop, Wait};
    // A process that is gone is not waited for.
    let cases = [
        (Answer::BuiltIn, Restart),
        (Answer::Protocol(Restart), Restart),
        (Answer::Protocol(Migration), Migration),
        (Answer::Protocol(Stop), Stop),
        (Answer::Protocol(Wait), Restart),
    ];
    for (said, expected) in cases {
        let mut world = running(false, true);
        world.end(1, KILLED);
        world.run_ms(20);
        answer(&mut world, said);
        let (_, plan) = reactions(&world)[0];
        let found = match plan {
            Plan::Migrate { node: NodeIndex(0), .. } => Migration,
            Plan::Stop { reason: StopReason::Policy { model: FaultModel::Process } } => Stop,
            Plan::Restart { .. } => Restart,
            other => panic!("{said:?}: {other:?}"),
        };
        assert_eq!(found, expected, "{said:?}");
    }
}

#[test]
fn both_are_asked_one_after_the_other() {
    let mut world = running(true, true);
    world.end(1, KILLED);
    world.run_ms(20);
    answer(&mut world, Answer::Model(FaultModel::Repeated));
    let (_, asked) = question(&world);
    assert!(
        matches!(asked, Question::Reaction { fault, plan: Plan::Migrate { .. } } if fault.model == FaultModel::Repeated)
    );
    answer(&mut world, Answer::Protocol(RecoveryProtocol::Restart));
    assert!(matches!(reactions(&world)[..], [(_, Plan::Restart { .. })]));
}

#[test]
fn faults_that_come_meanwhile_are_of_the_same_cause() {
    let mut world = running(false, true);
    world.end(1, KILLED);
    world.run_ms(5);
    world.end(2, KILLED);
    world.end(3, ExitStatus::Code(1));
    world.run_ms(200);
    assert!(reactions(&world).is_empty());
    assert_eq!(world.asked.len(), 1);
    // Another number, or an answer that comes twice, is none.
    world.component(Input::Answered { number: 77, answer: Answer::BuiltIn });
    assert!(reactions(&world).is_empty());
    answer(&mut world, Answer::BuiltIn);
    answer(&mut world, Answer::BuiltIn);
    world.run_ms(300);
    assert_eq!(reactions(&world).len(), 1);
    assert_eq!(world.store.decisions.len(), 2, "the next life has begun");
}

#[test]
fn a_person_ends_a_job_that_waits_for_an_answer() {
    let mut world = running(true, true);
    world.end(1, KILLED);
    world.run_ms(20);
    world.stop();
    world.run_ms(200);
    assert_eq!(world.over.expect("a report").ending, Ending::Stopped);
    answer(&mut world, Answer::BuiltIn);
    assert!(reactions(&world).is_empty());
}

#[test]
fn a_suspicion_of_a_component_is_an_attempt_to_recover() {
    let mut world = running(true, false);
    world.component(Input::Detected { node: NodeIndex(1) });
    let (fault, plan) = reactions(&world)[0];
    assert_eq!((fault.model, fault.confidence), (FaultModel::Permanent, Confidence::Component));
    assert!(matches!(plan, Plan::Migrate { node: NodeIndex(1), .. }));
    assert!(!world.asked.iter().any(|(number, _)| number.is_some()), "it is not asked about its own word");
    let attempts = |event: &Event| match event {
        Event::LifeBegun { attempt, .. } => Some(*attempt),
        _ => None,
    };
    world.run_ms(300);
    assert_eq!(world.events.iter().filter_map(attempts).max(), Some(1));
}

#[test]
fn a_detector_sees_what_is_no_fault() {
    let mut world = running(true, false);
    world.end(1, ExitStatus::Code(3));
    world.run_ms(300);
    assert!(
        matches!(world.asked[..], [(None, Question::Report { fault: None, .. }), ..]),
        "{:?}",
        world.asked
    );
}

#[test]
fn faults_that_waited_behind_one_without_a_reaction_are_judged() {
    let mut settings = config();
    settings.fault.policy.change("network=restart").expect("a change");
    let mut world = World::new(4, 2, 16, settings);
    world.component(Input::Loaded(Loaded { detector: true, recovery: false }));
    world.run_ms(100);
    let report = FaultReport::RankSilent { rank: Rank(3), by: Some(Rank(0)), silent_ms: 1000 };
    world.say(Rank(0), Message::Fault { report });
    world.run_ms(60_000);
    let asked = |world: &World| match question(world).1 {
        Question::Report { report, .. } => report,
        Question::Reaction { .. } => panic!("no recovery protocol is loaded"),
    };
    assert!(matches!(asked(&world), FaultReport::NodeCutOff { node: NodeIndex(1), .. }));
    world.end(1, KILLED);
    world.run_ms(20);
    let mut policy = world.job.policy().clone();
    policy.change("network=wait").expect("a change");
    world.component(Input::SetPolicy(policy));
    answer(&mut world, Answer::BuiltIn);
    assert_eq!(asked(&world), FaultReport::RankDied { rank: Rank(1), status: KILLED });
    assert!(reactions(&world).is_empty());
    answer(&mut world, Answer::BuiltIn);
    assert!(matches!(reactions(&world)[..], [(_, Plan::Restart { .. })]));
}

#[test]
fn an_answer_is_not_waited_for_when_too_much_waits_for_it() {
    let mut world = running(true, true);
    world.end(1, KILLED);
    world.run_ms(20);
    for _ in 0..HELD_FAULTS_MAX {
        assert!(reactions(&world).is_empty());
        world.say(
            Rank(0),
            Message::Fault { report: FaultReport::RankNotStarted { rank: Rank(2), errno: 12 } },
        );
        world.run_ms(1);
    }
    world.run_ms(20);
    assert!(matches!(reactions(&world)[0], (Fault { model: FaultModel::Process, .. }, Plan::Restart { .. })));
}
