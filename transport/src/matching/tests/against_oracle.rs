//! Random histories, beside a matcher that scans two lists.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Bounds above the first number of buckets, and low enough that histories reach them.
const BOUNDS: MatcherBounds = MatcherBounds { posted_max: 40, unexpected_max: 40 };

/// Names a message in the oracle, and is its payload in the matcher.
type Serial = u32;

/// A message that a receive took, and the offset and bytes of its place there.
type Taken = (Serial, u64, u64);

#[derive(Clone, Debug)]
enum Step {
    Post(Pattern, u64, Option<u64>),
    Arrive(Envelope, bool),
    Peek(Pattern),
    Claim(Pattern),
    /// Of the claimed messages, counted around.
    ReceiveClaimed(usize),
    /// Of all that wait, counted around.
    Discard(usize),
    Finish(usize),
    /// Of the operations so far, counted around.
    Cancel(u64),
    Rebuild,
}

/// Few values of everything, so that they meet; tags that differ high and low.
fn tag() -> impl Strategy<Value = u64> {
    (0u64..4, 0u64..2).prop_map(|(low, high)| high << 62 | low)
}

fn space() -> impl Strategy<Value = Space> {
    prop_oneof![4 => Just(TAGGED), 1 => Just(UNTAGGED)]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let ignore =
        prop_oneof![4 => Just(0), 3 => Just(1 << 62), 1 => Just(2u64), 1 => Just(3u64), 1 => Just(u64::MAX)];
    let source = prop::option::weighted(0.6, (0u32..4).prop_map(LinkIndex));
    (space(), source, tag(), ignore).prop_map(|(space, source, tag, ignore)| Pattern {
        space,
        source,
        tag,
        ignore,
    })
}

