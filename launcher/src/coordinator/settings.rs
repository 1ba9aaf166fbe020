//! The job's file has the options with which a restart continues by default: those of the job's last run.

use ckpt_glue::JobConfig;
use ckpt_glue::interval::Tuning;
use ckpt_glue::recovery::Policy;
use store::{JobFile, StoreError};

use super::super::nodes::wire::NodeTask;
use super::super::notice::Notice;
use super::super::setting;
use super::super::storage::Task;
use super::super::wire::ToKeeper;
use super::Shell;

impl Shell<'_> {
    /// All ranks run with the given options: these become the job's defaults.
    pub(super) fn keep_settings(&mut self) {
        self.write_hosts();
        if let Some(file) = &self.job_file {
            self.store.ask(Task::Keep(Box::new(file.clone())));
        }
    }

    /// The job's own directory has it: nodes' copies follow. Nothing depends on them, and a node that has no room for one keeps its old one.
    pub(super) fn settings_kept(&mut self, outcome: Result<Box<JobFile>, StoreError>) {
        let file = match outcome {
            Ok(file) => file,
            Err(error) => {
                let what = "what the job runs with now, for the next restart";
                self.end_unknown_hosts(&error.to_string());
                return self.notify(&Notice::Store { what, error: &error.to_string() });
            }
        };
        let nodes = self.nodes.as_ref().map(|_| self.keepers.nodes()).unwrap_or_default();
        for node in nodes {
            let task = NodeTask::Keep { job_file: file.emit() };
            self.keepers.send(node, &ToKeeper::Node { number: 0, task });
        }
    }

    /// A person has changed when checkpoints are taken, or the reactions to faults. What a restart was given besides becomes the job's when all ranks run, and this with it.
    pub(super) fn keep_tuning(&mut self, tuning: &Tuning, policy: &Policy) {
        let Some(file) = &mut self.job_file else { return };
        let Some(text) = file.settings.get_mut(setting::CONFIG) else { return };
        let Ok(mut config) = JobConfig::parse(text.as_bytes()) else { return };
        tuning.apply(&mut config.checkpoint);
        config.fault.policy = policy.clone();
        let every = config.checkpoint.every.fixed();
        file.checkpoint.every_ms = every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX));
        *text = config.emit();
        if self.end.has_run {
            self.store.ask(Task::Keep(Box::new(file.clone())));
        }
    }

    /// All ranks have gone over to another NIC.
    pub(super) fn keep_nic(&mut self, nic: &str) {
        if let Some(file) = &mut self.job_file {
            file.settings.insert(setting::RAIL.to_owned(), nic.to_owned());
        }
        self.keep_settings();
    }
}
