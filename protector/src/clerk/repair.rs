//! Repair of this node, and of others.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::time::Instant;

use store::GenerationId;
use transport::Epoch;

use super::{Clerk, Current};
use crate::api::{Asked, Event};
use crate::error::ProtectorError;
use crate::limits::ALIVE_EVERY;
use crate::message::{Answer, Message, Word};
use crate::remote::{Asking, Remote};
use crate::writer::{self, failed};

/// A question of ours that has no answer yet.
pub(super) struct Question {
    to: usize,
    at: Instant,
    reply: Sender<Option<Answer>>,
}

impl Clerk {
    pub(super) fn repair(&mut self, generation: GenerationId) -> Result<Option<Event>, ProtectorError> {
        let node = self.settings.node;
        let met = self.post.as_mut().is_some_and(|post| post.lines().has_met());
        if !met {
            return Err(ProtectorError::NotOpen { node, life: generation.life });
        }
        let remote = Remote::new(std::sync::Arc::clone(&self.tasks), self.settings.group.clone());
        self.current = Current::Repair(self.since());
        self.to_writer(writer::Job::Repair { generation, remote });
        Ok(None)
    }

    pub(super) fn repaired(
        &mut self,
        generation: GenerationId,
        repaired: Result<store::protect::Repaired, ProtectorError>,
    ) {
        let Current::Repair(since) = std::mem::replace(&mut self.current, Current::Nothing) else { return };
        self.to_reader(crate::reader::Job::Forget);
        let statistics = self.statistics(&since, 0.0);
        self.bell.tell(match repaired {
            Ok(repaired) => Event::Repaired { generation, repaired, statistics },
            Err(error) => failed(Asked::Repair, Some(generation), error),
        });
    }

    pub(super) fn ask(&mut self, asking: Asking) {
        let Asking { to, generation, question, reply } = asking;
        let Some(post) = &mut self.post else { return };
        self.asked += 1;
        post.say(to, &Message { generation, number: self.asked, word: Word::Question(question) });
        self.questions.insert(self.asked, Question { to, at: Instant::now(), reply });
    }

    pub(super) fn answered(&mut self, from: usize, number: u64, answer: Answer) {
        // An answer to what was given up is for nobody.
        let known = self.questions.get(&number).is_some_and(|question| question.to == from);
        if let Some(question) = self.questions.remove(&number).filter(|_| known) {
            // Who asked may have given up.
            let _ = question.reply.send(Some(answer));
        }
    }

    /// Who has been silent for too long will not answer.
    pub(super) fn give_up_questions(&mut self) {
        let (now, patience) = (Instant::now(), self.settings.patience);
        let Some(post) = &mut self.post else { return self.questions.clear() };
        if now.saturating_duration_since(self.asked_alive) >= ALIVE_EVERY.min(patience / 4) {
            self.asked_alive = now;
            let awaited: BTreeSet<usize> = self.questions.values().map(|question| question.to).collect();
            for member in awaited {
                let nothing = GenerationId { life: post.lines().life(), epoch: Epoch(0) };
                post.say(member, &Message { generation: nothing, number: 0, word: Word::Alive });
            }
        }
        self.questions.retain(|_, question| {
            let waited = now.saturating_duration_since(post.heard(question.to).max(question.at));
            waited < patience
        });
    }
}
