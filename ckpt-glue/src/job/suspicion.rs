//! Nodes that may be gone: what three monitors have noticed of each (R33).
//!
//! A suspicion ends nothing. It leads to a direct question to the node's keeper and to an event. A node is declared lost by the rules of leases alone (R31),
//! and a suspicion of one that answers is withdrawn: a false alarm.
//!
//! | monitor    | raised                                                                            | withdrawn                      |
//! |------------|-----------------------------------------------------------------------------------|--------------------------------|
//! | heartbeats | the keeper above heard nothing for [`Watch::suspicion`]                            | a heartbeat, an answer          |
//! | probe      | a question was not answered for that time                                         | an answer                      |
//! | data path  | its ranks and those of other nodes do not hear each other, and it is the best explanation | they hear each other again      |
//!
//! The probe circulates: one keeper after the other is asked, and the next one when that has answered (SCore's server does so). A node that does not answer
//! holds up a round once, for the time of a suspicion.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use transport::{Instant, Rank};

use crate::control::Watch;
use crate::layout::Layout;
use crate::limits::{
    DATA_SILENCE_SHOWN_AFTER, PROBES_PER_BEAT_MAX, REPORTERS_NAMED_MAX, SUSPICION_SHOWN_AFTER,
};
use crate::names::NodeIndex;
use crate::queue::Queue;

/// Pairs of ranks of which one does not hear the other that are remembered (3 MiB): those of 700 ranks whose network is cut in two. A silence beyond them is
/// not seen.
const SILENT_PAIRS_MAX: usize = 1 << 16;

/// Reports of ranks are judged together after this time: of one cut or its end there come many at once, and the first name the wrong node.
const JUDGED_AFTER: Duration = Duration::from_millis(50);

/// A source of evidence that a node is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Monitor {
    /// Heartbeats along the tree of keepers.
    Heartbeats,
    /// The coordinator's questions, from node to node.
    Probe,
    /// The data network between ranks.
    DataPath,
}

impl Monitor {
    /// All of them.
    pub const ALL: [Monitor; 3] = [Monitor::Heartbeats, Monitor::Probe, Monitor::DataPath];

    /// The name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Monitor::Heartbeats => "heartbeats",
            Monitor::Probe => "probe",
            Monitor::DataPath => "data-path",
        }
    }
}

/// News of a suspicion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuspicionEvent {
    /// A monitor suspects a node.
    Raised {
        /// The node.
        node: NodeIndex,
        /// The monitor.
        by: Monitor,
    },
    /// It does not any more: a false alarm.
    Withdrawn {
        /// The node.
        node: NodeIndex,
        /// The monitor.
        by: Monitor,
        /// For how long it did.
        lasted: Duration,
    },
    /// A keeper has been suspected for a while, and has not answered. Once for each suspicion.
    Lasts {
        /// The node.
        node: NodeIndex,
        /// Since the suspicion.
        lasted: Duration,
    },
    /// A keeper answers, and its ranks and those of other nodes have heard nothing of each other for a while: its data network is cut, or its ranks stand still.
    DataSilent {
        /// The node.
        node: NodeIndex,
        /// Some of the ranks of other nodes, in order.
        others: Vec<Rank>,
        /// Since when.
        lasted: Duration,
    },
}

/// A node whose data network is silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CutOff {
    pub(super) node: NodeIndex,
    pub(super) since: Instant,
    /// No other node can be the one.
    pub(super) is_certain: bool,
}

/// An output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Ask the keeper of this node.
    Ask { node: NodeIndex, number: u64 },
    /// Report to the user.
    Event(SuspicionEvent),
}

/// A node that is not trusted now.
#[derive(Clone, Debug, Default)]
struct Suspect {
    /// The monitors, and since when.
    by: BTreeMap<Monitor, Instant>,
    has_been_shown: bool,
    /// When the silence of its data network is shown next.
    data_shown_at: Option<Instant>,
}

impl Suspect {
    /// Since when its keeper is suspected.
    fn keeper_since(&self) -> Option<Instant> {
        let keeper = [Monitor::Heartbeats, Monitor::Probe];
        keeper.iter().filter_map(|monitor| self.by.get(monitor)).min().copied()
    }
}

#[derive(Clone, Copy, Debug)]
struct Question {
    number: u64,
    asked: Instant,
}

