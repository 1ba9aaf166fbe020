//! R29: a rank's part in the change of all to another NIC, at another address.

use ckpt_glue::control::PortEntry;
use ckpt_glue::enrolment::AddressTable;

use super::*;
use crate::limits::{ON_THEIR_WAY_LOOK, ON_THEIR_WAY_MAX};

/// A change that the launcher leads.
#[derive(Debug)]
pub(super) struct Change {
    number: u64,
    request: NicRequest,
    rails: Vec<Beside>,
    /// Where all ports are after the change, on their new rails last.
    places: AddressTable,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Until all have opened theirs, or until all have reported that nothing needs the old one.
    Waiting,
    /// Frames are on their way that only the old rail takes.
    Meeting { until: Instant },
    /// It is decided, and such frames have come up once more.
    Closing { until: Instant },
}

/// A port's new rail beside the one that it had.
struct Beside {
    endpoint: Endpoint,
    old: usize,
    new: usize,
    selection: NicSelection,
}

impl core::fmt::Debug for Beside {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "rail {} beside {}: {}", self.new, self.old, self.selection)
    }
}

impl Beside {
    fn open(endpoint: &Endpoint, request: &NicRequest, bind: IpAddr) -> Result<Beside, Refused> {
        let (old, _) = endpoint.rail_to_others().ok_or(Refused::NoRail)?;
        let udp = UdpConfig::new((bind, 0).into());
        let (driver, selection) = drivers::open_nic(&udp, request).map_err(Refused::Beside)?;
        let new = endpoint.add_rail(driver)?;
        Ok(Beside { endpoint: endpoint.clone(), old, new, selection })
    }

    fn port(&self) -> PortId {
        self.endpoint.with_port(transport::Port::id)
    }

    /// Where the port is after the change: on the new rail last.
    fn entry(&self) -> PortEntry {
        let all = self.endpoint.addresses();
        let stays = |at: &usize| *at != self.old && *at != self.new && all[*at] != RawAddress::NONE;
        let others = (0..all.len()).filter(stays).chain([self.new]);
        PortEntry { port: self.port(), rails: others.map(|at| all[at]).collect() }
    }

    /// Sets the addresses of peers on the new rail that are not set yet.
    fn reach(&self, places: &AddressTable) -> Result<(), Refused> {
        for peer in self.endpoint.unreached(self.new) {
            // A rank without an address has ended, and its keeper answers for it.
            let Some(place) = places.get(&peer).and_then(|rails| rails.last()) else { continue };
            self.endpoint.reach(peer, self.new, place).map_err(|source| Refused::NoWay { peer, source })?;
        }
        Ok(())
    }
}

impl Change {
    pub(super) fn due(&self) -> Option<Instant> {
        // The look is due at once, and then from time to time.
        (self.step != Step::Waiting).then(|| Instant::now() + ON_THEIR_WAY_LOOK)
    }

    /// Bytes of the longest frame on its way that only an old rail takes; 0: there is none.
    fn needed(&self) -> usize {
        self.rails.iter().map(|beside| beside.endpoint.needs_rail(beside.old)).max().unwrap_or(0)
    }

    /// Whether each port that is open has a new rail.
    fn has_all(&self, endpoints: &[Endpoint]) -> bool {
        let known = |endpoint: &Endpoint| {
            let port = endpoint.with_port(transport::Port::id);
            self.rails.iter().any(|beside| beside.port() == port)
        };
        endpoints.iter().all(known)
    }
}

fn words(refused: Option<&Refused>) -> NicText {
    refused.map(NicText::new).unwrap_or_default()
}

impl Nics {
    /// Opens a NIC beside the one that the ports have, unless they can go on over it where they are.
    pub fn open_rail(&mut self, endpoints: &[Endpoint], number: u64, nic: &NicText, anew: bool) -> Message {
        // One that was not ended is of a launcher that has gone on to another.
        self.take_back();
        let opened = nic.as_str().parse().map_err(|unknown: nic::UnknownNic| unknown.to_string());
        let opened = opened.and_then(|choice| {
            let request = NicRequest { choice, ..self.request.clone() };
            let stays = |endpoint| in_place(endpoint, &request.choice, self.bind).is_ok();
            if !anew && endpoints.iter().all(stays) {
                return Ok(None);
            }
            match self.open_beside(endpoints, &request) {
                Ok(rails) => Ok(Some((request, rails))),
                Err(refused) => Err(refused.to_string()),
            }
        });
        let (in_place, ports, refused) = match opened {
            Ok(None) => (true, Vec::new(), NicText::default()),
            Ok(Some((request, rails))) => {
                let ports = rails.iter().map(Beside::entry).collect();
                let places = AddressTable::new();
                self.change = Some(Change { number, request, rails, places, step: Step::Waiting });
                (false, ports, NicText::default())
            }
            Err(refused) => (false, Vec::new(), NicText::new(&refused)),
        };
        Message::RailOpened { number, in_place, ports, refused }
    }

