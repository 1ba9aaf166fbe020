//! Nodes are destroyed in each phase of a checkpoint, which files show, and not the time. The job goes back to the reported committed generation, or
//! to one that was on its way then.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Place, Running, stillwire, verified, wait_until};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use store::GenerationId;

/// The layout of a job: one group, of which two nodes may be lost.
#[derive(Clone, Copy)]
struct Setup {
    nodes: usize,
    /// At least one for each node, and a power of two, which the sort wants.
    ranks: usize,
    parity: &'static str,
}

/// Two of them are no majority.
const FOUR: Setup = Setup { nodes: 4, ranks: 4, parity: "rs:2+2" };

/// Four of them are.
const SIX: Setup = Setup { nodes: 6, ranks: 8, parity: "rs:4+2" };

impl Setup {
    fn run(self, place: &Place) -> Running {
        let (nodes, ranks) = (self.nodes.to_string(), self.ranks.to_string());
        let mut command =
            stillwire(&["run", "-n", &ranks, "--nodes", &nodes, "--ckpt-dir", &place.job_text()]);
        // The link limit stretches the phases of protecting, so that the test can hit each of them.
        command.args(["--parity", self.parity, "--keep", "1", "--encode-budget", "link=4M", "--"]);
        command.args(place.sort());
        Running::start(command)
    }

    fn roots(self, place: &Place) -> impl Iterator<Item = PathBuf> {
        (0..self.nodes).map(|node| root(place, node))
    }
}

/// A part of the launcher's message about a committed generation.
const COMMITTED: &str = " committed (";

/// A launcher that has not begun a checkpoint by then is asked again.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// A checkpoint that is on its way.
struct Watched<'a> {
    place: &'a Place,
    setup: Setup,
    /// The generation that the job has now: files of still older ones that are being rebuilt may appear at any time.
    older: GenerationId,
    /// Those that were abandoned before it.
    known: BTreeSet<GenerationId>,
}

impl Watched<'_> {
    fn new<'a>(place: &'a Place, setup: Setup, committed: &str) -> Watched<'a> {
        let roots = setup.roots(place).chain([place.job()]);
        let known = roots.flat_map(|root| generations(&root)).collect();
        Watched { place, setup, known, older: number(committed) }
    }

    fn new_below(&self, root: &Path) -> impl Iterator<Item = GenerationId> {
        let is_new = |id: &GenerationId| *id > self.older && !self.known.contains(id);
        generations(root).into_iter().filter(is_new)
    }

    /// Files of the new generation below a directory of the job.
    fn has(&self, root: &Path, is_it: impl Fn(&str) -> bool) -> bool {
        let files = self.new_below(root).flat_map(|id| entries(&root.join(store::job::folder(id))));
        files.filter_map(|path| Some(is_it(path.file_name()?.to_str()?))).any(|found| found)
    }

    fn any_has(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.setup.roots(self.place).any(|root| self.has(&root, &is_it))
    }

    fn older_goes(&self) -> bool {
        let is_going = |folder: PathBuf| !folder.exists() || folder.join("collected").exists();
        let mut roots = self.setup.roots(self.place).filter(|root| root.exists());
        roots.any(|root| is_going(root.join(store::job::folder(self.older))))
    }

    /// The new generation. On a slow machine there may be two: one that was abandoned, and then the one that was asked for again, or one that has begun behind it.
    fn new_ones(&self) -> BTreeSet<GenerationId> {
        self.setup.roots(self.place).flat_map(|root| self.new_below(&root).collect::<Vec<_>>()).collect()
    }
}

/// The entries of a folder; it may be gone by now.
fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The generations that have folders below a directory of the job.
fn generations(root: &Path) -> Vec<GenerationId> {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let id = |folder: PathBuf| -> Option<GenerationId> {
        let epoch: u32 = name(&folder)?.strip_prefix("epoch-")?.parse().ok()?;
        let life = name(folder.parent()?)?;
        let (counter, nonce) = life.strip_prefix("life-")?.split_once('-')?;
        format!("{}.{nonce}/{epoch}", counter.parse::<u32>().ok()?).parse().ok()
    };
    entries(root).iter().flat_map(|life| entries(life)).filter_map(id).collect()
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
    let is_one = |word: &&str| word.contains('/') && word.parse::<GenerationId>().is_ok();
    let mut words = line.split([' ', ',', ':', ';', '(', ')']).filter(is_one);
    words.next_back().unwrap_or_else(|| panic!("no generation in {line:?}")).to_owned()
}

fn number(generation: &str) -> GenerationId {
    generation.parse().expect("a generation")
}

