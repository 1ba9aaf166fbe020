//! From the notes of the stop to the state that an image holds. Ordinary code, after the release.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::CaptureError;
use super::facts::Facts;
use crate::files::FileId;
use crate::maps::{self, Line};
use crate::pages::{Plan, Run, Saved};
use crate::preflight::{self, Look};
use crate::refuse::Refusal;
pub(super) use crate::smaps::Smaps;
use crate::state::memory::{Advice, Backing, MappedFile, Memory, PageRun, Region, SharedObject};
use crate::state::signals::{Action, IntervalTimer, Signals};
use crate::state::threads::{At, Rseq, Scheduling, Thread};
use crate::state::{ProcessState, Program, Resume};
use crate::stop::{self, Noted, RseqAnswer};
use crate::{build_id, sys};

/// The address space at the cut.
pub(super) struct Regions<'a> {
    /// `/proc/self/maps`.
    pub(super) maps: &'a [u8],
    /// The forked child's; empty if there was none.
    pub(super) in_child: Smaps,
    /// At the look before.
    pub(super) before: &'a Smaps,
    pub(super) plan: &'a Plan,
    pub(super) runs: &'a [Run],
    pub(super) guards: &'a [Run],
    pub(super) known_files: &'a KnownFiles,
}

/// Programs and libraries that were inspected before the stop, by path and inode.
pub(super) type KnownFiles = HashMap<(Vec<u8>, u64), MappedFile>;

/// Inspects mapped programs and libraries. Of other files, length and time may change until the stop.
pub(super) fn known_files(maps: &[u8], plan: &Plan) -> KnownFiles {
    let mut known = KnownFiles::new();
    for line in maps::lines(maps).flatten() {
        let is_file = line.inode != 0 && !line.is_shared && plan.saved(&line) == Saved::Changed;
        if is_file && !known.contains_key(&(line.path(), line.inode)) {
            let file = mapped_file(&line, false);
            if file.build_id.is_some() {
                known.insert((line.path(), line.inode), file);
            }
        }
    }
    known
}

/// A fork gives a child no locks, and none of these.
const LOST_IN_FORK: Advice = Advice::LOCKED.union(Advice::DONT_FORK).union(Advice::WIPE_ON_FORK);

impl Regions<'_> {
    /// Of a part of a region. It may have begun elsewhere at the look before: the kernel joins neighbouring
    /// mappings that have the same flags.
    fn advice(&self, part: &Range<u64>) -> Advice {
        let before = self.before.within(part).map_or(Advice::empty(), |entry| entry.advice);
        match self.in_child.within(part) {
            Some(entry) => (entry.advice - LOST_IN_FORK) | (before & LOST_IN_FORK),
            None => before,
        }
    }
}

/// Puts the state together.
pub(super) fn state(
    regions: &Regions<'_>,
    facts: &Facts,
    threads: &[(u32, Noted)],
    agent: &At,
    look: &Look,
) -> Result<ProcessState, CaptureError> {
    // Memory mapped between the look and the stop may be of a kind that cannot be saved.
    let mut refusals = preflight::memory_refusals(regions.maps, &regions.in_child, regions.plan);
    let wiped = |entry: &&crate::smaps::Entry| entry.advice.contains(Advice::WIPE_ON_FORK);
    if let Some(entry) = regions.in_child.0.iter().find(wiped) {
        refusals.push(Refusal::Mapping {
            start: entry.range.start,
            end: entry.range.end,
            name: String::new(),
            why: "it was marked MADV_WIPEONFORK just before the fork; try again",
        });
    }
    let threads = self::threads(threads, agent, &mut refusals);
    if !refusals.is_empty() {
        return Err(CaptureError::Refused(refusals));
    }
    let parts =
        facts.parts().map_err(|errno| CaptureError::Call { call: "reading /proc/self/stat", errno })?;
    let mut memory = Memory {
        parts,
        auxiliary: look.auxiliary.clone(),
        regions: Vec::new(),
        files: Vec::new(),
        shared: Vec::new(),
        runs: page_runs(regions.runs),
        guards: page_runs(regions.guards),
    };
    backings(regions, &mut memory);
    Ok(ProcessState {
        machine: look.machine.clone(),
        program: Program {
            pid: sys::process_id(),
            executable: look.executable.clone(),
            directory: facts.directory().to_vec(),
            personality: facts.personality,
            umask: facts.umask,
            limits: facts.limits.to_vec(),
            dumpable: facts.dumpable,
            huge_pages_disabled: facts.huge_pages_disabled,
            is_subreaper: facts.is_subreaper,
            barriers: facts.barriers,
        },
        memory,
        threads,
        signals: Signals {
            actions: facts
                .actions
                .iter()
                .map(|action| Action {
                    handler: action.handler as u64,
                    flags: action.flags,
                    restorer: action.restorer as u64,
                    mask: action.mask,
                })
                .collect(),
            pending: Vec::new(),
            interval_timers: [IntervalTimer::default(); 3],
            timers: Vec::new(),
        },
        resume: Resume { entry: super::resume_entry() },
    })
}

/// The files behind the shared objects of a state, in their order.
pub(super) fn objects(regions: &Regions<'_>) -> Vec<FileId> {
    preflight::shared_files(regions.maps, regions.plan)
}

