//! With a rule switched off, the prevented fault does happen: the switches work.
#![cfg(feature = "sabotage")]

use crate::common::{checkpoint, generation, job_file, life, request, restore, write_images};
use store::job::{Depth, JobDirectory};
use store::sabotage::{Rule, Sabotage};
use store::{Memory, Section};
use transport::Rank;

fn job(rule: Rule) -> (JobDirectory<Memory>, transport::Life) {
    let directory = JobDirectory::create(Memory::new(), &job_file()).unwrap();
    let mut directory = directory.with_sabotage(Sabotage::out(rule));
    let life = directory.start_life(1, None).unwrap().life;
    (directory, life)
}

#[test]
fn without_the_fence_a_dead_life_commits_past_the_decision() {
    let (mut directory, old_life) = job(Rule::NoFence);
    let base = generation(old_life, 1);
    checkpoint(&mut directory, base).unwrap();
    directory.start_life(2, Some(base)).unwrap();
    let late = generation(old_life, 2);
    checkpoint(&mut directory, late).unwrap();
    assert_eq!(directory.newest_committed().unwrap().unwrap().generation, late);
}

#[test]
fn without_the_order_a_committed_generation_cannot_be_restored() {
    let (mut directory, life) = job(Rule::CommitFirst);
    let id = generation(life, 1);
    directory.begin_generation(id).unwrap();
    let mut claims = write_images(&mut directory, id).unwrap();
    claims.remove(0);
    directory.commit(&request(id, claims)).unwrap();
    assert_eq!(directory.newest_committed().unwrap().unwrap().generation, id);
    assert!(restore(&mut directory, id).is_err());
    assert_eq!(directory.newest_restorable(Depth::Tables).unwrap().manifest, None);
}

#[test]
fn without_the_life_in_the_key_lives_mix() {
    let (mut directory, _) = job(Rule::KeyWithoutLife);
    let id = generation(life(0, 0), 1);
    checkpoint(&mut directory, id).unwrap();
    // A straggler of an older life writes over a committed image.
    directory.begin_generation(id).unwrap();
    directory.write_image(id, Rank(0), &[Section::new(1, 1, b"another life")]).unwrap();
    assert!(restore(&mut directory, id).is_err());
}
