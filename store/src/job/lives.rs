//! Lives: the decision that begins one, and the fence that it puts before all older ones.

use std::collections::{BTreeMap, BTreeSet};

use transport::Life;

use super::names::{self, TopLevelEntry};
use super::{GenerationId, GenerationState, JobDirectory};
use crate::error::{CommitError, RecordError, StoreError};
use crate::record::{Decision, End};
use crate::sabotage::{Rule, Sabotage};
use crate::storage::{Storage, StorageError};

/// The records and directories at the top of a job's directory.
pub(super) struct Lives {
    /// Every decision by its counter; one that cannot be read still fences and still takes its counter.
    pub(super) decisions: BTreeMap<u32, Result<Decision, StoreError>>,
    /// Lives that have a directory.
    pub(super) directories: Vec<Life>,
    /// Decisions that were never published.
    pub(super) leftovers: Vec<String>,
    counter_max: u32,
    pub(super) sabotage: Sabotage,
}

impl Lives {
    /// The life that may commit: the newest decided one. `None` before the first, or if its record is unreadable.
    pub(super) fn current(&self) -> Option<Life> {
        let (_, newest) = self.decisions.last_key_value()?;
        newest.as_ref().ok().map(|decision| decision.life)
    }

    /// Whether `life` may still write generations (rules 7 and 9).
    pub(super) fn admit(&self, life: Life) -> Result<(), CommitError> {
        // Rules 8 and 9
        let decided =
            matches!(self.decisions.get(&life.counter), Some(Ok(decision)) if decision.life == life);
        if self.sabotage.is_out(Rule::KeyWithoutLife) || decided && self.sabotage.is_out(Rule::NoFence) {
            return Ok(());
        }
        match self.decisions.last_key_value() {
            Some((_, Ok(newest))) if newest.life == life => Ok(()),
            Some((counter, newest)) if *counter > life.counter => {
                let nonce = newest.as_ref().map_or(0, |newest| newest.life.nonce);
                Err(CommitError::Fenced { life: Life { counter: *counter, nonce } })
            }
            _ => Err(CommitError::UndecidedLife),
        }
    }

    /// The decision that keeps a commit record of `generation` from counting, if one does: it began a later life from
    /// something older, so the ranks went on without this generation. `with_record`: all that have a commit record.
    ///
    /// A decision whose own base is gone, and whose life has committed nothing, never came to run: the older life
    /// removed the base for a newer generation while the decision was made. Were it to count, nothing would be left.
    pub(super) fn fence(
        &self,
        generation: GenerationId,
        with_record: &BTreeSet<GenerationId>,
    ) -> Option<Life> {
        // Rule 9
        if self.sabotage.is_out(Rule::NoFence) || self.sabotage.is_out(Rule::KeyWithoutLife) {
            return None;
        }
        let later = self.decisions.range(generation.life.counter.saturating_add(1)..);
        let mut read = later.filter_map(|(_, decision)| decision.as_ref().ok());
        let fence = read.find(|decision| {
            let came_to_run = decision.from.is_none_or(|from| with_record.contains(&from))
                || with_record.iter().any(|found| found.life == decision.life);
            decision.from < Some(generation) && came_to_run
        });
        fence.map(|decision| decision.life)
    }
}

impl<S: Storage> JobDirectory<S> {
    /// Decides a new life, durably, before its first process starts or restores (rules 7 and 9). From then on nothing
    /// of an older life can be committed.
    ///
    /// `nonce` is fresh randomness. `from` must be a committed generation; every rank restores exactly that one.
    /// The counter is one more than every counter on disk. [`StoreError::LifeTaken`] if another process decided at
    /// the same time; [`StoreError::NotCommitted`] also if the old life removed `from` meanwhile: look again.
    pub fn start_life(&mut self, nonce: u64, from: Option<GenerationId>) -> Result<Decision, StoreError> {
        let counter_max = self.counter_last()?;
        let counter = counter_max.checked_add(1).ok_or(StoreError::LivesUsedUp { counter_max })?;
        let decision = Decision { job: self.job, life: Life { counter, nonce }, from };
        if let Some(generation) = from {
            self.expect_committed(generation)?;
            // Its commit record can be seen; if its writer died before it was durable, it is made so now.
            self.sync_way(generation)?;
        }
        self.write_decision(&decision)?;
        // The old life may have committed and collected between the look and the fence.
        if let Some(generation) = from {
            self.expect_committed(generation)?;
        }
        Ok(decision)
    }

