//! Reads every byte that a node keeps of a generation for its group, and single files of parity.

use ckpt_glue::GenerationId;

use crate::job::JobDirectory;
use crate::limits::PAGE_BYTES;
use crate::record::Protected;
use crate::storage::Storage;

use super::base::pages_named;
use super::error::ProtectError;
use super::member::{Opened, page_bytes, read_sums_file, runs_from};
use super::node_parity::{self, NodeParity};
use super::parity_changes::{HEADER_BYTES, ParityChanges, RECORD_BYTES, read_records, record_offset};
use super::{Group, Member};

/// The most faults that are reported one by one; all are counted.
const DAMAGES_MAX: usize = 16;

/// The findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// How the generation is protected, as this node noted.
    pub protected: Protected,
    /// Pages of this node's content.
    pub data_pages: u64,
    /// Pages of the parity that it keeps.
    pub parity_pages: u64,
    /// The faults that are reported one by one.
    pub damages: Vec<ProtectError>,
    /// Of them all.
    pub damaged: u64,
}

impl Scrubbed {
    fn note(&mut self, error: ProtectError) -> Result<(), ProtectError> {
        if !error.is_damage() {
            return Err(error);
        }
        self.damaged += 1;
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(error);
        }
        Ok(())
    }
}

/// Reads everything that this node keeps of a generation: records, its own content against the checksums of its pages,
/// its parity. `None`: it was never protected here. `progress` gets the number of bytes as they are read.
pub fn scrub<S: Storage>(
    directory: JobDirectory<S>,
    generation: GenerationId,
    mut progress: impl FnMut(u64),
) -> Result<Option<Scrubbed>, ProtectError> {
    let mut directory = directory;
    let protected = match node_parity::protected(&mut directory, generation) {
        Err(error) if error.is_absence() => return Ok(None),
        found => found?,
    };
    let Protected { nodes, losses, unit_pages, member, .. } = &protected;
    let group = Group::new(nodes.clone(), *losses)?.with_unit_pages(*unit_pages);
    let mut own = Member::new(directory, group, *member);
    let members = nodes.len();
    let mut scrubbed =
        Scrubbed { protected, data_pages: 0, parity_pages: 0, damages: Vec::new(), damaged: 0 };
    for of in 0..members {
        if let Err(error) = own.content(generation, of) {
            scrubbed.note(error)?;
        }
    }
    match Opened::open(&mut own, generation) {
        Err(error) => scrubbed.note(error)?,
        Ok(mut data) => {
            scrubbed.data_pages = data.content.pages();
            each_page(scrubbed.data_pages, &mut scrubbed, &mut progress, |pages| {
                data.read_run(own.directory(), pages).map(drop)
            })?;
        }
    }
    match NodeParity::open(own.directory(), generation) {
        Err(error) => scrubbed.note(error)?,
        Ok(parity) => {
            scrubbed.parity_pages = parity.pages();
            let mut run = Vec::new();
            each_page(scrubbed.parity_pages, &mut scrubbed, &mut progress, |pages| {
                run.resize(page_bytes(pages.end - pages.start), 0);
                parity.read(own.directory(), pages.start, &mut run)
            })?;
        }
    }
    Ok(Some(scrubbed))
}

/// Reads pages together; where something is wrong, one by one, so that each is named.
fn each_page(
    pages: u64,
    scrubbed: &mut Scrubbed,
    progress: &mut impl FnMut(u64),
    mut read: impl FnMut(core::ops::Range<u64>) -> Result<(), ProtectError>,
) -> Result<(), ProtectError> {
    for run in runs_from(0, pages) {
        progress((run.end - run.start) * PAGE_BYTES as u64);
        if read(run.clone()).is_ok() {
            continue;
        }
        for page in run {
            if let Err(error) = read(page..page + 1) {
                scrubbed.note(error)?;
            }
        }
    }
    Ok(())
}

/// A file of changed parity, by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityFile {
    /// The generation with which the parity has changed; of a file with all pages nothing says so but its name.
    pub generation: Option<GenerationId>,
    /// The generation that it builds upon; `None`: pages that are not in it are zero.
    pub from: Option<GenerationId>,
    /// Pages that it holds.
    pub pages: u64,
    /// The last of their numbers.
    pub last_page: Option<u64>,
    /// Pages that are damaged.
    pub damaged: Vec<u64>,
}

/// Looks at every byte of a file of changed parity.
pub fn inspect_changed<S: Storage>(storage: &mut S, path: &str) -> Result<ParityFile, ProtectError> {
    let changed = ParityChanges::open_file(storage, path)?;
    let mut damaged = Vec::new();
    let mut page = vec![0; PAGE_BYTES];
    for (index, number) in (0..).zip(&changed.numbers) {
        match read_records(storage, path, record_offset(HEADER_BYTES as u64, index), *number, &mut page) {
            Err(ProtectError::ParityDamaged { page, .. }) => damaged.push(page),
            read => read?,
        }
    }
    Ok(ParityFile {
        generation: Some(changed.generation),
        from: changed.from,
        pages: changed.numbers.len() as u64,
        last_page: changed.numbers.last().copied(),
        damaged,
    })
}

/// Looks at every byte of a file with all pages of a node's parity.
pub fn inspect_pages<S: Storage>(storage: &mut S, path: &str) -> Result<ParityFile, ProtectError> {
    let bytes = storage.length(path)?;
    let records = bytes / RECORD_BYTES as u64;
    let named = pages_named(path);
    let is_cut = named.map_or(bytes % RECORD_BYTES as u64 != 0, |named| records < named);
    if is_cut {
        let (path, what) = (path.to_owned(), "the file is cut off");
        return Err(ProtectError::File { path, what });
    }
    // Bytes behind them are from a fold that did not come to its end, and count for nothing.
    let pages = named.unwrap_or(records);
    let (mut damaged, mut page) = (Vec::new(), vec![0; PAGE_BYTES]);
    for number in 0..pages {
        match read_records(storage, path, record_offset(0, number), number, &mut page) {
            Err(ProtectError::ParityDamaged { page, .. }) => damaged.push(page),
            read => read?,
        }
    }
    Ok(ParityFile { generation: None, from: None, pages, last_page: pages.checked_sub(1), damaged })
}

/// How many pages a file of checksums is about, if it is whole.
pub fn inspect_sums<S: Storage>(storage: &mut S, path: &str) -> Result<u64, ProtectError> {
    Ok(read_sums_file(storage, path)?.len() as u64)
}
