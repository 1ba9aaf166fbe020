//! A group of nodes, each with a disk of its own that can lose power or be lost; blocks move by function calls.

#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use store::image::{Base, ImageReader};
use store::job::{CommitRequest, Depth, ImageClaim, JobDirectory};
use store::protect::{Group, Member, Others, PageAnswer, ProtectError, Served, Strip, Wanted};
use store::record::Content;
use store::storage::{DirectoryEntry, Fault, Operation};
use store::{
    CheckpointSettings, GenerationId, JobFile, Manifest, Memory, Section, Storage, StorageError, StoreError,
};
use transport::{Epoch, JobId, Life, Rank};

pub(crate) use crate::common::Random;

pub(crate) const JOB: JobId = JobId(0x77);

/// Operations that all disks together may still do before power is lost everywhere.
#[derive(Clone, Default)]
pub(crate) struct Fuse(Rc<Cell<Option<u64>>>);

impl Fuse {
    pub(crate) fn set(&self, operations: Option<u64>) {
        self.0.set(operations);
    }

    pub(crate) fn left(&self) -> Option<u64> {
        self.0.get()
    }
}

/// A disk of a group: the operation at which the fuse burns out loses power, and no disk does anything after it.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) memory: Rc<RefCell<Memory>>,
    fuse: Fuse,
    /// Files and bytes in them that the device does not give, until another file takes the name.
    bad: Rc<RefCell<BTreeSet<(String, u64)>>>,
}

impl Disk {
    pub(crate) fn new(memory: Memory, fuse: &Fuse) -> Disk {
        Disk { memory: Rc::new(RefCell::new(memory)), fuse: fuse.clone(), bad: Rc::default() }
    }

    pub(crate) fn lose_byte(&self, path: &str, offset: u64) {
        self.bad.borrow_mut().insert((path.to_owned(), offset));
    }

    fn forget(&self, path: &str) {
        self.bad.borrow_mut().retain(|(bad, _)| bad != path);
    }

    fn change(&self) {
        let Some(left) = self.fuse.0.get() else { return };
        if left == 0 {
            self.memory.borrow_mut().fault_after(0, Fault::Crash);
        }
        self.fuse.0.set(Some(left.saturating_sub(1)));
    }
}

impl Storage for Disk {
    type File = <Memory as Storage>::File;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().create_directory(path)
    }
    fn create(&mut self, path: &str) -> Result<Self::File, StorageError> {
        self.change();
        self.memory.borrow_mut().create(path)
    }
    fn reopen(&mut self, path: &str) -> Result<Self::File, StorageError> {
        self.memory.borrow_mut().reopen(path)
    }
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().append(file, bytes)
    }
    fn overwrite(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().overwrite(file, offset, bytes)
    }
    fn sync_file(&mut self, file: &mut Self::File) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().sync_file(file)
    }
    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().sync_directory(path)
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.change();
        self.forget(to);
        self.memory.borrow_mut().rename(from, to)
    }
    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().publish(from, to)
    }
    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        self.change();
        self.forget(path);
        self.memory.borrow_mut().remove_file(path)
    }
    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.change();
        self.memory.borrow_mut().remove_directory(path)
    }
    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        self.memory.borrow_mut().length(path)
    }
    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let end = offset + into.len() as u64;
        if self.bad.borrow().iter().any(|(bad, at)| bad == path && (offset..end).contains(at)) {
            return Err(StorageError::Device { operation: Operation::Read, path: path.to_owned() });
        }
        self.memory.borrow_mut().read_range(path, offset, into)
    }
    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError> {
        self.memory.borrow_mut().list(path)
    }
    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        self.memory.borrow_mut().free_bytes()
    }
}

pub(crate) fn life(counter: u32) -> Life {
    Life { counter, nonce: u64::from(counter) * 0x1111 }
}

