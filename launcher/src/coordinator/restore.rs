//! The restore of a life.

use std::collections::BTreeMap;

use ckpt_glue::names::GenerationId;
use ckpt_glue::pmi::Member;
use transport::Rank;

/// The present life's generation, and errors of ranks that restore it.
#[derive(Debug, Default)]
pub(super) struct Restore {
    /// The generation that the present life restores; `None`: it begins anew.
    pub(super) generation: Option<GenerationId>,
    /// A generation that could not be restored, the rank, and the reason.
    pub(super) refused: Option<(GenerationId, Rank, String)>,
    /// The last line on standard error of each process, until all ranks run.
    pub(super) last_words: BTreeMap<Member, String>,
}
