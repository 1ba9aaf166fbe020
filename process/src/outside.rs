//! Whether another process could be saved, as far as /proc shows it to us.

use std::fs;
use std::io;

use crate::declared::Declared;
use crate::files;
use crate::pages::Plan;
use crate::preflight;
use crate::smaps::Smaps;

/// `declared`, with the memory and descriptors of the process's own tracker.
fn with_trackers(pid: u32, declared: &Declared) -> io::Result<Declared> {
    let mut declared = declared.clone();
    let trackers = files::trackers_of(pid)?;
    if !trackers.is_empty() {
        // Only the tracker knows which memory it watches; memory that another one watches has a descriptor of
        // its own.
        declared.tracked_memory.push(0..u64::MAX);
    }
    declared
        .remade
        .extend(trackers.into_iter().map(|number| ("the tracker of written pages".to_owned(), number)));
    Ok(declared)
}

/// Why the process `pid` could not be saved, a sentence each; none: no obstacle was found. Only the process itself can
/// find all: messages that wait in its sockets, its timers. `declared` are descriptors and addresses of that process.
/// An error: it is gone, or may not be inspected.
pub fn refusals_of(pid: u32, declared: &Declared) -> io::Result<Vec<String>> {
    let folder = format!("/proc/{pid}");
    let maps = fs::read(format!("{folder}/maps"))?;
    let smaps = fs::read(format!("{folder}/smaps"))?;
    let declared = &with_trackers(pid, declared)?;
    let plan = Plan { memory_devices: Vec::new(), ..preflight::plan(declared) };
    let mut found: Vec<String> = files::refusals_of(pid, declared)?.iter().map(ToString::to_string).collect();
    let mut refusals = preflight::memory_refusals(&maps, &Smaps::parse(&smaps), &plan);
    refusals.extend(preflight::children_of(pid));
    found.extend(refusals.iter().map(ToString::to_string));
    let executable = fs::read_link(format!("{folder}/exe")).unwrap_or_default();
    if executable.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
        found.push(format!(
            "its executable, {}: a restored process is started from it; keep the file",
            executable.display()
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_is_not_named_and_another_watcher_is() {
        let Ok(_tracker) = crate::track::Tracker::open() else { return };
        // SAFETY: a new descriptor, of this test's own; it hands out faults.
        let other = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
        let mut api = [0xaau64, 0, 0];
        // SAFETY: `UFFDIO_API` reads and writes three words of this frame.
        assert_eq!(unsafe { libc::ioctl(other as i32, 0xc018_aa3f, api.as_mut_ptr()) }, 0);
        let reported = refusals_of(std::process::id(), &Declared::new()).unwrap();
        // SAFETY: made above.
        unsafe { libc::close(other as i32) };
        let named: Vec<&String> =
            reported.iter().filter(|sentence| sentence.contains("userfaultfd")).collect();
        assert_eq!(named.len(), 1, "{named:?}");
        assert!(named[0].starts_with(&format!("descriptor {other} (")), "{named:?}");
    }

    #[test]
    fn children_and_processes_that_are_gone_are_reported() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let reported = refusals_of(std::process::id(), &Declared::new()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = format!("the child process {} (", child.id());
        assert!(reported.iter().any(|sentence| sentence.starts_with(&expected)), "{reported:?}");
        assert!(refusals_of(u32::MAX, &Declared::new()).is_err());
    }
}
