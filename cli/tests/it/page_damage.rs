//! Single pages of images are damaged on more nodes than may be lost. The number of damaged pages that belong together decides: as long as that is
//! no more than parity makes up for, everything comes back; else a message names the pages that prevent it, and an older generation is taken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Done, Place, Running, done, flip, signal, stillwire, verified, wait_until};
use store::protect::Group;
use store::record::Content;

const NODES: usize = 4;

fn node(place: &Place, number: usize) -> PathBuf {
    place.job().join("nodes").join(number.to_string())
}

/// The folder of a generation on a node.
fn folder(place: &Place, generation: &str, number: usize) -> PathBuf {
    let file = place.file(generation, "commit");
    let file = node(place, number).join(file.strip_prefix(place.job()).expect("in the job's directory"));
    file.parent().expect("a folder").to_owned()
}

/// A page of an image, and where it lies.
#[derive(Debug)]
struct Page {
    path: PathBuf,
    offset: usize,
}

impl Page {
    fn damage(&self) {
        flip(&self.path, self.offset);
    }
}

/// Cycle, stripe, and page within the unit: pages of several nodes that have the same belong together.
type Stripe = (u64, usize, u64);

/// The pages that a node has of its images in a generation, by their stripes.
fn pages(place: &Place, generation: &str, number: usize, losses: usize) -> BTreeMap<Stripe, Page> {
    let folder = folder(place, generation, number);
    let record = fs::read(folder.join(format!("content-{number:08}"))).expect("a record");
    let content = Content::parse(&record).expect("a whole record");
    let group = Group::new((0..4).collect(), losses).expect("a shape");
    let mut found = BTreeMap::new();
    for file in &content.files {
        for at in &file.extents {
            for i in 0..at.piece.pages() {
                let page = at.place + i;
                let (column, _) = group.parity_of(number, page);
                let stripe = (NODES + column - number) % NODES;
                let key = (page / group.data_pages(), stripe, page % group.unit_pages());
                let offset = usize::try_from(at.piece.offset + i * 4096).expect("small");
                found.insert(key, Page { path: folder.join(&file.name), offset });
            }
        }
    }
    found
}

/// A page on each of these nodes, no two of which belong together; of memory, so that a reader of tables alone does not see it.
fn apart(place: &Place, generation: &str, numbers: &[usize]) -> Vec<Page> {
    let mut taken = Vec::new();
    let mut chosen = Vec::new();
    for number in numbers {
        let free = pages(place, generation, *number, 1)
            .into_iter()
            .find(|(stripe, page)| !taken.contains(stripe) && page.offset >= 8192);
        let (stripe, page) = free.expect("a page of its own");
        taken.push(stripe);
        chosen.push(page);
    }
    chosen
}

/// A page on each of two nodes, which belong together.
fn together(place: &Place, generation: &str, one: usize, other: usize) -> [Page; 2] {
    let mut of_other = pages(place, generation, other, 1);
    let both = pages(place, generation, one, 1)
        .into_iter()
        .find_map(|(stripe, page)| Some([page, of_other.remove(&stripe)?]));
    both.expect("images are long enough")
}

/// Every file below a folder, with its content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("a file"));
        }
    }
    found
}

fn images(place: &Place, generation: &str) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
    (0..NODES).map(|number| files(&folder(place, generation, number))).collect()
}

fn repair(place: &Place) -> Done {
    done(&mut stillwire(&["repair", &place.job_text()]))
}

/// Ends without tidying up.
fn killed(place: &Place, job: Running) {
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
}

// R28
#[test]
fn pages_on_more_nodes_than_may_be_lost_are_mended_if_they_do_not_belong_together() {
    for numbers in [&[1, 2][..], &[0, 1, 2, 3]] {
        let place = Place::new();
        let kept = place.stopped(4, 2);
        let whole = images(&place, &kept[1]);
        apart(&place, &kept[1], numbers).iter().for_each(Page::damage);
        assert_ne!(images(&place, &kept[1]), whole);
        let repaired = repair(&place);
        assert_eq!(repaired.code, Some(0), "{numbers:?}: {repaired:?}");
        let words = format!("generation {} is whole on all nodes again: {} rebuilt", kept[1], numbers.len());
        assert!(repaired.stdout.contains(&words), "{repaired:?}");
        assert!(images(&place, &kept[1]) == whole, "bit for bit");

        apart(&place, &kept[1], numbers).iter().for_each(Page::damage);
        let mut job = place.restart(&[]);
        job.wait_for(&format!("begins from generation {}", kept[1]));
        assert!(images(&place, &kept[1]) == whole, "bit for bit");
        place.let_end();
        let done = job.finish();
        for number in numbers {
            done.says(&[&format!("node {number} has what it had: 0 files, 1 damaged pages")]);
        }
        assert!(!done.stderr.contains("passed over"), "{done:?}");
        verified(&done);
    }
}

