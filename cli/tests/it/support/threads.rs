//! A thread of another process that stands still, while all others go on: as one does that waits for a disk or a server that does not answer.

use super::wait_until;

/// It goes on when this is dropped, by the thread that has made this.
pub(crate) struct Still(libc::pid_t);

impl Still {
    /// The thread of this name.
    pub(crate) fn new(pid: u32, name: &str) -> Still {
        let thread = find(pid, name).unwrap_or_else(|| panic!("process {pid} has no thread {name}"));
        let asked = [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT].map(|request| ask(request, thread));
        assert_eq!(asked, [0, 0], "ptrace: {}", std::io::Error::last_os_error());
        wait_until("the thread stands still", || state(pid, thread) == Some('t'));
        Still(thread)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        let mut status = 0;
        // A tracer learns that the thread has stopped, and detaches only then.
        // SAFETY: the call writes to `status` alone.
        unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
        // It fails for a process that has ended meanwhile.
        ask(libc::PTRACE_DETACH, self.0);
    }
}

fn ask(request: libc::c_uint, thread: libc::pid_t) -> libc::c_long {
    // SAFETY: these three requests read and write no memory of this process.
    unsafe { libc::ptrace(request, thread, 0, 0) }
}

/// Whether a process has a thread of this name. The kernel keeps 15 characters of one.
pub(crate) fn has_thread(pid: u32, name: &str) -> bool {
    find(pid, name).is_some()
}

fn find(pid: u32, name: &str) -> Option<libc::pid_t> {
    let name = &name[..name.len().min(15)];
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut threads = tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    threads.find(|thread: &libc::pid_t| {
        let found = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
        found.trim_end() == name
    })
}

fn state(pid: u32, thread: libc::pid_t) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    text[text.rfind(')')? + 1..].trim_start().chars().next()
}
