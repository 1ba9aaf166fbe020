//! Over which NIC the ports of a rank reach other hosts while it runs: another one by a person's word, and UDP when the rail has died.

mod change;

use core::cell::RefCell;
use core::time::Duration;
use std::net::IpAddr;
use std::time::Instant;

use ckpt_glue::control::{Message, NicText};
use drivers::nic::{self, NicError};
use drivers::udp::{UdpAddress, UdpConfig};
use drivers::{Driver, DriverError, Errno, NicChoice, NicRequest, NicSelection, Operation, RailsError};
use endpoint::{Endpoint, EndpointError};
use nix::errno::Errno as System;
use transport::{PortId, Rank, RawAddress};

use crate::limits::{REVIVALS_MAX, REVIVE_AFTER, REVIVED_FOR};
use change::Change;

/// The driver error that stands for other errors at an endpoint.
const NOTHING: DriverError =
    DriverError::CannotOpen { operation: Operation::FindDevice, errno: Errno(System::ENODEV as i32) };

/// Why a port does not go on over a NIC.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it has no rail to other hosts (--rails)")]
    NoRail,
    #[error(
        "its address over {nic} would differ, and all ranks have to change it together: ask for it without --rank"
    )]
    Elsewhere { nic: String },
    #[error("a port was opened meanwhile; ask again")]
    Opened,
    #[error("it has no route to port {peer} over it: {source}")]
    NoWay { peer: PortId, source: EndpointError },
    #[error(transparent)]
    Beside(RailsError),
    #[error(
        "frames of up to {bytes} bytes are in flight, {nic} does not accept them, and their receivers did not get them within {waited:?}; ask again when fewer are"
    )]
    OnTheirWay { bytes: usize, nic: String, waited: Duration },
    #[error(transparent)]
    Nic(#[from] NicError),
    #[error("{0}; the rail is unchanged")]
    Rails(RailsError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// The outcome of the rank's NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The new NIC of the first port that reports one; `None`: unchanged.
    pub selection: Option<NicSelection>,
    /// The reason why a port does not use the requested NIC.
    pub refused: Option<String>,
    /// A rail is dead that cannot continue at its address: report it to the launcher.
    pub lost: bool,
}

impl Moved {
    const NOTHING: Moved = Moved { selection: None, refused: None, lost: false };

    /// Reports a rail that had died to the user.
    pub fn complain(&self, rank: Rank) {
        if let Some(selection) = &self.selection {
            eprintln!("stillwire: rank {rank}: goes on over {selection}");
        }
        if let Some(refused) = &self.refused {
            eprintln!("stillwire: rank {rank}: the rail that died stays dead: {refused}");
        }
    }
}

/// The NIC of a rank, for all of its ports.
#[derive(Debug)]
pub struct Nics {
    /// The requested NIC, from the start or by a later request of the user.
    request: NicRequest,
    /// Where ports receive whose NIC names no other place.
    bind: IpAddr,
    change: Option<Change>,
    /// Attempts in a row to have dead rails go on, and when the last one was.
    revivals: u32,
    last: Option<Instant>,
    /// When the next one is.
    due: Option<Instant>,
}

impl Nics {
    /// As the rank was started.
    #[must_use]
    pub fn new(request: NicRequest, bind: IpAddr) -> Nics {
        Nics { request, bind, change: None, revivals: 0, last: None, due: None }
    }

    /// The present request.
    #[must_use]
    pub fn request(&self) -> &NicRequest {
        &self.request
    }

    /// Has the ports go on over another NIC, while they run. One that cannot stays where it is.
    pub fn hand_over(&mut self, endpoints: &[Endpoint], choice: NicChoice) -> Moved {
        let request = NicRequest { choice, ..self.request.clone() };
        let mut moved = Moved::NOTHING;
        for endpoint in endpoints {
            let (selection, outcome) = hand_over(endpoint, &request, &self.request, self.bind);
            moved.selection = moved.selection.or(selection);
            if let Err(refused) = outcome {
                moved.refused.get_or_insert(refused.to_string());
            }
        }
        if moved.refused.is_none() {
            self.request = request;
        }
        moved
    }

    /// A rail has died, or lost its helper: it is looked after from now on.
    pub fn note_news(&mut self, now: Instant) {
        if self.last.is_none_or(|last| now.saturating_duration_since(last) > REVIVED_FOR) {
            self.revivals = 0;
        }
        if self.due.is_none() && self.revivals < REVIVALS_MAX {
            self.due = Some(now + self.pause());
        }
    }

    /// The name of a rail whose helper is gone.
    fn without_helper(&self) -> NicSelection {
        let nic = match &self.request.choice {
            named @ NicChoice::Xdp { .. } => named.to_string(),
            _ => "xdp".to_owned(),
        };
        NicSelection { nic, remark: "its nic-helper is gone: frames pass through the kernel".to_owned() }
    }

    /// Before the next attempt.
    fn pause(&self) -> Duration {
        REVIVE_AFTER * 2_u32.saturating_pow(self.revivals)
    }

    /// When [`Nics::revive`] or [`Nics::look`] has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let change = self.change.as_ref().and_then(Change::due);
        self.due.into_iter().chain(change).min()
    }

    /// Has the rails to other hosts that have died go on over UDP, at the addresses that peers know. `None`: not yet, or there is nothing to be done.
    pub fn revive(&mut self, endpoints: &[Endpoint], now: Instant) -> Option<Moved> {
        self.due.take_if(|due| *due <= now)?;
        let (mut moved, mut is_elsewhere, mut has_died) = (Moved::NOTHING, false, false);
        for endpoint in endpoints {
            has_died |= endpoint.rail_to_others().is_some_and(|(rail, _)| endpoint.is_rail_dead(rail));
            match revive(endpoint) {
                Ok(selection) => moved.selection = moved.selection.or(selection),
                Err(Refused::Elsewhere { .. }) => is_elsewhere = true,
                Err(refused) => moved.refused = Some(refused.to_string()),
            }
        }
        let have_lost_helper = endpoints.iter().filter(|endpoint| endpoint.take_lost_helper()).count() > 0;
        if have_lost_helper && moved.selection.is_none() {
            moved.selection = Some(self.without_helper());
        }
        // The change that is under way may give it another one.
        moved.lost = is_elsewhere && self.change.is_none();
        if has_died {
            (self.revivals, self.last) = (self.revivals + 1, Some(now));
        }
        if (moved.refused.is_some() || is_elsewhere) && self.revivals < REVIVALS_MAX {
            // The launcher may have had something else to do, or a rank may have refused.
            self.due = Some(now + self.pause());
            moved.refused = None;
        }
        (moved != Moved::NOTHING).then_some(moved)
    }
}

