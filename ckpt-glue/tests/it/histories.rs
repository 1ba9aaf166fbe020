//! Random histories of a whole job: under any faults at any time the forbidden states do not occur, and the job
//! continues after the last fault.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{World, config};
use ckpt_glue::control::Source;
use ckpt_glue::interval::Every;
use ckpt_glue::job::Event;
use ckpt_glue::participant::Input;
use ckpt_glue::protocols::CheckpointEvent;
use ckpt_glue::{ExitStatus, GenerationId};
use proptest::prelude::*;
use transport::{Epoch, Life, Rank};

#[derive(Clone, Copy, Debug)]
enum Deed {
    Request,
    Kill(u32),
    CrashNode,
    Traffic(u32),
    Unsavable(u32, bool),
    FailCommits(bool),
    SlowStore(u64),
    Tune(Every),
    Suspect(u32),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => Just(Deed::Request),
        3 => (0u32..5).prop_map(Deed::Kill),
        1 => Just(Deed::CrashNode),
        2 => (0u32..5).prop_map(Deed::Traffic),
        1 => (0u32..5, any::<bool>()).prop_map(|(rank, on)| Deed::Unsavable(rank, on)),
        1 => any::<bool>().prop_map(Deed::FailCommits),
        1 => (1u64..40).prop_map(Deed::SlowStore),
        1 => (0u32..3).prop_map(Deed::Suspect),
        1 => Just(Deed::Tune(Every::Auto)),
        1 => Just(Deed::Tune(Every::OnRequest)),
        1 => (1u64..200).prop_map(|ms| Deed::Tune(Every::Fixed(std::time::Duration::from_millis(ms)))),
    ]
}

/// Named, committed and restored epochs, checked meanwhile.
#[derive(Default)]
struct Judge {
    named: BTreeMap<Life, Vec<Epoch>>,
    lives: BTreeSet<u32>,
}

impl Judge {
    fn look(&mut self, world: &World) {
        self.named.clear();
        let mut life = None;
        for event in &world.events {
            match event {
                Event::LifeBegun { decision, .. } => life = Some(decision.life),
                // R1: a number is named once in a life.
                Event::Checkpoint(CheckpointEvent::Begun { epoch, .. }) => {
                    let named = self.named.entry(life.expect("a life has begun")).or_default();
                    assert!(named.iter().all(|before| before < epoch), "{epoch} is named again");
                    named.push(*epoch);
                }
                Event::Checkpoint(CheckpointEvent::Abandoned { epoch, .. }) => {
                    let life = life.expect("a life has begun");
                    let key = GenerationId { life, epoch: *epoch };
                    assert!(!world.store.commits.contains(&key), "{key} is abandoned and committed");
                }
                _ => {}
            }
        }
        self.lives.clear();
        for decision in &world.store.decisions {
            // R7: every attempt is a life of its own.
            assert!(self.lives.insert(decision.life.counter), "life {} is begun again", decision.life);
        }
        for generation in &world.store.commits {
            // R8: every image of a committed generation is there.
            for rank in (0..world.layout.ranks()).map(Rank) {
                assert!(
                    world.store.images.contains_key(&(*generation, rank)),
                    "{generation} lacks rank {rank}"
                );
            }
        }
        for process in world.processes.values() {
            // R7: nothing runs in a life that was not decided.
            assert!(world.store.decisions.iter().any(|decision| decision.life == process.life));
        }
    }
}

/// `weak`: the node that crashes. Two of three keepers that forget in one life would be the end of the job.
fn act(world: &mut World, weak: u32, deed: Deed) {
    match deed {
        Deed::Request => world.request(Source::Command),
        Deed::Kill(rank) => world.end(rank, ExitStatus::Signal(9)),
        Deed::CrashNode => {
            world.crash_node(weak);
            world.revive_node(weak);
        }
        Deed::Traffic(rank) => {
            // Only an epoch that was named can be in a frame.
            let named = world.events.iter().rev().find_map(|event| match event {
                Event::LifeBegun { .. } => Some(None),
                Event::Checkpoint(CheckpointEvent::Begun { epoch, .. }) => Some(Some(*epoch)),
                _ => None,
            });
            if let Some(Some(epoch)) = named {
                world.rank(rank, Input::CutRequired { epoch });
            }
        }
        Deed::Unsavable(rank, on) => world.rank(rank, Input::Unsavable { what: on.then_some(1) }),
        Deed::FailCommits(on) => world.store.fail_commits = on,
        Deed::Tune(every) => world.tune(every),
        Deed::Suspect(node) => world.suspect(node),
        Deed::SlowStore(ms) => world.delays.write = std::time::Duration::from_millis(ms),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 100 }, ..ProptestConfig::default() })]
    #[test]
    fn nothing_forbidden_happens_and_the_job_goes_on(
        deeds in proptest::collection::vec((0u64..60, deed()), 0..25),
        fan_out in 1u32..4,
        weak in 0u32..3,
    ) {
        let mut settings = config();
        settings.fault.restarts_max = 1000;
        settings.fault.back_off = std::time::Duration::from_millis(1);
        settings.fault.start_timeout = std::time::Duration::from_secs(2);
        settings.checkpoint.timeout = std::time::Duration::from_millis(300);
        let mut world = World::new(5, 3, fan_out, settings);
        let mut judge = Judge::default();
        for (ms, deed) in deeds {
            world.run_ms(ms);
            act(&mut world, weak, deed);
            judge.look(&world);
        }
        // Faults cease: a checkpoint succeeds, and the job ends well.
        world.store.fail_commits = false;
        world.tune(Every::OnRequest);
        world.run_ms(60_000);
        judge.look(&world);
        prop_assert_eq!(world.over, None);
        for rank in 0..5 {
            world.rank(rank, Input::Unsavable { what: None });
        }
        let before = world.store.commits.len();
        world.request(Source::Command);
        world.run_ms(1_000);
        judge.look(&world);
        prop_assert_eq!(world.store.commits.len(), before + 1);
        for rank in 0..5 {
            world.rank(rank, Input::Finalizing);
        }
        world.run_ms(100);
        for rank in 0..5 {
            world.end(rank, ExitStatus::Code(0));
        }
        world.run_ms(100);
        prop_assert!(matches!(world.over, Some(report) if report.ending == ckpt_glue::recovery::Ending::Finished));
    }
}