/// A job that stands still, all its processes at one instant, in the midst of a checkpoint.
struct Stopped {
    processes: Vec<u32>,
    /// The checkpoint's generation.
    generation: String,
}

impl Stopped {
    /// Those of them that are left go on.
    fn go_on(&self) {
        self.processes.iter().for_each(|pid| report(*pid, Signal::SIGCONT));
    }
}

fn report(pid: u32, signal: Signal) {
    // A process that is gone takes no signal.
    let _ = nix::sys::signal::kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), signal);
}

/// The last phase that the files on these disks show.
fn phase_of(watched: &Watched<'_>) -> Option<usize> {
    (0..PHASES.len()).rev().find(|at| (PHASES[*at].1)(watched))
}

/// Begins checkpoints until one stands still in this phase and in no later one. Returns the job's processes; `committed` becomes the newest
/// generation that was reported on the way.
fn stopped_in<'a>(
    place: &'a Place,
    setup: Setup,
    job: &mut Running,
    committed: &mut String,
    phase: usize,
) -> (Stopped, Watched<'a>) {
    let name = PHASES[phase].0;
    for _ in 0..ATTEMPTS_MAX {
        let watched = Watched::new(place, setup, committed);
        let all: Vec<usize> = (0..setup.nodes).collect();
        let mut processes = processes(job, setup, &all);
        processes.insert(0, job.pid());
        checkpoint_until(&watched, job, name, PHASES[phase].1);
        processes.iter().for_each(|pid| report(*pid, Signal::SIGSTOP));
        // System calls that are under way end before the processes stop.
        wait_until("all stand still", || processes.iter().all(|pid| stands(*pid)));
        let new = watched.new_ones();
        if phase_of(&watched) == Some(phase) && new.len() == 1 {
            let generation = new.first().map(ToString::to_string).unwrap_or_default();
            return (Stopped { processes, generation }, watched);
        }
        Stopped { processes, generation: String::new() }.go_on();
        // Wait until the requested checkpoints are over.
        loop {
            *committed = generation_in(&job.wait_for(COMMITTED));
            if new.last().is_none_or(|last| number(committed) >= *last) {
                break;
            }
        }
    }
    panic!("{name}: it was over each time before the job stood still, or there was another one");
}

fn stands(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    status.lines().any(|line| line.starts_with("State:\tT") || line.starts_with("State:\tZ"))
}

/// Attempts to meet a phase that is short.
const ATTEMPTS_MAX: usize = 60;

/// Waits until a checkpoint has come so far, which is asked for.
fn checkpoint_until(watched: &Watched<'_>, job: &Running, phase: &str, reached: Reached) {
    let until = Instant::now() + PATIENCE;
    let mut asked: Option<Instant> = None;
    while !reached(watched) {
        // While a job rolls back, nobody listens.
        if asked.is_none_or(|asked| asked.elapsed() > ASKED_EVERY) {
            job.signal("USR1");
            asked = Some(Instant::now());
        }
        assert!(Instant::now() < until, "{phase}: not in time");
    }
}

/// The processes of nodes: keepers and ranks.
fn processes(job: &Running, setup: Setup, nodes: &[usize]) -> Vec<u32> {
    let mut ranks = Vec::new();
    wait_until("all ranks are there", || {
        ranks = job.ranks();
        ranks.len() == setup.ranks
    });
    // In the order of ranks, nodes are in the order of their numbers.
    let mut by_node: Vec<Vec<u32>> = Vec::new();
    for rank in ranks {
        let keeper = crate::support::parent(rank).expect("a rank that runs");
        match by_node.last_mut().filter(|node| node[0] == keeper) {
            Some(node) => node.push(rank),
            None => by_node.push(vec![keeper, rank]),
        }
    }
    nodes.iter().flat_map(|node| by_node[*node].clone()).collect()
}

fn kill(processes: &[u32]) {
    processes.iter().for_each(|pid| report(*pid, Signal::SIGKILL));
    wait_until("they are gone", || processes.iter().all(|pid| !crate::support::runs(*pid)));
}

/// The files that survive the loss of nodes show the phase at the kill, and no later one: the job's commit record is there, or it is not.
fn survives(watched: &Watched<'_>, phase: usize) {
    let found = phase_of(watched);
    assert!(found <= Some(phase), "{found:?} is left of {phase}");
    let is_committed = watched.has(&watched.place.job(), |name| name == "commit");
    assert_eq!(is_committed, phase >= COMMITTED_FROM, "{}", PHASES[phase].0);
}

