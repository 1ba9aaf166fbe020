//! A copy whose ranks are packed by several hosts comes back like any other, and one whose parts do not belong together is none.

mod common;

use std::num::NonZeroUsize;

use common::{Disk, JOB, Job, job_file, restore_newest};
use copies::{Copies, CopyError, Order, Packed, Report, Target, Work, Written};
use store::GenerationId;
use store::delta::Rules;
use transport::Rank;

/// Copies a generation; `part` packs the ranks of one host.
fn copy(
    job: &Job,
    to: &dyn Target,
    id: GenerationId,
    part: impl Fn(&Order, &[Rank]) -> Result<Vec<Packed>, CopyError>,
) -> Result<Written, CopyError> {
    let manifest = job.directory.clone().manifest(id)?;
    let work = Work {
        job_file: &job_file(),
        manifest: &manifest,
        copied_unix_ms: 1_700_000_001_000,
        keep: 4,
        rules: Rules::default(),
        threads: NonZeroUsize::MIN,
    };
    let ranks: Vec<Rank> = manifest.images.iter().map(|image| image.rank).collect();
    let (one, other) = ranks.split_at(1);
    Copies::new(to, JOB, None).write_by_others(&work, &Report::default(), |order| {
        Ok([part(&order, one)?, part(&order, other)?].concat())
    })
}

/// What a host does that sees `place`.
fn pack(
    job: &Job,
    place: &dyn Target,
    id: GenerationId,
    order: &Order,
    ranks: &[Rank],
) -> Result<Vec<Packed>, CopyError> {
    let manifest = job.directory.clone().manifest(id)?;
    let copies = Copies::new(place, JOB, None);
    copies.write_part(order, &manifest, ranks, job, NonZeroUsize::MIN, &Report::default())
}

#[test]
fn parts_of_several_hosts_are_the_copy_that_one_would_have_written() {
    let mut job = Job::new();
    let (disk, alone) = (Disk::default(), Disk::default());
    for epoch in 1..=3 {
        let id = job.checkpoint(epoch);
        let target = disk.target();
        let written = copy(&job, &target, id, |order, ranks| pack(&job, &target, id, order, ranks)).unwrap();
        assert_eq!(written.copied.upon.map(|upon| upon.generation), (epoch > 1).then(|| job.id(1)));
        let by_one = job.copy(&alone.target(), id, None, 4).unwrap();
        let images = |written: &Written| -> Vec<_> {
            written.copied.ranks.iter().map(|rank| (rank.image, rank.base)).collect()
        };
        assert_eq!(images(&written), images(&by_one));
        assert_eq!(restore_newest(&disk.target(), None).unwrap(), Some(id));
        let entries = disk.target().list("").unwrap();
        assert!(entries.iter().all(|entry| !entry.path.contains("sign-")), "{entries:?}");
    }
}

#[test]
fn a_host_that_sees_another_place_writes_nothing_and_there_is_no_copy() {
    let mut job = Job::new();
    let id = job.checkpoint(1);
    let (disk, other) = (Disk::default(), Disk::default());
    let (target, elsewhere) = (disk.target(), other.target());
    let refused = copy(&job, &target, id, |order, ranks| {
        let place: &dyn Target = if ranks[0].0 == 0 { &target } else { &elsewhere };
        pack(&job, place, id, order, ranks)
    });
    assert!(matches!(refused, Err(CopyError::NotShared { .. })), "{refused:?}");
    assert_eq!((disk.target().list("").unwrap(), other.target().list("").unwrap()), (vec![], vec![]));
}

#[test]
fn parts_hang_on_the_very_copies_that_the_writer_has_named() {
    let mut job = Job::new();
    let ids = [1, 2].map(|epoch| job.checkpoint(epoch));
    let disk = Disk::default();
    let target = disk.target();
    job.copy(&target, ids[0], None, 4).unwrap();
    let refused = copy(&job, &target, ids[1], |order, ranks| {
        let mut other = order.clone();
        other.chain[0].record ^= 1;
        pack(&job, &target, ids[1], &other, ranks)
    });
    assert_eq!(refused.unwrap_err(), CopyError::NoBase { generation: ids[1], base: ids[0] });
    // Too few parts are no copy either.
    let refused = copy(&job, &target, ids[1], |order, ranks| {
        pack(&job, &target, ids[1], order, &ranks[..1])?;
        Ok(Vec::new())
    });
    assert!(matches!(refused, Err(CopyError::Images { found: 0, .. })), "{refused:?}");
    assert_eq!(restore_newest(&target, None).unwrap(), Some(ids[0]));
}
