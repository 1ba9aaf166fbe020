//! The open descriptors of a process: inspected before the stop, read in the stop, made anew in the restored process.
//!
//! [`prepare`] judges, in ordinary code, whether every descriptor can be saved. [`Prepared::look`] runs while all other
//! threads stand still, and allocates nothing. [`Prepared::finish`] makes the section of an image from these facts.
//! [`remake`] makes the descriptors anew.

#![expect(clippy::host_endian_bytes, reason = "the kernel speaks in the machine's order")]

mod details;
mod diagnosis;
mod event;
mod facts;
mod judge;
mod kernel;
mod marks;
mod other;
mod outsiders;
mod refusal;
mod remake;
mod room;

use std::ops::Range;
use std::os::fd::RawFd;

pub use facts::{Fault, FileId, Room, UNNAMED_BYTES_MAX};
pub use other::{connected_to, refusals_of, trackers_of};
pub use refusal::Refusal;
pub use remake::{Changed, Given, Grown, Policy, Remade, RemakeError, Unknown, remake};

use crate::declared::{AtCut, Declared};
use crate::state::Files;
use facts::{Capacity, Declaration, Facts, Kind, Known};
use judge::Context;

/// Whether the kernel reports which process is at the other end of the Unix socket with this inode.
pub(crate) fn reports_pair(inode: u64) -> Result<(), crate::sys::Errno> {
    diagnosis::ask(inode).map(drop)
}

/// Why descriptors cannot be saved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrepareError {
    /// Some of them cannot be saved at all.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<Refusal>),
    /// They could not be looked at.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// No memory for the records.
    #[error("no memory for the state of descriptors: {0}")]
    Memory(String),
}

/// Room that more descriptors, messages or bytes can take between the look before the stop and the stop.
const SPARE_DESCRIPTORS: usize = 64;
const SPARE_MESSAGES: usize = 1024;
const SPARE_BYTES: usize = 1 << 20;
/// Attempts to look at the descriptors of a running program before too little room is an error.
const ATTEMPTS: usize = 12;

/// Everything that the look in the stop needs.
#[derive(Debug)]
pub struct Prepared {
    declared: Declared,
    numbers: Vec<(RawFd, Declaration)>,
    mapped: Vec<FileId>,
    facts: Facts,
    /// Paths of files that other processes write, too.
    shared: Vec<Vec<u8>>,
}

/// Looks at the descriptors of this process, and makes the room that a look in the stop needs. `mapped` are files that
/// regions map with `MAP_SHARED` and whose content the image's memory holds.
pub fn prepare(declared: &Declared, mapped: Vec<FileId>) -> Result<Prepared, PrepareError> {
    let handed_in = declared.handed_in.iter().map(|(_, number)| *number).enumerate();
    let remade = declared.remade.iter().map(|(_, number)| *number).enumerate();
    let numbers: Vec<(RawFd, Declaration)> = handed_in
        .map(|(index, number)| (number, Declaration::HandedIn(index)))
        .chain(remade.map(|(index, number)| (number, Declaration::Remade(index))))
        .collect();
    let mut mapped = mapped;
    mapped.sort_unstable();
    let memory = |error: std::io::Error| PrepareError::Memory(error.to_string());
    let mut capacity = Capacity { descriptors: 256, bytes: SPARE_BYTES, messages: 64, watched: 256 };
    let known = Known { declared: &numbers, mapped: &mapped, with_content: false };
    let mut attempt = 0;
    let seen = loop {
        let mut facts = Facts::new(capacity).map_err(memory)?;
        match facts.gather(&known) {
            Ok(()) => break facts,
            Err(Fault::Full { what }) if attempt < ATTEMPTS => {
                attempt += 1;
                match what {
                    Room::Descriptors => capacity.descriptors *= 2,
                    Room::Bytes => capacity.bytes *= 2,
                    Room::Messages => capacity.messages *= 2,
                    Room::Watched => capacity.watched *= 2,
                }
            }
            // Another thread closed it meanwhile.
            Err(Fault::Kernel { error, .. }) if error.0 == libc::EBADF && attempt < ATTEMPTS => attempt += 1,
            Err(fault) => return Err(fault.into()),
        }
    };
    let pid = crate::sys::process_id();
    let context = Context { declared, objects: &mapped, is_before: true, pid, shared: &[] };
    let mut refusals = judge::judge(&seen, &context).err().unwrap_or_default();
    let (outside, shared) = outside(&seen, pid);
    refusals.extend(outside);
    if !refusals.is_empty() {
        refusals.sort_by_key(|refusal| refusal.number);
        refusals.dedup_by_key(|refusal| refusal.number);
        return Err(PrepareError::Refused(refusals));
    }
    let facts = Facts::new(room_for(&seen)).map_err(memory)?;
    Ok(Prepared { declared: declared.clone(), numbers, mapped, facts, shared })
}

