//! How a node that is repaired asks the others: over the encode worker, ahead of its other work.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use store::GenerationId;
use store::protect::{Group, Others, PageAnswer, ProtectError, Wanted};
use store::record::Content;

use crate::encode_worker::Task;
use crate::mailbox::Mailbox;
use crate::message::{Answer, Question};

/// A question on its way through the encode worker.
pub(crate) struct PeerQuestion {
    pub(crate) to: usize,
    pub(crate) generation: GenerationId,
    pub(crate) question: Question,
    pub(crate) reply: Sender<Reply>,
}

/// An answer, or why there will not be one.
pub(crate) type Reply = Result<Answer, String>;

/// Questions that were asked before the answers were needed.
struct Prefetch {
    asked: Vec<usize>,
    wanted: Wanted,
    replies: Vec<Receiver<Reply>>,
}

/// The other members.
pub(crate) struct Remote {
    tasks: Arc<Mailbox<Task>>,
    group: Group,
    ahead: Option<Prefetch>,
}

impl Remote {
    pub(crate) fn new(tasks: Arc<Mailbox<Task>>, group: Group) -> Remote {
        Remote { tasks, group, ahead: None }
    }

    fn ask(&self, to: usize, generation: GenerationId, question: Question) -> Receiver<Reply> {
        // Each question has one answer.
        let (reply, answer) = bounded(1);
        self.tasks.post(Task::Ask(PeerQuestion { to, generation, question, reply }));
        answer
    }

    fn ask_all(&self, asked: &[usize], generation: GenerationId, wanted: &Wanted) -> Vec<Receiver<Reply>> {
        let question = || Question::Places(wanted.clone());
        asked.iter().map(|to| self.ask(*to, generation, question())).collect()
    }

    /// The encode worker always answers in the end, even if the peer does not.
    fn answer(&self, of: usize, reply: &Receiver<Reply>) -> Result<Answer, ProtectError> {
        let node = self.group.nodes()[of];
        match reply.recv() {
            Ok(Ok(Answer::Failed(why))) => Err(ProtectError::Refused { node, why }),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(ProtectError::Unreachable { node, why }),
            Err(_) => Err(ProtectError::Unreachable { node, why: "this node's protector ends".to_owned() }),
        }
    }

    fn other_answer(&self, of: usize) -> ProtectError {
        ProtectError::Refused { node: self.group.nodes()[of], why: "it answered something else".to_owned() }
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
        let reply = self.ask(asked, generation, Question::Content { of: number });
        let Answer::Content(record) = self.answer(asked, &reply)? else {
            return Err(self.other_answer(asked));
        };
        let (node, about) = (self.group.nodes()[asked], self.group.nodes()[of]);
        let path = || format!("what node {node} says of node {about}");
        let content =
            Content::parse(&record).map_err(|error| ProtectError::Record { path: path(), error })?;
        if (content.generation, content.node) != (generation, about) {
            let what = "it is of another generation or node";
            return Err(ProtectError::File { path: path(), what });
        }
        Ok(content)
    }

    fn places(
        &mut self,
        asked: &[usize],
        generation: GenerationId,
        wanted: &Wanted,
    ) -> Vec<Result<Vec<PageAnswer>, ProtectError>> {
        let known = self.ahead.take().filter(|ahead| ahead.asked == asked && ahead.wanted == *wanted);
        let replies = match known {
            Some(ahead) => ahead.replies,
            None => self.ask_all(asked, generation, wanted),
        };
        // While this is computed, the next ones are read and sent.
        let (start, end) = (wanted.cycles.start, wanted.cycles.end);
        let next = Wanted { cycles: end..end + (end - start), ..wanted.clone() };
        let ahead = self.ask_all(asked, generation, &next);
        self.ahead = Some(Prefetch { asked: asked.to_vec(), wanted: next, replies: ahead });
        let reported = |(of, reply): (&usize, &Receiver<Reply>)| match self.answer(*of, reply)? {
            Answer::Places(reported) => Ok(reported),
            _ => Err(self.other_answer(*of)),
        };
        asked.iter().zip(&replies).map(reported).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use transport::{Epoch, JobId, Life};

    use super::*;

    const ASKED: GenerationId = GenerationId { life: Life { counter: 2, nonce: 9 }, epoch: Epoch(4) };

    /// Asks member 1 for member 2's content of a generation, and returns the outcome of this answer.
    fn reported(answer: Answer) -> Result<Content, ProtectError> {
        let tasks = Arc::new(Mailbox::new());
        let mut remote = Remote::new(Arc::clone(&tasks), Group::new(vec![5, 6, 7], 1).expect("a shape"));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let asking = loop {
                    match tasks.take() {
                        Some(Task::Ask(asking)) => break asking,
                        _ => tasks.wait(Duration::from_secs(60), |_| false),
                    }
                };
                assert_eq!((asking.to, asking.generation), (1, ASKED));
                asking.reply.send(Ok(answer)).expect("somebody waits for it");
            });
            remote.content(1, 2, ASKED)
        })
    }

    #[test]
    fn a_record_of_another_node_or_generation_is_not_taken() {
        let content = Content { job: JobId(1), generation: ASKED, node: 7, files: Vec::new() };
        assert_eq!(reported(Answer::Content(content.emit())), Ok(content.clone()));
        let older = GenerationId { epoch: Epoch(3), ..ASKED };
        for other in [Content { node: 6, ..content.clone() }, Content { generation: older, ..content }] {
            let error = reported(Answer::Content(other.emit())).expect_err("it is of something else");
            assert!(error.is_damage() && error.to_string().contains("node 6 says of node 7"), "{error}");
        }
    }

    #[test]
    fn why_a_member_cannot_report_is_passed_on() {
        let error = reported(Answer::Failed("the disk hums".to_owned())).expect_err("it cannot tell");
        assert_eq!(error, ProtectError::Refused { node: 6, why: "the disk hums".to_owned() });
    }
}
