//! Names of the files in a job's directory, and back.
//!
//! ```text
//! job                                        the job's settings
//! decision-00000002                          life 2 and the generation that it starts from
//! seats                                      a node's: who may begin lives
//! seat-held                                  a launcher's: that it may
//! end-00000002                               life 2 has finished the job
//! job-end                                    a node's: the life with which the job is over
//! layout-00000002                            the manifest with which the second layout of ranks to nodes begins
//! life-00000002-00000000deadbeef/
//!   epoch-00000003/
//!     rank-00000000.image                    one per rank; with .tmp behind it while it is written
//!     rank-00000000.base                     the image that a delta needs, under another name
//!     content-00000000                       node 0's content, and the place of each page in it
//!     sums                                   checksums of the pages of this node's content
//!     parity                                 changes of this node's parity
//!     protected                              all of that is durable
//!     manifest                               the list of the images
//!     commit                                 written last: from here on the generation exists
//!     collected                              the commit record's name while the generation is removed
//! parity/                                    this node's parity; named and written by [`crate::protect`]
//! lock                                       held by the launcher
//! ```

use ckpt_glue::names::GenerationId;
use transport::{Epoch, Life, Rank};

pub(super) const JOB: &str = "job";
pub(super) const SEATS: &str = "seats";
pub(super) const HELD_SEAT: &str = "seat-held";
pub(super) const JOB_END: &str = "job-end";
pub(super) const MANIFEST: &str = "manifest";
pub(super) const COMMIT: &str = "commit";
pub(super) const COLLECTED: &str = "collected";
/// Checksums of the pages of the node's content.
pub(crate) const SUMS: &str = "sums";
/// Changes of the node's parity.
pub(crate) const PARITY: &str = "parity";
/// Everything that the node keeps for the group is durable.
pub(crate) const PROTECTED: &str = "protected";
const CONTENT: &str = "content-";
const TEMPORARY: &str = ".tmp";
const IMAGE: &str = ".image";
const BASE: &str = ".base";

/// The name of a file while it is written.
pub(crate) fn temporary(path: &str) -> String {
    format!("{path}{TEMPORARY}")
}

pub(super) fn decision(counter: u32) -> String {
    format!("decision-{counter:08}")
}

pub(super) fn end(counter: u32) -> String {
    format!("end-{counter:08}")
}

pub(super) fn layout(layout: u32) -> String {
    format!("layout-{layout:08}")
}

/// A decision while it is written; the nonce keeps two deciders from writing one file.
pub(super) fn decision_temporary(life: Life) -> String {
    format!("{}.{:016x}{TEMPORARY}", decision(life.counter), life.nonce)
}

pub(super) fn life(life: Life) -> String {
    format!("life-{:08}-{:016x}", life.counter, life.nonce)
}

pub(super) fn epoch(epoch: Epoch) -> String {
    format!("epoch-{:08}", epoch.0)
}

pub(super) fn image(rank: Rank) -> String {
    format!("rank-{:08}{IMAGE}", rank.0)
}

pub(super) fn base(rank: Rank) -> String {
    format!("rank-{:08}{BASE}", rank.0)
}

/// The record of node `node`'s content in the generation.
pub(crate) fn content(node: u32) -> String {
    format!("{CONTENT}{node:08}")
}

/// Where the files of a generation lie in a job's directory: `life-.../epoch-...`.
#[must_use]
pub fn folder(id: GenerationId) -> String {
    format!("{}/{}", life(id.life), epoch(id.epoch))
}

/// The counterpart of [`folder`].
#[must_use]
pub fn generation_of(folder: &str) -> Option<GenerationId> {
    let (life, epoch) = folder.split_once('/')?;
    let TopLevelEntry::Life(life) = parse_top_level(life) else { return None };
    parse_epoch(epoch).map(|epoch| GenerationId { life, epoch })
}

/// A file of the generation.
pub(crate) fn in_generation(id: GenerationId, name: &str) -> String {
    format!("{}/{}/{name}", life(id.life), epoch(id.epoch))
}

/// The meaning of a name in the job's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopLevelEntry {
    Decision(u32),
    /// Left by a decider that did not come to the end, or is not there yet.
    DecisionTemporary(u32),
    Life(Life),
    /// The manifest with which a layout begins.
    Layout(u32),
    Other,
}

