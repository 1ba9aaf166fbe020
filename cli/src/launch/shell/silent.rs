//! Ranks that do not come up: why, as far as it can be seen from outside.

use std::path::{Path, PathBuf};

use ckpt_glue::control::FaultReport;
use ckpt_glue::job::Event;
use nix::unistd::Pid;
use transport::Rank;

use super::super::notice::{MpiNotice, Notice};
use super::super::{Saves, Verdict};
use super::Shell;

impl Shell<'_> {
    /// Says why the job has not come up when that ends it: some ranks have begun an MPI program and others have not, or the program can never be
    /// saved as it is started, and will be no other one the next time.
    pub(super) fn tell_silent(&mut self, event: &Event) {
        if !matches!(event, Event::Reported { report: FaultReport::StartTimedOut { .. }, .. }) {
            return;
        }
        let timeout = self.plan.config.fault.start_timeout;
        if let Some(ranks) = self.mpi.as_ref().and_then(|mpi| mpi.server().silent()) {
            let words = format!("{ranks} did not call MPI_Init within {timeout:?} (--start-timeout)");
            self.tell(&Notice::Mpi(MpiNotice::BrokenOff { words: &words }));
            self.verdict.get_or_insert(Verdict { words, exit_code: None });
        } else if self.job.status().committed.is_none()
            && let Some(why) = self.why_silent()
        {
            let words = format!("not all ranks came up within {timeout:?} (--start-timeout): {why}");
            self.verdict.get_or_insert(Verdict { words, exit_code: None });
            self.stop();
        }
    }

    /// Why a rank that is to be saved as a whole process has not come up.
    pub(super) fn why_silent(&self) -> Option<String> {
        let library = self.plan.provider.as_ref().filter(|_| self.plan.saves == Saves::Process)?;
        self.processes.iter().find_map(|(rank, process)| why(*rank, process.group.pid, library))
    }
}

fn why(rank: Rank, pid: Pid, library: &Path) -> Option<String> {
    let executable = executable(pid)?;
    let name = executable.file_name()?.to_string_lossy();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    if !maps.lines().any(|line| line.ends_with(&*library.to_string_lossy())) {
        return Some(format!(
            "rank {rank} ({name}, process {pid}) has not loaded {}, which saves it: a program that is linked statically, or has more \
             privileges than its user, takes no library (LD_PRELOAD) and cannot be saved",
            library.display()
        ));
    }
    if !agent::is_shell(&executable) {
        return None;
    }
    let child = child_of(pid)?;
    let started = self::executable(child)?;
    let started = started.file_name()?.to_string_lossy();
    Some(format!(
        "rank {rank} is a shell ({name}, process {pid}) that waits for {started} (process {child}), and only the process that the launcher \
         has started can be saved: let the script start its last program in its own place (`exec {started} ...`), or give that program to \
         `stillwire run` without the script"
    ))
}

fn executable(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// A process that this one has started, and that runs.
fn child_of(parent: Pid) -> Option<Pid> {
    let all = std::fs::read_dir("/proc").ok()?;
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw).find(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in brackets, may have blanks and brackets of its own: state and parent follow the last one.
        let fields = text.rsplit_once(") ").map(|(_, fields)| fields).unwrap_or_default();
        let mut fields = fields.split(' ');
        fields.next() != Some("Z")
            && fields.next().and_then(|field| field.parse().ok()) == Some(parent.as_raw())
    })
}
