//! The nodes' protectors meet before anything is rebuilt or protected: each opens an endpoint, then learns where the others' are.
//!
//! They do before a life begins. A life does not wait for a node that does not answer then, so they may have to meet before the life's next generation
//! is protected (R27).

use transport::{Instant, Life};

use super::machine::Nodes;
use super::round::Round;
use super::{Event, Question};
use crate::names::GenerationId;

/// What the launcher knows of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Protectors {
    /// The nonce under which they were asked to open endpoints last.
    nonce: u64,
    have_met: bool,
}

impl Protectors {
    /// All members of every group know where the others are.
    pub(super) fn have_met(self) -> bool {
        self.have_met
    }

    /// One of them is gone, or they are to meet anew.
    pub(super) fn lose(&mut self) {
        self.have_met = false;
    }
}

impl<D> Nodes<D> {
    /// The nonce of `life` is another one each time: an endpoint must not be taken for the one before it.
    pub(super) fn open_protectors(&mut self, now: Instant, life: Life) {
        self.protectors = Protectors { nonce: life.nonce, have_met: false };
        self.ask_all(now, Question::Open(life), Some(self.settings.times.answer));
    }

    /// R27: before `generation` is protected. The life's own nonce was used before it began.
    pub(super) fn open_protectors_again(&mut self, now: Instant, generation: GenerationId) {
        let nonce = self.protectors.nonce.wrapping_add(1);
        self.open_protectors(now, Life { nonce, ..generation.life });
    }

    pub(super) fn end_opening(&mut self, now: Instant, life: Life, round: Round<D>) {
        if !round.refused.is_empty() {
            return self.do_without_protectors(now, round);
        }
        self.report(Event::Opened(round.into_details()));
        self.ask_all(now, Question::Meet(life), Some(self.settings.times.answer));
    }

    pub(super) fn end_meeting(&mut self, now: Instant, round: Round<D>) {
        if !round.refused.is_empty() {
            return self.do_without_protectors(now, round);
        }
        self.protectors.have_met = true;
        if self.restoring.is_some() { self.choose(now) } else { self.seal(now) }
    }

    /// A life that is to begin begins without them. One that runs goes on, and its next checkpoint asks them again.
    fn do_without_protectors(&mut self, now: Instant, round: Round<D>) {
        let errno = round.refused.values().next().map_or(0, |refusal| refusal.errno);
        self.report(Event::Refused(round.question, round.refused));
        if self.restoring.is_some() { self.choose(now) } else { self.give_up_unmet(now, errno) }
    }
}
