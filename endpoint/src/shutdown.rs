//! Leaving: an endpoint ends its links and stays until its peers have received their messages.

use core::time::Duration;

use drivers::sync::Ordering;
use transport::port::{FinalCounters, Unsettled};
use transport::{LinkIndex, PortId};

use crate::error::EndpointError;
use crate::gate::Endpoint;
use crate::inner::Completion;

/// How long a peer is silent before a closing endpoint asks its keeper about it, and how often it asks. A peer that lives answers a probe long before.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long an endpoint that leaves stays for its peers.
#[derive(Clone, Copy, Debug)]
pub struct Linger {
    /// A peer that has not been heard for so long is given up.
    pub silence: Duration,
    /// How much longer it stays when everybody has everything, so that a peer whose last acknowledgement was lost gets another; also how often
    /// peers are probed.
    pub quiet: Duration,
    /// When the endpoint first reports the peers for which it stays. It reports again after twice that time, and so on.
    pub warn_after: Duration,
    /// A live peer that does not receive its messages is given up after so long.
    pub most: Duration,
}

/// Questions and reports of a closing endpoint.
pub trait ShutdownHooks {
    /// A completion that has come meanwhile.
    fn completed(&mut self, completion: Completion);

    /// Asked now and then about peers that are waited for and silent: which of them a keeper knows to have closed, and the first frame that each has not
    /// got (R12).
    fn closed(&mut self, silent: &[PortId]) -> Vec<(PortId, u64)>;

    /// It has waited so long, for these peers.
    fn waiting(&mut self, waited: Duration, peers: &[PortId]);
}

impl Endpoint {
    /// Ends all links, whether or not a keeper answers for this port later: makes progress until every peer has everything or
    /// has closed by itself, then a little longer. A peer that waits for its program is waited for, up to [`Linger::most`]; one that is silent is given up
    /// much earlier. Returns the final counters for the keeper of this port, and beside them [`EndpointError::Linger`] or [`EndpointError::Unreceived`]
    /// if peers were given up.
    pub fn leave(
        &self,
        linger: Linger,
        hooks: &mut impl ShutdownHooks,
    ) -> (Vec<FinalCounters>, Result<(), EndpointError>) {
        let Linger { silence, quiet, mut warn_after, most } = linger;
        let started = self.shared.clock.now();
        {
            let mut inner = self.shared.lock();
            for i in 0..inner.port.links() {
                inner.port.close_link(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
            }
        }
        let (mut heard, mut frames) = (started, 0);
        let (mut looked, mut unsettled, mut asked) = (None, Unsettled::default(), None);
        let result = loop {
            while let Some(completion) = self.poll() {
                hooks.completed(completion);
            }
            let now = self.shared.clock.now();
            let mut inner = self.shared.lock();
            let received = inner.port.counters().frames_received;
            if received != frames {
                (heard, frames) = (now, received);
            }
            if looked.is_none_or(|looked| now.since(looked) >= quiet) {
                looked = Some(now);
                // A peer that lives answers probes, so the keeper is seldom asked, and by few.
                if asked.is_none_or(|asked| now.since(asked) >= ASK_EVERY) {
                    asked = Some(now);
                    let silent: Vec<PortId> = inner.port.silent_unsettled(now, ASK_EVERY).collect();
                    // Not under the gate: the answering thread may be about to freeze this port.
                    drop(inner);
                    let closed = hooks.closed(&silent);
                    inner = self.shared.lock();
                    for (peer, expected) in closed {
                        inner.port.peer_has_closed(now, peer, expected);
                    }
                }
                unsettled = inner.port.probe_unsettled(now, silence);
                self.shared.notifying(&mut inner, |inner| inner.transmit(now));
            }
            let waited = now.since(started);
            let given_up = unsettled.heard > 0 && waited >= most;
            if unsettled.heard > 0 && (waited >= warn_after || given_up) {
                while warn_after <= waited {
                    warn_after = (warn_after * 2).max(quiet);
                }
                let peers: Vec<PortId> = inner.port.unsettled().collect();
                drop(inner);
                hooks.waiting(waited, &peers);
            } else {
                drop(inner);
            }
            if given_up {
                break Err(EndpointError::Unreceived { waited, links: unsettled.heard + unsettled.silent });
            }
            if unsettled.heard == 0 && now.since(heard) >= quiet {
                if unsettled.silent == 0 {
                    break Ok(());
                }
                if waited >= silence {
                    break Err(EndpointError::Linger { waited: silence, links: unsettled.silent });
                }
            }
            self.wait(quiet);
        };
        self.shared.closed.store(true, Ordering::Relaxed);
        (self.shared.lock().port.final_counters().collect(), result)
    }
}
