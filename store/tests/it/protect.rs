//! The data that a group of nodes keeps of each other, and its restoration.

use crate::group::{Calls, Cluster, Random, Regions, generation, life, memory, subsets};
use store::job::Depth;
use store::protect::ProtectError;
use store::{GenerationId, Storage as _, StorageError, StoreError};

/// Three generations, each committed and the older ones collected; each builds upon the one before.
fn work(cluster: &mut Cluster, epochs: u32) -> GenerationId {
    cluster.start(1, None).unwrap();
    let mut from = None;
    for epoch in 1..=epochs {
        let id = generation(1, epoch);
        let claims = cluster.protect(id, from).unwrap();
        cluster.commit(id, claims, || ()).unwrap();
        cluster.collect(life(1), 1).unwrap();
        from = Some(id);
    }
    from.unwrap()
}

#[test]
fn any_m_nodes_of_a_group_may_be_lost() {
    for (members, losses) in [(2, 1), (3, 1), (4, 1), (4, 2), (5, 2), (5, 4), (6, 3)] {
        let mut cluster = Cluster::new(members, losses);
        let id = work(&mut cluster, 3);
        cluster.check(id);
        for count in 1..=losses {
            subsets(members, count, &mut |lost| {
                let mut cluster = cluster.copy();
                cluster.replace(lost);
                let manifest = cluster.committed().remove(0);
                assert_eq!(manifest.generation, id);
                cluster.start(1, None).unwrap();
                cluster.repair_and_check(&manifest, lost).unwrap();
            });
        }
    }
}

#[test]
fn a_large_group_with_much_parity_comes_back() {
    let mut cluster = Cluster::new(24, 12);
    let id = work(&mut cluster, 2);
    let mut random = Random::new(5);
    for _ in 0..3 {
        let mut nodes: Vec<usize> = (0..24).collect();
        let mut lost: Vec<usize> = (0..12)
            .map(|_| nodes.swap_remove(usize::try_from(random.below(nodes.len() as u64)).unwrap()))
            .collect();
        lost.sort_unstable();
        let mut cluster = cluster.copy();
        cluster.replace(&lost);
        let manifest = cluster.committed().remove(0);
        cluster.start(1, None).unwrap();
        cluster.repair_and_check(&manifest, &lost).unwrap();
        assert_eq!(manifest.generation, id);
    }
}

/// A page and a bit, other ones on each node and in each epoch.
fn tiny(node: usize, epoch: u32) -> Regions {
    let mut random = Random::new((node as u64) << 8 | u64::from(epoch));
    vec![(1, (0..4200).map(|_| u8::try_from(random.below(256)).unwrap()).collect())]
}

/// Limit on the cost of the sets of losses of one shape: one costs about the square of the members. All of them are tried if they fit, which is so up
/// to 4 + 4; else the extremes, and some by chance.
const COST_MAX: usize = 5_000;
const COST_SAMPLED: usize = 700;

/// Which M of the members are lost, one set after the other.
fn sets(members: usize, losses: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let count = (0..losses).fold(1.0, |count, i| count * ((members - i) as f64) / ((i + 1) as f64));
    let (mut sets, cost) = (Vec::new(), members * members);
    if count.round() <= (COST_MAX / cost) as f64 {
        subsets(members, losses, &mut |lost| sets.push(lost.to_vec()));
        assert_eq!(sets.len() as f64, count.round());
        return sets;
    }
    // The first, the last, those in the middle, and as far apart as can be.
    let from = |first: usize| (first..first + losses).collect::<Vec<_>>();
    sets.extend([from(0), from(members - losses), from((members - losses) / 2)]);
    sets.push((0..losses).map(|i| i * members / losses).collect());
    for _ in 0..1 + COST_SAMPLED / cost {
        let mut nodes: Vec<usize> = (0..members).collect();
        let mut draw = || nodes.swap_remove(usize::try_from(random.below(nodes.len() as u64)).unwrap());
        let mut lost: Vec<usize> = (0..losses).map(|_| draw()).collect();
        lost.sort_unstable();
        sets.push(lost);
    }
    sets
}

