//! Between the last image of a checkpoint and its commit record: every member of every group has to seal what it keeps for the others (R27).
//!
//! A node waiting for a slow peer appears equally slow. So when a generation is late, each member reports how its own time went, and the reports are
//! compared.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use transport::Instant;

use super::super::late::{Account, causes};
use super::machine::Nodes;
use super::round::Round;
use super::{Answer, Event, Output, Question, Refusal, Refused};
use crate::control::ImageReport;
use crate::names::{GenerationId, NodeIndex};
use crate::sabotage::Rule;

/// The generation that is being protected. At most one is: the next checkpoint begins when this one is committed or abandoned (R1).
#[derive(Clone, Debug, Default)]
pub(super) enum Sealing {
    #[default]
    Idle,
    /// Its images are durable where they were written.
    Pending { generation: GenerationId, images: Vec<ImageReport> },
    /// It was given up because a node was late.
    Late { generation: GenerationId, refused: Refused },
}

impl Sealing {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Sealing::Pending { .. })
    }

    /// The generation that ends with its life.
    pub(super) fn given_up(self) -> Option<GenerationId> {
        match self {
            Sealing::Idle => None,
            Sealing::Pending { generation, .. } | Sealing::Late { generation, .. } => Some(generation),
        }
    }
}

impl<D> Nodes<D> {
    /// Every image is durable.
    pub(super) fn begin_sealing(&mut self, now: Instant, generation: GenerationId, images: Vec<ImageReport>) {
        if !self.has_groups() || self.settings.sabotage.is_out(Rule::Unprotected) {
            return self.push(Output::Protected { generation, images, answers: BTreeMap::new() });
        }
        self.sealing = Sealing::Pending { generation, images };
        // Parity of the kept generations is folded just now.
        if self.rounds.iter().all(|round| round.question != Question::Collect) {
            self.seal(now);
        }
    }

    /// Asks the nodes to protect the pending generation. R27: their protectors have to know each other.
    pub(super) fn seal(&mut self, now: Instant) {
        let Sealing::Pending { generation, .. } = self.sealing else { return };
        self.rebuilding.hold();
        if !self.protectors.have_met() && !self.settings.sabotage.is_out(Rule::Unmet) {
            return self.open_protectors_again(now, generation);
        }
        let question = Question::Protect(generation, self.base);
        self.ask_all(now, question, Some(self.settings.times.protect));
    }

    /// R27: only a generation that every node protects is committed.
    pub(super) fn end_sealing(&mut self, now: Instant, round: Round<D>) {
        let Sealing::Pending { generation, images } = core::mem::take(&mut self.sealing) else { return };
        if round.refused.is_empty() || self.settings.sabotage.is_out(Rule::SealRefused) {
            let answers = round.into_details();
            return self.push(Output::Protected { generation, images, answers });
        }
        // If all wait for one, each of them is late.
        if round.refused.values().any(|refusal| refusal.errno == Refusal::LATE) {
            self.sealing = Sealing::Late { generation, refused: round.refused };
            let limit = self.settings.times.late;
            return self.ask_all(now, Question::Late(generation), Some(limit));
        }
        let errno = round.refused.values().next().map_or(0, |refusal| refusal.errno);
        self.report(Event::Refused(round.question, round.refused));
        self.give_up(now, generation, errno);
        // If its base is damaged, the next one stands for itself.
        if errno != Refusal::NO_ROOM {
            self.base = None;
        }
    }

    pub(super) fn end_late(&mut self, now: Instant, round: Round<D>) {
        let Sealing::Late { generation, refused } = core::mem::take(&mut self.sealing) else { return };
        let silent = round.refused.keys().copied().collect();
        let account = |(node, (answer, _)): (NodeIndex, (Answer, D))| match answer {
            Answer::GivenUp(Some(account)) => Some((node, account)),
            _ => None,
        };
        let accounts: BTreeMap<NodeIndex, Account> = round.answers.into_iter().filter_map(account).collect();
        let causes = causes(&silent, &accounts);
        self.report(Event::Late { generation, refused, causes, accounts, base: self.base });
        self.give_up(now, generation, Refusal::LATE);
    }

    /// The protectors have not met. Nothing was written for the generation, and its base is as it was.
    pub(super) fn give_up_unmet(&mut self, now: Instant, errno: u32) {
        let Sealing::Pending { generation, .. } = core::mem::take(&mut self.sealing) else { return };
        self.give_up(now, generation, errno);
    }

    fn give_up(&mut self, now: Instant, generation: GenerationId, errno: u32) {
        self.abandon(generation, errno);
        self.resume_rebuilding(now);
    }

    /// The generation before it is as it was.
    pub(super) fn abandon(&mut self, generation: GenerationId, errno: u32) {
        self.push(Output::Abandon(generation));
        self.push(Output::NotProtected { generation, errno });
    }
}
