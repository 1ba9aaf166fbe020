use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use expect_test::expect;

use super::*;
use crate::table::table;

const NOW: Instant = Instant::from_nanos(1_000);

fn participant(mode: CutMode) -> Participant {
    let mut participant = Participant::new(Rank(2), mode, Epoch(4), 10, Sabotage::none());
    participant.handle(NOW, Input::PointReached { count: 10 });
    participant
}

fn with(mode: CutMode, inputs: &[Input]) -> Participant {
    let mut participant = participant(mode);
    for input in inputs {
        participant.handle(NOW, input.clone());
    }
    while participant.poll_output().is_some() {}
    participant
}

fn cut(epoch: u32, at: CutAt) -> Input {
    Input::Message(Message::Cut { epoch: Epoch(epoch), at, time_left_ns: 1_000_000 })
}

fn unreceived(by: Option<u32>) -> Input {
    Input::Unreceived { by: by.map(Rank) }
}

fn captured(epoch: u32) -> Input {
    let statistics = CutStatistics::default();
    Input::Captured { epoch: Epoch(epoch), digest: ImageDigest(1), bytes: 9, statistics }
}

fn failed(epoch: u32) -> Input {
    Input::CaptureFailed { epoch: Epoch(epoch), reason: NoImageReason::WriteFailed { errno: 28 } }
}

fn outputs(participant: &mut Participant) -> Vec<String> {
    let mut out = Vec::new();
    while let Some(output) = participant.poll_output() {
        out.push(match output {
            Output::TakeCut { epoch } => format!("take cut {epoch}"),
            Output::RaiseEpoch { epoch } => format!("raise to {epoch}"),
            Output::CancelImage { epoch } => format!("cancel image {epoch}"),
            Output::Committed { epoch } => format!("committed {epoch}"),
            Output::Send(message) => format!("say \"{message}\""),
        });
    }
    out
}

fn name(participant: &Participant) -> String {
    let epoch = participant.epoch;
    match participant.state {
        State::Running => format!("Running {epoch}"),
        State::Waiting { epoch: next, point, stands, .. } => {
            let verb = if stands { "Standing" } else { "Waiting" };
            format!("{verb} {epoch} for {next} at {point:?}")
        }
        State::Writing { .. } => format!("Writing {epoch}"),
    }
}

/// `None` is the time that runs out.
fn step(participant: &mut Participant, input: &Option<Input>) -> Vec<String> {
    match input {
        Some(input) => participant.handle(NOW, input.clone()),
        None => participant.handle_timeout(NOW + Duration::from_secs(60)),
    }
    outputs(participant)
}

fn inputs() -> Vec<(&'static str, Option<Input>)> {
    let message = |message| Some(Input::Message(message));
    let required = |epoch| Some(Input::CutRequired { epoch: Epoch(epoch) });
    let point = |count| Some(CutAt::Point { count });
    alloc::vec![
        ("cut 4", Some(cut(4, CutAt::Now))),
        ("cut 5", Some(cut(5, CutAt::Now))),
        ("cut 6", Some(cut(6, CutAt::Now))),
        ("cut 5 at point 12", point(12).map(|at| cut(5, at))),
        ("cut 5 at point 10", point(10).map(|at| cut(5, at))),
        ("cut 6 at point 12", point(12).map(|at| cut(6, at))),
        ("required 4", required(4)),
        ("required 5", required(5)),
        ("required 6", required(6)),
        ("required 69", required(5 + EPOCH_STEP_MAX)),
        ("point 11", Some(Input::PointReached { count: 11 })),
        ("point 12", Some(Input::PointReached { count: 12 })),
        ("point 13", Some(Input::PointReached { count: 13 })),
        ("finalizing", Some(Input::Finalizing)),
        ("unreceived by 1", Some(unreceived(Some(1)))),
        ("all received", Some(unreceived(None))),
        ("captured 5", Some(captured(5))),
        ("failed 5", Some(failed(5))),
        ("abandon 4", message(Message::Abandon { epoch: Epoch(4) })),
        ("abandon 5", message(Message::Abandon { epoch: Epoch(5) })),
        ("committed 5", message(Message::Committed { epoch: Epoch(5) })),
        ("query", message(Message::PointQuery { query: 1 })),
        ("time over", None),
    ]
}

