use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::*;

const BOUNDS: MatcherBounds = MatcherBounds { posted_max: 64, unexpected_max: 64 };

/// A matcher whose messages carry a name, and its answers.
struct Talk {
    matcher: Matcher<&'static str>,
}

impl Talk {
    fn new() -> Talk {
        Talk { matcher: Matcher::new(BOUNDS) }
    }

    /// Posts, and posts the rest again, as a port does: "waits", "takes a", "takes a, takes b, waits".
    fn post(&mut self, receive: Receive) -> String {
        let mut said = Vec::new();
        let mut next = Some(receive);
        while let Some(receive) = next.take() {
            match self.matcher.post(receive) {
                Ok(PostOutcome::Posted) => said.push(String::from("waits")),
                Ok(PostOutcome::Matched { message, placement, rest, .. }) => {
                    let Placement { offset, bytes, .. } = placement;
                    said.push(match offset {
                        0 => format!("takes {}", message.payload),
                        _ => format!("takes {} at {offset}+{bytes}", message.payload),
                    });
                    next = rest;
                }
                Err(refused) => said.push(format!("{refused:?}")),
            }
        }
        said.join(", ")
    }

    /// "waits", or "op 1", or "op 1 at 8+8".
    fn arrive(&mut self, name: &'static str, envelope: Envelope) -> String {
        match self.matcher.arrive(envelope, true, || name) {
            Ok(Arrival::Unexpected(_)) => String::from("waits"),
            Ok(Arrival::Matched { receive, placement: Placement { offset, bytes, last } }) => {
                let last = if last { "" } else { " and waits on" };
                match receive.multi {
                    None => format!("op {}", receive.op.0),
                    Some(_) => format!("op {} at {offset}+{bytes}{last}", receive.op.0),
                }
            }
            Err(refused) => format!("{refused:?}"),
        }
    }

    fn key_of(&mut self, pattern: &Pattern) -> MessageKey {
        self.matcher.peek(pattern).expect("a message waits").0
    }
}

#[test]
fn the_receive_posted_first_wins_addressed_or_not() {
    let mut talk = Talk::new();
    talk.post(from_any(1, 5));
    talk.post(from(2, 0, 5));
    talk.post(any_tag(from(3, 0, 0)));
    talk.post(from_any(4, 5));
    assert_eq!(talk.arrive("a", envelope(0, 5)), "op 1");
    assert_eq!(talk.arrive("b", envelope(0, 5)), "op 2");
    assert_eq!(talk.arrive("c", envelope(0, 5)), "op 3");
    assert_eq!(talk.arrive("d", envelope(0, 5)), "op 4");
    assert_eq!(talk.arrive("e", envelope(0, 5)), "waits");
}

#[test]
fn a_receive_lets_others_messages_pass() {
    let mut talk = Talk::new();
    talk.post(from(1, 0, 5));
    assert_eq!(talk.arrive("wrong source", envelope(1, 5)), "waits");
    assert_eq!(talk.arrive("wrong tag", envelope(0, 6)), "waits");
    assert_eq!(talk.arrive("wrong space", Envelope { space: UNTAGGED, ..envelope(0, 5) }), "waits");
    assert_eq!(talk.arrive("right", envelope(0, 5)), "op 1");
}

#[test]
fn the_message_that_arrived_first_wins() {
    let mut talk = Talk::new();
    talk.arrive("a", envelope(0, 1));
    talk.arrive("b", envelope(1, 2));
    talk.arrive("c", envelope(0, 2));
    talk.arrive("d", envelope(0, 1));
    assert_eq!(talk.post(from_any(1, 2)), "takes b");
    assert_eq!(talk.post(any_tag(from(2, 0, 0))), "takes a");
    assert_eq!(talk.post(from(3, 0, 1)), "takes d");
    assert_eq!(talk.post(in_space(UNTAGGED, any_tag(from_any(4, 0)))), "waits");
    assert_eq!(talk.post(any_tag(from_any(5, 0))), "takes c");
}

