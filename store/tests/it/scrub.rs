//! Damage to the files that a node keeps for its group is found and named, wherever it lies.

use store::protect::{ProtectError, Scrubbed, inspect_changed, inspect_pages, inspect_sums, scrub};
use store::{GenerationId, Storage};

use crate::group::{Calls, Cluster, generation, life};

const NODES: usize = 4;

/// Two generations that are kept: the older one's parity is folded in, the newer one's lies beside it.
fn work() -> (Cluster, [GenerationId; 2]) {
    let mut cluster = Cluster::new(NODES, 1);
    cluster.start(1, None).unwrap();
    let mut from = None;
    for epoch in 1..=3 {
        let id = generation(1, epoch);
        let claims = cluster.protect(id, from).unwrap();
        cluster.commit(id, claims, || ()).unwrap();
        cluster.collect(life(1), 2).unwrap();
        from = Some(id);
    }
    (cluster, [generation(1, 2), generation(1, 3)])
}

fn look(cluster: &Cluster, node: usize, id: GenerationId) -> Scrubbed {
    let mut bytes = 0;
    let scrubbed =
        scrub(cluster.directory(node), id, |read| bytes += read).unwrap().expect("it is protected");
    let pages = scrubbed.data_pages + scrubbed.parity_pages;
    assert!(bytes == pages * 4096 || scrubbed.damaged > 0, "every page is told");
    scrubbed
}

#[test]
fn what_is_whole_is_found_whole() {
    let (cluster, kept) = work();
    for id in kept {
        for node in 0..NODES {
            let scrubbed = look(&cluster, node, id);
            assert_eq!((scrubbed.damaged, &scrubbed.damages[..]), (0, &[][..]));
            assert!(scrubbed.data_pages > 0 && scrubbed.parity_pages > 0, "{scrubbed:?}");
            assert_eq!(scrubbed.protected.nodes, [0, 1, 2, 3]);
        }
    }
    assert_eq!(scrub(cluster.directory(0), generation(1, 9), |_| ()), Ok(None));
}

#[test]
fn every_damaged_byte_is_found_and_its_page_named() {
    let (cluster, [older, newer]) = work();
    let mut directory = cluster.directory(1);
    let folded = all_pages(&cluster, 1);
    let pages = inspect_pages(directory.storage(), &folded).unwrap();
    assert!(pages.pages > 1 && pages.damaged.is_empty());
    let changed = format!("{}/parity", store::job::folder(newer));
    let file = inspect_changed(directory.storage(), &changed).unwrap();
    assert_eq!((file.generation, file.from), (Some(newer), Some(older)));
    let sums = format!("{}/sums", store::job::folder(newer));
    assert_eq!(inspect_sums(directory.storage(), &sums).unwrap(), look(&cluster, 1, newer).data_pages);

    // A page of the changes: the newer generation's.
    let flip = |path: &str, offset: u64| {
        let found = cluster.directory(1).storage().memory.borrow_mut().damage(path, offset, 4);
        assert!(found, "{path} has {offset} bytes");
    };
    flip(&changed, 64 + 100);
    let damaged = inspect_changed(cluster.directory(1).storage(), &changed).unwrap().damaged;
    let scrubbed = look(&cluster, 1, newer);
    let expected = ProtectError::ParityDamaged { path: changed.clone(), page: damaged[0] };
    assert_eq!((scrubbed.damaged, scrubbed.damages), (1, vec![expected]));
    assert_eq!(look(&cluster, 1, older).damaged, 0);
    flip(&changed, 64 + 100);

    // The folded pages: the older one's, and the newer one's unless it has that page itself.
    flip(&folded, 4104 + 7);
    let scrubbed = look(&cluster, 1, older);
    assert_eq!(scrubbed.damages, [ProtectError::ParityDamaged { path: folded.clone(), page: 1 }]);
    assert_eq!(inspect_pages(cluster.directory(1).storage(), &folded).unwrap().damaged, [1]);
    flip(&folded, 4104 + 7);

    // The node's own content.
    let image = cluster.directory(1).image_path(newer, transport::Rank(1));
    flip(&image, 5000);
    let scrubbed = look(&cluster, 1, newer);
    assert!(matches!(scrubbed.damages[..], [ProtectError::DataDamaged { node: 1, .. }]), "{scrubbed:?}");
    flip(&image, 5000);

    // Records: its own, and those of others.
    for name in ["sums", "content-00000000", "content-00000001"] {
        let path = format!("{}/{name}", store::job::folder(newer));
        flip(&path, 40);
        let scrubbed = look(&cluster, 1, newer);
        assert!(scrubbed.damaged >= 1 && scrubbed.damages[0].to_string().contains(name), "{scrubbed:?}");
        flip(&path, 40);
    }
    assert_eq!(look(&cluster, 1, newer).damaged, 0);
    let protected = format!("{}/protected", store::job::folder(newer));
    flip(&protected, 30);
    assert!(scrub(cluster.directory(1), newer, |_| ()).unwrap_err().is_damage());
}

/// The file with all pages of a node's parity.
fn all_pages(cluster: &Cluster, node: usize) -> String {
    let entries = cluster.directory(node).storage().list("parity").unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    format!("parity/{}", entries[0].name)
}

