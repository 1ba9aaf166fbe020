//! Each switch takes its rule out, and nothing else notices: finding out is the judges' work.
#![cfg(feature = "sabotage")]

use std::time::Duration;

use crate::support::{World, config};
use ckpt_glue::control::{CutMode, CutStatistics, ImageContent, ImageReport, Message, Source};
use ckpt_glue::job::Event;
use ckpt_glue::participant::Input;
use ckpt_glue::protocols::CheckpointEvent;
use ckpt_glue::{ExitStatus, ImageDigest, Rule, Sabotage};
use transport::{Epoch, Rank};

fn running(rule: Option<Rule>) -> World {
    let sabotage = rule.map_or(Sabotage::none(), Sabotage::out);
    let mut world = World::with(2, 1, 16, config(), sabotage);
    world.mode = CutMode::Instant;
    world.run_ms(40);
    world
}

fn named(world: &World) -> Vec<u32> {
    let epoch = |event: &Event| match event {
        Event::Checkpoint(CheckpointEvent::Begun { epoch, .. }) => Some(epoch.0),
        _ => None,
    };
    world.events.iter().filter_map(epoch).collect()
}

/// Whether `story` shows the rule's loss, and only then.
fn shows(rule: Rule, story: impl Fn(World) -> bool) {
    assert!(story(running(Some(rule))), "{} is out, and it does not show", rule.name());
    assert!(!story(running(None)), "{} holds, and the story says it is out", rule.name());
    for other in Rule::ALL.into_iter().filter(|other| *other != rule) {
        assert!(!story(running(Some(other))), "{} shows when {} is out", rule.name(), other.name());
    }
}

#[test]
fn r1_a_number_is_used_again() {
    shows(Rule::EpochReuse, |mut world| {
        world.store.fail_commits = true;
        world.request(Source::Command);
        world.run_ms(40);
        world.request(Source::Command);
        world.run_ms(40);
        named(&world) == [1, 1]
    });
}

#[test]
fn r2_a_rank_stays_behind() {
    shows(Rule::CutRefused, |mut world| {
        world.rank(1, Input::Unsavable { what: Some(1) });
        world.request(Source::Command);
        world.run_ms(40);
        world.processes[&Rank(1)].participant.as_ref().unwrap().epoch() == Epoch(0)
    });
}

#[test]
fn r7_two_attempts_share_a_life() {
    shows(Rule::LifeReuse, |mut world| {
        world.end(0, ExitStatus::Signal(9));
        world.run_ms(40);
        world.store.decisions.len() == 2 && world.store.decisions[0].life == world.store.decisions[1].life
    });
}

#[test]
fn r8_an_image_of_another_life_is_counted() {
    shows(Rule::KeyWithoutLife, |mut world| {
        let old = world.processes[&Rank(0)].life;
        world.end(0, ExitStatus::Signal(9));
        world.run_ms(60);
        world.request(Source::Command);
        world.run_ms(1);
        // Rank 1 writes for long; an image that it wrote in the old life is heard of now.
        world.delays.write = Duration::from_millis(500);
        world.run_ms(20);
        for rank in 0..2 {
            world.say_in(old, rank, late_image(rank));
        }
        world.run_ms(20);
        let current = world.processes[&Rank(0)].life;
        old != current && world.transcript.contains("store writes commit")
    });
}

fn late_image(rank: u32) -> Message {
    let report = ImageReport {
        rank: Rank(rank),
        digest: ImageDigest(5),
        bytes: 1,
        content: ImageContent::Commanded,
        statistics: CutStatistics::default(),
    };
    Message::ImageDone { epoch: Epoch(1), report }
}

#[test]
fn r8_the_record_is_written_first() {
    shows(Rule::CommitFirst, |mut world| {
        world.request(Source::Command);
        world.run_ms(1);
        world.rank(1, Input::CutRequired { epoch: Epoch(1) });
        world.delays.write = Duration::from_millis(50);
        world.run_ms(30);
        world.transcript.contains("of 1 images")
    });
}

#[test]
fn r9_the_store_is_not_fenced() {
    shows(Rule::NoFence, |mut world| {
        world.end(0, ExitStatus::Signal(9));
        world.run_ms(20);
        world.transcript.contains("store refuses lives below 0")
    });
}

#[test]
fn r9_a_job_that_has_committed_begins_anew() {
    shows(Rule::BeginsAnew, |mut world| {
        world.request(Source::Command);
        world.run_ms(40);
        world.store.is_unreadable = true;
        world.end(0, ExitStatus::Signal(9));
        world.run_ms(40);
        world.store.decisions.last().is_some_and(|last| last.life.counter == 2 && last.restore.is_none())
    });
}

#[test]
fn r37_no_rank_learns_of_a_loss() {
    shows(Rule::LossUntold, |mut world| {
        world.ignore_process_faults();
        world.end(0, ExitStatus::Signal(9));
        world.run_ms(40);
        !world.transcript.contains("rank-lost 0")
    });
}
