//! The work of one member of a group: place its content, report changes, keep parity of the others' content.
//!
//! ```text
//!   images durable ---- place ----> content and sums durable -- changes, window by window --> strips for the others
//!   (local)                                                                                     |
//!   protected <---- seal ---- contents of all members durable <---- keep, finish <--- strips of the others, added up
//! ```
//!
//! Nothing here says how strips and records travel, nor in which order members take part.

use core::ops::Range;

use ckpt_glue::GenerationId;
use parity::{Kernel, Matrix};
use transport::Rank;

use super::error::ProtectError;
use super::group::Group;
use super::node_parity::{self, NodeParity};
use super::parity_changes::{ParityChangesWriter, RUN_BYTES, write_file};
use super::placement::{Extent, Piece, place};
use super::strip::{CHUNK_PAGES, Strip};
use crate::checksum::checksum;
use crate::image::ImageReader;
use crate::job::{JobDirectory, names};
use crate::limits::{CONTENT_PAGES_MAX, PAGE_BYTES, RECORD_BYTES_MAX};
use crate::record::{Content, ContentFile, Protected};
use crate::storage::{Storage, StorageError};

/// A node as a member of its group, over its directory of the job.
#[derive(Clone, Debug)]
pub struct Member<S> {
    directory: JobDirectory<S>,
    group: Group,
    number: usize,
    kernel: Kernel,
}

impl<S: Storage> Member<S> {
    /// Member `number` of `group`; `directory` is its node's.
    pub fn new(directory: JobDirectory<S>, group: Group, number: usize) -> Member<S> {
        assert!(number < group.members(), "a group has a member with that number");
        Member { directory, group, number, kernel: Kernel::best() }
    }

