//! Which launcher may begin a life of a job whose nodes have directories of their own (R34).
//!
//! Two launchers that work in one directory exclude each other by its lock. A launcher that begins in another directory, after the host of the first one
//! was lost, shares only the nodes' directories with it. So these have to know who has the job: each of them, and the launcher's own directory, has a record
//! of its *seat*. A seat is taken anew whenever it passes to another launcher's directory, and whenever a node gets another directory. Both change who
//! has to be asked the next time.
//!
//! A launcher begins a life only if enough directories know the seat that it builds on, and have its own one durably before a rank runs. Half of the
//! nodes are enough for the directory that holds the seat, more than half for any other one. So any two have asked one directory in common, and the later
//! one learns of the earlier one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use transport::Life;

use crate::names::NodeIndex;
use crate::recovery::Ending;
use crate::sabotage::{Rule, Sabotage};

/// The right to begin lives, as a directory knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Seat {
    /// Larger than that of every seat that its launcher knew.
    pub number: u32,
    /// Random, so that no two seats are equal.
    pub id: u64,
    /// That of the seat that it was taken from; 0 for the first one.
    pub parent: u64,
    /// Half of the nodes were enough to take it: its directory held the seat before.
    pub is_inherited: bool,
}

/// The seats that the directory of a node knows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Known {
    /// The last one that is known to have been taken.
    pub taken: Option<Seat>,
    /// Those that a launcher has begun to take since, oldest first.
    pub tried: Vec<Seat>,
}

impl Known {
    /// A launcher begins to take a seat.
    pub fn attempt(&mut self, seat: Seat) {
        if !self.has(seat.id) {
            self.tried.push(seat);
        }
    }

    /// A seat was taken: what anybody tried before has no meaning any more.
    pub fn confirm(&mut self, seat: Seat) {
        *self = Known { taken: Some(seat), tried: Vec::new() };
    }

    /// All of them, oldest first.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = Seat> + '_ {
        self.taken.iter().chain(&self.tried).copied()
    }

    fn has(&self, id: u64) -> bool {
        self.all().any(|seat| seat.id == id)
    }
}

/// The seat known by each directory that was asked; none by an empty one.
pub type Found = BTreeMap<NodeIndex, Known>;

/// A launcher that is about to begin a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant {
    /// The seat that its own directory holds.
    pub held: Option<Seat>,
    /// Who says that directories which were not found are gone for good.
    pub authority: Authority,
    /// No life of the job was decided yet.
    pub is_new: bool,
    /// Fresh random bits.
    pub id: u64,
}

/// Who says that directories which were not found are gone for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Authority {
    /// Nobody: enough of them must be there.
    Votes,
    /// A person, who has named the hosts of the job or a copy to begin from.
    Person,
    /// As [`Authority::Votes`]: the launcher was started by a host, because the one before is lost. It continues no job that is over.
    Candidate,
}

/// The end of a job, as a node's directory knows it. A later life makes it void.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct JobEnd {
    /// The newest life, which is over.
    pub life: Life,
    /// All ranks have ended as they should; otherwise a person or a fault has ended it.
    pub has_finished: bool,
}

/// The record that a launcher sends to all nodes when it ends its job in order; `None` if a candidate may try again. `life`: the newest one. `has_run`: all
/// ranks have run under this launcher. `was_unable`: the launcher gave up by itself.
#[must_use]
pub fn end_of_job(
    authority: Authority,
    ending: Ending,
    life: Option<Life>,
    (has_run, was_unable): (bool, bool),
) -> Option<JobEnd> {
    let is_wanted = ending == Ending::Finished || ending == Ending::Stopped && !was_unable;
    let end = life.map(|life| JobEnd { life, has_finished: ending == Ending::Finished });
    // Its candidate tries again.
    end.filter(|_| authority != Authority::Candidate || has_run || is_wanted)
}

/// Whether this launcher may continue a job of which directories know these ends.
///
/// # Errors
/// [`Unseated::Over`]
pub fn admit(authority: Authority, ends: &[JobEnd]) -> Result<(), Unseated> {
    match ends.iter().max() {
        Some(end) if authority == Authority::Candidate => Err(Unseated::Over(*end)),
        _ => Ok(()),
    }
}

/// What a claimant may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// This seat, once it is taken; `None`: the one that is held.
    pub seat: Option<Seat>,
    quorums: Vec<Quorum>,
}