pub(super) fn parse_top_level(name: &str) -> TopLevelEntry {
    if let Some(rest) = name.strip_prefix("decision-") {
        let (digits, tail) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
        let Some(counter) = padded(digits) else { return TopLevelEntry::Other };
        return match tail {
            "" => TopLevelEntry::Decision(counter),
            _ if tail.ends_with(TEMPORARY) => TopLevelEntry::DecisionTemporary(counter),
            _ => TopLevelEntry::Other,
        };
    }
    if let Some(layout) = name.strip_prefix("layout-").and_then(padded) {
        return TopLevelEntry::Layout(layout);
    }
    let parts = name.strip_prefix("life-").and_then(|rest| rest.split_once('-'));
    let found = parts.and_then(|(counter, nonce)| {
        let of_name = Life { counter: padded(counter)?, nonce: u64::from_str_radix(nonce, 16).ok()? };
        (life(of_name) == name).then_some(of_name)
    });
    found.map_or(TopLevelEntry::Other, TopLevelEntry::Life)
}

pub(super) fn parse_epoch(name: &str) -> Option<Epoch> {
    name.strip_prefix("epoch-").and_then(padded).map(Epoch)
}

/// The meaning of a name in a generation's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GenerationEntry {
    Image(Rank),
    /// The base of a rank's image.
    Base(Rank),
    Manifest,
    Commit,
    Collected,
    /// Its protection against the loss of nodes.
    Protection,
    /// Half a file of ours.
    Temporary,
    Other,
}

pub(super) fn parse_generation_entry(name: &str) -> GenerationEntry {
    match name {
        MANIFEST => GenerationEntry::Manifest,
        COMMIT => GenerationEntry::Commit,
        COLLECTED => GenerationEntry::Collected,
        SUMS | PARITY | PROTECTED => GenerationEntry::Protection,
        _ if name.strip_prefix(CONTENT).and_then(padded).is_some() => GenerationEntry::Protection,
        _ => match name.strip_suffix(TEMPORARY) {
            Some(whole) if parse_generation_entry(whole) != GenerationEntry::Other => {
                GenerationEntry::Temporary
            }
            Some(_) => GenerationEntry::Other,
            None => {
                let rest = name.strip_prefix("rank-").unwrap_or_default();
                let rank = |suffix: &str| rest.strip_suffix(suffix).and_then(padded).map(Rank);
                let found = rank(IMAGE).map(GenerationEntry::Image).or(rank(BASE).map(GenerationEntry::Base));
                found.unwrap_or(GenerationEntry::Other)
            }
        },
    }
}

/// A number as the names above spell it: at least eight digits, more only where needed.
fn padded(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (format!("{number:08}") == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for counter in [0, 1, 99_999_999, u32::MAX] {
            let of_name = Life { counter, nonce: 0xdead_beef };
            assert_eq!(parse_top_level(&life(of_name)), TopLevelEntry::Life(of_name));
            assert_eq!(parse_top_level(&decision(counter)), TopLevelEntry::Decision(counter));
            assert_eq!(
                parse_top_level(&decision_temporary(of_name)),
                TopLevelEntry::DecisionTemporary(counter)
            );
            assert_eq!(parse_top_level(&layout(counter)), TopLevelEntry::Layout(counter));
            assert_eq!(parse_epoch(&epoch(Epoch(counter))), Some(Epoch(counter)));
            let name = image(Rank(counter));
            assert_eq!(parse_generation_entry(&name), GenerationEntry::Image(Rank(counter)));
            assert_eq!(parse_generation_entry(&temporary(&name)), GenerationEntry::Temporary);
            assert_eq!(parse_generation_entry(&base(Rank(counter))), GenerationEntry::Base(Rank(counter)));
            assert_eq!(parse_generation_entry(&content(counter)), GenerationEntry::Protection);
            assert_eq!(parse_generation_entry(&temporary(&content(counter))), GenerationEntry::Temporary);
        }
    }

    #[test]
    fn other_names_are_nobody_s() {
        for name in [
            "life-1-00",
            "life-00000001-DEADBEEFDEADBEEF",
            "decision-1",
            "decision-00000001x",
            "layout-2",
            "notes",
        ] {
            assert_eq!(parse_top_level(name), TopLevelEntry::Other, "{name}");
        }
        for name in
            ["rank-1.image", "rank-+0000001.image", "manifest.old", "x.tmp", ".tmp", "content-1", "parity-1"]
        {
            assert_eq!(parse_generation_entry(name), GenerationEntry::Other, "{name}");
        }
        assert_eq!(parse_epoch("epoch-000000001"), None);
    }
}
