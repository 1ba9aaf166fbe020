//! Pages of an encrypted image, decrypted into memory that no file system has.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use nix::sys::memfd::{MFdFlags, memfd_create};
use process::state::memory::PageRun;
use store::{ImageReader, Storage};

use crate::choice::PAGE_BYTES;
use crate::error::AgentError;

/// Pages that are decrypted at once.
const CHUNK_PAGES: u64 = 256;

fn failed(source: io::Error) -> AgentError {
    AgentError::Memory { source }
}

/// Memory as a file, that has these pages of section `section` of an image where the section has them.
pub(crate) fn decrypt<S: Storage>(
    storage: &mut S,
    image: &ImageReader,
    section: u32,
    pages: &[Range<u64>],
) -> Result<File, AgentError> {
    let memory = memfd_create(c"stillwire-pages", MFdFlags::MFD_CLOEXEC);
    let memory = File::from(memory.map_err(|error| failed(error.into()))?);
    let mut chunk = vec![0; usize::try_from(CHUNK_PAGES * PAGE_BYTES).unwrap_or(usize::MAX)];
    for range in pages {
        let mut first = range.start;
        while first < range.end {
            let length = (range.end - first).min(CHUNK_PAGES) * PAGE_BYTES;
            let content = &mut chunk[..usize::try_from(length).unwrap_or(usize::MAX)];
            image.read_pages(storage, section, first, content)?;
            memory.write_all_at(content, first * PAGE_BYTES).map_err(failed)?;
            first += length / PAGE_BYTES;
        }
    }
    Ok(memory)
}

/// Which pages of the section that has `runs` belong to `wanted`; both rise.
pub(crate) fn wanted(runs: &[PageRun], wanted: &[PageRun]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut before = 0;
    for run in runs {
        let end = run.address + run.pages * PAGE_BYTES;
        let from = wanted.partition_point(|other| other.address + other.pages * PAGE_BYTES <= run.address);
        for other in wanted[from..].iter().take_while(|other| other.address < end) {
            let start = other.address.max(run.address);
            let until = (other.address + other.pages * PAGE_BYTES).min(end);
            let page = |address: u64| before + (address - run.address) / PAGE_BYTES;
            found.push(page(start)..page(until));
        }
        before += run.pages;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_base_are_found_by_their_addresses() {
        let run = |page: u64, pages| PageRun { address: page << 12, pages };
        let runs = [run(10, 4), run(20, 2), run(30, 5)];
        assert_eq!(wanted(&runs, &[]), []);
        assert_eq!(
            wanted(&runs, &[run(11, 2), run(13, 1), run(21, 1), run(30, 5)]),
            [1..3, 3..4, 5..6, 6..11]
        );
        // Pages that the base lacks are found missing where the process is put together.
        assert_eq!(wanted(&runs, &[run(5, 7), run(15, 3), run(19, 12)]), [0..2, 4..6, 6..7]);
    }
}
