//! The violations that a history can have.

use core::any::Any;
use core::fmt;

use serde::Serialize;

use super::Generation;

/// A property that did not hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields are named by what is printed")]
pub enum Violation {
    /// A message was given to the program twice.
    Twice { rank: u32, from: u32, port: u32, serial: u32 },
    /// A message was given to an earlier receive than one sent before it.
    Overtaken { rank: u32, from: u32, port: u32, serial: u32 },
    /// A message that the script does not have.
    UnknownMessage { rank: u32, from: u32, tag: u64 },
    /// A message never arrived.
    Missing { rank: u32, from: u32, port: u32, serial: u32 },
    /// A message arrived with other bytes than were sent.
    Damaged { rank: u32, messages: u32 },
    /// Bytes were placed where no receive was posted.
    Stray { rank: u32, pieces: u32 },
    /// A payload was pulled whose send was over.
    PulledTooLate { rank: u32, from: u32, op: u64 },
    /// A completion came for an operation that the program did not wait for.
    Unasked { rank: u32, op: u64 },
    /// The program ended with another result than the oracle's.
    WrongResult { rank: u32, expected: u64, found: u64 },
    /// Received before the cut, sent after it.
    Orphan { generation: Generation, from: u32, to: u32, sent: u64, received: u64 },
    /// Sent before the cut, not received before it, and lost.
    Lost { generation: Generation, from: u32, to: u32, acknowledged: u64, received: u64 },
    /// A commit record names a generation of which a rank has no image.
    CommittedWithoutImage { generation: Generation, rank: u32 },
    /// A commit record names images of different cuts.
    CommittedMixed { generation: Generation, rank: u32, own: Generation },
    /// A generation was committed although a node did not hold what it keeps of it for the others.
    CommittedUnprotected { generation: Generation, node: u32 },
    /// Several checkpoints in a row that had begun long after the last fault were abandoned.
    AbandonedInCalm { generation: Generation, reason: String },
    /// A life was decided from a generation of which a node had lost its images.
    DecidedWithoutImages { generation: Generation, node: u32 },
    /// A process of a life began while one of another life ran.
    TwoLives { life: u32, other: u32, rank: u32, node: u32 },
    /// A rank ran on although its lease was over.
    OutlivedLease { node: u32, rank: u32 },
    /// A life was ended for the silence of a node whose ranks had a lease, and ran.
    EndedWhileLeased { node: u32 },
    /// A node was declared lost for its silence, and had not been suspected before.
    DeclaredUnsuspected { node: u32 },
    /// The store counted lives otherwise than the job.
    LifeCounter { expected: u32, found: u32 },
    /// A generation was committed twice.
    CommittedTwice { generation: Generation },
    /// A generation was committed that had been given up.
    AbandonedCommitted { generation: Generation },
    /// An epoch was begun that the life had begun, or gone beyond, before.
    NumberUsedAgain { generation: Generation, newest: Generation },
    /// Something wrote into the memory of a rank between freeze and thaw.
    WrittenWhileFrozen { rank: u32, epoch: u32 },
    /// The state of a port contradicts itself.
    Contradiction { rank: u32, what: String },
    /// A rank was restored from a generation that was never committed.
    RestoredUncommitted { rank: u32, generation: Generation },
    /// A rank was restored with another content than it was captured with.
    RestoredOther { rank: u32, generation: Generation },
    /// Ranks of one life were restored from different generations.
    RestoredMixed { life: u32, one: Option<Generation>, other: Option<Generation> },
    /// A recovery went back to something else than the newest durable commit.
    CommitForgotten { rank: u32, restored: Option<Generation>, newest: Option<Generation> },
    /// A committed image cannot be read although its commit record is durable.
    Unreadable { generation: Generation, rank: u32, what: String },
    /// A frame of another life had an effect.
    OldLife { rank: u32, frame_life: u32, own_life: u32 },
    /// A frame of a higher epoch had an effect before the cut.
    HigherEpoch { rank: u32, frame_epoch: u32, own_epoch: u32 },
    /// A damaged frame was taken for a good one.
    DamagedFrameTaken { rank: u32 },
    /// Both ends of a link contradicted each other after a restart (rule 10).
    Inconsistent { rank: u32, link: u32 },
    /// Something is larger than its bound.
    Bound { whose: String, what: String, found: u64, max: u64 },
    /// Nothing more happens, or not soon enough after the last fault.
    Stuck { virtual_ms: u64, why: String, waits: Vec<String> },
    /// Something is left behind after the end.
    Leftover { what: String },
    /// A machine panicked.
    Panic { message: String },
}

impl Violation {
    /// The kind, as reports spell it.
    #[must_use]
    pub fn kind(&self) -> String {
        // The output of `Debug` begins with the variant's name; reports have it in small letters.
        let text = format!("{self:?}");
        let name = text.split(|symbol: char| !symbol.is_alphanumeric()).next().unwrap_or_default();
        let mut kind = String::with_capacity(name.len() + 2);
        for letter in name.chars() {
            if letter.is_uppercase() && !kind.is_empty() {
                kind.push('_');
            }
            kind.extend(letter.to_lowercase());
        }
        kind
    }
}

impl Violation {
    /// The violation that a machine's panic is.
    #[must_use]
    pub fn of_panic(panic: &(dyn Any + Send)) -> Violation {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Violation::Panic { message: text.unwrap_or("a panic without words").to_owned() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, all fields: the names explain the values.
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_violation_with_its_words() {
        let caught = |what: fn()| Violation::of_panic(&*std::panic::catch_unwind(what).unwrap_err());
        let message = |message: &str| Violation::Panic { message: message.to_owned() };
        assert_eq!(caught(|| panic!("plain")), message("plain"));
        assert_eq!(caught(|| panic!("link {}", 7)), message("link 7"));
    }
}
