//! Encoding from end to end: protectors of one group, a directory each, over UDP on this machine.
//!
//! Every node's link and disk have limits, so that the limits bound the result and not this machine. In turns with the
//! encodings the same bytes go over the same links, and to and from the same directories, with nothing else to do: the
//! speed of link and disk is measured, not assumed. Processor time is given beside each point, and a point at which the
//! machine was the limit is marked. Images hold random bytes. Whole images are independent, each without a predecessor.
//! With a share of dirty pages the first generation is protected as a whole, and the next ones are deltas over it that
//! hold so many pages, each in the place of the one before.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use protector::{Limits, Shape};
use store::image::Base;
use store::limits::PAGE_BYTES;
use store::protect::Scheme;
use store::{GenerationId, Section, kinds};

use super::cluster::{Bare, Cluster, Encoded, Image, Plan, generation};
use super::group_report::{GroupReport, GroupRow};
use super::memory::Memory;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::progress::Steps;

/// Settings of the group benchmark; it measures all combinations.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Nodes of the group.
    pub nodes: Vec<usize>,
    /// Rails that each node has.
    pub rails: Vec<usize>,
    /// How many may be lost.
    pub scheme: Scheme,
    /// Ways that parity takes; `None`: the cost model's choice.
    pub shapes: Vec<Option<Shape>>,
    /// Bytes of a node's image.
    pub bytes: Vec<usize>,
    /// Changed parts of an image.
    pub dirty: Vec<Dirty>,
    /// For how long each frame is held back on its way.
    pub delays: Vec<Duration>,
    /// Limits of each node; the link's limit is per rail.
    pub limits: Limits,
    /// Encodings of each point; the median counts.
    pub runs: usize,
    /// Of jobs: with encrypted images as well.
    pub encrypt: bool,
    /// Where the nodes' directories are.
    pub folder: PathBuf,
}

/// The protected part of an image.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Dirty {
    /// All of it, where nothing was before.
    Whole,
    /// So many percent of its pages, each in place of an earlier page.
    Percent(f64),
}

impl Dirty {
    /// Percent of the pages that are other ones than before.
    #[must_use]
    pub fn percent(self) -> f64 {
        match self {
            Dirty::Whole => 100.0,
            Dirty::Percent(percent) => percent,
        }
    }
}

impl fmt::Display for Dirty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dirty::Whole => f.write_str("whole"),
            Dirty::Percent(percent) => write!(f, "{percent}"),
        }
    }
}

impl FromStr for Dirty {
    type Err = String;

    fn from_str(text: &str) -> Result<Dirty, String> {
        if text == "whole" {
            return Ok(Dirty::Whole);
        }
        let percent = text.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
        percent
            .map(Dirty::Percent)
            .ok_or_else(|| "expected `whole`, or a number above 0 and at most 100".to_owned())
    }
}

impl Default for GroupOptions {
    /// Four nodes with links of 50 MB/s and disks of 100 MB/s: slow enough that no machine is the limit.
    fn default() -> GroupOptions {
        GroupOptions {
            nodes: vec![4],
            rails: vec![1],
            scheme: Scheme::Xor,
            shapes: vec![None],
            bytes: vec![64 << 20],
            dirty: vec![Dirty::Whole],
            delays: vec![Duration::ZERO],
            limits: Limits {
                link_bytes_per_s: Some(50_000_000),
                disk_bytes_per_s: Some(100_000_000),
                cores: None,
            },
            runs: 3,
            encrypt: false,
            folder: std::env::temp_dir(),
        }
    }
}