fn arrival() -> impl Strategy<Value = Envelope> {
    (0u32..4, space(), tag(), any::<u64>(), 0u64..60).prop_map(|(source, space, tag, data, bytes)| Envelope {
        source: link(source),
        space,
        tag,
        data,
        bytes,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (pattern(), 0u64..100, prop::option::weighted(0.2, 0u64..50)).prop_map(|(p, b, m)| Step::Post(p, b, m)),
        8 => (arrival(), any::<bool>()).prop_map(|(e, f)| Step::Arrive(e, f)),
        1 => pattern().prop_map(Step::Peek),
        1 => pattern().prop_map(Step::Claim),
        1 => any::<usize>().prop_map(Step::ReceiveClaimed),
        1 => any::<usize>().prop_map(Step::Discard),
        1 => any::<usize>().prop_map(Step::Finish),
        2 => any::<u64>().prop_map(Step::Cancel),
        1 => Just(Step::Rebuild),
    ]
}

/// A reference matcher, as plain as possible.
#[derive(Default)]
struct Oracle {
    posted: Vec<Receive>,
    unexpected: Vec<Message<Serial>>,
    claimed: Vec<Message<Serial>>,
}

impl Oracle {
    fn first(&self, pattern: &Pattern) -> Option<usize> {
        self.unexpected.iter().position(|message| fits(pattern, &message.envelope))
    }

    fn waiting(&self) -> usize {
        self.unexpected.len() + self.claimed.len()
    }

    /// The message that the receive takes now, and its place; then whether it waits.
    fn post(&mut self, mut receive: Receive) -> Result<(Vec<Taken>, bool), ()> {
        let full = self.posted.len() == BOUNDS.posted_max;
        if full && (receive.multi.is_some() || self.first(&receive.pattern).is_none()) {
            return Err(());
        }
        let mut taken = Vec::new();
        while let Some(place) = self.first(&receive.pattern) {
            let message = self.unexpected.remove(place);
            let (offset, bytes, last) = fill(&mut receive, message.envelope.bytes);
            taken.push((message.payload, offset, bytes));
            if last {
                return Ok((taken, false));
            }
        }
        self.posted.push(receive);
        Ok((taken, true))
    }

    /// The operation that takes the message, where it lies there, and whether it is its last; none if the message waits.
    fn arrive(&mut self, message: Message<Serial>) -> Result<Option<(OpId, u64, u64, bool)>, ()> {
        let Some(place) = self.posted.iter().position(|receive| fits(&receive.pattern, &message.envelope))
        else {
            if self.waiting() == BOUNDS.unexpected_max {
                return Err(());
            }
            self.unexpected.push(message);
            return Ok(None);
        };
        let op = self.posted[place].op;
        let (offset, bytes, last) = fill(&mut self.posted[place], message.envelope.bytes);
        if last {
            self.posted.remove(place);
        }
        Ok(Some((op, offset, bytes, last)))
    }
}

/// Bit by bit, unlike the code under test.
fn fits(pattern: &Pattern, envelope: &Envelope) -> bool {
    let bit = |word: u64, n: u32| word >> n & 1;
    pattern.space.0 == envelope.space.0
        && (pattern.source.is_none() || pattern.source == Some(envelope.source))
        && (0..64).all(|n| bit(pattern.ignore, n) == 1 || bit(pattern.tag, n) == bit(envelope.tag, n))
}

fn fill(receive: &mut Receive, bytes: u64) -> (u64, u64, bool) {
    let Some(multi) = receive.multi.as_mut() else { return (0, bytes.min(receive.bytes_max), true) };
    let offset = multi.filled_bytes;
    let bytes = bytes.min(receive.bytes_max - offset);
    multi.filled_bytes += bytes;
    let free = receive.bytes_max - multi.filled_bytes;
    (offset, bytes, free == 0 || free < multi.free_bytes_min)
}

/// Both matchers, walked through one history.
struct Both {
    matcher: Matcher<Serial>,
    oracle: Oracle,
    op_next: u64,
    serial_next: Serial,
    /// Every key that was ever given out since the last rebuilding.
    keys: Vec<(Serial, MessageKey)>,
}

impl Both {
    fn new() -> Both {
        let matcher = Matcher::new(BOUNDS);
        Both { matcher, oracle: Oracle::default(), op_next: 0, serial_next: 0, keys: Vec::new() }
    }

    fn key_of(&self, serial: Serial) -> MessageKey {
        self.keys.iter().find(|(known, _)| *known == serial).expect("every waiting message got a key").1
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Post(pattern, bytes_max, free_bytes_min) => self.post(pattern, bytes_max, free_bytes_min),
            Step::Arrive(envelope, finished) => self.arrive(envelope, finished),
            Step::Peek(pattern) => {
                let seen = self.matcher.peek(&pattern).map(|(key, message)| (key, message.payload));
                let due = self.oracle.first(&pattern).map(|place| self.oracle.unexpected[place].payload);
                assert_eq!(seen, due.map(|serial| (self.key_of(serial), serial)));
            }
            Step::Claim(pattern) => {
                let claimed = self.matcher.claim(&pattern).map(|(key, message)| (key, message.payload));
                let due = self.oracle.first(&pattern).map(|place| self.oracle.unexpected.remove(place));
                assert_eq!(
                    claimed,
                    due.as_ref().map(|message| (self.key_of(message.payload), message.payload))
                );
                self.oracle.claimed.extend(due);
            }
            Step::ReceiveClaimed(pick) => self.receive_claimed(pick),
            Step::Discard(pick) => self.discard(pick),
            Step::Finish(pick) => {
                let Oracle { unexpected, claimed, .. } = &mut self.oracle;
                let waiting = unexpected.len() + claimed.len();
                let Some(place) = pick.checked_rem(waiting) else { return };
                let message = unexpected.iter_mut().chain(claimed).nth(place).unwrap();
                message.finished = true;
                let serial = message.payload;
                assert!(self.matcher.finish(self.key_of(serial)));
            }
            Step::Cancel(pick) => {
                let op = OpId(pick % (self.op_next + 1));
                let place = self.oracle.posted.iter().position(|receive| receive.op == op);
                let due = place.map(|place| self.oracle.posted.remove(place));
                assert_eq!(self.matcher.cancel(op), due);
            }
            Step::Rebuild => self.rebuild(),
        }
    }

    fn post(&mut self, pattern: Pattern, bytes_max: u64, free_bytes_min: Option<u64>) {
        let multi = free_bytes_min.map(|free_bytes_min| MultiReceive { free_bytes_min, filled_bytes: 0 });
        let receive = Receive { op: OpId(self.op_next), pattern, bytes_max, context: self.op_next, multi };
        self.op_next += 1;
        let mut taken = Vec::new();
        let mut next = Some(receive);
        let mut waits = Ok(false);
        while let Some(receive) = next.take() {
            match self.matcher.post(receive) {
                Ok(PostOutcome::Posted) => waits = Ok(true),
                Ok(PostOutcome::Matched { key, message, placement, rest }) => {
                    assert_eq!(key, self.key_of(message.payload));
                    taken.push((message.payload, placement.offset, placement.bytes));
                    next = rest;
                }
                Err(refused) => {
                    assert_eq!(refused, MatchError::PostedFull { posted_max: BOUNDS.posted_max });
                    assert!(taken.is_empty(), "refused half-way");
                    waits = Err(());
                }
            }
        }
        assert_eq!(waits.map(|waits| (taken, waits)), self.oracle.post(receive));
    }

    fn arrive(&mut self, envelope: Envelope, finished: bool) {
        let serial = self.serial_next;
        self.serial_next += 1;
        let awaited = self.matcher.is_awaited(&envelope);
        let arrival = self.matcher.arrive(envelope, finished, || serial);
        assert_eq!(awaited, matches!(arrival, Ok(Arrival::Matched { .. })));
        let came = match arrival {
            Ok(Arrival::Matched { receive, placement: Placement { offset, bytes, last } }) => {
                Ok(Some((receive.op, offset, bytes, last)))
            }
            Ok(Arrival::Unexpected(key)) => {
                self.keys.push((serial, key));
                Ok(None)
            }
            Err(_) => Err(()),
        };
        assert_eq!(came, self.oracle.arrive(Message { envelope, finished, payload: serial }));
    }

    fn receive_claimed(&mut self, pick: usize) {
        if let Some(message) = self.oracle.unexpected.first() {
            let key = self.key_of(message.payload);
            assert_eq!(self.matcher.receive_claimed(key, 10), Err(MatchError::NotClaimed { key }));
        }
        let Some(place) = pick.checked_rem(self.oracle.claimed.len()) else { return };
        let due = self.oracle.claimed.remove(place);
        let (message, placement) = self.matcher.receive_claimed(self.key_of(due.payload), 10).unwrap();
        assert_eq!(placement.bytes, due.envelope.bytes.min(10));
        assert_eq!(message, due);
    }

    fn discard(&mut self, pick: usize) {
        let Some(place) = pick.checked_rem(self.oracle.waiting()) else { return };
        let due = match place.checked_sub(self.oracle.unexpected.len()) {
            Some(claimed) => self.oracle.claimed.remove(claimed),
            None => self.oracle.unexpected.remove(place),
        };
        assert_eq!(self.matcher.discard(self.key_of(due.payload)), Some(due));
    }

    fn rebuild(&mut self) {
        let mut rebuilt = Matcher::new(BOUNDS);
        for receive in self.matcher.posted() {
            rebuilt.restore_posted(*receive).unwrap();
        }
        self.keys.clear();
        for (_, message) in self.matcher.claimed() {
            self.keys.push((message.payload, rebuilt.restore_claimed(message.clone()).unwrap()));
        }
        for (_, message) in self.matcher.unexpected() {
            self.keys.push((message.payload, rebuilt.restore_unexpected(message.clone()).unwrap()));
        }
        self.matcher = rebuilt;
    }

    fn check(&self) {
        let Oracle { posted, unexpected, claimed } = &self.oracle;
        assert!(self.matcher.posted().eq(posted));
        assert!(self.matcher.unexpected().map(|(_, message)| message).eq(unexpected));
        assert!(self.matcher.claimed().map(|(_, message)| message).eq(claimed));
        assert_eq!(self.matcher.posted_len(), posted.len());
        assert_eq!(self.matcher.unexpected_free(), BOUNDS.unexpected_max - self.oracle.waiting());
        for &(serial, key) in &self.keys {
            let due = unexpected.iter().chain(claimed).find(|message| message.payload == serial);
            assert_eq!(self.matcher.message(key), due);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]

    #[test]
    fn every_history_goes_as_the_oracle_says(steps in prop::collection::vec(step(), 1..250)) {
        let mut both = Both::new();
        for step in steps {
            both.step(step);
            both.check();
        }
    }

    /// Long queues with one mask after another: buckets are spread anew and the habit changes while messages wait.
    #[test]
    fn long_queues_go_as_the_oracle_says(
        arrivals in prop::collection::vec((arrival(), any::<bool>()), 40),
        turns in prop::collection::vec((pattern(), arrival()), 300),
    ) {
        let mut both = Both::new();
        for (envelope, finished) in arrivals {
            both.step(Step::Arrive(envelope, finished));
        }
        for (pattern, envelope) in turns {
            both.step(Step::Peek(pattern));
            both.step(Step::Post(pattern, 60, None));
            both.step(Step::Arrive(envelope, true));
            both.check();
        }
    }
}