/// The memory of a rank of node `node` at this epoch: two regions. From one epoch to the next a few bytes change, the
/// first region grows at times, and nodes differ in size.
pub(crate) fn memory(node: usize, epoch: u32) -> Regions {
    let mut regions: Regions = [(1, 9000 + 5000 * node), (2, 3000)]
        .into_iter()
        .map(|(id, bytes)| {
            let mut random = Random::new(node as u64 * 10 + id);
            (id, (0..bytes).map(|_| u8::try_from(random.below(256)).unwrap()).collect())
        })
        .collect();
    for step in 1..=epoch {
        let mut random = Random::new(u64::from(step) << 8 | node as u64);
        let (_, region) = &mut regions[usize::try_from(random.below(2)).unwrap()];
        let at = usize::try_from(random.below(region.len() as u64)).unwrap();
        region[at] ^= 0x55;
        if random.below(3) == 0 {
            let grown = usize::try_from(random.below(6000)).unwrap();
            // Pages of zeros before the others: places behind which parity goes on.
            let zeros = if random.below(2) == 0 { 3 * 4096 } else { 0 };
            let mut more = vec![0; zeros];
            more.extend((0..grown).map(|_| u8::try_from(random.below(256)).unwrap()));
            regions[0].1.extend(more);
        }
        if random.below(5) == 0 {
            let length = regions[0].1.len() / 2;
            regions[0].1.truncate(length);
        }
    }
    regions
}

/// Regions of a rank's memory: number and bytes.
pub(crate) type Regions = Vec<(u64, Vec<u8>)>;

thread_local! {
    /// By whose, node and epoch.
    static CONTENT: RefCell<HashMap<(usize, usize, u32), Regions>> = RefCell::default();
}

/// Nodes of one group; `None`: lost, directory and all.
pub(crate) struct Cluster {
    pub(crate) group: Group,
    pub(crate) disks: Vec<Option<Disk>>,
    pub(crate) fuse: Fuse,
    /// Pages of parity that were sent last.
    pub(crate) pages_sent: u64,
    /// The memory of a rank.
    pub(crate) memory: fn(usize, u32) -> Regions,
    /// So many images after each whole one have that one below them.
    pub(crate) deltas: u32,
}

impl Cluster {
    pub(crate) fn new(members: usize, losses: usize) -> Cluster {
        let nodes = (0..u32::try_from(members).unwrap()).collect();
        let group = Group::new(nodes, losses).unwrap().with_unit_pages(1);
        let fuse = Fuse::default();
        let disks = (0..members).map(|_| Some(Disk::new(Memory::new(), &fuse))).collect();
        Cluster { group, disks, fuse, pages_sent: 0, memory, deltas: 0 }
    }

    /// The result of [`Cluster::memory`], cached: half the time of crash tests would go into random numbers.
    fn content(&self, node: usize, epoch: u32) -> Regions {
        let key = (self.memory as usize, node, epoch);
        let kept = CONTENT.with_borrow(|kept| kept.get(&key).cloned());
        kept.unwrap_or_else(|| {
            let content = (self.memory)(node, epoch);
            CONTENT.with_borrow_mut(|kept| kept.insert(key, content.clone()));
            content
        })
    }

    pub(crate) fn directory(&self, node: usize) -> JobDirectory<Disk> {
        let disk = self.disks[node].clone().expect("the node is there");
        JobDirectory::attach(disk, JOB).on_node(u32::try_from(node).unwrap())
    }

