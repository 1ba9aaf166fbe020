//! Files with all pages of a node's parity. The number of pages is part of the name, so a truncated file is detected
//! wherever it was cut: records alone do not give the number. The number changes by a rename, and so at one instant.

use ckpt_glue::GenerationId;
use transport::{Epoch, Life};

use super::error::ProtectError;
use super::parity_changes::RECORD_BYTES;
use crate::storage::{Storage, StorageError, parent_and_name};

/// Where they lie, in the job's directory.
pub(super) const DIRECTORY: &str = "parity";
const PREFIX: &str = "pages-";

/// A file with all pages as of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) generation: GenerationId,
    /// The file has records of so many pages, at least: more are from a fold that did not come to its end.
    pub(super) pages: u64,
    pub(super) path: String,
}

impl Base {
    pub(super) fn new(generation: GenerationId, pages: u64) -> Base {
        Base { generation, pages, path: format!("{}-{pages:08}", without_pages(generation)) }
    }

    /// The generation whose parity it is.
    pub(super) fn is_of(&self, generation: GenerationId) -> bool {
        self.generation == generation
    }
}

/// How builds called it that did not note the number of pages: it has as many as there are records.
fn without_pages(generation: GenerationId) -> String {
    let GenerationId { life: Life { counter, nonce }, epoch: Epoch(epoch) } = generation;
    format!("{DIRECTORY}/{PREFIX}{counter:08}-{nonce:016x}-{epoch:08}")
}

/// Generation and number of pages that a name says.
fn parse(name: &str) -> Option<(GenerationId, Option<u64>)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let counter = parts.next()?.parse().ok()?;
    let nonce = u64::from_str_radix(parts.next()?, 16).ok()?;
    let epoch = Epoch(parts.next()?.parse().ok()?);
    let generation = GenerationId { life: Life { counter, nonce }, epoch };
    let pages: Option<u64> = match parts.next() {
        Some(pages) => Some(pages.parse().ok()?),
        None => None,
    };
    let path = pages.map_or_else(|| without_pages(generation), |pages| Base::new(generation, pages).path);
    (path == format!("{DIRECTORY}/{name}")).then_some((generation, pages))
}

/// Pages that the name of such a file says.
pub(super) fn pages_named(path: &str) -> Option<u64> {
    parse(parent_and_name(path).1)?.1
}

/// Bases of all generations: the oldest kept one, rebuilt ones, and independent ones.
pub(super) fn bases<S: Storage>(storage: &mut S) -> Result<Vec<Base>, ProtectError> {
    let entries = match storage.list(DIRECTORY) {
        Err(StorageError::NotFound { .. }) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let Some((generation, pages)) = parse(&entry.name) else { continue };
        let path = format!("{DIRECTORY}/{}", entry.name);
        let pages = match pages {
            Some(pages) => pages,
            None => records(storage, &path)?,
        };
        found.push(Base { generation, pages, path });
    }
    Ok(found)
}

/// That of a generation. Where an attempt to put one in another's place did not come to its end, there are two: then the one that is not cut off.
pub(super) fn base_of<S: Storage>(
    storage: &mut S,
    bases: &[Base],
    generation: GenerationId,
) -> Result<Option<Base>, ProtectError> {
    let mut cut = None;
    for base in bases.iter().filter(|base| base.is_of(generation)) {
        if records(storage, &base.path)? >= base.pages {
            return Ok(Some(base.clone()));
        }
        cut = Some(base.path.clone());
    }
    match cut {
        Some(path) => Err(ProtectError::File { path, what: "the file is cut off" }),
        None => Ok(None),
    }
}

fn records<S: Storage>(storage: &mut S, path: &str) -> Result<u64, ProtectError> {
    Ok(storage.length(path)? / RECORD_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_spelling_and_older_ones_are_read() {
        let generation = GenerationId { life: Life { counter: 2, nonce: 0xdead_beef }, epoch: Epoch(3) };
        let base = Base::new(generation, 17);
        assert_eq!(base.path, "parity/pages-00000002-00000000deadbeef-00000003-00000017");
        assert_eq!(pages_named(&base.path), Some(17));
        assert_eq!(parse(parent_and_name(&base.path).1), Some((generation, Some(17))));
        assert_eq!(parse("pages-00000002-00000000deadbeef-00000003"), Some((generation, None)));
        for wrong in [
            "pages-00000002-00000000deadbeef",
            "pages-00000002-00000000deadbeef-00000003-",
            "pages-00000002-00000000deadbeef-00000003-17",
            "pages-00000002-00000000deadbeef-00000003-00000017-00000001",
            "pages-00000002-00000000deadbeef-00000003-00000017.tmp",
            "pages-00000002-00000000DEADBEEF-00000003-00000017",
            "other-00000002-00000000deadbeef-00000003-00000017",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
