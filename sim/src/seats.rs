//! Every way in which launchers of several directories can follow each other, and the judgement that no two of them run a job (R34).
//!
//! A world of [`crate::world`] has one launcher at a time. Here there are several, and nothing but what they decide by: the seats that directories know,
//! and the locks on these (R30). All orders of steps are tried, up to a number of seats taken. A step is one of these:
//!
//! - A launcher takes the locks of one directory per node that nobody has locked, old or empty, and claims the seat. If it takes one, any part of
//!   the directories have it durably when it dies, or, if these are enough, when its ranks begin to run.
//! - A launcher dies, and its locks are free.
//! - The host of a node is cut off from the launcher that runs the job: its lease ends, and the lock is free. The other ranks run on while more than half
//!   of the nodes are there (R31).

use std::collections::BTreeSet;

use ckpt_glue::protection::seat::{Authority, Claimant, Found, Known, Seat, claim};
use ckpt_glue::{NodeIndex, Rule, Sabotage};

/// The sizes of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Nodes of the job.
    pub nodes: u32,
    /// Launchers, each with a directory of its own. The first one begins the job.
    pub launchers: usize,
    /// Empty directories on further hosts.
    pub spares: usize,
    /// Seats taken, at most.
    pub seats: u64,
}

/// The result of a search.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Findings {
    /// Different states.
    pub states: usize,
    /// Lives that began.
    pub lives: usize,
    /// Lives that began with a seat that another directory held before.
    pub takeovers: usize,
    /// The first way to a violation: its steps, and what is wrong.
    pub violation: Option<Vec<String>>,
}

/// A directory of a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Directory {
    /// None: an empty one that may become that of any node.
    node: Option<u32>,
    known: Known,
    lock: Option<usize>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Launcher {
    held: Option<Seat>,
    /// Its ranks run.
    runs: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    directories: Vec<Directory>,
    launchers: Vec<Launcher>,
    /// The id of the seat of the newest life that ran.
    ran: u64,
    /// The parent of each seat that somebody began to take, by its id.
    parents: Vec<u64>,
}

/// Each state with the steps that led there.
type Way = (State, Vec<String>);

/// Searches all states.
#[must_use]
pub fn search(bounds: Bounds, sabotage: Sabotage) -> Findings {
    let mut findings = Findings::default();
    let begin = State::begin(bounds);
    let mut seen = BTreeSet::from([begin.clone()]);
    let mut open: Vec<Way> = vec![(begin, Vec::new())];
    while let Some((state, steps)) = open.pop() {
        for (step, next) in state.steps(bounds, sabotage, &mut findings) {
            let steps = || [steps.as_slice(), &[step]].concat();
            match next {
                Err(violation) => {
                    findings.violation = Some([steps(), vec![violation]].concat());
                    return findings;
                }
                Ok(next) if seen.contains(&next) => {}
                Ok(next) => {
                    seen.insert(next.clone());
                    open.push((next, steps()));
                }
            }
        }
    }
    findings.states = seen.len();
    findings
}

impl State {
    /// The first launcher runs the job in its first life.
    fn begin(bounds: Bounds) -> State {
        let seat = Seat { number: 1, id: 1, parent: 0, is_inherited: true };
        let known = Known { taken: None, tried: vec![seat] };
        let own = |node| Directory { node: Some(node), known: known.clone(), lock: Some(0) };
        let spare = Directory { node: None, known: Known::default(), lock: None };
        let mut launchers = vec![Launcher::default(); bounds.launchers];
        launchers[0] = Launcher { held: Some(seat), runs: true };
        let directories = (0..bounds.nodes).map(own).chain(vec![spare; bounds.spares]).collect();
        State { directories, launchers, ran: seat.id, parents: vec![0, seat.parent] }
    }

    fn steps(
        &self,
        bounds: Bounds,
        sabotage: Sabotage,
        findings: &mut Findings,
    ) -> Vec<(String, Result<State, String>)> {
        let mut steps = Vec::new();
        for (number, launcher) in self.launchers.iter().enumerate() {
            if launcher.runs {
                steps.push((format!("launcher {number} dies"), Ok(self.without(number))));
                let locked =
                    (0..self.directories.len()).filter(|at| self.directories[*at].lock == Some(number));
                steps.extend(locked.map(|at| {
                    (format!("launcher {number} loses directory {at}"), Ok(self.cut(number, at, bounds)))
                }));
            } else {
                for chosen in self.choices(bounds.nodes) {
                    self.begin_life(number, &chosen, bounds, sabotage, findings, &mut steps);
                }
            }
        }
        steps
    }

    /// A launcher is dead.
    fn without(&self, launcher: usize) -> State {
        let mut next = self.clone();
        next.launchers[launcher].runs = false;
        for directory in &mut next.directories {
            directory.lock = directory.lock.filter(|holder| *holder != launcher);
        }
        next
    }

    fn cut(&self, launcher: usize, directory: usize, bounds: Bounds) -> State {
        let mut next = self.clone();
        next.directories[directory].lock = None;
        let left = next.directories.iter().filter(|directory| directory.lock == Some(launcher)).count();
        if left > at(bounds.nodes) / 2 { next } else { next.without(launcher) }
    }

