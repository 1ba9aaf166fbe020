//! Computes lost or damaged data from the data of the other members.

mod files;

use core::ops::Range;
use std::collections::BTreeMap;

use ckpt_glue::GenerationId;
use parity::Recovery;

use super::error::ProtectError;
use super::group::{Group, StripePage};
use super::member::{Member, Opened, ZERO_PAGE, page_bytes, runs_from};
use super::node_parity::NodeParity;
use super::parity_changes::make_directory;
use crate::image::ImageReader;
use crate::job::names;
use crate::limits::PAGE_BYTES;
use crate::record::{Content, ContentFile, Protected};
use crate::storage::Storage;

/// A page that another member has, or has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAnswer {
    /// It is zero, and not sent.
    Zero,
    /// Its bytes.
    Page(Vec<u8>),
    /// It is damaged there, or lost.
    Damaged,
}

/// One half of a member's data in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Its content.
    Data,
    /// The parity that it keeps.
    Parity,
}

/// The request of a member under repair: all places of those stripes in which it has content, or keeps parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The repaired member.
    pub by: usize,
    /// The half that is computed.
    pub half: Half,
    /// In which cycles.
    pub cycles: Range<u64>,
}

impl Wanted {
    /// Places of a member, in the order of reports: by cycle, by stripe, by page of its unit.
    pub fn places<'a>(&'a self, group: &'a Group, member: usize) -> impl Iterator<Item = StripePage> + 'a {
        let stripes = move |cycle| (0..group.members()).map(move |stripe| (cycle, stripe));
        let wanted = move |(cycle, stripe): &(u64, usize)| {
            matches!(group.place(self.by, *cycle, *stripe, 0), StripePage::Data { .. })
                == (self.half == Half::Data)
        };
        let units = self.cycles.clone().flat_map(stripes).filter(wanted);
        units.flat_map(move |(cycle, stripe)| {
            (0..group.unit_pages()).map(move |offset| group.place(member, cycle, stripe, offset))
        })
    }
}

/// How a member that is repaired asks the others. A member that does not answer counts as lost.
pub trait Others {
    /// The content of member `of`, as member `asked` knows it ([`Member::content`]).
    fn content(&mut self, asked: usize, of: usize, generation: GenerationId)
    -> Result<Content, ProtectError>;

    /// The pages of each of `asked` ([`Served::places`]), in the order of [`Wanted::places`].
    fn places(
        &mut self,
        asked: &[usize],
        generation: GenerationId,
        wanted: &Wanted,
    ) -> Vec<Result<Vec<PageAnswer>, ProtectError>>;
}

/// A member's source of answers while another one is repaired. Its faults are known page by page.
#[derive(Clone, Debug)]
pub struct Served {
    data: Option<Opened>,
    parity: Option<NodeParity>,
}

impl Served {
    /// Opens `member`'s data of a generation.
    pub fn open<S: Storage>(
        member: &mut Member<S>,
        generation: GenerationId,
    ) -> Result<Served, ProtectError> {
        let data = unless_damaged(Opened::open(member, generation))?;
        let parity = unless_damaged(NodeParity::open(member.directory(), generation))?;
        Ok(Served { data, parity })
    }

    /// Its pages in these stripes.
    pub fn places<S: Storage>(
        &mut self,
        member: &mut Member<S>,
        wanted: &Wanted,
    ) -> Result<Vec<PageAnswer>, ProtectError> {
        let group = member.group().clone();
        let mut answers = Vec::new();
        // Pages that follow each other are read together.
        let mut run: Option<(Half, Range<u64>)> = None;
        for place in wanted.places(&group, member.number()) {
            let (half, page) = match place {
                StripePage::Data { page, .. } => (Half::Data, page),
                StripePage::Parity { page, .. } => (Half::Parity, page),
            };
            match &mut run {
                Some((same, pages)) if *same == half && pages.end == page => pages.end += 1,
                _ => {
                    if let Some((half, pages)) = run.replace((half, page..page + 1)) {
                        self.answer_half(member, half, pages, &mut answers)?;
                    }
                }
            }
        }
        if let Some((half, pages)) = run {
            self.answer_half(member, half, pages, &mut answers)?;
        }
        Ok(answers)
    }