    pub(crate) fn member(&self, node: usize) -> Member<Disk> {
        Member::new(self.directory(node), self.group.clone(), node)
    }

    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.disks.len()).filter(|node| self.disks[*node].is_some()).collect()
    }

    /// Puts the job on all nodes, in a life that starts from nothing or from `from`.
    pub(crate) fn start(&self, counter: u32, from: Option<GenerationId>) -> Result<(), StoreError> {
        let file = JobFile {
            job: JOB,
            ranks: u32::try_from(self.disks.len()).unwrap(),
            checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
            directory: b"/".to_vec(),
            command: vec![b"./app".to_vec()],
            environment: Vec::new(),
            settings: Default::default(),
        };
        let decision = store::Decision { job: JOB, life: life(counter), from };
        for node in self.alive() {
            let disk = self.disks[node].clone().expect("alive");
            match JobDirectory::create(disk, &file) {
                Ok(_) | Err(StoreError::Storage(StorageError::AlreadyExists { .. })) => {}
                Err(error) => return Err(error),
            }
            self.directory(node).write_decision(&decision)?;
        }
        Ok(())
    }

    /// Writes each node's image, and protects the changes since `from`.
    pub(crate) fn protect(
        &mut self,
        id: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<Vec<ImageClaim>, ProtectError> {
        let mut claims = Vec::new();
        let mut members: Vec<Member<Disk>> = (0..self.disks.len()).map(|node| self.member(node)).collect();
        for (node, member) in members.iter_mut().enumerate() {
            let rank = Rank(u32::try_from(node).unwrap());
            member.directory().begin_generation(id)?;
            let regions = self.content(node, id.epoch.0);
            let mut sections: Vec<Section<'_>> = regions
                .iter()
                .map(|(region, bytes)| Section::new(0x101, 1, bytes).with_id(*region))
                .collect();
            let base = match from.filter(|_| !self.is_whole(id)) {
                Some(from) => Some(lay_base(member.directory(), id, from, rank)?.emit()),
                None => None,
            };
            sections.extend(base.as_ref().map(Base::section));
            let summary = member.directory().write_image(id, rank, &sections)?;
            claims.push(ImageClaim { rank, node: rank.0, digest: summary.digest, bytes: summary.bytes });
        }
        let mut contents = Vec::new();
        for (node, member) in members.iter_mut().enumerate() {
            contents.push(member.place(id, from, &[Rank(u32::try_from(node).unwrap())], |_, _| Vec::new())?);
        }
        for member in &mut members {
            for content in &contents {
                member.write_content(content)?;
            }
        }
        let mut changes =
            members.iter_mut().map(|member| member.changes(id, from)).collect::<Result<Vec<_>, _>>()?;
        let mut kept =
            members.iter_mut().map(|member| member.keep(id, from)).collect::<Result<Vec<_>, _>>()?;
        let pages = changes.iter().map(|changes| changes.pages()).max().unwrap_or(0);
        let (mut first, cycles) = (0, self.group.cycles(pages));
        self.pages_sent = 0;
        while first < cycles {
            // Windows of two cycles, so that there are several.
            let window = first..(first + 2).min(cycles);
            let mut sums = vec![Strip::default(); members.len()];
            for (member, changes) in members.iter_mut().zip(&mut changes) {
                let kernel = member.kernel();
                for (flow, strip) in member.window(changes, window.clone())?.into_iter().enumerate() {
                    self.pages_sent += strip.len() as u64;
                    sums[flow / self.group.losses()].add(kernel, strip);
                }
            }
            for ((member, kept), strip) in members.iter_mut().zip(&mut kept).zip(&sums) {
                member.keep_strip(kept, strip)?;
            }
            first = window.end;
        }
        for ((member, kept), changes) in members.iter_mut().zip(kept).zip(&changes) {
            member.finish(kept)?;
            member.record_checksums(changes)?;
            member.seal(id, from)?;
        }
        Ok(claims)
    }

    pub(crate) fn request(&self, id: GenerationId, images: Vec<ImageClaim>) -> CommitRequest {
        let nodes = (0..self.disks.len()).map(|node| format!("n{node}")).collect();
        let ranks = u32::try_from(self.disks.len()).unwrap();
        CommitRequest { generation: id, ranks, taken_unix_ms: 0, nodes, images }
    }

    /// Commits on one node after the other; `on_progress` is called as soon as there are records on more nodes than may be lost.
    pub(crate) fn commit(
        &mut self,
        id: GenerationId,
        claims: Vec<ImageClaim>,
        mut on_progress: impl FnMut(),
    ) -> Result<Manifest, ProtectError> {
        let manifest = self.directory(0).commit(&self.request(id, claims))?;
        for node in 1..self.disks.len() {
            self.directory(node).replicate(&manifest)?;
            if node == self.group.losses() {
                on_progress();
            }
        }
        Ok(manifest)
    }

    pub(crate) fn collect(&mut self, life: Life, keep: u32) -> Result<(), StoreError> {
        for node in 0..self.disks.len() {
            self.directory(node).collect(life, keep, &[])?;
        }
        Ok(())
    }

    /// Loses nodes, and gives back empty ones in their places.
    pub(crate) fn replace(&mut self, lost: &[usize]) {
        for node in lost {
            self.disks[*node] = Some(Disk::new(Memory::new(), &self.fuse));
        }
    }

    /// Every node loses power; `choose` decides the fate of changes that were not durable.
    pub(crate) fn lose_power(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        self.fuse.set(None);
        for disk in self.disks.iter().flatten() {
            disk.memory.borrow_mut().crash(choose);
        }
    }

    /// A copy that knows nothing of this one.
    pub(crate) fn copy(&self) -> Cluster {
        let fuse = Fuse::default();
        let copy = |disk: &Disk| Disk::new(disk.memory.borrow().clone(), &fuse);
        let disks = self.disks.iter().map(|disk| disk.as_ref().map(copy)).collect();
        Cluster {
            group: self.group.clone(),
            disks,
            fuse: fuse.clone(),
            pages_sent: 0,
            memory: self.memory,
            deltas: self.deltas,
        }
    }

    /// Committed generations that any node knows of, newest first, with their manifests.
    pub(crate) fn committed(&self) -> Vec<Manifest> {
        let mut found: Vec<Manifest> = Vec::new();
        for node in self.alive() {
            let mut directory = self.directory(node);
            for generation in directory.generations().unwrap() {
                if generation.state != store::job::GenerationState::Committed {
                    continue;
                }
                if let Ok(manifest) = directory.manifest(generation.id)
                    && found.iter().all(|known| known.generation != manifest.generation)
                {
                    found.push(manifest);
                }
            }
        }
        found.sort_by_key(|manifest| std::cmp::Reverse(manifest.generation));
        found
    }

    /// Repairs all members that `lost` names, commits the generation on them, and looks that every node's memory is as it was.
    pub(crate) fn repair_and_check(
        &mut self,
        manifest: &Manifest,
        lost: &[usize],
    ) -> Result<(), ProtectError> {
        let id = manifest.generation;
        for node in lost {
            let mut others = Calls::new(self, *node, lost);
            self.member(*node).repair(id, &mut others)?;
        }
        for node in self.alive() {
            let mut directory = self.directory(node);
            if directory.commit_record(id).is_err() {
                directory.replicate(manifest)?;
            }
            directory.discard_unfinished()?;
        }
        self.check(id);
        Ok(())
    }

    fn is_whole(&self, id: GenerationId) -> bool {
        (id.epoch.0 - 1).is_multiple_of(self.deltas + 1)
    }

    /// The base of an image is the memory at the time when it was taken.
    fn check_base(&self, node: usize, base: &ImageReader, disk: &mut Disk) {
        let epoch = base.header().identity.epoch.0;
        for (number, (_, bytes)) in (0..).zip(self.content(node, epoch)) {
            let found = base.read_section(disk, number).unwrap();
            assert!(found == bytes, "section {number} of epoch {epoch}, the base of node {node}");
        }
    }

    /// Every node has its image, as it was, and is protected again.
    pub(crate) fn check(&self, id: GenerationId) {
        for node in 0..self.disks.len() {
            let mut directory = self.directory(node);
            assert_eq!(directory.verify(id, Depth::Everything).unwrap(), vec![], "node {node}");
            let rank = Rank(u32::try_from(node).unwrap());
            let image = directory.open_committed_image(id, rank).unwrap();
            if let Some(base) = directory.open_base(id, rank, &image).unwrap() {
                self.check_base(node, &base, directory.storage());
            }
            for (number, (_, bytes)) in (0..).zip(self.content(node, id.epoch.0)) {
                let found = image.read_section(directory.storage(), number).unwrap();
                assert!(found == bytes, "section {number} of node {node} in {id}");
            }
            assert!(self.member(node).holds(id, true).unwrap(), "node {node} does not hold {id}");
        }
    }
}

