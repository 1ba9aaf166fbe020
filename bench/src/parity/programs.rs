//! Programs whose checkpoints are protected, whole ones and incremental ones.
//!
//! Each node runs a program of its own. After each of its steps its memory is saved twice: as a whole image of which
//! the group computes parity anew, and as the pages that differ from the first image, of which only changes since the
//! checkpoint before travel. Images are written below the disk's limit; differing pages are found by comparing, which
//! is not part of the time: a kernel that tracks written pages reports them for free.

use std::fmt;
use std::str::FromStr;

use process::state::{self, PAGES_KIND};
use store::image::Base;
use store::limits::PAGE_BYTES;
use store::{GenerationId, Section};

use super::changes::Changes;
use super::cluster::{Cluster, Encoded, Image, generation};
use super::group::{Dirty, GroupOptions, Measured, Point};
use super::memory::Memory;
use super::program_report::{ProgramReport, ProgramRow, Repair, Saved};
use crate::delta::programs::{Multiplication, Program, Relaxation};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::progress::Steps;

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramKind {
    /// A multiplication of matrices.
    Mat,
    /// A relaxation by a lower and an upper sweep, with the arrays of NPB LU.
    Lu,
}

impl ProgramKind {
    pub(super) const ALL: [ProgramKind; 2] = [ProgramKind::Mat, ProgramKind::Lu];
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramKind::Mat => "mat",
            ProgramKind::Lu => "lu",
        })
    }
}

impl FromStr for ProgramKind {
    type Err = String;

    fn from_str(text: &str) -> Result<ProgramKind, String> {
        let found = ProgramKind::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is no program; there are mat and lu"))
    }
}

/// Settings of the program benchmark.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// The group: of its dimensions nodes, scheme, the first shape, the first length of an image, limits and folder count.
    pub group: GroupOptions,
    /// The programs.
    pub programs: Vec<ProgramKind>,
    /// Checkpoints of each after the first, whole one.
    pub checkpoints: usize,
}

