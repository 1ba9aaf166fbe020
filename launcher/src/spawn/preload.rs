//! Programs that are saved as whole processes: which those are, and how they are started.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use agent::last_id;
use client::launch::NATIVE_MARK;
use process::state::ProcessState;
use store::{Directory, GenerationId, JobDirectory, StoreError, kinds};
use transport::Rank;

use super::namespace::Wanted;
use crate::Program;
use crate::error::LauncherError;

/// The loader's variable with libraries that come before all others.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Bytes of a program's file that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Whether a program names the points at which it is saved: its file shows that.
pub fn is_native(program: &Program) -> Result<bool, LauncherError> {
    let path = program.find(&program.command[0])?;
    let unreadable = |error| LauncherError::File { path: path.clone(), error, expected: "a program" };
    let mut file = std::fs::File::open(&path).map_err(unreadable)?;
    contains(&mut file, NATIVE_MARK).map_err(unreadable)
}

fn contains(file: &mut impl std::io::Read, words: &[u8]) -> std::io::Result<bool> {
    let mut bytes = Vec::new();
    loop {
        let read = file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut bytes)?;
        if bytes.windows(words.len()).any(|window| window == words) {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        // They may lie across the border.
        bytes.drain(..bytes.len().saturating_sub(words.len()));
    }
}

/// Has a program start with the library, whose constructor makes it one that can be saved.
/// `capture`: how it is captured, if not by its own choice.
pub fn equip(program: &mut Program, library: &Path, capture: Option<&str>) {
    let before = program.variable(OsStr::new(PRELOAD_VARIABLE)).filter(|before| !before.is_empty());
    let mut libraries = library.as_os_str().to_owned();
    if let Some(before) = before {
        libraries.push(":");
        libraries.push(before);
    }
    program.environment.push((PRELOAD_VARIABLE.into(), libraries));
    program.environment.push((agent::SAVE_VARIABLE.into(), agent::SAVE_PROCESS.into()));
    if let Some(capture) = capture {
        program.environment.push((agent::CAPTURE_VARIABLE.into(), capture.into()));
    }
}

/// The library with which a program starts, if it does.
pub fn library(program: &Program) -> Option<PathBuf> {
    let libraries = program.variable(OsStr::new(PRELOAD_VARIABLE))?;
    let first = libraries.as_bytes().split(|byte| *byte == b':').next()?;
    Some(PathBuf::from(OsStr::from_bytes(first)))
}

/// The program and the ids that an image restores. The program is the executable that ran, which may be the interpreter of the program that a person
/// named. `None`: the image is of a program that names its own points.
pub(crate) fn restored(
    program: &Program,
    directory: &mut JobDirectory<Directory>,
    generation: GenerationId,
    rank: Rank,
) -> Result<Option<(Program, Wanted)>, StoreError> {
    let reader = directory.open_committed_image(generation, rank)?;
    let Ok(number) = reader.find(kinds::PROCESS) else {
        return Ok(None);
    };
    let bytes = reader.read_section(directory.storage(), number)?;
    let version = reader.entries()[number as usize].version;
    let state = ProcessState::decode(version, &bytes).map_err(|_| StoreError::Image {
        path: reader.path().to_owned(),
        error: store::ImageError::SectionUnreadable {
            kind: kinds::PROCESS,
            version,
            bytes: bytes.len() as u64,
        },
    })?;
    let last = match reader.find(kinds::PROCESS_IDS) {
        Ok(number) => last_id(&reader.read_section(directory.storage(), number)?),
        // It had no namespace of its own.
        Err(_) => None,
    };
    let highest = state.threads.iter().map(|thread| thread.tid).max();
    let wanted = Wanted::Saved { id: state.program.pid, last: last.or(highest).unwrap_or(0) };
    let command = vec![OsString::from_vec(state.program.executable)];
    Ok(Some((Program { command, ..program.clone() }, wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_wherever_they_lie() {
        let words = b"a sentence of some length";
        for place in [0, 1, CHUNK_BYTES - 30, CHUNK_BYTES - 7, CHUNK_BYTES, 3 * CHUNK_BYTES - 1] {
            let mut bytes = vec![b'a'; 3 * CHUNK_BYTES + 100];
            bytes[place..place + words.len()].copy_from_slice(words);
            assert!(contains(&mut bytes.as_slice(), words).unwrap(), "{place}");
            bytes[place + 3] = b'x';
            assert!(!contains(&mut bytes.as_slice(), words).unwrap(), "{place}");
        }
    }

    #[test]
    fn this_program_has_points_of_its_own_and_a_shell_has_none() {
        let program = |name: &str| Program {
            command: vec![name.into()],
            directory: "/".into(),
            environment: Vec::new(),
            inherited: None,
        };
        assert!(!is_native(&program("/bin/sh")).unwrap());
        let own = std::env::current_exe().unwrap();
        assert!(is_native(&program(own.to_str().unwrap())).unwrap());
    }
}
