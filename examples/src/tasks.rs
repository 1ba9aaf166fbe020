//! One rank hands out tasks, the others do them: a program that goes on when one of those is gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use session::{From, Session, SessionError};

use crate::error::ExampleError;

const TASK: u64 = 1;
const RESULT: u64 = 2;

/// In the place of a task: there are no more.
const NO_MORE: u64 = u64::MAX;

/// Between two looks for a result.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The result of a run, as the command line prints it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TasksReport {
    /// Tasks, each of which was done.
    pub tasks: u64,
    /// Ranks that were lost meanwhile; others have done their tasks.
    pub lost: BTreeSet<u32>,
    /// The sum of all results is right.
    pub verified: bool,
}

impl std::fmt::Display for TasksReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outcome = if self.verified { "successful" } else { "FAILED" };
        write!(f, "tasks: {} tasks, {} ranks lost, verification {outcome}", self.tasks, self.lost.len())
    }
}

fn failed(error: SessionError) -> ExampleError {
    ExampleError::Communication(error.into())
}

/// Has `tasks` tasks of `task` each done by the other ranks. `None` on those.
///
/// # Errors
/// [`ExampleError::NobodyLeft`], or the errors of the session: the loss of rank 0, which nobody replaces.
pub fn run(session: &mut Session, tasks: u64, task: Duration) -> Result<Option<TasksReport>, ExampleError> {
    if session.rank() == 0 {
        return hand_out(session, tasks).map(Some);
    }
    loop {
        let number = number(&session.recv(0, TASK).map_err(failed)?.bytes);
        if number == NO_MORE {
            return Ok(None);
        }
        std::thread::sleep(task);
        let result = [number.to_le_bytes(), result_of(number).to_le_bytes()].concat();
        session.send(0, RESULT, result).map_err(failed)?;
    }
}

fn result_of(task: u64) -> u64 {
    task.wrapping_mul(task)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(NO_MORE, |bytes| u64::from_le_bytes(*bytes))
}

fn hand_out(session: &mut Session, tasks: u64) -> Result<TasksReport, ExampleError> {
    let mut waiting: VecDeque<u64> = (0..tasks).collect();
    let mut idle: VecDeque<u32> = (1..session.size()).collect();
    let mut doing: BTreeMap<u32, u64> = BTreeMap::new();
    let mut results: BTreeMap<u64, u64> = BTreeMap::new();
    let mut lost = BTreeSet::new();
    while results.len() as u64 != tasks {
        let known = lost.len();
        lost.clone_from(session.lost_ranks().map_err(failed)?);
        if lost.len() > known {
            idle.retain(|rank| !lost.contains(rank));
            // Somebody else does their tasks.
            waiting.extend(doing.extract_if(.., |rank, _| lost.contains(rank)).map(|(_, task)| task));
        }
        if idle.is_empty() && doing.is_empty() {
            return Err(ExampleError::NobodyLeft { done: results.len() as u64, tasks });
        }
        while let (Some(rank), Some(task)) = (idle.front().copied(), waiting.front().copied()) {
            match session.send(rank, TASK, task.to_le_bytes().to_vec()) {
                Ok(()) => {
                    idle.pop_front();
                    waiting.pop_front();
                    doing.insert(rank, task);
                }
                // It is among the lost ranks at the next look.
                Err(SessionError::RankLost { .. }) => break,
                Err(error) => return Err(failed(error)),
            }
        }
        let Some(found) = session.probe(From::Any, RESULT).map_err(failed)? else {
            std::thread::sleep(LOOK_EVERY);
            continue;
        };
        let message = session.recv(found.source, RESULT).map_err(failed)?;
        let (task, result) = message.bytes.split_at(message.bytes.len() / 2);
        results.insert(number(task), number(result));
        // The result of a rank that is lost may come after its task was given back.
        waiting.retain(|waiting| *waiting != number(task));
        if doing.remove(&message.source).is_some() {
            idle.push_back(message.source);
        }
    }
    for rank in 1..session.size() {
        match session.send(rank, TASK, NO_MORE.to_le_bytes().to_vec()) {
            Ok(()) | Err(SessionError::RankLost { .. }) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let sum = |results: &mut dyn Iterator<Item = u64>| results.fold(0u64, u64::wrapping_add);
    let verified = sum(&mut results.into_values()) == sum(&mut (0..tasks).map(result_of));
    Ok(TasksReport { tasks, lost, verified })
}
