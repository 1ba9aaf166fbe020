//! Components that the job has loaded: what they are asked, what their answers mean, and what happens when one fails.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ckpt_glue::control::{FaultReport, JobPhase};
use ckpt_glue::job;
use ckpt_glue::names::{ExitStatus, NodeIndex};
use ckpt_glue::recovery::{self, Confidence, Fault, FaultModel, Loaded, Plan as Reaction, RecoveryProtocol};
use nix::sys::epoll::EpollFlags;

use super::super::components::wire::{Answer, CandidateView, FaultView, NodeView, Opening, Question, Report};
use super::super::components::{
    BUILT_IN, ComponentFailure, ComponentKind, ComponentProcess, NONE, Purpose, confidence_code, model_code,
    model_of, plan_code, protocol_of, report_kind,
};
use super::super::notice::Notice;
use super::super::{Node, Purpose as PlanPurpose};
use super::{Shell, Source};

/// A component that has not failed.
#[derive(Debug)]
struct Running {
    process: ComponentProcess,
    token: u64,
    library: String,
    /// Once it has begun.
    name: Option<String>,
}

/// Components of a job.
#[derive(Debug, Default)]
pub(super) struct Components {
    running: BTreeMap<ComponentKind, Running>,
    /// Of a detector that wants to be asked by itself: how often, and when next.
    poll: Option<(Duration, Instant)>,
    /// Hosts that the recovery protocol was shown last.
    candidates: Vec<String>,
    /// Hosts that it prefers in the place of nodes, until all ranks run.
    preferred: BTreeMap<NodeIndex, String>,
    /// The hosts of the nodes when the detector was asked last.
    polled: Vec<String>,
    /// Nodes that the detector suspects, with the words printed last about each.
    suspected: BTreeMap<NodeIndex, String>,
}

impl Components {
    /// The host that is preferred in the place of a node.
    pub(super) fn preferred(&self, node: NodeIndex) -> Option<&str> {
        self.preferred.get(&node).map(String::as_str)
    }

    /// All ranks run.
    pub(super) fn settle(&mut self) {
        self.preferred.clear();
        self.suspected.clear();
    }

    /// When an answer is late, or the detector is asked.
    pub(super) fn due(&self) -> Option<Instant> {
        let late = self.running.values().filter_map(|running| running.process.due());
        late.chain(self.poll.map(|(_, at)| at)).min()
    }
}

