//! Nodes that do not answer a fence: when no rank that they had can still run, their place may be given to another host (R32).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use transport::Instant;

use crate::control::Watch;
use crate::limits::{EARLIER_SILENCES, RECONNECT_BEATS, REPLACE_SILENCES};
use crate::names::NodeIndex;

/// What the coordinator knows of the leases of nodes that do not answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Absent {
    /// By then every lease of the life is over (R31), and the guards have ended the ranks.
    over_at: Option<Instant>,
    /// Reported as silent in this life: their leases were over before the report, and they got no other one.
    silent: BTreeSet<NodeIndex>,
    /// Nodes that have got another keeper in this life. It runs nothing, and answers when the lock of its node is free.
    new: BTreeSet<NodeIndex>,
    /// Nodes that have not answered the fence, and when their place may be given away.
    missing: BTreeMap<NodeIndex, Instant>,
    again: Duration,
    /// Each of them is waited for so much longer, because it may come back.
    more: Duration,
    /// An earlier launcher may grant leases: no place is given away.
    earlier: Option<Earlier>,
    /// Nodes whose place was given to another host since the last life: a keeper there remembers nothing.
    replaced: BTreeSet<NodeIndex>,
}

/// An earlier launcher of the job that may be cut off from this one. It grants leases while more than half of the keepers are there.
#[derive(Clone, Debug)]
struct Earlier {
    /// Nodes whose locks this launcher's keepers have: no keeper there answers to the earlier one.
    locked: BTreeSet<NodeIndex>,
    /// So many of these leave it no majority.
    needed: u32,
    /// Then everything that it began is over after this time.
    over_after: Duration,
}

impl Absent {
    /// A lease was granted: it is over by then, and what ran on it has ended.
    pub(super) fn granted(&mut self, over_at: Instant) {
        self.over_at = self.over_at.max(Some(over_at));
    }

    pub(super) fn is_silent(&mut self, node: NodeIndex) {
        self.silent.insert(node);
    }

    pub(super) fn is_new(&mut self, node: NodeIndex) {
        self.new.insert(node);
    }

    pub(super) fn silent(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.silent.difference(&self.new).copied()
    }

    /// A fence begins. A node gets a moment for a new keeper to connect, if only its connection or its keeper is gone.
    /// `more`: as a policy has it. `early`: R32 is out.
    pub(super) fn fence(
        &mut self,
        now: Instant,
        watch: Watch,
        more: Duration,
        early: bool,
        nodes: impl Iterator<Item = NodeIndex>,
    ) {
        let soon = now + watch.beat() * RECONNECT_BEATS;
        let over_at = self.over_at.unwrap_or(now);
        let is_over = |node: &NodeIndex| early || self.silent.contains(node);
        let due = |node| if is_over(&node) { soon } else { soon.max(over_at) };
        self.more = more;
        self.missing = nodes.map(|node| (node, due(node))).collect();
        self.again = watch.silence() * REPLACE_SILENCES;
        for node in core::mem::take(&mut self.new) {
            self.is_there(now, node);
        }
    }

    /// The first fence of a launcher that continues a job begins. `former_silence`: of that launcher. `quorum`: half of the nodes. `early`: R32 is out.
    pub(super) fn fence_first(
        &mut self,
        now: Instant,
        watch: Watch,
        former_silence: Duration,
        early: bool,
        quorum: u32,
        nodes: impl Iterator<Item = NodeIndex>,
    ) {
        self.missing = nodes.map(|node| (node, now)).collect();
        self.more = Duration::ZERO;
        self.again = watch.silence() * REPLACE_SILENCES;
        let over_after = watch.silence().max(former_silence) * EARLIER_SILENCES;
        let earlier = Earlier { locked: BTreeSet::new(), needed: quorum, over_after };
        self.earlier = Some(earlier).filter(|_| !early);
    }

    /// A keeper of the node is there. It answers when its processes have ended, or those of an earlier keeper (R30); that may take its time, and then it may
    /// be lost, too.
    pub(super) fn is_there(&mut self, now: Instant, node: NodeIndex) {
        let again = now + self.again;
        self.missing.entry(node).and_modify(|due| *due = again.max(*due));
    }

