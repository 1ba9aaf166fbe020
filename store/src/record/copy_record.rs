//! The record that makes a copy of a generation exist.

use core::fmt::{self, Display};

use ckpt_glue::{GenerationId, ImageDigest};
use serde::{Deserialize, Serialize};
use transport::{JobId, Rank};

use super::grammar::{
    Form, GenerationText, LineReader, RecordWriter, decimal, digest, generation, hexadecimal, job, sum,
};
use crate::checksum::checksum;
use crate::delta::ContentName;
use crate::error::RecordError;
use crate::limits::RANKS_MAX;
use crate::seal::{Key, KeyUse, SALT_BYTES, Sealing, TAG_BYTES};

const FORM: Form = Form { what: "copied", version: 1 };
const NONE: &str = "none";
const SIGNED: &str = "signed ";
const KEY_FORM: &str = "key none, KEY, or signed KEY";
const SIGNATURE_FORM: &str = "signature SALT MANIFEST-TAG RECORD-TAG";
const YES: &str = "yes";
const NO: &str = "no";
const IMAGE_FORM: &str = "image or base DIGEST BYTES";
const BLOCKS_FORM: &str = "blocks CONTENT STORED-BYTES";
const SINCE_FORM: &str = "since-whole COPIES BYTES, of a copy that builds upon another";
const PLACES_FORM: &str = "places DIGEST BYTES STORED-BYTES FOOTER";

/// The parts of a copy of a generation. It is written last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The job.
    pub job: JobId,
    /// The generation.
    pub generation: GenerationId,
    /// When the generation was committed, in milliseconds since 1970-01-01 UTC.
    pub taken_unix_ms: u64,
    /// When it was copied, likewise.
    pub copied_unix_ms: u64,
    /// Which key its files are encrypted or signed with.
    pub key: Option<KeyName>,
    /// Checksum of the manifest's bytes.
    pub manifest: u64,
    /// The copy that has the blocks which this one has not; none: it is whole.
    pub upon: Option<BaseCopy>,
    /// Later copies build upon this one, though it builds upon another itself.
    pub becomes_base: bool,
    /// Bytes written since the last whole copy; none for a whole one, and in records that were written before there was
    /// such a line.
    pub since_whole: Option<SinceWhole>,
    /// The job file, packed.
    pub job_file: CopiedFile,
    /// The parts of each rank.
    pub ranks: Vec<CopiedRank>,
    /// Of this record and the manifest, which are not packed. None without a key.
    pub signature: Option<Signature>,
}

/// A key, as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyName {
    /// [`Key::id`].
    pub id: u64,
    /// What it does to the files.
    pub usage: KeyUse,
}

/// Tags of the record of a copy and of its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Random, of this signature alone.
    pub salt: [u8; SALT_BYTES],
    /// Over the manifest's bytes.
    pub manifest: [u8; TAG_BYTES],
    /// Over the record, up to this tag.
    pub record: [u8; TAG_BYTES],
}

const MANIFEST_PART: u8 = 0;
const RECORD_PART: u8 = 1;

impl Signature {
    fn sealing(&self, key: &Key) -> Sealing {
        Sealing::with(key.clone(), KeyUse::Sign, self.salt)
    }
}

/// Another copy of the same job, by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseCopy {
    /// Its generation.
    pub generation: GenerationId,
    /// Checksum of its record ([`Copied::checksum`]).
    pub record: u64,
}

/// Copies since a whole one, whether they still exist or not: those that build upon it, directly or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinceWhole {
    /// How many, this one included.
    pub copies: u32,
    /// Bytes of all their files.
    pub bytes: u64,
}

/// A rank's part of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedRank {
    /// The image.
    pub image: CopiedImage,
    /// Its base, if it is a delta.
    pub base: Option<CopiedImage>,
    /// Names the blocks of both.
    pub content: ContentName,
    /// Length of the file with the blocks that the copy below has not.
    pub blocks_bytes: u64,
    /// Which block is which part of which file, packed.
    pub places: CopiedFile,
}

/// A file of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedImage {
    /// Names its content.
    pub digest: ImageDigest,
    /// Its length.
    pub bytes: u64,
}

/// A packed file of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// Checksum of the content.
    pub digest: ImageDigest,
    /// Bytes of the content.
    pub bytes: u64,
    /// Bytes of the packed file.
    pub stored_bytes: u64,
    /// The checksum that ends the packed file: with it, every byte is named.
    pub footer: u64,
}

