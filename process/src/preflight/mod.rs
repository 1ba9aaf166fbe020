//! The look before the stop: state that cannot be saved, and the amount to save. Ordinary code, while the
//! program runs.

mod memory;
mod others;

use std::fs;
use std::ops::Range;

use crate::arch::{self, PAGE_BYTES};
use crate::capture::CaptureError;
use crate::declared::Declared;
use crate::files::FileId;
use crate::pages::Plan;
use crate::refuse::Refusal;
use crate::smaps::Smaps;
use crate::state::machine::Machine;
use crate::stop::StopFault;
use crate::sys::Errno;

pub(crate) use memory::{refusals as memory_refusals, shared_files};
pub(crate) use others::{WRITER, children_of};

/// A fork's treatment of a region, and the region's behaviour while the image is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ForkAdvice {
    /// As the program wants it.
    pub(crate) keep: i32,
    /// As the image needs it.
    pub(crate) give: i32,
}

/// The findings.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) plan: Plan,
    pub(crate) maps_bytes: u64,
    pub(crate) smaps_bytes: u64,
    pub(crate) pages: u64,
    pub(crate) shared_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) smaps: Smaps,
    pub(crate) kept: Vec<(Range<u64>, ForkAdvice)>,
    pub(crate) executable: Vec<u8>,
    pub(crate) auxiliary: Vec<u64>,
    pub(crate) machine: Machine,
    shared_files: Vec<FileId>,
}

impl Look {
    /// Files behind shared memory that the image holds.
    pub(crate) fn shared_files(&self) -> Vec<FileId> {
        self.shared_files.clone()
    }
}

/// Everything of this process that cannot be saved; empty: a capture may be tried. Descriptors are looked at elsewhere.
#[must_use]
pub fn refusals(declared: &Declared) -> Vec<Refusal> {
    match look(declared) {
        Err(CaptureError::Refused(refusals)) => refusals,
        _ => Vec::new(),
    }
}

pub(crate) fn look(declared: &Declared) -> Result<Look, CaptureError> {
    let read = |path: &'static str| {
        fs::read(path).map_err(|error| CaptureError::Call {
            call: path,
            errno: Errno(error.raw_os_error().unwrap_or(libc::EIO)),
        })
    };
    let maps = read("/proc/self/maps")?;
    let text = read("/proc/self/smaps")?;
    let smaps = Smaps::parse(&text);
    let plan = plan(declared);
    let mut refusals = memory::refusals(&maps, &smaps, &plan);
    refusals.extend(others::sharers(&maps, &plan, declared.outside.as_ref()));
    refusals.extend(others::children());
    refusals.extend(others::threads());
    refusals.extend(process());
    let executable = fs::read_link("/proc/self/exe").map(|path| path.into_os_string().into_encoded_bytes());
    let executable = executable.unwrap_or_default();
    if executable.is_empty() || executable.ends_with(b" (deleted)") {
        refusals.push(Refusal::Process {
            why: "its executable has been removed or replaced: a restored process is started from it; keep the file",
        });
    }
    if !refusals.is_empty() {
        return Err(CaptureError::Refused(refusals));
    }
    let shared_files = memory::shared_files(&maps, &plan);
    let amounts = memory::amounts(&maps, &smaps, &plan);
    let kept = memory::kept(&smaps, &plan);
    Ok(Look {
        plan,
        maps_bytes: maps.len() as u64,
        smaps_bytes: text.len() as u64,
        pages: amounts.private_bytes / PAGE_BYTES,
        shared_bytes: amounts.shared_bytes,
        threads: fs::read_dir("/proc/self/task").map_or(1, Iterator::count),
        kept,
        smaps,
        executable,
        auxiliary: read("/proc/self/auxv")?
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            .collect(),
        machine: machine(),
        shared_files,
    })
}

/// The decisions that need no look at the process.
pub(crate) fn plan(declared: &Declared) -> Plan {
    let mut ignored = declared.ignored_memory.clone();
    ignored.extend(crate::live::ignored_arena());
    ignored.sort_by_key(|range| range.start);
    Plan { ignored, memory_devices: memory::memory_devices(), tracked: declared.tracked_memory.clone() }
}

/// This machine, as an image names it.
#[must_use]
pub fn machine() -> Machine {
    let (vector_components, vector_bytes) = arch::vector_state();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        architecture: arch::NAME.to_owned(),
        kernel: kernel.trim_end().to_owned(),
        page_bytes: u32::try_from(PAGE_BYTES).unwrap_or(u32::MAX),
        features: arch::features(),
        vector_components,
        vector_bytes,
    }
}

/// The process as a whole.
fn process() -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if arch::has_shadow_stack() {
        refusals.push(Refusal::Process {
            why: "it runs with a shadow stack, which cannot be put back: start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
        });
    }
    // SAFETY: only asks.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) };
    // SAFETY: only asks.
    let is_root = unsafe { libc::geteuid() } == 0;
    if dumpable != 1 && !is_root {
        refusals.push(Refusal::Process {
            why: "it is not dumpable (PR_SET_DUMPABLE, or a program that may only be executed): the kernel hides its \
                  page tables from itself; make the executable readable, and leave the process dumpable",
        });
    }
    refusals
}

/// Known facts about the thread that a stop failed for.
pub(crate) fn describe(fault: StopFault) -> String {
    let tid = match fault {
        StopFault::Late { tid, .. } | StopFault::Signal { tid, .. } => tid,
        StopFault::List { .. } | StopFault::TooMany | StopFault::Lost => return String::new(),
    };
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).unwrap_or_default();
    let status = read("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    format!(
        "it is {:?}, state {}, blocked signals {}, waits in {:?}, system call {}",
        field("Name"),
        field("State"),
        field("SigBlk"),
        read("wchan"),
        read("syscall").split(' ').next().unwrap_or_default().trim_end()
    )
}
