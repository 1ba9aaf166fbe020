//! Nodes are destroyed in each phase of a checkpoint, which is told by files and not by time. What comes back is what was told as committed, or what was on
//! its way then.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::{PATIENCE, Place, Running, verified, wait_until};

const NODES: usize = 4;

/// What protecting takes is stretched, so that its phases can be met.
const OPTIONS: [&str; 8] =
    ["--nodes", "4", "--parity", "rs:2+2", "--keep", "1", "--encode-budget", "link=4M"];

/// What a launcher says of a generation.
const COMMITTED: &str = " committed (";

/// A launcher that has not begun a checkpoint by then is asked again.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// A checkpoint that is on its way.
struct Watched<'a> {
    place: &'a Place,
    /// Folders of generations that were there before it.
    known: BTreeSet<PathBuf>,
    /// Where the generation that the job has now lies below a directory of the job.
    older: PathBuf,
}

impl Watched<'_> {
    fn new<'a>(place: &'a Place, committed: &str) -> Watched<'a> {
        let roots = (0..NODES).map(|node| root(place, node)).chain([place.job()]);
        let known = roots.flat_map(|root| generations(&root)).collect();
        Watched { place, known, older: PathBuf::from(number(committed).folder()) }
    }

    /// Files of the new generation below a directory of the job.
    fn has(&self, root: &Path, is_it: impl Fn(&str) -> bool) -> bool {
        let folders = generations(root).into_iter().filter(|folder| !self.known.contains(folder));
        let files = folders.flat_map(|folder| entries(&folder));
        files.filter_map(|path| Some(is_it(path.file_name()?.to_str()?))).any(|found| found)
    }

    fn any_has(&self, is_it: impl Fn(&str) -> bool) -> bool {
        (0..NODES).any(|node| self.has(&root(self.place, node), &is_it))
    }

    fn older_goes(&self) -> bool {
        let is_going = |folder: PathBuf| !folder.exists() || folder.join("collected").exists();
        (0..NODES).any(|node| is_going(root(self.place, node).join(&self.older)))
    }
}

/// What lies in a folder; it may be gone by now.
fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The folders of generations below a directory of the job.
fn generations(root: &Path) -> Vec<PathBuf> {
    let is_life = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("life-"))
    };
    entries(root).into_iter().filter(is_life).flat_map(|life| entries(&life)).collect()
}

fn root(place: &Place, node: usize) -> PathBuf {
    place.job().join("nodes").join(node.to_string())
}

