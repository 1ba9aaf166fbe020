//! What this process waits for, for a person whose job hangs.

use core::time::Duration;
use std::cmp::Reverse;

use ckpt_glue::control::{Found, OwedLink, RankReport, Wait, WaitKind};
use endpoint::Endpoint;
use transport::port::{OpenReceive, OpenSend, SendStage};
use transport::{PortId, Rank};

use crate::limits::{GATE_WAIT_MAX, OPEN_OPS_SEEN_MAX};

/// An operation that is not complete.
#[derive(Clone, Copy, Debug)]
pub enum OpenOp {
    /// A receive.
    Receive(OpenReceive),
    /// A send.
    Send(OpenSend),
}

/// The meaning of an operation to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A message of the program.
    Message,
    /// A part of a read or write of a peer's memory.
    Memory,
    /// The program does not wait for it.
    Service,
}

/// What the program itself is known to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A message, room or the end of others: no operation of a port shows it.
    Shown(Wait),
    /// The operation with this context.
    Operation(u64),
}

/// Facts about a rank that its ports do not show.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The call in which the program stands.
    pub call: Option<Call>,
    /// Grows with every such call.
    pub calls: u64,
    /// A wait beside all others.
    pub beside: Option<Wait>,
}

/// A report about all ports of this process. `purpose`: what an operation is for.
pub fn report(
    rank: Rank,
    endpoints: &[Endpoint],
    known: Known,
    purpose: impl Fn(&OpenOp) -> Purpose,
) -> RankReport {
    let Known { call, calls, beside } = known;
    if endpoints.is_empty() && beside.is_none() {
        return RankReport::of(rank, Found::NotAttached);
    }
    let mut report = RankReport::of(rank, Found::NotAttached);
    let (mut looks, mut begun, mut sleeps) = (0_u64, calls, false);
    for endpoint in endpoints {
        let seen = endpoint.look_at_waits(GATE_WAIT_MAX, |waits| {
            looks = looks.wrapping_add(waits.looks());
            begun = begun.wrapping_add(waits.begun());
            sleeps |= waits.sleeps();
            let receives = waits.receives().map(|(receive, age)| (OpenOp::Receive(receive), age));
            let sends = waits.sends().map(|(send, age)| (OpenOp::Send(send), age));
            for (op, age) in receives.take(OPEN_OPS_SEEN_MAX).chain(sends.take(OPEN_OPS_SEEN_MAX)) {
                let is_awaited = match call {
                    None => true,
                    Some(Call::Operation(context)) => op.context() == context,
                    Some(Call::Shown(_)) => false,
                };
                report.waits.extend(op.wait(purpose(&op), age).filter(|_| is_awaited));
            }
            report.links.extend(waits.links().map(|link| OwedLink {
                peer: link.peer.rank(),
                frames: link.unacknowledged,
                silent_ns: nanos(link.silent),
                is_broken: link.is_broken,
            }));
        });
        if seen.is_none() {
            return RankReport::of(rank, Found::GateHeld { tried_ns: nanos(GATE_WAIT_MAX) });
        }
    }
    if let Some(Call::Shown(wait)) = call {
        report.waits.push(wait);
    }
    report.waits.extend(beside);
    report.waits.sort_by_key(|wait| (Reverse(wait.age_ns), wait.op));
    report.links.sort_by_key(|link| (Reverse(link.is_broken), Reverse(link.silent_ns)));
    report.found = Found::Answered { in_call: call.is_some() || beside.is_some(), sleeps, looks, begun };
    report.bounded()
}

impl OpenOp {
    fn context(&self) -> u64 {
        match self {
            OpenOp::Receive(receive) => receive.context,
            OpenOp::Send(send) => send.context,
        }
    }