/// The life whose nodes are watched.
#[derive(Clone, Debug)]
struct Watched {
    watch: Watch,
    layout: Layout,
    questions: BTreeMap<NodeIndex, Question>,
    /// Whose turn it is in the round, and whose it was last.
    turn: Option<NodeIndex>,
    last: Option<NodeIndex>,
    next_turn: Instant,
    suspects: BTreeMap<NodeIndex, Suspect>,
    /// A silent rank, the rank of another node that hears nothing of it, and since when.
    silences: BTreeMap<(Rank, Rank), Instant>,
    /// When new reports of ranks are judged.
    judged_at: Option<Instant>,
}

/// The suspicions of a job.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    watched: Option<Watched>,
    number: u64,
    false_alarms: BTreeMap<Monitor, u64>,
    /// R33 is out: nothing is suspected.
    is_blind: bool,
    actions: Queue<Action>,
}

impl Suspicions {
    pub(super) fn new(is_blind: bool) -> Suspicions {
        Suspicions { is_blind, ..Suspicions::default() }
    }

    /// A life begins.
    pub(super) fn begin(&mut self, now: Instant, watch: Watch, layout: &Layout) {
        self.watched = Some(Watched {
            watch,
            layout: layout.clone(),
            questions: BTreeMap::new(),
            turn: None,
            last: None,
            next_turn: now,
            suspects: BTreeMap::new(),
            silences: BTreeMap::new(),
            judged_at: None,
        });
    }

    /// It is over.
    pub(super) fn end(&mut self) {
        self.watched = None;
    }

    /// How often each monitor has suspected a node that was there.
    pub(super) fn false_alarms(&self, by: Monitor) -> u64 {
        self.false_alarms.get(&by).copied().unwrap_or(0)
    }

