//! Plain data for reports: `ls`, `inspect` and `verify` print them as text or as JSON.

use serde::Serialize;

use crate::error::StoreError;
use crate::image::{ImageReader, KindSummary};
use crate::job::{AbandonedBy, Damage, Depth, Generation, GenerationState, JobDirectory};
use crate::kinds;
use crate::record::{Content, ContentFile, JobFile, Manifest};
use crate::storage::Storage;

/// A job's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// The job's id, 32 hexadecimal digits.
    pub job: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Program and arguments; bytes that are not text are replaced.
    pub command: Vec<String>,
    /// The newest life, `COUNTER.NONCE`.
    pub life: Option<String>,
    /// The generation that it started from.
    pub started_from: Option<String>,
    /// When the job has finished, in milliseconds since 1970; `None` if it can go on.
    pub finished_unix_ms: Option<u64>,
    /// Decision records that cannot be read, and why. Generations do not depend on them.
    pub damaged_decisions: Vec<String>,
    /// Every generation on disk, oldest first.
    pub generations: Vec<GenerationReport>,
}

/// A generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GenerationReport {
    /// `COUNTER.NONCE/EPOCH`
    pub generation: String,
    /// The life's counter.
    pub life: u32,
    /// The epoch.
    pub epoch: u32,
    /// `writing`, `complete`, `committed`, `abandoned` or `collected`.
    pub state: &'static str,
    /// For an abandoned one: why.
    pub reason: Option<String>,
    /// When it was committed, in milliseconds since 1970-01-01 UTC.
    pub taken_unix_ms: Option<u64>,
    /// Finished images.
    pub images: u32,
    /// Half-written files.
    pub half_written: u32,
    /// Bytes of all files. Bases count in every generation that needs them, and lie on disk once.
    pub bytes: u64,
    /// For a committed one: images that are deltas.
    pub deltas: u32,
    /// For a committed one: images that are encrypted.
    pub encrypted: u32,
    /// For a committed one: damages that keep it from being restored; empty if none.
    pub damages: Vec<DamageReport>,
}

/// Why something cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamageReport {
    /// Whose image; none for the generation's records.
    pub rank: Option<u32>,
    /// The expected value, the found value, and a remedy.
    pub problem: String,
}

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManifestReport {
    /// The job's id.
    pub job: String,
    /// `COUNTER.NONCE/EPOCH`
    pub generation: String,
    /// When it was committed, in milliseconds since 1970-01-01 UTC.
    pub taken_unix_ms: u64,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// The images by rank.
    pub images: Vec<ManifestImageReport>,
}

/// One image of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManifestImageReport {
    /// Whose.
    pub rank: u32,
    /// Name of its node.
    pub node: String,
    /// File in the generation's directory.
    pub file: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Digest, 16 hexadecimal digits.
    pub digest: String,
    /// Its contents.
    pub holds: Vec<KindReport>,
}

/// Sections of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindReport {
    /// The kind's name, or its number if this build does not know it.
    pub kind: String,
    /// Sections.
    pub sections: u32,
    /// Their bytes together.
    pub bytes: u64,
}

/// An image file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageReport {
    /// The file.
    pub path: String,
    /// Format version.
    pub version: u16,
    /// The job's id.
    pub job: String,
    /// The life, `COUNTER.NONCE`.
    pub life: String,
    /// The epoch.
    pub epoch: u32,
    /// The rank.
    pub rank: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// Digest, 16 hexadecimal digits.
    pub digest: String,
    /// Whether it is encrypted; which sections are, each says.
    pub encrypted: bool,
    /// For a delta: the image that it needs below it.
    pub base: Option<BaseReport>,
    /// Its sections in order.
    pub sections: Vec<SectionReport>,
}

/// The base of a delta.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BaseReport {
    /// The generation that it was taken for.
    pub generation: String,
    /// Digest, 16 hexadecimal digits.
    pub digest: String,
}

/// One section of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SectionReport {
    /// The kind's name, or its number if this build does not know it.
    pub kind: String,
    /// Version of the content.
    pub version: u16,
    /// Which one of its kind.
    pub id: u64,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Whether they are encrypted.
    pub encrypted: bool,
    /// Checksum, 16 hexadecimal digits.
    pub checksum: String,
}

/// A file of a node's content: an image or a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileContent {
    /// Its name in the generation's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The digest of its contents, 16 hexadecimal digits.
    pub digest: String,
    /// Pages that it takes.
    pub pages: u64,
    /// Runs of pages that lie together.
    pub runs: usize,
    /// Its first place in the content.
    pub first_place: u64,
    /// Its last one.
    pub last_place: u64,
}

impl Content {
    /// The files as plain data.
    #[must_use]
    pub fn describe(&self) -> Vec<FileContent> {
        let of = |file: &ContentFile| FileContent {
            name: file.name.clone(),
            bytes: file.bytes,
            digest: file.digest.to_string(),
            pages: file.extents.iter().map(|at| at.piece.pages()).sum(),
            runs: file.extents.len(),
            first_place: file.extents.iter().map(|at| at.place).min().unwrap_or(0),
            last_place: file
                .extents
                .iter()
                .map(|at| (at.place + at.piece.pages()).saturating_sub(1))
                .max()
                .unwrap_or(0),
        };
        self.files.iter().map(of).collect()
    }
}

