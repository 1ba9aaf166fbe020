//! Marks by which a restore recognises a file that it is about to cut: read after the stop, while the program runs.
//!
//! The bytes before the length at the cut are the program's state; bytes behind it do not matter. If the program overwrites them between the cut and this
//! look, the marks are those of a later state of the same file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, SigmaskHow};
use xxhash_rust::xxh3::xxh3_128;

use crate::state::Files;
use crate::state::files::{Marks, OpenFile, Regular, Tail, What};
use crate::sys;

/// Most bytes of a tail.
const TAIL_BYTES_MAX: u64 = 4096;
/// Fewer bytes are alike in too many files.
const TAIL_BYTES_MIN: u64 = 16;
/// Files that are looked at; others have no marks.
const FILES_MAX: usize = 1024;

/// Notes the marks of all files that a restore may cut.
pub(super) fn note(files: &mut Files) {
    let wanted: Vec<&mut Regular> = files.open.iter_mut().filter_map(wanted).take(FILES_MAX).collect();
    if wanted.is_empty() {
        return;
    }
    // The program's handlers must not run on the thread: its descriptors are others. It inherits the mask.
    let all = SigSet::all();
    let Ok(before) = all.thread_swap_mask(SigmaskHow::SIG_SETMASK) else { return };
    std::thread::scope(|scope| {
        // The thread has a table of descriptors of its own. Any descriptor of a file that the process closes ends its record locks on that file (fcntl(2)).
        let looking = std::thread::Builder::new().name("stillwire-files".into()).spawn_scoped(scope, || {
            if sys::leave_descriptors().is_ok() {
                wanted.into_iter().for_each(|regular| regular.marks = look(regular).ok().flatten());
            }
        });
        // Without a thread there are no marks, and a restore keeps more copies.
        drop(looking);
    });
    let _ = before.thread_set_mask();
}

/// A file that the process alone writes, and that has a name.
fn wanted(open: &mut OpenFile) -> Option<&mut Regular> {
    let flags = open.flags.cast_signed();
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
    match &mut open.what {
        What::Regular(regular) if writes && regular.content.is_none() && !regular.is_shared => Some(regular),
        _ => None,
    }
}

/// The marks of a file, if its path still leads to it.
fn look(regular: &Regular) -> io::Result<Option<Marks>> {
    let path = Path::new(OsStr::from_bytes(&regular.path));
    // Neither a pipe nor a lease in the place of the file holds this thread up.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = |more| File::options().read(true).custom_flags(flags | more).open(path);
    let file = open(libc::O_NOATIME).or_else(|_| open(0))?;
    let found = file.metadata()?;
    if (found.dev(), found.ino()) != regular.identity || found.len() < regular.bytes {
        return Ok(None);
    }
    Ok(Some(Marks { born_ns: born_ns(&found), tail: tail(&file, regular.bytes, TAIL_BYTES_MAX)? }))
}

/// 0: the file system does not say.
fn born_ns(of: &fs::Metadata) -> i64 {
    let born = of.created().ok().and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
    born.and_then(|born| i64::try_from(born.as_nanos()).ok()).unwrap_or(0)
}

/// At most so many bytes of a file before `end`. None: too few, or all the same, as in a file that is filled in advance.
fn tail(file: &File, end: u64, bytes_max: u64) -> io::Result<Option<Tail>> {
    let bytes = end.min(bytes_max).min(TAIL_BYTES_MAX);
    if bytes < TAIL_BYTES_MIN {
        return Ok(None);
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(0)];
    file.read_exact_at(&mut content, end - bytes)?;
    if content.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(None);
    }
    Ok(Some(Tail { bytes: u32::try_from(bytes).unwrap_or(0), hash: xxh3_128(&content) }))
}

/// Whether the open file, which may be written only, is the one of the cut.
pub(super) fn is_known(regular: &Regular, fd: i32) -> bool {
    let recognised = || -> io::Result<bool> {
        let file = reopened(fd)?;
        let found = file.metadata()?;
        let Some(marks) = &regular.marks else { return Ok((found.dev(), found.ino()) == regular.identity) };
        let born_ns = born_ns(&found);
        // A number of a removed file is used again, and another host may have the same numbers.
        let is_born_then = marks.born_ns == 0 || born_ns == 0 || marks.born_ns == born_ns;
        if (found.dev(), found.ino()) == regular.identity && is_born_then {
            return Ok(true);
        }
        let Some(then) = marks.tail else { return Ok(false) };
        Ok(tail(&file, regular.bytes, then.bytes.into())? == Some(then))
    };
    recognised().unwrap_or(false)
}

/// Opens a file for reading that is open in another way.
fn reopened(fd: i32) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{fd}"))
}

/// Names of kept files that are tried.
const KEPT_MAX: u32 = 1000;

/// Keeps a durable copy of the open file, beside it. Returns its path.
pub(super) fn keep(path: &[u8], fd: i32) -> io::Result<PathBuf> {
    let mut from = reopened(fd)?;
    let mode = from.metadata()?.mode() & 0o777;
    for number in 1..=KEPT_MAX {
        let kept = [path, format!(".stillwire-kept-{number}").as_bytes()].concat();
        let kept = PathBuf::from(OsStr::from_bytes(&kept));
        let mut to = match File::options().write(true).create_new(true).mode(mode).open(&kept) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        let copied = io::copy(&mut from, &mut to).and_then(|_| to.sync_all());
        if let Err(error) = copied {
            let _ = fs::remove_file(&kept);
            return Err(error);
        }
        return Ok(kept);
    }
    Err(io::Error::other(format!("{KEPT_MAX} copies are there already")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_many_files_have_mark_none() {
        let file = tempfile::tempfile().unwrap();
        let marked = |content: &[u8]| {
            file.set_len(0).unwrap();
            file.write_all_at(content, 0).unwrap();
            tail(&file, content.len() as u64, TAIL_BYTES_MAX).unwrap()
        };
        assert_eq!(marked(b"step 1\n"), None);
        assert_eq!(marked(&[0; 10_000]), None);
        let of_log = marked(b"step 1 of 100\nstep 2 of 100\n").unwrap();
        assert_eq!(of_log.bytes, 28);
        let mut long = vec![0; 10_000];
        long[9_999] = 1;
        assert_eq!(marked(&long).unwrap().bytes, 4096);
    }
}
