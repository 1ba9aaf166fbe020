//! A job for tests.

use std::collections::BTreeMap;

use store::{CheckpointSettings, JobFile};
use transport::JobId;

/// Its file: one rank, which is saved when somebody asks for it.
pub(crate) fn job_file(job: JobId) -> JobFile {
    JobFile {
        job,
        ranks: 1,
        checkpoint: CheckpointSettings { every_ms: None, keep: 1 },
        directory: b"/".to_vec(),
        command: vec![b"program".to_vec()],
        environment: Vec::new(),
        settings: BTreeMap::new(),
    }
}
