//! The bytes of standard input that may be needed again: in memory, or in files of the job's directory, of which whole ones are removed.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Bytes of one file, unless the limit of all is small.
const PART_BYTES_MAX: u64 = 4 << 20;
const PART_BYTES_MIN: u64 = 1 << 10;
/// So many parts make up the limit: bytes that a commit frees are freed part by part.
const PARTS: u64 = 16;

/// The file that marks the end of the input, and has its length in bytes.
const END: &str = "end";

/// A piece of a byte stream, whose bytes are numbered from 0 on.
#[derive(Debug)]
pub(crate) struct Log {
    first: u64,
    end: u64,
    is_over: bool,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Memory(VecDeque<u8>),
    Files(Parts),
}

/// Files that are named by their first byte's number.
#[derive(Debug)]
struct Parts {
    folder: PathBuf,
    part_bytes: u64,
    /// By their first byte's number.
    files: BTreeMap<u64, File>,
}

fn damaged(words: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, words)
}

impl Log {
    /// Nothing yet, in memory.
    pub(crate) fn in_memory() -> Log {
        Log { first: 0, end: 0, is_over: false, backing: Backing::Memory(VecDeque::new()) }
    }

    /// Opens the log in a folder, which is created if needed. `limit`: about how many bytes it may hold.
    ///
    /// # Errors
    /// Also if a part in the middle is missing.
    pub(crate) fn in_files(folder: &Path, limit: u64) -> io::Result<Log> {
        DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if let Some(first) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) {
                let file = OpenOptions::new().read(true).append(true).open(entry.path())?;
                files.insert(first, file);
            }
        }
        let first = files.keys().next().copied();
        let mut end = first.unwrap_or(0);
        for (start, file) in &files {
            if *start != end {
                return Err(damaged(format!(
                    "bytes {end} to {start} of standard input are missing in {}",
                    folder.display()
                )));
            }
            end += file.metadata()?.len();
        }
        let over = match std::fs::read_to_string(folder.join(END)) {
            Ok(text) => Some(
                text.trim()
                    .parse::<u64>()
                    .map_err(|_| damaged(format!("{}/{END} has no number", folder.display())))?,
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // Every part was removed when all had been read.
        let (first, end) =
            if files.is_empty() { (over.unwrap_or(0), over.unwrap_or(0)) } else { (first.unwrap_or(0), end) };
        let part_bytes = (limit / PARTS).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let parts = Parts { folder: folder.to_path_buf(), part_bytes, files };
        Ok(Log { first, end, is_over: over.is_some(), backing: Backing::Files(parts) })
    }

    /// The first byte that is kept.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// No byte will follow.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that are kept.
    pub(crate) fn held(&self) -> u64 {
        self.end - self.first
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.backing {
            Backing::Memory(kept) => kept.extend(bytes),
            Backing::Files(parts) => parts.append(self.end, bytes)?,
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// No byte follows.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if let Backing::Files(parts) = &self.backing {
            let mut file = create(&parts.folder.join(END))?;
            writeln!(file, "{}", self.end)?;
        }
        self.is_over = true;
        Ok(())
    }

    /// At most so many bytes from this one on, which must be kept.
    pub(crate) fn read(&self, from: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        if from < self.first || from > self.end {
            return Err(damaged(format!("byte {from} is not kept, but {} to {}", self.first, self.end)));
        }
        let left = usize::try_from(self.end - from).unwrap_or(usize::MAX).min(bytes_max);
        match &self.backing {
            Backing::Memory(kept) => {
                let skipped = usize::try_from(from - self.first).unwrap_or(usize::MAX);
                Ok(kept.range(skipped..skipped + left).copied().collect())
            }
            Backing::Files(parts) => parts.read(from, left),
        }
    }

    /// Bytes before this one are not needed any more.
    pub(crate) fn forget(&mut self, below: u64) -> io::Result<()> {
        let below = below.min(self.end);
        if below <= self.first {
            return Ok(());
        }
        match &mut self.backing {
            Backing::Memory(kept) => {
                kept.drain(..usize::try_from(below - self.first).unwrap_or(usize::MAX));
                self.first = below;
            }
            Backing::Files(parts) => self.first = parts.forget(self.first, below, self.is_over)?,
        }
        Ok(())
    }
}

/// A new file that only its owner can read.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