    fn open_beside(&self, endpoints: &[Endpoint], request: &NicRequest) -> Result<Vec<Beside>, Refused> {
        nic::check(request, self.bind).and_then(|()| nic::check_capabilities(request))?;
        let mut rails: Vec<Beside> = Vec::new();
        for endpoint in endpoints {
            match Beside::open(endpoint, request, self.bind) {
                Ok(beside) => rails.push(beside),
                Err(refused) => {
                    rails.iter().for_each(|beside| beside.endpoint.remove_rail(beside.new));
                    return Err(refused);
                }
            }
        }
        Ok(rails)
    }

    /// Where ports of the job are after the change. Returns the answer, if there is one yet; [`Nics::look`] may have it later.
    pub fn meet_rails(&mut self, number: u64, ports: &[PortEntry], last: bool) -> Option<Message> {
        let change = self.change.as_mut().filter(|change| change.number == number)?;
        change.places.extend(ports.iter().map(|entry| (entry.port, entry.rails.clone())));
        if !last {
            return None;
        }
        change.step = Step::Meeting { until: Instant::now() + ON_THEIR_WAY_MAX };
        let reached = change.rails.iter().try_for_each(|beside| beside.reach(&change.places));
        let refused = reached.err()?;
        change.step = Step::Waiting;
        Some(Message::RailsMet { number, refused: words(Some(&refused)) })
    }

    /// Looks whether anything needs an old rail still. Returns the answer to the launcher, if there is one now.
    pub fn look(&mut self, endpoints: &[Endpoint]) -> Option<(Moved, Message)> {
        let change = self.change.as_mut()?;
        let (number, step) = (change.number, change.step);
        let (Step::Meeting { until } | Step::Closing { until }) = step else { return None };
        // Peers that have made contact, or were connected to, since.
        let reached = change.rails.iter().try_for_each(|beside| beside.reach(&change.places));
        let (bytes, is_late) = (change.needed(), Instant::now() >= until);
        if let Step::Closing { .. } = step {
            let change = self.change.take_if(|_| bytes == 0 || is_late)?;
            return Some(self.close_old(endpoints, change, bytes));
        }
        let refused = match reached {
            Err(refused) => Some(refused),
            Ok(()) if !change.has_all(endpoints) => Some(Refused::Opened),
            Ok(()) if bytes == 0 => None,
            Ok(()) if is_late => {
                let nic = change.request.choice.to_string();
                Some(Refused::OnTheirWay { bytes, nic, waited: ON_THEIR_WAY_MAX })
            }
            Ok(()) => return None,
        };
        change.step = Step::Waiting;
        Some((Moved::NOTHING, Message::RailsMet { number, refused: words(refused.as_ref()) }))
    }

    /// The launcher has decided, or has it taken back. [`Nics::look`] has the answer. Returns where all ports are from now on.
    pub fn change_rails(&mut self, number: u64, decided: bool) -> Option<&AddressTable> {
        if !decided && self.change.as_ref().is_some_and(|change| change.number == number) {
            self.take_back();
        }
        let change = self.change.as_mut().filter(|change| change.number == number)?;
        change.step = Step::Closing { until: Instant::now() + ON_THEIR_WAY_MAX };
        // Ports that are opened from now on go over the same.
        self.request = change.request.clone();
        Some(&change.places)
    }

    fn close_old(&mut self, endpoints: &[Endpoint], change: Change, bytes: usize) -> (Moved, Message) {
        let mut moved = Moved::NOTHING;
        for beside in &change.rails {
            beside.endpoint.remove_rail(beside.old);
            moved.selection.get_or_insert(beside.selection.clone());
        }
        // A port opened between the last look and the decision is at an address unknown to others.
        let refused = match (change.has_all(endpoints), bytes) {
            (false, _) => Some(Refused::Opened),
            (true, 0) => None,
            (true, bytes) => {
                let nic = change.request.choice.to_string();
                Some(Refused::OnTheirWay { bytes, nic, waited: ON_THEIR_WAY_MAX })
            }
        };
        (moved, Message::HandedOver { number: change.number, refused: words(refused.as_ref()) })
    }

