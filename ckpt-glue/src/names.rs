//! Names of things that checkpoints are made of, beside those of [`transport::ids`].

use core::fmt;

use transport::{Epoch, Life, Rank};

/// A node of the job, and the keeper that runs on it: its place in the list that the launcher was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// The key of a generation and of every image in it. R8: the life is part of it, because two lives may both write
/// images of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// The digest of one image's content; computed by the store, only compared here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
