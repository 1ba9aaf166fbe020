//! Encoding from end to end: protectors of one group, a directory each, over UDP on this machine.
//!
//! Every node's link and disk have limits, so that what is measured is what the limits allow and not this machine; its processor time is
//! told beside each point, and a point at which the machine had nothing left is marked. Images hold random bytes. The first
//! generation is protected as a whole; with a share of dirty pages below 100 the next ones are deltas over it that hold so many pages.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::parity::{Kernel, Matrix};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{UsageWho, getrusage};
use protector::{Event, Limits, Order, Protector, Settings, Shape, Statistics};
use store::image::Base;
use store::limits::PAGE_BYTES;
use store::protect::{Group, Scheme};
use store::{CheckpointSettings, Decision, Directory, GenerationId, JobDirectory, JobFile, Section, kinds};
use transport::config::AuthLevel;
use transport::{Epoch, JobId, Life, Rank};

use super::group_report::{GroupReport, GroupRow};
use crate::error::BenchError;
use crate::machine::Machine;

const JOB: JobId = JobId(0xbe7c);
const LIFE: Life = Life { counter: 1, nonce: 0xbe7c };

/// What is waited for longer than this does not come.
const DEADLINE: Duration = Duration::from_secs(80);

/// Part of all cores from which on the machine is taken for the limit.
const MACHINE_BUSY: f64 = 0.85;

/// What to measure: all combinations.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Nodes of the group.
    pub nodes: Vec<usize>,
    /// How many may be lost.
    pub scheme: Scheme,
    /// Ways that parity takes; `None`: the cost model's choice.
    pub shapes: Vec<Option<Shape>>,
    /// Bytes of a node's image.
    pub bytes: Vec<usize>,
    /// Percent of an image's pages that have changed; 100: whole images.
    pub dirty_percent: Vec<f64>,
    /// What each node may use.
    pub limits: Limits,
    /// Encodings of each point; the median counts.
    pub runs: usize,
    /// Where the nodes' directories are.
    pub folder: PathBuf,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a group cannot be set up, or an encoding fails.
pub fn run(options: &GroupOptions) -> Result<GroupReport, BenchError> {
    let machine = Machine::here();
    let memory = Memory::measure();
    let mut rows = Vec::new();
    for nodes in &options.nodes {
        let losses = options.scheme.losses();
        if *nodes <= losses {
            let (scheme, needed) = (options.scheme, losses + 1);
            return Err(BenchError::Nodes { scheme: scheme.to_string(), nodes: *nodes, needed });
        }
        for bytes in &options.bytes {
            for shape in &options.shapes {
                for dirty in &options.dirty_percent {
                    rows.push(point(options, &memory, *nodes, *bytes, *shape, *dirty)?);
                }
            }
        }
    }
    Ok(GroupReport::new(machine, options.limits, rows))
}

/// What this machine's memory gives on one core, bytes per second.
pub(super) struct Memory {
    pub(super) copy: f64,
    pub(super) add: f64,
}

impl Memory {
    fn measure() -> Memory {
        let bytes = 4 * super::last_level_cache_bytes().unwrap_or(32 << 20);
        let (source, mut into) = (vec![1u8; bytes], vec![2u8; bytes]);
        let mut best = |work: &mut dyn FnMut(&[u8], &mut [u8])| {
            let once = |_| {
                let started = Instant::now();
                work(&source, &mut into);
                started.elapsed().as_secs_f64()
            };
            let seconds: Vec<f64> = (0..5).map(once).collect();
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let bytes = bytes as f64;
            bytes / crate::statistics::percentile(&crate::statistics::sorted(seconds), 0.5)
        };
        let (kernel, one) = (Kernel::best(), Matrix::identity(1));
        let copy = best(&mut |source, into| into.copy_from_slice(source));
        let add = best(&mut |source, into| kernel.multiply_add(&one, &[source], &mut [into]));
        Memory { copy, add }
    }
}

struct Node {
    directory: JobDirectory<Directory>,
    protector: Protector,
    memory: Vec<u8>,
}

struct Cluster {
    nodes: Vec<Node>,
    folder: PathBuf,
    random: u64,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        // What is left of it lies in a folder for such things.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn point(
    options: &GroupOptions,
    memory: &Memory,
    nodes: usize,
    bytes: usize,
    shape: Option<Shape>,
    dirty: f64,
) -> Result<GroupRow, BenchError> {
    let mut cluster = Cluster::new(options, nodes, bytes, shape)?;
    let first = generation(1);
    let whole = dirty >= 100.0;
    let mut bases = Vec::new();
    if !whole {
        bases = cluster.write_images(first, &[], 100.0)?;
        cluster.protect(first, None)?;
    }
    let (mut found, mut last) = (Vec::new(), first);
    // Without a base each run stands for itself. A delta is measured against another one: there has to be one first.
    for run in 0..options.runs + usize::from(!whole) {
        let id = generation(2 + u32::try_from(run).unwrap_or(u32::MAX - 2));
        cluster.write_images(id, &bases, dirty)?;
        let measured = cluster.protect(id, (!whole).then_some(last))?;
        if whole || run > 0 {
            found.push(measured);
        }
        if whole {
            cluster.abandon(id)?;
        }
        last = id;
    }
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let median = found.swap_remove(found.len() / 2);
    Ok(GroupRow::new(options, memory, nodes, bytes, dirty, &median))
}