pub(super) fn page_runs(runs: &[Run]) -> Vec<PageRun> {
    let mut merged: Vec<PageRun> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.address + last.pages * crate::arch::PAGE_BYTES == run.address => {
                last.pages += run.pages;
            }
            _ => merged.push(PageRun { address: run.address, pages: run.pages }),
        }
    }
    merged
}

fn threads(noted: &[(u32, Noted)], agent: &At, refusals: &mut Vec<Refusal>) -> Vec<Thread> {
    let pid = sys::process_id();
    let agent_tid = sys::thread_id();
    let mut threads = Vec::with_capacity(noted.len());
    let agents = noted.iter().find(|(tid, _)| *tid == agent_tid).map_or(Noted::NOTHING, |(_, noted)| *noted);
    for (tid, noted) in noted {
        let name =
            String::from_utf8_lossy(noted.name.split(|byte| *byte == 0).next().unwrap_or(&[])).into_owned();
        let rseq = match noted.rseq {
            RseqAnswer::Nothing => None,
            RseqAnswer::Library { address, bytes } => {
                Some(Rseq { address, bytes, signature: stop::RSEQ_SIGNATURE })
            }
            RseqAnswer::Foreign => {
                refusals.push(Refusal::Thread {
                    tid: *tid,
                    name,
                    why: "it has registered rseq at a place that the C library does not know (an allocator, such as tcmalloc?); \
                          let the C library do it",
                });
                None
            }
        };
        let is_agent = *tid == agent_tid;
        threads.push(Thread {
            tid: *tid,
            at: if is_agent { agent.clone() } else { At::Handler { frame: noted.frame } },
            tls_base: noted.tls_base,
            gs_base: noted.gs_base,
            tid_address: noted.tid_address,
            robust_list: noted.robust_list,
            rseq,
            name: noted.name,
            parent_death_signal: noted.parent_death_signal,
            timer_slack_ns: noted.timer_slack_ns,
            processors: (noted.processors != agents.processors).then(|| noted.processors.to_vec()),
            scheduling: (noted.scheduling != agents.scheduling).then_some(Scheduling(noted.scheduling)),
        });
    }
    threads.sort_by_key(|thread| (thread.tid != pid, thread.tid));
    threads
}

/// Fills in regions, and the files and objects behind them.
fn backings(regions: &Regions<'_>, memory: &mut Memory) {
    let mut files: HashMap<(Vec<u8>, bool), u32> = HashMap::new();
    let mut objects: HashMap<((u32, u32), u64), u32> = HashMap::new();
    let is_ours = |line: &Line<'_>| !line.is_everywhere() && regions.plan.parts(line).next().is_some();
    for line in maps::lines(regions.maps).flatten().filter(is_ours) {
        let mut backing = if line.is_vdso() {
            Backing::Vdso
        } else if line.is_vvar() {
            Backing::Vvar
        } else if line.is_anonymous() {
            Backing::Anonymous
        } else if regions.plan.is_memory(&line) {
            let object = *objects.entry((line.device, line.inode)).or_insert_with(|| {
                memory.shared.push(SharedObject { bytes: 0, name: line.path() });
                (memory.shared.len() - 1) as u32
            });
            let bytes = &mut memory.shared[object as usize].bytes;
            *bytes = (*bytes).max(line.offset + line.bytes());
            Backing::Shared { object, offset: line.offset }
        } else {
            let is_held = regions.plan.saved(&line) == Saved::Whole;
            let file = *files.entry((line.path(), is_held)).or_insert_with(|| {
                let known = regions.known_files.get(&(line.path(), line.inode)).filter(|_| !is_held);
                memory.files.push(known.cloned().unwrap_or_else(|| mapped_file(&line, is_held)));
                (memory.files.len() - 1) as u32
            });
            Backing::File { file, offset: line.offset, is_shared: line.is_shared }
        };
        for part in regions.plan.parts(&line) {
            match &mut backing {
                Backing::File { offset, .. } | Backing::Shared { offset, .. } => {
                    *offset = line.offset + (part.start - line.start);
                }
                Backing::Anonymous | Backing::Vdso | Backing::Vvar => {}
            }
            memory.regions.push(Region {
                start: part.start,
                end: part.end,
                protection: line.protection,
                backing,
                advice: regions.advice(&(part.start..part.end)),
            });
        }
    }
}

fn mapped_file(line: &Line<'_>, is_held: bool) -> MappedFile {
    let path = line.path();
    let mut mapped = MappedFile { path, bytes: 0, modified_ns: 0, build_id: None, is_held };
    if is_held {
        return mapped;
    }
    let name = Path::new(std::ffi::OsStr::from_bytes(&mapped.path));
    if let Ok(meta) = std::fs::metadata(name).map(|meta| (meta.ino(), meta))
        && meta.0 == line.inode
    {
        mapped.bytes = meta.1.len();
        mapped.modified_ns = meta.1.mtime().saturating_mul(1_000_000_000).saturating_add(meta.1.mtime_nsec());
        mapped.build_id =
            File::open(name).ok().filter(|_| meta.1.is_file()).and_then(|file| build_id::of(&file));
    }
    mapped
}