    /// The node's directory of the job.
    pub fn directory(&mut self) -> &mut JobDirectory<S> {
        &mut self.directory
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Its place in the group.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The best kernel of this processor.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Gives every page of the images of `ranks` (and of their bases) its place in this node's content, durably.
    ///
    /// `from` is the generation that the parity builds upon: pages keep the places that they have there. `runs` gives
    /// the runs of pages of a section of an image ([`Piece::of_image`]).
    pub fn place(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
        ranks: &[Rank],
        runs: impl Fn(&ImageReader, u32) -> Vec<(u64, u64)>,
    ) -> Result<Content, ProtectError> {
        let old = from.map(|from| self.content(from, self.number)).transpose()?;
        let mut readers = Vec::new();
        for rank in ranks {
            let image = self.directory.open_image(generation, *rank)?;
            let base = self.directory.open_base(generation, *rank, &image)?;
            readers.extend([Some((*rank, image)), base.map(|base| (*rank, base))].into_iter().flatten());
        }
        let pieces: Vec<Vec<Piece>> = readers
            .iter()
            .map(|(rank, reader)| {
                // A base was the image before it, so both have the same pages.
                let what = if reader.header().is_delta { "changes" } else { "whole" };
                Piece::of_image(&format!("{what} {rank}"), reader, |section| runs(reader, section))
            })
            .collect();
        let before: Vec<_> = old.iter().flat_map(Content::extents).copied().collect();
        let placed = place(&before, &pieces);
        let files = readers.iter().zip(placed).map(|((_, reader), extents)| ContentFile {
            name: crate::storage::parent_and_name(reader.path()).1.to_owned(),
            bytes: reader.header().total_bytes,
            digest: reader.digest(),
            extents,
        });
        let (job, node) = (self.directory.job(), self.group.nodes()[self.number]);
        let content = Content { job, generation, node, files: files.collect() };
        self.write_content(&content)?;
        Ok(content)
    }

    pub(super) fn write_sums(&mut self, generation: GenerationId, sums: &[u64]) -> Result<(), ProtectError> {
        let mut bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        let path = names::in_generation(generation, names::SUMS);
        Ok(write_file(self.directory.storage(), &path, &bytes)?)
    }

    fn read_sums(&mut self, generation: GenerationId) -> Result<Vec<u64>, ProtectError> {
        read_sums_file(self.directory.storage(), &names::in_generation(generation, names::SUMS))
    }

    /// Keeps another member's report of its content, durably: if that member is lost, the others know its content.
    pub fn write_content(&mut self, content: &Content) -> Result<(), ProtectError> {
        let path = names::in_generation(content.generation, &names::content(content.node));
        Ok(write_file(self.directory.storage(), &path, &content.emit())?)
    }

    /// The content of member `of` in a generation, as this one knows.
    pub fn content(&mut self, generation: GenerationId, of: usize) -> Result<Content, ProtectError> {
        let node = self.group.nodes()[of];
        let path = names::in_generation(generation, &names::content(node));
        let bytes = self.directory.storage().read(&path, RECORD_BYTES_MAX)?;
        let content =
            Content::parse(&bytes).map_err(|error| ProtectError::Record { path: path.clone(), error })?;
        let (job, expected) = (self.directory.job(), (generation, node));
        if content.job != job || (content.generation, content.node) != expected {
            return Err(ProtectError::File {
                path,
                what: "the record belongs to another job, generation or node",
            });
        }
        Ok(content)
    }

    /// Begins to report changes of this node's content since `from`.
    pub fn changes(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<Changes, ProtectError> {
        let old = from.map(|from| Opened::open(self, from)).transpose()?;
        let mut new = Opened::new(self.content(generation, self.number)?);
        // Of files that were there before, in the same places, the checksums are known; of the others they become known on the way.
        for file in &new.content.files {
            let known = old.as_ref().filter(|old| {
                let same = |other: &ContentFile| other.digest == file.digest && other.extents == file.extents;
                old.content.files.iter().any(same)
            });
            for page in file.extents.iter().flat_map(|at| at.place..at.place + at.piece.pages()) {
                new.sums[usize::try_from(page).expect("pages of files fit into memory's numbers")] =
                    known.map(|old| old.sum(page).expect("an old content has all checksums"));
            }
        }
        let code = self.group.code();
        // New and old have one coefficient: c (new xor old) = c new xor c old.
        let matrix = |column| Matrix::from_fn(code.parity(), 2, |row, _| code.matrix().get(row, column));
        Ok(Changes { new, old, matrices: (0..code.data()).map(matrix).collect() })
    }

    /// Changes in these cycles: for each keeper and each row, in this order, its strip. Unchanged pages are neither read nor sent.
    pub fn window(&mut self, changes: &mut Changes, cycles: Range<u64>) -> Result<Vec<Strip>, ProtectError> {
        let mut strips = vec![Strip::default(); self.group.members() * self.group.losses()];
        let end = (cycles.end * self.group.data_pages()).min(changes.pages());
        let mut at = cycles.start * self.group.data_pages();
        while at < end {
            let Some(first) = (at..end).find(|page| changes.is_to_be_read(*page)) else { break };
            let most = end.min(first + RUN_PAGES);
            at = (first..most).find(|page| !changes.is_to_be_read(*page)).unwrap_or(most);
            let after = changes.new.read_run(&mut self.directory, first..at)?;
            for changed in changes.changed_runs(first..at) {
                let before = match &mut changes.old {
                    Some(old) => old.read_run(&mut self.directory, changed.clone())?,
                    None => Vec::new(),
                };
                let skipped = page_bytes(changed.start - first);
                let after = &after[skipped..skipped + page_bytes(changed.end - changed.start)];
                self.contribute(changes, changed, &before, after, &mut strips);
            }
        }
        Ok(strips)
    }

    /// Adds the contributions of changed pages to the strips; `before` and `after` are their contents. Pages that were zero need no bytes.
    fn contribute(
        &self,
        changes: &Changes,
        pages: Range<u64>,
        before: &[u8],
        after: &[u8],
        strips: &mut [Strip],
    ) {
        let (unit, losses) = (self.group.unit_pages(), self.group.losses());
        let mut parity = Vec::new();
        let mut at = pages.start;
        while at < pages.end {
            // Within a unit, pages that follow each other have parity that does.
            let until = pages.end.min((at / unit + 1) * unit);
            let bytes = page_bytes(at - pages.start)..page_bytes(until - pages.start);
            let length = bytes.len();
            parity.resize(losses * length, 0);
            let mut rows: Vec<&mut [u8]> = parity.chunks_exact_mut(length).collect();
            let sources = [before.get(bytes.clone()).unwrap_or_default(), &after[bytes]];
            let (column, keepers) = self.group.parity_of(self.number, at);
            self.kernel.multiply(&changes.matrices[column], &sources, &mut rows);
            for (row, ((keeper, number), bytes)) in keepers.zip(&rows).enumerate() {
                strips[keeper * losses + row].add_pages(self.kernel, number, bytes);
            }
            at = until;
        }
    }

    /// Records the checksums of all pages, durably: after all cycles have been reported.
    pub fn record_checksums(&mut self, changes: &Changes) -> Result<(), ProtectError> {
        let generation = changes.new.content.generation;
        let sums: Option<Vec<u64>> = changes.new.sums.iter().copied().collect();
        let what = || "a checksum of a page that was not looked at".to_owned();
        let sums = sums.ok_or_else(|| ProtectError::Incomplete { generation, what: what() })?;
        self.write_sums(generation, &sums)
    }

    /// Begins to keep parity of a generation, as changes of `from`. Files kept for `from` do not change.
    pub fn keep(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<Keeping<S::File>, ProtectError> {
        let below = from.map(|from| NodeParity::open(&mut self.directory, from)).transpose()?;
        let pages = below.as_ref().map_or(0, NodeParity::pages);
        let writer = ParityChangesWriter::begin(self.directory.storage(), generation, from)?;
        Ok(Keeping { writer, below, pages })
    }

    /// Takes the strips of all members for the next cycles, added up.
    pub fn keep_strip(&mut self, keeping: &mut Keeping<S::File>, strip: &Strip) -> Result<(), ProtectError> {
        let mut run = Vec::new();
        for (chunk, mask, changed) in strip.chunks() {
            let mut changed = changed;
            for (first, pages) in runs_of(mask) {
                let number = chunk * CHUNK_PAGES + first;
                // Where parity grows, every page is among the changes, so that folding them in leaves no gap.
                for gap in keeping.pages..number {
                    keeping.writer.pages(self.directory.storage(), gap, &ZERO_PAGE)?;
                }
                keeping.pages = keeping.pages.max(number + pages);
                let (part, rest) = changed.split_at(page_bytes(pages));
                changed = rest;
                match &keeping.below {
                    Some(below) => {
                        run.resize(part.len(), 0);
                        below.read(&mut self.directory, number, &mut run)?;
                        self.kernel.multiply_add(&Matrix::identity(1), &[part], &mut [&mut run]);
                        keeping.writer.pages(self.directory.storage(), number, &run)?;
                    }
                    None => keeping.writer.pages(self.directory.storage(), number, part)?,
                }
            }
        }
        Ok(())
    }

    /// Makes the kept parity durable; returns how many pages have changed.
    pub fn finish(&mut self, keeping: Keeping<S::File>) -> Result<u64, ProtectError> {
        keeping.writer.finish(self.directory.storage())
    }

    /// Notes, durably, that this member keeps all that it has to keep for a generation. Only then may it be committed.
    pub fn seal(&mut self, generation: GenerationId, from: Option<GenerationId>) -> Result<(), ProtectError> {
        for of in 0..self.group.members() {
            let node = self.group.nodes()[of];
            self.content(generation, of).map_err(|error| match error {
                error if error.is_unreadable() => error,
                _ => ProtectError::Incomplete { generation, what: format!("what node {node} has") },
            })?;
        }
        self.read_sums(generation)?;
        NodeParity::open(&mut self.directory, generation)?;
        self.write_protected(generation, from)
    }

    pub(super) fn write_protected(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<(), ProtectError> {
        let record = Protected {
            job: self.directory.job(),
            generation,
            from,
            member: self.number,
            losses: self.group.losses(),
            unit_pages: self.group.unit_pages(),
            nodes: self.group.nodes().to_vec(),
        };
        let path = names::in_generation(generation, names::PROTECTED);
        Ok(write_file(self.directory.storage(), &path, &record.emit())?)
    }

    /// How a generation is protected, as this member noted.
    pub fn protected(&mut self, generation: GenerationId) -> Result<Protected, ProtectError> {
        node_parity::protected(&mut self.directory, generation)
    }

    /// Gives up the parity that this member had begun to keep for a generation that will not be committed.
    pub fn abandon(&mut self, keeping: Keeping<S::File>) -> Result<(), ProtectError> {
        match self.directory.storage().remove_file(&keeping.writer.temporary()) {
            Ok(()) | Err(StorageError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads a file of checksums: of each page, and of the file.
pub(super) fn read_sums_file<S: Storage>(storage: &mut S, path: &str) -> Result<Vec<u64>, ProtectError> {
    let mut bytes = storage.read(path, CONTENT_PAGES_MAX * 8)?;
    let sum = bytes.split_off(bytes.len().saturating_sub(8));
    if bytes.len() % 8 != 0 || checksum(&bytes).to_le_bytes() != *sum {
        let (path, what) = (path.to_owned(), "the checksums of pages are damaged");
        return Err(ProtectError::File { path, what });
    }
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(core::array::from_fn(|i| word[i]))).collect())
}

/// Parity of a generation that a member is about to keep.
#[derive(Debug)]
pub struct Keeping<F> {
    writer: ParityChangesWriter<F>,
    below: Option<NodeParity>,
    pages: u64,
}

/// Changes of a node's content.
#[derive(Clone, Debug)]
pub struct Changes {
    new: Opened,
    old: Option<Opened>,
    /// By column: one row for each parity, for old and new content.
    matrices: Vec<Matrix>,
}

impl Changes {
    /// Pages that may have changed: the longer one of both contents.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.new.content.pages().max(self.old.as_ref().map_or(0, |old| old.content.pages()))
    }

    /// How many pages of each cycle have to be read to find changes, an upper bound of the changed pages: run by run,
    /// cycles and pages of each of them. Behind the last run nothing has changed.
    #[must_use]
    pub fn pages_to_read(&self, cycle_pages: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for cycle in 0..self.pages().div_ceil(cycle_pages) {
            let pages = cycle * cycle_pages..((cycle + 1) * cycle_pages).min(self.pages());
            let count = pages.filter(|page| self.is_to_be_read(*page)).count() as u64;
            match runs.last_mut() {
                Some((cycles, same)) if *same == count => *cycles += 1,
                _ => runs.push((1, count)),
            }
        }
        runs.pop_if(|(_, count)| *count == 0);
        runs
    }

    fn before(&self, page: u64) -> u64 {
        self.old.as_ref().map_or(zero_sum(), |old| old.sum(page).expect("an old content has all checksums"))
    }

    /// It has changed, or that is not known yet.
    fn is_to_be_read(&self, page: u64) -> bool {
        self.new.sum(page) != Some(self.before(page))
    }

    /// Which of these pages, whose checksums are known, have changed: runs of them.
    fn changed_runs(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in pages.filter(|page| self.is_to_be_read(*page)) {
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }
}

/// Pages that are read at once.
pub(super) const RUN_PAGES: u64 = (RUN_BYTES / PAGE_BYTES) as u64;

/// Bytes of so few pages that they are in memory.
pub(super) fn page_bytes(pages: u64) -> usize {
    usize::try_from(pages).expect("they are in memory") * PAGE_BYTES
}

/// Runs of so many pages, each short enough to be read at once.
pub(super) fn runs_from(first: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    (first..end).step_by(RUN_BYTES / PAGE_BYTES).map(move |from| from..end.min(from + RUN_PAGES))
}

/// Runs of bits: first one, and how many.
fn runs_of(mask: u16) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let rest = u32::from(mask).checked_shr(at).filter(|rest| *rest != 0)?;
        let first = at + rest.trailing_zeros();
        let length = (u32::from(mask) >> first).trailing_ones();
        at = first + length;
        Some((u64::from(first), u64::from(length)))
    })
}

/// A node's content of a generation, ready to be read.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) content: Content,
    /// By place.
    index: Vec<PageExtent>,
    /// Of each page; `None`: not known yet.
    sums: Vec<Option<u64>>,
}

/// Where pages lie that follow each other.
#[derive(Clone, Copy, Debug)]
struct PageExtent {
    place: u64,
    pages: u64,
    file: usize,
    offset: u64,
    bytes: u64,
}

impl Opened {
    pub(super) fn open<S: Storage>(
        member: &mut Member<S>,
        generation: GenerationId,
    ) -> Result<Opened, ProtectError> {
        let content = member.content(generation, member.number)?;
        let sums = member.read_sums(generation)?;
        if sums.len() as u64 != content.pages() {
            let path = names::in_generation(generation, names::SUMS);
            return Err(ProtectError::File { path, what: "there are more or fewer checksums than pages" });
        }
        Ok(Opened { sums: sums.into_iter().map(Some).collect(), ..Opened::new(content) })
    }

    /// As if nothing lay there.
    pub(super) fn new(content: Content) -> Opened {
        let of = |(file, found): (usize, &ContentFile)| {
            let lying = move |at: &Extent| {
                let (place, pages) = (at.place, at.piece.pages());
                PageExtent { place, pages, file, offset: at.piece.offset, bytes: at.piece.bytes }
            };
            found.extents.iter().map(lying).collect::<Vec<_>>()
        };
        let mut index: Vec<_> = content.files.iter().enumerate().flat_map(of).collect();
        index.sort_unstable_by_key(|lying| lying.place);
        let pages = usize::try_from(content.pages()).expect("pages of files fit into memory's numbers");
        Opened { content, index, sums: vec![Some(zero_sum()); pages] }
    }

    fn sum(&self, page: u64) -> Option<u64> {
        let known = usize::try_from(page).ok().and_then(|page| self.sums.get(page));
        known.copied().unwrap_or(Some(zero_sum()))
    }

    /// The extents in these pages, by place.
    fn lying(&self, pages: &Range<u64>) -> impl Iterator<Item = PageExtent> {
        let from = self.index.partition_point(|lying| lying.place + lying.pages <= pages.start);
        let end = pages.end;
        self.index[from..].iter().copied().take_while(move |lying| lying.place < end)
    }

    /// Reads pages as they lie in their files, without looking whether they are damaged.
    pub(super) fn read_plain<S: Storage>(
        &self,
        directory: &mut JobDirectory<S>,
        pages: &Range<u64>,
    ) -> Result<Vec<u8>, ProtectError> {
        let mut bytes = vec![0; page_bytes(pages.end - pages.start)];
        for PageExtent { place, pages: count, file, offset, bytes: length } in self.lying(pages) {
            let (first, last) = (place.max(pages.start), (place + count).min(pages.end));
            let skipped = (first - place) * PAGE_BYTES as u64;
            let wanted = (length - skipped).min((last - first) * PAGE_BYTES as u64);
            let at = page_bytes(first - pages.start);
            let into = &mut bytes[at..at + usize::try_from(wanted).expect("within the pages")];
            let path = names::in_generation(self.content.generation, &self.content.files[file].name);
            directory.storage().read_range(&path, offset + skipped, into)?;
        }
        Ok(bytes)
    }

    /// Reads pages and compares them with their checksums; those that are not known become known.
    pub(super) fn read_run<S: Storage>(
        &mut self,
        directory: &mut JobDirectory<S>,
        pages: Range<u64>,
    ) -> Result<Vec<u8>, ProtectError> {
        let bytes = self.read_plain(directory, &pages)?;
        for (page, content) in pages.zip(bytes.chunks_exact(PAGE_BYTES)) {
            let sum = checksum(content);
            match usize::try_from(page).ok().and_then(|page| self.sums.get_mut(page)) {
                Some(unknown @ None) => *unknown = Some(sum),
                Some(Some(known)) if *known != sum => {
                    let (generation, node) = (self.content.generation, self.content.node);
                    return Err(ProtectError::DataDamaged { generation, node, page });
                }
                _ => {}
            }
        }
        Ok(bytes)
    }
}

/// A page where nothing lies.
pub(super) static ZERO_PAGE: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Its checksum.
pub(super) fn zero_sum() -> u64 {
    static SUM: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SUM.get_or_init(|| checksum(&ZERO_PAGE))
}
