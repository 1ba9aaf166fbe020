//! What a port shows of its open operations and of links whose peers owe something.

use std::time::Duration;

use crate::world::{Fate, World, config, port_id};
use transport::port::{OpenReceive, OpenSend, SendStage};

const MS: Duration = Duration::from_millis(1);

fn receives(world: &mut World, node: usize) -> Vec<OpenReceive> {
    world.port(node).open_receives().collect()
}

fn sends(world: &mut World, node: usize) -> Vec<OpenSend> {
    world.port(node).open_sends().collect()
}

#[test]
fn a_receive_is_open_until_its_message_has_come_completely() {
    let mut world = World::new(2, &config(), 1500);
    assert_eq!(receives(&mut world, 0), []);
    let any = world.receive(0, None, None, 100);
    let addressed = world.receive(0, Some(1), Some(7), 1 << 20);
    let open = receives(&mut world, 0);
    assert_eq!(open.iter().map(|receive| receive.op).collect::<Vec<_>>(), [any, addressed]);
    assert_eq!((open[0].source, open[0].ignore, open[0].arrived), (None, u64::MAX, None));
    assert_eq!((open[1].source, open[1].tag, open[1].ignore), (Some(port_id(1)), 7, 0));
    assert_eq!(open[1].bytes, 1 << 20);
    world.send(1, 0, 3, b"short");
    world.run(MS);
    assert_eq!(receives(&mut world, 0).len(), 1, "the first has its message");
    // A long one, of which nothing but the announcement arrives.
    world.fate = Box::new(|_, _, frame, _| match frame.body {
        transport::wire::Body::Data(_) => Fate::Lose,
        _ => Fate::Deliver,
    });
    world.send_user(1, 0, 7, vec![5; 300_000]);
    world.run(10 * MS);
    let [arriving] = receives(&mut world, 0)[..] else { panic!("one is open") };
    assert_eq!((arriving.op, arriving.source, arriving.tag), (addressed, Some(port_id(1)), 7));
    assert_eq!((arriving.arrived, arriving.bytes), (Some(0), 300_000));
    let [leaving] = sends(&mut world, 1)[..] else { panic!("one is open") };
    assert_eq!((leaving.stage, leaving.bytes), (SendStage::InFlight, 300_000));
    world.fate = Box::new(|_, _, _, _| Fate::Deliver);
    world.run(Duration::from_secs(20));
    assert_eq!((receives(&mut world, 0), sends(&mut world, 1)), (vec![], vec![]));
}

#[test]
fn a_send_is_open_until_it_reports_its_end_and_shows_how_far_it_is() {
    let mut world = World::new(2, &config(), 1500);
    let long = world.send_user(0, 1, 9, vec![5; 300_000]);
    world.run(MS);
    let [announced] = sends(&mut world, 0)[..] else { panic!("one is open") };
    assert_eq!((announced.op, announced.peer, announced.tag), (long, port_id(1), 9));
    assert_eq!((announced.stage, announced.context), (SendStage::Announced, 1009));
    world.receive(1, None, Some(9), 1 << 20);
    world.run(100 * MS);
    assert_eq!(sends(&mut world, 0), []);
    // From here on nothing arrives.
    world.fate = Box::new(|_, _, _, _| Fate::Lose);
    let short = world.send(0, 1, 2, b"is lost");
    world.run(MS);
    let [lost] = sends(&mut world, 0)[..] else { panic!("one is open") };
    assert_eq!((lost.op, lost.stage, lost.bytes), (short, SendStage::InFlight, 7));
    // More than the peer's window takes.
    (0..400).for_each(|tag| _ = world.send(0, 1, tag, &[1; 100]));
    world.run(MS);
    let open = sends(&mut world, 0);
    assert_eq!(open.len(), 401);
    assert!(open.iter().any(|send| send.stage == SendStage::Queued), "some wait for room");
}

#[test]
fn a_peer_that_owes_an_acknowledgement_is_shown_with_the_time_since_it_was_heard() {
    let mut world = World::new(3, &config(), 1500);
    for peer in [1, 2] {
        world.receive(peer, None, None, 100);
        world.send(0, peer, 1, b"arrives");
    }
    world.run(Duration::from_secs(1));
    let now = world.now;
    assert_eq!(world.port(0).owing_links(now).count(), 0, "all is acknowledged");
    // Long after that one message to one of the two is lost, again and again.
    world.now = now + Duration::from_secs(60);
    world.fate = Box::new(|_, to, _, _| if to == 1 { Fate::Lose } else { Fate::Deliver });
    world.receive(2, None, None, 100);
    world.send(0, 1, 2, b"is lost");
    world.send(0, 2, 2, b"arrives");
    world.run(Duration::from_secs(3));
    let now = world.now;
    let owing: Vec<_> = world.port(0).owing_links(now).collect();
    let [owing] = owing[..] else { panic!("{owing:?}") };
    assert_eq!((owing.peer, owing.unacknowledged, owing.is_broken), (port_id(1), 1, false));
    // Since it owes that, not since it was last heard.
    assert!(owing.silent >= Duration::from_secs(2) && owing.silent < Duration::from_secs(4), "{owing:?}");
}
