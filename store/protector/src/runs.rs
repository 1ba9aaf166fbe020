//! Which pages a section of an image consists of.
//!
//! The memory of a process lies in one section, run after run, without gaps. A heap that grows by a page moves everything behind it in the file; by its
//! address each page is still the same one.

use std::cell::RefCell;
use std::collections::BTreeMap;

use process::state::memory::PageRun;
use process::state::{PAGES_KIND, PLACES_KIND, Places, ProcessState, STATE_KIND};
use store::limits::PAGE_BYTES;
use store::{ImageReader, Storage, kinds};

const _: () = assert!(PAGES_KIND == kinds::PROCESS_MEMORY && STATE_KIND == kinds::PROCESS);
const _: () = assert!(PLACES_KIND == kinds::PROCESS_PLACES);

/// Runs of pages: number of the first (its address by the length of a page), and how many.
type Runs = Vec<(u64, u64)>;

/// Answers [`store::protect::Member::place`]; of each image the state is read once.
pub struct ImageRuns<S> {
    storage: RefCell<S>,
    known: RefCell<BTreeMap<String, Runs>>,
}

impl<S: Storage> ImageRuns<S> {
    /// Reads images of `storage`.
    pub fn new(storage: S) -> ImageRuns<S> {
        ImageRuns { storage: RefCell::new(storage), known: RefCell::default() }
    }

    /// Runs of a section; none: nothing is known of it, or it is not memory.
    #[must_use]
    pub fn of(&self, image: &ImageReader, section: u32) -> Runs {
        let is_memory = image.entries().get(section as usize).is_some_and(|entry| entry.kind == PAGES_KIND);
        if !is_memory {
            return Runs::new();
        }
        let mut known = self.known.borrow_mut();
        let runs =
            known.entry(image.path().to_owned()).or_insert_with(|| self.read(image).unwrap_or_default());
        runs.clone()
    }

    /// A state that cannot be read costs larger deltas, nothing else: whether an image is whole is looked at elsewhere.
    fn read(&self, image: &ImageReader) -> Option<Runs> {
        let section = |kind| {
            let number = image.find(kind).ok()?;
            let version = image.entries().get(number as usize)?.version;
            Some((version, image.read_section(&mut *self.storage.borrow_mut(), number).ok()?))
        };
        // The state of an encrypted image is not for everybody.
        let (page_bytes, runs) = if image.header().is_encrypted {
            let (version, bytes) = section(PLACES_KIND)?;
            let Places { page_bytes, runs } = Places::decode(version, &bytes).ok()?;
            (page_bytes, runs)
        } else {
            let (version, bytes) = section(STATE_KIND)?;
            let state = ProcessState::decode(version, &bytes).ok()?;
            (state.machine.page_bytes, state.memory.runs)
        };
        let pages = u64::from(page_bytes) / PAGE_BYTES as u64;
        let run = |run: &PageRun| (run.address / PAGE_BYTES as u64, run.pages * pages);
        Some(runs.iter().map(run).collect())
    }
}