    /// Closes the rails that were opened beside the old ones.
    fn take_back(&mut self) {
        for beside in self.change.take().iter().flat_map(|change| &change.rails) {
            beside.endpoint.remove_rail(beside.new);
        }
    }
}

#[cfg(test)]
mod tests {
    use drivers::fault::{FaultDriver, FaultSwitch, Faults};
    use drivers::mem::Hub;
    use endpoint::{Completion, EndpointConfig, SendBuffer};
    use transport::{Epoch, JobId, JobKey, Life, LinkIndex, Outgoing, Port, PortConfig, Space};

    use super::*;

    const NUMBER: u64 = 4;
    const LIMIT: Duration = Duration::from_secs(20);

    struct Side {
        endpoint: Endpoint,
        nics: Nics,
        switch: FaultSwitch,
        link: LinkIndex,
    }

    impl Side {
        /// A port whose address is of no kind that UDP knows.
        fn new(rank: u32, hub: &Hub) -> Side {
            let (id, life) = (PortId::of_rank(Rank(rank), 0), Life { counter: 1, nonce: 7 });
            let port = Port::new(PortConfig::new(JobId(5).tag()), id, life, Epoch(0), Some(&JobKey([6; 16])));
            let rail = FaultDriver::new(hub.open().expect("a port"), Faults::NONE);
            let switch = rail.switch();
            let config = EndpointConfig { helper: false, ..EndpointConfig::default() };
            let endpoint = Endpoint::open(port, vec![Box::new(rail)], config).expect("an endpoint");
            let nics = Nics::new(NicRequest::default(), "127.0.0.1".parse().expect("an address"));
            Side { endpoint, nics, switch, link: LinkIndex(0) }
        }

        fn endpoints(&self) -> [Endpoint; 1] {
            [self.endpoint.clone()]
        }

        fn open(&mut self, nic: &str) -> Message {
            let endpoints = self.endpoints();
            self.nics.open_rail(&endpoints, NUMBER, &NicText::new(&nic), false)
        }

        fn opened(&mut self) -> Vec<PortEntry> {
            match self.open("udp") {
                Message::RailOpened { number: NUMBER, in_place: false, ports, refused }
                    if refused.as_str().is_empty() =>
                {
                    ports
                }
                other => panic!("{other:?}"),
            }
        }

        fn look(&mut self) -> Option<(Moved, Message)> {
            let endpoints = self.endpoints();
            self.nics.look(&endpoints)
        }

        fn send(&self, tag: u64) {
            let outgoing = Outgoing { space: Space(0), tag, data: 0, context: 0, silent: false };
            self.endpoint.send(self.link, outgoing, SendBuffer::Copied(&[7; 900])).expect("room");
        }

        fn has(&self, tag: u64) -> bool {
            let pattern = transport::matching::Pattern { space: Space(0), source: None, tag, ignore: 0 };
            self.endpoint.peek(&pattern).is_some()
        }
    }

    fn pair() -> [Side; 2] {
        let hub = Hub::new();
        let mut sides = [0, 1].map(|rank| Side::new(rank, &hub));
        for (at, peer) in [(0, 1), (1, 0)] {
            let addresses = sides[1 - at].endpoint.addresses();
            let link = sides[at].endpoint.connect(PortId::of_rank(Rank(peer), 0), &addresses);
            sides[at].link = link.expect("reachable");
        }
        sides
    }

    fn until(sides: &[Side; 2], what: &str, mut met: impl FnMut() -> bool) {
        let started = Instant::now();
        while !met() {
            assert!(started.elapsed() < LIMIT, "{what}");
            sides.iter().for_each(|side| drop::<Option<Completion>>(side.endpoint.poll()));
        }
    }

    /// Until the answer is there.
    fn looked(sides: &mut [Side; 2], at: usize) -> (Moved, Message) {
        let started = Instant::now();
        loop {
            if let Some(answer) = sides[at].look() {
                return answer;
            }
            assert!(started.elapsed() < LIMIT, "no answer");
            sides.iter().for_each(|side| drop::<Option<Completion>>(side.endpoint.poll()));
        }
    }

    fn none() -> NicText {
        NicText::default()
    }