impl GroupOptions {
    fn plans(&self) -> impl Iterator<Item = Plan> + '_ {
        let mut ways: Vec<(usize, Duration, Option<Shape>)> = Vec::new();
        for rails in &self.rails {
            for delay in &self.delays {
                ways.extend(self.shapes.iter().map(|shape| (*rails, *delay, *shape)));
            }
        }
        self.nodes.iter().flat_map(move |nodes| {
            let plan = |(rails, delay, shape)| Plan { delay, ..self.plan(*nodes, rails, shape) };
            ways.iter().copied().map(plan).collect::<Vec<Plan>>()
        })
    }

    pub(super) fn plan(&self, nodes: usize, rails: usize, shape: Option<Shape>) -> Plan {
        // A protector's limit is that of its node.
        let link_bytes_per_s = self.limits.link_bytes_per_s.map(|rate| rate.saturating_mul(rails as u64));
        let limits = Limits { link_bytes_per_s, ..self.limits };
        Plan {
            nodes,
            rails,
            scheme: self.scheme,
            shape,
            limits,
            delay: Duration::ZERO,
            folder: self.folder.clone(),
        }
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a group cannot be set up, or an encoding fails.
pub fn run(options: &GroupOptions) -> Result<GroupReport, BenchError> {
    let machine = Machine::here();
    options.plans().try_for_each(|plan| plan.check())?;
    let memory = Memory::measure();
    let each = options.bytes.len() * options.dirty.len();
    let steps = Steps::new("parity", options.plans().count() * each);
    let mut rows = Vec::new();
    for plan in options.plans() {
        for bytes in &options.bytes {
            for dirty in &options.dirty {
                let (nodes, mib) = (plan.nodes, bytes >> 20);
                let rails = plan.rails;
                steps.step(format_args!(
                    "{nodes} nodes, rails of each {rails}, {mib} MiB each, changed: {dirty}"
                ));
                let point = Point { bytes: *bytes, dirty: *dirty };
                let measured = measure(&plan, point, options.runs)?;
                rows.push(GroupRow::new(&plan, &memory, point, &measured));
            }
        }
    }
    Ok(GroupReport::new(machine, options.limits, rows))
}

/// Size and changes of the image at one point.
#[derive(Clone, Copy)]
pub(super) struct Point {
    /// Of a node's image.
    pub(super) bytes: usize,
    pub(super) dirty: Dirty,
}

impl Point {
    /// Bytes that have changed.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of what is in memory"
    )]
    pub(super) fn changed_bytes(&self) -> u64 {
        (self.bytes as f64 * self.dirty.percent() / 100.0) as u64
    }
}

/// Measurements of a point: encodings, and bare turns around each.
pub(super) struct Measured {
    pub(super) encoded: Vec<Encoded>,
    /// One more: before the first, between any two, after the last.
    pub(super) bare: Vec<Bare>,
}

fn measure(plan: &Plan, point: Point, runs: usize) -> Result<Measured, BenchError> {
    let mut cluster = Cluster::new(plan.clone())?;
    let mut random = Random(0x5eed);
    let memory: Vec<Vec<u8>> = (0..plan.nodes).map(|_| random.bytes(point.bytes)).collect();
    let whole = point.dirty == Dirty::Whole;
    let (mut last, mut bases) = (generation(1), Vec::new());
    if !whole {
        bases = write(&mut cluster, last, &memory, &[])?;
        cluster.protect(last, None)?;
    }
    // Without a base each run stands for itself. A delta is measured against another one: there has to be one first.
    let unmeasured = usize::from(!whole);
    let changed_bytes = point.changed_bytes();
    let mut measured = Measured { encoded: Vec::new(), bare: vec![cluster.bare(changed_bytes)?] };
    for run in 0..runs + unmeasured {
        let id = generation(2 + u32::try_from(run).unwrap_or(u32::MAX - 2));
        if whole {
            write(&mut cluster, id, &memory, &[])?;
        } else {
            let pages = usize::try_from(changed_bytes).unwrap_or(usize::MAX) / PAGE_BYTES;
            let changed: Vec<Vec<u8>> =
                (0..plan.nodes).map(|_| random.bytes(pages.max(1) * PAGE_BYTES)).collect();
            write(&mut cluster, id, &changed, &bases)?;
        }
        let encoded = cluster.protect(id, (!whole).then_some(last))?;
        if run >= unmeasured {
            measured.encoded.push(encoded);
            measured.bare.push(cluster.bare(changed_bytes)?);
        }
        if whole {
            cluster.abandon(id)?;
        }
        last = id;
    }
    Ok(measured)
}

/// Writes images of memory: whole ones, or changes over bases.
fn write(
    cluster: &mut Cluster,
    id: GenerationId,
    memory: &[Vec<u8>],
    bases: &[Base],
) -> Result<Vec<Base>, BenchError> {
    let images: Vec<Image<'_>> = memory
        .iter()
        .enumerate()
        .map(|(node, memory)| Image {
            sections: vec![Section::new(kinds::PROCESS_MEMORY, 1, memory)],
            base: bases.get(node).copied(),
            last: None,
        })
        .collect();
    let (claims, _) = cluster.write_images(id, &images)?;
    Ok(claims.iter().map(|claim| Base { generation: id, digest: claim.digest }).collect())
}

/// Xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        let mut words: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        words.truncate(bytes);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_of_all_pages_is_no_whole_image() {
        assert_eq!("whole".parse(), Ok(Dirty::Whole));
        assert_eq!("100".parse(), Ok(Dirty::Percent(100.0)));
        assert_eq!(Dirty::Whole.percent(), Dirty::Percent(100.0).percent());
        for text in ["0", "-1", "101", "nan", "all", ""] {
            assert!(text.parse::<Dirty>().expect_err(text).contains("whole"));
        }
        for dirty in [Dirty::Whole, Dirty::Percent(2.5)] {
            assert_eq!(dirty.to_string().parse(), Ok(dirty));
        }
    }
}
