//! Ports that stand still and go on: in place (R2, R3, R4), and in a new life (R7, R10).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::world::{DELAY, Fate, KEY, LIFE, World, config, pattern};
use transport::config::EPOCH_STEP_MAX;
use transport::wire::{Frame, Kind};
use transport::{Epoch, Event, FrozenPort, Instant, JobKey, Life, PortConfig, RailIndex};

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);

/// The notes of a network rule.
type Notes<T> = Rc<RefCell<Vec<T>>>;

fn silence(event: &Event) -> bool {
    matches!(event, Event::PeerSilent { .. })
}

// ---- Thawing in place.

#[test]
fn a_pause_of_the_sender_moves_no_deadline_and_sends_nothing_again() {
    let mut world = World::new(2, &config(), 1500);
    for tag in 0..20 {
        world.receive(1, None, None, 100);
        world.send(0, 1, tag, b"warm");
        world.run(100 * US);
    }
    // Thirty-two on their way, nothing acknowledged; one was lost.
    let mut lost = false;
    world.fate = Box::new(move |_, _, frame, _| {
        let lose = !lost && frame.header.kind == Kind::Eager && frame.header.seq == 25;
        lost |= lose;
        if lose { Fate::Lose } else { Fate::Deliver }
    });
    for tag in 20..52 {
        world.receive(1, None, Some(tag), 100);
        world.send(0, 1, tag, b"burst");
    }
    world.pump();
    let due = world.port(0).poll_timeout().expect("acknowledgements are owed");
    let frozen = world.freeze(0);
    let at = world.now;
    world.run(5 * SECOND);
    let pause = world.now - at;
    world.thaw(0, frozen);
    assert_eq!(
        world.port(0).poll_timeout(),
        Some(due + pause),
        "no deadline runs while the port stands still"
    );
    let thawed = world.now;
    while world.received(1).len() < 52 {
        assert!(world.step(thawed + MS), "{:?}", world.received(1).len());
    }
    world.run(5 * MS);
    assert_eq!(world.sends_done(0), 52);
    let counters = *world.port(0).counters();
    assert_eq!((counters.frames_resent, counters.resends_spurious), (1, 0), "the lost one and no other");
    assert!(!world.nodes[0].events.iter().any(silence));
}

#[test]
fn a_thaw_in_place_loses_nothing_at_any_instant_of_a_conversation() {
    for steps in 0..60 {
        for node in 0..2 {
            let mut world = World::new(2, &config(), 700);
            let small = world.receive(1, None, Some(1), 10_000);
            let large = world.receive(1, None, Some(2), 100_000);
            let back = world.receive(0, None, Some(3), 100_000);
            world.send(0, 1, 1, &pattern(1, 5000));
            world.send_user(0, 1, 2, pattern(2, 40_000));
            world.send_user(1, 0, 3, pattern(3, 9000));
            world.fate = Box::new(|_, _, _, number| match number % 11 {
                4 => Fate::Lose,
                9 => Fate::Late(40 * US),
                _ => Fate::Deliver,
            });
            let until = world.now + MS;
            for _ in 0..steps {
                world.step(until);
            }
            let frozen = world.freeze(node);
            world.run(300 * MS);
            world.thaw(node, frozen);
            world.run(200 * MS);
            assert_eq!(world.nodes[1].memory.posted[&small], pattern(1, 5000), "{steps} {node}");
            assert_eq!(world.nodes[1].memory.posted[&large], pattern(2, 40_000), "{steps} {node}");
            assert_eq!(world.nodes[0].memory.posted[&back], pattern(3, 9000), "{steps} {node}");
            assert_eq!((world.received(0).len(), world.received(1).len()), (1, 2), "{steps} {node}");
            assert_eq!((world.sends_done(0), world.sends_done(1)), (2, 1), "{steps} {node}");
        }
    }
}

#[test]
fn many_pauses_in_a_row_add_up() {
    let mut world = World::new(2, &config(), 1500);
    for tag in 0..50 {
        world.receive(1, None, None, 100);
        world.send(0, 1, tag, b"x");
        let until = world.now + MS;
        world.step(until);
        for node in 0..2 {
            let frozen = world.freeze(node);
            world.now = world.now + 70 * MS;
            world.thaw(node, frozen);
        }
    }
    world.run(5 * MS);
    assert_eq!(world.received(1).len(), 50);
    assert_eq!(world.port(0).counters().frames_resent, 0);
}

// ---- STOPPED.