impl Copied {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("generation", GenerationText(self.generation));
        lines.line("taken-ms", self.taken_unix_ms);
        lines.line("copied-ms", self.copied_unix_ms);
        match self.key {
            Some(KeyName { id, usage: KeyUse::Encrypt }) => lines.line("key", format_args!("{id:016x}")),
            Some(KeyName { id, usage: KeyUse::Sign }) => {
                lines.line("key", format_args!("{SIGNED}{id:016x}"));
            }
            None => lines.line("key", NONE),
        }
        lines.line("manifest", format_args!("{:016x}", self.manifest));
        match self.upon {
            Some(BaseCopy { generation, record }) => {
                lines.line("upon", format_args!("{} {record:016x}", GenerationText(generation)));
            }
            None => lines.line("upon", NONE),
        }
        lines.line("becomes-base", if self.becomes_base { YES } else { NO });
        if let Some(SinceWhole { copies, bytes }) = self.since_whole {
            lines.line("since-whole", format_args!("{copies} {bytes}"));
        }
        self.job_file.emit(&mut lines, "job-file");
        for rank in &self.ranks {
            rank.image.emit(&mut lines, "image");
            if let Some(base) = &rank.base {
                base.emit(&mut lines, "base");
            }
            lines.line("blocks", format_args!("{} {}", rank.content, rank.blocks_bytes));
            rank.places.emit(&mut lines, "places");
        }
        if let Some(Signature { salt, manifest, record }) = &self.signature {
            lines.line("signature", format_args!("{} {} {}", Digits(salt), Digits(manifest), Digits(record)));
        }
        lines.finish()
    }

    /// Signs record and manifest; `salt` must be random, and never the same for two signatures with one key.
    pub fn sign(&mut self, key: &Key, salt: [u8; SALT_BYTES], manifest: &[u8]) {
        let sealing = Sealing::with(key.clone(), KeyUse::Sign, salt);
        let manifest = sealing.sign_part(MANIFEST_PART, manifest);
        self.signature = Some(Signature { salt, manifest, record: [0; TAG_BYTES] });
        let record = sealing.sign_part(RECORD_PART, &self.emit());
        self.signature = Some(Signature { salt, manifest, record });
    }

    /// Whether somebody with this key wrote the record, as it is.
    #[must_use]
    pub fn is_signed(&self, key: &Key) -> bool {
        let Some(signature) = self.signature else { return false };
        let signed = Signature { record: [0; TAG_BYTES], ..signature };
        let bytes = Copied { signature: Some(signed), ..self.clone() }.emit();
        signature.sealing(key).is_signed_part(RECORD_PART, &bytes, &signature.record)
    }

    /// Whether these are the bytes of the manifest that was signed with it.
    #[must_use]
    pub fn is_manifest_signed(&self, key: &Key, manifest: &[u8]) -> bool {
        self.signature.is_some_and(|signature| {
            signature.sealing(key).is_signed_part(MANIFEST_PART, manifest, &signature.manifest)
        })
    }

    /// Reads [`Copied::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Copied, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let mut copied = Copied {
            job: lines.line("job", "job JOB", job)?,
            generation: lines.line("generation", "generation LIFE EPOCH", generation)?,
            taken_unix_ms: lines.line("taken-ms", "taken-ms MILLISECONDS", decimal)?,
            copied_unix_ms: lines.line("copied-ms", "copied-ms MILLISECONDS", decimal)?,
            key: lines.line("key", KEY_FORM, parse_key)?,
            manifest: lines.line("manifest", "manifest CHECKSUM", sum)?,
            upon: lines.line("upon", "upon none, or LIFE EPOCH CHECKSUM", parse_upon)?,
            becomes_base: lines.line("becomes-base", "becomes-base yes or no", |text| match text {
                YES => Some(true),
                NO => Some(false),
                _ => None,
            })?,
            since_whole: None,
            job_file: CopiedFile { digest: ImageDigest(0), bytes: 0, stored_bytes: 0, footer: 0 },
            ranks: Vec::new(),
            signature: None,
        };
        if let Some(value) = lines.optional("since-whole") {
            let since = parse_since(value).filter(|_| copied.upon.is_some());
            copied.since_whole = Some(since.ok_or(lines.line_before(SINCE_FORM))?);
        }
        copied.job_file =
            lines.line("job-file", "job-file DIGEST BYTES STORED-BYTES FOOTER", CopiedFile::parse)?;
        while let Some(value) = lines.optional("image") {
            if copied.ranks.len() == RANKS_MAX as usize {
                let (count, count_max) = (copied.ranks.len() + 1, RANKS_MAX as usize);
                return Err(RecordError::TooMany { what: "image", count, count_max });
            }
            let image = CopiedImage::parse(value).ok_or(lines.line_before(IMAGE_FORM))?;
            let base = match lines.optional("base") {
                Some(value) => Some(CopiedImage::parse(value).ok_or(lines.line_before(IMAGE_FORM))?),
                None => None,
            };
            let (content, blocks_bytes) = lines.line("blocks", BLOCKS_FORM, parse_blocks)?;
            let places = lines.line("places", PLACES_FORM, CopiedFile::parse)?;
            copied.ranks.push(CopiedRank { image, base, content, blocks_bytes, places });
        }
        if let Some(value) = lines.optional("signature") {
            let signature = parse_signature(value).filter(|_| copied.key.is_some());
            copied.signature = Some(signature.ok_or(lines.line_before(SIGNATURE_FORM))?);
        }
        lines.end()?;
        Ok(copied)
    }

    /// Names the record, and with it every byte of the copy.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        checksum(&self.emit())
    }

    /// The parts of each rank.
    pub fn by_rank(&self) -> impl Iterator<Item = (Rank, &CopiedRank)> {
        (0..).map(Rank).zip(&self.ranks)
    }

    /// Bytes of all images and of their bases.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        sum_of(self.ranks.iter().map(CopiedRank::bytes))
    }

    /// Bytes of all its files, without those of the copies that it builds upon.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let ranks = self.ranks.iter().flat_map(|rank| [rank.blocks_bytes, rank.places.stored_bytes]);
        sum_of(ranks.chain([self.job_file.stored_bytes]))
    }
}