    /// Writes a decision made elsewhere, durably: by a coordinator that counts lives itself, or for a node without the
    /// generation that it starts from. Writing the same again is no error; [`StoreError::LifeTaken`] if its counter is
    /// not above all that are here. [`StoreError::Unsettled`]: only a restart can find out; after any other error there is
    /// no such decision.
    pub fn write_decision(&mut self, decision: &Decision) -> Result<(), StoreError> {
        let (life, counter) = (decision.life, decision.life.counter);
        let lives = self.lives()?;
        if lives.current() == Some(life) && lives.decisions.get(&counter) == Some(&Ok(*decision)) {
            return Ok(self.storage.sync_directory("")?);
        }
        if lives.counter_max >= counter {
            return Err(StoreError::LifeTaken { counter });
        }
        let (path, temporary) = (names::decision(counter), names::decision_temporary(life));
        match self.write_record(&path, &temporary, &decision.emit()) {
            Err(StoreError::Storage(StorageError::AlreadyExists { .. })) => {
                return Err(StoreError::LifeTaken { counter });
            }
            written => written?,
        }
        // A faster decider may have taken a higher counter; this life was then over before it began.
        self.lives()?.admit(life).map_err(|_| StoreError::LifeTaken { counter })
    }

    /// Every decision that can be read, oldest first: from these a node's own directory learns the job's lives.
    pub fn decisions(&mut self) -> Result<Vec<Decision>, StoreError> {
        Ok(self.lives()?.decisions.into_values().filter_map(Result::ok).collect())
    }

    /// Counters of the decisions that cannot be read, rising.
    pub fn damaged_lives(&mut self) -> Result<Vec<u32>, StoreError> {
        let decisions = self.lives()?.decisions.into_iter();
        Ok(decisions.filter(|(_, decision)| decision.is_err()).map(|(counter, _)| counter).collect())
    }

    /// Writes a decision anew, durably, in place of the one with its counter, which cannot be read. False, and nothing is written: there is no such one.
    pub fn repair_decision(&mut self, decision: &Decision) -> Result<bool, StoreError> {
        let counter = decision.life.counter;
        let is_damaged = matches!(self.lives()?.decisions.get(&counter), Some(Err(_)));
        if decision.job != self.job || !is_damaged {
            return Ok(false);
        }
        let (path, temporary) = (names::decision(counter), names::decision_temporary(decision.life));
        self.replace_record(&path, &temporary, &decision.emit())?;
        Ok(true)
    }

    /// Writes, oldest first, those of `decisions` that are not here: so a node that was absent adopts the decisions. [`StoreError::LifeTaken`], and
    /// nothing is written, if another one is here under the counter of one of them, or one that they do not know.
    pub fn adopt_decisions(&mut self, decisions: &[Decision]) -> Result<(), StoreError> {
        let known = self.lives()?.decisions;
        let last = decisions.last().map_or(0, |last| last.life.counter);
        if let Some(counter) = known.keys().find(|counter| **counter > last) {
            return Err(StoreError::LifeTaken { counter: *counter });
        }
        let is_other = |decision: &&Decision| matches!(known.get(&decision.life.counter), Some(Ok(here)) if here != *decision);
        if let Some(Decision { life, .. }) = decisions.iter().find(is_other) {
            return Err(StoreError::LifeTaken { counter: life.counter });
        }
        for decision in decisions {
            let counter = decision.life.counter;
            let path = names::decision(counter);
            match known.get(&counter) {
                Some(Ok(_)) => continue,
                // It cannot be read any more.
                Some(Err(_)) => self.storage.remove_file(&path)?,
                None => {}
            }
            self.write_record(&path, &names::decision_temporary(decision.life), &decision.emit())?;
        }
        Ok(self.storage.sync_directory("")?)
    }