/// Two ports that talk, the times of all numbered frames from 0 to 1, and every hint.
struct Paused {
    world: World,
    sent: Notes<u64>,
    hints: Notes<u64>,
}

fn talking() -> Paused {
    let mut world = World::new(2, &config(), 1500);
    for tag in 0..20 {
        world.receive(1, None, None, 100);
        world.send(0, 1, tag, b"warm");
        world.run(100 * US);
    }
    let (sent, hints) = (Notes::default(), Notes::default());
    let (note, hint) = (Rc::clone(&sent), Rc::clone(&hints));
    world.fate = Box::new(move |from, _, frame, number| {
        if from == 0 && (frame.header.kind.numbered() || frame.header.kind == Kind::Probe) {
            note.borrow_mut().push(number);
        }
        if frame.header.kind == Kind::Stopped {
            hint.borrow_mut().push(number);
        }
        Fate::Deliver
    });
    Paused { world, sent, hints }
}

#[test]
fn peers_of_a_stopped_port_stop_and_go_on_with_its_first_frame() {
    let Paused { mut world, sent, hints } = talking();
    for tag in 100..132 {
        world.receive(1, None, Some(tag), 100);
        world.send(0, 1, tag, b"burst");
    }
    let now = world.now;
    assert_eq!(world.port(1).announce_pause(now, 50 * MS), 1);
    world.pump();
    assert_eq!(hints.borrow().len(), 1, "sent before the freeze");
    let frozen = world.freeze(1);
    world.run(DELAY);
    sent.borrow_mut().clear();
    for tag in 132..140 {
        world.send(0, 1, tag, b"meanwhile");
    }
    world.run(30 * MS);
    assert_eq!(*sent.borrow(), [0u64; 0], "neither new frames nor old ones again");
    assert_eq!(world.port(0).counters().frames_resent, 0);
    world.thaw(1, frozen);
    for tag in 132..140 {
        world.receive(1, None, Some(tag), 100);
    }
    let thawed = world.now;
    while world.received(1).len() < 60 {
        assert!(world.step(thawed + MS), "{} messages", world.received(1).len());
    }
    assert!(world.now - thawed < 100 * US, "after {:?}", world.now - thawed);
    assert_eq!(world.port(0).counters().frames_resent, 0, "nothing of the burst was lost");
    assert!(!world.nodes[0].events.iter().any(silence));
}

#[test]
fn if_the_end_of_a_pause_is_lost_the_peer_asks_after_the_stated_time() {
    let Paused { mut world, .. } = talking();
    let now = world.now;
    world.port(1).announce_pause(now, 50 * MS);
    world.pump();
    let frozen = world.freeze(1);
    world.run(DELAY);
    let stopped = world.now;
    // All frames that the thawed port sends by itself are lost.
    let times: Notes<(usize, bool)> = Notes::default();
    let note = Rc::clone(&times);
    world.fate = Box::new(move |from, _, _, _| {
        let asked = note.borrow().iter().any(|(from, _)| *from == 0);
        note.borrow_mut().push((from, asked));
        if from == 1 && !asked { Fate::Lose } else { Fate::Deliver }
    });
    world.send(0, 1, 200, b"waits");
    world.run(10 * MS);
    world.thaw(1, frozen);
    world.receive(1, None, Some(200), 100);
    while !times.borrow().iter().any(|(from, _)| *from == 0) {
        assert!(world.step(stopped + SECOND), "nobody ever asks");
    }
    let waited = world.now - stopped;
    assert!(waited >= 50 * MS - US && waited < 51 * MS, "asked after {waited:?}");
    let asked = world.now;
    while world.received(1).len() < 21 {
        assert!(world.step(asked + 10 * MS), "the message never comes");
    }
}

#[test]
fn a_hint_is_believed_for_a_bounded_time() {
    let Paused { mut world, sent, .. } = talking();
    let now = world.now;
    world.port(1).announce_pause(now, 3600 * SECOND);
    world.pump();
    let _frozen = world.freeze(1);
    world.run(DELAY);
    sent.borrow_mut().clear();
    world.send(0, 1, 200, b"waits");
    let stopped = world.now;
    while sent.borrow().is_empty() {
        assert!(world.step(stopped + 60 * SECOND), "it is believed for ever");
    }
    let waited = world.now - stopped;
    assert!(waited >= transport::config::STOPPED_MAX - US && waited < 11 * SECOND, "{waited:?}");
}