/// Saturates: the numbers of a record are not trusted to be small.
fn sum_of(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

impl CopiedRank {
    /// Bytes of the image and of its base.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.image.bytes.saturating_add(self.base.map_or(0, |base| base.bytes))
    }
}

/// Bytes as hexadecimal digits.
struct Digits<'a>(&'a [u8]);

impl Display for Digits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn parse_digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = u8::try_from(hexadecimal::<2>(str::from_utf8(pair).ok()?)?).ok()?;
    }
    Some(bytes)
}

fn parse_signature(text: &str) -> Option<Signature> {
    let mut words = text.split(' ');
    let mut word = || words.next();
    let signature = Signature {
        salt: parse_digits(word()?)?,
        manifest: parse_digits(word()?)?,
        record: parse_digits(word()?)?,
    };
    word().is_none().then_some(signature)
}

fn parse_key(text: &str) -> Option<Option<KeyName>> {
    if text == NONE {
        return Some(None);
    }
    let (id, usage) = match text.strip_prefix(SIGNED) {
        Some(id) => (id, KeyUse::Sign),
        None => (text, KeyUse::Encrypt),
    };
    Some(Some(KeyName { id: sum(id)?, usage }))
}

fn parse_upon(text: &str) -> Option<Option<BaseCopy>> {
    if text == NONE {
        return Some(None);
    }
    let (of, record) = text.rsplit_once(' ')?;
    Some(Some(BaseCopy { generation: generation(of)?, record: sum(record)? }))
}

fn parse_since(text: &str) -> Option<SinceWhole> {
    let (copies, bytes) = text.split_once(' ')?;
    Some(SinceWhole { copies: decimal(copies)?, bytes: decimal(bytes)? })
}

fn parse_blocks(text: &str) -> Option<(ContentName, u64)> {
    let (content, bytes) = text.split_once(' ')?;
    Some((ContentName(hexadecimal::<32>(content)?), decimal(bytes)?))
}

impl CopiedImage {
    fn emit(&self, lines: &mut RecordWriter, key: &str) {
        lines.line(key, format_args!("{} {}", self.digest, self.bytes));
    }

    fn parse(text: &str) -> Option<CopiedImage> {
        let (of, bytes) = text.split_once(' ')?;
        Some(CopiedImage { digest: digest(of)?, bytes: decimal(bytes)? })
    }
}

impl CopiedFile {
    fn emit(&self, lines: &mut RecordWriter, key: &str) {
        let CopiedFile { digest, bytes, stored_bytes, footer } = self;
        lines.line(key, format_args!("{digest} {bytes} {stored_bytes} {footer:016x}"));
    }

    fn parse(text: &str) -> Option<CopiedFile> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let file = CopiedFile {
            digest: digest(word()?)?,
            bytes: decimal(word()?)?,
            stored_bytes: decimal(word()?)?,
            footer: sum(word()?)?,
        };
        word().is_none().then_some(file)
    }
}
