//! Which host this is, and which processes live on it.
//!
//! A process of a pid namespace of its own ([`is_apart`]) has ids that mean nothing to others. It is known by the id that it has outside.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;

use nix::unistd::geteuid;
use xxhash_rust::xxh3::xxh3_64;

/// The properties that two processes must share to use a segment: the running kernel, the names of processes, and the
/// user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Host(pub(super) u64);

/// Name of the first process of a pid namespace that a launcher has made for one other process. It has stayed
/// outside with its files: the entries that it finds at /proc have the ids that processes have outside. The
/// kernel keeps 15 bytes.
pub const FIRST_PROCESS: &str = "stillwire-first";

/// That place, as seen from inside.
const OUTSIDE: &str = "/proc/1/root/proc";

/// Whether this process is in such a namespace.
#[must_use]
pub fn is_apart() -> bool {
    fs::read("/proc/1/comm").is_ok_and(|name| name.trim_ascii_end() == FIRST_PROCESS.as_bytes())
}

/// Where processes of this host are found by the ids that others know them by, too.
#[must_use]
pub fn processes() -> &'static str {
    if is_apart() { OUTSIDE } else { "/proc" }
}

/// This process's id there.
pub fn own_id() -> std::io::Result<u32> {
    if !is_apart() {
        return Ok(std::process::id());
    }
    let name = fs::read_link(format!("{OUTSIDE}/self"))?;
    let id = core::str::from_utf8(name.as_os_str().as_bytes()).ok().and_then(|text| text.parse().ok());
    id.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

impl Host {
    pub(super) fn this() -> std::io::Result<Host> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // No process inside can be asked for the outer namespace, but its /proc is of one device.
        let processes =
            if is_apart() { fs::metadata(OUTSIDE)?.dev() } else { fs::metadata("/proc/self/ns/pid")?.ino() };
        let users = fs::metadata("/proc/self/ns/user")?.ino();
        let user = geteuid().as_raw();
        Ok(Host(xxh3_64(format!("{}/{processes}/{users}/{user}", boot.trim()).as_bytes())))
    }
}

/// A process by its id and its start: an id alone may be given to another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Clock ticks from boot to its start, the low half: it distinguishes processes that started within 497 days.
    pub(super) start: u32,
}

impl Process {
    pub(super) fn this() -> std::io::Result<Process> {
        let pid = own_id()?;
        let (_, start) = state_and_start(pid).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(Process { pid, start })
    }

    /// In 64 bits, never 0.
    pub(super) fn short(self) -> u64 {
        u64::from(self.pid) << 32 | u64::from(self.start)
    }
}

/// Whether the process that [`Process::short`] was made of still runs.
pub(super) fn is_alive(short: u64) -> bool {
    u32::try_from(short >> 32)
        .ok()
        .and_then(state_and_start)
        .is_some_and(|(state, start)| !matches!(state, 'Z' | 'X') && u64::from(start) == short & 0xffff_ffff)
}

/// Fields 3 and 22 of `/proc/PID/stat` (proc_pid_stat(5)); the name in field 2 may hold anything, even parentheses.
fn state_and_start(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read(format!("{}/{pid}/stat", processes())).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = core::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start: u64 = fields.nth(18)?.parse().ok()?;
    Some((state, u32::try_from(start & 0xffff_ffff).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_start_does_not() {
        let this = Process::this().expect("it runs");
        assert!(is_alive(this.short()));
        assert!(!is_alive(Process { start: this.start + 1, ..this }.short()));
        assert!(!is_alive(0));
    }

    #[test]
    fn a_killed_process_is_not_alive_even_before_somebody_has_waited_for_it() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let (_, start) = state_and_start(child.id()).expect("it runs");
        let process = Process { pid: child.id(), start };
        assert!(is_alive(process.short()));
        child.kill().expect("a child of ours");
        while is_alive(process.short()) {
            std::thread::yield_now();
        }
        child.wait().expect("a child of ours");
        assert!(!is_alive(process.short()));
    }
}
