//! Repair of this node, and of others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use store::GenerationId;
use store::protect::Repaired;
use transport::Epoch;

use super::{Baseline, Current, EncodeWorker};
use crate::api::{Event, RequestKind};
use crate::error::ProtectorError;
use crate::limits::{ALIVE_EVERY, QUESTIONS_MAX, STUCK_AFTER};
use crate::message::{self, Answer, Body, Message};
use crate::reader;
use crate::remote::{PeerQuestion, Remote, Reply};
use crate::writer::{self, failed};

/// A repair of this node.
pub(super) struct Repair {
    since: Baseline,
    /// The cause of its end; the writer does not know yet.
    ended: Option<&'static str>,
}

/// A question of ours that has no answer yet.
pub(super) struct Question {
    pub(super) to: usize,
    generation: GenerationId,
    at: Instant,
    reply: Sender<Reply>,
}

impl EncodeWorker {
    pub(super) fn repair(&mut self, generation: GenerationId) -> Result<(), ProtectorError> {
        if !self.messenger.as_ref().is_some_and(|messenger| messenger.has_met()) {
            return Err(ProtectorError::NotMet { node: self.settings.node });
        }
        let remote = Remote::new(Arc::clone(&self.tasks), self.settings.group.clone());
        self.current = Current::Repair(Repair { since: self.since(), ended: None });
        self.to_writer(writer::Job::Repair { attempt: self.attempt, generation, remote });
        Ok(())
    }

    /// Ends the repair: the writer's next read, write or question fails.
    pub(super) fn end_repair(&mut self, by: &'static str) {
        if let Current::Repair(repair) = &mut self.current {
            repair.ended = Some(by);
        }
        self.drop_questions(|_| Some(by.to_owned()));
    }

    pub(super) fn repaired(&mut self, generation: GenerationId, repaired: Result<Repaired, ProtectorError>) {
        let Current::Repair(Repair { since, ended }) = std::mem::replace(&mut self.current, Current::Nothing)
        else {
            return;
        };
        self.to_reader(reader::Job::Forget);
        let statistics = self.statistics(&since, 0.0);
        self.events.push(match (repaired, ended) {
            (Ok(repaired), _) => Event::Repaired { generation, repaired, statistics },
            (Err(_), Some(by)) => failed(RequestKind::Repair, Some(generation), ProtectorError::Ended { by }),
            (Err(error), None) => failed(RequestKind::Repair, Some(generation), error),
        });
    }

    /// The writer asks another member.
    pub(super) fn ask(&mut self, asking: PeerQuestion) {
        let PeerQuestion { to, generation, question, reply } = asking;
        let refusal = match &self.current {
            Current::Repair(Repair { ended, .. }) => *ended,
            _ => Some("nothing is repaired any more"),
        };
        let Some(messenger) = self.messenger.as_mut().filter(|_| refusal.is_none()) else {
            let why = refusal.unwrap_or("this node has no endpoint");
            // The asker may have given up.
            let _ = reply.try_send(Err(why.to_owned()));
            return;
        };
        self.asked += 1;
        messenger.say(to, &Message { generation, number: self.asked, body: Body::Question(question) });
        self.questions.insert(self.asked, Question { to, generation, at: Instant::now(), reply });
    }

    pub(super) fn answered(&mut self, from: usize, generation: GenerationId, number: u64, answer: Answer) {
        let is_it = |question: &&Question| (question.to, question.generation) == (from, generation);
        // An answer to an abandoned question, or of another node, is discarded.
        if self.questions.get(&number).filter(is_it).is_some()
            && let Some(question) = self.questions.remove(&number)
        {
            // The asker may have given up.
            let _ = question.reply.try_send(Ok(answer));
        }
    }

    /// Abandons the questions for which `why` gives a reason.
    pub(super) fn drop_questions(&mut self, why: impl Fn(&Question) -> Option<String>) {
        self.questions.retain(|_, question| match why(question) {
            Some(why) => {
                // The asker may have given up.
                let _ = question.reply.try_send(Err(why));
                false
            }
            None => true,
        });
    }

    /// A node that has been silent for too long will not answer; neither will a live node that has not answered for
    /// much longer.
    pub(super) fn watch_questions(&mut self) {
        let (now, patience) = (Instant::now(), self.settings.patience);
        let Some(messenger) = &mut self.messenger else {
            return self.drop_questions(|_| Some("this node has no endpoint".to_owned()));
        };
        if now.saturating_duration_since(self.asked_alive) >= ALIVE_EVERY.min(patience / 4) {
            self.asked_alive = now;
            let awaited: BTreeSet<usize> = self.questions.values().map(|question| question.to).collect();
            for member in awaited {
                let nothing = GenerationId { life: messenger.life(), epoch: Epoch(0) };
                messenger.say(member, &Message { generation: nothing, number: 0, body: Body::Alive });
            }
        }
        let heard: Vec<Instant> =
            (0..self.settings.group.members()).map(|member| messenger.heard(member)).collect();
        self.drop_questions(|question| {
            let since = |at: Instant| now.saturating_duration_since(at);
            let (silent, waited) = (since(heard[question.to].max(question.at)), since(question.at));
            if silent >= patience {
                return Some(format!("it has been silent for {silent:.1?}"));
            }
            let stuck = waited >= patience * STUCK_AFTER;
            stuck.then(|| format!("it is alive, and has not answered a question for {waited:.1?}"))
        });
    }

    /// A member that is repaired asks.
    pub(super) fn asked_by(
        &mut self,
        from: usize,
        generation: GenerationId,
        number: u64,
        question: message::Question,
    ) {
        let Some(messenger) = &mut self.messenger else { return };
        if self.questions_of[from] == QUESTIONS_MAX {
            let why = format!("{QUESTIONS_MAX} questions of this node wait already");
            let body = Body::Answer(Answer::Failed(why));
            return messenger.say(from, &Message { generation, number, body });
        }
        self.questions_of[from] += 1;
        let (attempt, life) = (self.attempt, messenger.life());
        self.to_reader(reader::Job::Answer { attempt, life, to: from, generation, number, question });
    }
}
