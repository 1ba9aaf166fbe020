//! Nodes of one group in this process: a directory and a protector each, over UDP on this machine.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drivers::fault::{Delay, Faults, Rate};
use nix::poll::{PollFd, PollFlags, poll};
use protector::{BareRing, Disk, Event, Limits, Protector, Rail, Request, Settings, Shape, Statistics};
use store::image::Base;
use store::job::{CommitRequest, ImageClaim};
use store::protect::{Group, Scheme};
use store::{
    CheckpointSettings, Decision, Directory, GenerationId, ImageReader, JobDirectory, JobFile, Section,
    Storage as _, StoreError, kinds,
};
use transport::config::AuthLevel;
use transport::{Epoch, JobId, Life, Rank};

use crate::error::BenchError;
use crate::machine::{Busy, Processor};

const JOB: JobId = JobId(0xbe7c);
const LIFE: Life = Life { counter: 1, nonce: 0xbe7c };

/// The longest wait for an expected event.
const DEADLINE: Duration = Duration::from_secs(80);

/// A bare turn moves at least so many bytes: below it the cost of its start would count.
const BARE_BYTES_MIN: u64 = 4 << 20;
/// Bytes that a bare turn reads or writes at once.
const PIECE_BYTES: usize = 1 << 20;
/// Where a bare turn writes, in a node's directory.
const BARE_FILE: &str = "bare";

/// The shape of a group.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    /// Of each node, each at an address of its own.
    pub(super) rails: usize,
    pub(super) scheme: Scheme,
    /// `None`: the cost model's choice.
    pub(super) shape: Option<Shape>,
    pub(super) limits: Limits,
    /// For how long each frame is held back.
    pub(super) delay: Duration,
    /// Where the nodes' directories are made.
    pub(super) folder: PathBuf,
}

impl Plan {
    /// Data nodes of a stripe.
    pub(super) fn data(&self) -> usize {
        self.nodes - self.scheme.losses()
    }

    /// Refused if more nodes may be lost than there are.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let (scheme, needed) = (self.scheme, self.scheme.losses() + 1);
        if self.nodes < needed {
            return Err(BenchError::Nodes { scheme: scheme.to_string(), nodes: self.nodes, needed });
        }
        Ok(())
    }
}

struct Node {
    settings: Settings,
    directory: JobDirectory<Directory>,
    protector: Protector,
}

/// The nodes.
pub(super) struct Cluster {
    plan: Plan,
    nodes: Vec<Node>,
    ring: BareRing,
    folder: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        // The rest of it lies in a folder for such things.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One encoding.
pub(super) struct Encoded {
    /// From the first order to the last answer.
    pub(super) seconds: f64,
    /// Of all nodes.
    pub(super) statistics: Vec<Statistics>,
    pub(super) processor: Processor,
}

/// Bare speed of link and disk, bytes per second.
#[derive(Clone, Copy)]
pub(super) struct Bare {
    pub(super) link: f64,
    pub(super) disk: f64,
}

/// A node's image: whole, or the changes since a base.
pub(super) struct Image<'a> {
    pub(super) sections: Vec<Section<'a>>,
    pub(super) base: Option<Base>,
    /// The generation before, which has that base beside its own delta.
    pub(super) last: Option<GenerationId>,
}

pub(super) fn generation(epoch: u32) -> GenerationId {
    GenerationId { life: LIFE, epoch: Epoch(epoch) }
}

fn number(node: usize) -> u32 {
    u32::try_from(node).expect("a group has few nodes")
}

impl Cluster {
    pub(super) fn new(plan: Plan) -> Result<Cluster, BenchError> {
        plan.check()?;
        let group = Group::new((0..number(plan.nodes)).collect(), plan.scheme.losses())?;
        let folder = plan.folder.join(format!("stillwire-bench-parity-{}", std::process::id()));
        let faults = match plan.delay {
            Duration::ZERO => Faults::NONE,
            delay => Faults { delay: Rate::percent(100), delay_by: Delay::Time(delay), ..Faults::NONE },
        };
        let rail = |number| Rail { bind: IpAddr::V4(Ipv4Addr::new(127, 0, 0, number)), faults };
        let rails: Vec<Rail> = (1..).take(plan.rails).map(rail).collect();
        let settings = |node| Settings {
            job: JOB,
            key: [5; 16],
            auth: AuthLevel::Header,
            rails: rails.clone(),
            node,
            group: group.clone(),
            directory: folder.join(format!("node{node}")),
            limits: plan.limits,
            shape: plan.shape,
            patience: Duration::from_secs(30),
        };
        let settings: Vec<Settings> = (0..number(plan.nodes)).map(settings).collect();
        let ring = BareRing::open(&settings, LIFE).map_err(BenchError::Protector)?;
        let mut cluster = Cluster { nodes: Vec::new(), ring, folder, plan };
        for settings in settings {
            cluster.nodes.push(Node::start(settings, cluster.plan.nodes)?);
        }
        cluster.open(LIFE)?;
        Ok(cluster)
    }