    /// One directory per node that nobody has locked; of the empty ones, which are alike, the first ones.
    fn choices(&self, nodes: u32) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for node in 0..nodes {
            let mut longer = Vec::new();
            for chosen in all {
                let is_free = |at: &usize| self.directories[*at].lock.is_none() && !chosen.contains(at);
                let of_node = |at: &usize| self.directories[*at].node == Some(node);
                let is_spare = |at: &usize| self.directories[*at].node.is_none();
                let places = || (0..self.directories.len()).filter(is_free);
                let found = places().filter(of_node).chain(places().find(is_spare));
                longer.extend(found.map(|at| [chosen.as_slice(), &[at]].concat()));
            }
            all = longer;
        }
        all
    }

    fn begin_life(
        &self,
        launcher: usize,
        chosen: &[usize],
        bounds: Bounds,
        sabotage: Sabotage,
        findings: &mut Findings,
        steps: &mut Vec<(String, Result<State, String>)>,
    ) {
        let held = self.launchers[launcher].held;
        let nodes = || (0..).map(NodeIndex);
        let found: Found =
            nodes().zip(chosen).map(|(node, at)| (node, self.directories[*at].known.clone())).collect();
        let claimant = Claimant { held, authority: Authority::Votes, is_new: false, id: self.next_id() };
        let Ok(claim) = claim(bounds.nodes, claimant, &found, sabotage) else { return };
        let Some(seat) = claim.seat else {
            let Some(held) = held else { return };
            findings.lives += 1;
            let words = format!(
                "launcher {launcher} begins a life on directories {chosen:?}, with the seat that it holds"
            );
            return steps.push((words, self.running(launcher, chosen, held)));
        };
        if self.next_id() > bounds.seats {
            return;
        }
        for part in 0..1_u32 << chosen.len() {
            let written = |place: usize| part >> place & 1 == 1;
            let knowing = nodes()
                .zip(0..chosen.len())
                .filter(|(_, place)| written(*place))
                .map(|(node, _)| node)
                .collect();
            let mut dead = self.clone();
            dead.parents.push(seat.parent);
            for (place, at) in chosen.iter().enumerate() {
                let directory = &mut dead.directories[*at];
                if written(place) {
                    directory.node = u32::try_from(place).ok();
                    directory.known.attempt(seat);
                }
            }
            let words =
                format!("launcher {launcher} takes {seat:?} on directories {chosen:?}, known by {knowing:?}");
            if claim.is_taken(&knowing, sabotage) {
                findings.lives += 1;
                findings.takeovers += usize::from(!seat.is_inherited);
                steps.push((format!("{words}: and begins a life"), dead.running(launcher, chosen, seat)));
            }
            steps.push((format!("{words}: and dies"), Ok(dead)));
        }
    }

    /// The ranks of a launcher begin to run.
    fn running(&self, launcher: usize, chosen: &[usize], seat: Seat) -> Result<State, String> {
        if let Some(other) = self.launchers.iter().position(|other| other.runs) {
            return Err(format!("launchers {other} and {launcher} run the job at one time"));
        }
        let is_known = core::iter::successors(Some(seat.id), |id| {
            self.parents.get(usize::try_from(*id).ok()?).copied().filter(|id| *id > 0)
        })
        .any(|id| id == self.ran);
        if !is_known {
            return Err(format!("launcher {launcher} knows nothing of the life with seat {}", self.ran));
        }
        let mut next = self.clone();
        let keeps = self.launchers[launcher].held == Some(seat);
        next.launchers[launcher] = Launcher { held: Some(seat), runs: true };
        for (node, at) in (0..).zip(chosen) {
            let directory = &mut next.directories[*at];
            (directory.node, directory.lock) = (Some(node), Some(launcher));
            if keeps {
                directory.known.confirm(seat);
            }
        }
        next.ran = seat.id;
        Ok(next)
    }

    fn next_id(&self) -> u64 {
        self.parents.len() as u64
    }
}

fn at(number: u32) -> usize {
    number as usize
}

/// The parts of R34 that can be taken out.
pub const RULES: [Rule; 3] = [Rule::SeatByHalf, Rule::SeatUnknown, Rule::SeatStale];

/// The switch of that name.
#[must_use]
pub fn without(name: &str) -> Option<Sabotage> {
    RULES.into_iter().find(|rule| rule.name() == name).map(Sabotage::out)
}

#[cfg(test)]
mod tests {
    use ckpt_glue::protection::seat::Unseated;

    use super::*;

    const THREE: Bounds = Bounds { nodes: 3, launchers: 2, spares: 2, seats: 3 };
    const FOUR: Bounds = Bounds { nodes: 4, launchers: 2, spares: 2, seats: 3 };

    // R34
    #[test]
    fn no_two_launchers_run_a_job_and_one_can_take_over() {
        for bounds in [THREE, FOUR] {
            let found = search(bounds, Sabotage::none());
            assert_eq!(found.violation, None, "{bounds:?}");
            assert!(found.states > 10_000 && found.takeovers > 0, "{bounds:?}: {found:?}");
        }
    }

    #[test]
    fn the_loss_of_every_part_of_the_rule_is_noticed() {
        for rule in RULES {
            let found = search(FOUR, Sabotage::out(rule));
            assert!(found.violation.is_some(), "{}", rule.name());
        }
    }

    /// More than half of two nodes are both.
    #[test]
    fn of_two_nodes_both_are_needed() {
        let bounds = Bounds { nodes: 2, launchers: 2, spares: 0, seats: 4 };
        let both = search(bounds, Sabotage::none());
        assert!(both.violation.is_none() && both.takeovers > 0, "{both:?}");
        let seat = Seat { number: 1, id: 1, parent: 0, is_inherited: true };
        let known = Known { taken: Some(seat), tried: Vec::new() };
        let claimant = Claimant { held: None, authority: Authority::Votes, is_new: false, id: 2 };
        let found = Found::from([(NodeIndex(0), Known::default()), (NodeIndex(1), known)]);
        let refused = claim(2, claimant, &found, Sabotage::none());
        assert_eq!(refused.map(|_| ()), Err(Unseated::TooFew { known: 1, needed: 2 }));
    }
}
