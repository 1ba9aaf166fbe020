//! Hosts in the place of lost ones (R32): the coordinator's machine says when a node's place may be given away, and here is who gets it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ckpt_glue::control::{JobPhase, JobStatus};
use ckpt_glue::job;
use ckpt_glue::names::{ExitStatus, NodeIndex};
use ckpt_glue::protection::nodes::Input as NodesInput;
use ckpt_glue::recovery::{self, Beginning, Confidence};
use ckpt_glue::write_duration;
use nix::sys::signal::Signal;
use transport::Rank;

use super::super::notice::Notice;
use super::super::storage::Task;
use super::super::text;
use super::super::{HostLoss, Node, Plan, Purpose, Verdict, former_host, setting, write_places};
use super::Shell;
use super::components::preferred_at;

/// Hosts that may take the place of others.
#[derive(Debug)]
pub(super) struct Spares {
    /// Those that nobody has taken, in the order in which they are.
    free: VecDeque<Node>,
    /// Nodes whose host was replaced since all ranks ran last.
    moved: BTreeSet<NodeIndex>,
    /// Nodes and hosts on which ranks may run besides, until all ranks run: see [`former_host`].
    former: BTreeSet<String>,
    /// Nodes that the coordinator's machine has named as lost, and whose keeper has not answered since.
    lost: BTreeSet<NodeIndex>,
    /// Those for which there was no other host.
    reported: BTreeSet<NodeIndex>,
    /// The places of nodes that answered when another host got them, until all ranks run: nothing is lost there.
    left: BTreeMap<NodeIndex, Node>,
}

impl Spares {
    pub(super) fn new(plan: &Plan) -> Spares {
        Spares {
            free: plan.spares.iter().cloned().collect(),
            moved: BTreeSet::new(),
            former: plan.former_hosts.clone(),
            lost: BTreeSet::new(),
            reported: BTreeSet::new(),
            left: BTreeMap::new(),
        }
    }
}