/// Describes an image file from its header and table; of the sections only the name of a base is read.
pub fn describe_image<S: Storage>(storage: &mut S, path: &str) -> Result<ImageReport, StoreError> {
    let reader = ImageReader::open(storage, path)?;
    let identity = reader.header().identity;
    let section = |entry: &crate::image::Entry| SectionReport {
        kind: kind_text(entry.kind),
        version: entry.version,
        id: entry.id,
        offset: entry.offset,
        bytes: entry.bytes,
        encrypted: entry.is_encrypted(),
        checksum: format!("{:016x}", entry.checksum),
    };
    Ok(ImageReport {
        path: path.to_owned(),
        version: reader.header().version,
        job: identity.job.to_string(),
        life: identity.life.to_string(),
        epoch: identity.epoch.0,
        rank: identity.rank.0,
        bytes: reader.header().total_bytes,
        digest: reader.digest().to_string(),
        encrypted: reader.header().is_encrypted,
        // One that is damaged is found where the image is verified.
        base: reader.base(storage).ok().flatten().map(|base| BaseReport {
            generation: base.generation.to_string(),
            digest: base.digest.to_string(),
        }),
        sections: reader.entries().iter().map(section).collect(),
    })
}

impl Manifest {
    /// The manifest as plain data.
    #[must_use]
    pub fn describe(&self) -> ManifestReport {
        let image = |image: &crate::record::ManifestImage| ManifestImageReport {
            rank: image.rank.0,
            node: self.nodes.get(image.node as usize).cloned().unwrap_or_default(),
            file: image.file.clone(),
            bytes: image.summary.bytes,
            digest: image.summary.digest.to_string(),
            holds: image.summary.kinds.iter().map(KindReport::of).collect(),
        };
        ManifestReport {
            job: self.job.to_string(),
            generation: self.generation.to_string(),
            taken_unix_ms: self.taken_unix_ms,
            nodes: self.nodes.clone(),
            images: self.images.iter().map(image).collect(),
        }
    }
}

impl<S: Storage> JobDirectory<S> {
    /// Describes the job `file` of this directory, its committed generations verified at `depth`.
    pub fn describe(&mut self, file: &JobFile, depth: Depth) -> Result<JobReport, StoreError> {
        // An unreadable decision must not hide the generations from a person who looks for the fault.
        let decision = self.newest_decision().ok().flatten();
        let damaged_decisions = self.damaged_decisions()?.iter().map(ToString::to_string).collect();
        let mut generations = Vec::new();
        for found in self.generations()? {
            generations.push(self.describe_generation(&found, depth)?);
        }
        let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
        Ok(JobReport {
            job: file.job.to_string(),
            ranks: file.ranks,
            command: file.command.iter().map(text).collect(),
            life: decision.map(|decision| decision.life.to_string()),
            started_from: decision.and_then(|decision| decision.from).map(|from| from.to_string()),
            finished_unix_ms: self.end().ok().flatten().map(|end| end.ended_unix_ms),
            damaged_decisions,
            generations,
        })
    }

    /// Describes one generation; if it is committed, verified at `depth`.
    pub fn describe_generation(
        &mut self,
        found: &Generation,
        depth: Depth,
    ) -> Result<GenerationReport, StoreError> {
        let committed = found.state == GenerationState::Committed;
        let damages = if committed { self.verify(found.id, depth)? } else { Vec::new() };
        let manifest = if committed { self.manifest(found.id).ok() } else { None };
        let with = |kind| {
            let images = manifest.iter().flat_map(|manifest| &manifest.images);
            let found = images.filter(|image| image.summary.kinds.iter().any(|held| held.kind == kind));
            u32::try_from(found.count()).unwrap_or(u32::MAX)
        };
        let (deltas, encrypted) = (with(kinds::BASE), with(kinds::SEAL));
        Ok(GenerationReport {
            generation: found.id.to_string(),
            life: found.id.life.counter,
            epoch: found.id.epoch.0,
            state: found.state.name(),
            reason: found.state.reason(),
            taken_unix_ms: manifest.map(|manifest| manifest.taken_unix_ms),
            images: found.images,
            half_written: found.half_written,
            bytes: found.bytes,
            deltas,
            encrypted,
            damages: damages.iter().map(DamageReport::of).collect(),
        })
    }
}

impl GenerationState {
    /// The state in one word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            GenerationState::Writing => "writing",
            GenerationState::Complete => "complete",
            GenerationState::Committed => "committed",
            GenerationState::Abandoned(_) => "abandoned",
            GenerationState::Collected => "collected",
        }
    }

    /// Why it was abandoned.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            GenerationState::Abandoned(AbandonedBy::Life(life)) => {
                Some(format!("life {life} began and does not build on it"))
            }
            GenerationState::Abandoned(AbandonedBy::Epoch(epoch)) => {
                Some(format!("epoch {epoch} of the same life was begun"))
            }
            GenerationState::Abandoned(AbandonedBy::UndecidedLife) => {
                Some("no decision record names its life".to_owned())
            }
            _ => None,
        }
    }
}

impl DamageReport {
    /// The damage as plain data.
    #[must_use]
    pub fn of(damage: &Damage) -> DamageReport {
        DamageReport { rank: damage.rank.map(|rank| rank.0), problem: damage.error.to_string() }
    }
}

impl KindReport {
    fn of(held: &KindSummary) -> KindReport {
        KindReport { kind: kind_text(held.kind), sections: held.sections, bytes: held.bytes }
    }
}

fn kind_text(kind: u32) -> String {
    kinds::name(kind).map_or_else(|| format!("{kind:#010x}"), str::to_owned)
}
