//! Ranks that do not come up: why, as far as it can be seen from outside.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckpt_glue::keeper::RankPhase;
use nix::unistd::Pid;
use transport::Rank;

use super::super::Saves;
use super::super::wire::FromKeeper;
use super::Shell;

/// Time between two looks at ranks that do not come up.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The last report about ranks that do not come up, and when the next look is due.
#[derive(Debug, Default)]
pub(super) struct Silence {
    due: Option<Instant>,
    reported: Option<String>,
}

impl Silence {
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Shell {
    /// Looks from time to time why ranks do not come up, while some have not, and reports a new reason.
    pub(super) fn look_at_silent(&mut self) {
        let is_starting = self.keeper.ranks().any(|(_, phase, _)| phase == RankPhase::Spawning);
        if !is_starting {
            self.silence = Silence::default();
            return;
        }
        let now = Instant::now();
        if *self.silence.due.get_or_insert(now + LOOK_EVERY) > now {
            return;
        }
        self.silence.due = Some(now + LOOK_EVERY);
        let why = self.why_silent();
        if why != self.silence.reported {
            self.silence.reported.clone_from(&why);
            self.send_to_launcher(&FromKeeper::Silent { why });
        }
    }

    /// Why a rank that is to be saved as a whole process has not come up.
    fn why_silent(&self) -> Option<String> {
        let library = self.site.provider.as_ref().filter(|_| self.site.saves == Saves::Process)?;
        self.ranks.processes.iter().find_map(|(rank, process)| why(*rank, process.group.pid, library))
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
