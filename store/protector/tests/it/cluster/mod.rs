//! Nodes of one group, each with a directory and a protector, in one process; they talk over UDP on the loopback interface.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use drivers::fault::Faults;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use protector::{Event, Limits, Protector, ProtectorError, Rail, Request, Settings, Shape, Statistics};
use store::image::Base;
use store::job::{CommitRequest, Depth, ImageClaim};
use store::limits::PAGE_BYTES;
use store::protect::{Group, Member, Repaired};
use store::{
    CheckpointSettings, Decision, Directory, GenerationId, JobDirectory, JobFile, Manifest, Section, kinds,
};
use transport::config::AuthLevel;
use transport::{Epoch, JobId, Life, Rank};

pub(crate) const JOB: JobId = JobId(0x5eed);
pub(crate) const KEY: [u8; 16] = [3; 16];

/// The longest wait for an expected event.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn life(counter: u32) -> Life {
    Life { counter, nonce: u64::from(counter) * 0x1111 }
}

pub(crate) fn generation(counter: u32, epoch: u32) -> GenerationId {
    GenerationId { life: life(counter), epoch: Epoch(epoch) }
}

/// A small generator (xorshift64*): the same seed gives the same numbers for ever.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }
}

pub(crate) struct Node {
    pub(crate) directory: PathBuf,
    pub(crate) protector: Protector,
    pub(crate) memory: Vec<u8>,
    events: std::cell::RefCell<Vec<Event>>,
}

/// How a cluster is made.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) members: usize,
    pub(crate) losses: usize,
    pub(crate) bytes: usize,
    pub(crate) shape: Option<Shape>,
    pub(crate) auth: AuthLevel,
    /// Of each rail.
    pub(crate) faults: Vec<Faults>,
    /// Nodes without one of their networks: node, and rail.
    pub(crate) cut_off: Vec<(usize, usize)>,
    pub(crate) limits: Limits,
    pub(crate) patience: Duration,
    pub(crate) keys: Vec<[u8; 16]>,
    pub(crate) unit_pages: u64,
}

impl Plan {
    pub(crate) fn new(members: usize, losses: usize, bytes: usize) -> Plan {
        Plan {
            members,
            losses,
            bytes,
            shape: None,
            auth: AuthLevel::Header,
            faults: vec![Faults::NONE],
            cut_off: Vec::new(),
            limits: Limits::default(),
            patience: Duration::from_secs(20),
            keys: vec![KEY; members],
            unit_pages: 2,
        }
    }
}

pub(crate) struct Cluster {
    pub(crate) plan: Plan,
    pub(crate) group: Group,
    pub(crate) nodes: Vec<Node>,
    scratch: tempfile::TempDir,
}

impl Cluster {
    /// Everybody has the job, and knows the others.
    pub(crate) fn new(plan: Plan) -> Cluster {
        let nodes = (0..u32::try_from(plan.members).unwrap()).collect();
        let group = Group::new(nodes, plan.losses).unwrap().with_unit_pages(plan.unit_pages);
        let scratch = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { plan, group, nodes: Vec::new(), scratch };
        for node in 0..cluster.plan.members {
            let started = cluster.start(node);
            cluster.nodes.push(started);
        }
        cluster.open(1);
        cluster
    }

    fn start(&self, node: usize) -> Node {
        let directory = self.directory(node);
        let storage = Directory::create(&directory).unwrap();
        let file = JobFile {
            job: JOB,
            ranks: u32::try_from(self.plan.members).unwrap(),
            checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
            directory: b"/".to_vec(),
            command: vec![b"./app".to_vec()],
            environment: Vec::new(),
            settings: BTreeMap::default(),
        };
        let mut job = JobDirectory::create(storage, &file).unwrap();
        job.write_decision(&Decision { job: JOB, life: life(1), from: None }).unwrap();
        let settings = self.settings(node, self.group.clone());
        let mut random = Random::new(node as u64 + 1);
        // Nodes differ in size, and there are zeros in the middle.
        let mut memory: Vec<u8> =
            (0..self.plan.bytes + node * 9000).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
        let zeros = memory.len() / 3..memory.len() / 2;
        memory[zeros].fill(0);
        Node { directory, protector: Protector::start(settings).unwrap(), memory, events: Vec::new().into() }
    }

    /// A life is decided: generations of it may be written.
    pub(crate) fn decide(&self, counter: u32, from: Option<GenerationId>) {
        for node in 0..self.nodes.len() {
            let decision = Decision { job: JOB, life: life(counter), from };
            self.job(node).write_decision(&decision).unwrap();
        }
    }

    /// Gives every node another protector, with other limits; `counter` is that of an unused life.
    pub(crate) fn limit(&mut self, limits: impl Fn(usize) -> Limits, counter: u32) {
        for node in 0..self.nodes.len() {
            let settings = Settings { limits: limits(node), ..self.settings(node, self.group.clone()) };
            self.nodes[node].protector = Protector::start(settings).unwrap();
        }
        self.open(counter);
    }