    // R29
    #[test]
    fn ports_whose_rails_have_died_with_their_addresses_go_on_at_others() {
        let mut sides = pair();
        sides[0].switch.kill();
        sides[0].send(1);
        sides[1].send(2);
        until(&sides, "its death is noticed", || sides[0].endpoint.is_rail_dead(0));
        // The launcher is informed, and again as long as it does not act.
        let now = Instant::now();
        sides[0].nics.note_news(now);
        let endpoints = sides[0].endpoints();
        for wait in [REVIVE_AFTER, REVIVE_AFTER * 3] {
            let moved = sides[0].nics.revive(&endpoints, now + wait).expect("it is due");
            assert!(moved.lost && moved.selection.is_none() && moved.refused.is_none(), "{moved:?}");
        }
        let ports: Vec<PortEntry> = sides.iter_mut().flat_map(Side::opened).collect();
        assert!(sides[0].nics.revive(&endpoints, now + REVIVE_AFTER * 7).is_none(), "help is on its way");
        for at in 0..2 {
            let side = &mut sides[at];
            assert_eq!(side.nics.meet_rails(NUMBER, &ports[..1], false), None);
            assert_eq!(side.nics.meet_rails(NUMBER, &ports[1..], true), None);
            assert!(side.nics.due().is_some(), "it looks by itself");
            let met = Message::RailsMet { number: NUMBER, refused: none() };
            assert_eq!(looked(&mut sides, at), (Moved::NOTHING, met));
        }
        for at in 0..2 {
            let places = sides[at].nics.change_rails(NUMBER, true).expect("it is decided");
            assert_eq!(places.len(), 2);
            let (moved, answer) = looked(&mut sides, at);
            assert_eq!(answer, Message::HandedOver { number: NUMBER, refused: none() });
            assert_eq!(moved.selection.map(|selection| selection.to_string()).as_deref(), Some("udp"));
            assert_eq!(sides[at].nics.request().choice, NicChoice::UDP);
            let (rail, address) = sides[at].endpoint.rail_to_others().expect("the new one");
            assert_eq!((rail, Some(&address)), (1, ports[at].rails.last()));
        }
        until(&sides, "both messages arrive", || sides[1].has(1) && sides[0].has(2));
        assert!(sides[0].nics.revive(&endpoints, now + REVIVE_AFTER * 100).is_none(), "nothing is dead");
    }

    // R29
    #[test]
    fn what_is_taken_back_leaves_all_as_it_was() {
        let mut sides = pair();
        let ports: Vec<PortEntry> = sides.iter_mut().flat_map(Side::opened).collect();
        assert_eq!(sides[0].nics.meet_rails(NUMBER, &ports, true), None);
        // One refuses: its new NIC does not exist.
        let refused = sides[1].open("verbs:none");
        let Message::RailOpened { refused, .. } = refused else { panic!("{refused:?}") };
        assert!(refused.as_str().contains("the NIC verbs:none is not available"), "{refused:?}");
        sides[0].send(1);
        assert!(sides[0].nics.change_rails(NUMBER, false).is_none());
        assert!(sides[0].nics.change_rails(NUMBER, true).is_none(), "it is over");
        for side in &sides {
            assert_eq!(side.endpoint.addresses().iter().filter(|at| **at != RawAddress::NONE).count(), 1);
            assert_eq!((side.nics.due(), &side.nics.request().choice), (None, &NicChoice::Auto));
        }
        until(&sides, "the message arrives", || sides[1].has(1));
    }

    // R29
    #[test]
    fn a_port_that_is_opened_meanwhile_or_has_no_way_has_it_taken_back() {
        let mut sides = pair();
        let mut ports = sides[0].opened();
        let later = Side::new(0, &Hub::new());
        let other = PortId::of_rank(Rank(0), 9);
        assert_eq!(sides[0].nics.meet_rails(NUMBER, &ports, true), None);
        let life = Life { counter: 1, nonce: 7 };
        let port = Port::new(PortConfig::new(JobId(5).tag()), other, life, Epoch(0), Some(&JobKey([6; 16])));
        let rail = Hub::new().open().expect("a port");
        let opened =
            Endpoint::open(port, vec![Box::new(rail)], EndpointConfig::default()).expect("an endpoint");
        let answer = sides[0].nics.look(&[sides[0].endpoint.clone(), opened]).expect("an answer").1;
        let Message::RailsMet { refused, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(refused.as_str(), "a port was opened meanwhile; ask again");
        // An address of a kind that the new rail does not know.
        let place = later.endpoint.addresses();
        ports.push(PortEntry { port: PortId::of_rank(Rank(1), 0), rails: place });
        let answer = sides[0].nics.meet_rails(NUMBER, &ports, true).expect("it is refused");
        let Message::RailsMet { refused, .. } = answer else { panic!("{answer:?}") };
        assert!(refused.as_str().starts_with("it has no route to port"), "{refused:?}");
    }
}