#[test]
fn ignored_bits_do_not_count_and_all_others_do() {
    let mut talk = Talk::new();
    let mut receive = from(1, 0, 0xf0f0);
    receive.pattern.ignore = 0xff00;
    talk.post(receive);
    assert_eq!(talk.arrive("a", envelope(0, 0xf0f1)), "waits");
    assert_eq!(talk.arrive("b", envelope(0, 0x8000_0000_0000_f0f0)), "waits");
    assert_eq!(talk.arrive("c", envelope(0, 0x12f0)), "op 1");
}

#[test]
fn one_buffer_takes_several_messages_until_too_little_is_left() {
    let mut talk = Talk::new();
    talk.post(many(from(1, 0, 5), 30, 10));
    talk.post(from(2, 0, 5));
    assert_eq!(talk.arrive("a", envelope(0, 5)), "op 1 at 0+8 and waits on");
    assert_eq!(talk.arrive("empty", Envelope { bytes: 0, ..envelope(0, 5) }), "op 1 at 8+0 and waits on");
    assert_eq!(talk.arrive("b", envelope(0, 5)), "op 1 at 8+8 and waits on");
    assert_eq!(talk.arrive("c", envelope(0, 5)), "op 1 at 16+8");
    assert_eq!(talk.arrive("d", envelope(0, 5)), "op 2");
}

#[test]
fn a_long_message_is_cut_and_uses_the_buffer_up() {
    let mut talk = Talk::new();
    talk.post(many(from(1, 0, 5), 30, 0));
    talk.arrive("a", envelope(0, 5));
    assert_eq!(talk.arrive("long", Envelope { bytes: 1000, ..envelope(0, 5) }), "op 1 at 8+22");
    assert_eq!(talk.arrive("b", envelope(0, 5)), "waits");
}

#[test]
fn a_buffer_for_many_first_takes_those_that_waited() {
    let mut talk = Talk::new();
    talk.arrive("a", envelope(0, 5));
    talk.arrive("not this", envelope(0, 6));
    talk.arrive("b", envelope(0, 5));
    assert_eq!(talk.post(many(from(1, 0, 5), 30, 1)), "takes a, takes b at 8+8, waits");
    assert_eq!(talk.arrive("c", envelope(0, 5)), "op 1 at 16+8 and waits on");
    assert_eq!(talk.matcher.cancel(OpId(1)).unwrap().multi.unwrap().filled_bytes, 24);
}

#[test]
fn a_message_still_arriving_is_matched_and_known_by_its_key_until_then() {
    let mut talk = Talk::new();
    let Ok(Arrival::Unexpected(key)) = talk.matcher.arrive(envelope(0, 5), false, || "first part") else {
        panic!("nothing was posted");
    };
    *talk.matcher.payload_mut(key).unwrap() = "two parts";
    let Ok(PostOutcome::Matched { key: taken, message, .. }) = talk.matcher.post(from(1, 0, 5)) else {
        panic!("a message waited");
    };
    assert_eq!((taken, message.finished, message.payload), (key, false, "two parts"));
    assert_eq!(talk.matcher.payload_mut(key), None);
    assert!(!talk.matcher.finish(key));

    let Ok(Arrival::Unexpected(key)) = talk.matcher.arrive(envelope(0, 5), false, || "whole") else {
        panic!("nothing was posted");
    };
    assert!(talk.matcher.finish(key));
    assert!(talk.matcher.message(key).unwrap().finished);
}

#[test]
fn peeking_changes_nothing() {
    let mut talk = Talk::new();
    let pattern = any_tag(from_any(0, 0)).pattern;
    assert_eq!(talk.matcher.peek(&pattern), None);
    talk.arrive("a", Envelope { data: 77, ..envelope(3, 5) });
    talk.arrive("b", envelope(3, 5));
    for _ in 0..2 {
        let (_, message) = talk.matcher.peek(&pattern).unwrap();
        assert_eq!((message.payload, message.envelope.source, message.envelope.data), ("a", link(3), 77));
    }
    assert_eq!(talk.post(from(1, 3, 5)), "takes a");
}

