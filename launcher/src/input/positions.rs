//! How much of standard input the ranks had read at their cuts: a file for each generation.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use store::GenerationId;

use super::FOLDER;

/// Bytes that each rank had read, by rank. A rank that is not there had no input, or had closed it.
pub(crate) type Positions = BTreeMap<u32, u64>;

/// First word of the last line: a file without it is not whole.
const END: &str = "end";

fn path(directory: &Path, generation: GenerationId) -> PathBuf {
    directory.join(FOLDER).join(format!("at-{}", generation.to_string().replace('/', "-")))
}

/// Writes them down, durably: before the generation is committed.
pub(crate) fn write(directory: &Path, generation: GenerationId, positions: &Positions) -> io::Result<()> {
    let path = path(directory, generation);
    let folder = directory.join(FOLDER);
    DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
    let mut text = String::new();
    for (rank, read) in positions {
        text.push_str(&format!("{rank} {read}\n"));
    }
    text.push_str(END);
    text.push('\n');
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    File::open(folder)?.sync_all()
}

/// Those of a generation. `None`: nobody has written them.
pub(crate) fn read(directory: &Path, generation: GenerationId) -> io::Result<Option<Positions>> {
    let path = path(directory, generation);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let parse = || -> Option<Positions> {
        let mut lines = text.lines();
        (lines.next_back()? == END).then_some(())?;
        lines
            .map(|line| {
                let (rank, read) = line.split_once(' ')?;
                Some((rank.parse().ok()?, read.parse().ok()?))
            })
            .collect()
    };
    let damaged = || io::Error::new(ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    parse().map(Some).ok_or_else(damaged)
}

/// Removes those of all other generations.
pub(crate) fn keep(directory: &Path, kept: &[GenerationId]) {
    let wanted: Vec<PathBuf> = kept.iter().map(|generation| path(directory, *generation)).collect();
    let Ok(entries) = std::fs::read_dir(directory.join(FOLDER)) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with("at-"));
        if is_ours && !wanted.contains(&entry.path()) {
            // A file that stays does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use transport::{Epoch, Life};

    use super::*;

    #[test]
    fn positions_are_read_as_they_were_written_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let generation = |epoch| GenerationId { life: Life { counter: 2, nonce: 7 }, epoch: Epoch(epoch) };
        let positions = Positions::from([(0, 17), (3, 1 << 40)]);
        assert_eq!(read(folder.path(), generation(1)).unwrap(), None);
        write(folder.path(), generation(1), &positions).unwrap();
        write(folder.path(), generation(2), &Positions::new()).unwrap();
        assert_eq!(read(folder.path(), generation(1)).unwrap(), Some(positions));
        keep(folder.path(), &[generation(2)]);
        assert_eq!(read(folder.path(), generation(1)).unwrap(), None);
        assert_eq!(read(folder.path(), generation(2)).unwrap(), Some(Positions::new()));
        let file = path(folder.path(), generation(2));
        std::fs::write(&file, "0 1\n").unwrap();
        assert!(read(folder.path(), generation(2)).is_err(), "it is not whole");
    }
}
