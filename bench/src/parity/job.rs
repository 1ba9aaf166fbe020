//! Checkpoints of real jobs, from the order to the commit.
//!
//! A job of `stillwire run` with a node for each rank: each has its own processes, keepers and directories. The protectors keep below limits of each
//! node's link and disk. Ranks are programs without knowledge of checkpoints; their memory changes all the time. Each run is a job of its own with
//! two checkpoints. The first has no predecessor; the next replaces the first one's images. Bare speeds of link and disk are measured before each job
//! and after it.

use std::time::Duration;

use protector::{Seconds, Shape, Statistics};
use serde::Deserialize;

use super::cluster::{Bare, Cluster, Encoded, Plan};
use super::group::{Dirty, GroupOptions, Point};
use super::job_report::{JobReport, JobRow};
use super::launched::{Folder, Job};
use super::memory::Memory;
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::machine::{Busy, Machine};
use crate::progress::Steps;

/// How often a second a rank writes to each page that it writes to.
pub(super) const PASSES: u32 = 4;

/// Until all pages have been written to since the last checkpoint, on a machine that has other work.
const CHANGED_AFTER: Duration = Duration::from_millis(600);

/// A job's answer to a checkpoint request.
#[derive(Deserialize)]
pub(super) struct CheckpointAnswer {
    milliseconds: u64,
    bytes: u64,
    pause_ns: u64,
    written_ms: u64,
    protected_ms: u64,
    nodes: Vec<Effort>,
}

/// The effort of protecting on a node.
#[derive(Deserialize)]
struct Effort {
    shape: Option<String>,
    sent_bytes: u64,
    received_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    network_us: u64,
    disk_us: u64,
    arithmetic_us: u64,
    total_us: u64,
    predicted_us: u64,
}

/// One checkpoint. Seconds since it was ordered.
pub(super) struct Taken {
    pub(super) pause_s: f64,
    pub(super) written_s: f64,
    pub(super) protected_s: f64,
    pub(super) committed_s: f64,
    /// Of a node.
    pub(super) image_bytes: u64,
    pub(super) encoded: Encoded,
}

/// Checkpoints of the same kind, one of each job, and bare turns around each: one more.
#[derive(Default)]
pub(super) struct Series {
    pub(super) taken: Vec<Taken>,
    pub(super) bare: Vec<Bare>,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a job does not start, or a checkpoint of it fails.
pub fn run(options: &GroupOptions) -> Result<JobReport, BenchError> {
    let machine = Machine::here();
    let interrupt = Interrupt::notice()?;
    let ways =
        options.nodes.iter().flat_map(|nodes| options.shapes.iter().map(move |shape| (*nodes, *shape)));
    let plans: Vec<Plan> = ways.map(|(nodes, shape)| options.plan(nodes, 1, shape)).collect();
    plans.iter().try_for_each(Plan::check)?;
    let memory = Memory::measure();
    let folder = Folder::new(&options.folder)?;
    let workspace = Workspace { folder, interrupt };
    let points = plans.len() * options.bytes.len() * options.dirty.len();
    let steps = Steps::new("parity", points);
    let mut rows = Vec::new();
    for plan in &plans {
        for bytes in &options.bytes {
            for dirty in &options.dirty {
                let (nodes, mib, percent) = (plan.nodes, bytes >> 20, dirty.percent());
                steps.step(format_args!("jobs of {nodes} nodes, {mib} MiB each, {percent} % of them change"));
                // Of a program that is saved again something was there before.
                let point = Point { bytes: *bytes, dirty: Dirty::Percent(percent) };
                let measured = measure(plan, &workspace, point, options);
                // A failure while the bench is being stopped is caused by the stop.
                let measured =
                    measured.map_err(|error| workspace.interrupt.check().err().unwrap_or(error))?;
                let whole = Point { dirty: Dirty::Whole, ..point };
                for (encrypts, [first, next]) in [false, true].into_iter().zip(measured) {
                    for (which, point, series) in [("first", whole, first), ("next", point, next)] {
                        rows.push(JobRow::new((which, encrypts), plan, &memory, point, series));
                    }
                }
            }
        }
    }
    Ok(JobReport::new(machine, rows))
}

/// Where it is measured, and whether that goes on.
pub(super) struct Workspace {
    pub(super) folder: Folder,
    pub(super) interrupt: Interrupt,
}

/// The first checkpoint of each job and the next one; then the same of jobs whose images are encrypted, if that was asked for.
fn measure(
    plan: &Plan,
    workspace: &Workspace,
    point: Point,
    options: &GroupOptions,
) -> Result<Vec<[Series; 2]>, BenchError> {
    let mut cluster = Cluster::new(plan.clone())?;
    let kinds = 1 + usize::from(options.encrypt);
    let mut measured: Vec<[Series; 2]> = std::iter::repeat_with(Default::default).take(kinds).collect();
    let mut bare = |measured: &mut Vec<[Series; 2]>| {
        workspace.interrupt.check()?;
        let found = cluster.bare(point.bytes as u64)?;
        measured.iter_mut().flatten().for_each(|series| series.bare.push(found));
        Ok::<(), BenchError>(())
    };
    bare(&mut measured)?;
    for _ in 0..options.runs {
        for (encrypts, series) in [false, true].into_iter().zip(&mut measured) {
            workspace.interrupt.check()?;
            let mut job = Job::start(workspace, plan, point, encrypts)?;
            for series in series {
                workspace.interrupt.check()?;
                std::thread::sleep(CHANGED_AFTER);
                series.taken.push(checkpoint(&mut job, plan.nodes)?);
            }
            job.end()?;
        }
        bare(&mut measured)?;
    }
    Ok(measured)
}

fn checkpoint(job: &mut Job, nodes: usize) -> Result<Taken, BenchError> {
    let (busy, used) = (Busy::begin(), job.processor_seconds());
    let reported = job.checkpoint()?;
    let processor = busy.end_with(job.processor_seconds() - used);
    let seconds = |ms: u64| Duration::from_millis(ms).as_secs_f64();
    let statistics = reported.nodes.iter().map(Effort::statistics).collect::<Result<Vec<_>, _>>()?;
    let encoded_s = seconds(reported.protected_ms.saturating_sub(reported.written_ms));
    Ok(Taken {
        pause_s: Duration::from_nanos(reported.pause_ns).as_secs_f64(),
        written_s: seconds(reported.written_ms),
        protected_s: seconds(reported.protected_ms),
        committed_s: seconds(reported.milliseconds),
        image_bytes: reported.bytes / nodes.max(1) as u64,
        encoded: Encoded { seconds: encoded_s, statistics, processor },
    })
}

impl Effort {
    fn statistics(&self) -> Result<Statistics, BenchError> {
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        let mut rail_frames = Statistics::default().rail_frames;
        // A job's nodes have one rail here, which carries everything.
        rail_frames[0] = 1;
        Ok(Statistics {
            shape: self.shape.as_deref().map(str::parse::<Shape>).transpose()?,
            rail_frames,
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            seconds: Seconds {
                network: seconds(self.network_us),
                disk: seconds(self.disk_us),
                arithmetic: seconds(self.arithmetic_us),
                total: seconds(self.total_us),
                predicted: seconds(self.predicted_us),
                ..Seconds::default()
            },
            ..Statistics::default()
        })
    }
}