    fn open(&self, life: Life) -> Result<(), BenchError> {
        self.send(&Request::Open { life });
        let mut addresses = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            if let Event::Opened { addresses: own, .. } = state.wait()? {
                addresses.push((number(node), own));
            }
        }
        self.send_and_wait(&Request::Meet { life, addresses })
    }

    fn send(&self, request: &Request) {
        for node in &self.nodes {
            node.protector.send(request.clone());
        }
    }

    fn send_and_wait(&self, request: &Request) -> Result<(), BenchError> {
        self.send(request);
        self.nodes.iter().try_for_each(|node| node.wait().map(drop))
    }

    /// Writes each node's image, all at the same time, below the disk's limit. Returns their claims and the time taken, seconds.
    pub(super) fn write_images(
        &mut self,
        id: GenerationId,
        images: &[Image<'_>],
    ) -> Result<(Vec<ImageClaim>, f64), BenchError> {
        let started = Instant::now();
        for (node, image) in (0..).zip(images) {
            let directory = &mut self.nodes[node as usize].directory;
            directory.begin_generation(id)?;
            if let Some(base) = &image.base {
                directory.link_base(id, Rank(node), base, image.last).map_err(StoreError::from)?;
            }
        }
        let claims = self.on_disks(|node, mut directory| {
            let (rank, image) = (Rank(node), &images[node as usize]);
            let named = image.base.as_ref().map(Base::emit);
            let mut sections = image.sections.clone();
            sections.extend(named.as_ref().map(Base::section));
            let summary = directory.write_image(id, rank, &sections)?;
            Ok(ImageClaim { rank, node, digest: summary.digest, bytes: summary.bytes })
        })?;
        Ok((claims, started.elapsed().as_secs_f64()))
    }

    pub(super) fn protect(
        &self,
        id: GenerationId,
        from: Option<GenerationId>,
    ) -> Result<Encoded, BenchError> {
        let (started, busy) = (Instant::now(), Busy::begin());
        for (node, state) in self.nodes.iter().enumerate() {
            let ranks = vec![Rank(number(node))];
            state.protector.send(Request::Protect { generation: id, from, ranks });
        }
        let mut statistics = Vec::new();
        for node in &self.nodes {
            if let Event::Protected { statistics: found, .. } = node.wait()? {
                statistics.push(found);
            }
        }
        Ok(Encoded { seconds: started.elapsed().as_secs_f64(), statistics, processor: busy.end() })
    }

    /// The memory in a node's image, and in the base of that.
    pub(super) fn read_memory(
        &mut self,
        node: usize,
        id: GenerationId,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), BenchError> {
        let (directory, rank) = (&mut self.nodes[node].directory, Rank(number(node)));
        let image = directory.open_image(id, rank)?;
        let base = directory.open_base(id, rank, &image)?;
        let mut memory =
            |image: &ImageReader| image.read_section(directory.storage(), image.find(kinds::PROCESS_MEMORY)?);
        Ok((memory(&image)?, base.as_ref().map(memory).transpose()?))
    }

    /// Loses the most nodes that the scheme permits, with all their data, and computes their data of a generation from
    /// that of the others. Returns how long that took, from the first order to the last answer, seconds.
    pub(super) fn lose_and_repair(&mut self, generation: GenerationId) -> Result<f64, BenchError> {
        let (lost, nodes) = (self.plan.scheme.losses(), self.plan.nodes);
        for node in &mut self.nodes[..lost] {
            let settings = node.settings.clone();
            let failed = |error| BenchError::Write { path: settings.directory.clone(), error };
            std::fs::remove_dir_all(&settings.directory).map_err(failed)?;
            *node = Node::start(settings, nodes)?;
        }
        self.open(Life { counter: LIFE.counter + 1, nonce: LIFE.nonce + 1 })?;
        let started = Instant::now();
        for node in &self.nodes[..lost] {
            node.protector.send(Request::Repair { generation });
        }
        self.nodes[..lost].iter().try_for_each(|node| node.wait().map(drop))?;
        Ok(started.elapsed().as_secs_f64())
    }

    pub(super) fn abandon(&self, id: GenerationId) -> Result<(), BenchError> {
        self.send_and_wait(&Request::Abandon { generation: id })
    }

    /// Commits a generation everywhere, and removes files that are not needed any more. Returns the time that the removal took, seconds.
    pub(super) fn commit(&mut self, id: GenerationId, images: Vec<ImageClaim>) -> Result<f64, BenchError> {
        let request = CommitRequest {
            generation: id,
            ranks: number(self.nodes.len()),
            taken_unix_ms: 0,
            nodes: (0..self.nodes.len()).map(|node| format!("node{node}")).collect(),
            images,
        };
        let manifest = self.nodes[0].directory.commit(&request)?;
        self.nodes[1..].iter_mut().try_for_each(|node| node.directory.replicate(&manifest))?;
        let started = Instant::now();
        self.on_disks(|_, mut directory| directory.collect(LIFE, 1, &[]).map(drop))?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Does something on each node, all at the same time, with its directory below the disk's limit.
    fn on_disks<R: Send>(
        &mut self,
        act: impl Fn(u32, JobDirectory<Disk>) -> Result<R, StoreError> + Sync,
    ) -> Result<Vec<R>, StoreError> {
        let limit = self.plan.limits.disk_bytes_per_s;
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (node, state) in (0..).zip(&mut self.nodes) {
                let disk = Disk::limited(state.directory.storage().clone(), limit);
                let (directory, act) = (JobDirectory::attach(disk, JOB).on_node(node), &act);
                threads.push(scope.spawn(move || act(node, directory)));
            }
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        })
    }

    /// The bare speed of link and disk, first the one and then the other, on all nodes at once: for the bytes that an
    /// encoding moves when so many bytes of images have changed.
    #[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
    pub(super) fn bare(&mut self, changed_bytes: u64) -> Result<Bare, BenchError> {
        let changed = changed_bytes.max(BARE_BYTES_MIN);
        let (losses, data) = (self.plan.scheme.losses() as u64, self.plan.data() as u64);
        let sent = changed * losses;
        let link = self.ring.turn(sent).map_err(BenchError::Protector)?;
        let (read, written) = (changed, changed * losses / data);
        let started = Instant::now();
        self.on_disks(|_, mut directory| bare_disk(directory.storage(), read, written))?;
        let disk = started.elapsed();
        let moved = (read + written) as f64;
        Ok(Bare { link: sent as f64 / link.as_secs_f64(), disk: moved / disk.as_secs_f64() })
    }
}