// That each set of losses of each of them can be undone by arithmetic is the matter of `parity`; here is where the pages lie.
#[test]
fn every_shape_up_to_twelve_and_twelve_brings_back_as_many_nodes_as_it_says() {
    let mut tried = 0;
    std::thread::scope(|threads| {
        let half = |first: usize| {
            threads.spawn(move || {
                let mut tried = 0;
                for data in (first..=12).step_by(2) {
                    (1..=12).for_each(|losses| tried += brings_back(data, losses));
                }
                tried
            })
        };
        for half in [half(1), half(2)] {
            tried += half.join().unwrap();
        }
    });
    assert!(tried > 1_500, "only {tried} sets of losses");
}

fn brings_back(data: usize, losses: usize) -> usize {
    let members = data + losses;
    let mut random = Random::new((data * 100 + losses) as u64);
    let mut whole = Cluster::new(members, losses);
    whole.memory = tiny;
    let id = work(&mut whole, 1);
    let sets = sets(members, losses, &mut random);
    for lost in &sets {
        let mut cluster = whole.copy();
        cluster.replace(lost);
        let manifest = cluster.committed().remove(0);
        cluster.start(1, None).unwrap();
        cluster
            .repair_and_check(&manifest, lost)
            .unwrap_or_else(|error| panic!("{data}+{losses} without {lost:?}: {error}"));
        assert_eq!(manifest.generation, id);
    }
    sets.len()
}

/// Pages of the first region; the second one has one.
const PAGES: usize = 200;

/// From each epoch to the next 1, 10, 100 % of the first region change on node 0, nothing elsewhere; in the fourth it grows by two pages.
fn dirtied(node: usize, epoch: u32) -> Regions {
    let mut first: Vec<u8> = (0..PAGES).flat_map(|page| [u8::try_from(page).unwrap() + 1; 4096]).collect();
    for step in 2..=epoch.min(4) {
        let changed = [2, 20, PAGES][usize::try_from(step).unwrap() - 2];
        for page in (0..changed).filter(|_| node == 0) {
            first[page * PAGES / changed * 4096 + 77] ^= u8::try_from(step).unwrap();
        }
    }
    if epoch >= 5 && node == 0 {
        first.extend([9; 8192]);
    }
    vec![(1, first), (2, vec![3; 4096])]
}

#[test]
fn only_what_changed_is_sent() {
    let mut cluster = Cluster::new(4, 2);
    cluster.memory = dirtied;
    cluster.start(1, None).unwrap();
    let mut from = None;
    // The header of each image changes each time, the table of those whose content does; every page goes to two keepers.
    for (epoch, pages) in [(1, 4 * (PAGES as u64 + 1)), (2, 2), (3, 20), (4, PAGES as u64), (5, 2)] {
        let id = generation(1, epoch);
        let claims = cluster.protect(id, from).unwrap();
        let tables = if epoch == 1 { 4 } else { 1 };
        assert_eq!(cluster.pages_sent, 2 * (pages + 4 + tables), "epoch {epoch}");
        cluster.commit(id, claims, || ()).unwrap();
        cluster.collect(life(1), 1).unwrap();
        cluster.check(id);
        from = Some(id);
    }
}