#[test]
fn short_pauses_and_idle_peers_get_no_hint() {
    let mut world = World::new(3, &config(), 1500);
    world.receive(1, None, None, 100);
    world.send(0, 1, 1, b"long ago");
    world.run(2 * SECOND);
    world.receive(2, None, None, 100);
    world.send(0, 2, 1, b"now");
    world.run(10 * US);
    let now = world.now;
    assert_eq!(world.port(0).announce_pause(now, 999 * US), 0);
    assert_eq!(world.port(0).announce_pause(now, MS), 1, "only the port that we talk to");
}

#[test]
fn old_hints_are_ignored() {
    let mut open = config();
    open.auth = transport::AuthLevel::Off;
    let mut world = World::new(2, &open, 1500);
    world.receive(1, None, None, 100);
    world.send(0, 1, 1, b"x");
    world.run(MS);
    let now = world.now;
    world.port(1).announce_pause(now, 20 * MS);
    world.pump();
    let hint = world.wire.iter().map(|(.., bytes)| bytes.clone()).next_back().expect("the hint");
    world.run(MS);
    let frozen = world.freeze(1);
    world.thaw(1, frozen);
    world.run(MS);
    // The same frame again: replayed. The same pause in a newer frame: stale.
    let node = &mut world.nodes[0];
    let port = node.port.as_mut().expect("it runs");
    port.handle_frame(world.now, RailIndex(0), &hint, &mut node.memory);
    assert_eq!(port.counters().dropped_replayed, 1);
    let mut frame = Frame::parse(&hint).expect("it was read before");
    assert_eq!(frame.header.kind, Kind::Stopped);
    frame.header.transmission += 50;
    let mut newer = vec![0; hint.len()];
    frame.emit(&mut newer);
    port.handle_frame(world.now, RailIndex(0), &newer, &mut node.memory);
    assert_eq!(port.counters().hints_stale, 1);
    world.receive(1, None, None, 100);
    world.send(0, 1, 2, b"goes at once");
    world.run(100 * US);
    assert_eq!(world.received(1).len(), 2);
}

// ---- Epochs (R3, R4).

fn cut(world: &mut World, node: usize, epoch: u32) {
    let mut frozen = world.freeze(node);
    frozen.set_epoch(Epoch(epoch));
    world.thaw(node, frozen);
}

fn cuts_required(world: &World, node: usize) -> Vec<u32> {
    let cut = |event: &Event| match event {
        Event::CutRequired { epoch } => Some(epoch.0),
        _ => None,
    };
    world.nodes[node].events.iter().filter_map(cut).collect()
}

#[test]
fn a_higher_epoch_has_no_effect_before_the_cut_and_comes_again_quickly_after_it() {
    let mut world = World::new(2, &config(), 1500);
    for tag in 0..20 {
        world.receive(1, None, None, 100);
        world.receive(0, None, None, 100);
        world.send(0, 1, tag, b"warm");
        world.send(1, 0, tag, b"warm");
        world.run(100 * US);
    }
    let (before, rendezvous) = (world.received(1).len(), pattern(5, 50_000));
    // Sent before the cut of 0, so that its acknowledgement, which is sent behind it, decides.
    let held = world.send(1, 0, 90, b"from the lower epoch");
    world.receive(0, None, Some(90), 100);
    cut(&mut world, 0, 1);
    world.receive(1, None, Some(91), 1000);
    world.receive(1, None, Some(92), 1 << 20);
    world.send(0, 1, 91, b"from the higher epoch");
    world.send_user(0, 1, 92, rendezvous.clone());
    world.run(40 * MS);
    // Data of the lower epoch is taken (R4); no data and no acknowledgement of the higher one is (R3).
    assert_eq!(world.received(0).len(), 21);
    assert_eq!(world.received(1).len(), before);
    let census = world.freeze(1);
    assert_eq!(census.census().sent_unacknowledged, 1, "held although it has been received");
    assert!(
        !world.nodes[1].events.iter().any(|event| matches!(event, Event::SendDone { op, .. } if *op == held))
    );
    let mut frozen = census;
    assert_eq!(cuts_required(&world, 1), [1], "asked once");
    // The cut that was asked for.
    frozen.set_epoch(Epoch(1));
    world.thaw(1, frozen);
    assert!(world.port(1).counters().dropped_epoch > 3);
    let thawed = world.now;
    while world.received(1).len() < before + 2 {
        assert!(world.step(thawed + 100 * MS), "what was dropped never comes");
    }
    let waited = world.now - thawed;
    assert!(waited < 300 * US, "back-off of the dropped frames was waited for: {waited:?}");
    world.run(5 * MS);
    assert_eq!((world.sends_done(0), world.sends_done(1)), (22, 21));
    assert_eq!(cuts_required(&world, 1), [1]);
    assert_eq!(cuts_required(&world, 0), [0u32; 0]);
}