type Reached = fn(&Watched<'_>) -> bool;

const PHASES: [(&str, Reached); 6] = [
    ("an image is durable", |watched| watched.any_has(|name| name.ends_with(".image"))),
    ("parity is written", |watched| watched.any_has(|name| name.starts_with("parity"))),
    ("a node has sealed", |watched| watched.any_has(|name| name == "protected")),
    ("the job has committed", |watched| watched.has(&watched.place.job(), |name| name == "commit")),
    ("a node knows that", |watched| watched.any_has(|name| name == "commit")),
    ("a node folds what is older", |watched| watched.older_goes()),
];

/// The generation named at the end of a line.
fn generation_in(line: &str) -> String {
    let is_one = |word: &&str| word.contains('/') && word.parse::<store::GenerationId>().is_ok();
    let mut words = line.split([' ', ',', ':', ';', '(', ')']).filter(is_one);
    words.next_back().unwrap_or_else(|| panic!("no generation in {line:?}")).to_owned()
}

fn number(generation: &str) -> store::GenerationId {
    generation.parse().expect("a generation")
}

/// Begins a checkpoint and waits until it has come so far.
fn checkpoint_until(place: &Place, job: &Running, committed: &str, (phase, reached): (&str, Reached)) {
    let watched = Watched::new(place, committed);
    let until = Instant::now() + PATIENCE;
    let mut asked: Option<Instant> = None;
    while !reached(&watched) {
        // While a job rolls back, nobody listens.
        if asked.is_none_or(|asked| asked.elapsed() > ASKED_EVERY) {
            job.signal("USR1");
            asked = Some(Instant::now());
        }
        assert!(Instant::now() < until, "{phase}, after {committed}: not in time");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// The processes of nodes, which have one rank each: keepers and ranks.
fn processes(job: &Running, nodes: &[usize]) -> Vec<u32> {
    let mut ranks = Vec::new();
    wait_until("all ranks are there", || {
        ranks = job.ranks();
        ranks.len() == NODES
    });
    let of = |node: &usize| [support::parent(ranks[*node]), Some(ranks[*node])];
    nodes.iter().flat_map(of).flatten().collect()
}

/// Whether all of them were there.
fn kill(processes: &[u32]) -> bool {
    let pids = processes.iter().map(ToString::to_string);
    Command::new("kill").arg("-KILL").args(pids).status().expect("the tool `kill`").success()
}

/// The directories of nodes are gone, each at one instant.
fn lose(place: &Place, nodes: &[usize]) {
    for node in nodes {
        let gone = place.folder.path().join(format!("gone-{node}"));
        std::fs::rename(root(place, *node), &gone).expect("a directory");
        let _ = std::fs::remove_dir_all(gone);
    }
}

/// A job with one generation.
fn begun(place: &Place) -> (Running, String) {
    let mut job = place.run(&OPTIONS);
    job.wait_for("all ranks run");
    let committed = generation_in(&job.checkpoint());
    (job, committed)
}

/// Waits until the job runs again. It has begun from what was told as committed, or from something newer; returns it.
fn goes_on(job: &mut Running, committed: &str, nodes: &str, phase: &str) -> String {
    job.wait_for(&format!("rebuilding what {nodes} had"));
    let began = generation_in(&job.wait_for("begins from generation"));
    assert!(number(&began) >= number(committed), "{phase}: began from {began}, {committed} was told");
    job.wait_for("all ranks run");
    began
}

/// What a job has told as committed, of which `last` was the newest before.
fn told<'a>(lines: impl Iterator<Item = &'a str>, last: String) -> String {
    let committed = lines.filter(|line| line.contains(COMMITTED)).map(generation_in);
    committed.chain([last]).max_by_key(|generation| number(generation)).expect("one at least")
}

fn one_is_destroyed_in_every_phase(node: usize) {
    let place = Place::new();
    let (mut job, mut committed) = begun(&place);
    for phase in PHASES {
        let victims = processes(&job, &[node]);
        checkpoint_until(&place, &job, &committed, phase);
        while !kill(&victims) && !kill(&processes(&job, &[node])) {}
        lose(&place, &[node]);
        let began = goes_on(&mut job, &committed, &format!("node {node}"), phase.0);
        // Also what it told before it noticed.
        let told = told(job.seen.iter().map(String::as_str), committed);
        assert!(number(&began) >= number(&told), "{}: began from {began}, {told} was told", phase.0);
        committed = began;
    }
    place.let_end();
    verified(&job.finish());
}

// R27, R28. The keeper of this one stands at the top of the tree.
#[test]
fn the_first_node_is_destroyed_in_every_phase() {
    one_is_destroyed_in_every_phase(0);
}

#[test]
fn the_last_node_is_destroyed_in_every_phase() {
    one_is_destroyed_in_every_phase(3);
}

// As many as may be lost, and the launcher with them: a majority would not be left.
#[test]
fn two_nodes_and_the_launcher_are_destroyed_in_every_phase() {
    let place = Place::new();
    let (mut job, mut committed) = begun(&place);
    for phase in PHASES {
        let victims = processes(&job, &[0, 1]);
        checkpoint_until(&place, &job, &committed, phase);
        job.signal("KILL");
        kill(&victims);
        lose(&place, &[0, 1]);
        committed = told(job.finish().stderr.lines(), committed);
        wait_until("the guard has cleaned up", || place.lock_is_free());
        job = place.restart(&[]);
        committed = goes_on(&mut job, &committed, "node 0, node 1", phase.0);
    }
    place.let_end();
    verified(&job.finish());
}