impl Shell<'_> {
    /// Starts the components that the job's reactions name. Until they have begun, the built-in parts decide.
    pub(super) fn start_components(&mut self) {
        let components = self.job.policy().components.clone();
        let is_run = self.plan.purpose == PlanPurpose::Run;
        for kind in ComponentKind::ALL {
            let Some((library, argument)) = kind.of(&components).filter(|_| is_run) else { continue };
            let opening = Opening {
                kind,
                library: library.to_owned(),
                argument: argument.to_owned(),
                job: self.plan.job.to_string(),
                ranks: self.plan.ranks,
                nodes: self.layout.nodes(),
            };
            let started = ComponentProcess::start(opening, Instant::now()).and_then(|process| {
                let watched = self.events.watch(process.fd(), Source::Component(kind));
                watched.map(|token| (process, token)).map_err(ComponentFailure::NotStarted)
            });
            match started {
                Ok((process, token)) => {
                    let running = Running { process, token, library: library.to_owned(), name: None };
                    self.components.running.insert(kind, running);
                }
                Err(failure) => self.report_failed(kind, None, library, &failure),
            }
        }
    }

    fn report_failed(
        &mut self,
        kind: ComponentKind,
        name: Option<&str>,
        library: &str,
        failure: &ComponentFailure,
    ) {
        let name = name.map_or_else(String::new, |name| format!(" `{name}`"));
        let words = format!("{kind}{name} ({library}): {failure}; the built-in {kind} takes over");
        self.notify(&Notice::ComponentFailed { words: &words });
    }

    /// It is not asked any more in this run. What the job has asked it is answered by the built-in part.
    fn give_up_component(&mut self, kind: ComponentKind, failure: &ComponentFailure) {
        let Some(Running { process, token, library, name }) = self.components.running.remove(&kind) else {
            return;
        };
        self.events.take_out(process.fd());
        self.events.forget(token);
        let numbers: Vec<u64> = process.numbers().collect();
        process.give_up();
        if kind == ComponentKind::Detector {
            self.components.poll = None;
        }
        self.report_failed(kind, name.as_deref(), &library, failure);
        self.feed_loaded();
        self.answer_as_built_in(numbers);
    }

    fn answer_as_built_in(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.feed_job(job::Input::Answered { number, answer: recovery::Answer::BuiltIn });
        }
    }

    fn feed_loaded(&mut self) {
        let has_begun =
            |kind| self.components.running.get(&kind).is_some_and(|running| running.name.is_some());
        let loaded = Loaded {
            detector: has_begun(ComponentKind::Detector),
            recovery: has_begun(ComponentKind::Recovery),
        };
        self.feed_job(job::Input::Loaded(loaded));
    }

    /// Its socket can be read, or has room.
    pub(super) fn on_component(&mut self, kind: ComponentKind) {
        if let Some(running) = self.components.running.get_mut(&kind)
            && let Err(failure) = running.process.flush()
        {
            return self.give_up_component(kind, &failure);
        }
        while let Some(running) = self.components.running.get_mut(&kind) {
            let (purpose, answer) = match running.process.next(Instant::now()) {
                Ok(None) => break,
                Ok(Some(taken)) => taken,
                Err(failure) => return self.give_up_component(kind, &failure),
            };
            if let Err(failure) = self.on_component_answer(kind, purpose, answer) {
                self.give_up_component(kind, &failure);
                return self.answer_as_built_in(purpose.number());
            }
        }
        self.await_component(kind);
    }

    fn await_component(&self, kind: ComponentKind) {
        if let Some(Running { process, token, .. }) = self.components.running.get(&kind) {
            let mut flags = EpollFlags::EPOLLIN;
            flags.set(EpollFlags::EPOLLOUT, process.has_unsent());
            self.events.await_flags(process.fd(), *token, flags);
        }
    }

    /// Asks; false: there is no such component any more.
    fn ask_component(&mut self, kind: ComponentKind, question: &Question, purpose: Purpose) -> bool {
        let Some(running) = self.components.running.get_mut(&kind) else { return false };
        match running.process.ask(question, purpose, Instant::now()) {
            Ok(()) => self.await_component(kind),
            Err(failure) => self.give_up_component(kind, &failure),
        }
        true
    }

    /// Time has passed: answers that are late, and questions to the detector.
    pub(super) fn components_due(&mut self, now: Instant) {
        for kind in ComponentKind::ALL {
            let is_due = |running: &Running| running.process.due().is_some_and(|due| due <= now);
            if !self.components.running.get(&kind).is_some_and(is_due) {
                continue;
            }
            // The launcher itself may have stood still, and the answer be there.
            self.on_component(kind);
            let late = self.components.running.get(&kind).and_then(|running| running.process.late(now));
            if let Some(failure) = late {
                self.give_up_component(kind, &failure);
            }
        }
        if let Some((period, at)) = self.components.poll
            && at <= now
        {
            self.components.poll = Some((period, now + period));
            let detector = self.components.running.get(&ComponentKind::Detector);
            if detector.is_some_and(|running| !running.process.is_asked(Purpose::Poll)) {
                let nodes = self.node_views();
                self.components.polled = nodes.iter().map(|node| node.host.clone()).collect();
                let question = Question::Poll { now_ms: self.now_ms(), nodes };
                self.ask_component(ComponentKind::Detector, &question, Purpose::Poll);
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.now().since(transport::Instant::ZERO).as_millis().try_into().unwrap_or(u64::MAX)
    }

    fn node_views(&self) -> Vec<NodeView> {
        let view = |node: NodeIndex| {
            let place = self.keepers.place(node);
            NodeView {
                node: node.0,
                ranks: place.ranks,
                answers: self.keepers.is_ready(node),
                host: place.name(),
            }
        };
        self.keepers.nodes().into_iter().map(view).collect()
    }

    /// The job asks a component.
    pub(super) fn ask(&mut self, number: Option<u64>, question: recovery::Question) {
        let is_asked = match question {
            recovery::Question::Report { report, fault } => {
                let purpose = match (number, fault) {
                    (Some(number), Some(fault)) => Purpose::Model(number, fault),
                    _ => Purpose::Report,
                };
                let question = Question::Report(self.report_view(&report, fault, number.is_some()));
                self.ask_component(ComponentKind::Detector, &question, purpose)
            }
            recovery::Question::Reaction { fault, plan } => {
                let question = Question::React(self.fault_view(&fault, plan));
                let purpose = Purpose::Reaction(number.unwrap_or_default(), fault);
                self.ask_component(ComponentKind::Recovery, &question, purpose)
            }
        };
        self.answer_as_built_in(number.filter(|_| !is_asked));
    }

    fn report_view(&self, report: &FaultReport, fault: Option<Fault>, is_asked: bool) -> Report {
        let base = Report {
            now_ms: self.now_ms(),
            model: fault.map_or(BUILT_IN, |fault| model_code(fault.model)),
            is_asked,
            ..Report::default()
        };
        let of_rank = |kind, rank: transport::Rank| Report {
            kind,
            rank: Some(rank.0),
            node: self.layout.node_of(rank).map(|node| node.0),
            ..base
        };
        let of_node = |kind, node: NodeIndex| Report { kind, node: Some(node.0), ..base };
        let ended = |report: Report, status| match status {
            ExitStatus::Code(code) => Report { exit_code: Some(code), ..report },
            ExitStatus::Signal(signal) => Report { signal: Some(signal), ..report },
        };
        match *report {
            FaultReport::RankDied { rank, status } => ended(of_rank(report_kind::RANK_DIED, rank), status),
            FaultReport::RankNotRestored { rank, status } => {
                ended(of_rank(report_kind::RANK_NOT_STARTED, rank), status)
            }
            FaultReport::RankNotStarted { rank, .. } => of_rank(report_kind::RANK_NOT_STARTED, rank),
            FaultReport::RankSilent { rank, silent_ms, .. } => {
                Report { silent_ms, ..of_rank(report_kind::RANK_SILENT, rank) }
            }
            FaultReport::RankHeard { rank, .. } => of_rank(report_kind::RANK_HEARD, rank),
            FaultReport::KeeperOverdue { node } => of_node(report_kind::NODE_OVERDUE, node),
            FaultReport::KeeperHeard { node } => of_node(report_kind::NODE_HEARD, node),
            FaultReport::KeeperSilent { node } => of_node(report_kind::NODE_SILENT, node),
            FaultReport::NodeCutOff { node, silent_ms } => {
                Report { silent_ms, ..of_node(report_kind::NODE_CUT_OFF, node) }
            }
            FaultReport::NodeSuspected { node } => of_node(report_kind::NODE_SUSPECTED, node),
            _ => Report { kind: report_kind::OTHER_REPORT, ..base },
        }
    }

    fn fault_view(&mut self, fault: &Fault, plan: Reaction) -> FaultView {
        let node = fault.site.node().unwrap_or(self.layout.root());
        let candidates: Vec<CandidateView> =
            self.candidates(node).into_iter().map(|(host, ranks)| CandidateView { host, ranks }).collect();
        self.components.candidates = candidates.iter().map(|candidate| candidate.host.clone()).collect();
        FaultView {
            model: model_code(fault.model),
            confidence: confidence_code(fault.confidence),
            protocol: plan_code(plan),
            now_ms: self.now_ms(),
            rank: match fault.site {
                recovery::FaultSite::Rank(rank, _) => Some(rank.0),
                _ => None,
            },
            node: node.0,
            host: self.keepers.name(node),
            candidates,
        }
    }

    /// # Errors
    /// The answer cannot be.
    fn on_component_answer(
        &mut self,
        kind: ComponentKind,
        purpose: Purpose,
        answer: Answer,
    ) -> Result<(), ComponentFailure> {
        match (purpose, answer) {
            (Purpose::Open, Answer::Opened { name, period_ms }) => {
                if let Some(running) = self.components.running.get_mut(&kind) {
                    let words = format!("{kind} `{name}` is loaded ({})", running.library);
                    running.name = Some(name);
                    self.notify(&Notice::Component { words: &words });
                }
                if kind == ComponentKind::Detector && period_ms > 0 {
                    self.components.poll = Some((Duration::from_millis(period_ms.into()), Instant::now()));
                }
                self.feed_loaded();
            }
            (Purpose::Report, Answer::Model(_)) => {}
            (Purpose::Poll, Answer::Suspicion(suspicion)) => {
                let Some((node, reason)) = suspicion else {
                    self.components.suspected.clear();
                    return Ok(());
                };
                self.on_component_suspicion(NodeIndex(node), &reason)?;
            }
            (Purpose::Model(number, fault), Answer::Model(code)) => {
                let answer = model_answer(&fault, code)?;
                if let recovery::Answer::Model(model) = answer {
                    let words = format!("{}: a {model} fault", self.component_says(kind));
                    self.notify(&Notice::Component { words: &words });
                }
                self.feed_job(job::Input::Answered { number, answer });
            }
            (Purpose::Reaction(number, fault), Answer::Reaction { protocol, candidate, reason }) => {
                self.on_reaction(number, &fault, (protocol, candidate), &reason)?;
            }
            _ => return Err(ComponentFailure::Wrong("its answer is none to the question".to_owned())),
        }
        Ok(())
    }

    /// The component, as the subject of a line.
    fn component_says(&self, kind: ComponentKind) -> String {
        let name = self.components.running.get(&kind).and_then(|running| running.name.as_deref());
        format!("{kind} `{}`", name.unwrap_or_default())
    }

    fn on_component_suspicion(&mut self, node: NodeIndex, reason: &str) -> Result<(), ComponentFailure> {
        let nodes = self.layout.nodes();
        if node.0 >= nodes {
            let words = format!("it suspects node {node}; expected a number from 0 to {}", nodes - 1);
            return Err(ComponentFailure::Wrong(words));
        }
        let host = self.keepers.name(node);
        // Another host may have got the place since the question, and a job that does not run is not moved.
        let is_there = self.components.polled.get(node.0 as usize) == Some(&host);
        if !is_there || self.job.status().phase != JobPhase::Running {
            return Ok(());
        }
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        let head = format!("{} suspects {}{reason}", self.component_says(ComponentKind::Detector), host);
        let refused = self.may_suspect(node, Confidence::Component).err();
        let words = match &refused {
            None => head,
            Some(why) => format!("{head}; {why}"),
        };
        // It is repeated until the node leaves, and reported anew if something has changed.
        if self.components.suspected.get(&node) != Some(&words) {
            self.notify(&Notice::Component { words: &words });
            self.components.suspected.insert(node, words);
        }
        if refused.is_none() {
            self.feed_job(job::Input::Detected { node });
        }
        Ok(())
    }

    fn on_reaction(
        &mut self,
        number: u64,
        fault: &Fault,
        (code, candidate): (u32, i32),
        reason: &str,
    ) -> Result<(), ComponentFailure> {
        let protocol = protocol_answer(self.job.policy(), fault, code)?;
        let host = candidate_answer(&self.components.candidates, candidate)?;
        let kind = ComponentKind::Recovery;
        let what = match (protocol, &host) {
            (Some(protocol), Some(host)) => Some(format!("{protocol}, and {host} is preferred")),
            (Some(protocol), None) => Some(protocol.to_string()),
            (None, Some(host)) => Some(format!("{host} is preferred")),
            (None, None) => None,
        };
        if let Some(what) = what {
            let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
            let words = format!("{}: {what}{reason}", self.component_says(kind));
            self.notify(&Notice::Component { words: &words });
        }
        if let (Some(host), Some(node)) = (host, fault.site.node()) {
            self.components.preferred.insert(node, host);
        }
        let answer = protocol.map_or(recovery::Answer::BuiltIn, recovery::Answer::Protocol);
        self.feed_job(job::Input::Answered { number, answer });
        Ok(())
    }
}

fn model_answer(fault: &Fault, code: u32) -> Result<recovery::Answer, ComponentFailure> {
    if code == BUILT_IN {
        return Ok(recovery::Answer::BuiltIn);
    }
    match model_of(code).filter(|model| fault.can_be(*model)) {
        Some(model) => Ok(recovery::Answer::Model(model)),
        None => {
            let all = FaultModel::CHOSEN.into_iter().filter(|model| fault.can_be(*model));
            let expected = numbered(all.map(|model| (model_code(model), model.name())));
            Err(ComponentFailure::Wrong(format!(
                "it gives a {} fault the model {code}; expected {expected}",
                fault.model
            )))
        }
    }
}

/// `None`: the policy's.
fn protocol_answer(
    policy: &recovery::Policy,
    fault: &Fault,
    code: u32,
) -> Result<Option<RecoveryProtocol>, ComponentFailure> {
    if code == BUILT_IN {
        return Ok(None);
    }
    let can = |protocol: &RecoveryProtocol| policy.with_protocol(fault.model, *protocol).is_ok();
    match protocol_of(code).filter(can) {
        Some(protocol) => Ok(Some(protocol)),
        None => {
            let all = (1..=3).filter_map(|code| protocol_of(code).map(|protocol| (code, protocol)));
            let expected = numbered(
                all.filter(|(_, protocol)| can(protocol)).map(|(code, protocol)| (code, protocol.name())),
            );
            Err(ComponentFailure::Wrong(format!(
                "it answers a {} fault with protocol {code}; expected {expected}",
                fault.model
            )))
        }
    }
}

fn candidate_answer(candidates: &[String], index: i32) -> Result<Option<String>, ComponentFailure> {
    if index == NONE {
        return Ok(None);
    }
    match usize::try_from(index).ok().and_then(|index| candidates.get(index)) {
        Some(host) => Ok(Some(host.clone())),
        None => Err(ComponentFailure::Wrong(match candidates.len() {
            0 => format!("it prefers candidate {index}; expected {NONE}, as there is none"),
            count => format!("it prefers candidate {index}; expected {NONE} to {}", count - 1),
        })),
    }
}

/// `0 (built in), 1 (restart)`.
fn numbered<'a>(all: impl Iterator<Item = (u32, &'a str)>) -> String {
    let all = [(BUILT_IN, "built in")].into_iter().chain(all);
    all.map(|(code, name)| format!("{code} ({name})")).collect::<Vec<_>>().join(", ")
}

