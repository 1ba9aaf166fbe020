//! What one member of a group does: place its content, tell what has changed, keep parity of what others have.
//!
//! ```text
//!   images durable ---- place ----> content and sums durable -- changes, window by window --> strips for the others
//!   (local)                                                                                     |
//!   protected <---- seal ---- contents of all members durable <---- keep, finish <--- strips of the others, added up
//! ```
//!
//! Nothing here says how strips and records travel, nor in which order members take part.

use core::ops::Range;

use parity::{Kernel, Matrix};
use transport::Rank;

use super::changed::{ChangedWriter, write_file};
use super::error::ProtectError;
use super::group::Group;
use super::kept::{self, Kept};
use super::placement::{Piece, place};
use super::strip::Strip;
use crate::checksum::checksum;
use crate::image::ImageReader;
use crate::job::{GenerationId, JobDirectory, names};
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

    /// Gives every page of the images of `ranks` (and of their bases) its place in this node's content, and notes its checksum, durably.
    ///
    /// `from` is the generation that the parity builds upon: pages keep the places that they have there. `runs` tells which runs of pages
    /// a section of an image consists of ([`Piece::of_image`]).
    pub fn place(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
        ranks: &[Rank],
        runs: impl Fn(&ImageReader, u32) -> Vec<(u64, u64)>,
    ) -> Result<Content, ProtectError> {
        let old = from.map(|from| Opened::open(self, from)).transpose()?;
        let mut readers = Vec::new();
        for rank in ranks {
            let image = self.directory.open_image(generation, *rank)?;
            let base = self.directory.open_base(generation, *rank, &image)?;
            readers.extend([Some((*rank, image)), base.map(|base| (*rank, base))].into_iter().flatten());
        }
        let pieces: Vec<Vec<Piece>> = readers
            .iter()
            .map(|(rank, reader)| {
                // A base is what was the image before it, so both have the same pages.
                let what = if reader.header().is_delta { "changes" } else { "whole" };
                Piece::of_image(&format!("{what} {rank}"), reader, |section| runs(reader, section))
            })
            .collect();
        let before: Vec<_> = old.iter().flat_map(|old| old.content.extents()).copied().collect();
        let placed = place(&before, &pieces);
        let files = readers.iter().zip(placed).map(|((_, reader), extents)| ContentFile {
            name: crate::storage::parent_and_name(reader.path()).1.to_owned(),
            bytes: reader.header().total_bytes,
            digest: reader.digest(),
            extents,
        });
        let (job, node) = (self.directory.job(), self.group.nodes()[self.number]);
        let content = Content { job, generation, node, files: files.collect() };
        let sums = self.sums_of(&content, old.as_ref())?;
        self.write_sums(generation, &sums)?;
        self.write_content(&content)?;
        Ok(content)
    }

    /// Checksums of all pages; those of files that were there before, in the same places, are known.
    fn sums_of(&mut self, content: &Content, old: Option<&Opened>) -> Result<Vec<u64>, ProtectError> {
        let pages = usize::try_from(content.pages()).expect("pages of files fit into memory's numbers");
        let mut sums = vec![zero_sum(); pages];
        for (number, file) in content.files.iter().enumerate() {
            let known = old.filter(|old| {
                let same =
                    |other: &&ContentFile| other.digest == file.digest && other.extents == file.extents;
                old.content.files.iter().find(same).is_some()
            });
            for page in file.extents.iter().flat_map(|at| at.place..at.place + at.piece.pages()) {
                let sum = match known {
                    Some(old) => old.sum(page),
                    None => checksum(&self.read_page(content, number, page)?),
                };
                sums[usize::try_from(page).expect("below the number of pages")] = sum;
            }
        }
        Ok(sums)
    }

    /// Reads a page from its file, without looking whether it is damaged.
    pub(super) fn read_page(
        &mut self,
        content: &Content,
        file: usize,
        page: u64,
    ) -> Result<Vec<u8>, ProtectError> {
        let file = &content.files[file];
        let found = file.extents.iter().find(|at| (at.place..at.place + at.piece.pages()).contains(&page));
        let at = found.expect("the page is in that file");
        let skipped = (page - at.place) * PAGE_BYTES as u64;
        let bytes = (at.piece.bytes - skipped).min(PAGE_BYTES as u64);
        let mut content_bytes = vec![0; PAGE_BYTES];
        let into = &mut content_bytes[..usize::try_from(bytes).expect("at most a page")];
        let path = names::in_generation(content.generation, &file.name);
        self.directory.storage().read_range(&path, at.piece.offset + skipped, into)?;
        Ok(content_bytes)
    }

    pub(super) fn write_sums(&mut self, generation: GenerationId, sums: &[u64]) -> Result<(), ProtectError> {
        let mut bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        let path = names::in_generation(generation, names::SUMS);
        Ok(write_file(self.directory.storage(), &path, &bytes)?)
    }

    fn read_sums(&mut self, generation: GenerationId) -> Result<Vec<u64>, ProtectError> {
        let path = names::in_generation(generation, names::SUMS);
        let mut bytes = self.directory.storage().read(&path, CONTENT_PAGES_MAX * 8)?;
        let sum = bytes.split_off(bytes.len().saturating_sub(8));
        if bytes.len() % 8 != 0 || checksum(&bytes).to_le_bytes() != *sum {
            return Err(ProtectError::File { path, what: "the checksums of pages are damaged" });
        }
        Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(core::array::from_fn(|i| word[i]))).collect())
    }

    /// Keeps what another member has told of its content, durably: whoever is lost, the others know what it had.
    pub fn write_content(&mut self, content: &Content) -> Result<(), ProtectError> {
        let path = names::in_generation(content.generation, &names::content(content.node));
        Ok(write_file(self.directory.storage(), &path, &content.emit())?)
    }

    /// What member `of` has of a generation, as this one knows.
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

    /// Begins to tell what has changed of this node's content since `from`.
    pub fn changes(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<Changes, ProtectError> {
        let new = Opened::open(self, generation)?;
        let old = from.map(|from| Opened::open(self, from)).transpose()?;
        let code = self.group.code();
        // New and old have one coefficient: c (new xor old) = c new xor c old.
        let matrix = |column| Matrix::from_fn(code.parity(), 2, |row, _| code.matrix().get(row, column));
        Ok(Changes { new, old, matrices: (0..code.data()).map(matrix).collect() })
    }

    /// What has changed in these cycles: for each member the strip that goes to it. What has not changed is neither read
    /// nor sent.
    pub fn window(&mut self, changes: &Changes, cycles: Range<u64>) -> Result<Vec<Strip>, ProtectError> {
        let mut strips = vec![Strip::default(); self.group.members()];
        let end = (cycles.end * self.group.data_pages()).min(changes.pages());
        let mut parity = vec![vec![0; PAGE_BYTES]; self.group.losses()];
        for page in cycles.start * self.group.data_pages()..end {
            if changes.old.as_ref().map_or(zero_sum(), |old| old.sum(page)) == changes.new.sum(page) {
                continue;
            }
            let before = match &changes.old {
                Some(old) => old.read(self, page)?,
                None => None,
            };
            let after = changes.new.read(self, page)?;
            let (column, keepers) = self.group.parity_of(self.number, page);
            let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            let sources = [before.as_deref().unwrap_or_default(), after.as_deref().unwrap_or_default()];
            self.kernel.multiply(&changes.matrices[column], &sources, &mut rows);
            for ((keeper, number), row) in keepers.zip(&parity) {
                strips[keeper].add_page(self.kernel, number, row);
            }
        }
        Ok(strips)
    }

    /// Begins to keep parity of a generation, which changes with `from`. Nothing of what is kept for `from` is touched.
    pub fn keep(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<Keeping<S::File>, ProtectError> {
        let below = from.map(|from| Kept::open(&mut self.directory, from)).transpose()?;
        let pages = below.as_ref().map_or(0, Kept::pages);
        let writer = ChangedWriter::begin(self.directory.storage(), generation, from)?;
        Ok(Keeping { writer, below, pages })
    }

    /// Takes the strips of all members for the next cycles, added up.
    pub fn keep_strip(&mut self, keeping: &mut Keeping<S::File>, strip: &Strip) -> Result<(), ProtectError> {
        let zero = vec![0; PAGE_BYTES];
        for (number, changed) in strip.pages() {
            // Where parity grows, every page is among the changes, so that folding them in leaves no gap.
            for gap in keeping.pages..number {
                keeping.writer.page(self.directory.storage(), gap, &zero)?;
            }
            keeping.pages = keeping.pages.max(number + 1);
            let mut page = match &keeping.below {
                Some(below) => below.page(&mut self.directory, number)?,
                None => None,
            }
            .unwrap_or_else(|| zero.clone());
            self.kernel.multiply_add(&Matrix::identity(1), &[changed], &mut [&mut page]);
            keeping.writer.page(self.directory.storage(), number, &page)?;
        }
        Ok(())
    }

    /// Makes durable what is kept; says how many pages have changed.
    pub fn finish(&mut self, keeping: Keeping<S::File>) -> Result<u64, ProtectError> {
        keeping.writer.finish(self.directory.storage())
    }

    /// Notes, durably, that this member keeps all that it has to keep for a generation. Only then may it be committed.
    pub fn seal(&mut self, generation: GenerationId, from: Option<GenerationId>) -> Result<(), ProtectError> {
        for of in 0..self.group.members() {
            let node = self.group.nodes()[of];
            self.content(generation, of).map_err(|_| ProtectError::Incomplete {
                generation,
                what: format!("what node {node} has"),
            })?;
        }
        self.read_sums(generation)?;
        Kept::open(&mut self.directory, generation)?;
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
        kept::protected(&mut self.directory, generation)
    }

    /// Gives up what this member had begun to keep for a generation that will not be committed.
    pub fn abandon(&mut self, keeping: Keeping<S::File>) -> Result<(), ProtectError> {
        match self.directory.storage().remove_file(&keeping.writer.temporary()) {
            Ok(()) | Err(StorageError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Parity of a generation that a member is about to keep.
#[derive(Debug)]
pub struct Keeping<F> {
    writer: ChangedWriter<F>,
    below: Option<Kept>,
    pages: u64,
}

/// What has changed of a node's content.
#[derive(Clone, Debug)]
pub struct Changes {
    new: Opened,
    old: Option<Opened>,
    /// By column: one row for each parity, for what was and what is.
    matrices: Vec<Matrix>,
}

impl Changes {
    /// Pages that may have changed: the longer one of both contents.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.new.content.pages().max(self.old.as_ref().map_or(0, |old| old.content.pages()))
    }

    /// Number of pages that have changed.
    #[must_use]
    pub fn changed_pages(&self) -> u64 {
        let old = |page| self.old.as_ref().map_or(zero_sum(), |old| old.sum(page));
        (0..self.pages()).filter(|page| old(*page) != self.new.sum(*page)).count() as u64
    }
}

/// A node's content of a generation, ready to be read page by page.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) content: Content,
    /// First place, number of pages, file: by place.
    index: Vec<(u64, u64, usize)>,
    sums: Vec<u64>,
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
        Ok(Opened::new(content, sums))
    }

    fn new(content: Content, sums: Vec<u64>) -> Opened {
        let of = |(number, file): (usize, &ContentFile)| {
            file.extents.iter().map(move |at| (at.place, at.piece.pages(), number)).collect::<Vec<_>>()
        };
        let mut index: Vec<_> = content.files.iter().enumerate().flat_map(of).collect();
        index.sort_unstable();
        Opened { content, index, sums }
    }

    fn sum(&self, page: u64) -> u64 {
        let known = usize::try_from(page).ok().and_then(|page| self.sums.get(page));
        known.copied().unwrap_or(zero_sum())
    }

    /// Page `page`, looked at; `None`: nothing lies there, it is zero.
    pub(super) fn read<S: Storage>(
        &self,
        member: &mut Member<S>,
        page: u64,
    ) -> Result<Option<Vec<u8>>, ProtectError> {
        let after = self.index.partition_point(|(place, ..)| *place <= page);
        let found =
            after.checked_sub(1).map(|at| self.index[at]).filter(|(place, pages, _)| place + pages > page);
        let Some((_, _, file)) = found else { return Ok(None) };
        let bytes = member.read_page(&self.content, file, page)?;
        if checksum(&bytes) != self.sum(page) {
            let (generation, node) = (self.content.generation, self.content.node);
            return Err(ProtectError::DataDamaged { generation, node, page });
        }
        Ok(Some(bytes))
    }
}

/// Checksum of a page where nothing lies.
pub(super) fn zero_sum() -> u64 {
    const ZERO: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    static SUM: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SUM.get_or_init(|| checksum(&ZERO))
}
