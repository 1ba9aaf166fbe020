//! What was lost or damaged is computed from what the other members have.

use core::ops::Range;
use std::collections::BTreeMap;

use parity::Recovery;

use super::changed::create_anew;
use super::error::ProtectError;
use super::group::{Group, Place};
use super::kept::{self, Kept};
use super::member::{Member, Opened};
use crate::checksum::checksum;
use crate::error::StoreError;
use crate::image::ImageReader;
use crate::job::{GenerationId, names};
use crate::limits::PAGE_BYTES;
use crate::record::{Content, ContentFile, Protected};
use crate::storage::{Storage, StorageError};

/// A page that another member has, or has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is zero, and not sent.
    Zero,
    /// Its bytes.
    Page(Vec<u8>),
    /// It is damaged there, or lost.
    Damaged,
}

/// How a member that is repaired asks the others. A member that does not answer counts as lost.
pub trait Others {
    /// What member `of` has, as member `asked` knows ([`Member::content`]).
    fn content(&mut self, asked: usize, of: usize, generation: GenerationId)
    -> Result<Content, ProtectError>;

    /// Pages of the content of `asked` ([`Served::data`]).
    fn data(
        &mut self,
        asked: usize,
        generation: GenerationId,
        pages: Range<u64>,
    ) -> Result<Vec<Told>, ProtectError>;

    /// Pages of the parity that `asked` keeps ([`Served::parity`]).
    fn parity(
        &mut self,
        asked: usize,
        generation: GenerationId,
        pages: Range<u64>,
    ) -> Result<Vec<Told>, ProtectError>;
}

/// What a member answers from while another one is repaired. What is wrong with it is known page by page.
#[derive(Clone, Debug)]
pub struct Served {
    data: Option<Opened>,
    parity: Option<Kept>,
}

impl Served {
    /// Opens what `member` has of a generation.
    pub fn open<S: Storage>(
        member: &mut Member<S>,
        generation: GenerationId,
    ) -> Result<Served, ProtectError> {
        let data = unless_damaged(Opened::open(member, generation))?;
        let parity = unless_damaged(Kept::open(member.directory(), generation))?;
        Ok(Served { data, parity })
    }

    /// Pages of its content.
    pub fn data<S: Storage>(
        &self,
        member: &mut Member<S>,
        mut pages: Range<u64>,
    ) -> Result<Vec<Told>, ProtectError> {
        pages.try_fold(Vec::new(), |mut told, page| {
            told.push(match &self.data {
                Some(data) => tell(data.read(member, page))?,
                None => Told::Damaged,
            });
            Ok(told)
        })
    }

    /// Pages of the parity that it keeps.
    pub fn parity<S: Storage>(
        &self,
        member: &mut Member<S>,
        mut pages: Range<u64>,
    ) -> Result<Vec<Told>, ProtectError> {
        pages.try_fold(Vec::new(), |mut told, page| {
            told.push(match &self.parity {
                Some(parity) => tell(parity.page(member.directory(), page))?,
                None => Told::Damaged,
            });
            Ok(told)
        })
    }
}

fn unless_damaged<T>(found: Result<T, ProtectError>) -> Result<Option<T>, ProtectError> {
    match found {
        Err(error) if error.is_damage() => Ok(None),
        found => found.map(Some),
    }
}

fn tell(read: Result<Option<Vec<u8>>, ProtectError>) -> Result<Told, ProtectError> {
    Ok(match unless_damaged(read)? {
        Some(Some(page)) => Told::Page(page),
        Some(None) => Told::Zero,
        None => Told::Damaged,
    })
}

/// What a repair has done, or a look has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Files that were missing or cut off.
    pub files: u64,
    /// Damaged pages of files that were there.
    pub pages: u64,
    /// Pages of parity.
    pub parity_pages: u64,
    /// Records that were missing or damaged.
    pub records: u64,
}

impl Repaired {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Repaired::default()
    }
}

/// Computes what one member has in each cycle from what the others have.
struct Rebuilder<'a, O> {
    group: Group,
    kernel: parity::Kernel,
    member: usize,
    generation: GenerationId,
    others: &'a mut O,
    /// Members that do not answer.
    mute: Vec<bool>,
    /// The cycle that was computed last: pages of content and of parity; `Err`: so many places of the stripe are left.
    last: Option<(u64, Vec<Rebuilt>, Vec<Rebuilt>)>,
    recoveries: BTreeMap<(Vec<usize>, usize), Recovery>,
}

type Rebuilt = Result<Vec<u8>, usize>;