/// Writes so many bytes into a file, makes them durable, and reads: the same repeatedly, if more must be read.
fn bare_disk(disk: &mut Disk, read: u64, written: u64) -> Result<(), StoreError> {
    let mut piece = vec![1; PIECE_BYTES];
    let length = |left: u64| usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
    let mut file = disk.create(BARE_FILE)?;
    let mut left = written;
    while left > 0 {
        disk.append(&mut file, &piece[..length(left)])?;
        left -= length(left) as u64;
    }
    disk.sync_file(&mut file)?;
    let (mut left, mut at) = (read, 0);
    while left > 0 {
        at = if at >= written { 0 } else { at };
        let bytes = length(left.min(written - at));
        disk.read_range(BARE_FILE, at, &mut piece[..bytes])?;
        (left, at) = (left - bytes as u64, at + bytes as u64);
    }
    Ok(disk.remove_file(BARE_FILE)?)
}

fn new_job(folder: &Path, nodes: usize) -> Result<JobDirectory<Directory>, BenchError> {
    let file = JobFile {
        job: JOB,
        ranks: number(nodes),
        checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
        directory: b"/".to_vec(),
        command: vec![b"bench".to_vec()],
        environment: Vec::new(),
        settings: Default::default(),
    };
    let storage = Directory::create(folder).map_err(StoreError::from)?;
    let mut directory = JobDirectory::create(storage, &file)?;
    directory.write_decision(&Decision { job: JOB, life: LIFE, from: None })?;
    Ok(directory)
}

impl Node {
    /// With an empty directory.
    fn start(settings: Settings, nodes: usize) -> Result<Node, BenchError> {
        let directory = new_job(&settings.directory, nodes)?.on_node(settings.node);
        let protector = Protector::start(settings.clone()).map_err(BenchError::Protector)?;
        Ok(Node { settings, directory, protector })
    }

    fn wait(&self) -> Result<Event, BenchError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.protector.next() {
                Some(Event::Failed { error, .. }) => return Err(BenchError::Protector(error)),
                Some(event) => return Ok(event),
                None if Instant::now() >= deadline => {
                    return Err(BenchError::Worker { role: "protector", what: "did nothing for 80 s" });
                }
                None => {
                    let mut fds = [PollFd::new(self.protector.wake_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, 1000u16).map_err(std::io::Error::from)?;
                }
            }
        }
    }
}