/// The phase from which on the job's own directory has the commit record of the generation.
const COMMITTED_FROM: usize = 3;

/// The generation from which a job goes on that was stopped in a phase: the one committed then, and no other. Where a node had sealed, the others may
/// have sealed and reported so, too.
fn begins_right(phase: usize, began: &str, committed: &str, new: &str) {
    let name = PHASES[phase].0;
    match phase {
        0..=1 => assert_eq!(began, committed, "{name}: {new} was not protected"),
        2 => assert!([committed, new].contains(&began), "{name}: {began} is neither {committed} nor {new}"),
        _ => assert_eq!(began, new, "{name}: it was committed"),
    }
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
fn begun(place: &Place, setup: Setup) -> (Running, String) {
    let mut job = setup.run(place);
    job.wait_for("all ranks run");
    let committed = generation_in(&job.checkpoint());
    (job, committed)
}

/// Waits until the job runs again. It has begun from the generation reported as committed, or from something newer; returns it.
fn goes_on(job: &mut Running, committed: &str, nodes: &str, phase: &str) -> String {
    job.wait_for(&format!("rebuilding what {nodes} had"));
    let began = generation_in(&job.wait_for("begins from generation"));
    assert!(number(&began) >= number(committed), "{phase}: began from {began}, {committed} was reported");
    job.wait_for("all ranks run");
    began
}

/// The newest generation that the job has reported as committed, of which `last` was the newest before.
fn reported<'a>(lines: impl Iterator<Item = &'a str>, last: String) -> String {
    let committed = lines.filter(|line| line.contains(COMMITTED)).map(generation_in);
    committed.chain([last]).max_by_key(|generation| number(generation)).expect("one at least")
}

/// Some nodes are destroyed at one instant in each phase, and the launcher lives: the job goes on by itself.
fn are_destroyed_in_every_phase(setup: Setup, nodes: &[usize]) {
    let place = Place::new();
    let (mut job, mut committed) = begun(&place, setup);
    let names = nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ");
    for (at, phase) in PHASES.into_iter().enumerate() {
        let (stopped, watched) = stopped_in(&place, setup, &mut job, &mut committed, at);
        kill(&processes(&job, setup, nodes));
        lose(&place, nodes);
        survives(&watched, at);
        stopped.go_on();
        let began = goes_on(&mut job, &committed, &names, phase.0);
        begins_right(at, &began, &committed, &stopped.generation);
        // Also reports from before it noticed.
        let reported = reported(job.seen.iter().map(String::as_str), committed);
        assert!(
            number(&began) >= number(&reported),
            "{}: began from {began}, {reported} was reported",
            phase.0
        );
        committed = began;
    }
    place.let_end();
    verified(&job.finish());
}

// R27, R28. The keeper of this one stands at the top of the tree.
#[test]
fn the_first_node_is_destroyed_in_every_phase() {
    are_destroyed_in_every_phase(FOUR, &[0]);
}

#[test]
fn the_last_node_is_destroyed_in_every_phase() {
    are_destroyed_in_every_phase(FOUR, &[3]);
}

// As many of one group as may be lost; those that are left are a majority. Every node keeps parity of the others.
#[test]
fn the_first_node_and_another_one_are_destroyed_in_every_phase() {
    are_destroyed_in_every_phase(SIX, &[0, 1]);
}

#[test]
fn two_nodes_behind_the_first_are_destroyed_in_every_phase() {
    are_destroyed_in_every_phase(SIX, &[2, 5]);
}

// As many as may be lost, and the launcher with them: a majority would not be left.
#[test]
fn two_nodes_and_the_launcher_are_destroyed_in_every_phase() {
    let place = Place::new();
    let (mut job, mut committed) = begun(&place, FOUR);
    for (at, phase) in PHASES.into_iter().enumerate() {
        let (stopped, watched) = stopped_in(&place, FOUR, &mut job, &mut committed, at);
        let mut victims = processes(&job, FOUR, &[0, 1]);
        victims.push(job.pid());
        victims.iter().for_each(|pid| report(*pid, Signal::SIGKILL));
        lose(&place, &[0, 1]);
        survives(&watched, at);
        stopped.go_on();
        let last = reported(job.finish().stderr.lines(), committed.clone());
        wait_until("the guard has cleaned up", || place.lock_is_free());
        job = place.restart(&[]);
        let began = goes_on(&mut job, &last, "node 0, node 1", phase.0);
        begins_right(at, &began, &committed, &stopped.generation);
        committed = began;
    }
    place.let_end();
    verified(&job.finish());
}