    /// Nodes that are not trusted now, the monitors that suspect them, and since when the first does.
    pub(super) fn suspects(&self) -> impl Iterator<Item = (NodeIndex, Vec<Monitor>, Instant)> + '_ {
        let suspects = self.watched.iter().flat_map(|watched| &watched.suspects);
        suspects.filter_map(|(node, suspect)| {
            let since = suspect.by.values().min()?;
            Some((*node, suspect.by.keys().copied().collect(), *since))
        })
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        self.actions.pop()
    }

    /// Its heartbeats have not come.
    pub(super) fn overdue(&mut self, now: Instant, node: NodeIndex) {
        self.raise(now, node, Monitor::Heartbeats);
    }

    /// They come again.
    pub(super) fn heard(&mut self, now: Instant, node: NodeIndex) {
        self.withdraw(now, node, Monitor::Heartbeats);
    }

    /// The keeper answers a question. It was there after that had been asked.
    pub(super) fn answered(&mut self, now: Instant, node: NodeIndex, number: u64) {
        let Some(watched) = &mut self.watched else { return };
        if watched.questions.get(&node).is_none_or(|question| question.number != number) {
            return;
        }
        watched.questions.remove(&node);
        watched.turn.take_if(|turn| *turn == node);
        self.withdraw(now, node, Monitor::Heartbeats);
        self.withdraw(now, node, Monitor::Probe);
    }

    /// Rank `by` hears nothing of `rank`, for so long now.
    pub(super) fn rank_silent(&mut self, now: Instant, rank: Rank, by: Rank, silent: Duration) {
        let Some(watched) = &mut self.watched else { return };
        // A rank that another one beside it does not hear has no trouble with the network between nodes.
        let of = |rank| watched.layout.node_of(rank);
        if of(rank).is_none() || of(by).is_none() || of(rank) == of(by) {
            return;
        }
        if watched.silences.len() < SILENT_PAIRS_MAX {
            let silent_ns = u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX);
            let since = Instant::from_nanos(now.as_nanos().saturating_sub(silent_ns));
            watched.silences.entry((rank, by)).or_insert(since);
            watched.judged_at.get_or_insert(now + JUDGED_AFTER);
        }
    }

    /// Rank `by` hears `rank` again.
    pub(super) fn rank_heard(&mut self, now: Instant, rank: Rank, by: Rank) {
        let Some(watched) = &mut self.watched else { return };
        if watched.silences.remove(&(rank, by)).is_some() {
            watched.judged_at.get_or_insert(now + JUDGED_AFTER);
        }
    }

    /// Whose data network is suspected.
    fn judge_data_path(&mut self, now: Instant) {
        let Some(watched) = &self.watched else { return };
        let named = watched.cut_off();
        let is_suspected = |suspect: &Suspect| suspect.by.contains_key(&Monitor::DataPath);
        let before: Vec<NodeIndex> = watched
            .suspects
            .iter()
            .filter(|(_, suspect)| is_suspected(suspect))
            .map(|(node, _)| *node)
            .collect();
        for node in before.into_iter().filter(|node| !named.contains(node)) {
            self.withdraw(now, node, Monitor::DataPath);
        }
        for node in named {
            self.raise(now, node, Monitor::DataPath);
        }
    }

    fn raise(&mut self, now: Instant, node: NodeIndex, by: Monitor) {
        let Some(watched) = self.watched.as_mut().filter(|_| !self.is_blind) else { return };
        let suspect = watched.suspects.entry(node).or_default();
        if suspect.by.contains_key(&by) {
            return;
        }
        suspect.by.insert(by, now);
        if by == Monitor::DataPath {
            suspect.data_shown_at = Some(now + DATA_SILENCE_SHOWN_AFTER);
        }
        self.actions.push(Action::Event(SuspicionEvent::Raised { node, by }));
        if !watched.questions.contains_key(&node) {
            self.ask(now, node);
        }
    }

    fn withdraw(&mut self, now: Instant, node: NodeIndex, by: Monitor) {
        let Some(watched) = &mut self.watched else { return };
        let Some(suspect) = watched.suspects.get_mut(&node) else { return };
        let Some(since) = suspect.by.remove(&by) else { return };
        if suspect.by.is_empty() {
            watched.suspects.remove(&node);
        }
        *self.false_alarms.entry(by).or_default() += 1;
        let lasted = now.since(since);
        self.actions.push(Action::Event(SuspicionEvent::Withdrawn { node, by, lasted }));
    }

    fn ask(&mut self, now: Instant, node: NodeIndex) {
        let Some(watched) = &mut self.watched else { return };
        self.number += 1;
        let number = self.number;
        watched.questions.insert(node, Question { number, asked: now });
        self.actions.push(Action::Ask { node, number });
    }

    /// Raises suspicions of unanswered questions, asks the next node of the round, and reports suspicions that last.
    pub(super) fn due(&mut self, now: Instant) {
        let Some(watched) = &mut self.watched else { return };
        if watched.judged_at.take_if(|at| *at <= now).is_some() {
            self.judge_data_path(now);
        }
        let Some(watched) = &mut self.watched else { return };
        let suspicion = watched.watch.suspicion();
        let is_late = |question: &Question| now >= question.asked + suspicion;
        let late = watched.questions.iter().filter(|(_, question)| is_late(question));
        for node in late.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.raise(now, node, Monitor::Probe);
            // The answer to the last one may have been lost.
            self.ask(now, node);
            let Some(watched) = &mut self.watched else { return };
            watched.turn.take_if(|turn| *turn == node);
        }
        let Some(watched) = &mut self.watched else { return };
        if let Some(node) = watched.take_turn(now) {
            self.ask(now, node);
        }
        self.show(now);
    }

    /// Reports suspicions that last.
    fn show(&mut self, now: Instant) {
        let Some(watched) = &mut self.watched else { return };
        let silences = watched.data_silences();
        let shown_after = watched.watch.suspicion() * SUSPICION_SHOWN_AFTER;
        for (node, suspect) in &mut watched.suspects {
            let node = *node;
            if let Some(since) = suspect.keeper_since() {
                if now >= since + shown_after && !core::mem::replace(&mut suspect.has_been_shown, true) {
                    let lasted = now.since(since);
                    self.actions.push(Action::Event(SuspicionEvent::Lasts { node, lasted }));
                }
            } else if suspect.data_shown_at.is_some_and(|at| now >= at)
                && let Some((since, others)) = silences.get(&node)
            {
                let lasted = now.since(*since);
                suspect.data_shown_at = Some(now + lasted);
                let others = others.iter().copied().take(REPORTERS_NAMED_MAX).collect();
                self.actions.push(Action::Event(SuspicionEvent::DataSilent { node, others, lasted }));
            }
        }
    }

    /// The node whose keeper answers and whose ranks and those of others have not heard each other for longest.
    pub(super) fn cut_off(&self) -> Option<CutOff> {
        let watched = self.watched.as_ref()?;
        let answers = |suspect: &Suspect| {
            suspect.by.contains_key(&Monitor::DataPath) && suspect.keeper_since().is_none()
        };
        let cut: Vec<NodeIndex> =
            watched.suspects.iter().filter(|(_, suspect)| answers(suspect)).map(|(node, _)| *node).collect();
        // Of two nodes that do not hear each other, either may be the one that is cut off.
        let is_certain = cut.len() == 1 && watched.layout.nodes() > 2;
        let silences = if cut.is_empty() { BTreeMap::new() } else { watched.data_silences() };
        let cut = cut.into_iter().filter_map(|node| Some((node, silences.get(&node)?.0)));
        cut.min_by_key(|(_, since)| *since).map(|(node, since)| CutOff { node, since, is_certain })
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let watched = self.watched.as_ref()?;
        let suspicion = watched.watch.suspicion();
        let late = watched.questions.values().map(|question| question.asked + suspicion);
        let shown = watched.suspects.values().filter_map(|suspect| match suspect.keeper_since() {
            Some(since) => (!suspect.has_been_shown).then(|| since + suspicion * SUSPICION_SHOWN_AFTER),
            None => suspect.data_shown_at,
        });
        let turn = watched.turn.is_none().then_some(watched.next_turn);
        late.chain(shown).chain(turn).chain(watched.judged_at).min()
    }
}