/// Puts the base of an image beside it: the image of the generation before it, if that one is whole, or that one's base.
fn lay_base(
    directory: &mut JobDirectory<Disk>,
    id: GenerationId,
    from: GenerationId,
    rank: Rank,
) -> Result<Base, StoreError> {
    let image = directory.open_image(from, rank)?;
    let (base, path) = match directory.open_base(from, rank, &image)? {
        Some(below) => (image.base(directory.storage())?.expect("it has one"), below.path().to_owned()),
        None => (Base { generation: from, digest: image.digest() }, image.path().to_owned()),
    };
    let to = directory.image_path(id, rank).replace(".image", ".base");
    let storage = directory.storage();
    let bytes = storage.read(&path, 1 << 20)?;
    let mut file = storage.create(&to)?;
    storage.append(&mut file, &bytes)?;
    storage.sync_file(&mut file)?;
    Ok(base)
}

/// The others of a member that is repaired, reached by function calls.
pub(crate) struct Calls {
    members: Vec<Option<Member<Disk>>>,
    served: Vec<Option<(GenerationId, Served)>>,
    pub(crate) pages: u64,
}

impl Calls {
    pub(crate) fn new(cluster: &Cluster, repaired: usize, lost: &[usize]) -> Calls {
        // One that was repaired before helps the next one.
        let before = lost.iter().take_while(|node| **node != repaired).collect::<Vec<_>>();
        let there = |node: usize| {
            node != repaired
                && cluster.disks[node].is_some()
                && (!lost.contains(&node) || before.contains(&&node))
        };
        let count = cluster.disks.len();
        let members = (0..count).map(|node| there(node).then(|| cluster.member(node))).collect();
        Calls { members, served: vec![None; count], pages: 0 }
    }

