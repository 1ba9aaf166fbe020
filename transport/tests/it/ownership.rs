//! R11: memory returned to its owner is neither read nor written, even if frames are lost, doubled, late or frozen.

use std::time::Duration;

use crate::world::{Fate, World, config, pattern};
use transport::Event;

const MS: Duration = Duration::from_millis(1);
const MESSAGES: u64 = 12;
const BYTES: usize = 60_000;

/// Takes every buffer back whose operation is done. The world's pump fails when the port then names a send's
/// buffer; a receive's buffer would come back into being.
fn take_back(world: &mut World, received: &mut Vec<(u64, Vec<u8>)>) {
    for node in &mut world.nodes {
        for event in std::mem::take(&mut node.events) {
            match event {
                Event::SendDone { op, .. } => {
                    node.memory.sending.remove(&op).expect("a send is done once");
                }
                Event::Received { op, tag, .. } => {
                    received.push((tag, node.memory.posted.remove(&op).expect("a receive is done once")));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn buffers_are_left_alone_before_and_after_their_operations() {
    for loss in 2..9 {
        let mut world = World::new(2, &config(), 1500);
        world.fate = Box::new(move |_, _, _, frames| match frames % (loss * 5) {
            0 => Fate::Lose,
            1 => Fate::Double,
            2 => Fate::Late(3 * MS),
            _ => Fate::Deliver,
        });
        for tag in 0..MESSAGES {
            world.receive(1, Some(0), Some(tag), BYTES as u64);
            world.send_user(0, 1, tag, pattern(tag, BYTES));
        }
        let mut received = Vec::new();
        for step in 0..20_000 {
            if step % 50 == 0 {
                // Half-way through transfers, too.
                let frozen = world.freeze((step / 50) % 2);
                world.now = world.now + MS;
                world.thaw((step / 50) % 2, frozen);
            }
            let until = world.now + MS;
            world.step(until);
            take_back(&mut world, &mut received);
            if received.len() as u64 == MESSAGES && world.nodes[0].memory.sending.is_empty() {
                break;
            }
        }
        // Frames that are still on their way find nothing to write to.
        world.run(200 * MS);
        take_back(&mut world, &mut received);
        received.sort();
        let expected: Vec<_> = (0..MESSAGES).map(|tag| (tag, pattern(tag, BYTES))).collect();
        assert!(received == expected, "{} of {MESSAGES} messages", received.len());
        assert!(
            world.nodes.iter().all(|node| node.memory.posted.is_empty()),
            "a buffer was written after its end"
        );
        assert!(world.port(0).is_settled());
    }
}
