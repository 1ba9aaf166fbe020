//! R29: the change of all ranks of a life to another NIC, at an address of another kind or place, as the coordinator leads it.
//!
//! ```text
//! C > R  OpenRail(nic)              each opens it beside its own; R > C RailOpened(ports), or why not
//! C > R  MeetRails(all ports)       each finds the way to all others; R > C RailsMet, when nothing needs the old rail any more
//! C      decides                    the decision is not taken back: lives to come open this NIC
//! C > R  ChangeRails(decided)       each closes the old one; R > C HandedOver
//! ```
//!
//! Before the decision any failure, in any rank, makes all close the new one. If every rank can exchange the drivers at
//! its address, nothing is opened, and each is ordered to do that.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use transport::{Instant, Rank};

use crate::control::{Message, NicText, PortEntry};
use crate::limits::{ENTRIES_MAX, RAIL_NAMED_MAX, RAIL_STEP_MAX};
use crate::sabotage::{Rule, Sabotage};

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A rank has sent this.
    Said {
        /// The sender.
        rank: Rank,
        /// The message; one of another change is ignored.
        message: Message,
    },
    /// A rank has ended; whether it should have is others' matter.
    Ended {
        /// The rank.
        rank: Rank,
    },
    /// The life is over.
    LifeOver,
}

/// The actions to take, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send to these ranks.
    Tell {
        /// The ranks.
        ranks: Vec<Rank>,
        /// Its name.
        message: Message,
    },
    /// From now on ranks of later lives open this NIC: their starter must know it before the next output is carried
    /// out.
    Decided,
    /// The change is over.
    Over {
        /// Whether it was decided, or each rank has done it for itself.
        changed: bool,
        /// Why not, for each rank that was asked; `None`: it goes over the new NIC.
        refused: BTreeMap<Rank, Option<String>>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Opening,
    Meeting,
    Closing,
    /// Each for itself, at its address.
    HandingOver,
    Over,
}

/// One change, until it is over.
#[derive(Debug)]
pub struct RailChange {
    number: u64,
    nic: NicText,
    sabotage: Sabotage,
    step: Step,
    due: Instant,
    /// Ranks that take part.
    ranks: BTreeSet<Rank>,
    /// Ranks that have not answered in this step.
    waiting: BTreeSet<Rank>,
    in_place: BTreeSet<Rank>,
    ports: Vec<PortEntry>,
    refused: BTreeMap<Rank, Option<String>>,
    outputs: VecDeque<Output>,
}

impl RailChange {
    /// Has `ranks`, all that run, go over `nic`. `number`: of no other change in this life.
    #[must_use]
    pub fn new(
        now: Instant,
        number: u64,
        nic: NicText,
        ranks: BTreeSet<Rank>,
        sabotage: Sabotage,
    ) -> RailChange {
        let mut change = RailChange {
            number,
            nic,
            sabotage,
            step: Step::Opening,
            due: now,
            waiting: BTreeSet::new(),
            in_place: BTreeSet::new(),
            ports: Vec::new(),
            refused: BTreeMap::new(),
            outputs: VecDeque::new(),
            ranks,
        };
        let all = change.ranks.clone();
        let message = Message::OpenRail { number, nic: change.nic.clone(), anew: false };
        change.ask(now, Step::Opening, all, vec![message]);
        change.go_on(now);
        change
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The NIC.
    #[must_use]
    pub fn nic(&self) -> &NicText {
        &self.nic
    }

    /// The next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`RailChange::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.step != Step::Over).then_some(self.due)
    }

