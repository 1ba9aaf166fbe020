//! An image as the tests write it: a page with lengths, the pages, the state, the descriptors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use process::state::memory::PageRun;
use process::state::{Files, ProcessState, VERSION};
use xxhash_rust::xxh3::Xxh3;

/// Where the pages begin.
pub(crate) const PAGES_OFFSET: u64 = 4096;
const MAGIC: u64 = 0x7374_6b6e_6974_7365;

/// The checksum of the pages.
pub(crate) struct Sum(Xxh3);

impl Sum {
    #[allow(dead_code, reason = "only the one who writes sums")]
    pub(crate) fn new() -> Sum {
        Sum(Xxh3::new())
    }
}

impl process::Sum for Sum {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn value(&self) -> u64 {
        self.0.digest()
    }
}

/// The image below, and the pages that it has for this one.
pub(crate) type BaseSection = Option<(String, Vec<PageRun>)>;

/// Writes the part after the pages, and the page before them.
#[allow(dead_code, reason = "only the preloaded library writes")]
pub(crate) fn finish(
    file: &File,
    pages_bytes: u64,
    pages_sum: u64,
    state: &ProcessState,
    files: &Files,
    base_pages: &BaseSection,
) -> io::Result<()> {
    let base_pages = postcard::to_allocvec(base_pages).map_err(io::Error::other)?;
    let (state, files) = (state.encode(), files.encode());
    let mut at = PAGES_OFFSET + pages_bytes;
    for section in [&state, &files, &base_pages] {
        file.write_all_at(section, at)?;
        at += section.len() as u64;
    }
    let [state, files, base_pages] = [state, files, base_pages].map(|section| section.len() as u64);
    let words = [MAGIC, pages_bytes, pages_sum, state, files, base_pages];
    let head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&head, 0)
}

/// An image without its pages, whose bytes begin at [`PAGES_OFFSET`].
#[allow(dead_code, reason = "not every test reads all of it")]
pub(crate) struct Read {
    pub(crate) state: ProcessState,
    pub(crate) files: Files,
    pub(crate) base_pages: BaseSection,
    pub(crate) pages_bytes: u64,
    pub(crate) pages_sum: u64,
}

#[allow(dead_code, reason = "not every test reads")]
pub(crate) fn read(file: &File) -> io::Result<Read> {
    let mut words = [0u64; 6];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, index as u64 * 8)?;
        *word = u64::from_le_bytes(bytes);
    }
    let [magic, pages_bytes, pages_sum, state_bytes, files_bytes, below_bytes] = words;
    if magic != MAGIC {
        return Err(io::Error::other("not an image of the tests"));
    }
    let mut at = PAGES_OFFSET + pages_bytes;
    let mut section = |bytes: u64| {
        let mut section = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        file.read_exact_at(&mut section, at)?;
        at += bytes;
        Ok::<_, io::Error>(section)
    };
    Ok(Read {
        state: ProcessState::decode(VERSION, &section(state_bytes)?).map_err(io::Error::other)?,
        files: Files::decode(VERSION, &section(files_bytes)?).map_err(io::Error::other)?,
        base_pages: postcard::from_bytes(&section(below_bytes)?).map_err(io::Error::other)?,
        pages_bytes,
        pages_sum,
    })
}