/// The place of these that has the preferred host, or the first.
pub(super) fn preferred_at<'a>(preferred: Option<&str>, mut places: impl Iterator<Item = &'a Node>) -> usize {
    let named = preferred.and_then(|host| places.position(|place| place.name() == host));
    named.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use ckpt_glue::recovery::{FaultSite, Policy};
    use transport::Rank;

    use super::*;

    fn fault(model: FaultModel) -> Fault {
        let report = FaultReport::KeeperSilent { node: NodeIndex(1) };
        Fault { model, site: FaultSite::Rank(Rank(2), NodeIndex(1)), confidence: Confidence::Certain, report }
    }

    #[test]
    fn answers_that_cannot_be_are_refused_with_those_that_can() {
        let wrong = |failure: ComponentFailure| failure.to_string();
        let process = fault(FaultModel::Process);
        let model = |code| model_answer(&process, code).map_err(wrong);
        assert_eq!(model(0), Ok(recovery::Answer::BuiltIn));
        assert_eq!(model(3), Ok(recovery::Answer::Model(FaultModel::Repeated)));
        let expected = "it gives a process fault the model 1; expected 0 (built in), 2 (process), 3 (repeated), 4 (transient), 5 (permanent)";
        assert_eq!(model(1), Err(expected.to_owned()));
        assert!(model(99).is_err());
        let policy = Policy::default();
        let protocol = |model, code| protocol_answer(&policy, &fault(model), code).map_err(wrong);
        assert_eq!(protocol(FaultModel::Process, 0), Ok(None));
        assert_eq!(protocol(FaultModel::Process, 2), Ok(Some(RecoveryProtocol::Migration)));
        let expected =
            "it answers a transient fault with protocol 3; expected 0 (built in), 1 (restart), 2 (migration)";
        assert_eq!(protocol(FaultModel::Transient, 3), Err(expected.to_owned()));
        let hosts = ["e".to_owned(), "f".to_owned()];
        let candidate = |hosts: &[String], index| candidate_answer(hosts, index).map_err(wrong);
        assert_eq!(candidate(&hosts, -1), Ok(None));
        assert_eq!(candidate(&hosts, 1), Ok(Some("f".to_owned())));
        assert_eq!(candidate(&hosts, 2), Err("it prefers candidate 2; expected -1 to 1".to_owned()));
        assert_eq!(
            candidate(&[], -2),
            Err("it prefers candidate -2; expected -1, as there is none".to_owned())
        );
    }
}