/// Room for all that these descriptors can hold when they are looked at again.
fn room_for(seen: &Facts) -> Capacity {
    let mut bytes = seen.blob.room().max(SPARE_BYTES).saturating_mul(2);
    for fact in &seen.list {
        let content = match fact.kind {
            Kind::Pipe => u64::from(fact.extra),
            Kind::UnixSocket => u64::from(fact.options.receive_bytes.max(fact.options.send_bytes)),
            Kind::Regular if judge::is_unnamed(seen.blob.get(fact.link), fact.links) => {
                fact.bytes.saturating_add(fact.bytes / 4).min(UNNAMED_BYTES_MAX)
            }
            _ => 0,
        };
        bytes = bytes.saturating_add(usize::try_from(content).unwrap_or(usize::MAX));
    }
    Capacity {
        descriptors: seen.list.len() * 2 + SPARE_DESCRIPTORS,
        bytes,
        messages: seen.list.len() * 16 + SPARE_MESSAGES,
        watched: seen.watched.len() * 2 + SPARE_DESCRIPTORS,
    }
}

/// Pipes and sockets that another process has open as well, and the paths of files that it writes as this one does.
fn outside(seen: &Facts, pid: u32) -> (Vec<Refusal>, Vec<Vec<u8>>) {
    let ours = || seen.list.iter().filter(|fact| matches!(fact.kind, Kind::Pipe | Kind::UnixSocket));
    let is_written = |fact: &&facts::Fact| {
        fact.kind == Kind::Regular && fact.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY
    };
    let files = seen.list.iter().filter(is_written);
    let links: Vec<Vec<u8>> = ours().chain(files).map(|fact| seen.blob.get(fact.link).to_vec()).collect();
    let mut outsiders = outsiders::find(&links, pid);
    let shared = outsiders.keys().filter(|link| outsiders::is_path(link)).cloned().collect();
    outsiders.retain(|link, _| !outsiders::is_path(link));
    let refusal = |fact: &facts::Fact| {
        let link = seen.blob.get(fact.link);
        let outsider = outsiders.get(link)?;
        let what = format!("{}, process {} ({})", String::from_utf8_lossy(link), outsider.pid, outsider.name);
        Some(Refusal { number: fact.number.cast_unsigned(), what, why: refusal::why::SHARED_OUTSIDE })
    };
    (ours().filter_map(refusal).collect(), shared)
}

impl Prepared {
    /// Looks at all descriptors, in the stop: takes no lock, allocates nothing, changes nothing that the program can see.
    /// May be called again.
    pub fn look(&mut self) -> Result<(), Fault> {
        let known = Known { declared: &self.numbers, mapped: &self.mapped, with_content: true };
        if let Some(AtCut(call)) = self.declared.at_cut {
            call();
        }
        self.facts.gather(&known)
    }

    /// Memory of this value that needs no place in an image.
    #[must_use]
    pub fn memory(&self) -> Range<u64> {
        self.facts.blob.addresses()
    }

    /// The findings of [`Prepared::look`]. `objects` are the files behind [`crate::state::memory::Memory::shared`], in
    /// its order. Ordinary code, while the program runs: reads the last bytes of files that it writes.
    pub fn finish(&self, objects: &[FileId]) -> Result<Files, Vec<Refusal>> {
        let mut files = self.finish_without_marks(objects)?;
        marks::note(&mut files);
        Ok(files)
    }

    /// The same without the last bytes of files. They are read by a thread, and show which files a restore may cut: none
    /// is longer than at the cut as long as the process stands still.
    pub(crate) fn finish_without_marks(&self, objects: &[FileId]) -> Result<Files, Vec<Refusal>> {
        let (declared, shared, pid) = (&self.declared, &self.shared, crate::sys::process_id());
        judge::judge(&self.facts, &Context { declared, objects, is_before: false, pid, shared })
    }
}
