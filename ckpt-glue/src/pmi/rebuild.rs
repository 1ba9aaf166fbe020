//! The server of a life whose ranks have been restored: it is built from the requests of each before its cut (R26).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use transport::{Epoch, Instant, Rank};

use super::line;
use super::member::{Member, Ranks};
use super::server::Server;
use super::state::{Published, RankState, Request};
use super::world::{Phase, Relayed};
use super::{Broken, Output};

/// The reports of restored ranks so far.
#[derive(Default, Debug)]
pub(super) struct Gathering {
    states: BTreeMap<Rank, RankState>,
    reported: BTreeSet<Rank>,
    /// Requests that came before all had reported.
    held: Vec<(Rank, Epoch, Request)>,
    /// When all must have reported; `None` until the first has.
    pub(super) until: Option<Instant>,
    since: Option<Instant>,
}

impl Gathering {
    /// A relay has at most a request and an abort without an answer.
    pub(super) fn hold(&mut self, rank: Rank, epoch: Epoch, request: Request) {
        if self.held.iter().filter(|(of, ..)| *of == rank).count() < 2 {
            self.held.push((rank, epoch, request));
        }
    }
}

/// Requests that change shared entries come before those that look at them. A request without an answer may
/// have been taken by the server of the life before, and another rank may have seen its effect.
fn changes(text: &[u8]) -> bool {
    [&b"cmd=put "[..], b"cmd=publish_name ", b"cmd=unpublish_name "]
        .iter()
        .any(|start| text.starts_with(start))
}

impl Server {
    pub(super) fn on_state(&mut self, now: Instant, rank: Rank, part: RankState, last: bool) {
        let timeout = self.start_timeout;
        let Some(gathering) = &mut self.gathering else { return };
        gathering.since.get_or_insert(now);
        gathering.until.get_or_insert(now + timeout);
        if gathering.reported.contains(&rank) {
            return;
        }
        let state = gathering.states.entry(rank).or_default();
        state.join(part);
        if last {
            gathering.reported.insert(rank);
            let (begun, finished) = (!state.name.is_empty(), state.finished);
            self.note_phase(rank, begun, finished);
        }
        self.build_if_reported(now);
    }

    /// Whether a rank of the job was restored and has not reported its earlier requests.
    #[must_use]
    pub fn is_untold(&self, rank: Rank) -> bool {
        self.gathering.as_ref().is_some_and(|gathering| !gathering.reported.contains(&rank))
    }

    pub(super) fn reported(&self, rank: Rank) -> Option<&RankState> {
        self.gathering.as_ref()?.states.get(&rank)
    }

    fn note_phase(&mut self, rank: Rank, begun: bool, finished: bool) {
        let client = self.worlds.get_mut(&0).and_then(|world| world.client_mut(rank));
        let Some(client) = client else { return };
        client.begun = begun;
        client.relayed = Some(Relayed::default());
        if begun && client.phase != Phase::Gone {
            client.phase = if finished { Phase::Finished } else { Phase::Attached };
            self.outputs.push(Output::Began { member: Member::of_job(rank) });
        }
    }

    /// Ranks that have neither reported nor ended are late.
    pub(super) fn late_to_report(&mut self, now: Instant) {
        let missing = self.unreported();
        let Some(gathering) = self.gathering.as_mut() else { return };
        if gathering.until.is_none_or(|until| until > now) {
            return;
        }
        gathering.until = None;
        let waited = gathering.since.map_or_else(Default::default, |since| now.since(since));
        if let Some(rank) = missing.0.first().copied() {
            self.break_off(Member::of_job(rank), Broken::Untold { missing, waited });
        }
    }

    fn unreported(&self) -> Ranks {
        let (Some(gathering), Some(world)) = (&self.gathering, self.worlds.get(&0)) else {
            return Ranks(Vec::new());
        };
        let has_gone = |rank| world.client(rank).is_none_or(|client| client.phase == Phase::Gone);
        Ranks(world.ranks().filter(|rank| !gathering.reported.contains(rank) && !has_gone(*rank)).collect())
    }

    pub(super) fn build_if_reported(&mut self, now: Instant) {
        if self.gathering.is_none() || !self.unreported().0.is_empty() {
            return;
        }
        let Some(gathering) = self.gathering.take() else { return };
        if let Err((rank, what)) = self.build(&gathering.states) {
            return self.break_off(Member::of_job(rank), Broken::Contradicts { what });
        }
        // R26
        let pending = |changing| {
            let states = gathering.states.iter();
            states.filter_map(move |(rank, state)| {
                let pending = state.pending.clone().filter(|pending| changes(&pending.text.0) == changing)?;
                Some((*rank, pending))
            })
        };
        for (rank, request) in pending(true).chain(pending(false)) {
            // Requests made before the cut depend on nothing after it.
            self.on_request(now, rank, Epoch(0), request);
        }
        let Some(world) = self.worlds.get(&0) else { return };
        let behind = |rank: &Rank| {
            let client = world.client(*rank);
            client.is_some_and(|client| client.barriers < world.barriers_passed)
        };
        if let Some(rank) = world.ranks().find(behind) {
            let what = "others have met it at a barrier to which it has not come";
            return self.break_off(Member::of_job(rank), Broken::Contradicts { what });
        }
        for (rank, epoch, request) in gathering.held {
            self.on_request(now, rank, epoch, request);
        }
    }

    /// Puts everything in place that has been answered.
    fn build(&mut self, states: &BTreeMap<Rank, RankState>) -> Result<(), (Rank, &'static str)> {
        let Some(world) = self.worlds.get_mut(&0) else { return Ok(()) };
        let mut named = states.iter().filter(|(_, state)| !state.name.is_empty());
        if let Some((first, RankState { name, .. })) = named.next() {
            if let Some((rank, _)) = named.find(|(_, state)| state.name != *name) {
                return Err((*rank, "another name for their keys"));
            }
            world.name = String::from_utf8(name.0.clone()).map_err(|_| (*first, "a name that is no text"))?;
            self.name.clone_from(&world.name);
        }
        world.barriers_passed = states.values().map(|state| state.barriers).max().unwrap_or(0);
        for (rank, state) in states {
            let Some(client) = world.client_mut(*rank) else { continue };
            client.barriers = state.barriers;
            client.relayed =
                Some(Relayed { taken: state.answered, answering: None, published: state.published.clone() });
        }
        let mut published: Vec<(&Published, Rank)> = states
            .iter()
            .flat_map(|(rank, state)| state.published.iter().map(|published| (published, *rank)))
            .collect();
        published.sort_unstable_by_key(|(published, _)| published.place);
        for (Published { place, text }, rank) in published {
            let command = line::whole(&text.0).map_err(|_| (rank, "a request that is none"))?;
            match self.change(Member::of_job(rank), &command) {
                Ok(Ok(())) => self.place = place + 1,
                Ok(Err(_)) | Err(_) => return Err((rank, "a request that could not be carried out again")),
            }
        }
        Ok(())
    }
}