    fn answer_half<S: Storage>(
        &mut self,
        member: &mut Member<S>,
        half: Half,
        pages: Range<u64>,
        answers: &mut Vec<PageAnswer>,
    ) -> Result<(), ProtectError> {
        let read = match (half, &mut self.data, &self.parity) {
            (Half::Data, Some(data), _) => data.read_run(member.directory(), pages.clone()),
            (Half::Parity, _, Some(parity)) => {
                let mut bytes = vec![0; page_bytes(pages.end - pages.start)];
                parity.read(member.directory(), pages.start, &mut bytes).map(|()| bytes)
            }
            _ => {
                answers.extend(pages.map(|_| PageAnswer::Damaged));
                return Ok(());
            }
        };
        match unless_damaged(read)? {
            Some(bytes) => {
                let answer = |page: &[u8]| {
                    if *page == ZERO_PAGE { PageAnswer::Zero } else { PageAnswer::Page(page.to_vec()) }
                };
                answers.extend(bytes.chunks_exact(PAGE_BYTES).map(answer));
            }
            None if pages.end - pages.start == 1 => answers.push(PageAnswer::Damaged),
            // One of them is; the others are as good as ever.
            None => {
                for page in pages {
                    self.answer_half(member, half, page..page + 1, answers)?;
                }
            }
        }
        Ok(())
    }
}

fn unless_damaged<T>(found: Result<T, ProtectError>) -> Result<Option<T>, ProtectError> {
    match found {
        Err(error) if error.is_damage() => Ok(None),
        found => found.map(Some),
    }
}

/// The result of a repair, or of a check.
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

/// Pages that a repair has skipped because they cannot be computed.
#[derive(Default)]
struct Beyond {
    pages: u64,
    files: u64,
    /// Why the first of it cannot.
    first: Option<ProtectError>,
}