/// One encoding.
pub(super) struct Measured {
    /// From the first order to the last answer.
    pub(super) seconds: f64,
    /// Of all nodes.
    pub(super) statistics: Vec<Statistics>,
    /// Processor time of this process, by time and by all cores.
    pub(super) machine_used: f64,
    pub(super) machine_limited: bool,
}

fn generation(epoch: u32) -> GenerationId {
    GenerationId { life: LIFE, epoch: Epoch(epoch) }
}

fn number(node: usize) -> u32 {
    u32::try_from(node).expect("a group has few nodes")
}

impl Cluster {
    fn new(
        options: &GroupOptions,
        nodes: usize,
        bytes: usize,
        shape: Option<Shape>,
    ) -> Result<Cluster, BenchError> {
        let group = Group::new((0..number(nodes)).collect(), options.scheme.losses())?;
        let folder = options.folder.join(format!("stillwire-bench-parity-{}", std::process::id()));
        let mut cluster = Cluster { nodes: Vec::new(), folder, random: 0x5eed };
        for node in 0..nodes {
            let directory = cluster.folder.join(format!("node{node}"));
            let settings = Settings {
                job: JOB,
                key: [5; 16],
                auth: AuthLevel::Header,
                bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
                node: number(node),
                group: group.clone(),
                directory: directory.clone(),
                limits: options.limits,
                shape,
                patience: Duration::from_secs(30),
            };
            let directory = new_job(&directory, nodes)?.on_node(number(node));
            let memory = cluster.random_bytes(bytes);
            let protector = Protector::start(settings).map_err(BenchError::Protector)?;
            cluster.nodes.push(Node { directory, protector, memory });
        }
        cluster.open()?;
        Ok(cluster)
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn random_bytes(&mut self, bytes: usize) -> Vec<u8> {
        let mut words: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        words.truncate(bytes);
        words
    }

    fn open(&self) -> Result<(), BenchError> {
        self.tell(&Order::Open { life: LIFE });
        let mut addresses = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            if let Event::Opened { addresses: own, .. } = state.wait()? {
                addresses.push((number(node), own));
            }
        }
        self.tell(&Order::Meet { life: LIFE, addresses });
        self.nodes.iter().try_for_each(|node| node.wait().map(drop))
    }

    fn tell(&self, order: &Order) {
        self.nodes.iter().for_each(|node| node.protector.tell(order.clone()));
    }

    /// Writes each node's image: whole, or a delta over its base with a share of its pages.
    fn write_images(
        &mut self,
        id: GenerationId,
        bases: &[Base],
        dirty: f64,
    ) -> Result<Vec<Base>, BenchError> {
        let mut written = Vec::new();
        for node in 0..self.nodes.len() {
            let rank = Rank(number(node));
            let mut changed = Vec::new();
            if !bases.is_empty() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    reason = "a share of pages that are in memory"
                )]
                let pages = (self.nodes[node].memory.len() as f64 * dirty / 100.0) as usize / PAGE_BYTES;
                changed = self.random_bytes(pages.max(1) * PAGE_BYTES);
            }
            let state = &mut self.nodes[node];
            state.directory.begin_generation(id)?;
            let base = bases.get(node);
            let content = if base.is_some() { &changed } else { &state.memory };
            let named = base.map(Base::emit);
            let mut sections = vec![Section::new(kinds::PROCESS_MEMORY, 1, content)];
            sections.extend(named.as_ref().map(Base::section));
            if let Some(base) = base {
                state.directory.link_base(id, rank, base, None).map_err(store::StoreError::from)?;
            }
            let summary = state.directory.write_image(id, rank, &sections)?;
            written.push(Base { generation: id, digest: summary.digest });
        }
        Ok(written)
    }

    fn protect(&self, id: GenerationId, from: Option<GenerationId>) -> Result<Measured, BenchError> {
        let (started, processor) = (Instant::now(), processor_seconds());
        for (node, state) in self.nodes.iter().enumerate() {
            let ranks = vec![Rank(number(node))];
            state.protector.tell(Order::Protect { generation: id, from, ranks });
        }
        let mut statistics = Vec::new();
        for node in &self.nodes {
            if let Event::Protected { statistics: found, .. } = node.wait()? {
                statistics.push(found);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let machine_used = (processor_seconds() - processor) / seconds / cores;
        let machine_limited = machine_used > MACHINE_BUSY;
        Ok(Measured { seconds, statistics, machine_used, machine_limited })
    }

    fn abandon(&self, id: GenerationId) -> Result<(), BenchError> {
        self.tell(&Order::Abandon { generation: id });
        self.nodes.iter().try_for_each(|node| node.wait().map(drop))
    }
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
    let storage = Directory::create(folder).map_err(store::StoreError::from)?;
    let mut directory = JobDirectory::create(storage, &file)?;
    directory.write_decision(&Decision { job: JOB, life: LIFE, from: None })?;
    Ok(directory)
}

impl Node {
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
                    let mut fds = [PollFd::new(self.protector.bell(), PollFlags::POLLIN)];
                    poll(&mut fds, 1000u16).map_err(std::io::Error::from)?;
                }
            }
        }
    }
}

/// Processor time of this process so far.
fn processor_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| {
            #[expect(clippy::cast_precision_loss, reason = "seconds and microseconds")]
            let seconds = time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds
        })
        .sum()
}
