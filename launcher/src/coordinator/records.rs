//! Outcomes of the store's tasks, and the end of the job.

use std::time::Instant;

use ckpt_glue::job::{self, FinalReport};
use ckpt_glue::protection::nodes::Input as NodesInput;
use ckpt_glue::recovery::Ending;
use nix::sys::epoll::EpollEvent;

use super::super::events::epoll_timeout;
use super::super::limits::{EVENTS_PER_ROUND, KEEPER_END_MAX};
use super::super::notice::Notice;
use super::super::storage::{Done, Task};
use super::super::wire::ToKeeper;
use super::{Shell, Source};

impl Shell<'_> {
    pub(super) fn on_store(&mut self) {
        while let Some(done) = self.store.next() {
            self.on_done(done);
            self.pump();
        }
    }

    pub(super) fn on_done(&mut self, done: Done) {
        match done {
            Done::Fenced { counter, newest, nonce, refused, records } => {
                for (generation, damages) in &refused {
                    self.notify(&Notice::Damaged { generation: *generation, damages });
                }
                if self.nodes.is_some() {
                    return self.begin_survey(counter, nonce, records);
                }
                let committed = newest.is_some() || !refused.is_empty();
                self.feed_job(job::Input::StoreFenced { counter, newest, committed, nonce });
                self.give_up_unrestored(newest);
            }
            Done::FenceFailed(error) => {
                self.notify(&Notice::Store { what: "the list of generations", error: &error.to_string() });
            }
            Done::Decided(decision) => self.decided(&decision),
            Done::Adopted { generation, outcome } => self.metadata_synced(generation, outcome),
            Done::RecordsRepaired(outcome) => self.records_repaired(outcome),
            Done::SeatHeld(seat) => self.feed_nodes(NodesInput::SeatHeld(seat)),
            Done::SeatNotHeld(error) => {
                self.notify(&Notice::Store { what: "the seat of the job", error: &error.to_string() });
                self.stop();
            }
            Done::NotDecided { life, errno, error } => {
                self.notify(&Notice::Store {
                    what: "the decision about a new life",
                    error: &error.to_string(),
                });
                self.feed_job(job::Input::DecisionFailed { life, errno });
            }
            Done::Committed(manifest) => match self.end.over {
                // Between the job's final report and its end.
                Some(mut report) => {
                    self.committed_last(&manifest, &mut report);
                    self.end.over = Some(report);
                }
                None => {
                    self.copy(&manifest);
                    self.committed(&manifest);
                }
            },
            Done::NotCommitted { generation, errno, error } => {
                self.notify(&Notice::Store { what: "the commit record", error: &error.to_string() });
                self.feed_job(job::Input::CommitFailed { generation, errno });
            }
            Done::NotCollected(error) => {
                self.notify(&Notice::Store { what: "removing old generations", error: &error.to_string() });
            }
            Done::Discarded(Err(error)) => {
                self.notify(&Notice::Store {
                    what: "removing what was not finished",
                    error: &error.to_string(),
                });
            }
            Done::Ended(Err(error)) => self.not_ended(&error),
            Done::Collected { life, kept } => self.collected(life, &kept),
            Done::Kept(outcome) => self.settings_kept(outcome),
            Done::Noted | Done::Ended(Ok(())) | Done::Discarded(Ok(_)) | Done::Records(_) => {}
        }
    }

    fn not_ended(&mut self, error: &store::StoreError) {
        self.notify(&Notice::Store { what: "the note that the job has finished", error: &error.to_string() });
    }

    /// The last things: output of ended processes, and half-written files on disk. A commit that was under way when a
    /// job was stopped has its outcome now: it goes into the report.
    pub(super) fn leave(&mut self, report: &mut FinalReport) {
        self.end.is_leaving = true;
        self.feed_nodes(NodesInput::Leaving);
        // First: copies, and the removal of old generations, take their time, in which this host may be lost.
        self.report_end(report.ending);
        self.commit_all();
        // Nodes with directories of their own learn the committed generation.
        if self.nodes.is_none() {
            self.leave_keepers();
        }
        if report.ending == Ending::Finished
            && let Some(life) = self.job.status().life
        {
            self.store.ask(Task::End(life));
        }
        self.store.ask(Task::Discard);
        self.finish_store(report);
        if self.nodes.is_some() {
            self.store.ask(Task::Records);
            if let Some(Done::Records(Ok(records))) = self.store.wait() {
                self.settle_nodes(&records);
            }
            // Their keepers may have parts of a copy to write.
            self.finish_copies(report);
            self.leave_keepers();
        } else {
            self.finish_copies(report);
        }
    }

    fn finish_store(&mut self, report: &mut FinalReport) {
        let mut collecting = false;
        let mut discarded = false;
        while let Some(done) = self.store.wait() {
            match done {
                Done::Committed(manifest) => {
                    collecting = true;
                    self.committed_last(&manifest, report);
                }
                Done::NotCommitted { error, .. } => {
                    self.notify(&Notice::Store { what: "the commit record", error: &error.to_string() });
                }
                Done::Collected { life, kept } => {
                    collecting = false;
                    self.collected(life, &kept);
                }
                Done::NotCollected(error) => {
                    collecting = false;
                    self.notify(&Notice::Store {
                        what: "removing old generations",
                        error: &error.to_string(),
                    });
                }
                Done::Discarded(result) => {
                    discarded = true;
                    if let Err(error) = result {
                        self.notify(&Notice::Store {
                            what: "removing what was not finished",
                            error: &error.to_string(),
                        });
                    }
                }
                Done::Kept(outcome) => self.settings_kept(outcome),
                // Nothing is decided any more.
                Done::Fenced { .. }
                | Done::FenceFailed(_)
                | Done::Decided(_)
                | Done::Adopted { .. }
                | Done::RecordsRepaired(_)
                | Done::SeatHeld(_)
                | Done::SeatNotHeld(_)
                | Done::NotDecided { .. } => {}
                Done::Ended(Err(error)) => self.not_ended(&error),
                Done::Noted | Done::Ended(Ok(())) | Done::Records(_) => {}
            }
            if discarded && !collecting {
                return;
            }
        }
    }

    /// A commit that was under way when the job's final report was made: the report names it now.
    fn committed_last(&mut self, manifest: &store::Manifest, report: &mut FinalReport) {
        let generation = manifest.generation;
        report.committed = Some(generation);
        report.commits += 1;
        self.copy(manifest);
        self.collect(generation.life);
    }

    /// Waits until the keepers have handed over the last output, have cleaned up, and are gone.
    fn leave_keepers(&mut self) {
        self.keepers.send_to_all(&ToKeeper::Leave);
        let until = Instant::now() + KEEPER_END_MAX;
        let mut events = vec![EpollEvent::empty(); EVENTS_PER_ROUND];
        while self.keepers.any_runs() {
            let left = until.saturating_duration_since(Instant::now());
            // Fails only for a descriptor that is being closed.
            let _ = self.keepers.watch_links(&self.events);
            let count = self.events.wait(&mut events, epoll_timeout(Some(left))).unwrap_or(0);
            for event in &events[..count] {
                if matches!(self.events.source(event.data()), Some(Source::Keeper(_))) {
                    self.on_event(event.data(), event.events());
                } else if left.is_zero() {
                    break;
                }
            }
            if left.is_zero() {
                // Stopped, or it hangs: its guard cleans up.
                return self.keepers.kill();
            }
        }
    }
}
