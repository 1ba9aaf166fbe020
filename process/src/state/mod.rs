//! The state of a process: the content of its sections in an image.
//!
//! Encoded with postcard (a published, stable format) behind a version that the container keeps. Decoding believes
//! nothing: bounds, order and references are checked before anybody acts on them.

pub mod files;
pub mod machine;
pub mod memory;
pub mod signals;
pub mod threads;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use files::{Descriptor, OpenFile, What};
use machine::Machine;
use memory::{Memory, PageRun};
use signals::Signals;
use threads::Thread;

/// Kind of the section that [`ProcessState::encode`] makes.
pub const STATE_KIND: u32 = 0x0301;
/// Kind of the section of pages: the content of every [`memory::PageRun`], one after the other.
pub const PAGES_KIND: u32 = 0x0302;
/// Kind of the section that [`Files::encode`] makes.
pub const FILES_KIND: u32 = 0x0303;
/// Kind of the section that [`Unchanged::encode`] makes.
pub const UNCHANGED_KIND: u32 = 0x0304;
/// Kind of the section that [`Places::encode`] makes.
pub const PLACES_KIND: u32 = 0x0306;
/// Version of the content of all of them.
pub const VERSION: u16 = 3;

/// Everything of a process but its pages and its descriptors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessState {
    /// Where it ran: compared before anything is restored.
    pub machine: Machine,
    /// Its program.
    pub program: Program,
    /// Its address space.
    pub memory: Memory,
    /// Its threads; the first is the one whose id is the process's.
    pub threads: Vec<Thread>,
    /// Dispositions, pending signals, timers.
    pub signals: Signals,
    /// Where the restored process goes on.
    pub resume: Resume,
}

/// The settings of exec and later calls.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Process id at the cut, for reports.
    pub pid: u32,
    /// `/proc/self/exe`: the path that the restored process is made of.
    pub executable: Vec<u8>,
    /// Working directory.
    pub directory: Vec<u8>,
    /// `personality(2)`.
    pub personality: u32,
    /// `umask(2)`.
    pub umask: u32,
    /// Soft and hard limits by resource number, `getrlimit(2)`.
    pub limits: Vec<(u64, u64)>,
    /// `PR_GET_DUMPABLE`.
    pub dumpable: u8,
    /// `PR_GET_THP_DISABLE`.
    pub huge_pages_disabled: bool,
    /// `PR_GET_CHILD_SUBREAPER`.
    pub is_subreaper: bool,
    /// `MEMBARRIER_CMD_GET_REGISTRATIONS`; all private ones where the kernel does not report them.
    pub barriers: u32,
}

/// Where the restored process goes on: a function of this crate, in the restored memory, that gets a table of the
/// remaining work once memory is in place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resume {
    /// Address of the function.
    pub entry: u64,
}

/// The descriptors of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Files {
    /// The open file descriptions, each once.
    pub open: Vec<OpenFile>,
    /// The numbers that refer to them, rising.
    pub descriptors: Vec<Descriptor>,
}

/// The pages that an image leaves out because the one below it has them as they are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Unchanged {
    /// By rising address, without overlap.
    pub runs: Vec<PageRun>,
}

/// The pages of an image, for readers that cannot read the state: its [`Memory::runs`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Places {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// By rising address, without overlap, as the section of pages has them.
    pub runs: Vec<PageRun>,
}

/// Why bytes are not the section that they should be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Written by another version.
    #[error(
        "process section of version {found}, this build reads {VERSION}: use the build that wrote the image"
    )]
    Version {
        /// In the container.
        found: u16,
    },
    /// Not an output of the encoder.
    #[error("process section cannot be read: {reason}; the image is damaged")]
    Malformed {
        /// Where the reading stopped.
        reason: String,
    },
    /// Readable, and contradicts itself.
    #[error("process section: {what}; the image is damaged")]
    Inconsistent {
        /// The parts that do not fit together, with numbers.
        what: String,
    },
}

fn decode<T: serde::de::DeserializeOwned>(version: u16, bytes: &[u8]) -> Result<T, DecodeError> {
    if version != VERSION {
        return Err(DecodeError::Version { found: version });
    }
    let malformed = |reason: String| DecodeError::Malformed { reason };
    let (value, left) = postcard::take_from_bytes(bytes).map_err(|error| malformed(error.to_string()))?;
    if left.is_empty() { Ok(value) } else { Err(malformed(format!("{} bytes after its end", left.len()))) }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector takes everything that these types hold")
}