#[test]
fn a_claimed_message_is_for_its_claimer_alone() {
    let mut talk = Talk::new();
    talk.arrive("a", envelope(0, 5));
    talk.arrive("b", envelope(0, 5));
    let (key, _) = talk.matcher.claim(&from(0, 0, 5).pattern).unwrap();
    assert_eq!(talk.post(from_any(1, 5)), "takes b");
    assert_eq!(talk.post(from_any(2, 5)), "waits");
    assert_eq!(talk.matcher.unexpected_len(), 1);
    let (message, placement) = talk.matcher.receive_claimed(key, 3).unwrap();
    assert_eq!((message.payload, placement.bytes), ("a", 3));
    assert_eq!(talk.matcher.receive_claimed(key, 3).unwrap_err(), MatchError::NotClaimed { key });
    assert_eq!(talk.matcher.unexpected_len(), 0);
}

#[test]
fn only_what_was_claimed_can_be_received_by_key_but_anything_can_be_discarded() {
    let mut talk = Talk::new();
    talk.arrive("a", envelope(0, 5));
    talk.arrive("b", envelope(0, 6));
    let pattern = from(0, 0, 5).pattern;
    let key = talk.key_of(&pattern);
    assert_eq!(talk.matcher.receive_claimed(key, 9).unwrap_err(), MatchError::NotClaimed { key });
    assert_eq!(talk.matcher.discard(key).unwrap().payload, "a");
    assert_eq!(talk.matcher.discard(key), None);
    let (key, _) = talk.matcher.claim(&any_tag(from(0, 0, 0)).pattern).unwrap();
    assert_eq!(talk.matcher.discard(key).unwrap().payload, "b");
}

#[test]
fn a_cancelled_receive_takes_nothing_and_a_matched_one_cannot_be_cancelled() {
    let mut talk = Talk::new();
    talk.post(from(1, 0, 5));
    talk.post(from_any(2, 5));
    talk.post(from(3, 0, 5));
    assert_eq!(talk.matcher.cancel(OpId(2)), Some(from_any(2, 5)));
    assert_eq!(talk.arrive("a", envelope(0, 5)), "op 1");
    assert_eq!(talk.matcher.cancel(OpId(1)), None);
    assert_eq!(talk.arrive("b", envelope(0, 5)), "op 3");
    assert_eq!(talk.matcher.cancel(OpId(9)), None);
}

#[test]
fn bounds_refuse_what_would_have_to_wait_and_nothing_else() {
    let mut talk = Talk { matcher: Matcher::new(MatcherBounds { posted_max: 1, unexpected_max: 1 }) };
    talk.post(from(1, 0, 1));
    assert_eq!(talk.post(from(2, 0, 2)), "PostedFull { posted_max: 1 }");
    assert_eq!(talk.arrive("a", envelope(0, 3)), "waits");
    assert_eq!(talk.arrive("b", envelope(0, 3)), "UnexpectedFull { unexpected_max: 1 }");
    assert_eq!(talk.post(many(from(3, 0, 3), 100, 1)), "PostedFull { posted_max: 1 }");
    assert_eq!(talk.matcher.unexpected_free(), 0);
    assert_eq!(talk.post(from(3, 0, 3)), "takes a");
    assert_eq!(talk.arrive("c", envelope(0, 1)), "op 1");
    talk.arrive("d", envelope(0, 3));
    talk.matcher.claim(&from(0, 0, 3).pattern).unwrap();
    assert_eq!(talk.arrive("claimed ones count", envelope(0, 3)), "UnexpectedFull { unexpected_max: 1 }");
}

#[test]
fn restoring_refuses_an_operation_twice() {
    let mut matcher: Matcher<()> = Matcher::new(BOUNDS);
    matcher.restore_posted(from(1, 0, 5)).unwrap();
    assert_eq!(matcher.restore_posted(from(1, 0, 6)), Err(MatchError::AlreadyPosted { op: OpId(1) }));
}

#[test]
fn ping_pong_stays_in_the_memory_of_its_first_turn() {
    let mut talk = Talk::new();
    for turn in 0..10_000 {
        assert_eq!(talk.post(from(turn, 0, turn)), "waits");
        assert_eq!(talk.arrive("a", envelope(0, turn)), format!("op {turn}"));
        assert_eq!(talk.arrive("b", envelope(0, turn)), "waits");
        assert_eq!(talk.post(from_any(turn, turn)), "takes b");
    }
    assert_eq!(talk.matcher.slots(), (1, 1));
}