#[test]
fn the_loss_of_more_nodes_is_reported_and_what_is_left_is_named() {
    let mut cluster = Cluster::new(4, 1);
    let id = work(&mut cluster, 2);
    cluster.replace(&[1, 2]);
    let manifest = cluster.committed().remove(0);
    cluster.start(1, None).unwrap();
    let error = cluster.repair_and_check(&manifest, &[1, 2]).unwrap_err();
    let reasons = vec!["node 2 does not answer: it is lost".to_owned()];
    let (node, members, needed, reporting, silent) = (1, 4, 3, 2, vec![2]);
    assert_eq!(
        error,
        ProtectError::TooFewAnswer { generation: id, node, members, needed, reporting, silent, reasons }
    );
    // It answers, and has nothing.
    let error = cluster.member(1).repair(id, &mut Calls::new(&cluster, 1, &[])).unwrap_err();
    let ProtectError::TooManyLost { node: 1, pages: 0, files: 2, lost, silent, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((&lost[..], &silent[..]), (&[2][..], &[][..]));
    let words = "(2 whole files): data of its group is lost on node 2 too, so 2 of 4 are left, and 3 are needed; start from another generation";
    assert!(error.to_string().contains(words), "{error}");
    // Nothing is left of a file that could not be written to its end.
    let names = files(&cluster, 1);
    assert!(!names.is_empty() && names.iter().all(|(name, _)| !name.ends_with(".tmp")), "{names:?}");
    let holds: Vec<bool> = (0..4).map(|node| cluster.member(node).holds(id, false).unwrap()).collect();
    assert_eq!(holds, [true, false, false, true]);
}

/// Every file of a generation and of the parity of a node, with its length.
fn files(cluster: &Cluster, node: usize) -> Vec<(String, u64)> {
    fn look(memory: &mut store::Memory, path: &str, found: &mut Vec<(String, u64)>) {
        for entry in memory.list(path).unwrap() {
            let inner = if path.is_empty() { entry.name.clone() } else { format!("{path}/{}", entry.name) };
            match entry.kind {
                store::storage::EntryKind::Directory => look(memory, &inner, found),
                store::storage::EntryKind::File { bytes } => found.push((inner, bytes)),
                store::storage::EntryKind::Other => {}
            }
        }
    }
    let disk = cluster.disks[node].clone().unwrap();
    let mut found = Vec::new();
    look(&mut disk.memory.borrow_mut(), "", &mut found);
    found
}

#[test]
fn flipped_bits_anywhere_are_found_and_repaired() {
    let mut whole = Cluster::new(3, 1);
    let id = work(&mut whole, 2);
    // One generation more that is not folded in yet: its changes lie beside the parity.
    let next = generation(1, 3);
    let claims = whole.protect(next, Some(id)).unwrap();
    let manifest = whole.commit(next, claims, || ()).unwrap();
    let mut random = Random::new(3);
    let (mut kinds, mut flipped) = (std::collections::BTreeSet::new(), 0);
    for node in 0..3 {
        for (path, bytes) in files(&whole, node) {
            let name = path.rsplit('/').next().unwrap().to_owned();
            let of_generation = path.contains("epoch-00000003") || path.starts_with("parity/");
            if !of_generation || ["manifest", "commit"].contains(&name.as_str()) {
                continue;
            }
            let mut places: Vec<u64> = vec![0, bytes / 2, bytes - 1];
            places.extend((0..12).map(|_| random.below(bytes)));
            for place in places {
                let mut cluster = whole.copy();
                let disk = cluster.disks[node].clone().unwrap();
                assert!(disk.memory.borrow_mut().damage(&path, place, 1 << random.below(8)));
                let held = cluster.member(node).holds(next, true).unwrap();
                let repaired =
                    cluster.member(node).repair(next, &mut Calls::new(&cluster, node, &[])).unwrap();
                // A page of parity that changes later is not read any more.
                if !(path.starts_with("parity/") && repaired.is_nothing()) {
                    assert!(!repaired.is_nothing(), "byte {place} of {path}");
                }
                // The question whether a repair is needed returns all that a repair would do.
                assert_eq!(held, repaired.is_nothing(), "byte {place} of {path}");
                cluster.repair_and_check(&manifest, &[]).unwrap();
                kinds.insert(name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned());
                flipped += 1;
            }
        }
    }
    assert!(flipped > 200, "{flipped}");
    assert_eq!(kinds.len(), 8, "{kinds:?}");
}

/// Flips a bit of a node's image, in a page of this stripe of its first cycle. Once more, and it is as it was.
fn flip_in_stripe(cluster: &Cluster, id: store::GenerationId, node: usize, stripe: usize) {
    let content = cluster.member(node).content(id, node).unwrap();
    let group = cluster.group.clone();
    let stripe_of = |page| {
        let (column, _) = group.parity_of(node, page);
        (page / group.data_pages(), (group.members() + column - node) % group.members())
    };
    let extents = content.files[0].extents.clone();
    let (page, offset) = extents
        .iter()
        .flat_map(|at| (0..at.piece.pages()).map(move |i| (at.place + i, at.piece.offset + i * 4096)))
        .find(|(page, _)| stripe_of(*page) == (0, stripe))
        .unwrap_or_else(|| panic!("node {node} has no page in stripe {stripe}"));
    let path = cluster.directory(node).image_path(id, transport::Rank(u32::try_from(node).unwrap()));
    assert!(cluster.disks[node].clone().unwrap().memory.borrow_mut().damage(&path, offset, 1), "{page}");
}

#[test]
fn damage_on_every_node_at_once_is_repaired_as_long_as_it_hits_different_stripes() {
    let mut cluster = Cluster::new(4, 1);
    let id = work(&mut cluster, 1);
    let manifest = cluster.committed().remove(0);
    // Node n loses a page of its image in a stripe of its own.
    for node in 0..4 {
        flip_in_stripe(&cluster, id, node, node);
        assert!(!cluster.member(node).holds(id, true).unwrap());
    }
    for node in 0..4 {
        let repaired = cluster.member(node).repair(id, &mut Calls::new(&cluster, node, &[])).unwrap();
        assert_eq!((repaired.files, repaired.pages), (0, 1), "node {node}");
    }
    cluster.repair_and_check(&manifest, &[]).unwrap();
}

#[test]
fn a_page_that_cannot_be_computed_keeps_no_other_one_from_being_repaired() {
    let mut cluster = Cluster::new(4, 1);
    let id = work(&mut cluster, 1);
    let manifest = cluster.committed().remove(0);
    // In the first of them another node has lost its part, too.
    for (node, stripe) in [(0, 0), (0, 1), (0, 2), (1, 0)] {
        flip_in_stripe(&cluster, id, node, stripe);
    }
    let repair = |node: usize| cluster.member(node).repair(id, &mut Calls::new(&cluster, node, &[]));
    for _ in 0..2 {
        let error = repair(0).unwrap_err();
        let ProtectError::TooManyLost { node: 0, pages: 1, files: 0, lost, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(*lost, [1]);
        assert!(error.to_string().contains("cannot be computed (1 page): "), "{error}");
    }
    // That page comes back from elsewhere: the others are there already.
    flip_in_stripe(&cluster, id, 0, 0);
    assert!(cluster.member(0).holds(id, true).unwrap());
    assert_eq!(repair(1).unwrap().pages, 1);
    cluster.repair_and_check(&manifest, &[]).unwrap();
}

#[test]
fn where_nobody_knows_what_a_node_had_its_record_is_what_is_said_to_be_lost() {
    let mut cluster = Cluster::new(3, 1);
    let id = work(&mut cluster, 1);
    let image = cluster.directory(0).image_path(id, transport::Rank(0));
    let record = format!("{}/content-00000000", image.rsplit_once('/').unwrap().0);
    for node in 0..3 {
        cluster.disks[node].clone().unwrap().memory.borrow_mut().remove_file(&record).unwrap();
    }
    let error = cluster.member(0).repair(id, &mut Calls::new(&cluster, 0, &[])).unwrap_err();
    assert!(matches!(&error, ProtectError::NoRecord { of: 0, reasons, .. } if reasons.len() == 2), "{error}");
    let words = error.to_string();
    assert!(
        words.starts_with("no node that answered has a whole record of the data of node 0 in"),
        "{words}"
    );
    assert!(words.ends_with("; start from another generation"), "{words}");
    // A node that does not answer may have it.
    let error = cluster.member(0).repair(id, &mut Calls::new(&cluster, 0, &[0, 2])).unwrap_err();
    assert!(matches!(&error, ProtectError::NoRecord { silent, .. } if silent[..] == [2]), "{error}");
    let words = error.to_string();
    assert!(words.contains("node 2 does not answer: it is lost"), "{words}");
    assert!(words.ends_with("; bring back node 2 first"), "{words}");
}

#[test]
fn where_too_few_answer_a_repair_ends_at_once_and_names_those_who_do_not() {
    let mut cluster = Cluster::new(4, 1);
    let id = work(&mut cluster, 1);
    // More than are computed together.
    for stripe in [0, 1, 2] {
        flip_in_stripe(&cluster, id, 0, stripe);
    }
    let mut others = Calls::new(&cluster, 0, &[0, 2]);
    let error = cluster.member(0).repair(id, &mut others).unwrap_err();
    let words = error.to_string();
    assert!(
        matches!(&error, ProtectError::TooFewAnswer { node: 0, silent, .. } if silent[..] == [2]),
        "{words}"
    );
    assert!(words.contains("3 of the other 3 nodes of its group have to report"), "{words}");
    assert!(words.contains("and 2 do (node 2 does not answer: it is lost)"), "{words}");
    assert!(words.ends_with("; bring back node 2 first"), "{words}");
    // When it is back, all is mended.
    let repaired = cluster.member(0).repair(id, &mut Calls::new(&cluster, 0, &[])).unwrap();
    assert_eq!(repaired.pages, 3);
}

#[test]
fn what_has_nothing_left_is_reported_from_what_is_damaged() {
    let mut cluster = Cluster::new(3, 1);
    let id = work(&mut cluster, 2);
    let damage = |path: &str| {
        let disk = cluster.disks[0].clone().unwrap();
        let mut memory = disk.memory.borrow_mut();
        let length = memory.length(path).unwrap();
        assert!(memory.damage(path, length / 2, 1));
    };
    let image = cluster.directory(0).image_path(id, transport::Rank(0));
    damage(&image);
    assert!(!cluster.member(0).holds(id, true).unwrap());
    assert!(cluster.member(0).has_some(id).unwrap(), "other pages of it");
    let folder = image.rsplit_once('/').unwrap().0;
    damage(&format!("{folder}/sums"));
    assert!(cluster.member(0).has_some(id).unwrap(), "parity of others");
    cluster.replace(&[1]);
    assert!(!cluster.member(1).has_some(id).unwrap());
    assert!(cluster.member(2).has_some(id).unwrap());
}

#[test]
fn a_damaged_page_never_gets_into_parity() {
    let mut cluster = Cluster::new(3, 1);
    let id = work(&mut cluster, 1);
    // Of this page the next generation's image is another one, so the old one is read.
    let path = cluster.directory(1).image_path(id, transport::Rank(1));
    assert!(cluster.disks[1].clone().unwrap().memory.borrow_mut().damage(&path, 17, 4));
    let error = cluster.protect(generation(1, 2), Some(id)).unwrap_err();
    assert!(matches!(error, ProtectError::DataDamaged { node: 1, .. }), "{error}");
    let repaired = cluster.member(1).repair(id, &mut Calls::new(&cluster, 1, &[])).unwrap();
    assert_eq!(repaired.pages, 1);
    // The number is used up, the next one comes to its end.
    let next = generation(1, 3);
    let claims = cluster.protect(next, Some(id)).unwrap();
    cluster.commit(next, claims, || ()).unwrap();
    cluster.collect(life(1), 1).unwrap();
    cluster.check(next);
}

#[test]
fn generations_that_are_kept_are_all_protected() {
    let mut cluster = Cluster::new(4, 2);
    cluster.start(1, None).unwrap();
    let mut from = None;
    for epoch in 1..=5 {
        let id = generation(1, epoch);
        let claims = cluster.protect(id, from).unwrap();
        cluster.commit(id, claims, || ()).unwrap();
        cluster.collect(life(1), 3).unwrap();
        from = Some(id);
    }
    let committed = cluster.committed();
    assert_eq!(committed.len(), 3);
    for manifest in &committed {
        subsets(4, 2, &mut |lost| {
            let mut cluster = cluster.copy();
            cluster.replace(lost);
            for node in lost {
                cluster.start(1, None).unwrap();
                let mut others = Calls::new(&cluster, *node, lost);
                cluster.member(*node).repair(manifest.generation, &mut others).unwrap();
                let rank = transport::Rank(u32::try_from(*node).unwrap());
                let mut directory = cluster.directory(*node);
                let image = directory.open_image(manifest.generation, rank).unwrap();
                for (number, (_, bytes)) in (0..).zip(memory(*node, manifest.generation.epoch.0)) {
                    assert!(image.read_section(directory.storage(), number).unwrap() == bytes);
                }
            }
        });
    }
}

#[test]
fn nothing_is_sealed_before_everything_is_there() {
    let mut cluster = Cluster::new(3, 1);
    cluster.start(1, None).unwrap();
    let id = generation(1, 1);
    cluster.protect(id, None).unwrap();
    let mut member = cluster.member(2);
    let disk = cluster.disks[2].clone().unwrap();
    let content = format!("{}/content-00000001", "life-00000001-0000000000001111/epoch-00000001");
    assert!(disk.memory.borrow_mut().damage(&content, 30, 1));
    let error = member.seal(id, None).unwrap_err();
    assert_eq!(error, ProtectError::Incomplete { generation: id, what: "what node 1 has".to_owned() });
    let generations = cluster.directory(1).generations().unwrap();
    assert!(generations[0].protected, "{generations:?}");
    assert_eq!(cluster.directory(1).verify(id, Depth::Records).map(|damages| damages.len()), Ok(1));
}

#[test]
fn a_full_disk_while_parity_is_kept_harms_nothing_that_is_committed() {
    let mut cluster = Cluster::new(3, 1);
    let id = work(&mut cluster, 2);
    let disk = cluster.disks[1].clone().unwrap();
    // Room for the image, and for a part of the next files.
    let used: u64 = files(&cluster, 1).iter().map(|(_, bytes)| bytes).sum();
    let image: u64 = 4096;
    let mut failed = 0;
    for (room, epoch) in (0..24).map(|step| image + step * 2500).zip(3..) {
        disk.memory.borrow_mut().set_capacity_bytes(Some(used + room));
        match cluster.protect(generation(1, epoch), Some(id)) {
            Err(ProtectError::Store(StoreError::Storage(StorageError::NoSpace { .. }))) => failed += 1,
            Err(error) => panic!("{error}"),
            Ok(_) => {}
        }
        disk.memory.borrow_mut().set_capacity_bytes(None);
        cluster.check(id);
        for node in 0..3 {
            cluster.directory(node).abandon(generation(1, epoch)).unwrap();
        }
    }
    assert!(failed > 3, "{failed}");
    let next = generation(1, 40);
    let claims = cluster.protect(next, Some(id)).unwrap();
    cluster.commit(next, claims, || ()).unwrap();
    cluster.collect(life(1), 1).unwrap();
    cluster.check(next);
}

#[test]
fn whoever_waits_for_collection_hears_of_it_all_the_time() {
    const MIB: usize = 16;
    let mut cluster = Cluster::new(2, 1);
    cluster.memory = |_, epoch| vec![(0, vec![u8::try_from(epoch).unwrap(); MIB << 20])];
    cluster.start(1, None).unwrap();
    let mut from = None;
    // Each keeps the other one's data: first the whole, then a change of all of it.
    for epoch in [1, 2] {
        let id = generation(1, epoch);
        let claims = cluster.protect(id, from).unwrap();
        cluster.commit(id, claims, || ()).unwrap();
        for node in 0..2 {
            let mut reported = 0;
            cluster.directory(node).collect_telling(life(1), 1, &[], &mut || reported += 1).unwrap();
            // More than with every generation and every file that goes.
            assert!(reported >= MIB, "{MIB} MiB were folded, with {reported} reports");
        }
        cluster.check(id);
        from = Some(id);
    }
}