impl ProcessState {
    /// The section's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a section of [`STATE_KIND`].
    pub fn decode(version: u16, bytes: &[u8]) -> Result<ProcessState, DecodeError> {
        let state: ProcessState = decode(version, bytes)?;
        state.check().map_err(|what| DecodeError::Inconsistent { what })?;
        Ok(state)
    }

    fn check(&self) -> Result<(), String> {
        self.memory.check(self.machine.page_bytes)?;
        let Some(leader) = self.threads.first() else { return Err("it has no threads".to_owned()) };
        if leader.tid != self.program.pid {
            return Err(format!("its first thread is {}, the process is {}", leader.tid, self.program.pid));
        }
        let agents = self.threads.iter().filter(|thread| thread.is_agent()).count();
        if agents != 1 {
            return Err(format!("{agents} of its threads took the checkpoint, 1 does"));
        }
        if !self.memory.is_executable(self.resume.entry) {
            return Err(format!("it goes on at {:#x}, where no code is", self.resume.entry));
        }
        Ok(())
    }
}

impl Unchanged {
    /// The section's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a section of [`UNCHANGED_KIND`]. Whether the image below has the pages, and the state has regions for them,
    /// a restore looks.
    pub fn decode(version: u16, bytes: &[u8]) -> Result<Unchanged, DecodeError> {
        /// Every page that is known has at least so many bytes.
        const PAGE_BYTES_MIN: u64 = 4096;
        let unchanged: Unchanged = decode(version, bytes)?;
        let mut from = 0;
        for run in &unchanged.runs {
            let length = run.pages.checked_mul(PAGE_BYTES_MIN).filter(|length| *length > 0);
            let end = length.and_then(|length| run.address.checked_add(length));
            let Some(end) = end.filter(|_| run.address >= from) else {
                let what = format!("{} unchanged pages from {:#x} after {from:#x}", run.pages, run.address);
                return Err(DecodeError::Inconsistent { what });
            };
            from = end;
        }
        Ok(unchanged)
    }
}

impl Places {
    /// The section's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a section of [`PLACES_KIND`]. Nothing is restored by it.
    pub fn decode(version: u16, bytes: &[u8]) -> Result<Places, DecodeError> {
        decode(version, bytes)
    }
}

impl Files {
    /// The section's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a section of [`FILES_KIND`].
    pub fn decode(version: u16, bytes: &[u8]) -> Result<Files, DecodeError> {
        let files: Files = decode(version, bytes)?;
        files.check().map_err(|what| DecodeError::Inconsistent { what })?;
        Ok(files)
    }

    fn check(&self) -> Result<(), String> {
        for pair in self.descriptors.windows(2) {
            if pair[0].number >= pair[1].number {
                return Err(format!("descriptor {} comes after {}", pair[1].number, pair[0].number));
            }
        }
        for descriptor in &self.descriptors {
            if usize::try_from(descriptor.open).map_or(true, |open| open >= self.open.len()) {
                return Err(format!(
                    "descriptor {} refers to open file {} of {}",
                    descriptor.number,
                    descriptor.open,
                    self.open.len()
                ));
            }
        }
        self.check_watched()?;
        self.check_sockets()
    }

    fn check_watched(&self) -> Result<(), String> {
        for open in &self.open {
            let What::Poll { watched } = &open.what else { continue };
            for entry in watched {
                if usize::try_from(entry.open).map_or(true, |open| open >= self.open.len()) {
                    return Err(format!(
                        "descriptor {} is watched, open file {} is not there",
                        entry.number, entry.open
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_sockets(&self) -> Result<(), String> {
        let mut peers = BTreeMap::new();
        for open in &self.open {
            let What::SocketPair { socket, peer, .. } = &open.what else { continue };
            if peers.insert(*socket, *peer).is_some() {
                return Err(format!("socket {socket} is there twice"));
            }
        }
        match peers.iter().find(|(socket, peer)| **peer != 0 && peers.get(peer) != Some(*socket)) {
            Some((socket, peer)) => {
                Err(format!("socket {socket} is connected to {peer}, which is not connected to it"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