// R2, R3
#[test]
fn an_instant_rank_in_every_state() {
    let states: [(&str, &dyn Fn() -> Participant); 3] = [
        ("Running", &|| with(CutMode::Instant, &[])),
        ("Writing 5", &|| with(CutMode::Instant, &[cut(5, CutAt::Now)])),
        ("Unsavable", &|| with(CutMode::Instant, &[Input::Unsavable { what: Some(3) }])),
    ];
    expect![[r#"
        Running + cut 5 -> Writing 5: take cut 5
        Running + cut 6 -> Writing 6: take cut 6
        Running + cut 5 at point 12 -> Writing 5: take cut 5
        Running + cut 5 at point 10 -> Writing 5: take cut 5
        Running + cut 6 at point 12 -> Writing 6: take cut 6
        Running + required 5 -> Writing 5: take cut 5, say "cut-seen 5"
        Running + required 6 -> Writing 6: take cut 6, say "cut-seen 6"
        Running + finalizing -> Running 4: say "finalize 1"
        Running + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Running + query -> Running 4: say "points (1) of 1 ranks: any"
        Writing 5 + cut 6 -> Writing 6: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 6 while writing its image", take cut 6
        Writing 5 + cut 6 at point 12 -> Writing 6: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 6 while writing its image", take cut 6
        Writing 5 + required 6 -> Writing 6: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 6 while writing its image", take cut 6, say "cut-seen 6"
        Writing 5 + required 69 -> Writing 69: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 69 while writing its image", take cut 69, say "cut-seen 69"
        Writing 5 + finalizing -> Writing 5: say "finalize 1"
        Writing 5 + captured 5 -> Running 5: say "image-done 5, 9 bytes"
        Writing 5 + failed 5 -> Running 5: say "no-image 5: rank 2 could not write its image (errno 28)"
        Writing 5 + abandon 5 -> Running 5: cancel image 5
        Writing 5 + committed 5 -> Writing 5: committed 5
        Writing 5 + query -> Writing 5: say "points (1) of 1 ranks: any"
        Unsavable + cut 5 -> Running 5: raise to 5, say "no-image 5: rank 2 holds state that cannot be saved (3)"
        Unsavable + cut 6 -> Running 6: raise to 6, say "no-image 6: rank 2 holds state that cannot be saved (3)"
        Unsavable + cut 5 at point 12 -> Running 5: raise to 5, say "no-image 5: rank 2 holds state that cannot be saved (3)"
        Unsavable + cut 5 at point 10 -> Running 5: raise to 5, say "no-image 5: rank 2 holds state that cannot be saved (3)"
        Unsavable + cut 6 at point 12 -> Running 6: raise to 6, say "no-image 6: rank 2 holds state that cannot be saved (3)"
        Unsavable + required 5 -> Running 5: raise to 5, say "no-image 5: rank 2 holds state that cannot be saved (3)", say "cut-seen 5"
        Unsavable + required 6 -> Running 6: raise to 6, say "no-image 6: rank 2 holds state that cannot be saved (3)", say "cut-seen 6"
        Unsavable + finalizing -> Running 4: say "finalize 1"
        Unsavable + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Unsavable + query -> Running 4: say "points (1) of 1 ranks: any"
    "#]].assert_eq(&table(&states, &inputs(), step, name));
}

// R2, R3
#[test]
fn a_counted_rank_in_every_state() {
    let states: [(&str, &dyn Fn() -> Participant); 7] = [
        ("Running", &|| with(CutMode::Counted, &[])),
        ("Waiting 12", &|| with(CutMode::Counted, &[cut(5, CutAt::Point { count: 12 })])),
        ("Informed by traffic", &|| with(CutMode::Counted, &[Input::CutRequired { epoch: Epoch(5) }])),
        ("Standing 11", &|| {
            let (cut, point) = (cut(5, CutAt::Point { count: 11 }), Input::PointReached { count: 11 });
            with(CutMode::Counted, &[cut, unreceived(Some(3)), point])
        }),
        ("Writing 5", &|| {
            let point = Input::PointReached { count: 11 };
            with(CutMode::Counted, &[cut(5, CutAt::Point { count: 11 }), point])
        }),
        ("Finalizing", &|| with(CutMode::Counted, &[Input::Finalizing])),
        ("Finalizing, unreceived", &|| with(CutMode::Counted, &[unreceived(Some(3)), Input::Finalizing])),
    ];
    expect![[r#"
        Running + cut 5 -> Running 5: raise to 5, say "no-image 5: rank 2 was at point 10 and got no point to cut at"
        Running + cut 6 -> Running 6: raise to 6, say "no-image 6: rank 2 was at point 10 and got no point to cut at"
        Running + cut 5 at point 12 -> Waiting 4 for 5 at Some(12): 
        Running + cut 5 at point 10 -> Running 5: raise to 5, say "no-image 5: rank 2 had passed 10 points when ordered to cut at point 10"
        Running + cut 6 at point 12 -> Waiting 4 for 6 at Some(12): 
        Running + required 5 -> Waiting 4 for 5 at None: say "cut-seen 5"
        Running + required 6 -> Waiting 4 for 6 at None: say "cut-seen 6"
        Running + finalizing -> Running 4: say "finalize 1"
        Running + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Running + query -> Running 4: say "points (1) of 1 ranks: 10 to 10"
        Waiting 12 + cut 5 -> Running 5: raise to 5, say "no-image 5: rank 2 was at point 10 and got no point to cut at"
        Waiting 12 + cut 6 -> Running 6: raise to 6, say "no-image 6: rank 2 was at point 10 and got no point to cut at"
        Waiting 12 + cut 6 at point 12 -> Waiting 4 for 6 at Some(12): 
        Waiting 12 + required 6 -> Waiting 4 for 6 at None: say "cut-seen 6"
        Waiting 12 + point 12 -> Writing 5: take cut 5
        Waiting 12 + point 13 -> Running 5: raise to 5, say "no-image 5: rank 2 had passed 13 points when ordered to cut at point 12"
        Waiting 12 + finalizing -> Writing 5: say "finalize 1", take cut 5
        Waiting 12 + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Waiting 12 + query -> Waiting 4 for 5 at Some(12): say "points (1) of 1 ranks: 10 to 10"
        Waiting 12 + time over -> Running 5: raise to 5, say "no-image 5: rank 2 was at point 10 and did not reach point 12 in time"
        Informed by traffic + cut 5 -> Running 5: raise to 5, say "no-image 5: rank 2 was at point 10 and got no point to cut at"
        Informed by traffic + cut 6 -> Running 6: raise to 6, say "no-image 6: rank 2 was at point 10 and got no point to cut at"
        Informed by traffic + cut 5 at point 12 -> Waiting 4 for 5 at Some(12): 
        Informed by traffic + cut 5 at point 10 -> Running 5: raise to 5, say "no-image 5: rank 2 had passed 10 points when ordered to cut at point 10"
        Informed by traffic + cut 6 at point 12 -> Waiting 4 for 6 at Some(12): 
        Informed by traffic + required 6 -> Waiting 4 for 6 at None: say "cut-seen 6"
        Informed by traffic + finalizing -> Writing 5: say "finalize 1", take cut 5
        Informed by traffic + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Informed by traffic + query -> Waiting 4 for 5 at None: say "points (1) of 1 ranks: 10 to 10"
        Informed by traffic + time over -> Running 5: raise to 5, say "no-image 5: rank 2 was at point 10 and got no point to cut at"
        Standing 11 + cut 5 -> Running 5: raise to 5, say "no-image 5: rank 2 was at point 11 and got no point to cut at"
        Standing 11 + cut 6 -> Running 6: raise to 6, say "no-image 6: rank 2 was at point 11 and got no point to cut at"
        Standing 11 + cut 6 at point 12 -> Waiting 4 for 6 at Some(12): 
        Standing 11 + required 6 -> Waiting 4 for 6 at None: say "cut-seen 6"
        Standing 11 + point 12 -> Running 5: raise to 5, say "no-image 5: rank 2 had passed 12 points when ordered to cut at point 11"
        Standing 11 + point 13 -> Running 5: raise to 5, say "no-image 5: rank 2 had passed 13 points when ordered to cut at point 11"
        Standing 11 + finalizing -> Standing 4 for 5 at Some(11): say "finalize 1"
        Standing 11 + all received -> Writing 5: take cut 5
        Standing 11 + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Standing 11 + query -> Standing 4 for 5 at Some(11): say "points (1) of 1 ranks: 11 to 11"
        Standing 11 + time over -> Running 5: raise to 5, say "no-image 5: rank 2 stood at point 11 with a message that rank 3 did not receive in time; messages that are received only after that point have to be sent with a request (isend)"
        Writing 5 + cut 6 -> Running 6: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 6 while writing its image", raise to 6, say "no-image 6: rank 2 was at point 11 and got no point to cut at"
        Writing 5 + cut 6 at point 12 -> Waiting 5 for 6 at Some(12): cancel image 5, say "no-image 5: rank 2 had to cut to epoch 6 while writing its image"
        Writing 5 + required 6 -> Waiting 5 for 6 at None: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 6 while writing its image", say "cut-seen 6"
        Writing 5 + required 69 -> Waiting 5 for 69 at None: cancel image 5, say "no-image 5: rank 2 had to cut to epoch 69 while writing its image", say "cut-seen 69"
        Writing 5 + finalizing -> Writing 5: say "finalize 1"
        Writing 5 + captured 5 -> Running 5: say "image-done 5, 9 bytes"
        Writing 5 + failed 5 -> Running 5: say "no-image 5: rank 2 could not write its image (errno 28)"
        Writing 5 + abandon 5 -> Running 5: cancel image 5
        Writing 5 + committed 5 -> Writing 5: committed 5
        Writing 5 + query -> Writing 5: say "points (1) of 1 ranks: 11 to 11"
        Finalizing + cut 5 -> Writing 5: take cut 5
        Finalizing + cut 6 -> Writing 6: take cut 6
        Finalizing + cut 5 at point 12 -> Writing 5: take cut 5
        Finalizing + cut 5 at point 10 -> Writing 5: take cut 5
        Finalizing + cut 6 at point 12 -> Writing 6: take cut 6
        Finalizing + required 5 -> Writing 5: take cut 5, say "cut-seen 5"
        Finalizing + required 6 -> Writing 6: take cut 6, say "cut-seen 6"
        Finalizing + finalizing -> Running 4: say "finalize 1"
        Finalizing + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Finalizing + query -> Running 4: say "points (1) of 1 ranks: any"
        Finalizing, unreceived + cut 5 -> Standing 4 for 5 at None: 
        Finalizing, unreceived + cut 6 -> Standing 4 for 6 at None: 
        Finalizing, unreceived + cut 5 at point 12 -> Standing 4 for 5 at Some(12): 
        Finalizing, unreceived + cut 5 at point 10 -> Standing 4 for 5 at Some(10): 
        Finalizing, unreceived + cut 6 at point 12 -> Standing 4 for 6 at Some(12): 
        Finalizing, unreceived + required 5 -> Standing 4 for 5 at None: say "cut-seen 5"
        Finalizing, unreceived + required 6 -> Standing 4 for 6 at None: say "cut-seen 6"
        Finalizing, unreceived + finalizing -> Running 4: say "finalize 1"
        Finalizing, unreceived + abandon 5 -> Running 5: raise to 5, say "no-image 5: rank 2 got the order to abandon the checkpoint before it cut"
        Finalizing, unreceived + query -> Running 4: say "points (1) of 1 ranks: any"
    "#]].assert_eq(&table(&states, &inputs(), step, name));
}

#[test]
fn the_mean_interval_lasts_until_the_question() {
    let mut participant = participant(CutMode::Counted);
    participant.handle(NOW + Duration::from_nanos(10), Input::PointReached { count: 12 });
    let query = Input::Message(Message::PointQuery { query: 9 });
    participant.handle(NOW + Duration::from_nanos(600), query);
    let Some(Output::Send(Message::PointReport { query: 9, summary })) = participant.poll_output() else {
        panic!("a question is answered at once");
    };
    assert_eq!(summary, PointSummary::of(Point { count: 12, rank: Rank(2) }, Some(300)));
}

/// Under any input, the epoch never falls, and a rank takes or raises only an epoch above the one it has.
#[test]
fn the_epoch_only_rises() {
    use proptest::prelude::*;
    let choices: Vec<Option<Input>> = inputs().into_iter().map(|(_, input)| input).collect();
    let count = choices.len();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = proptest::collection::vec(0..count, 0..40);
    let mode = prop_oneof![Just(CutMode::Instant), Just(CutMode::Counted)];
    let check = runner.run(&(mode, steps), |(mode, steps)| {
        let mut participant = participant(mode);
        let mut epoch = participant.epoch();
        for index in steps {
            match &choices[index] {
                Some(input) => participant.handle(NOW, input.clone()),
                None => participant.handle_timeout(NOW + Duration::from_secs(60)),
            }
            let mut carried_out = epoch;
            while let Some(output) = participant.poll_output() {
                if let Output::TakeCut { epoch } | Output::RaiseEpoch { epoch } = output {
                    prop_assert!(epoch > carried_out);
                    carried_out = epoch;
                }
            }
            prop_assert!(participant.epoch() >= epoch);
            prop_assert_eq!(participant.epoch(), carried_out);
            epoch = carried_out;
        }
        Ok(())
    });
    check.expect("the epoch only rises");
}

#[cfg(feature = "sabotage")]
#[test]
fn without_r2_a_rank_that_cannot_save_stays_behind() {
    let mut participant =
        Participant::new(Rank(0), CutMode::Instant, Epoch(0), 0, Sabotage::out(Rule::CutRefused));
    participant.handle(NOW, Input::Unsavable { what: Some(1) });
    participant.handle(NOW, cut(1, CutAt::Now));
    assert_eq!(participant.epoch(), Epoch(0));
    assert_eq!(participant.poll_output(), None);
}