    /// The coordinator has not run for so long, or its clock has jumped ahead: leases may run on by its clock.
    pub(super) fn postpone(&mut self, late: Duration) {
        self.over_at = self.over_at.map(|at| at + late);
        self.missing.values_mut().for_each(|due| *due = *due + late);
    }

    /// The node has answered the fence: its lock is in the hands of the keeper there (R30).
    pub(super) fn has_answered(&mut self, now: Instant, node: NodeIndex) {
        self.missing.remove(&node);
        let Some(earlier) = &mut self.earlier else { return };
        if !self.replaced.contains(&node) {
            earlier.locked.insert(node);
        }
        if earlier.locked.len() >= earlier.needed as usize {
            let over_at = now + earlier.over_after;
            self.missing.values_mut().for_each(|due| *due = over_at.max(*due));
            self.earlier = None;
        }
    }

    /// The job ends: it waits for no node that may come back.
    pub(super) fn hurry(&mut self) {
        self.more = Duration::ZERO;
    }

    /// Another host has got the node's place, and has to answer as well.
    pub(super) fn is_replaced(&mut self, now: Instant, node: NodeIndex) {
        self.replaced.insert(node);
        self.missing.entry(node).or_insert(now + self.again);
    }

    /// Whether a keeper of this node may remember earlier lives.
    pub(super) fn may_remember(&self, node: NodeIndex) -> bool {
        !self.replaced.contains(&node)
    }

    /// The nodes whose place may be given to another host now, again if they have been named for long.
    pub(super) fn due(&mut self, now: Instant) -> Vec<NodeIndex> {
        if self.earlier.is_some() {
            return Vec::new();
        }
        let more = self.more;
        let due = self.missing.iter_mut().filter(|(_, due)| **due + more <= now);
        due.map(|(node, due)| {
            *due = now + self.again;
            *node
        })
        .collect()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let first = self.missing.values().min().filter(|_| self.earlier.is_none());
        first.map(|due| *due + self.more)
    }