    /// A node's protector is gone, as if its process had died.
    pub(crate) fn stop(&mut self, node: usize) {
        let alone = Group::new(vec![0, 1], 1).unwrap();
        let settings = self.settings(0, alone);
        self.nodes[node].protector = Protector::start(settings).unwrap();
    }

    fn settings(&self, node: usize, group: Group) -> Settings {
        Settings {
            job: JOB,
            key: self.plan.keys[node],
            auth: self.plan.auth,
            rails: self.rails(node),
            node: u32::try_from(node).unwrap(),
            group,
            directory: self.directory(node),
            limits: self.plan.limits,
            shape: self.plan.shape,
            patience: self.plan.patience,
        }
    }

    /// Each a network of its own, with faults of its own on each node.
    fn rails(&self, node: usize) -> Vec<Rail> {
        let rail = |(number, faults): (usize, &Faults)| {
            let is_there = !self.plan.cut_off.contains(&(node, number));
            // No host has the other one: it is for documents.
            let last = u8::try_from(number + 1).unwrap();
            let bind =
                if is_there { Ipv4Addr::new(127, 0, 0, last) } else { Ipv4Addr::new(203, 0, 113, last) };
            Rail { bind: IpAddr::V4(bind), faults: Faults { seed: node as u64, ..*faults } }
        };
        self.plan.faults.iter().enumerate().map(rail).collect()
    }

    fn directory(&self, node: usize) -> PathBuf {
        self.scratch.path().join(format!("node{node}"))
    }