    /// Notes, durably, that the job has finished in the newest life. Writing it again is no error: the first stays.
    pub fn write_end(&mut self, life: Life, ended_unix_ms: u64) -> Result<(), StoreError> {
        self.expect_current(life)?;
        let (path, end) = (names::end(life.counter), End { job: self.job, life, ended_unix_ms });
        match self.write_record(&path, &names::temporary(&path), &end.emit()) {
            Err(StoreError::Storage(StorageError::AlreadyExists { .. })) => Ok(()),
            written => written,
        }
    }

    /// When the job has finished, if its newest life was its last. A later life, begun from an older generation, is on its way again.
    pub fn end(&mut self) -> Result<Option<End>, StoreError> {
        // A decision that cannot be read still took its counter.
        let Some((counter, decision)) = self.lives()?.decisions.pop_last() else { return Ok(None) };
        let path = names::end(counter);
        let end = match self.read_record(&path, End::parse) {
            Err(StoreError::Storage(StorageError::NotFound { .. })) => return Ok(None),
            read => read?,
        };
        let error = if end.job != self.job {
            RecordError::WrongJob { expected: self.job, found: end.job }
        } else if end.life.counter != counter || decision.is_ok_and(|decision| decision.life != end.life) {
            RecordError::Line { line: 3, expected: "life COUNTER.NONCE, the newest decided" }
        } else {
            return Ok(Some(end));
        };
        Err(StoreError::Record { path, error })
    }

    /// The highest counter of any life that left a trace; 0 if none did.
    pub fn counter_last(&mut self) -> Result<u32, StoreError> {
        Ok(self.lives()?.counter_max)
    }

    /// The newest decision: the current life and its starting generation. `None` before the first.
    pub fn newest_decision(&mut self) -> Result<Option<Decision>, StoreError> {
        self.lives()?.decisions.pop_last().map(|(_, newest)| newest).transpose()
    }

    /// Decisions that cannot be read, oldest first. They still take their counters, and nothing that was committed is lost
    /// with them.
    pub fn damaged_decisions(&mut self) -> Result<Vec<StoreError>, StoreError> {
        Ok(self.lives()?.decisions.into_values().filter_map(Result::err).collect())
    }

    /// `Ok` if `life` is the current one. A keeper checks this before it starts or restores a rank.
    pub fn expect_current(&mut self, life: Life) -> Result<(), StoreError> {
        let admitted = self.lives()?.admit(life);
        let generation = GenerationId { life, epoch: transport::Epoch(0) };
        admitted.map_err(|error| StoreError::Commit { generation, error })
    }

    pub(super) fn lives(&mut self) -> Result<Lives, StoreError> {
        let mut lives = Lives {
            decisions: BTreeMap::new(),
            directories: Vec::new(),
            leftovers: Vec::new(),
            counter_max: 0,
            sabotage: self.sabotage,
        };
        for entry in self.storage.list("")? {
            let counter = match names::parse_top_level(&entry.name) {
                TopLevelEntry::Decision(counter) => {
                    let decision = self.read_decision(counter);
                    lives.decisions.insert(counter, decision);
                    counter
                }
                // Nothing ran under a decision that was never published, so it takes no counter.
                TopLevelEntry::DecisionTemporary(_) => {
                    lives.leftovers.push(entry.name);
                    continue;
                }
                TopLevelEntry::Life(life) => {
                    lives.directories.push(life);
                    life.counter
                }
                TopLevelEntry::Layout(_) | TopLevelEntry::Other => continue,
            };
            lives.counter_max = lives.counter_max.max(counter);
        }
        lives.directories.sort();
        Ok(lives)
    }

    fn read_decision(&mut self, counter: u32) -> Result<Decision, StoreError> {
        let path = names::decision(counter);
        let decision = self.read_record(&path, Decision::parse)?;
        let error = if decision.job != self.job {
            RecordError::WrongJob { expected: self.job, found: decision.job }
        } else if decision.life.counter != counter {
            RecordError::Line { line: 3, expected: "life COUNTER.NONCE, with the counter of the file's name" }
        } else {
            return Ok(decision);
        };
        Err(StoreError::Record { path, error })
    }

    fn expect_committed(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        let listed = self.generations()?;
        let found = listed.iter().find(|listed| listed.id == generation);
        if found.is_none_or(|found| found.state != GenerationState::Committed) {
            return Err(StoreError::NotCommitted { generation });
        }
        self.commit_record(generation).map(|_| ())
    }
}
