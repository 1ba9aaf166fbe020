//! Files that MPI libraries make in memory and remove when their ranks end by themselves: noted while the ranks run, removed when they were killed.
//! Also looks at the mappings of processes: the provider is there, and no memory through which messages would go past it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ckpt_glue::pmi::Member;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use transport::Life;

use super::super::Saves;
use super::super::wire::FromKeeper;
use super::Shell;
use crate::mpi::mappings;

#[derive(Debug, Default)]
pub(super) struct Files {
    paths: BTreeSet<PathBuf>,
    /// Worlds whose processes have all been looked at.
    looked: BTreeSet<u32>,
    /// The life whose processes have been looked at before they were killed.
    noted: Option<Life>,
}

impl Shell {
    /// A process may be about to wait at a barrier, and may have made its files: it is looked at alone, until the first look at all of its world.
    pub(super) fn note_files_of(&mut self, member: Member) {
        if self.files.looked.contains(&member.world) {
            return;
        }
        let process = match member.job_rank() {
            Some(rank) => self.ranks.processes.get(&rank).map(|process| process.group.pid),
            None => self.spawned.group(member).map(|group| group.pid),
        };
        self.files.paths.extend(process.map(mappings::files_of_process).into_iter().flatten());
    }

    /// Processes of a world begin: MPICH's files in memory are known by its name.
    pub(super) fn name_world(&mut self, name: &str) {
        self.guard.add_world(name);
        self.files.paths.extend(mappings::files_of_world(name));
    }

    /// Before ranks are killed: as [`Shell::note_files`], once. They stand still from then on, so that none makes a file after the look.
    pub(super) fn note_last_files(&mut self) {
        let life = self.keeper_life();
        if !self.pmi.is_used || (life.is_some() && core::mem::replace(&mut self.files.noted, life) == life) {
            return;
        }
        for (_, group) in self.members() {
            // One that is not there any more makes no file either.
            let _ = killpg(group, Signal::SIGSTOP);
        }
        self.note_files();
    }

    fn keeper_life(&self) -> Option<Life> {
        self.ranks.processes.values().next().map(|process| process.life)
    }

    /// Notes which files in memory the ranks have: a killed rank cannot remove them, and a dead one cannot be asked any more. Libraries make
    /// theirs between the barriers of MPI_Init.
    pub(super) fn note_files(&mut self) {
        let Some(provider) = &self.site.provider else { return };
        if !self.pmi.is_used {
            return;
        }
        let files = mappings::look(&self.members(), provider).files;
        self.files.paths.extend(files);
    }

    /// Messages of an MPI library go over the provider, and not past it.
    pub(super) fn look_at(&mut self, number: u64, worlds: Vec<u32>, wanted: &[Member]) {
        self.files.looked.extend(worlds);
        let Some(provider) = &self.site.provider else { return };
        let mut members = self.members();
        members.retain(|(member, _)| wanted.contains(member));
        let mut findings = mappings::look(&members, provider);
        self.files.paths.append(&mut findings.files);
        let elsewhere =
            if self.site.saves == Saves::Process { self.elsewhere(findings.libraries) } else { Vec::new() };
        let mappings::Findings { without_provider, shared, .. } = findings;
        self.send_to_launcher(&FromKeeper::Found { number, without_provider, elsewhere, shared });
    }

    /// Ranks that an MPI library serves which has not opened the provider. Those that are saved as whole processes have its file loaded with any
    /// network.
    fn elsewhere(&self, libraries: BTreeMap<Member, PathBuf>) -> Vec<(Member, String)> {
        let has_network = |member: Member| {
            let process = member.job_rank().and_then(|rank| self.ranks.processes.get(&rank));
            // Spawned processes have no agent that could report their network, so they count as having one.
            process.is_none_or(|process| process.has_network)
        };
        let others = libraries.into_iter().filter(|(member, _)| !has_network(*member));
        others.map(|(member, library)| (member, library.to_string_lossy().into_owned())).collect()
    }

    /// A new life begins: its processes have not been looked at.
    pub(super) fn forget_looks(&mut self) {
        self.files.looked.clear();
        self.files.noted = None;
    }

    /// The processes of ranks, and those that were spawned.
    fn members(&self) -> Vec<(Member, Pid)> {
        let ranks =
            self.ranks.processes.iter().map(|(rank, process)| (Member::of_job(*rank), process.group.pid));
        ranks.chain(self.spawned.iter().map(|(member, group)| (member, group.pid))).collect()
    }

    /// Removes the files that killed ranks have left in memory.
    pub(super) fn remove_files(&mut self) {
        mappings::remove(core::mem::take(&mut self.files.paths));
    }
}