// R28: a rank that is restored finds that its image is damaged, and then everything is read.
#[test]
fn a_job_that_runs_mends_them_by_itself() {
    let place = Place::new();
    let mut job = place.run(&["--nodes", "4", "--parity", "xor"]);
    job.wait_for("all ranks run");
    job.checkpoint();
    let newest = place.generations("committed").pop().expect("a generation");
    apart(&place, &newest, &[0, 1, 2, 3]).iter().for_each(Page::damage);
    signal(job.ranks()[3], "KILL");
    job.wait_for("all ranks run again");
    place.let_end();
    let done = job.finish();
    for number in 0..NODES {
        done.says(&[&format!(
            "generation {newest}: node {number} has what it had: 0 files, 1 damaged pages"
        )]);
    }
    assert!(!done.stderr.contains("passed over"), "{done:?}");
    verified(&done);
}

// R28: pages that belong together are lost on more nodes than parity makes up for. The message names the nodes, and nothing else is harmed.
#[test]
fn pages_that_belong_together_are_reported_and_an_older_generation_is_taken() {
    let place = Place::new();
    let kept = place.stopped(4, 2);
    together(&place, &kept[1], 1, 2).iter().for_each(Page::damage);
    // This one could be computed, but for the two.
    let [third] = &apart(&place, &kept[1], &[3])[..] else { panic!("one page") };
    third.damage();
    let repaired = repair(&place);
    assert_eq!(repaired.code, Some(3), "{repaired:?}");
    let lost = [
        "2 of 4 nodes that protect each other have lost something of it (a part of it on node 1, node 2), and pages that belong together on more than the 1 that may",
        "node 1: the lost data of node 1 in generation",
        "data of its group is lost on node 2 too, so 2 of 4 are left, and 3 are needed",
        "data of its group is lost on node 1 too, so 2 of 4 are left, and 3 are needed",
    ];
    repaired.says(&[&format!("generation {} is lost: ", kept[1])]);
    repaired.says(&lost);
    assert!(
        repaired.stdout.contains(&format!("generation {} is whole on all nodes", kept[0])),
        "{repaired:?}"
    );
    // Damage that can be repaired is repaired.
    repaired.says(&["node 3 has what it had: 0 files, 1 damaged pages"]);
    let mut job = place.restart(&[]);
    job.wait_for(&format!("begins from generation {}", kept[0]));
    let seen = job.seen.join("\n");
    for words in [&[&format!("generation {} is passed over", kept[1])[..]][..], &lost].concat() {
        assert!(seen.contains(words), "{words:?} is missing:\n{seen}");
    }
    place.let_end();
    verified(&job.finish());
}

// R28: a node that has only lost a part is not reported as lost.
#[test]
fn nodes_that_are_lost_and_nodes_that_are_damaged_are_reported_apart() {
    let place = Place::new();
    let kept = place.stopped(4, 1).remove(0);
    flip(&folder(&place, &kept, 3).join("content-00000003"), 40);
    for number in [1, 2] {
        fs::rename(node(&place, number), place.folder.path().join(number.to_string())).expect("a directory");
    }
    let done = place.restart(&[]).finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&[
        "2 of 4 nodes that protect each other have lost all their data of it (node 1, node 2), and 1 may, and something of it is damaged (node 3); it can be restored if 1 of these come back, unless the damaged pages belong to those of a node that stays lost",
    ]);
}

// R28: a node that lost the end of its image is rebuilt as a whole, for which it needs a page that another one is just having mended.
#[test]
fn what_one_round_has_mended_counts_in_the_next() {
    let place = Place::new();
    let kept = place.stopped(4, 2);
    let whole = images(&place, &kept[1]);
    let [cut, page] = together(&place, &kept[1], 1, 2);
    // Other nodes can read the pages before the cut; the node itself cannot.
    let bytes = fs::read(&cut.path).expect("an image");
    fs::write(&cut.path, &bytes[..bytes.len() - 100]).expect("shorter");
    page.damage();
    let repaired = repair(&place);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert!(images(&place, &kept[1]) == whole, "bit for bit");
}

// R28: damaged checksums of one node do not keep others from being rebuilt from its pages.
#[test]
fn damaged_checksums_beside_a_damaged_page_are_no_loss() {
    let place = Place::new();
    let kept = place.stopped(4, 2);
    let whole = images(&place, &kept[1]);
    let [page, _] = together(&place, &kept[1], 1, 2);
    page.damage();
    let of_node = folder(&place, &kept[1], 2);
    let sums = fs::read_dir(&of_node).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut sums =
        sums.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sums")));
    flip(&sums.next().expect("checksums"), 100);
    let repaired = repair(&place);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert!(images(&place, &kept[1]) == whole, "bit for bit");
}

// Two nodes may be lost, one is, and pages of two others are damaged: in every stripe two are left.
#[test]
fn a_lost_node_comes_back_though_pages_of_others_are_damaged() {
    let place = Place::new();
    let mut job = place.run(&["--nodes", "4", "--parity", "rs:2+2"]);
    job.wait_for("all ranks run");
    job.checkpoint();
    let newest = place.generations("committed").pop().expect("a generation");
    killed(&place, job);
    let (_, of_one) = pages(&place, &newest, 1, 2).pop_first().expect("a page");
    let in_use = pages(&place, &newest, 1, 2).pop_first().expect("a page").0;
    let of_two = pages(&place, &newest, 2, 2).into_iter().find(|(stripe, _)| *stripe != in_use);
    of_one.damage();
    of_two.expect("a page").1.damage();
    fs::remove_dir_all(node(&place, 0)).expect("a directory");
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 0, node 1, node 2 had", &format!("begins from generation {newest}")]);
    verified(&done);
}