impl Shell<'_> {
    /// No rank of this node runs any more. `answers`: its keeper is there (R36), and keeps the place if no other host can have it.
    pub(super) fn replace(&mut self, node: NodeIndex, answers: bool) {
        let from = self.keepers.place(node).clone();
        if !answers && self.plan.on_host_loss == HostLoss::End && self.job.status().life.is_some() {
            self.spares.lost.insert(node);
            // A node of this host ends with the launcher.
            if from.host.is_some() {
                let words = format!("{} does not answer any more (--on-host-loss end)", from.name());
                self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
                self.stop();
            }
            return;
        }
        let place = self.other_place(node).or_else(|why| {
            // The host that got the place does not come up, and the one before it answered.
            self.spares.left.remove(&node).filter(|_| !answers).ok_or(why)
        });
        if !answers {
            self.spares.lost.insert(node);
        }
        match place {
            Ok(place) => {
                if answers {
                    self.spares.left.insert(node, from.clone());
                }
                self.move_node(node, &from, Node { ranks: from.ranks, domain: None, ..place }, answers)
            }
            Err(why) => {
                if answers {
                    let words = format!("{} keeps its place: {why}", self.keepers.name(node));
                    self.notify(&Notice::Repair { words: &words });
                } else if from.host.is_some() {
                    self.report_lost_host(node, &why);
                }
                self.feed_job(job::Input::NotReplaced { node });
            }
        }
    }

    /// The node is lost, and the policy has it keep its place.
    pub(super) fn await_host(&mut self, node: NodeIndex) {
        if self.keepers.place(node).host.is_some() {
            let order = &self.job.policy().on.permanent;
            let why = format!("the reaction to permanent faults is {order}");
            self.report_lost_host(node, &why);
        }
    }

    /// Whether any host can take the place of one.
    pub(super) fn report_other_hosts(&mut self) {
        let spreads = self.plan.on_host_loss == HostLoss::Spread && self.keepers.nodes().len() > 1;
        let any = self.plan.on_host_loss != HostLoss::End && (!self.spares.free.is_empty() || spreads);
        self.feed_job(job::Input::OtherHosts(any));
    }

    /// The host that gets the node's place.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn other_place(&mut self, node: NodeIndex) -> Result<Node, String> {
        self.may_move(node)?;
        self.next_place(node).ok_or_else(|| self.no_place().to_owned())
    }

    /// Whether the node may have another place at all.
    fn may_move(&self, node: NodeIndex) -> Result<(), String> {
        if self.keepers.place(node).host.is_none() {
            return Err("it is the launcher's own host".to_owned());
        }
        let is_kept = match self.plan.purpose {
            Purpose::Run => None,
            Purpose::Repair => Some("a repair gives no place away"),
            // The only images may lie there.
            Purpose::Gather | Purpose::Protect => Some("no place is given away while images move"),
        };
        let ends = self.plan.on_host_loss == HostLoss::End;
        let is_kept = is_kept.or(ends.then_some("no host takes its place (--on-host-loss end)"));
        match is_kept.map(str::to_owned).or_else(|| self.is_unbearable(node)) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    fn no_place(&self) -> &'static str {
        match self.plan.on_host_loss {
            HostLoss::Spare => "there is no spare host (--spare-hosts, --on-host-loss spread)",
            HostLoss::Spread | HostLoss::End => "no other host of the job answers",
        }
    }

    /// A person says that a node is failing.
    ///
    /// # Errors
    /// Why that has no consequence, in words.
    pub(super) fn suspect(&mut self, name: &str) -> Result<NodeIndex, String> {
        let by_number = |node: &NodeIndex| name.parse() == Ok(node.0);
        let by_host = |node: &NodeIndex| self.keepers.place(*node).host.as_deref() == Some(name);
        let nodes = self.keepers.nodes();
        let hosts = nodes.iter().copied().filter(by_host).collect::<Vec<_>>();
        let node = match hosts[..] {
            [node] => node,
            [] => nodes.iter().copied().find(by_number).ok_or_else(|| {
                let names: Vec<String> = nodes.iter().map(|node| self.keepers.name(*node)).collect();
                format!(
                    "the job has no node `{name}`; expected a number from 0 to {} or a host ({})",
                    nodes.len() - 1,
                    names.join(", ")
                )
            })?,
            _ => {
                return Err(format!(
                    "several nodes are on {name}; name one by its number (`stillwire ps --json`)"
                ));
            }
        };
        self.may_suspect(node, Confidence::Person)?;
        self.feed_job(job::Input::Suspect { node });
        Ok(node)
    }

    /// Whether a suspicion of a node helps the job.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) fn may_suspect(&self, node: NodeIndex, by: Confidence) -> Result<(), String> {
        let JobStatus { phase, committed, .. } = self.job.status();
        if phase != JobPhase::Running {
            return Err(
                "the job does not run now: it is starting, recovering or ending; try again later".to_owned()
            );
        }
        if committed.is_none() {
            return Err("nothing is saved yet: take a checkpoint first (`stillwire checkpoint`)".to_owned());
        }
        let keeps = |why: &str| format!("{} keeps its place: {why}", self.keepers.name(node));
        self.may_move(node).map_err(|why| keeps(&why))?;
        if self.spares.free.is_empty() && !self.has_other_host(node) {
            return Err(keeps(self.no_place()));
        }
        match self.job.plan_for_suspect(self.now(), node, by) {
            Some(recovery::Plan::Migrate { .. }) => Ok(()),
            Some(recovery::Plan::Stop { reason }) => {
                Err(keeps(&format!("the job would end: {}", text::stop_reason(reason))))
            }
            _ => {
                let order = &self.job.policy().on.permanent;
                Err(keeps(&format!("the reaction to permanent faults is {order} (`stillwire tune --on`)")))
            }
        }
    }

    /// A lost host, as people read it.
    fn silence_words(&self, node: NodeIndex) -> String {
        let more = if self.job.status().life.is_some() { " any more" } else { "" };
        format!("{} does not answer{more}", self.keepers.name(node))
    }

    /// Its host is waited for: a connection from before may be one that nobody closes.
    fn report_lost_host(&mut self, node: NodeIndex, why: &str) {
        if self.keepers.is_ready(node) {
            if self.is_at_its_first_host(node) {
                // It has just been started, and reports by itself that it waits for a lock.
                return;
            }
            self.reconnect(node);
        }
        if self.spares.reported.insert(node) {
            let words = format!("{}, and {why}: waiting for it", self.silence_words(node));
            self.notify(&Notice::Repair { words: &words });
        }
    }

    /// What lies on too many lost hosts cannot be rebuilt on others: they are waited for, because they may come back with it.
    fn is_unbearable(&self, node: NodeIndex) -> Option<String> {
        let committed = self.job.status().committed;
        if self.plan.unprotected.is_some_and(|moved| committed.is_none_or(|newest| newest == moved)) {
            return Some("its images were moved there and are not protected yet".to_owned());
        }
        let own = self.plan.own_directories.as_ref()?;
        let group = own.groups().iter().find(|group| group.nodes().contains(&node.0));
        let (members, losses) =
            group.map_or((vec![node.0], 0), |group| (group.nodes().to_vec(), group.losses()));
        let is_lost = |member: &&u32| {
            let member = NodeIndex(**member);
            member == node || self.spares.lost.contains(&member) || self.spares.moved.contains(&member)
        };
        let lost = members.iter().filter(is_lost).count();
        let has_committed = committed.is_some() || self.plan.beginning != Beginning::Fresh;
        (has_committed && lost > losses).then(|| {
            format!(
                "images of {lost} lost hosts cannot be rebuilt ({} protects against the loss of {losses})",
                own.scheme
            )
        })
    }

    fn next_place(&mut self, node: NodeIndex) -> Option<Node> {
        let preferred = self.components.preferred(node);
        if let Some(other) = self.other_hosts(node).into_iter().find(|place| preferred == Some(&place.name()))
        {
            return Some(other);
        }
        let at = preferred_at(preferred, self.spares.free.iter());
        self.spares.free.remove(at).or_else(|| self.least_used_host(node))
    }

    /// The hosts that can take the place of a node, in the order in which they do, with the ranks that they have.
    pub(super) fn candidates(&self, node: NodeIndex) -> Vec<(String, u32)> {
        if self.may_move(node).is_err() {
            return Vec::new();
        }
        let mut others = self.other_hosts(node);
        others.sort_by_key(|place| self.ranks_on(place));
        let spares = self.spares.free.iter().map(|spare| (spare.name(), 0));
        spares.chain(others.iter().map(|place| (place.name(), self.ranks_on(place)))).collect()
    }

    fn has_other_host(&self, node: NodeIndex) -> bool {
        self.least_used_host(node).is_some()
    }

    /// The host of the job with the fewest ranks, besides that of the node.
    fn least_used_host(&self, node: NodeIndex) -> Option<Node> {
        self.other_hosts(node).into_iter().min_by_key(|place| self.ranks_on(place))
    }

    fn ranks_on(&self, place: &Node) -> u32 {
        let here = self.keepers.nodes().into_iter().map(|node| self.keepers.place(node));
        here.filter(|other| other.host == place.host).map(|other| other.ranks).sum()
    }

    /// The hosts of the job that may take over ranks of a node, each once.
    fn other_hosts(&self, node: NodeIndex) -> Vec<Node> {
        let mut hosts: Vec<Node> = Vec::new();
        if self.plan.on_host_loss != HostLoss::Spread {
            return hosts;
        }
        let others =
            self.keepers.nodes().into_iter().filter(|other| *other != node && self.keepers.is_ready(*other));
        for place in others.map(|other| self.keepers.place(other)) {
            let is_here = place.host == self.keepers.place(node).host;
            if !is_here && !hosts.iter().any(|host| host.host == place.host) {
                hosts.push(place.clone());
            }
        }
        hosts
    }

    fn move_node(&mut self, node: NodeIndex, from: &Node, to: Node, answers: bool) {
        let words = if answers {
            format!("{} takes the place of {}, which leaves the job", to.name(), self.keepers.name(node))
        } else {
            format!("{}: {} takes its place", self.silence_words(node), to.name())
        };
        self.notify(&Notice::Repair { words: &words });
        let token = if answers { self.keepers.dismiss(node) } else { self.keepers.disconnect(node) };
        self.forget_connection(node, token);
        let host = to.name();
        self.spares.moved.insert(node);
        self.spares.lost.remove(&node);
        self.spares.former.extend([from, &to].into_iter().filter_map(|place| former_host(node, place)));
        self.keepers.move_to(node, to);
        // In this order: a later launcher knows where ranks may run before the decision about their life is durable. If that cannot be written, there is no
        // such life (`settings_kept`).
        self.keep_settings();
        self.store.ask(Task::Move { node, host });
        if let Err(error) = self.start_keeper(node) {
            self.notify(&Notice::KeeperLost { host: &self.keepers.name(node), why: &error.to_string() });
        }
        self.feed_job(job::Input::NodeReplaced { node });
    }

    /// A keeper was started, and has not answered in time.
    pub(super) fn reconnect_late(&mut self, node: NodeIndex) {
        let host = self.keepers.name(node);
        let waited = self.keepers.extend_answer_time(node);
        let why = format!("it has not answered within {waited:?}");
        if self.awaits_first_keeper(node) {
            self.forget_keeper(node);
            return self.on_no_first_keeper(node, &why, true);
        }
        let why = format!("{why}: another one is started");
        self.notify(&Notice::KeeperLost { host: &host, why: &why });
        self.reconnect(node);
    }

    /// A keeper of the node is there.
    pub(super) fn is_found(&mut self, node: NodeIndex) {
        self.spares.lost.remove(&node);
    }

    /// Nothing comes from a node any more, or nothing will. The end of such a connection may never be seen, so it is not waited for.
    pub(super) fn reconnect(&mut self, node: NodeIndex) {
        self.forget_keeper(node);
        self.keepers.start_later(node);
    }

    /// The connection to a node is of no use any more, and what ran there has ended, or will.
    pub(super) fn forget_keeper(&mut self, node: NodeIndex) {
        let token = self.keepers.disconnect(node);
        self.forget_connection(node, token);
    }

    fn forget_connection(&mut self, node: NodeIndex, token: Option<u64>) {
        if let Some(token) = token {
            self.events.forget(token);
            self.lose_part(node);
        }
        // PMI's server gets no message: its life ends with the keeper's, and a rank that waits at its barriers is not at fault.
        let gone: Vec<Rank> =
            self.processes.iter().filter(|(_, of)| of.node == node).map(|(rank, _)| *rank).collect();
        for rank in gone {
            self.processes.remove(&rank);
            let status = ExitStatus::Signal(Signal::SIGKILL as u8);
            self.notify(&Notice::Ended { rank, status, has_finished: false });
        }
        self.forget_spawned(node);
        self.drained(node, None);
        self.feed_nodes(NodesInput::KeeperLost(node));
    }

    /// R32: ranks must not run on hosts of which a later launcher would not know.
    pub(super) fn end_unknown_hosts(&mut self, error: &str) {
        if !self.spares.moved.is_empty() && self.job.status().phase != JobPhase::Running {
            let words =
                format!("the hosts on which the job is to go on could not be written to its file: {error}");
            self.end.verdict.get_or_insert(Verdict { words, exit_code: None });
            self.stop();
        }
    }

    /// All ranks run: on no other hosts than those of the nodes.
    pub(super) fn settle_hosts(&mut self) {
        self.spares.moved.clear();
        self.spares.former.clear();
        self.spares.reported.clear();
        self.spares.left.clear();
        self.components.settle();
        self.report_other_hosts();
        self.keepers.settle();
    }

    /// Where the nodes are, in the job's file.
    pub(super) fn write_hosts(&mut self) {
        let Some(file) = &mut self.job_file else { return };
        let nodes: Vec<Node> =
            self.keepers.nodes().into_iter().map(|node| self.keepers.place(node).clone()).collect();
        let spares: Vec<Node> = self.spares.free.iter().cloned().collect();
        let former = Some(self.spares.former.iter().cloned().collect::<Vec<_>>().join(","));
        let silence = self.plan.former_silence.max(self.plan.config.keeper.watch().silence());
        let silence = (!self.spares.former.is_empty()).then(|| write_duration(silence));
        let settings = [
            (setting::HOSTS, write_places(&nodes)),
            (setting::SPARE_HOSTS, write_places(&spares)),
            (setting::FORMER_HOSTS, former),
            (setting::FORMER_SILENCE, silence),
        ];
        for (name, value) in settings {
            match value.filter(|value| !value.is_empty()) {
                Some(value) => file.settings.insert(name.to_owned(), value),
                None => file.settings.remove(name),
            };
        }
    }
}
