//! How the library's constructor begins: a new process gets its agent, one that is being restored becomes the saved
//! one.

use std::convert::Infallible;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use process::files::{Policy, Unknown};
use process::restore::{Ids, Pages};
use process::state::memory::PageRun;
use process::state::{Files, ProcessState, Unchanged};
use store::{Directory, GenerationId, ImageReader, JobDirectory, StoreError, kinds};

use crate::agent_thread;
use crate::choice::PAGE_BYTES;
use crate::decrypted_pages;
use crate::error::AgentError;
use crate::image::{ImageDirectory, handed_in};
use crate::limits::SETTLED_AFTER;
use crate::pmi::Pmi;
use crate::rank_slot::RankSlot;
use crate::this_rank;

/// The launcher sets this variable to [`SAVE_PROCESS`] for programs that are saved as whole processes.
pub const SAVE_VARIABLE: &str = "STILLWIRE_SAVE";
/// See [`SAVE_VARIABLE`].
pub const SAVE_PROCESS: &str = "process";

/// The launcher sets this variable to [`IDS_KEPT`] for a process that has the id of the image from which it is
/// restored, and whose threads will get theirs.
pub const IDS_VARIABLE: &str = "STILLWIRE_IDS";
/// See [`IDS_VARIABLE`].
pub const IDS_KEPT: &str = "kept";

/// What a restore does with a file that is longer than at the cut, and is not recognised as the file of then: one of [`CHANGED_FILES`].
pub const CHANGED_FILES_VARIABLE: &str = "STILLWIRE_CHANGED_FILES";
/// The values of [`CHANGED_FILES_VARIABLE`]; the first is the default.
pub const CHANGED_FILES: [(&str, Unknown); 2] =
    [("keep-copy", Unknown::KeepCopy), ("refuse", Unknown::Refuse)];

/// The exit code of a process that cannot take its place: as a program that could not be executed.
pub(crate) const EXIT_NOT_STARTED: i32 = 126;

/// Called by the constructor of the library, before the program runs. Returns at once unless this process is a rank whose program
/// is saved as a whole; does not return in one that is restored.
pub fn enter() {
    if std::env::var_os(SAVE_VARIABLE).is_none_or(|value| value != SAVE_PROCESS) {
        return;
    }
    let outcome = RankSlot::find().and_then(|slot| slot.map_or(Ok(()), begin));
    if let Err(error) = outcome {
        eprintln!("stillwire: {error}");
        // Handlers that the constructors of libraries have registered are of no use here.
        // SAFETY: ends the process; nothing of it is used afterwards.
        unsafe { libc::_exit(EXIT_NOT_STARTED) };
    }
}

fn begin(slot: RankSlot) -> Result<(), AgentError> {
    let directory = ImageDirectory::of(&slot.launch);
    if let Some(generation) = slot.launch.restore {
        let mut directory = directory.open()?;
        let reader = directory.open_committed_image(generation, slot.launch.rank)?;
        if reader.find(kinds::PROCESS).is_err() {
            // The program, which a script has started, declared its state, and will read it.
            return Ok(());
        }
        match restore(&slot, &mut directory, generation, &reader)? {}
    }
    let mut pmi = Pmi::interpose()?;
    // The agent takes no signal of the program's: a thread begins with its starter's mask.
    let mut before = SigSet::empty();
    let failed = |error: Errno| AgentError::Thread(error.into());
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before)).map_err(failed)?;
    this_rank::expect_agent().map_err(AgentError::Thread)?;
    let run = move || {
        settle(pmi.as_ref());
        // A program with points of its own, which a script has started, has taken it by now.
        if slot.is_free() {
            let stream = slot.take().map_err(AgentError::Line);
            if let Err(error) = stream.and_then(|stream| agent_thread::run(&stream, directory, pmi.as_mut()))
            {
                eprintln!("stillwire: this process cannot be saved any more: {error}");
            }
        }
        this_rank::give_up_agent();
    };
    let started = std::thread::Builder::new().name("stillwire".into()).spawn(run);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).map_err(failed)?;
    started.map(drop).map_err(AgentError::Thread)
}

/// Waits until the program shows that it is the one that a person means.
fn settle(pmi: Option<&Pmi>) {
    let Some(wake) = this_rank::wake_fd() else { return };
    let timeout = PollTimeout::try_from(SETTLED_AFTER).unwrap_or(PollTimeout::MAX);
    // An interrupted sleep is a short one; no signal comes here.
    let wanted = [PollFd::new(wake, PollFlags::POLLIN)].into_iter();
    let _ = poll(&mut wanted.chain(pmi.and_then(Pmi::poll_fd)).collect::<Vec<_>>(), timeout);
    this_rank::hush();
}

