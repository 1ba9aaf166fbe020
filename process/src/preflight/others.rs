//! Other processes and threads: those that share memory with us, our children, and threads that cannot be stopped.

use std::fs;
use std::path::Path;

use crate::declared::Outside;
use crate::maps;
use crate::pages::Plan;
use crate::refuse::Refusal;
use crate::state::memory::Protection;

/// Name of the child that writes an image; the kernel keeps 15 bytes.
pub(crate) const WRITER: &std::ffi::CStr = c"stillwire-image";

/// Where a process finds those of its own namespace.
const PROC: &str = "/proc";

/// Processes that map memory which we share and one of us may write.
pub(super) fn sharers(maps: &[u8], plan: &Plan, outside: Option<&Outside>) -> Vec<Refusal> {
    let mut shared: Vec<maps::Line<'_>> = maps::lines(maps)
        .flatten()
        .filter(|line| line.is_shared && line.inode != 0 && plan.parts(line).next().is_some())
        .collect();
    shared.dedup_by_key(|line| (line.device, line.inode));
    if shared.is_empty() {
        return Vec::new();
    }
    let own = outside.map_or_else(std::process::id, |outside| outside.own_id);
    let folder = outside.map_or(Path::new(PROC), |outside| &outside.folder);
    let mut refusals = Vec::new();
    for pid in processes(folder).filter(|pid| *pid != own) {
        // Of another user, or gone.
        let Ok(theirs) = fs::read(folder.join(pid.to_string()).join("maps")) else { continue };
        for their in maps::lines(&theirs).flatten().filter(|line| line.is_shared) {
            let is_same = |ours: &&maps::Line<'_>| {
                (ours.device, ours.inode) == (their.device, their.inode)
                    && (ours.protection | their.protection).contains(Protection::WRITE)
            };
            if let Some(ours) = shared.iter().find(is_same)
                && !is_writer(folder, pid, own)
            {
                let name = String::from_utf8_lossy(ours.name).into_owned();
                refusals.push(Refusal::SharedWith { start: ours.start, name, pid });
                break;
            }
        }
    }
    refusals
}

fn processes(folder: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether `pid` is a child of ours that writes an image.
fn is_writer(folder: &Path, pid: u32, own: u32) -> bool {
    parent_and_name(folder, pid)
        .is_some_and(|(parent, name)| parent == own && name.as_bytes() == WRITER.to_bytes())
}

fn parent_and_name(folder: &Path, pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(folder.join(pid.to_string()).join("stat")).ok()?;
    let (before, after) = stat.rsplit_once(") ")?;
    let name = before.split_once('(')?.1;
    Some((after.split(' ').nth(1)?.parse().ok()?, name.to_owned()))
}

/// Child processes, those included that have ended and were not waited for.
pub(super) fn children() -> Vec<Refusal> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the kernel writes the answer; no child is reaped.
    let has_none = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) } != 0;
    if has_none {
        return Vec::new();
    }
    children_of(std::process::id())
}

/// Child processes of a process, but for those that write an image.
pub(crate) fn children_of(parent: u32) -> Vec<Refusal> {
    let child = |pid: u32| {
        let (found, name) = parent_and_name(Path::new(PROC), pid)?;
        let is_one = found == parent && name.as_bytes() != WRITER.to_bytes();
        is_one.then_some(Refusal::Child { pid, name })
    };
    processes(Path::new(PROC)).filter_map(child).collect()
}

/// Threads that cannot be stopped, or not be made anew.
pub(super) fn threads() -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let own = status("/proc/thread-self/status");
    let filters = |status: &str| field(status, "Seccomp_filters").parse::<u32>().unwrap_or(0);
    let own_filters = filters(&own);
    for entry in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let status = status(&format!("/proc/self/task/{tid}/status"));
        let name = field(&status, "Name").to_owned();
        let mut refuse = |why| refusals.push(Refusal::Thread { tid, name: name.clone(), why });
        if field(&status, "State").starts_with('Z') && tid == std::process::id() {
            refuse(
                "the main thread has ended while others go on, and cannot be made anew so; let main wait for them",
            );
        }
        if !matches!(field(&status, "TracerPid"), "" | "0") {
            refuse("a debugger or tracer is attached; detach it before a checkpoint");
        }
        match field(&status, "Seccomp") {
            "1" => refuse("strict seccomp allows none of the calls that a checkpoint needs"),
            "2" if filters(&status) != own_filters => refuse(
                "it has installed a seccomp filter of its own, which cannot be read and put back; install filters before \
                 the process starts (in its launcher)",
            ),
            _ => {}
        }
    }
    refusals
}

fn status(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim);
    status.lines().find_map(value).unwrap_or_default()
}
