//! Files by which nodes protect each other.

use std::io;

use launcher::text;
use serde::Serialize;
use store::describe::FileContent;
use store::limits::PAGE_BYTES;
use store::protect::parity_changes::MAGIC;
use store::protect::{ParityFile, ProtectError, inspect_changed, inspect_pages, inspect_sums};
use store::record::{Content, Protected};
use store::storage::Shared;
use store::{Directory, StoreError};

use crate::commands::say;
use crate::error::CliError;

/// The contents of a protection file.
#[derive(Debug, Serialize)]
#[serde(tag = "holds", rename_all = "kebab-case")]
pub(super) enum ProtectionFile {
    /// Pages of a node's parity: those that have changed with a generation, or all.
    Parity {
        /// Of a file with all pages its name has it.
        generation: Option<String>,
        /// The generation whose parity lies below; `null`: pages that are not here are zero.
        from: Option<String>,
        pages: u64,
        last_page: Option<u64>,
        damaged_pages: Vec<u64>,
        damage: Option<String>,
    },
    /// Checksums of the pages of a node's content.
    Sums { pages: u64 },
    /// A node's files of a generation, and where each lies in the node's content.
    Content { generation: String, node: u32, pages: u64, files: Vec<FileContent> },
    /// How a generation is protected.
    Protected {
        generation: String,
        from: Option<String>,
        node: u32,
        nodes: Vec<u32>,
        losses: usize,
        unit_bytes: u64,
    },
}

impl ProtectionFile {
    pub(super) fn damage(&self) -> Option<&String> {
        match self {
            ProtectionFile::Parity { damage, .. } => damage.as_ref(),
            _ => None,
        }
    }

    pub(super) fn print(&self) -> io::Result<()> {
        match self {
            ProtectionFile::Parity { generation, from, pages, last_page, .. } => {
                let of = generation.as_ref().map_or_else(String::new, |of| format!(" of generation {of}"));
                let bytes = text::bytes(pages * PAGE_BYTES as u64);
                say!("parity{of}: {pages} pages, {bytes}, up to page {}", last_page.unwrap_or_default())?;
                match (from, generation) {
                    (Some(from), _) => {
                        say!("what has changed since generation {from}, whose parity lies below")
                    }
                    (None, Some(_)) => say!("it stands for itself: other pages are zero"),
                    (None, None) => say!("all pages; the generation stands in the file's name"),
                }
            }
            ProtectionFile::Sums { pages } => say!("checksums of {pages} pages of this node's content"),
            ProtectionFile::Content { generation, node, pages, files } => {
                say!("what node {node} has of generation {generation}: {pages} pages")?;
                say!(
                    "{:<28}  {:>11}  {:>16}  {:>9}  {:>7}  PLACES",
                    "FILE",
                    "SIZE",
                    "DIGEST",
                    "PAGES",
                    "RUNS"
                )?;
                files.iter().try_for_each(|file| {
                    let FileContent { name, bytes, digest, pages, runs, first_place, last_place } = file;
                    let bytes = text::bytes(*bytes);
                    say!("{name:<28}  {bytes:>11}  {digest}  {pages:>9}  {runs:>7}  {first_place} to {last_place}")
                })
            }
            ProtectionFile::Protected { generation, from, node, nodes, losses, unit_bytes } => {
                let nodes = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                say!(
                    "generation {generation} is protected: nodes {nodes} keep parity of each other, {losses} of them may be lost"
                )?;
                say!("this is node {node}; units of {}", text::bytes(*unit_bytes))?;
                match from {
                    Some(from) => say!("its parity builds upon that of generation {from}"),
                    None => say!("its parity stands for itself"),
                }
            }
        }
    }
}

fn failed(error: ProtectError) -> CliError {
    match error {
        ProtectError::Store(error) => error.into(),
        error => StoreError::Parity { error: Box::new(error) }.into(),
    }
}

fn parity(file: ParityFile) -> ProtectionFile {
    let ParityFile { generation, from, pages, last_page, damaged } = file;
    let damage = damaged
        .first()
        .map(|first| format!("{} pages are damaged, the first is {first}; repair the node", damaged.len()));
    let text = |generation: Option<store::GenerationId>| generation.map(|of| of.to_string());
    ProtectionFile::Parity {
        generation: text(generation),
        from: text(from),
        pages,
        last_page,
        damaged_pages: damaged,
        damage,
    }
}

/// `None`: it is another kind of file. `head`: its first bytes.
pub(super) fn inspect(
    storage: &mut Directory<Shared>,
    name: &str,
    head: &[u8],
) -> Result<Option<ProtectionFile>, CliError> {
    let kept = match name {
        _ if head.starts_with(&MAGIC) => parity(inspect_changed(storage, name).map_err(failed)?),
        // These two have nothing but content, so their names have to show their kinds.
        "sums" => ProtectionFile::Sums { pages: inspect_sums(storage, name).map_err(failed)? },
        _ if name.starts_with("pages-") => parity(inspect_pages(storage, name).map_err(failed)?),
        _ => return Ok(None),
    };
    Ok(Some(kept))
}

/// The same for records.
pub(super) fn inspect_record(name: &str, bytes: &[u8]) -> Result<Option<ProtectionFile>, CliError> {
    let wrong = |error| StoreError::Record { path: name.to_owned(), error };
    if bytes.starts_with(b"stillwire content ") {
        let content = Content::parse(bytes).map_err(wrong)?;
        return Ok(Some(ProtectionFile::Content {
            generation: content.generation.to_string(),
            node: content.node,
            pages: content.pages(),
            files: content.describe(),
        }));
    }
    if bytes.starts_with(b"stillwire protected ") {
        let Protected { generation, from, member, losses, unit_pages, nodes, .. } =
            Protected::parse(bytes).map_err(wrong)?;
        return Ok(Some(ProtectionFile::Protected {
            generation: generation.to_string(),
            from: from.map(|from| from.to_string()),
            node: nodes.get(member).copied().unwrap_or_default(),
            nodes,
            losses,
            unit_bytes: unit_pages * PAGE_BYTES as u64,
        }));
    }
    Ok(None)
}