impl<'a, O: Others> Rebuilder<'a, O> {
    fn new<S: Storage>(member: &Member<S>, generation: GenerationId, others: &'a mut O) -> Rebuilder<'a, O> {
        Rebuilder {
            group: member.group().clone(),
            kernel: member.kernel(),
            member: member.number(),
            generation,
            others,
            mute: vec![false; member.group().members()],
            last: None,
            recoveries: BTreeMap::new(),
        }
    }

    fn data(&mut self, page: u64) -> Result<Vec<u8>, ProtectError> {
        let (cycle, within) = (page / self.group.data_pages(), page % self.group.data_pages());
        let (data, _) = self.cycle(cycle)?;
        let found = data[usize::try_from(within).expect("a cycle fits into memory")].clone();
        found.map_err(|left| self.too_many_lost(left))
    }

    fn parity(&mut self, page: u64) -> Result<Vec<u8>, ProtectError> {
        let (cycle, within) = (page / self.group.parity_pages(), page % self.group.parity_pages());
        let (_, parity) = self.cycle(cycle)?;
        let found = parity[usize::try_from(within).expect("a cycle fits into memory")].clone();
        found.map_err(|left| self.too_many_lost(left))
    }

    fn too_many_lost(&self, left: usize) -> ProtectError {
        let (members, needed) = (self.group.members(), self.group.code().data());
        ProtectError::TooManyLost { generation: self.generation, members, left, needed }
    }

    fn cycle(&mut self, cycle: u64) -> Result<(&[Rebuilt], &[Rebuilt]), ProtectError> {
        if self.last.as_ref().is_none_or(|(last, ..)| *last != cycle) {
            let (data, parity) = self.compute(cycle)?;
            self.last = Some((cycle, data, parity));
        }
        let (_, data, parity) = self.last.as_ref().expect("it was just computed");
        Ok((data, parity))
    }

    fn compute(&mut self, cycle: u64) -> Result<(Vec<Rebuilt>, Vec<Rebuilt>), ProtectError> {
        let (data_pages, parity_pages) = (self.group.data_pages(), self.group.parity_pages());
        let mut told: Vec<Option<(Vec<Told>, Vec<Told>)>> = Vec::new();
        for other in 0..self.group.members() {
            let mut ask = || {
                let data =
                    self.others.data(other, self.generation, cycle * data_pages..(cycle + 1) * data_pages)?;
                let parity_range = cycle * parity_pages..(cycle + 1) * parity_pages;
                Ok((data, self.others.parity(other, self.generation, parity_range)?))
            };
            let answer = if other == self.member || self.mute[other] { None } else { answered(ask())? };
            self.mute[other] |= answer.is_none();
            told.push(answer);
        }
        let size = |pages| usize::try_from(pages).expect("a cycle fits into memory");
        let (mut data, mut parity) = (vec![Err(0); size(data_pages)], vec![Err(0); size(parity_pages)]);
        for stripe in 0..self.group.members() {
            for offset in 0..self.group.unit_pages() {
                let mut places: Vec<(usize, &[u8])> = Vec::new();
                for (other, told) in told.iter().enumerate() {
                    let Some((of_data, of_parity)) = told else { continue };
                    let (place, page) = match self.group.place(other, 0, stripe, offset) {
                        Place::Data { column, page } => (column, of_data.get(size(page))),
                        Place::Parity { row, page } => {
                            (self.group.code().data() + row, of_parity.get(size(page)))
                        }
                    };
                    match page {
                        Some(Told::Page(page)) if page.len() == PAGE_BYTES => places.push((place, page)),
                        Some(Told::Zero) => places.push((place, &[])),
                        _ => {}
                    }
                }
                let (place, slot) = match self.group.place(self.member, 0, stripe, offset) {
                    Place::Data { column, page } => (column, &mut data[size(page)]),
                    Place::Parity { row, page } => (self.group.code().data() + row, &mut parity[size(page)]),
                };
                if places.len() < self.group.code().data() {
                    *slot = Err(places.len());
                    continue;
                }
                places.truncate(self.group.code().data());
                let present: Vec<usize> = places.iter().map(|(place, _)| *place).collect();
                let recovery = match self.recoveries.entry((present, place)) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => {
                        let recovery = self.group.code().recovery(&new.key().0, &[place])?;
                        new.insert(recovery)
                    }
                };
                let sources: Vec<&[u8]> = places.iter().map(|(_, page)| *page).collect();
                let mut page = vec![0; PAGE_BYTES];
                recovery.run(self.kernel, &sources, &mut [&mut page]);
                *slot = Ok(page);
            }
        }
        Ok((data, parity))
    }