/// Has a port's rail to other hosts continue over `request`, or as it was. Returns its NIC, if that may be
/// news.
fn hand_over(
    endpoint: &Endpoint,
    request: &NicRequest,
    before: &NicRequest,
    bind: IpAddr,
) -> (Option<NicSelection>, Result<(), Refused>) {
    let (rail, udp) = match in_place(endpoint, &request.choice, bind) {
        Ok(found) => found,
        Err(refused) => return (None, Err(refused)),
    };
    // As far as it can be seen while the rail works.
    if let Err(refused) = nic::check(request, udp.bind.ip()).and_then(|()| nic::check_capabilities(request)) {
        return (None, Err(refused.into()));
    }
    let (selection, failed) = (RefCell::new(None), RefCell::new(None));
    let open = |request: &NicRequest| -> Result<Box<dyn Driver>, DriverError> {
        let (rail, nic) = drivers::open_nic(&udp, request).map_err(|error| {
            let short = shortened(&error);
            failed.replace(Some(error));
            short
        })?;
        selection.replace(Some(nic));
        Ok(rail)
    };
    let by_udp = NicRequest { choice: NicChoice::UDP, ..NicRequest::default() };
    let mut wanted = |_: &RawAddress| open(request);
    let mut again = |_: &RawAddress| {
        let refused = failed.take();
        let opened = open(before).or_else(|_| open(&by_udp));
        failed.replace(refused);
        opened
    };
    let outcome = match endpoint.hand_over(rail, &mut wanted, &mut again) {
        Ok(()) => Ok(()),
        Err(EndpointError::NotHandedOver { .. }) if failed.borrow().is_some() => {
            failed.take().map_or(Ok(()), |error| Err(Refused::Rails(error)))
        }
        Err(error) => Err(error.into()),
    };
    (selection.into_inner(), outcome)
}

/// Has a port's rail to other hosts go on over UDP if it has died.
fn revive(endpoint: &Endpoint) -> Result<Option<NicSelection>, Refused> {
    let Some((rail, address)) = endpoint.rail_to_others().filter(|(rail, _)| endpoint.is_rail_dead(*rail))
    else {
        return Ok(None);
    };
    let udp = udp_at(&address).ok_or(Refused::Elsewhere { nic: NicChoice::UDP.to_string() })?;
    let by_udp = NicRequest { choice: NicChoice::UDP, ..NicRequest::default() };
    let (selection, failed) = (RefCell::new(None), RefCell::new(None));
    let mut open = |_: &RawAddress| -> Result<Box<dyn Driver>, DriverError> {
        let (rail, nic) = drivers::open_nic(&udp, &by_udp).map_err(|error| {
            let short = shortened(&error);
            failed.replace(Some(short));
            short
        })?;
        selection.replace(Some(NicSelection { remark: "the rail before it died".to_owned(), ..nic }));
        Ok(rail)
    };
    // There was nothing before: the error that keeps UDP away keeps the rail dead.
    let mut again = |_: &RawAddress| match failed.take().unwrap_or(NOTHING) {
        // It has been waited for once.
        DriverError::CannotOpen { operation, errno } => Err(DriverError::RailDead { operation, errno }),
        other => Err(other),
    };
    endpoint.hand_over(rail, &mut open, &mut again)?;
    Ok(selection.into_inner())
}

