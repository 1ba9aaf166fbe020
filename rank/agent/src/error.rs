//! Why a process is no rank that can be saved, or cannot be restored.

use client::launch::LaunchError;
use store::StoreError;

/// Why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Control(#[from] ckpt_glue::error::Malformed),
    #[error(transparent)]
    Enrolment(#[from] ckpt_glue::enrolment::EnrolmentError),
    #[error("the keeper's line could not be taken over: {0}")]
    Line(std::io::Error),
    #[error("no thread for checkpoints: {0}")]
    Thread(std::io::Error),
    #[error("image not readable: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    State(#[from] process::state::DecodeError),
    #[error("no memory for the pages of the encrypted image: {source}")]
    Memory { source: std::io::Error },
    #[error("ports cannot be stopped: {0}")]
    Ports(#[from] endpoint::EndpointError),
    #[error(transparent)]
    Revive(#[from] crate::ports::ReviveError),
    #[error(
        "{} is `{found}`: expected `keep-copy` or `refuse`, as for `stillwire restart --changed-files`",
        crate::startup::CHANGED_FILES_VARIABLE
    )]
    ChangedFiles { found: String },
    #[error("the image cannot be restored: {0}")]
    Restore(#[from] process::restore::RestoreError),
}
