//! How a node that is repaired asks the others: over the clerk, ahead of what it works on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use store::GenerationId;
use store::protect::{Group, Others, ProtectError, Told, Wanted};
use store::record::Content;

use crate::clerk::Task;
use crate::mailbox::Mailbox;
use crate::message::{Answer, Question};

/// A question on its way through the clerk.
pub(crate) struct Asking {
    pub(crate) to: usize,
    pub(crate) generation: GenerationId,
    pub(crate) question: Question,
    /// Where the answer goes; none: it did not answer.
    pub(crate) reply: Sender<Option<Answer>>,
}

/// Where an answer comes; none: there will not be one.
type Answers = Receiver<Option<Answer>>;

/// What was asked before it was needed.
struct Ahead {
    asked: Vec<usize>,
    wanted: Wanted,
    answers: Vec<Answers>,
}

/// The other members.
pub(crate) struct Remote {
    tasks: Arc<Mailbox<Task>>,
    group: Group,
    ahead: Option<Ahead>,
}

impl Remote {
    pub(crate) fn new(tasks: Arc<Mailbox<Task>>, group: Group) -> Remote {
        Remote { tasks, group, ahead: None }
    }

    fn ask(&self, to: usize, generation: GenerationId, question: Question) -> Answers {
        let (reply, answer) = channel();
        self.tasks.post(Task::Ask(Asking { to, generation, question, reply }));
        answer
    }

    fn ask_all(&self, asked: &[usize], generation: GenerationId, wanted: &Wanted) -> Vec<Answers> {
        let question = || Question::Places(wanted.clone());
        asked.iter().map(|to| self.ask(*to, generation, question())).collect()
    }

    /// The clerk answers in the end, whatever the one asked does.
    fn answer(&self, of: usize, answer: &Answers) -> Result<Answer, ProtectError> {
        let unreachable = ProtectError::Unreachable { node: self.group.nodes()[of] };
        match answer.recv().ok().flatten() {
            None | Some(Answer::Failed(_)) => Err(unreachable),
            Some(answer) => Ok(answer),
        }
    }
}

impl Others for Remote {
    fn content(
        &mut self,
        asked: usize,
        of: usize,
        generation: GenerationId,
    ) -> Result<Content, ProtectError> {
        let number = u16::try_from(of).expect("a group has few members");
        let answer = self.ask(asked, generation, Question::Content { of: number }).recv().ok().flatten();
        let node = self.group.nodes()[asked];
        match answer {
            None => Err(ProtectError::Unreachable { node }),
            Some(Answer::Content(record)) => Content::parse(&record).map_err(|error| ProtectError::Record {
                path: format!("what node {node} says of node {}", self.group.nodes()[of]),
                error,
            }),
            // It is alive, and does not know; the next one may.
            Some(_) => Err(ProtectError::NoParity { generation }),
        }
    }

    fn places(
        &mut self,
        asked: &[usize],
        generation: GenerationId,
        wanted: &Wanted,
    ) -> Vec<Result<Vec<Told>, ProtectError>> {
        let known = self.ahead.take().filter(|ahead| ahead.asked == asked && ahead.wanted == *wanted);
        let answers = match known {
            Some(ahead) => ahead.answers,
            None => self.ask_all(asked, generation, wanted),
        };
        // While this is computed, the next ones are read and sent.
        let (start, end) = (wanted.cycles.start, wanted.cycles.end);
        let next = Wanted { cycles: end..end + (end - start), ..wanted.clone() };
        let answers_ahead = self.ask_all(asked, generation, &next);
        self.ahead = Some(Ahead { asked: asked.to_vec(), wanted: next, answers: answers_ahead });
        let told = |(of, answer): (&usize, &Answers)| match self.answer(*of, answer)? {
            Answer::Places(told) => Ok(told),
            _ => Err(ProtectError::Unreachable { node: self.group.nodes()[*of] }),
        };
        asked.iter().zip(&answers).map(told).collect()
    }
}