impl Parts {
    fn path(&self, first: u64) -> PathBuf {
        self.folder.join(format!("{first:020}"))
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let filled = self.files.last_key_value().map_or(self.part_bytes, |(first, _)| at - first);
            let room = self.part_bytes.saturating_sub(filled);
            let room = if room > 0 { room } else { self.part_bytes };
            let (piece, others) = rest.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(rest.len()));
            self.append_to_part(at, filled >= self.part_bytes, piece)?;
            (at, rest) = (at + piece.len() as u64, others);
        }
        Ok(())
    }

    fn append_to_part(&mut self, at: u64, is_new: bool, bytes: &[u8]) -> io::Result<()> {
        if is_new {
            let mut options = OpenOptions::new();
            let file = options.read(true).append(true).create_new(true).mode(0o600).open(self.path(at))?;
            self.files.insert(at, file);
        }
        let Some(mut file) = self.files.last_entry() else { return Err(ErrorKind::NotFound.into()) };
        let file = file.get_mut();
        let before = file.metadata()?.len();
        file.write_all(bytes).inspect_err(|_| {
            // A half-written piece would be taken for input.
            let _ = file.set_len(before);
        })
    }

    fn read(&self, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut read = vec![0; bytes];
        let mut filled = 0;
        while filled < bytes {
            let at = from + filled as u64;
            let (first, file) = self.files.range(..=at).next_back().ok_or(ErrorKind::NotFound)?;
            match file.read_at(&mut read[filled..], at - first) {
                Ok(0) => {
                    return Err(damaged(format!("{} is shorter than it was", self.path(*first).display())));
                }
                Ok(more) => filled += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Removes files all of whose bytes lie before this one. Returns the first byte that is left. The last file stays while more may come:
    /// its name shows how much there was.
    fn forget(&mut self, first: u64, below: u64, is_over: bool) -> io::Result<u64> {
        let mut first = first;
        while let Some((start, file)) = self.files.first_key_value() {
            let end = start + file.metadata()?.len();
            if end > below || (self.files.len() == 1 && !is_over) {
                break;
            }
            std::fs::remove_file(self.path(*start))?;
            self.files.pop_first();
            first = end;
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(range: std::ops::Range<u64>) -> Vec<u8> {
        range.map(|byte| (byte % 251) as u8).collect()
    }

    fn filled(mut log: Log) -> Log {
        for piece in 0..10 {
            log.append(&bytes(piece * 700..(piece + 1) * 700)).unwrap();
        }
        log
    }

    #[test]
    fn what_is_kept_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        for mut log in [filled(Log::in_memory()), filled(Log::in_files(folder.path(), 0).unwrap())] {
            assert_eq!(log.read(0, usize::MAX).unwrap(), bytes(0..7000));
            assert_eq!(log.read(1000, 3000).unwrap(), bytes(1000..4000));
            assert!(log.read(7000, 5).unwrap().is_empty());
            log.forget(3333).unwrap();
            assert!(log.first() > 1000 && log.first() <= 3333, "{}", log.first());
            assert_eq!(log.read(3333, usize::MAX).unwrap(), bytes(3333..7000));
            assert!(log.read(log.first() - 1, 1).is_err());
            assert_eq!(log.held(), 7000 - log.first());
        }
    }

    // As it is read, in pieces that are longer than a part.
    #[test]
    fn what_is_not_needed_is_freed_whatever_the_pieces_were() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::in_files(folder.path(), 40_000).unwrap();
        log.append(&bytes(0..40_000)).unwrap();
        log.forget(30_000).unwrap();
        assert!(log.held() < 14_000, "{}", log.held());
        assert_eq!(log.read(30_000, usize::MAX).unwrap(), bytes(30_000..40_000));
    }

    #[test]
    fn another_launcher_finds_what_was_kept_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = filled(Log::in_files(folder.path(), 0).unwrap());
        log.forget(3000).unwrap();
        let first = log.first();
        drop(log);
        let mut log = Log::in_files(folder.path(), 0).unwrap();
        assert_eq!((log.first(), log.end(), log.is_over()), (first, 7000, false));
        log.append(&bytes(7000..9000)).unwrap();
        assert_eq!(log.read(5000, usize::MAX).unwrap(), bytes(5000..9000));
        log.finish().unwrap();
        log.forget(9000).unwrap();
        assert_eq!(log.held(), 0);
        drop(log);
        let log = Log::in_files(folder.path(), 0).unwrap();
        assert_eq!((log.first(), log.end(), log.is_over()), (9000, 9000, true));
    }

    #[test]
    fn files_are_their_owners_and_a_missing_one_is_an_error() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("input");
        drop(filled(Log::in_files(&place, 0).unwrap()));
        let mut files: Vec<_> =
            std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 3);
        assert!(files.iter().all(|file| file.metadata().unwrap().mode() & 0o777 == 0o600));
        assert_eq!(place.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::remove_file(&files[1]).unwrap();
        assert!(Log::in_files(&place, 0).unwrap_err().to_string().contains("are missing"));
    }
}