/// Nodes of which a number has to know a seat before a rank runs.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Quorum {
    /// Their directories know the seat before it.
    voters: BTreeSet<NodeIndex>,
    needed: u32,
}

impl Claim {
    /// How many directories have to know the seat.
    #[must_use]
    pub fn needed(&self) -> u32 {
        self.quorums.iter().map(|quorum| quorum.needed).max().unwrap_or(0)
    }

    /// Whether the seat is taken when these nodes have it durably.
    #[must_use]
    pub fn is_taken(&self, knowing: &BTreeSet<NodeIndex>, sabotage: Sabotage) -> bool {
        let has = |quorum: &Quorum| count(quorum.voters.intersection(knowing)) >= quorum.needed;
        self.seat.is_none() || self.quorums.iter().all(has) || sabotage.is_out(Rule::SeatUnknown)
    }
}

/// Why a launcher may not begin a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unseated {
    /// Too few of the nodes' directories know the newest seat.
    TooFew {
        /// So many do.
        known: u32,
        /// So many must.
        needed: u32,
    },
    /// Two launchers have tried to take the seat, and it cannot be seen which of them has it.
    Disputed,
    /// The job is over, and no person has started this launcher.
    Over(JobEnd),
}

fn count<T>(items: impl IntoIterator<Item = T>) -> u32 {
    u32::try_from(items.into_iter().count()).unwrap_or(u32::MAX)
}

fn half(nodes: u32) -> u32 {
    nodes.div_ceil(2)
}

fn majority(nodes: u32) -> u32 {
    nodes / 2 + 1
}

/// How many of those who knew its parent have to know a seat before it is taken.
fn needed(seat: &Seat, nodes: u32) -> u32 {
    if seat.is_inherited { half(nodes) } else { majority(nodes) }
}

fn all(found: &Found, held: Option<Seat>) -> impl Iterator<Item = Seat> + '_ {
    found.values().flat_map(Known::all).chain(held)
}

/// Whether this seat may have been taken, by what was found. Every node without a word against it may know it.
fn may_be_taken(seat: &Seat, nodes: u32, found: &Found) -> bool {
    let against = found.values().filter(|known| known.has(seat.parent) && !known.has(seat.id));
    nodes.saturating_sub(count(against)) >= needed(seat, nodes)
}

/// Whether this seat was taken for certain, by what was found.
fn is_taken(seat: &Seat, nodes: u32, found: &Found) -> bool {
    let is_first = seat.parent == 0;
    let votes = found.values().filter(|known| known.has(seat.id) && (is_first || known.has(seat.parent)));
    found.values().any(|known| known.taken == Some(*seat)) || count(votes) >= needed(seat, nodes)
}

/// The newest seat that may have been taken.
fn newest(nodes: u32, held: Option<Seat>, found: &Found) -> Result<Option<Seat>, Unseated> {
    let seats: BTreeSet<Seat> = all(found, held).collect();
    let mut newest: Option<Seat> = None;
    for seat in seats.into_iter().rev() {
        if newest.is_some_and(|newest| newest.number > seat.number) {
            break;
        }
        let is_held = held == Some(seat);
        if !is_held && !may_be_taken(&seat, nodes, found) {
            continue;
        }
        match newest {
            // What is held was taken, so no other one of that number was.
            Some(other) if held == Some(other) => {}
            Some(_) if !is_held => return Err(Unseated::Disputed),
            _ => newest = Some(seat),
        }
    }
    Ok(newest)
}