    /// What member `of` has, as the first one knows that answers.
    fn content(&mut self, of: usize) -> Result<Content, ProtectError> {
        for asked in 0..self.group.members() {
            if asked == self.member || self.mute[asked] {
                continue;
            }
            match self.others.content(asked, of, self.generation) {
                Ok(content) => return Ok(content),
                Err(ProtectError::Unreachable { .. }) => self.mute[asked] = true,
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Err(self.too_many_lost(0))
    }
}

fn answered<T>(answer: Result<T, ProtectError>) -> Result<Option<T>, ProtectError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(ProtectError::Unreachable { .. }) => Ok(None),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

impl<S: Storage> Member<S> {
    /// Looks at everything that this member has and keeps of a generation, and computes what is missing or damaged from what
    /// the others have, page by page. On an empty directory that is all of it. Whatever happens on the way, doing it again ends it.
    ///
    /// What makes the generation committed (manifest, commit record, decisions) is not this one's matter.
    pub fn repair<O: Others>(
        &mut self,
        generation: GenerationId,
        others: &mut O,
    ) -> Result<Repaired, ProtectError> {
        let mut done = Repaired::default();
        self.make_directories(generation)?;
        let mut rebuilder = Rebuilder::new(self, generation, others);
        let mut contents = Vec::new();
        for of in 0..self.group().members() {
            contents.push(match unless_damaged(self.content(generation, of))? {
                Some(content) => content,
                None => {
                    let content = rebuilder.content(of)?;
                    self.write_content(&content)?;
                    done.records += 1;
                    content
                }
            });
        }
        let content = contents[self.number()].clone();
        self.repair_files(&content, &mut rebuilder, &mut done)?;
        let pages = contents.iter().map(Content::pages).max().unwrap_or(0);
        self.repair_parity(generation, pages, &mut rebuilder, &mut done)?;
        if unless_damaged(self.protected(generation))?.is_none() {
            self.write_protected(generation, None)?;
            done.records += 1;
        }
        Ok(done)
    }

    /// Whether all that this member has and keeps of a generation can be read: every byte of it, or only what tells of the rest.
    pub fn holds(&mut self, generation: GenerationId, every_byte: bool) -> Result<bool, ProtectError> {
        let mut look = || {
            let Protected { member, .. } = self.protected(generation)?;
            if member != self.number() {
                return Ok(false);
            }
            let content = self.content(generation, member)?;
            for file in &content.files {
                let path = names::in_generation(generation, &file.name);
                let image = ImageReader::open(self.directory().storage(), &path)?;
                image.expect_digest(file.digest)?;
            }
            let (data, parity) = (Opened::open(self, generation)?, Kept::open(self.directory(), generation)?);
            if every_byte {
                for page in 0..content.pages() {
                    data.read(self, page)?;
                }
                for page in 0..parity.pages() {
                    parity.page(self.directory(), page)?;
                }
            }
            Ok(true)
        };
        Ok(unless_damaged(look())?.unwrap_or(false))
    }

    fn make_directories(&mut self, generation: GenerationId) -> Result<(), ProtectError> {
        let path = names::generation(generation);
        let life = crate::storage::parent_and_name(&path).0.to_owned();
        let storage = self.directory().storage();
        for (made, within) in [(&life, ""), (&path, life.as_str())] {
            match storage.create_directory(made) {
                Ok(()) | Err(StorageError::AlreadyExists { .. }) => storage.sync_directory(within)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn repair_files<O: Others>(
        &mut self,
        content: &Content,
        rebuilder: &mut Rebuilder<'_, O>,
        done: &mut Repaired,
    ) -> Result<(), ProtectError> {
        let generation = content.generation;
        let opened = unless_damaged(Opened::open(self, generation))?;
        let mut sums = vec![super::member::zero_sum(); usize::try_from(content.pages()).expect("they fit")];
        for file in &content.files {
            let path = names::in_generation(generation, &file.name);
            let length = unless_damaged(self.directory().storage().length(&path).map_err(Into::into))?;
            let there = length == Some(file.bytes);
            let looked_at = opened.as_ref().filter(|_| there);
            // Without checksums of pages those of the image have to do.
            let whole = there && looked_at.is_none() && check_image(self, &path, file).is_ok();
            let mut touched = false;
            if !whole && looked_at.is_none() {
                self.rebuild_file(&path, file, rebuilder)?;
                done.files += 1;
                touched = true;
            }
            for page in file.extents.iter().flat_map(|at| at.place..at.place + at.piece.pages()) {
                let Some(opened) = looked_at else { break };
                if unless_damaged(opened.read(self, page))?.is_none() {
                    let bytes = rebuilder.data(page)?;
                    self.mend_page(&path, file, page, &bytes)?;
                    done.pages += 1;
                    touched = true;
                }
            }
            if touched {
                let checked = check_image(self, &path, file);
                checked
                    .map_err(|error| ProtectError::Rebuilt { path: path.clone(), error: Box::new(error) })?;
            }
            if opened.is_none() {
                let fresh = Content { files: vec![file.clone()], ..content.clone() };
                for at in &file.extents {
                    for page in at.place..at.place + at.piece.pages() {
                        let bytes = self.read_page(&fresh, 0, page)?;
                        sums[usize::try_from(page).expect("they fit")] = checksum(&bytes);
                    }
                }
            }
        }
        if opened.is_none() {
            self.write_sums(generation, &sums)?;
            done.records += 1;
        }
        Ok(())
    }

    /// Writes a file anew, front to back.
    fn rebuild_file<O: Others>(
        &mut self,
        path: &str,
        file: &ContentFile,
        rebuilder: &mut Rebuilder<'_, O>,
    ) -> Result<(), ProtectError> {
        let temporary = names::temporary(path);
        let mut written = create_anew(self.directory().storage(), &temporary)?;
        let mut end = 0;
        for at in &file.extents {
            // Between sections there is nothing but zeros.
            self.append_zeros(&mut written, at.piece.offset - end)?;
            let mut left = at.piece.bytes;
            for page in at.place..at.place + at.piece.pages() {
                let bytes = rebuilder.data(page)?;
                let count = left.min(PAGE_BYTES as u64);
                let part = &bytes[..usize::try_from(count).expect("at most a page")];
                self.directory().storage().append(&mut written, part)?;
                left -= count;
            }
            end = at.piece.offset + at.piece.bytes;
        }
        self.append_zeros(&mut written, file.bytes - end)?;
        let storage = self.directory().storage();
        storage.sync_file(&mut written)?;
        storage.rename(&temporary, path)?;
        Ok(storage.sync_directory(crate::storage::parent_and_name(path).0)?)
    }

    fn append_zeros(&mut self, file: &mut S::File, mut bytes: u64) -> Result<(), ProtectError> {
        while bytes > 0 {
            let count = bytes.min(PAGE_BYTES as u64);
            let zeros = vec![0; usize::try_from(count).expect("at most a page")];
            self.directory().storage().append(file, &zeros)?;
            bytes -= count;
        }
        Ok(())
    }

    /// Writes a page over damaged bytes.
    fn mend_page(
        &mut self,
        path: &str,
        file: &ContentFile,
        page: u64,
        bytes: &[u8],
    ) -> Result<(), ProtectError> {
        let found = file.extents.iter().find(|at| (at.place..at.place + at.piece.pages()).contains(&page));
        let at = found.expect("the page is in that file");
        let skipped = (page - at.place) * PAGE_BYTES as u64;
        let count =
            usize::try_from((at.piece.bytes - skipped).min(PAGE_BYTES as u64)).expect("at most a page");
        let storage = self.directory().storage();
        let mut written = storage.reopen(path)?;
        storage.overwrite(&mut written, at.piece.offset + skipped, &bytes[..count])?;
        Ok(storage.sync_file(&mut written)?)
    }

    fn repair_parity<O: Others>(
        &mut self,
        generation: GenerationId,
        content_pages: u64,
        rebuilder: &mut Rebuilder<'_, O>,
        done: &mut Repaired,
    ) -> Result<(), ProtectError> {
        let Some(kept) = unless_damaged(Kept::open(self.directory(), generation))? else {
            let pages = self.group().cycles(content_pages) * self.group().parity_pages();
            kept::write_whole(self.directory(), generation, pages, |_, page| {
                rebuilder.parity(page).map(Some)
            })?;
            done.parity_pages += pages;
            return Ok(());
        };
        for page in 0..kept.pages() {
            if unless_damaged(kept.page(self.directory(), page))?.is_none() {
                let bytes = rebuilder.parity(page)?;
                kept.mend(self.directory(), page, &bytes)?;
                done.parity_pages += 1;
            }
        }
        Ok(())
    }
}

fn check_image<S: Storage>(member: &mut Member<S>, path: &str, file: &ContentFile) -> Result<(), StoreError> {
    let storage = member.directory().storage();
    let image = ImageReader::open(storage, path)?;
    image.expect_digest(file.digest)?;
    image.verify(storage)
}

/// What the loss of some members means for a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Every member has all that it kept.
    Whole,
    /// These members have to be repaired, and can be.
    Repairable {
        /// By number.
        lost: Vec<usize>,
    },
    /// Too many are lost; perhaps what is left of them still makes up a whole, page by page.
    Lost {
        /// By number.
        lost: Vec<usize>,
    },
}

/// What it means for a generation that of the members of `group` those have what they kept of which `holds` says so.
#[must_use]
pub fn standing(group: &Group, holds: &[bool]) -> Standing {
    let lost: Vec<usize> = (0..group.members()).filter(|member| holds.get(*member) != Some(&true)).collect();
    match lost.len() {
        0 => Standing::Whole,
        count if count <= group.losses() => Standing::Repairable { lost },
        _ => Standing::Lost { lost },
    }
}