impl Beyond {
    /// Counts data that cannot be computed; other errors are the caller's.
    fn unless_lost<T>(
        &mut self,
        found: Result<T, ProtectError>,
        count: impl FnOnce(&mut Beyond),
    ) -> Result<Option<T>, ProtectError> {
        match found {
            Err(error @ ProtectError::TooManyLost { .. }) => {
                count(self);
                self.first.get_or_insert(error);
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    fn report(self) -> Result<(), ProtectError> {
        let Some(mut error) = self.first else { return Ok(()) };
        if let ProtectError::TooManyLost { pages, files, .. } = &mut error {
            (*pages, *files) = (self.pages, self.files);
        }
        Err(error)
    }
}

/// Bytes of one half of a member's data that are computed together, if a cycle is not longer than that.
const COMPUTED_BYTES: u64 = 1 << 20;

/// Computes one member's data from the others' data.
struct Rebuilder<'a, O> {
    group: Group,
    kernel: parity::Kernel,
    member: usize,
    generation: GenerationId,
    others: &'a mut O,
    /// Why a member is not asked any more: it does not answer, or cannot report its data.
    silent: Vec<Option<ProtectError>>,
    /// The last results, page by page.
    last: Option<(Wanted, Vec<Rebuilt>)>,
    recoveries: BTreeMap<(Vec<usize>, usize), Recovery>,
}

/// A page, or the other members whose pages of the same stripe are not available.
type Rebuilt = Result<Vec<u8>, Vec<usize>>;

impl<'a, O: Others> Rebuilder<'a, O> {
    fn new<S: Storage>(member: &Member<S>, generation: GenerationId, others: &'a mut O) -> Rebuilder<'a, O> {
        Rebuilder {
            group: member.group().clone(),
            kernel: member.kernel(),
            member: member.number(),
            generation,
            others,
            silent: vec![None; member.group().members()],
            last: None,
            recoveries: BTreeMap::new(),
        }
    }

    fn data(&mut self, page: u64) -> Result<Vec<u8>, ProtectError> {
        self.page(Half::Data, page)
    }

    fn parity(&mut self, page: u64) -> Result<Vec<u8>, ProtectError> {
        self.page(Half::Parity, page)
    }

    fn page(&mut self, half: Half, page: u64) -> Result<Vec<u8>, ProtectError> {
        let per_cycle = match half {
            Half::Data => self.group.data_pages(),
            Half::Parity => self.group.parity_pages(),
        };
        let cycle = page / per_cycle;
        let known = |(last, _): &(Wanted, Vec<Rebuilt>)| last.half == half && last.cycles.contains(&cycle);
        if !self.last.as_ref().is_some_and(known) {
            let together = (COMPUTED_BYTES / (per_cycle * PAGE_BYTES as u64)).max(1);
            let first = cycle / together * together;
            let wanted = Wanted { by: self.member, half, cycles: first..first + together };
            let computed = self.compute(&wanted, per_cycle)?;
            self.last = Some((wanted, computed));
        }
        let (wanted, pages) = self.last.as_ref().expect("it was just computed");
        let at = usize::try_from(page - wanted.cycles.start * per_cycle).expect("it fits into memory");
        pages[at].clone().map_err(|missing| self.too_many_lost(&missing))
    }

    /// Data of this member is lost, and so is the matching data of these others.
    fn too_many_lost(&self, missing: &[usize]) -> ProtectError {
        let (members, needed) = (self.group.members(), self.group.code().data());
        let silent = self.reasons();
        let lost = missing.iter().map(|member| self.group.nodes()[*member]).collect();
        let (node, generation) = (self.group.nodes()[self.member], self.generation);
        ProtectError::TooManyLost { generation, node, pages: 0, files: 0, lost, members, needed, silent }
    }

    /// Why members are not asked any more.
    fn reasons(&self) -> Vec<String> {
        self.silent.iter().flatten().map(ToString::to_string).collect()
    }

    /// Nodes that may have the requested data, and do not answer.
    fn unreachable(&self) -> Vec<u32> {
        let why = self.silent.iter().flatten();
        why.filter_map(|why| match why {
            ProtectError::Unreachable { node, .. } => Some(*node),
            _ => None,
        })
        .collect()
    }

    /// An error if nothing can be computed from the remaining members, and others may come back.
    fn check_enough_answer(&self) -> Result<(), ProtectError> {
        let (members, needed) = (self.group.members(), self.group.code().data());
        let reporting = members - 1 - self.silent.iter().flatten().count();
        let silent = self.unreachable();
        if reporting >= needed || silent.is_empty() {
            return Ok(());
        }
        let (node, generation) = (self.group.nodes()[self.member], self.generation);
        let reasons = self.reasons();
        Err(ProtectError::TooFewAnswer { generation, node, members, needed, reporting, silent, reasons })
    }

    /// Asks as many members as are needed, and the others only if something of those is missing.
    fn compute(&mut self, wanted: &Wanted, per_cycle: u64) -> Result<Vec<Rebuilt>, ProtectError> {
        let data = self.group.code().data();
        let mut received: Vec<Option<Vec<PageAnswer>>> = vec![None; self.group.members()];
        let mut left: Vec<usize> =
            (0..self.group.members()).filter(|other| self.may_be_asked(*other)).collect();
        let whole = |answers: &Option<Vec<PageAnswer>>| {
            answers
                .as_ref()
                .is_some_and(|answers| answers.iter().all(|answer| *answer != PageAnswer::Damaged))
        };
        while !left.is_empty() {
            let there = received.iter().filter(|answers| whole(answers)).count();
            if there >= data {
                break;
            }
            // The next ones behind this member first, so that several that are repaired do not all ask the same.
            left.sort_by_key(|other| (self.group.members() + other - self.member) % self.group.members());
            let now: Vec<usize> = left.drain(..left.len().min(data - there)).collect();
            let answers = self.others.places(&now, self.generation, wanted);
            for (other, answer) in now.into_iter().zip(answers) {
                match answer {
                    Ok(answer) => received[other] = Some(answer),
                    Err(error) => self.give_up(other, error)?,
                }
            }
        }
        self.check_enough_answer()?;
        let group = self.group.clone();
        let pages = per_cycle * (wanted.cycles.end - wanted.cycles.start);
        let mut computed = vec![Err(Vec::new()); usize::try_from(pages).expect("they fit into memory")];
        let mut places: Vec<_> = (0..group.members()).map(|other| wanted.places(&group, other)).collect();
        for index in 0.. {
            let here: Vec<Option<StripePage>> = places.iter_mut().map(Iterator::next).collect();
            let Some(own) = here[self.member] else { break };
            let (mut present, mut missing): (Vec<(usize, &[u8])>, _) = (Vec::new(), Vec::new());
            for (other, (place, answers)) in here.iter().zip(&received).enumerate() {
                let place = match place {
                    Some(StripePage::Data { column, .. }) => *column,
                    Some(StripePage::Parity { row, .. }) => data + row,
                    None => continue,
                };
                match answers.as_ref().and_then(|answers| answers.get(index)) {
                    Some(PageAnswer::Page(page)) if page.len() == PAGE_BYTES => present.push((place, page)),
                    Some(PageAnswer::Zero) => present.push((place, &[])),
                    _ if other == self.member => {}
                    _ => missing.push(other),
                }
            }
            let (place, page) = match own {
                StripePage::Data { column, page } => (column, page),
                StripePage::Parity { row, page } => (data + row, page),
            };
            let slot = &mut computed
                [usize::try_from(page - wanted.cycles.start * per_cycle).expect("they fit into memory")];
            *slot = if present.len() < data { Err(missing) } else { Ok(self.recover(place, present)?) };
        }
        Ok(computed)
    }

    /// Computes the page in one place of a stripe from as many others as are needed.
    fn recover(&mut self, place: usize, mut present: Vec<(usize, &[u8])>) -> Result<Vec<u8>, ProtectError> {
        present.truncate(self.group.code().data());
        let places: Vec<usize> = present.iter().map(|(place, _)| *place).collect();
        let recovery = match self.recoveries.entry((places, place)) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let recovery = self.group.code().recovery(&new.key().0, &[place])?;
                new.insert(recovery)
            }
        };
        let sources: Vec<&[u8]> = present.iter().map(|(_, page)| *page).collect();
        let mut page = vec![0; PAGE_BYTES];
        recovery.run(self.kernel, &sources, &mut [&mut page]);
        Ok(page)
    }

    /// The content of member `of`, as the first one that answers knows it.
    fn content(&mut self, of: usize) -> Result<Content, ProtectError> {
        let mut reasons = Vec::new();
        for asked in 0..self.group.members() {
            if !self.may_be_asked(asked) {
                continue;
            }
            match self.others.content(asked, of, self.generation) {
                Ok(content) => return Ok(content),
                // It may know of others.
                Err(error) if error.is_damage() => reasons.push(error.to_string()),
                Err(error) => self.give_up(asked, error)?,
            }
        }
        let (silent, reasons) = (self.unreachable(), self.reasons().into_iter().chain(reasons).collect());
        Err(ProtectError::NoRecord {
            generation: self.generation,
            of: self.group.nodes()[of],
            silent,
            reasons,
        })
    }

    fn may_be_asked(&self, member: usize) -> bool {
        member != self.member && self.silent[member].is_none()
    }

    /// A member counts as lost from now on, unless the reason is one of our own.
    fn give_up(&mut self, member: usize, why: ProtectError) -> Result<(), ProtectError> {
        if !(matches!(why, ProtectError::Unreachable { .. }) || why.is_damage()) {
            return Err(why);
        }
        self.silent[member] = Some(why);
        Ok(())
    }
}

impl<S: Storage> Member<S> {
    /// Reads everything that this member has and keeps of a generation, and computes missing or damaged pages from the
    /// others' data, one by one. On an empty directory that is all of it. After any interruption, another call
    /// completes the repair. Pages that cannot be computed are skipped, and reported after all others are done.
    ///
    /// This does not restore the records that commit the generation (manifest, commit record, decisions).
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
        let mut beyond = Beyond::default();
        self.repair_files(&content, &mut rebuilder, &mut done, &mut beyond)?;
        let pages = contents.iter().map(Content::pages).max().unwrap_or(0);
        self.repair_parity(generation, pages, &mut rebuilder, &mut done, &mut beyond)?;
        beyond.report()?;
        if unless_damaged(self.protected(generation))?.is_none() {
            let from = NodeParity::open(self.directory(), generation)?.from();
            self.write_protected(generation, from)?;
            done.records += 1;
        }
        Ok(done)
    }

