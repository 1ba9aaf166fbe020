//! The record that makes a copy of a generation exist.

use transport::{JobId, Rank};

use super::grammar::{
    Form, GenerationText, LineReader, Lines, decimal, digest, generation, hexadecimal, job, sum,
};
use crate::checksum::ImageDigest;
use crate::error::RecordError;
use crate::job::GenerationId;
use crate::limits::RANKS_MAX;

const FORM: Form = Form { what: "copied", version: 1 };
const NONE: &str = "none";
const FILE_FORM: &str = "image or base DIGEST BYTES STORED-BYTES FOOTER";

/// What a copy of a generation consists of. It is written last.
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
    /// Which key its files are encrypted with ([`crate::packets::Key::id`]).
    pub key: Option<u64>,
    /// Checksum of the manifest's bytes.
    pub manifest: u64,
    /// The job file, packed.
    pub job_file: CopiedFile,
    /// By rank: the image, and its base if it is a delta.
    pub images: Vec<(CopiedFile, Option<CopiedFile>)>,
}

/// A packed file of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedFile {
    /// Names the content: an image's digest, another file's checksum.
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
        let mut lines = Lines::new(&FORM);
        lines.line("job", self.job);
        lines.line("generation", GenerationText(self.generation));
        lines.line("taken-ms", self.taken_unix_ms);
        lines.line("copied-ms", self.copied_unix_ms);
        match self.key {
            Some(key) => lines.line("key", format_args!("{key:016x}")),
            None => lines.line("key", NONE),
        }
        lines.line("manifest", format_args!("{:016x}", self.manifest));
        self.job_file.emit(&mut lines, "job-file");
        for (image, base) in &self.images {
            image.emit(&mut lines, "image");
            if let Some(base) = base {
                base.emit(&mut lines, "base");
            }
        }
        lines.finish()
    }

    /// Reads [`Copied::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Copied, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let mut copied = Copied {
            job: lines.line("job", "job JOB", job)?,
            generation: lines.line("generation", "generation LIFE EPOCH", generation)?,
            taken_unix_ms: lines.line("taken-ms", "taken-ms MILLISECONDS", decimal)?,
            copied_unix_ms: lines.line("copied-ms", "copied-ms MILLISECONDS", decimal)?,
            key: lines.line("key", "key none, or KEY", |text| {
                if text == NONE { Some(None) } else { sum(text).map(Some) }
            })?,
            manifest: lines.line("manifest", "manifest CHECKSUM", sum)?,
            job_file: lines.line(
                "job-file",
                "job-file DIGEST BYTES STORED-BYTES FOOTER",
                CopiedFile::parse,
            )?,
            images: Vec::new(),
        };
        while let Some(value) = lines.optional("image") {
            if copied.images.len() == RANKS_MAX as usize {
                let (count, count_max) = (copied.images.len() + 1, RANKS_MAX as usize);
                return Err(RecordError::TooMany { what: "image", count, count_max });
            }
            let image = CopiedFile::parse(value).ok_or(lines.line_before(FILE_FORM))?;
            let base = match lines.optional("base") {
                Some(value) => Some(CopiedFile::parse(value).ok_or(lines.line_before(FILE_FORM))?),
                None => None,
            };
            copied.images.push((image, base));
        }
        lines.end()?;
        Ok(copied)
    }

    /// The packed images and bases, with their ranks.
    pub fn files(&self) -> impl Iterator<Item = (Rank, &CopiedFile)> {
        (0..).zip(&self.images).flat_map(|(rank, (image, base))| {
            [Some(image), base.as_ref()].into_iter().flatten().map(move |file| (Rank(rank), file))
        })
    }

    /// Bytes of all that is packed, unpacked.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        sum_of(self.files().map(|(_, file)| file.bytes))
    }

    /// Bytes of all packed files. What several copies share counts in each.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let files = self.files().map(|(_, file)| file.stored_bytes);
        sum_of(files.chain([self.job_file.stored_bytes]))
    }
}

/// As large as can be told: what records say is not believed to be small.
fn sum_of(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

impl CopiedFile {
    fn emit(&self, lines: &mut Lines, key: &str) {
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
            footer: u64::try_from(hexadecimal::<16>(word()?)?).ok()?,
        };
        word().is_none().then_some(file)
    }
}
