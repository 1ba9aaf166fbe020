//! The parts of a generation, for people and for repair.

use ckpt_glue::{GenerationId, ImageDigest};
use serde::{Deserialize, Serialize};
use transport::{JobId, Rank};

use super::grammar::{
    Escaped, Form, GenerationText, LineReader, RecordWriter, decimal, digest, generation, hexadecimal, job,
    unescaped_text,
};
use crate::checksum::checksum;
use crate::error::RecordError;
use crate::image::{ImageSummary, KindSummary};
use crate::limits::{KINDS_PER_IMAGE_MAX, NODES_MAX, RANKS_MAX};

const FORM: Form = Form { what: "manifest", version: 1 };

/// The images of a generation: their places and contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Manifest {
    /// The job.
    pub job: JobId,
    /// The generation.
    pub generation: GenerationId,
    /// When the coordinator committed it, in milliseconds since 1970-01-01 UTC, as given by the caller.
    pub taken_unix_ms: u64,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// One image per rank, by rank.
    pub images: Vec<ManifestImage>,
}

/// One image of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestImage {
    /// Whose.
    pub rank: Rank,
    /// On which of [`Manifest::nodes`].
    pub node: u32,
    /// Name of the file in the generation's directory.
    pub file: String,
    /// Length, digest, content.
    pub summary: ImageSummary,
}

/// In a message, as its record.
impl TryFrom<Vec<u8>> for Manifest {
    type Error = RecordError;

    fn try_from(record: Vec<u8>) -> Result<Manifest, RecordError> {
        Manifest::parse(&record)
    }
}

impl From<Manifest> for Vec<u8> {
    fn from(of: Manifest) -> Vec<u8> {
        of.emit()
    }
}

impl Manifest {
    /// The manifest's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("generation", GenerationText(self.generation));
        lines.line("taken-ms", self.taken_unix_ms);
        for node in &self.nodes {
            lines.line("node", Escaped(node.as_bytes()));
        }
        for image in &self.images {
            let ImageSummary { digest, bytes, kinds } = &image.summary;
            let file = Escaped(image.file.as_bytes());
            lines.line("image", format_args!("{} {} {bytes} {digest} {file}", image.rank, image.node));
            for held in kinds {
                lines.line("holds", format_args!("{:08x} {} {}", held.kind, held.sections, held.bytes));
            }
        }
        lines.finish()
    }

    /// Reads [`Manifest::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let job = lines.line("job", "job JOB", job)?;
        let generation = lines.line("generation", "generation LIFE EPOCH", generation)?;
        let taken_unix_ms = lines.line("taken-ms", "taken-ms MILLISECONDS", decimal)?;
        let nodes = lines.lines("node", "node NAME", NODES_MAX, unescaped_text)?;
        let mut images: Vec<ManifestImage> = Vec::new();
        while let Some(value) = lines.optional("image") {
            if images.len() == RANKS_MAX as usize {
                let (count, count_max) = (images.len() + 1, RANKS_MAX as usize);
                return Err(RecordError::TooMany { what: "image", count, count_max });
            }
            let mut image = parse_image(value).ok_or(lines.line_before(IMAGE_FORM))?;
            if image.rank.0 as usize != images.len() || image.node as usize >= nodes.len() {
                return Err(lines.line_before(IMAGE_FORM));
            }
            image.summary.kinds = lines.lines("holds", HOLDS_FORM, KINDS_PER_IMAGE_MAX, parse_held)?;
            if !image.summary.kinds.is_sorted_by(|a, b| a.kind < b.kind) {
                return Err(lines.line_before(HOLDS_FORM));
            }
            images.push(image);
        }
        lines.end()?;
        Ok(Manifest { job, generation, taken_unix_ms, nodes, images })
    }

    /// The commit record's data of this manifest.
    #[must_use]
    pub fn checksum(bytes: &[u8]) -> u64 {
        checksum(bytes)
    }

    /// Bytes of all images together.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.images.iter().fold(0, |bytes, image| bytes.saturating_add(image.summary.bytes))
    }
}

const IMAGE_FORM: &str = "image RANK NODE BYTES DIGEST FILE";
const HOLDS_FORM: &str = "holds KIND SECTIONS BYTES";

fn parse_image(value: &str) -> Option<ManifestImage> {
    let mut words = value.split(' ');
    let mut word = || words.next();
    let (rank, node) = (Rank(decimal(word()?)?), decimal(word()?)?);
    let bytes = decimal(word()?)?;
    let digest: ImageDigest = digest(word()?)?;
    let file = unescaped_text(word()?).filter(|file| !file.is_empty() && !file.contains('/'))?;
    let summary = ImageSummary { digest, bytes, kinds: Vec::new() };
    word().is_none().then_some(ManifestImage { rank, node, file, summary })
}

fn parse_held(value: &str) -> Option<KindSummary> {
    let mut words = value.split(' ');
    let mut word = || words.next();
    let kind = u32::try_from(hexadecimal::<8>(word()?)?).ok()?;
    let held = KindSummary { kind, sections: decimal(word()?)?, bytes: decimal(word()?)? };
    word().is_none().then_some(held)
}
