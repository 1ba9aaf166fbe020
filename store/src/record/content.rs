//! A node's content in a generation, and the places of its pages; every member of its group has a copy.

use ckpt_glue::{GenerationId, ImageDigest};
use transport::JobId;

use super::grammar::{
    Escaped, Form, GenerationText, LineReader, RecordWriter, decimal, digest, generation, hexadecimal, job,
    unescaped_text,
};
use crate::error::RecordError;
use crate::limits::{CONTENT_FILES_MAX, CONTENT_PAGES_MAX, EXTENTS_MAX, IMAGE_BYTES_MAX, PAGE_BYTES};
use crate::protect::{Extent, Piece};

const FORM: Form = Form { what: "content", version: 1 };

/// A node's content in a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The job.
    pub job: JobId,
    /// The generation.
    pub generation: GenerationId,
    /// The node, by its number in the manifest.
    pub node: u32,
    /// Its files.
    pub files: Vec<ContentFile>,
}

/// One file of a node's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentFile {
    /// Name in the generation's directory: an image, or a base.
    pub name: String,
    /// Its length. Bytes that no extent covers are zero.
    pub bytes: u64,
    /// Its contents.
    pub digest: ImageDigest,
    /// Where its pages lie in the node's content, in the order of the file.
    pub extents: Vec<Extent>,
}

impl Content {
    /// All extents of all files.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.files.iter().flat_map(|file| &file.extents)
    }

    /// Pages of the content: one more than the last place that is taken.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.extents().map(|at| at.place + at.piece.pages()).max().unwrap_or(0)
    }

    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        lines.line("generation", GenerationText(self.generation));
        lines.line("node", self.node);
        for file in &self.files {
            let name = Escaped(file.name.as_bytes());
            lines.line("file", format_args!("{} {} {name}", file.bytes, file.digest));
            for Extent { piece: Piece { offset, bytes, series, page }, place } in &file.extents {
                lines.line("pages", format_args!("{offset} {bytes} {series:016x} {page} {place}"));
            }
        }
        lines.finish()
    }

    /// Reads [`Content::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Content, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let job = lines.line("job", "job JOB", job)?;
        let generation = lines.line("generation", "generation LIFE EPOCH", generation)?;
        let node = lines.line("node", "node NODE", decimal)?;
        let mut files: Vec<ContentFile> = Vec::new();
        while let Some(value) = lines.optional("file") {
            if files.len() == CONTENT_FILES_MAX {
                let (count, count_max) = (files.len() + 1, CONTENT_FILES_MAX);
                return Err(RecordError::TooMany { what: "file", count, count_max });
            }
            let mut file = parse_file(value).ok_or(lines.line_before(FILE_FORM))?;
            file.extents = lines.lines("pages", EXTENT_FORM, EXTENTS_MAX, parse_extent)?;
            let mut end = 0;
            for extent in &file.extents {
                if extent.piece.offset < end || extent.piece.offset + extent.piece.bytes > file.bytes {
                    return Err(lines.line_before(EXTENT_FORM));
                }
                end = extent.piece.offset + extent.piece.bytes;
            }
            files.push(file);
        }
        lines.end()?;
        let content = Content { job, generation, node, files };
        let mut places: Vec<(u64, u64)> =
            content.extents().map(|at| (at.place, at.place + at.piece.pages())).collect();
        places.sort_unstable();
        match places.windows(2).all(|pair| pair[0].1 <= pair[1].0) {
            true => Ok(content),
            false => Err(lines.line_before(EXTENT_FORM)),
        }
    }
}

const FILE_FORM: &str = "file BYTES DIGEST NAME";
const EXTENT_FORM: &str = "pages OFFSET BYTES SERIES PAGE PLACE";

fn parse_file(value: &str) -> Option<ContentFile> {
    let mut words = value.split(' ');
    let mut word = || words.next();
    let bytes = decimal(word()?).filter(|bytes| *bytes <= IMAGE_BYTES_MAX)?;
    let digest = digest(word()?)?;
    let name = unescaped_text(word()?).filter(|name| !name.is_empty() && !name.contains('/'))?;
    word().is_none().then_some(ContentFile { name, bytes, digest, extents: Vec::new() })
}

fn parse_extent(value: &str) -> Option<Extent> {
    let mut words = value.split(' ');
    let mut word = || words.next();
    let offset = decimal(word()?).filter(|offset| *offset <= IMAGE_BYTES_MAX)?;
    let bytes = decimal(word()?).filter(|bytes| (1..=IMAGE_BYTES_MAX).contains(bytes))?;
    let series = u64::try_from(hexadecimal::<16>(word()?)?).ok()?;
    let page: u64 = decimal(word()?)?;
    let place: u64 = decimal(word()?)?;
    page.checked_add(bytes.div_ceil(PAGE_BYTES as u64))?;
    let fits = place <= CONTENT_PAGES_MAX;
    (word().is_none() && fits).then_some(Extent { piece: Piece { offset, bytes, series, page }, place })
}