    /// A life begins: addresses are exchanged.
    pub(crate) fn open(&self, counter: u32) {
        let life = life(counter);
        for node in &self.nodes {
            node.protector.send(Request::Open { life });
        }
        let addresses: Vec<(u32, Vec<u8>)> = (0..)
            .zip(&self.nodes)
            .map(|(number, node)| match node.wait() {
                Event::Opened { addresses, unusable, .. } => {
                    let cut_off = &self.plan.cut_off;
                    let without = cut_off.iter().filter(|(node, _)| *node == number as usize);
                    assert_eq!(unusable.len(), without.count(), "{unusable:?}");
                    assert!(unusable.iter().all(|rail| rail.starts_with("203.0.113.")), "{unusable:?}");
                    (number, addresses)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        for node in &self.nodes {
            node.protector.send(Request::Meet { life, addresses: addresses.clone() });
            assert!(matches!(node.wait(), Event::Met { .. }));
        }
    }

    /// Loses nodes, directories and all; new ones are in their places, and everybody knows them.
    pub(crate) fn replace(&mut self, lost: &[usize], counter: u32) {
        for node in lost {
            std::fs::remove_dir_all(&self.nodes[*node].directory).unwrap();
            let mut new = self.start(*node);
            new.memory = self.nodes[*node].memory.clone();
            self.nodes[*node] = new;
        }
        self.open(counter);
    }

    pub(crate) fn job(&self, node: usize) -> JobDirectory<Directory> {
        let storage = Directory::open(&self.nodes[node].directory).unwrap();
        JobDirectory::attach(storage, JOB).on_node(u32::try_from(node).unwrap())
    }

    pub(crate) fn member(&self, node: usize) -> Member<Directory> {
        Member::new(self.job(node), self.group.clone(), node)
    }

    /// Changes some bytes of every node's memory.
    pub(crate) fn work(&mut self, seed: u64, changes: usize) {
        for (node, state) in self.nodes.iter_mut().enumerate() {
            let mut random = Random::new(seed << 8 | node as u64);
            for _ in 0..changes {
                let at = usize::try_from(random.below(state.memory.len() as u64)).unwrap();
                state.memory[at] ^= 0x5a;
            }
        }
    }

    /// Writes each node's image.
    pub(crate) fn write_images(&self, id: GenerationId) -> Vec<ImageClaim> {
        let mut claims = Vec::new();
        for (number, node) in (0..).zip(&self.nodes) {
            let mut job = self.job(usize::try_from(number).unwrap());
            job.begin_generation(id).unwrap();
            let rank = Rank(number);
            let summary = job.write_image(id, rank, &[Section::new(0x101, 1, &node.memory)]).unwrap();
            claims.push(ImageClaim { rank, node: number, digest: summary.digest, bytes: summary.bytes });
        }
        claims
    }

    /// Writes each node's image as a delta over its image of another generation, with so many pages.
    pub(crate) fn write_deltas(
        &self,
        id: GenerationId,
        bases: &[ImageClaim],
        of: GenerationId,
        pages: usize,
    ) {
        for claim in bases {
            let mut job = self.job(usize::try_from(claim.node).unwrap());
            job.begin_generation(id).unwrap();
            let base = Base { generation: of, digest: claim.digest };
            job.link_base(id, claim.rank, &base, None).unwrap();
            let mut random = Random::new(u64::from(id.epoch.0) << 8 | u64::from(claim.node));
            let changed: Vec<u8> =
                (0..pages * PAGE_BYTES).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
            let named = base.emit();
            let sections = [Section::new(kinds::PROCESS_MEMORY, 1, &changed), Base::section(&named)];
            job.write_image(id, claim.rank, &sections).unwrap();
        }
    }

    /// Protects a generation on all nodes, and returns the cost to each.
    pub(crate) fn protect(&self, id: GenerationId, from: Option<GenerationId>) -> Vec<Statistics> {
        (0..self.nodes.len()).for_each(|node| self.order_protect(node, id, from));
        let protected = |node: &Node| match node.wait() {
            Event::Protected { generation, statistics } => {
                assert_eq!(generation, id);
                statistics
            }
            other => panic!("{other:?}"),
        };
        self.nodes.iter().map(protected).collect()
    }

    pub(crate) fn order_protect(&self, node: usize, id: GenerationId, from: Option<GenerationId>) {
        let ranks = vec![Rank(u32::try_from(node).unwrap())];
        self.nodes[node].protector.send(Request::Protect { generation: id, from, ranks });
    }

    /// Protects and commits a generation everywhere.
    pub(crate) fn checkpoint(
        &self,
        id: GenerationId,
        from: Option<GenerationId>,
    ) -> (Manifest, Vec<Statistics>) {
        let claims = self.write_images(id);
        let statistics = self.protect(id, from);
        let request = CommitRequest {
            generation: id,
            ranks: u32::try_from(self.nodes.len()).unwrap(),
            taken_unix_ms: 0,
            nodes: (0..self.nodes.len()).map(|node| format!("n{node}")).collect(),
            images: claims,
        };
        let manifest = self.job(0).commit(&request).unwrap();
        for node in 1..self.nodes.len() {
            self.job(node).replicate(&manifest).unwrap();
        }
        (manifest, statistics)
    }

    pub(crate) fn collect(&self, counter: u32) {
        self.collect_but(counter, 1, &[]);
    }

    /// Every node keeps the newest `keep` generations, and those `in_use`.
    pub(crate) fn collect_but(&self, counter: u32, keep: u32, in_use: &[GenerationId]) {
        for node in 0..self.nodes.len() {
            self.job(node).collect(life(counter), keep, in_use).unwrap();
        }
    }

    pub(crate) fn memories(&self) -> Vec<Vec<u8>> {
        self.nodes.iter().map(|node| node.memory.clone()).collect()
    }

    /// Waits until each of these has the others' reports of a generation: their encoding has begun.
    pub(crate) fn wait_for_contents(&self, nodes: &[usize], id: GenerationId) {
        let count = self.nodes.len();
        let has_all = |node: &usize| (0..count).all(|of| self.member(*node).content(id, of).is_ok());
        wait_for("the nodes tell each other what they have", || nodes.iter().all(has_all));
    }

    /// Repairs all of these at the same time.
    pub(crate) fn repair(&self, lost: &[usize], id: GenerationId) -> Vec<Result<Repaired, ProtectorError>> {
        for node in lost {
            self.nodes[*node].protector.send(Request::Repair { generation: id });
        }
        let repaired = |node: &usize| match self.nodes[*node].wait() {
            Event::Repaired { repaired, .. } => Ok(repaired),
            Event::Failed { error, .. } => Err(error),
            other => panic!("{other:?}"),
        };
        lost.iter().map(repaired).collect()
    }

    /// Every node has its image as its memory is, and all that it keeps.
    pub(crate) fn check(&self, manifest: &Manifest) {
        self.check_as(manifest, &self.memories());
    }

    /// As it was then.
    pub(crate) fn check_as(&self, manifest: &Manifest, memories: &[Vec<u8>]) {
        let id = manifest.generation;
        for number in (0..).take(self.nodes.len()) {
            let place = usize::try_from(number).unwrap();
            let mut job = self.job(place);
            if job.commit_record(id).is_err() {
                job.adopt(manifest).unwrap();
            }
            assert_eq!(job.verify(id, Depth::Everything).unwrap(), vec![], "node {number}");
            let image = job.open_committed_image(id, Rank(number)).unwrap();
            let found = image.read_section(job.storage(), 0).unwrap();
            assert!(found == memories[place], "the memory of node {number} in {id}");
            assert!(self.member(place).holds(id, true).unwrap(), "node {number} does not hold {id}");
        }
    }
}

impl Node {
    /// The next event.
    pub(crate) fn wait(&self) -> Event {
        self.wait_until(Instant::now() + DEADLINE).expect("an event comes in time")
    }

    pub(crate) fn wait_until(&self, deadline: Instant) -> Option<Event> {
        loop {
            if let Some(event) = self.protector.next() {
                return Some(event);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let mut fds = [PollFd::new(self.protector.wake_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            poll(&mut fds, timeout).expect("a descriptor that can be polled");
        }
    }
}

/// Waits until something is so.
pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for in vain: {what}");
        std::thread::yield_now();
    }
}

/// Calls `each` with all sets of `count` numbers below `bound`.
pub(crate) fn subsets(bound: usize, count: usize, each: &mut impl FnMut(&[usize])) {
    let mut set: Vec<usize> = (0..count).collect();
    loop {
        each(&set);
        let Some(place) = (0..count).rev().find(|place| set[*place] < bound - count + place) else { return };
        set[place] += 1;
        for after in place + 1..count {
            set[after] = set[after - 1] + 1;
        }
    }
}