    /// Whether all that this member has and keeps of a generation can be read: every byte of it, or only the records that describe the rest.
    pub fn holds(&mut self, generation: GenerationId, every_byte: bool) -> Result<bool, ProtectError> {
        let mut look = || {
            let Protected { member, .. } = self.protected(generation)?;
            if member != self.number() {
                return Ok(false);
            }
            // Also its records of the others: with the last whole record of a lost member's content, that member is lost for good.
            let contents = (0..self.group().members())
                .map(|of| self.content(generation, of))
                .collect::<Result<Vec<_>, _>>()?;
            let content = &contents[member];
            for file in &content.files {
                let path = names::in_generation(generation, &file.name);
                let image = ImageReader::open(self.directory().storage(), &path)?;
                image.expect_digest(file.digest)?;
            }
            let (mut data, parity) =
                (Opened::open(self, generation)?, NodeParity::open(self.directory(), generation)?);
            if every_byte {
                for pages in runs_from(0, content.pages()) {
                    data.read_run(self.directory(), pages)?;
                }
                let mut run = Vec::new();
                for pages in runs_from(0, parity.pages()) {
                    run.resize(page_bytes(pages.end - pages.start), 0);
                    parity.read(self.directory(), pages.start, &mut run)?;
                }
            }
            Ok(true)
        };
        Ok(unless_damaged(look())?.unwrap_or(false))
    }

    /// Whether it may have pages of a generation that others can be rebuilt from, however many more are damaged.
    pub fn has_some(&mut self, generation: GenerationId) -> Result<bool, ProtectError> {
        let Served { data, parity } = Served::open(self, generation)?;
        let mut is_there = |file: &ContentFile| {
            let path = names::in_generation(generation, &file.name);
            self.directory().storage().length(&path).is_ok()
        };
        let has_images = data.is_some_and(|data| data.content.files.iter().any(&mut is_there));
        Ok(has_images || parity.is_some_and(|parity| parity.pages() > 0))
    }

    fn make_directories(&mut self, generation: GenerationId) -> Result<(), ProtectError> {
        let path = names::folder(generation);
        let life = crate::storage::parent_and_name(&path).0.to_owned();
        let storage = self.directory().storage();
        make_directory(storage, &life)?;
        Ok(make_directory(storage, &path)?)
    }
}
