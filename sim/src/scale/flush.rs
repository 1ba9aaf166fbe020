//! A rank of a coordinator that flushes: before it saves, it sends a marker over each of its channels and waits for the
//! markers of all others, as CoCheck did. When they have come, its channels are empty.
//!
//! The machine has the shape of the production ones: input is an argument, output is polled. It stands between the
//! participant, which says when to cut, and the cut.

use transport::Epoch;

/// The input of a rank that flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// The rank is to save itself for this epoch; its program stands still.
    Begin {
        /// The epoch.
        epoch: Epoch,
    },
    /// The marker of another rank: its channel to this one is empty.
    Marker {
        /// The epoch that it is for.
        epoch: Epoch,
    },
}

/// The output of a rank that flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// A marker to this rank.
    Send {
        /// The receiver.
        to: u32,
        /// The epoch.
        epoch: Epoch,
    },
    /// Every channel is empty: save.
    Flushed {
        /// The epoch.
        epoch: Epoch,
    },
}

/// ```text
///            Begin                    all sent, all markers
///   Idle -------------> Flushing -----------------------------> Idle (of the next epoch)
/// ```
/// Channels are reliable and in order, and a marker is the last thing that a channel carries before the cut, so it is enough
/// to count them. A marker may come before the command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    rank: u32,
    ranks: u32,
    /// The epoch that is being flushed for, or the last one.
    epoch: Epoch,
    flushing: bool,
    /// Markers sent for that epoch.
    sent: u32,
    /// Markers come for that epoch, or early ones of the next.
    come: u32,
    /// Markers of other epochs; none ever in a world without faults.
    strays: u64,
}

impl Flush {
    /// The machine of `rank` in a job of `ranks`.
    #[must_use]
    pub fn new(rank: u32, ranks: u32) -> Flush {
        Flush { rank, ranks, epoch: Epoch(0), flushing: false, sent: 0, come: 0, strays: 0 }
    }

    /// Takes one input.
    #[inline]
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Begin { epoch } if !self.flushing && epoch == self.epoch.next() => {
                self.epoch = epoch;
                self.flushing = true;
                self.sent = 0;
            }
            Input::Begin { .. } => self.strays += 1,
            Input::Marker { epoch } => {
                let expected = if self.flushing { self.epoch } else { self.epoch.next() };
                if epoch == expected {
                    self.come += 1;
                } else {
                    self.strays += 1;
                }
            }
        }
    }

    /// The next thing to do; call until there is none.
    #[inline]
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output> {
        if !self.flushing {
            return None;
        }
        let others = self.ranks - 1;
        if self.sent < others {
            self.sent += 1;
            // Beginning behind oneself, so that not everybody sends to rank 0 first.
            let behind = self.ranks - self.rank;
            let to = if self.sent < behind { self.rank + self.sent } else { self.sent - behind };
            return Some(Output::Send { to, epoch: self.epoch });
        }
        if self.come < others {
            return None;
        }
        self.flushing = false;
        self.come = 0;
        Some(Output::Flushed { epoch: self.epoch })
    }

    /// Markers that did not belong here.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(flush: &mut Flush) -> Vec<Output> {
        core::iter::from_fn(|| flush.poll_output()).collect()
    }

    #[test]
    fn a_rank_sends_to_all_others_and_waits_for_all_others() {
        let epoch = Epoch(1);
        let mut flush = Flush::new(1, 4);
        assert_eq!(outputs(&mut flush), []);
        // One marker is faster than the command.
        flush.handle(Input::Marker { epoch });
        flush.handle(Input::Begin { epoch });
        assert_eq!(outputs(&mut flush), [2, 3, 0].map(|to| Output::Send { to, epoch }));
        flush.handle(Input::Marker { epoch });
        assert_eq!(outputs(&mut flush), []);
        flush.handle(Input::Marker { epoch });
        assert_eq!(outputs(&mut flush), [Output::Flushed { epoch }]);
        assert_eq!(outputs(&mut flush), []);
        // Of the next epoch, and of one that has not begun.
        flush.handle(Input::Marker { epoch: Epoch(2) });
        assert_eq!(flush.strays(), 0);
        flush.handle(Input::Marker { epoch: Epoch(7) });
        assert_eq!(flush.strays(), 1);
    }
}