#[test]
fn a_rank_that_only_receives_reports_that_it_has_cut() {
    let mut world = World::new(2, &config(), 1500);
    for tag in 0..3 {
        world.receive(1, None, None, 100);
        world.send(0, 1, tag, b"x");
        world.run(MS);
    }
    cut(&mut world, 0, 1);
    world.receive(1, None, None, 100);
    world.send(0, 1, 3, b"dropped until the cut");
    world.run(3 * SECOND);
    assert_eq!(world.received(1).len(), 3);
    assert!(!world.nodes[1].events.iter().any(silence), "it owes us nothing");
    cut(&mut world, 1, 1);
    world.run(50 * US);
    assert_eq!(world.received(1).len(), 4);
}

#[test]
fn frames_sent_again_carry_the_present_epoch_once_the_peer_has_cut_too() {
    let mut world = World::new(2, &config(), 1500);
    world.receive(1, None, None, 100);
    let epochs: Notes<(u32, u32)> = Notes::default();
    let note = Rc::clone(&epochs);
    world.fate = Box::new(move |from, _, frame, _| {
        if from == 0 && frame.header.kind == Kind::Eager {
            note.borrow_mut().push((frame.header.seq, frame.header.epoch.0));
            return Fate::Lose;
        }
        Fate::Deliver
    });
    world.send(0, 1, 1, b"lost");
    world.run(10 * MS);
    cut(&mut world, 0, 1);
    cut(&mut world, 1, 1);
    // The peer sends something, and shows with it that it has cut.
    world.receive(0, None, None, 100);
    world.send(1, 0, 2, b"of epoch 1");
    world.run(MS);
    assert!(epochs.borrow().iter().all(|(seq, _)| *seq == 0));
    epochs.borrow_mut().clear();
    world.run(200 * MS);
    let epochs = epochs.borrow();
    assert!(!epochs.is_empty() && epochs.iter().all(|sent| *sent == (0, 1)), "{epochs:?}");
}

#[test]
fn a_rank_left_behind_is_reported_of_each_epoch_once_and_cuts_straight_to_the_last() {
    let mut world = World::new(2, &config(), 1500);
    world.receive(1, None, None, 100);
    for epoch in [1, 2, 5] {
        cut(&mut world, 0, epoch);
        world.send(0, 1, u64::from(epoch), b"x");
        world.run(20 * MS);
    }
    assert_eq!(cuts_required(&world, 1), [1, 2, 5]);
    assert_eq!(world.received(1).len(), 0);
    cut(&mut world, 1, 5);
    for _ in 0..2 {
        world.receive(1, None, None, 100);
    }
    // Node 1 has dropped everything it ever heard and knows no peer to inform.
    world.run(transport::config::PTO_MAX);
    assert_eq!(world.received(1).iter().map(|(_, tag, _)| *tag).collect::<Vec<_>>(), [1, 2, 5]);
}

#[test]
fn a_step_too_far_is_counted_and_left_to_the_coordinator() {
    let mut world = World::new(2, &config(), 1500);
    world.receive(1, None, None, 100);
    cut(&mut world, 0, EPOCH_STEP_MAX + 1);
    world.send(0, 1, 1, b"from far ahead");
    world.run(20 * MS);
    assert_eq!(cuts_required(&world, 1), [0u32; 0]);
    assert!(world.port(1).counters().dropped_epoch_step > 0);
    assert_eq!(world.port(1).counters().dropped_epoch, 0);
    cut(&mut world, 1, EPOCH_STEP_MAX + 1);
    world.run(200 * MS);
    assert_eq!(world.received(1).len(), 1);
}

/// It hears no command, and may have heard nothing for a long time.
#[test]
fn who_is_not_saved_follows_over_any_distance() {
    let mut world = World::new(2, &PortConfig { follows: true, ..config() }, 1500);
    world.receive(1, None, None, 100);
    cut(&mut world, 0, 100 * EPOCH_STEP_MAX);
    world.send(0, 1, 1, b"from far ahead");
    world.run(20 * MS);
    assert_eq!(cuts_required(&world, 1), [100 * EPOCH_STEP_MAX]);
    cut(&mut world, 1, 100 * EPOCH_STEP_MAX);
    world.run(200 * MS);
    assert_eq!(world.received(1).len(), 1);
}