#[test]
fn parity_that_ends_at_a_record_is_reported_and_rebuilt() {
    for left in [0, 1] {
        let (mut cluster, kept) = work();
        let path = all_pages(&cluster, 1);
        let pages = inspect_pages(cluster.directory(1).storage(), &path).unwrap().pages;
        assert!(pages > left);
        let cut = cluster.directory(1).storage().memory.borrow_mut().truncate(&path, left * 4104);
        assert!(cut);
        assert!(inspect_pages(cluster.directory(1).storage(), &path).unwrap_err().is_damage());
        for id in kept {
            let scrubbed = look(&cluster, 1, id);
            assert_eq!(scrubbed.damaged, 1, "{scrubbed:?}");
            assert!(scrubbed.damages[0].to_string().starts_with(&path), "{scrubbed:?}");
            assert!(!cluster.member(1).holds(id, false).unwrap());
        }
        // The newer one first, as after a restart: it has a file of its own then, and does not depend on the truncated
        // one.
        for id in [kept[1], kept[0]] {
            let repaired = cluster.member(1).repair(id, &mut Calls::new(&cluster, 1, &[1])).unwrap();
            assert!(repaired.parity_pages >= pages, "{repaired:?}");
            assert_eq!(look(&cluster, 1, id).damaged, 0);
            cluster.check(id);
        }
        for id in kept {
            let mut cluster = cluster.copy();
            let manifest = cluster.directory(0).manifest(id).unwrap();
            cluster.replace(&[0]);
            cluster.start(1, None).unwrap();
            cluster.repair_and_check(&manifest, &[0]).unwrap();
        }
        // A truncated file stays neither beside its replacement nor in the way of the next one.
        let entries = cluster.directory(1).storage().list("parity").unwrap();
        assert_eq!(entries.len(), 2, "{entries:?}");
        let next = generation(1, 4);
        let claims = cluster.protect(next, Some(kept[1])).unwrap();
        let manifest = cluster.commit(next, claims, || ()).unwrap();
        cluster.collect(life(1), 1).unwrap();
        cluster.replace(&[2]);
        cluster.start(1, None).unwrap();
        cluster.repair_and_check(&manifest, &[2]).unwrap();
    }
}

/// R27: bytes behind the pages of a file, left by an interrupted fold, count for nothing. They do not come to count with the next fold either.
#[test]
fn what_lies_behind_the_pages_of_a_file_never_counts() {
    for behind in [1, 4103, 4104, 5 * 4104 + 17] {
        let (mut cluster, kept) = work();
        let path = all_pages(&cluster, 1);
        let before = inspect_pages(cluster.directory(1).storage(), &path).unwrap();
        // Its length became durable, its bytes did not.
        let mut directory = cluster.directory(1);
        let mut file = directory.storage().reopen(&path).unwrap();
        directory.storage().append(&mut file, &vec![0xff; behind]).unwrap();
        drop(directory);
        assert_eq!(inspect_pages(cluster.directory(1).storage(), &path).unwrap(), before);
        kept.iter().for_each(|id| assert_eq!(look(&cluster, 1, *id).damaged, 0));
        let next = generation(1, 4);
        let claims = cluster.protect(next, Some(kept[1])).unwrap();
        let manifest = cluster.commit(next, claims, || ()).unwrap();
        cluster.collect(life(1), 1).unwrap();
        assert_eq!(look(&cluster, 1, next).damaged, 0);
        let path = all_pages(&cluster, 1);
        assert!(inspect_pages(cluster.directory(1).storage(), &path).unwrap().damaged.is_empty());
        cluster.check(next);
        cluster.replace(&[2]);
        cluster.start(1, None).unwrap();
        cluster.repair_and_check(&manifest, &[2]).unwrap();
    }
}

#[test]
fn files_of_builds_that_did_not_note_how_many_pages_there_are_are_read() {
    let (mut cluster, kept) = work();
    for node in 0..NODES {
        let path = all_pages(&cluster, node);
        let (older, _) = path.rsplit_once('-').unwrap();
        cluster.directory(node).storage().rename(&path, older).unwrap();
        assert_eq!(all_pages(&cluster, node), older);
    }
    for id in kept {
        assert_eq!(look(&cluster, 1, id).damaged, 0);
        cluster.check(id);
    }
    // A fold into one notes the number from then on.
    cluster.collect(life(1), 1).unwrap();
    let path = all_pages(&cluster, 1);
    let pages = inspect_pages(cluster.directory(1).storage(), &path).unwrap().pages;
    assert!(path.ends_with(&format!("-{:08}-{pages:08}", kept[1].epoch.0)), "{path}");
    let manifest = cluster.directory(0).manifest(kept[1]).unwrap();
    cluster.replace(&[0]);
    cluster.start(1, None).unwrap();
    cluster.repair_and_check(&manifest, &[0]).unwrap();
}

// Nothing else is damaged, so it has the text that it had.
#[test]
fn a_damaged_note_is_what_it_was() {
    let (cluster, kept) = work();
    for id in kept {
        let path = format!("{}/protected", store::job::folder(id));
        let read = || {
            let bytes = cluster.directory(1).storage().read(&path, 1 << 16).unwrap();
            (store::record::Protected::parse(&bytes).ok(), bytes)
        };
        let before = read();
        assert!(cluster.directory(1).storage().memory.borrow_mut().damage(&path, 30, 4));
        assert_eq!(read().0, None);
        let repaired = cluster.member(1).repair(id, &mut Calls::new(&cluster, 1, &[1])).unwrap();
        assert_eq!((repaired.records, repaired.parity_pages), (1, 0));
        let (expected, found) = (before.0.unwrap(), read().0.unwrap());
        assert_eq!(found.nodes, expected.nodes);
        assert_eq!(found.from.is_some(), id == kept[1], "only the newer one's builds upon another's");
    }
}