    /// The fence is over.
    pub(super) fn begin_life(&mut self) {
        *self = Absent::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Instant {
        Instant::ZERO + SECOND * seconds
    }

    /// Silent after five seconds.
    fn fenced(silent: &[u32], granted: u32, now: u32) -> Absent {
        let mut absent = Absent::default();
        absent.granted(at(granted + 5));
        silent.iter().for_each(|node| absent.is_silent(NodeIndex(*node)));
        absent.fence(
            at(now),
            Watch::new(SECOND / 4, SECOND * 5),
            Duration::ZERO,
            false,
            (0..3).map(NodeIndex),
        );
        absent
    }

    #[test]
    fn a_silent_node_is_given_away_when_no_new_keeper_comes() {
        let mut absent = fenced(&[1], 19, 20);
        absent.has_answered(at(20), NodeIndex(0));
        assert_eq!(absent.poll_timeout(), Some(at(21)));
        assert_eq!(absent.due(at(20)), []);
        assert_eq!(absent.due(at(21)), [NodeIndex(1)]);
        // Node 2 was not silent: it has had a lease.
        assert_eq!(absent.due(at(23)), []);
        assert_eq!(absent.due(at(24)), [NodeIndex(2)]);
        // The other host did not come up.
        assert_eq!(absent.due(at(30)), []);
        assert_eq!(absent.due(at(31)), [NodeIndex(1)]);
    }

    #[test]
    fn a_policy_can_wait_longer_for_a_node_that_may_come_back() {
        let mut absent = Absent::default();
        absent.granted(at(24));
        absent.is_silent(NodeIndex(1));
        let watch = Watch::new(SECOND / 4, SECOND * 5);
        absent.fence(at(20), watch, SECOND * 30, false, (0..3).map(NodeIndex));
        assert_eq!(absent.due(at(50)), []);
        assert_eq!(absent.due(at(51)), [NodeIndex(1)]);
        assert_eq!(absent.due(at(54)), [NodeIndex(0), NodeIndex(2)]);
    }

    #[test]
    fn a_local_clock_jump_ends_no_lease() {
        let mut absent = fenced(&[], 19, 20);
        absent.postpone(SECOND * 60);
        assert_eq!(absent.due(at(83)), []);
        assert_eq!(absent.due(at(84)).len(), 3);
        // Also a fence that begins afterwards.
        let mut absent = Absent::default();
        absent.granted(at(24));
        absent.postpone(SECOND * 60);
        absent.fence(
            at(80),
            Watch::new(SECOND / 4, SECOND * 5),
            Duration::ZERO,
            false,
            [NodeIndex(1)].into_iter(),
        );
        assert_eq!(absent.poll_timeout(), Some(at(84)));
    }

    #[test]
    fn a_node_whose_keeper_is_there_has_more_time() {
        let mut absent = fenced(&[0, 1], 19, 20);
        absent.is_there(at(20), NodeIndex(0));
        absent.is_there(at(23), NodeIndex(2));
        absent.has_answered(at(23), NodeIndex(1));
        assert_eq!(absent.due(at(29)), []);
        assert_eq!(absent.due(at(30)), [NodeIndex(0)]);
        assert_eq!(absent.due(at(33)), [NodeIndex(2)]);
    }

    #[test]
    fn a_keeper_that_has_just_begun_is_there() {
        let mut absent = Absent::default();
        absent.is_silent(NodeIndex(1));
        absent.is_new(NodeIndex(1));
        assert_eq!(absent.silent().count(), 0);
        absent.fence(
            at(20),
            Watch::new(SECOND / 4, SECOND * 5),
            Duration::ZERO,
            false,
            [NodeIndex(1)].into_iter(),
        );
        assert_eq!(absent.poll_timeout(), Some(at(30)));
    }

    /// Half of four nodes: an earlier launcher needs three.
    fn fenced_first(now: u32) -> Absent {
        let mut absent = Absent::default();
        let watch = Watch::new(SECOND / 4, SECOND * 5);
        absent.fence_first(at(now), watch, Duration::ZERO, false, 2, (0..4).map(NodeIndex));
        absent
    }

    #[test]
    fn leases_of_an_earlier_launcher_last_as_long_as_its_own_time_out_says() {
        let mut absent = Absent::default();
        let watch = Watch::new(SECOND / 4, SECOND);
        absent.fence_first(at(0), watch, SECOND * 60, false, 1, (0..2).map(NodeIndex));
        absent.has_answered(at(1), NodeIndex(0));
        assert_eq!(absent.poll_timeout(), Some(at(121)));
    }

    #[test]
    fn a_restart_gives_a_place_away_when_no_earlier_launcher_can_have_ranks_there() {
        let mut absent = fenced_first(0);
        absent.has_answered(at(1), NodeIndex(0));
        absent.has_answered(at(2), NodeIndex(0));
        assert_eq!(absent.due(at(100)), [], "an earlier launcher may have the other three");
        assert_eq!(absent.poll_timeout(), None);
        absent.has_answered(at(100), NodeIndex(3));
        assert_eq!(absent.due(at(109)), []);
        assert_eq!(absent.poll_timeout(), Some(at(110)));
        absent.is_there(at(105), NodeIndex(2));
        assert_eq!(absent.due(at(110)), [NodeIndex(1)]);
        assert_eq!(absent.due(at(115)), [NodeIndex(2)]);
    }

    #[test]
    fn a_host_in_the_place_of_another_has_no_lock_of_an_earlier_launcher() {
        let mut absent = fenced_first(0);
        absent.is_replaced(at(0), NodeIndex(1));
        assert!(!absent.may_remember(NodeIndex(1)));
        absent.has_answered(at(1), NodeIndex(0));
        absent.has_answered(at(1), NodeIndex(1));
        assert_eq!(absent.due(at(100)), []);
        absent.has_answered(at(100), NodeIndex(2));
        assert_eq!(absent.due(at(110)), [NodeIndex(3)]);
        absent.begin_life();
        assert!(absent.may_remember(NodeIndex(1)));
    }
}