/// Makes this process the one in the image. Returns only if that fails.
fn restore(
    slot: &RankSlot,
    directory: &mut JobDirectory<Directory>,
    generation: GenerationId,
    reader: &ImageReader,
) -> Result<Infallible, AgentError> {
    // Restored bytes cannot be checked afterwards: every byte is checked now.
    reader.verify(directory.storage())?;
    let (version, state) = section(directory, reader, kinds::PROCESS)?;
    let state = ProcessState::decode(version, &state)?;
    let (version, files) = section(directory, reader, kinds::PROCESS_FILES)?;
    let files = Files::decode(version, &files)?;
    let base = directory.open_base(generation, slot.launch.rank, reader)?;
    let base = base.map(|base| BaseImage::read(directory, reader, &base)).transpose()?;
    let is_encrypted = reader.header().is_encrypted;
    let whole = |bytes: u64| core::iter::once(0..bytes / PAGE_BYTES).collect();
    let (file, offset) = pages(directory, reader, whole)?;
    let base_pages = base.as_ref().map(BaseImage::borrow);
    let pages = Pages { file: file.as_fd(), offset, base_pages, are_freed: is_encrypted };
    let keeps = std::env::var_os(IDS_VARIABLE).is_some_and(|value| value == IDS_KEPT);
    let ids = if keeps { Ids::Kept } else { Ids::New };
    let handed_in = handed_in(slot.number());
    let policy = Policy { unknown: unknown_files()?, ..Policy::default() };
    Ok(process::restore::restore(&state, &files, pages, &handed_in, policy, ids)?)
}

fn unknown_files() -> Result<Unknown, AgentError> {
    let Some(found) = std::env::var_os(CHANGED_FILES_VARIABLE) else { return Ok(Unknown::default()) };
    let known = CHANGED_FILES.iter().find(|(name, _)| found == *name);
    known
        .map(|(_, unknown)| *unknown)
        .ok_or_else(|| AgentError::ChangedFiles { found: found.to_string_lossy().into_owned() })
}

fn section(
    directory: &mut JobDirectory<Directory>,
    reader: &ImageReader,
    kind: u32,
) -> Result<(u16, Vec<u8>), AgentError> {
    let number = reader.find(kind)?;
    let version = reader.entries()[number as usize].version;
    Ok((version, reader.read_section(directory.storage(), number)?))
}

/// The file with the pages, and where they begin. `wanted`: which pages of the section, which has so many bytes, are needed: no others are decrypted.
fn pages(
    directory: &mut JobDirectory<Directory>,
    reader: &ImageReader,
    wanted: impl FnOnce(u64) -> Vec<Range<u64>>,
) -> Result<(File, u64), AgentError> {
    let number = reader.find(kinds::PROCESS_MEMORY)?;
    let pages = &reader.entries()[number as usize];
    if pages.is_encrypted() {
        return Ok((decrypted_pages::decrypt(directory.storage(), reader, number, &wanted(pages.bytes))?, 0));
    }
    let file = directory.storage().open_file(reader.path()).map_err(StoreError::from)?;
    Ok((file.into_file(), pages.offset))
}

/// The base of a delta.
struct BaseImage {
    file: File,
    offset: u64,
    runs: Vec<PageRun>,
    unchanged: Vec<PageRun>,
}

impl BaseImage {
    fn read(
        directory: &mut JobDirectory<Directory>,
        delta: &ImageReader,
        base: &ImageReader,
    ) -> Result<BaseImage, AgentError> {
        base.verify(directory.storage())?;
        let (version, state) = section(directory, base, kinds::PROCESS)?;
        let runs = ProcessState::decode(version, &state)?.memory.runs;
        let (version, unchanged) = section(directory, delta, kinds::PROCESS_UNCHANGED)?;
        let unchanged = Unchanged::decode(version, &unchanged)?.runs;
        let (file, offset) = pages(directory, base, |_| decrypted_pages::wanted(&runs, &unchanged))?;
        Ok(BaseImage { file, offset, runs, unchanged })
    }

    fn borrow(&self) -> process::restore::BasePages<'_> {
        let BaseImage { file, offset, runs, unchanged } = self;
        process::restore::BasePages { file: file.as_fd(), offset: *offset, runs, unchanged }
    }
}