/// Decides whether a life may begin on these nodes' directories, and with which seat.
///
/// # Errors
/// [`Unseated`]
pub fn claim(nodes: u32, claimant: Claimant, found: &Found, sabotage: Sabotage) -> Result<Claim, Unseated> {
    let Claimant { held, authority, is_new, id } = claimant;
    let newest = newest(nodes, held, found)?;
    if newest.is_none() && !is_new && authority != Authority::Person {
        return Err(Unseated::TooFew { known: 0, needed: majority(nodes) });
    }
    let mut quorums = Vec::new();
    // A seat that may not have been taken binds nobody who knows only the one before it: those have to agree as well.
    let mut base = newest;
    loop {
        let knows =
            |known: &Known| base.is_none_or(|base| known.has(base.id)) || sabotage.is_out(Rule::SeatStale);
        let voters: BTreeSet<NodeIndex> =
            found.iter().filter(|(_, known)| knows(known)).map(|(node, _)| *node).collect();
        let is_holder = base == held || sabotage.is_out(Rule::SeatByHalf);
        let mut needed = if is_holder { half(nodes) } else { majority(nodes) };
        let known = count(&voters);
        if authority == Authority::Person {
            needed = needed.min(known);
        }
        if known < needed {
            return Err(Unseated::TooFew { known, needed });
        }
        quorums.push(Quorum { voters, needed });
        let Some(seat) = base.filter(|seat| held != Some(*seat) && !is_taken(seat, nodes, found)) else {
            break;
        };
        if seat.parent == 0 {
            break;
        }
        match all(found, held).find(|known| known.id == seat.parent) {
            Some(before) => base = Some(before),
            // The person vouches that directories which knew the seat before are gone for good.
            None if authority == Authority::Person => break,
            None => return Err(Unseated::TooFew { known: 0, needed: majority(nodes) }),
        }
    }
    let is_current = |known: &Known| known.all().next_back() == newest;
    let keeps = held.is_some() && held == newest && count(found) == nodes && found.values().all(is_current);
    let last = all(found, held).map(|seat| seat.number).max().unwrap_or(0);
    let parent = newest.map_or(0, |newest| newest.id);
    let seat = Seat { number: last.saturating_add(1), id, parent, is_inherited: newest == held };
    Ok(Claim { seat: (!keeps).then_some(seat), quorums })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn seat(number: u32, parent: u64) -> Seat {
        Seat { number, id: u64::from(number), parent, is_inherited: true }
    }

    /// Both of two nodes know that somebody tried to take seat 2, and nobody is left who knew seat 1.
    fn tried() -> Found {
        let known = Known { taken: None, tried: vec![seat(2, 1)] };
        [(NodeIndex(0), known.clone()), (NodeIndex(1), known)].into()
    }

    fn claimed(authority: Authority) -> Result<Claim, Unseated> {
        let claimant = Claimant { held: None, authority, is_new: false, id: 9 };
        claim(2, claimant, &tried(), Sabotage::none())
    }

    #[test]
    fn a_person_may_begin_where_nobody_is_left_who_knew_the_seat_before() {
        let claim = claimed(Authority::Person).unwrap();
        assert_eq!(claim.seat, Some(Seat { number: 3, id: 9, parent: 2, is_inherited: false }));
        assert_eq!(claim.needed(), 2);
    }

    #[test]
    fn a_launcher_alone_may_not() {
        assert_eq!(claimed(Authority::Votes), Err(Unseated::TooFew { known: 0, needed: 2 }));
    }

    const LIFE: Life = Life { counter: 3, nonce: 7 };

    #[test]
    fn a_candidate_continues_no_job_that_is_over_and_a_person_does() {
        let stopped = JobEnd { life: LIFE, has_finished: false };
        let finished = JobEnd { has_finished: true, ..stopped };
        assert_eq!(admit(Authority::Candidate, &[]), Ok(()));
        assert_eq!(admit(Authority::Candidate, &[stopped]), Err(Unseated::Over(stopped)));
        assert_eq!(admit(Authority::Candidate, &[finished, stopped]), Err(Unseated::Over(finished)));
        for authority in [Authority::Person, Authority::Votes] {
            assert_eq!(admit(authority, &[finished]), Ok(()));
        }
    }

    #[test]
    fn every_end_in_order_is_the_jobs_but_for_a_candidates_failed_attempt() {
        let end = |authority, ending, how| end_of_job(authority, ending, Some(LIFE), how);
        let over = |has_finished| Some(JobEnd { life: LIFE, has_finished });
        for authority in [Authority::Person, Authority::Votes, Authority::Candidate] {
            assert_eq!(end(authority, Ending::Finished, (true, false)), over(true));
            assert_eq!(end(authority, Ending::Stopped, (true, false)), over(false));
            assert_eq!(end(authority, Ending::Stopped, (true, true)), over(false));
            assert_eq!(end(authority, Ending::Stopped, (false, false)), over(false), "a person has ended it");
        }
        assert_eq!(end(Authority::Votes, Ending::Stopped, (false, true)), over(false));
        assert_eq!(end(Authority::Candidate, Ending::Stopped, (false, true)), None);
        assert_eq!(end_of_job(Authority::Person, Ending::Finished, None, (true, false)), None);
    }
}