#[test]
fn only_an_authentic_frame_can_ask_for_a_cut() {
    let mut world = World::new(2, &config(), 1500);
    world.send(0, 1, 1, b"x");
    world.pump();
    let (.., bytes) = world.wire.pop_front().expect("the frame");
    let mut frame = Frame::parse(&bytes).expect("ours");
    frame.header.epoch = Epoch(1);
    let mut forged = vec![0; bytes.len()];
    frame.emit(&mut forged);
    let node = &mut world.nodes[1];
    let port = node.port.as_mut().expect("it runs");
    port.handle_frame(world.now, RailIndex(0), &forged, &mut node.memory);
    assert_eq!((port.counters().dropped_tag, port.poll_event()), (1, None));
    assert_eq!(port.links(), 0, "nor can a stranger make a link");
}

// ---- Lives (R7).

/// A first frame from node 0 to node 1, sent in `life` under `key`, by a port whose next number is `next`.
fn frame_of(life: Life, key: &JobKey, next: u64) -> Vec<u8> {
    let mut world = World::new(2, &config(), 1500);
    world.link(0, 1);
    let mut state = world.freeze(0).state();
    state.links[0].next = next;
    let (frozen, _) = FrozenPort::from_state(config(), Some(key), state).expect("a possible state");
    world.restart(0, frozen, life, 1500);
    world.send(0, 1, 1, b"from another life");
    world.pump();
    world.wire.pop_front().expect("a first frame").3
}

fn hears(frame: &[u8], node: &mut World) -> Vec<Event> {
    let node = &mut node.nodes[1];
    let port = node.port.as_mut().expect("it runs");
    port.handle_frame(Instant::from_nanos(5_000_000), RailIndex(0), frame, &mut node.memory);
    std::iter::from_fn(|| port.poll_event()).collect()
}

#[test]
fn frames_of_another_life_have_no_effect_and_only_authentic_later_ones_are_reported() {
    let later = Life { counter: LIFE.counter + 1, nonce: 5 };
    for (life, key, reported) in [
        (later, KEY, true),
        (later, JobKey([1; 16]), false),
        (Life { counter: LIFE.counter, nonce: LIFE.nonce + 1 }, KEY, false),
        (Life { counter: LIFE.counter - 1, nonce: LIFE.nonce }, KEY, false),
    ] {
        let mut world = World::new(2, &config(), 1500);
        world.receive(1, None, None, 100);
        let frame = frame_of(life, &key, 0);
        let events = hears(&frame, &mut world);
        assert_eq!(events, if reported { vec![Event::NewerLife { life }] } else { Vec::new() }, "{life:?}");
        assert_eq!(hears(&frame, &mut world), [], "once");
        assert_eq!(world.port(1).counters().dropped_life, 2);
        assert_eq!(world.port(1).links(), 0);
        let mut damaged = frame;
        damaged[70] ^= 1;
        let later = Life { counter: life.counter + 7, ..life };
        let mut newest = frame_of(later, &KEY, 0);
        newest[70] ^= 1;
        assert_eq!((hears(&damaged, &mut world), hears(&newest, &mut world)), (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_later_life_is_recognised_far_into_the_numbers() {
    let far = (1u64 << 33) + (1 << 31) + 77;
    let later = Life { counter: 9, nonce: 5 };
    let mut world = World::new(2, &config(), 1500);
    world.link(1, 0);
    let mut state = world.freeze(1).state();
    state.links[0].expected = far;
    let (frozen, _) = FrozenPort::from_state(config(), Some(&KEY), state).expect("a possible state");
    world.restart(1, frozen, LIFE, 1500);
    assert_eq!(hears(&frame_of(later, &KEY, far), &mut world), [Event::NewerLife { life: later }]);
}

#[test]
fn an_epoch_that_nobody_names_is_in_no_image() {
    let mut world = World::new(1, &config(), 1500);
    let mut state = world.freeze(0).state();
    state.epoch = Epoch(transport::config::EPOCH_MAX);
    assert!(FrozenPort::from_state(config(), Some(&KEY), state.clone()).is_ok());
    state.epoch = state.epoch.next();
    let refused = FrozenPort::from_state(config(), Some(&KEY), state).expect_err("above the bound");
    assert!(refused.to_string().contains("epoch is 2147483648"), "{refused}");
}
