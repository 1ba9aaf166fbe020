//! Deltas: the differences of a content from another one, its base.
//!
//! A content is cut into blocks of equal length, each at a *place*: a number that it keeps from one checkpoint to the next, such as its offset in a
//! file or address in a process's memory, divided by the block's length. So growth in the middle moves no other block. A [`Signature`] has a hash of
//! each block, and stands for the content where only differences are wanted: a 256th of it at 4 KiB a block. A delta holds the blocks whose hashes
//! differ from those of its base's signature, in [packets](crate::packets), and the places and hashes of these blocks. So the signature of its
//! content follows from the base's. A delta without a base holds every block: it is *full*.
//!
//! * [`DeltaWriter`] makes a delta in one pass, fed by content alone ([`DeltaWriter::push`]) or informed of unwritten
//!   places ([`DeltaWriter::unwritten`]), as the kernel does.
//! * [`DeltaReader`] opens one, [`Chain`] a delta with all that it needs: any block alone, blocks one after the other ([`Cursor`]), or the whole content, by several
//!   threads.
//! * [`Rules`] say which checkpoint is whose base; [`Series`] keeps the checkpoints of one content in a folder by them.

mod chain;
mod cursor;
mod error;
mod file;
mod hash;
mod places;
mod rules;
mod series;
mod signature;
mod writer;

pub use chain::{Chain, Layer};
pub use cursor::Cursor;
pub use error::DeltaError;
pub use file::{DeltaReader, Facts, MAGIC, TRAILER_BYTES};
pub use hash::{BlockHash, ContentName, hash};
pub use places::{Places, Run};
pub use rules::{Choice, Rules, SeriesState, Strategy};
pub use series::{Adding, Making, Member, Series};
pub use signature::{MAGIC as SIGNATURE_MAGIC, Signature};
pub use writer::{DeltaOptions, DeltaSummary, DeltaWriter, Differences};