impl Watched {
    /// The next node of the round, if it is time and the last one has answered.
    fn take_turn(&mut self, now: Instant) -> Option<NodeIndex> {
        if self.turn.is_some() || now < self.next_turn {
            return None;
        }
        let nodes = self.layout.nodes().clamp(1, PROBES_PER_BEAT_MAX);
        self.next_turn = now + self.watch.beat() / nodes;
        let shares = self.layout.shares();
        let after = self.last.and_then(|last| shares.iter().position(|share| share.node == last));
        let start = after.map_or(0, |at| at + 1);
        let round = shares[start..].iter().chain(&shares[..start]);
        // Others are being asked already.
        self.turn = round.map(|share| share.node).find(|node| !self.questions.contains_key(node));
        self.last = self.turn.or(self.last);
        self.turn
    }

    /// The fewest nodes that explain all silences, each between two nodes: the one at an end of most of them, and so on; of several, the one that most do not
    /// hear. If a node's cable is out, its own ranks report all others, and nobody may report them: a rank that waits for a message owes nothing (R22).
    fn cut_off(&self) -> BTreeSet<NodeIndex> {
        let mut open: BTreeMap<NodeIndex, Ends> = BTreeMap::new();
        for (rank, by) in self.silences.keys() {
            if let (Some(node), Some(by)) = (self.layout.node_of(*rank), self.layout.node_of(*by)) {
                let ends = open.entry(node).or_default();
                ends.all.insert(by);
                ends.reporters.insert(by);
                open.entry(by).or_default().all.insert(node);
            }
        }
        let mut named = BTreeSet::new();
        loop {
            let weight = |ends: &Ends| (ends.all.len(), ends.reporters.len());
            let Some(most) = open.values().filter(|ends| !ends.all.is_empty()).map(weight).max() else {
                return named;
            };
            let chosen: Vec<NodeIndex> =
                open.iter().filter(|(_, ends)| weight(ends) == most).map(|(node, _)| *node).collect();
            for node in chosen {
                named.insert(node);
                for other in open.remove(&node).unwrap_or_default().all {
                    if let Some(ends) = open.get_mut(&other) {
                        ends.all.remove(&node);
                        ends.reporters.remove(&node);
                    }
                }
            }
        }
    }

    /// Since when ranks of a node and of others do not hear each other, and the others.
    fn data_silences(&self) -> BTreeMap<NodeIndex, (Instant, BTreeSet<Rank>)> {
        let mut all: BTreeMap<NodeIndex, (Instant, BTreeSet<Rank>)> = BTreeMap::new();
        for ((rank, by), since) in &self.silences {
            for (one, other) in [(rank, by), (by, rank)] {
                let Some(node) = self.layout.node_of(*one) else { continue };
                let (first, others) = all.entry(node).or_insert((*since, BTreeSet::new()));
                *first = (*first).min(*since);
                others.insert(*other);
            }
        }
        all
    }
}

/// Nodes at the other ends of silences of one node.
#[derive(Debug, Default)]
struct Ends {
    all: BTreeSet<NodeIndex>,
    /// Those that have reported it.
    reporters: BTreeSet<NodeIndex>,
}

#[cfg(test)]
mod tests;
