//! A copy whose ranks are packed by several hosts comes back like any other, and one whose parts do not belong together is none.

use std::num::NonZeroUsize;

use crate::common::{Disk, JOB, Job, One, job_file, restore_newest};
use copies::{Copies, CopyError, Entry, PackRequest, Packed, Report, Target, Work, Writing, Written};
use store::delta::Rules;
use store::job::Depth;
use store::packets::Source;
use store::{GenerationId, JobDirectory, StorageError};
use transport::Rank;

/// Copies a generation; `part` packs the ranks of one host.
fn copy(
    job: &Job,
    to: &dyn Target,
    id: GenerationId,
    part: impl Fn(&PackRequest, &[Rank]) -> Result<Vec<Packed>, CopyError>,
) -> Result<Written, CopyError> {
    let manifest = job.directory.clone().manifest(id)?;
    let work = Work {
        job_file: &job_file(),
        manifest: &manifest,
        copied_unix_ms: 1_700_000_001_000,
        keep: 4,
        rules: Rules::default(),
        whole_every: u32::MAX,
        threads: NonZeroUsize::MIN,
    };
    let ranks: Vec<Rank> = manifest.images.iter().map(|image| image.rank).collect();
    let (one, other) = ranks.split_at(1);
    Copies::new(to, JOB, None).write_by_others(&work, &Report::default(), |order| {
        Ok([part(&order, one)?, part(&order, other)?].concat())
    })
}

/// The work of a host that sees `place`.
fn pack(
    job: &Job,
    place: &dyn Target,
    id: GenerationId,
    order: &PackRequest,
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

/// A place of which a host sees an old list (NFS), and everything by its name.
struct Stale<'a>(&'a dyn Target, Vec<Entry>);

impl Target for Stale<'_> {
    fn create(&self, path: &str, bytes_max: u64) -> Result<Box<dyn Writing + '_>, StorageError> {
        self.0.create(path, bytes_max)
    }
    fn open(&self, path: &str) -> Result<Box<dyn Source + '_>, StorageError> {
        self.0.open(path)
    }
    fn list(&self, _: &str) -> Result<Vec<Entry>, StorageError> {
        Ok(self.1.clone())
    }
    fn top(&self) -> Result<Vec<String>, StorageError> {
        self.0.top()
    }
    fn remove(&self, path: &str) -> Result<(), StorageError> {
        self.0.remove(path)
    }
    fn shown(&self, path: &str) -> String {
        self.0.shown(path)
    }
}

#[test]
fn a_host_with_an_old_list_of_what_is_there_finds_all_that_is_named() {
    let mut job = Job::new();
    let disk = Disk::default();
    let target = disk.target();
    let stale = Stale(&target, Vec::new());
    for epoch in 1..=3 {
        let id = job.checkpoint(epoch);
        let written = copy(&job, &target, id, |order, ranks| pack(&job, &stale, id, order, ranks)).unwrap();
        assert_eq!(written.copied.upon.map(|upon| upon.generation), (epoch > 1).then(|| job.id(1)));
    }
    let newest = job.id(3);
    let copies = Copies::new(&stale, JOB, None);
    let needs = copies.with_needs(newest).unwrap();
    assert_eq!(needs.iter().map(|copy| copy.generation).collect::<Vec<_>>(), [newest, job.id(1)]);
    assert_eq!(copies.with_needs(job.id(4)), Err(CopyError::NoCopy { generation: job.id(4) }));
    let mut directory = JobDirectory::create(Disk::default(), &job_file()).unwrap();
    let ranks = [0, 1].map(Rank);
    let images = One(directory.clone());
    let brought = copies.fetch_images(&needs, &ranks, &images, NonZeroUsize::MIN, &Report::default());
    assert_eq!(brought, Ok(3));
    copies.take_over(&needs[0], &mut directory).unwrap();
    assert_eq!(directory.verify(newest, Depth::Everything), Ok(vec![]));
    // One of its bases has gone.
    target.remove(&format!("{JOB}/{}/copied", store::job::folder(job.id(1)))).unwrap();
    let error = CopyError::NoBase { generation: newest, base: job.id(1) };
    assert_eq!(copies.with_needs(newest), Err(error));
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
