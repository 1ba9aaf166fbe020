//! Requests of people's commands to a running job.

use std::os::fd::AsFd as _;
use std::time::Instant;

use ckpt_glue::control::Source as Asker;
use ckpt_glue::interval::Tuning;
use ckpt_glue::job::{self, Event, Monitor};
use ckpt_glue::keeper::RankPhase;
use ckpt_glue::protocols::CheckpointEvent;
use nix::sys::epoll::EpollFlags;
use transport::{Epoch, Rank};

use super::super::requests::{Answer, Answered};
use super::super::status::{Checkpoints, FalseAlarms, RankStatus, Saved, Status, SuspectedNode, state};
use super::{Shell, Source};

impl Shell<'_> {
    pub(super) fn on_request(&mut self, token: u64, client: u64) {
        if client == 0 {
            while let Some((number, stream)) = self.requests.accept() {
                // One that cannot be watched is closed with its client.
                let _ = self.events.watch(stream.as_fd(), Source::Requests(number));
            }
            return;
        }
        // Handle pending events first: a checkpoint that began before this request does not answer it.
        self.pump();
        match self.requests.read(client, self.is_never_saved()) {
            Answered::Wait => {}
            Answered::Status => self.requests.report(client, self.status()),
            Answered::Checkpoint => self.feed_job(job::Input::Request(Asker::Command)),
            Answered::Rail { rank, nic } => self.request_rail(client, rank.map(Rank), &nic),
            Answered::Tune(tuning, on) => {
                let answer = self.tune(tuning, &on);
                self.requests.answer_one(client, &answer);
            }
            Answered::Suspect { node } => {
                let answer = match self.suspect(&node) {
                    Ok(node) => Answer::Suspected {
                        node: node.0,
                        host: self.keepers.name(node),
                        reaction: self.job.policy().on.permanent.clone(),
                    },
                    Err(reason) => Answer::Failed { reason },
                };
                self.requests.answer_one(client, &answer);
            }
            Answered::Diagnose => self.feed_job(job::Input::Diagnose),
            Answered::Stop => self.interrupt(),
            Answered::Gone => {
                self.events.forget(token);
            }
        }
        if let Some((stream, waits)) = self.requests.stream(client) {
            let mut flags = EpollFlags::EPOLLIN;
            flags.set(EpollFlags::EPOLLOUT, waits);
            self.events.await_flags(stream.as_fd(), token, flags);
        }
    }

    /// Keeps the images and the time of a committed checkpoint for later requests.
    pub(super) fn note_saved(&mut self, event: &Event) {
        if let Event::Checkpoint(CheckpointEvent::Committed { images, .. }) = event {
            self.saved = Some(Saved { at: Instant::now(), images: images.clone() });
        }
    }

    /// Changes the settings of the job that runs, and of its later restarts: all, or none.
    fn tune(&mut self, tuning: Tuning, on: &[String]) -> Answer {
        let mut policy = self.job.policy().clone();
        for change in on {
            if let Err(error) = policy.change(change) {
                return Answer::Failed { reason: error.to_string() };
            }
        }
        if tuning != Tuning::default() {
            self.feed_job(job::Input::Tune(tuning));
        }
        if policy != *self.job.policy() {
            self.feed_job(job::Input::SetPolicy(policy.clone()));
        }
        self.keep_tuning(&tuning, &policy);
        Answer::Tuned { checkpoints: self.checkpoints(), recovery: policy }
    }

    /// When checkpoints are taken.
    fn checkpoints(&self) -> Checkpoints {
        let chosen = self.job.chosen_interval();
        chosen.map_or_else(|| Checkpoints::asked(self.job.every()), Checkpoints::chosen)
    }

    fn status(&self) -> Status {
        let simply_runs = self.simply_runs();
        let rank = |(rank, (phase, epoch)): (&Rank, &(RankPhase, Epoch))| {
            let image = self.saved.as_ref().and_then(|saved| {
                let found = saved.images.binary_search_by_key(rank, |image| image.rank);
                found.ok().and_then(|at| saved.images.get(at))
            });
            let keeper = self.keepers.get(self.node_of(*rank));
            RankStatus {
                rank: rank.0,
                pid: self.processes.get(rank).and_then(|process| u32::try_from(process.pid).ok()),
                host: keeper.map(|keeper| keeper.host.clone()).unwrap_or_default(),
                state: match phase {
                    RankPhase::Spawning | RankPhase::Attached if simply_runs => "running".to_owned(),
                    phase => state(*phase).to_owned(),
                },
                nic: self.processes.get(rank).and_then(|process| process.nic.clone()),
                epoch: epoch.0,
                pause_ns: image.map(|image| image.statistics.pause_ns()),
                image_bytes: image.map(|image| image.bytes),
            }
        };
        let mut status =
            Status::of(&self.job.status(), self.saved.as_ref(), self.ranks.iter().map(rank).collect());
        if simply_runs {
            "running".clone_into(&mut status.phase);
            status.running = u32::try_from(self.processes.len()).unwrap_or(u32::MAX);
        }
        status.checkpoints = self.checkpoints();
        status.recovery = self.job.policy().clone();
        status.failing = self.unsaved.failing();
        let now = self.now();
        let suspected = self.job.suspects().map(|(node, by, since)| SuspectedNode {
            host: self.keepers.name(node),
            by: by.into_iter().map(|by| by.name().to_owned()).collect(),
            ms_ago: u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX),
        });
        status.suspected = suspected.collect();
        status.false_alarms = FalseAlarms {
            heartbeats: self.job.false_alarms(Monitor::Heartbeats),
            probe: self.job.false_alarms(Monitor::Probe),
            data_path: self.job.false_alarms(Monitor::DataPath),
        };
        status
    }
}