    /// Takes an input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        if self.step == Step::Over {
            return;
        }
        match input {
            Input::Said { rank, message } => self.hear(rank, message),
            Input::Ended { rank } => {
                self.waiting.remove(&rank);
                self.ranks.remove(&rank);
                self.in_place.remove(&rank);
                self.ports.retain(|entry| entry.port.rank() != rank);
                self.refused.entry(rank).or_insert_with(|| Some("it has ended".to_string()));
            }
            Input::LifeOver => return self.end_with_life(),
        }
        self.go_on(now);
    }

    /// The time of a step is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.step == Step::Over || now < self.due {
            return;
        }
        let late = format!("it has not answered in {} s", RAIL_STEP_MAX.as_secs());
        match self.step {
            Step::Opening | Step::Meeting => {
                let named: Vec<String> =
                    self.waiting.iter().take(RAIL_NAMED_MAX).map(ToString::to_string).collect();
                let more = if self.waiting.len() > RAIL_NAMED_MAX { " and others" } else { "" };
                let words = format!("rank {}{more}: {late}", named.join(", "));
                self.take_back(&words);
            }
            // They will carry out the decision when they learn of it.
            Step::Closing | Step::HandingOver | Step::Over => {
                let late = format!("{late}; `ps` shows what it has");
                let silent = core::mem::take(&mut self.waiting);
                self.refused.extend(silent.into_iter().map(|rank| (rank, Some(late.clone()))));
                self.end(true);
            }
        }
    }

    fn ask(&mut self, now: Instant, step: Step, whom: BTreeSet<Rank>, messages: Vec<Message>) {
        self.step = step;
        self.due = now + RAIL_STEP_MAX;
        let ranks: Vec<Rank> = whom.iter().copied().collect();
        self.waiting = whom;
        if !ranks.is_empty() {
            let report = messages.into_iter().map(|message| Output::Tell { ranks: ranks.clone(), message });
            self.outputs.extend(report);
        }
    }

    fn hear(&mut self, rank: Rank, message: Message) {
        let (number, refused) = match &message {
            Message::RailOpened { number, refused, .. }
            | Message::RailsMet { number, refused }
            | Message::HandedOver { number, refused } => (*number, refused.as_str().to_string()),
            _ => return,
        };
        if number != self.number || !self.waiting.contains(&rank) {
            return;
        }
        match (self.step, message) {
            (Step::Opening, Message::RailOpened { .. }) | (Step::Meeting, Message::RailsMet { .. })
                if !refused.is_empty() =>
            {
                self.refused.insert(rank, Some(refused.clone()));
                self.take_back(&format!("rank {rank} does not: {refused}"));
            }
            (Step::Opening, Message::RailOpened { in_place, ports, .. }) => {
                self.waiting.remove(&rank);
                if in_place {
                    self.in_place.insert(rank);
                } else {
                    // No sender speaks for another rank.
                    self.ports.extend(ports.into_iter().filter(|entry| entry.port.rank() == rank));
                }
            }
            (Step::Meeting, Message::RailsMet { .. }) => drop(self.waiting.remove(&rank)),
            (Step::Closing | Step::HandingOver, Message::HandedOver { .. }) => {
                self.waiting.remove(&rank);
                self.refused.insert(rank, (!refused.is_empty()).then_some(refused));
            }
            _ => {}
        }
    }

    /// Begins the next step when the one before is over.
    fn go_on(&mut self, now: Instant) {
        let undecided = self.sabotage.is_out(Rule::RailsUndecided) && self.step == Step::Meeting;
        if self.step == Step::Over || !self.waiting.is_empty() && !undecided {
            return;
        }
        let (number, all) = (self.number, self.ranks.clone());
        match self.step {
            Step::Opening if self.in_place == self.ranks => {
                let message = Message::HandOver { number, nic: self.nic.clone() };
                self.ask(now, Step::HandingOver, all, vec![message]);
            }
            Step::Opening if !self.in_place.is_empty() => {
                let some = core::mem::take(&mut self.in_place);
                let message = Message::OpenRail { number, nic: self.nic.clone(), anew: true };
                self.ask(now, Step::Opening, some, vec![message]);
            }
            Step::Opening => {
                let ports = core::mem::take(&mut self.ports);
                let mut parts: Vec<Vec<PortEntry>> = ports.chunks(ENTRIES_MAX).map(<[_]>::to_vec).collect();
                if parts.is_empty() {
                    parts.push(Vec::new());
                }
                let parts_last = parts.len() - 1;
                let message = |(at, ports)| Message::MeetRails { number, ports, last: at == parts_last };
                let messages = parts.into_iter().enumerate().map(message).collect();
                self.ask(now, Step::Meeting, all, messages);
            }
            Step::Meeting => {
                self.outputs.push_back(Output::Decided);
                self.ask(now, Step::Closing, all, vec![Message::ChangeRails { number, decided: true }]);
            }
            Step::Closing | Step::HandingOver => return self.end(true),
            Step::Over => return,
        }
        // All may have ended.
        self.go_on(now);
    }

    /// No rank has closed its old rail: all close the new one.
    fn take_back(&mut self, why: &str) {
        let ranks: Vec<Rank> = self.ranks.iter().copied().collect();
        let message = Message::ChangeRails { number: self.number, decided: false };
        if !ranks.is_empty() {
            self.outputs.push_back(Output::Tell { ranks, message });
        }
        self.refuse_others(why);
        self.end(false);
    }

    fn refuse_others(&mut self, why: &str) {
        for rank in &self.ranks {
            self.refused.entry(*rank).or_insert_with(|| Some(why.to_string()));
        }
    }

    /// Processes of this life do nothing any more.
    fn end_with_life(&mut self) {
        let decided = self.step == Step::Closing;
        let why = if decided {
            "its life is over; the next one goes over the new NIC"
        } else {
            "the job went back meanwhile, and its ranks go over the NIC that they had; ask again"
        };
        self.refuse_others(why);
        self.end(decided);
    }

    fn end(&mut self, changed: bool) {
        self.step = Step::Over;
        self.outputs.push_back(Output::Over { changed, refused: core::mem::take(&mut self.refused) });
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use transport::{PortId, RawAddress};

    use super::*;

    const NUMBER: u64 = 3;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn begin() -> RailChange {
        let ranks = (0..3).map(Rank).collect();
        RailChange::new(at(0), NUMBER, NicText::new(&"verbs"), ranks, Sabotage::none())
    }

    fn outputs(change: &mut RailChange) -> Vec<Output> {
        core::iter::from_fn(|| change.poll_output()).collect()
    }

    fn report(ranks: &[u32], message: Message) -> Output {
        Output::Tell { ranks: ranks.iter().copied().map(Rank).collect(), message }
    }

    fn entry(rank: u32) -> PortEntry {
        let place = RawAddress::new(&rank.to_le_bytes()).expect("short");
        PortEntry { port: PortId::of_rank(Rank(rank), 0), rails: vec![place] }
    }

    fn opened(rank: u32) -> Input {
        let message = Message::RailOpened {
            number: NUMBER,
            in_place: false,
            ports: vec![entry(rank)],
            refused: NicText::default(),
        };
        Input::Said { rank: Rank(rank), message }
    }

    fn in_place(rank: u32) -> Input {
        let message = Message::RailOpened {
            number: NUMBER,
            in_place: true,
            ports: Vec::new(),
            refused: NicText::default(),
        };
        Input::Said { rank: Rank(rank), message }
    }

    fn met(rank: u32, refused: &str) -> Input {
        let message = Message::RailsMet { number: NUMBER, refused: NicText::new(&refused) };
        Input::Said { rank: Rank(rank), message }
    }

    fn closed(rank: u32) -> Input {
        let message = Message::HandedOver { number: NUMBER, refused: NicText::default() };
        Input::Said { rank: Rank(rank), message }
    }

    /// All ranks have opened it, and know where the others are.
    fn all_met() -> RailChange {
        let mut change = begin();
        (0..3).for_each(|rank| change.handle(at(1), opened(rank)));
        (0..2).for_each(|rank| change.handle(at(2), met(rank, "")));
        outputs(&mut change);
        change
    }

    fn over(change: &mut RailChange) -> (bool, Vec<String>) {
        match outputs(change).pop() {
            Some(Output::Over { changed, refused }) => {
                assert_eq!((change.poll_timeout(), refused.len()), (None, 3));
                (changed, refused.into_values().map(Option::unwrap_or_default).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    // R29
    #[test]
    fn nobody_closes_anything_before_all_have_met() {
        let mut change = begin();
        let nic = NicText::new(&"verbs");
        let open = Message::OpenRail { number: NUMBER, nic, anew: false };
        assert_eq!(outputs(&mut change), [report(&[0, 1, 2], open)]);
        for rank in [2, 0] {
            change.handle(at(1), opened(rank));
            change.handle(at(1), met(rank, ""));
            assert_eq!(outputs(&mut change), [], "what belongs to a later step does not count in this one");
        }
        change.handle(at(1), opened(1));
        let ports = [2, 0, 1].map(entry).to_vec();
        let meet = Message::MeetRails { number: NUMBER, ports, last: true };
        assert_eq!(outputs(&mut change), [report(&[0, 1, 2], meet)]);
        for rank in [1, 0] {
            change.handle(at(2), met(rank, ""));
            assert_eq!(outputs(&mut change), []);
        }
        change.handle(at(2), met(2, ""));
        let decided = Message::ChangeRails { number: NUMBER, decided: true };
        assert_eq!(outputs(&mut change), [Output::Decided, report(&[0, 1, 2], decided)]);
        (0..3).for_each(|rank| change.handle(at(3), closed(rank)));
        assert_eq!(over(&mut change), (true, vec![String::new(); 3]));
    }

    // R29
    #[test]
    fn one_that_cannot_has_all_take_it_back() {
        let mut change = all_met();
        change.handle(at(3), met(2, "no way to rank 0"));
        let back = Message::ChangeRails { number: NUMBER, decided: false };
        assert_eq!(change.poll_output(), Some(report(&[0, 1, 2], back)));
        let why = "rank 2 does not: no way to rank 0".to_string();
        let expected = vec![why.clone(), why, "no way to rank 0".to_string()];
        assert_eq!(over(&mut change), (false, expected));
        change.handle(at(4), met(2, ""));
        assert_eq!(outputs(&mut change), [], "it is over");
    }

    #[test]
    fn whoever_says_nothing_is_named() {
        let mut change = all_met();
        assert_eq!(change.poll_timeout(), Some(at(1) + RAIL_STEP_MAX));
        change.handle_timeout(at(2));
        assert_eq!(outputs(&mut change), []);
        change.handle_timeout(at(1) + RAIL_STEP_MAX);
        let (changed, refused) = over(&mut change);
        assert!(
            !changed && refused.iter().all(|why| why == "rank 2: it has not answered in 10 s"),
            "{refused:?}"
        );
    }

    // R29
    #[test]
    fn what_is_decided_is_not_taken_back() {
        let mut change = all_met();
        change.handle(at(3), met(2, ""));
        change.handle(at(4), closed(1));
        change.handle(at(4), met(2, "no"));
        change.handle_timeout(at(3) + RAIL_STEP_MAX);
        let (changed, refused) = over(&mut change);
        assert!(changed && refused[1].is_empty() && refused[2].contains("`ps` shows"), "{refused:?}");
    }

    #[test]
    fn a_rank_that_ends_is_not_waited_for() {
        for step in 0..3 {
            let mut change = begin();
            for (at_step, answer) in [opened, |rank| met(rank, ""), closed].into_iter().enumerate() {
                change.handle(at(1), answer(0));
                change.handle(at(1), answer(2));
                if step == at_step {
                    change.handle(at(1), Input::Ended { rank: Rank(1) });
                } else {
                    change.handle(at(1), answer(1));
                }
            }
            let expected = vec![String::new(), "it has ended".to_string(), String::new()];
            assert_eq!(over(&mut change), (true, expected), "in step {step}");
        }
        let mut change = begin();
        (0..3).for_each(|rank| change.handle(at(1), Input::Ended { rank: Rank(rank) }));
        assert!(over(&mut change).0, "nobody is left who could object");
    }

    #[test]
    fn a_life_that_ends_ends_it() {
        let mut change = all_met();
        change.handle(at(3), Input::LifeOver);
        let (changed, refused) = over(&mut change);
        assert!(!changed && refused[0].contains("the NIC that they had"), "{refused:?}");
        let mut change = all_met();
        change.handle(at(3), met(2, ""));
        change.handle(at(3), Input::LifeOver);
        let (changed, refused) = over(&mut change);
        assert!(changed && refused[0].contains("goes over the new NIC"), "{refused:?}");
    }

    #[test]
    fn where_all_keep_their_addresses_each_exchanges_its_driver() {
        let mut change = begin();
        outputs(&mut change);
        (0..3).for_each(|rank| change.handle(at(1), in_place(rank)));
        let message = Message::HandOver { number: NUMBER, nic: NicText::new(&"verbs") };
        assert_eq!(outputs(&mut change), [report(&[0, 1, 2], message)]);
        (0..3).for_each(|rank| change.handle(at(2), closed(rank)));
        assert!(over(&mut change).0);
        // One has to go elsewhere: the others open theirs anew.
        let mut change = begin();
        outputs(&mut change);
        change.handle(at(1), in_place(0));
        change.handle(at(1), opened(1));
        change.handle(at(1), in_place(2));
        let anew = Message::OpenRail { number: NUMBER, nic: NicText::new(&"verbs"), anew: true };
        assert_eq!(outputs(&mut change), [report(&[0, 2], anew)]);
        change.handle(at(2), opened(0));
        change.handle(at(2), opened(2));
        assert!(
            matches!(&outputs(&mut change)[..], [Output::Tell { message: Message::MeetRails { ports, .. }, .. }] if ports.len() == 3)
        );
    }

    #[test]
    fn long_tables_go_in_parts_and_nobody_speaks_for_others() {
        let mut change =
            RailChange::new(at(0), NUMBER, NicText::default(), [Rank(0)].into(), Sabotage::none());
        let ports = (0..=ENTRIES_MAX).map(|_| entry(0)).chain([entry(1)]).collect();
        let message =
            Message::RailOpened { number: NUMBER, in_place: false, ports, refused: NicText::default() };
        outputs(&mut change);
        change.handle(at(1), Input::Said { rank: Rank(0), message });
        let parts: Vec<(usize, bool)> = outputs(&mut change)
            .into_iter()
            .filter_map(|output| match output {
                Output::Tell { message: Message::MeetRails { ports, last, .. }, .. } => {
                    Some((ports.len(), last))
                }
                _ => None,
            })
            .collect();
        assert_eq!(parts, [(ENTRIES_MAX, false), (1, true)]);
    }
}