    fn ask(
        &mut self,
        asked: usize,
        id: GenerationId,
        answer: impl FnOnce(&mut Served, &mut Member<Disk>) -> Result<Vec<PageAnswer>, ProtectError>,
    ) -> Result<Vec<PageAnswer>, ProtectError> {
        let member = self.members[asked].as_mut().ok_or(lost(asked))?;
        if self.served[asked].as_ref().is_none_or(|(known, _)| *known != id) {
            self.served[asked] = Some((id, Served::open(member, id)?));
        }
        let (_, served) = self.served[asked].as_mut().unwrap();
        let reported = answer(served, member)?;
        self.pages +=
            reported.iter().filter(|reported| matches!(reported, PageAnswer::Page(_))).count() as u64;
        Ok(reported)
    }
}

fn lost(member: usize) -> ProtectError {
    ProtectError::Unreachable { node: u32::try_from(member).unwrap(), why: "it is lost".to_owned() }
}

impl Others for Calls {
    fn content(&mut self, asked: usize, of: usize, id: GenerationId) -> Result<Content, ProtectError> {
        self.members[asked].as_mut().ok_or(lost(asked))?.content(id, of)
    }

    fn places(
        &mut self,
        asked: &[usize],
        id: GenerationId,
        wanted: &Wanted,
    ) -> Vec<Result<Vec<PageAnswer>, ProtectError>> {
        asked
            .iter()
            .map(|asked| self.ask(*asked, id, |served, member| served.places(member, wanted)))
            .collect()
    }
}

pub(crate) fn generation(counter: u32, epoch: u32) -> GenerationId {
    GenerationId { life: life(counter), epoch: Epoch(epoch) }
}

/// Calls `each` with all sets of `count` numbers below `bound`.
pub(crate) fn subsets(bound: usize, count: usize, each: &mut impl FnMut(&[usize])) {
    let mut set: Vec<usize> = (0..count).collect();
    loop {
        each(&set);
        let Some(place) = (0..count).rev().find(|i| set[*i] < bound - count + i) else { return };
        set[place] += 1;
        for i in place + 1..count {
            set[i] = set[i - 1] + 1;
        }
    }
}
