//! Messages about peers. No call can return that a peer is silent: it may only be slow, and messages to it stay with us
//! until it answers. The launcher ends the job if the peer has died.

use transport::{Event, LinkIndex, PortId, Silence};

use super::{Engine, State};
use crate::abi::ADDR_NOTAVAIL;
use crate::identity::key_file;
use crate::keeper::keeper;
use crate::log::{complain, note};

impl Engine {
    /// Reports events that no completion and no error number covers.
    pub(super) fn report(&self, state: &mut State, event: &Event) {
        match event {
            Event::Inconsistent { link, peer, peer_expected, oldest_held, next } => {
                complain(format_args!(
                    "{} expects message part {peer_expected}, we hold {oldest_held} to {next}: the link is inconsistent, and nothing goes over it any more",
                    self.name(*peer)
                ));
                self.link_broken(state, *link);
            }
            Event::PeerLost { link, peer } => {
                state.lost.insert(*link);
                note(format_args!("{} has ended, and the job goes on without it", self.name(*peer)));
                self.link_broken(state, *link);
            }
            // It has said that it stands still, and for how long.
            Event::PeerSilent { silence: Silence::Frozen, .. } => {}
            Event::PeerSilent { peer, silence, since, .. } => {
                if let Some(keeper) = keeper() {
                    keeper.report_peer(*peer, Some(*since));
                }
                if *silence != Silence::Gone {
                    return;
                }
                state.silent.insert(*peer);
                let strays = self.strangers();
                let key = key_file().map(|file| format!("the key here is in {}; ", file.display()));
                let key = key.unwrap_or_default();
                complain(format_args!(
                    "{} has not answered for {since:.0?}: it has ended, is stopped, cannot be reached, or has another job's key \
                     ({key}{strays} frames of other jobs were dropped here). Messages to it are kept",
                    self.name(*peer)
                ));
            }
            Event::PeerBack { peer, .. } => {
                if let Some(keeper) = keeper() {
                    keeper.report_peer(*peer, None);
                }
                // The program's user has not heard of a peer that was merely slow.
                if state.silent.remove(peer) {
                    complain(format_args!("{} answers again", self.name(*peer)));
                }
            }
            _ => {}
        }
    }

    /// A peer has refused a request to its memory.
    pub(super) fn note_refusal(&self, link: LinkIndex, failure: u32) {
        let number = i32::try_from(failure).unwrap_or(crate::abi::errno::EOTHER);
        let peer = self.endpoint.with_port(|port| port.peer(link));
        let peer = peer.map_or_else(|| "a peer".to_owned(), |peer| self.name(peer));
        note(format_args!(
            "{peer} has refused a request to its memory: {}",
            crate::cq::words(number).to_string_lossy()
        ));
    }

    /// Frames that were dropped because they were of another job, or not authentic.
    pub(crate) fn strangers(&self) -> u64 {
        self.endpoint.with_port(|port| {
            let counters = port.counters();
            counters.dropped_job + counters.dropped_tag
        })
    }

    /// A peer as its program knows it: its number in the address vector, and its address.
    pub(super) fn name(&self, peer: PortId) -> String {
        match self.vector.number(peer) {
            ADDR_NOTAVAIL => format!("a peer that is in no address vector ({peer})"),
            number => match self.vector.address(number) {
                Some(address) => format!("peer {number} ({address})"),
                None => format!("peer {number}"),
            },
        }
    }
}
