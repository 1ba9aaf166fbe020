//! One of two ends that send each other messages of all lengths, each payload of which is checked.
#![allow(dead_code, reason = "each test file uses its part")]

use std::time::{Duration, Instant};

use endpoint::{Completion, Endpoint, ReceiveBuffer, SendBuffer};
use transport::{LinkIndex, Outgoing, PortId, Rank, Receive, Space};

pub(crate) fn id(rank: u32) -> PortId {
    PortId::of_rank(Rank(rank), 0)
}

pub(crate) struct End {
    pub(crate) rank: u32,
    pub(crate) endpoint: Endpoint,
    /// To the other end.
    pub(crate) link: LinkIndex,
    /// Bytes of the messages, in turn.
    lengths: [u64; 6],
    pub(crate) sent: u64,
    pub(crate) done: u64,
    pub(crate) received: u64,
}

impl End {
    pub(crate) fn new(rank: u32, endpoint: Endpoint, link: LinkIndex, lengths: [u64; 6]) -> End {
        End { rank, endpoint, link, lengths, sent: 0, done: 0, received: 0 }
    }

    /// Goes on with another endpoint, which is made when this one is closed.
    pub(crate) fn replace_endpoint(self, make: impl FnOnce() -> Endpoint) -> End {
        let End { rank, endpoint, link, lengths, sent, done, received } = self;
        drop(endpoint);
        End { rank, endpoint: make(), link, lengths, sent, done, received }
    }

    fn payload(&self, rank: u32, i: u64) -> Vec<u8> {
        let bytes = self.lengths[usize::try_from(i % 6).expect("small")];
        (0..bytes).map(|at| (i * 7 + u64::from(rank) + at * 13 + at / 256).to_le_bytes()[0]).collect()
    }

    /// The next message: a short one is copied out of memory that is then the program's again, or handed over, by turns.
    pub(crate) fn send(&mut self) {
        let bytes = self.payload(self.rank, self.sent);
        let outgoing =
            Outgoing { space: Space(0), tag: self.sent, data: 0, context: self.sent, silent: false };
        let is_copied = bytes.len() <= self.endpoint.copied_bytes_max() && (self.sent / 6).is_multiple_of(2);
        let buffer = if is_copied { SendBuffer::Copied(&bytes) } else { SendBuffer::Owned(bytes) };
        self.endpoint.send(self.link, outgoing, buffer).expect("there is room");
        self.sent += 1;
    }

    /// A receive of the other end's message `tag`.
    pub(crate) fn post(&self, tag: u64) {
        let (bytes_max, space) = (self.lengths.into_iter().max().unwrap_or(0), Space(0));
        let receive = Receive { space, source: None, tag, ignore: 0, bytes_max, context: tag, multi: None };
        let buffer = ReceiveBuffer::Owned(vec![0; usize::try_from(bytes_max).expect("small")]);
        self.endpoint.post_receive(receive, buffer).expect("room");
    }

    /// Takes the next completion; one that is not of a message is returned.
    pub(crate) fn look(&mut self) -> Option<Completion> {
        let completion = self.endpoint.poll()?;
        self.note(completion)
    }

    pub(crate) fn poll(&mut self) {
        if let Some(other) = self.look() {
            panic!("{other:?}");
        }
    }

    /// Counts a completion, and checks its message. One that is not of a message is returned.
    pub(crate) fn note(&mut self, completion: Completion) -> Option<Completion> {
        match completion {
            Completion::Received { tag, bytes, buffer, .. } => {
                let mut found = buffer.expect("it was handed over");
                found.truncate(usize::try_from(bytes).expect("small"));
                assert!(found == self.payload(1 - self.rank, tag), "message {tag} to rank {}", self.rank);
                self.received += 1;
            }
            Completion::SendDone { .. } => self.done += 1,
            Completion::Report(_) => {}
            other => return Some(other),
        }
        None
    }
}

/// Each end sends `count` messages, and posts receives for the first `before` of the other's. The rest come before their receive, or have not been sent at a cut.
pub(crate) fn exchange(ends: &mut [End; 2], count: u64, before: u64) {
    for i in 0..count {
        for end in &mut *ends {
            end.send();
            if i < before {
                end.post(end.sent - 1);
            }
            end.poll();
        }
    }
}

/// Posts the receives that [`exchange`] left out.
pub(crate) fn post_rest(ends: &[End; 2], count: u64, before: u64) {
    for end in ends {
        (end.sent - count + before.min(count)..end.sent).for_each(|tag| end.post(tag));
    }
}

/// Goes on until both ends have all that the other has sent, for `limit` at most.
pub(crate) fn settle(ends: &mut [End; 2], limit: Duration, when: &str) {
    let started = Instant::now();
    while ends[0].received < ends[1].sent
        || ends[1].received < ends[0].sent
        || ends.iter().any(|end| end.done < end.sent)
    {
        ends.iter_mut().for_each(End::poll);
        let state = || ends.each_ref().map(|end| (end.sent, end.done, end.received));
        assert!(started.elapsed() < limit, "{when}: {:?} sent, done, received", state());
    }
}