    /// `None`: the program does not wait for it.
    fn wait(&self, purpose: Purpose, age: Duration) -> Option<Wait> {
        let age_ns = nanos(age);
        let memory = |kind| if purpose == Purpose::Memory { WaitKind::Memory } else { kind };
        match self {
            _ if purpose == Purpose::Service => None,
            // A buffer for whatever comes.
            OpenOp::Receive(receive) if receive.takes_several && receive.arrived.is_none() => None,
            OpenOp::Receive(receive) => Some(Wait {
                kind: memory(if receive.arrived.is_some() { WaitKind::Arrival } else { WaitKind::Receive }),
                peer: receive.source.map(PortId::rank),
                op: receive.op.0,
                tag: receive.tag,
                ignore: receive.ignore,
                bytes: receive.bytes,
                age_ns,
            }),
            OpenOp::Send(send) => Some(Wait {
                kind: memory(match send.stage {
                    SendStage::Queued => WaitKind::Room,
                    SendStage::Announced => WaitKind::Match,
                    SendStage::InFlight => WaitKind::Delivery,
                }),
                peer: Some(send.peer.rank()),
                op: send.op.0,
                tag: send.tag,
                ignore: 0,
                bytes: send.bytes,
                age_ns,
            }),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use drivers::mem::Hub;
    use endpoint::{EndpointConfig, ReceiveBuffer, SendBuffer};
    use transport::{Epoch, JobId, Life, Outgoing, Port, PortConfig, Receive, Space};

    use super::*;

    const OWN: Rank = Rank(4);
    const PEER: Rank = Rank(9);
    const NOTHING: Known = Known { call: None, calls: 3, beside: None };

    fn endpoint(rank: Rank, hub: &Hub) -> Endpoint {
        let mut config = PortConfig::new(JobId(7).tag());
        config.auth = transport::AuthLevel::Off;
        let life = Life { counter: 1, nonce: 9 };
        let port = Port::new(config, PortId::of_rank(rank, 0), life, Epoch(0), None);
        let settings = EndpointConfig { helper: false, ..EndpointConfig::default() };
        Endpoint::open(port, vec![Box::new(hub.open().expect("a port"))], settings).expect("a rail")
    }

    /// A port with a receive of one message, a buffer for many, a receive in another space, and a send that nobody receives.
    fn busy() -> Endpoint {
        let hub = Hub::new();
        let (own, peer) = (endpoint(OWN, &hub), endpoint(PEER, &hub));
        let link = own.connect(PortId::of_rank(PEER, 0), &peer.addresses()).expect("reachable");
        for (space, context, multi) in [(0, 50, None), (0, 51, Some(8)), (2, 52, None)] {
            let receive = Receive {
                space: Space(space),
                source: (multi.is_none()).then_some(link),
                tag: 7,
                ignore: 0,
                bytes_max: 64,
                context,
                multi,
            };
            own.post_receive(receive, ReceiveBuffer::Owned(vec![0; 64])).expect("room");
        }
        let outgoing = Outgoing { space: Space(0), tag: 8, data: 0, context: 53, silent: false };
        own.send(link, outgoing, SendBuffer::Owned(vec![0; 1 << 20])).expect("room");
        own
    }

    fn purpose(op: &OpenOp) -> Purpose {
        match op {
            OpenOp::Receive(receive) if receive.space == Space(2) => Purpose::Service,
            OpenOp::Receive(_) | OpenOp::Send(_) => Purpose::Message,
        }
    }

    fn waits(report: &RankReport) -> Vec<(WaitKind, Option<Rank>, u64)> {
        report.waits.iter().map(|wait| (wait.kind, wait.peer, wait.tag)).collect()
    }

    #[test]
    fn open_operations_that_the_program_waits_for_are_reported() {
        let own = [busy()];
        let receive = (WaitKind::Receive, Some(PEER), 7);
        let send = (WaitKind::Match, Some(PEER), 8);
        let all = report(OWN, &own, NOTHING, purpose);
        assert_eq!(waits(&all), [receive, send], "neither the buffer nor the other space");
        let Found::Answered { in_call: false, sleeps: false, looks, begun } = all.found else {
            panic!("{:?}", all.found)
        };
        assert_eq!((all.rank, all.more_waits, begun), (OWN, 0, 3 + own[0].with_port(Port::next_op).0));
        // The program looks for messages, and begins an operation.
        let _: Option<endpoint::Completion> = own[0].poll();
        let Found::Answered { looks: later, .. } = report(OWN, &own, NOTHING, purpose).found else {
            panic!("it answers")
        };
        assert!(later > looks);
        // It waits for one of them; or for something that no port knows.
        let one = Known { call: Some(Call::Operation(53)), ..NOTHING };
        let one = report(OWN, &own, one, purpose);
        assert_eq!(waits(&one), [send]);
        assert!(matches!(one.found, Found::Answered { in_call: true, .. }));
        let finish =
            Wait { kind: WaitKind::Finish, peer: None, op: 1, tag: 0, ignore: 0, bytes: 0, age_ns: 5 };
        let shown = Known { call: Some(Call::Shown(finish)), ..NOTHING };
        assert_eq!(report(OWN, &own, shown, purpose).waits, [finish]);
    }

    #[test]
    fn a_port_whose_gate_is_held_is_reported_so() {
        let own = [busy()];
        let frozen = own[0].freeze(Duration::from_secs(1)).expect("its buffers come back");
        assert_eq!(
            report(OWN, &own, NOTHING, purpose),
            RankReport::of(OWN, Found::GateHeld { tried_ns: nanos(GATE_WAIT_MAX) })
        );
        frozen.thaw();
        assert!(matches!(report(OWN, &own, NOTHING, purpose).found, Found::Answered { .. }));
        assert_eq!(report(OWN, &[], NOTHING, purpose).found, Found::NotAttached);
    }
}
