//! Names of the files of copies, and back.

use store::GenerationId;
use transport::{JobId, Rank};

pub(crate) const COPIED: &str = "copied";
pub(crate) const MANIFEST: &str = "manifest";
pub(crate) const JOB_FILE: &str = "job";
pub(crate) const BLOCKS: &str = "blocks";
pub(crate) const PLACES: &str = "places";

/// The folder of a job.
pub(crate) fn job(job: JobId) -> String {
    job.to_string()
}

/// The job that a folder of copies is named after.
#[must_use]
pub fn job_parsed(name: &str) -> Option<JobId> {
    let job = JobId(u128::from_str_radix(name, 16).ok()?);
    (job.to_string() == name).then_some(job)
}

/// The folder of a copy.
pub(crate) fn copy(of: JobId, generation: GenerationId) -> String {
    format!("{}/{}", job(of), store::job::folder(generation))
}

/// A file of a copy that is its own.
pub(crate) fn in_copy(of: JobId, generation: GenerationId, name: &str) -> String {
    format!("{}/{name}", copy(of, generation))
}

/// A file that shows that two hosts see the same place.
pub(crate) fn sign(of: JobId, number: u64) -> String {
    format!("{}/sign-{number:016x}", job(of))
}

/// A file of a rank in a copy.
pub(crate) fn of_rank(of: JobId, generation: GenerationId, rank: Rank, what: &str) -> String {
    in_copy(of, generation, &format!("rank-{:08}.{what}", rank.0))
}

/// The generation whose copy a path of the job `of` is the record of.
pub(crate) fn copied_parsed(of: JobId, path: &str) -> Option<GenerationId> {
    let folder = path.strip_prefix(&job(of))?.strip_prefix('/')?.strip_suffix(COPIED)?.strip_suffix('/')?;
    store::job::generation_of(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::{Epoch, Life};

    #[test]
    fn names_are_read_back() {
        let (of, generation) =
            (JobId(0xabc), GenerationId { life: Life { counter: 2, nonce: 7 }, epoch: Epoch(3) });
        assert_eq!(job_parsed(&job(of)), Some(of));
        assert_eq!(copied_parsed(of, &in_copy(of, generation, COPIED)), Some(generation));
        assert_eq!(copied_parsed(JobId(1), &in_copy(of, generation, COPIED)), None);
        for other in ["abc", "0000000000000000000000000000000G", "images"] {
            assert_eq!(job_parsed(other), None, "{other}");
        }
        assert_eq!(copied_parsed(of, &in_copy(of, generation, "copied.tmp")), None);
    }
}
