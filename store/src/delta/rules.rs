//! Which checkpoint is whose base.

/// How bases are chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Strategy {
    /// None: every checkpoint is full.
    Full,
    /// The one before: the smallest deltas, and all since the last full one are needed.
    Incremental,
    /// The last full one: two files are needed, and deltas grow.
    Differential,
    /// ADCA: one base, until a delta against it is more than `threshold` times as large as one against the checkpoint before; that checkpoint is the next base.
    Adaptive {
        /// At least 1.
        threshold: f64,
    },
}

/// The strategy and its bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// Which bases.
    pub strategy: Strategy,
    /// Files that a restore may need; beyond that the next checkpoint is full.
    pub files_max: u32,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { strategy: Strategy::Adaptive { threshold: 2.0 }, files_max: 8 }
    }
}

/// The checkpoints that the next one may have to do with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesState {
    /// The base, by number, and how many files it takes.
    pub base: (u64, u32),
    /// The last full one.
    pub full: u64,
    /// The newest, and how many files it takes.
    pub newest: (u64, u32),
}

/// The kind of the next checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Without a base.
    Full,
    /// A delta to the checkpoint with that number.
    Delta {
        /// Its base.
        base: u64,
    },
}

impl Rules {
    /// The next decision after these.
    #[must_use]
    pub fn choose(&self, state: Option<&SeriesState>) -> Choice {
        let Some(SeriesState { base, full, newest }) = state else { return Choice::Full };
        let (base, files) = match self.strategy {
            Strategy::Full => return Choice::Full,
            Strategy::Incremental => *newest,
            Strategy::Differential => (*full, 1),
            Strategy::Adaptive { .. } => *base,
        };
        if files < self.files_max { Choice::Delta { base } } else { Choice::Full }
    }

    /// Whether a checkpoint that differs in so many bytes from its base and from the one before it is the base of the next ones.
    #[must_use]
    pub fn becomes_base(&self, since_base: u64, since_previous: u64) -> bool {
        match self.strategy {
            Strategy::Full | Strategy::Differential => false,
            Strategy::Incremental => true,
            #[expect(clippy::cast_precision_loss, reason = "a ratio of lengths")]
            Strategy::Adaptive { threshold } => since_base as f64 > threshold * since_previous as f64,
        }
    }
}
