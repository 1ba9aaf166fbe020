//! The peers of the measured port: processes that send bursts, and ports that make contact and fall silent.

use endpoint::{Completion, ReceiveBuffer, SendBuffer};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::error::BenchError;
use crate::pair::{self, Address, Auth, Watchdog};
use crate::testbed::{RailSpec, Wire};
use crate::worker::Parent;

pub(crate) const SENDER: &str = "freeze-sender";
pub(crate) const CROWD: &str = "freeze-crowd";

/// Tag of the bursts.
pub(super) const BURST: u64 = 1;
/// Tag of the only message of a peer that falls silent.
pub(super) const CONTACT: u64 = 2;
/// Tag of bulk that is received as fast as it comes.
pub(super) const MOVING: u64 = 3;
/// Tag of bulk that is announced and never asked for.
pub(super) const HELD: u64 = 4;

/// Messages of a burst (Huo, Ma, Sun 2006).
const BURST_MESSAGES: usize = 32;
pub(super) const BURST_MESSAGE_BYTES: usize = 64;

/// The longest message of [`MOVING`], and how many of them a sender is ready for at one time.
pub(super) const MOVING_BYTES_MAX: usize = 1 << 20;
const MOVING_RECEIVES: usize = 2;

/// Parameters that the parent sends to a sending process.
#[derive(Serialize, Deserialize)]
pub(super) struct Sender {
    pub(super) spec: RailSpec,
    pub(super) port: Address,
}

/// Sends bursts to the measured port until the process is ended, and receives the traffic in the other direction.
pub(crate) fn send(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(Sender { spec, port }) = parent.hear()? else { return Ok(()) };
    let endpoint = pair::open_on(spec.rail_of_a_peer(Wire::Ours)?, spec.rank, Auth::Header)?;
    parent.send(&Address::of(&endpoint))?;
    let link = endpoint.connect(pair::port_id(0), &[port.raw()])?;
    for _ in 0..MOVING_RECEIVES {
        let buffer = ReceiveBuffer::Owned(vec![0; MOVING_BYTES_MAX]);
        endpoint.post_receive(pair::receive(MOVING, MOVING_BYTES_MAX as u64, 0), buffer)?;
    }
    loop {
        let mut under_way = 0;
        for _ in 0..BURST_MESSAGES {
            if !endpoint.can_send(link, BURST_MESSAGE_BYTES) {
                break;
            }
            endpoint.send(link, pair::reported(BURST, 0), SendBuffer::Copied(&[7; BURST_MESSAGE_BYTES]))?;
            under_way += 1;
        }
        while under_way > 0 {
            endpoint.wait(Duration::from_millis(10));
            while let Some(completion) = endpoint.poll() {
                match completion {
                    Completion::SendDone { .. } => under_way -= 1,
                    Completion::Received { buffer: Some(buffer), .. } => {
                        let receive = pair::receive(MOVING, MOVING_BYTES_MAX as u64, 0);
                        endpoint.post_receive(receive, ReceiveBuffer::Owned(buffer))?;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Peers that make contact, one after the other.
#[derive(Serialize, Deserialize)]
pub(super) struct Crowd {
    pub(super) specs: Vec<RailSpec>,
    pub(super) port: Address,
}

/// Sends one message from each rank, and falls silent when it is acknowledged.
pub(crate) fn crowd(parent: &mut Parent) -> Result<(), BenchError> {
    let Some(Crowd { specs, port }) = parent.hear()? else { return Ok(()) };
    for spec in specs {
        let rail = spec.rail_of_a_peer(Wire::Ours)?;
        let endpoint = pair::open_without_helper(rail, spec.rank, Auth::Header)?;
        let link = endpoint.connect(pair::port_id(0), &[port.raw()])?;
        endpoint.send(link, pair::reported(CONTACT, 0), SendBuffer::Copied(&[7; 8]))?;
        let watchdog = Watchdog::new("the measured port to acknowledge a contact");
        while !matches!(endpoint.poll(), Some(Completion::SendDone { .. })) {
            endpoint.wait(Duration::from_millis(1));
            watchdog.check_now()?;
        }
    }
    parent.send(&())
}