impl Default for ProgramOptions {
    fn default() -> ProgramOptions {
        let group = GroupOptions { bytes: vec![24 << 20], ..GroupOptions::default() };
        ProgramOptions { group, programs: ProgramKind::ALL.to_vec(), checkpoints: 10 }
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError`] if a group cannot be set up, or an encoding fails.
pub fn run(options: &ProgramOptions) -> Result<ProgramReport, BenchError> {
    let machine = Machine::here();
    let memory = Memory::measure();
    let runs = options.group.nodes.len() * options.programs.len();
    let steps = Steps::new("parity", runs * options.checkpoints);
    let mut rows = Vec::new();
    let mut repairs = Vec::new();
    for nodes in &options.group.nodes {
        for kind in &options.programs {
            repairs.push(series(options, &memory, *nodes, *kind, &steps, &mut rows)?);
        }
    }
    Ok(ProgramReport::new(machine, rows, &repairs))
}

/// A program of about so many bytes, other numbers for each seed.
fn program(kind: ProgramKind, bytes: usize, seed: u64) -> Box<dyn Program> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a number of rows or points, from a length in memory"
    )]
    let side = |bytes_per_element: f64, root: f64| {
        (bytes as f64 / bytes_per_element).powf(1.0 / root).round() as usize
    };
    match kind {
        ProgramKind::Mat => {
            let n = side(24.0, 2.0).max(16);
            Box::new(Multiplication::new(n, (n / 256).max(1), seed))
        }
        ProgramKind::Lu => Box::new(Relaxation::new(side(136.0, 3.0).max(8), seed)),
    }
}

/// One program on each node, saved again and again; then as many nodes as may be lost are lost and repaired.
fn series(
    options: &ProgramOptions,
    memory: &Memory,
    nodes: usize,
    kind: ProgramKind,
    steps: &Steps,
    rows: &mut Vec<ProgramRow>,
) -> Result<Repair, BenchError> {
    let shape = options.group.shapes.first().copied().flatten();
    let rails = options.group.rails.first().copied().unwrap_or(1);
    let plan = options.group.plan(nodes, rails, shape);
    let bytes = options.group.bytes.first().copied().unwrap_or(PAGE_BYTES);
    let mut cluster = Cluster::new(plan.clone())?;
    let mut programs: Vec<Box<dyn Program>> =
        (1..).take(nodes).map(|seed| program(kind, bytes, seed)).collect();
    let first: Vec<Vec<u8>> = programs.iter().map(|program| content(&**program)).collect();
    let mut last = generation(1);
    let (claims, _) = cluster.write_images(last, &whole(&first))?;
    let bases: Vec<Base> =
        claims.iter().map(|claim| Base { generation: last, digest: claim.digest }).collect();
    cluster.protect(last, None)?;
    cluster.commit(last, claims)?;
    let mut now = first.clone();
    let mut bare = cluster.bare(length(&now))?;
    let mut changes = Vec::new();
    for checkpoint in 1..=options.checkpoints {
        steps.step(format_args!("{kind} on {nodes} nodes, checkpoint {checkpoint}"));
        programs.iter_mut().for_each(|program| program.step());
        let before =
            std::mem::replace(&mut now, programs.iter().map(|program| content(&**program)).collect());
        let epoch = 2 * u32::try_from(checkpoint).unwrap_or(u32::MAX / 2 - 1);
        // A whole one, for which nothing was there before.
        let id = generation(epoch);
        let (claims, write_s) = cluster.write_images(id, &whole(&now))?;
        let encoded = cluster.protect(id, None)?;
        cluster.abandon(id)?;
        let full = Taken {
            image_bytes: mean(claims.iter().map(|claim| claim.bytes)),
            write_s,
            collect_s: None,
            encoded,
        };
        // The difference from the first checkpoint, written after the one before.
        let id = generation(epoch + 1);
        changes = first.iter().zip(&now).map(|(first, now)| Changes::of(first, now)).collect();
        let images: Vec<Image<'_>> =
            changes.iter().zip(&bases).map(|(changes, base)| changes.image(*base, last)).collect();
        let (claims, write_s) = cluster.write_images(id, &images)?;
        let encoded = cluster.protect(id, Some(last))?;
        let image_bytes = mean(claims.iter().map(|claim| claim.bytes));
        let collect_s = Some(cluster.commit(id, claims)?);
        let incremental = Taken { image_bytes, write_s, collect_s, encoded };
        last = id;
        let after = cluster.bare(length(&now))?;
        let share = Dirty::Percent(changed_percent(&before, &now));
        for (way, dirty, taken) in [("full", Dirty::Whole, full), ("incremental", share, incremental)] {
            let point = Point { bytes: now[0].len(), dirty };
            let Taken { image_bytes, write_s, collect_s, encoded } = taken;
            let saved = Saved { program: kind.to_string(), checkpoint, way, image_bytes, write_s, collect_s };
            let measured = Measured { encoded: vec![encoded], bare: vec![bare, after] };
            rows.push(ProgramRow::new(saved, &plan, memory, point, &measured));
        }
        bare = after;
    }
    let repair_s = cluster.lose_and_repair(last)?;
    let is_right = is_right(&mut cluster, last, &now, &changes)?;
    Ok(Repair { program: kind.to_string(), nodes, repair_s, is_right })
}

/// A checkpoint that was taken.
struct Taken {
    image_bytes: u64,
    write_s: f64,
    collect_s: Option<f64>,
    encoded: Encoded,
}

fn mean(values: impl ExactSizeIterator<Item = u64>) -> u64 {
    let count = values.len().max(1) as u64;
    values.sum::<u64>() / count
}

/// Of one node's memory.
fn length(contents: &[Vec<u8>]) -> u64 {
    contents.iter().map(Vec::len).max().unwrap_or(0) as u64
}

/// A program's memory, filled up to whole pages.
fn content(program: &dyn Program) -> Vec<u8> {
    let mut content = Vec::new();
    program.content(&mut content);
    content.resize(content.len().next_multiple_of(PAGE_BYTES), 0);
    content
}

/// Percent of all nodes' pages that are other ones than before.
#[expect(clippy::cast_precision_loss, reason = "pages are far below 2^52")]
fn changed_percent(before: &[Vec<u8>], now: &[Vec<u8>]) -> f64 {
    let pages = |content: &[Vec<u8>]| content.iter().map(|content| content.len() / PAGE_BYTES).sum::<usize>();
    let changed = before.iter().zip(now).map(|(before, now)| Changes::of(before, now).pages()).sum::<u64>();
    changed as f64 * 100.0 / pages(now).max(1) as f64
}

fn whole(contents: &[Vec<u8>]) -> Vec<Image<'_>> {
    let section = |content| Section::new(PAGES_KIND, state::VERSION, content);
    contents
        .iter()
        .map(|content| Image { sections: vec![section(content)], base: None, last: None })
        .collect()
}

/// Whether the newest images, laid over their bases, are the memory that was saved: also those that were repaired.
fn is_right(
    cluster: &mut Cluster,
    id: GenerationId,
    now: &[Vec<u8>],
    changes: &[Changes],
) -> Result<bool, BenchError> {
    for (node, (expected, changes)) in now.iter().zip(changes).enumerate() {
        let (pages, base) = cluster.read_memory(node, id)?;
        if changes.over(base.unwrap_or_default(), &pages).as_ref() != Some(expected) {
            return Ok(false);
        }
    }
    Ok(true)
}
