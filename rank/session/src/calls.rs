//! The call in which the program stands, for a person whose job hangs.
//!
//! A call is noted only once it has waited for a whole slice, so that calls which need not wait cost nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ckpt_glue::control::{Wait, WaitKind};
use client::waits::{Call, Known};
use transport::{Rank, Space};

use crate::agent::Agent;
use crate::message::{From, Tags};
use crate::traffic::COLLECTIVE;

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    /// For a message of this space.
    Message(Space, From, Tags),
    /// For room on the link to a rank, for so many bytes with this tag.
    Room(u32, u64, usize),
    /// For a request.
    Request(u64),
    /// For all other ranks to finish.
    Finish,
}

#[derive(Debug, Default)]
struct Noted {
    call: Option<(Waiting, Instant)>,
    calls: u64,
}

/// The newest call that has waited.
#[derive(Debug, Default)]
pub(crate) struct CurrentCall(Mutex<Noted>);

impl CurrentCall {
    fn change(&self, change: impl FnOnce(&mut Noted)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The current facts about it.
    pub(crate) fn known(&self) -> Known {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = |kind, peer, tags: Tags, bytes: usize, since: &Instant| Wait {
            kind,
            peer,
            op: noted.calls,
            tag: tags.tag,
            ignore: tags.ignore,
            bytes: bytes as u64,
            age_ns: u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        let call = noted.call.as_ref().map(|(waiting, since)| match *waiting {
            Waiting::Message(space, from, tags) => {
                let peer = match from {
                    From::Rank(rank) => Some(Rank(rank)),
                    From::Any => None,
                };
                let kind = if space == COLLECTIVE { WaitKind::Collective } else { WaitKind::Receive };
                Call::Shown(wait(kind, peer, tags, 0, since))
            }
            Waiting::Room(to, tag, bytes) => {
                Call::Shown(wait(WaitKind::Room, Some(Rank(to)), tag.into(), bytes, since))
            }
            Waiting::Request(context) => Call::Operation(context),
            Waiting::Finish => Call::Shown(wait(WaitKind::Finish, None, 0.into(), 0, since)),
        });
        Known { call, calls: noted.calls, beside: None }
    }
}

/// A call that has been noted, until it ends.
#[must_use]
pub(crate) struct NotedCall(Arc<Agent>);

impl NotedCall {
    pub(crate) fn begin(agent: &Arc<Agent>, waiting: Waiting) -> NotedCall {
        agent.call().change(|noted| {
            noted.call = Some((waiting, Instant::now()));
            noted.calls += 1;
        });
        NotedCall(Arc::clone(agent))
    }
}

impl Drop for NotedCall {
    fn drop(&mut self) {
        self.0.call().change(|noted| noted.call = None);
    }
}