/// The address, if it is one of UDP.
fn udp_at(address: &RawAddress) -> Option<UdpConfig> {
    UdpAddress::try_from(address).ok().map(|UdpAddress(bind)| UdpConfig::new(bind))
}

/// A port's rail to other hosts, with the address at which it would go on over a NIC: the one that it has.
fn in_place(endpoint: &Endpoint, choice: &NicChoice, bind: IpAddr) -> Result<(usize, UdpConfig), Refused> {
    let (rail, address) = endpoint.rail_to_others().ok_or(Refused::NoRail)?;
    let stays = |udp: &UdpConfig| {
        !matches!(choice, NicChoice::Verbs { .. }) && nic::address_for(choice, bind) == udp.bind.ip()
    };
    let udp = udp_at(&address).filter(stays).ok_or(Refused::Elsewhere { nic: choice.to_string() })?;
    Ok((rail, udp))
}

/// The driver error for an endpoint.
fn shortened(error: &RailsError) -> DriverError {
    match error {
        RailsError::Driver(source)
        | RailsError::Nic(
            NicError::Udp(source) | NicError::Xdp { source, .. } | NicError::Verbs { source, .. },
        ) => *source,
        _ => NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use drivers::fault::{FaultDriver, FaultSwitch, Faults};
    use drivers::udp::UdpDriver;
    use endpoint::EndpointConfig;
    use transport::{Epoch, JobId, JobKey, Life, Port, PortConfig, PortId};

    use super::*;

    fn nics() -> Nics {
        Nics::new(NicRequest::default(), "127.0.0.1".parse().expect("an address"))
    }

    /// A port with a rail over UDP that can be killed, and how often it has reported a death.
    fn opened() -> (Endpoint, FaultSwitch, Arc<AtomicU32>) {
        let (id, life) = (PortId::of_rank(Rank(0), 0), Life { counter: 1, nonce: 7 });
        let port = Port::new(PortConfig::new(JobId(5).tag()), id, life, Epoch(0), Some(&JobKey([6; 16])));
        let here = UdpConfig::new("127.0.0.1:0".parse().expect("an address"));
        let rail = FaultDriver::new(UdpDriver::open(&here).expect("a socket"), Faults::NONE);
        let switch = rail.switch();
        let config = EndpointConfig { helper: false, ..EndpointConfig::default() };
        let endpoint = Endpoint::open(port, vec![Box::new(rail)], config).expect("an endpoint");
        let deaths = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&deaths);
        endpoint.on_rail_news(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        (endpoint, switch, deaths)
    }

    fn kill(endpoint: &Endpoint, switch: &FaultSwitch) {
        switch.kill();
        endpoint.progress();
        assert!(endpoint.is_rail_dead(0));
    }

    fn hold(endpoint: &Endpoint) -> UdpSocket {
        let (_, address) = endpoint.rail_to_others().expect("a rail");
        UdpSocket::bind(UdpAddress::try_from(&address).expect("UDP").0).expect("nobody has it")
    }

    #[test]
    fn a_rail_that_has_died_goes_on_at_its_address() {
        let (endpoint, switch, deaths) = opened();
        let mut nics = nics();
        let (now, before) = (Instant::now(), endpoint.addresses());
        assert_eq!(nics.due(), None);
        kill(&endpoint, &switch);
        assert_eq!(deaths.load(Ordering::Relaxed), 1);
        nics.note_news(now);
        assert_eq!(nics.due(), Some(now + REVIVE_AFTER));
        let endpoints = [endpoint.clone()];
        assert_eq!(nics.revive(&endpoints, now), None, "not yet");
        // The address is in use: it is tried again, after twice the time.
        let holder = hold(&endpoint);
        assert_eq!(nics.revive(&endpoints, now + REVIVE_AFTER), None);
        let next = now + REVIVE_AFTER * 3;
        assert_eq!(nics.due(), Some(next));
        drop(holder);
        let moved = nics.revive(&endpoints, next).expect("it goes on");
        let selection = moved.selection.expect("a NIC").to_string();
        assert_eq!((selection.as_str(), moved.refused), ("udp (the rail before it died)", None));
        assert_eq!((endpoint.addresses(), endpoint.is_rail_dead(0), nics.due()), (before, false, None));
        assert_eq!(deaths.load(Ordering::Relaxed), 1, "told once");
    }

    #[test]
    fn a_rail_that_cannot_go_on_is_given_up_and_reported_of() {
        let (endpoint, switch, _) = opened();
        let now = Instant::now();
        kill(&endpoint, &switch);
        let _holder = hold(&endpoint);
        let mut nics = Nics { revivals: REVIVALS_MAX - 1, last: Some(now), ..nics() };
        nics.note_news(now);
        let due = nics.due().expect("one more attempt");
        let refused =
            nics.revive(&[endpoint], due).and_then(|moved| moved.refused).expect("the last attempt");
        assert!(refused.contains("in use"), "{refused}");
        nics.note_news(due);
        assert_eq!(nics.due(), None, "it would be the same again");
        nics.note_news(due + REVIVED_FOR * 2);
        assert!(nics.due().is_some(), "after a long time it may be another matter");
    }
}
