//! Names of things that checkpoints are made of, beside those of [`transport::ids`].

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use transport::{Epoch, Life, Rank};

/// A node of the job, and the keeper that runs on it: its place in the list that the launcher was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeIndex(pub u32);

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeIndex({self})")
    }
}

/// The key of a generation, which is the images of all ranks for one cut, and of every image in it. R8: the life is part
/// of it, because two lives may both write images of one epoch. Ordered by age: by the life's counter, then by epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GenerationId {
    /// The life that wrote the images.
    pub life: Life,
    /// The cut that they hold.
    pub epoch: Epoch,
}

impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.life, self.epoch)
    }
}

impl fmt::Debug for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GenerationId({self})")
    }
}

/// A text that is no generation's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a generation is written as COUNTER.NONCE/EPOCH, such as 2.00000000deadbeef/3; `stillwire ls` lists them"
)]
pub struct NotAGenerationId;

impl FromStr for GenerationId {
    type Err = NotAGenerationId;

    fn from_str(text: &str) -> Result<GenerationId, NotAGenerationId> {
        let (life, epoch) = text.split_once('/').ok_or(NotAGenerationId)?;
        let (counter, nonce) = life.split_once('.').ok_or(NotAGenerationId)?;
        let counter = counter.parse().map_err(|_| NotAGenerationId)?;
        let nonce = u64::from_str_radix(nonce, 16).map_err(|_| NotAGenerationId)?;
        let epoch = Epoch(epoch.parse().map_err(|_| NotAGenerationId)?);
        Ok(GenerationId { life: Life { counter, nonce }, epoch })
    }
}

/// Names the content of one image in manifest and commit record: a checksum over its header and its table of sections.
///
/// The table holds the checksum of every section, so the digest covers every byte that means anything. Header and table
/// alone show whether a file is the committed one. The store computes it; here it is only compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ImageDigest(pub u64);

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageDigest({self})")
    }
}

/// The sender or receiver of a control message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Party {
    /// The coordinator of the job.
    Coordinator,
    /// The keeper of a node.
    Keeper(NodeIndex),
    /// A rank.
    Rank(Rank),
    /// A person's command (`stillwire checkpoint`, `ps`): belongs to no life, may only ask.
    Tool,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Coordinator => f.write_str("coordinator"),
            Party::Keeper(node) => write!(f, "keeper {node}"),
            Party::Rank(rank) => write!(f, "rank {rank}"),
            Party::Tool => f.write_str("tool"),
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It called `exit` with this code.
    Code(u8),
    /// A signal of this number ended it.
    Signal(u8),
}

impl ExitStatus {
    /// Whether it ended as a program that has done its work does.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == ExitStatus::Code(0)
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "exit code {code}"),
            ExitStatus::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
