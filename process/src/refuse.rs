//! The parts of a process that cannot be saved: found before anything is stopped, and reported with a remedy.

use std::fmt;

/// One thing that cannot be saved.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Refusal {
    /// A mapping that the kernel or a device fills, not the program.
    Mapping {
        /// First address.
        start: u64,
        /// First address after it.
        end: u64,
        /// Its name in `/proc/self/maps`.
        name: String,
        /// The reason, with a remedy.
        why: &'static str,
    },
    /// Writable memory that another process maps too.
    SharedWith {
        /// First address.
        start: u64,
        /// Its name in `/proc/self/maps`.
        name: String,
        /// The other process.
        pid: u32,
    },
    /// A child process: it would not be there after a restart.
    Child {
        /// Its id.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A thread that cannot be stopped or made anew.
    Thread {
        /// Its id.
        tid: u32,
        /// Its name.
        name: String,
        /// The reason, with a remedy.
        why: &'static str,
    },
    /// The process as a whole.
    Process {
        /// The reason, with a remedy.
        why: &'static str,
    },
    /// A descriptor.
    Descriptor(crate::files::Refusal),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Mapping { start, end, name, why } => {
                write!(f, "the mapping {start:#x}-{end:#x} {name:?}: {why}")
            }
            Refusal::SharedWith { start, name, pid } => write!(
                f,
                "the memory at {start:#x} {name:?} is written by process {pid} as well: a saved copy would not fit to that process; \
                 let each process have memory of its own"
            ),
            Refusal::Child { pid, name } => write!(
                f,
                "the child process {pid} ({name}): only the process itself is saved; wait for its end before a checkpoint"
            ),
            Refusal::Thread { tid, name, why } => write!(f, "thread {tid} ({name}): {why}"),
            Refusal::Process { why } => f.write_str(why),
            Refusal::Descriptor(refusal) => write!(f, "{refusal}"),
        }
    }
}
