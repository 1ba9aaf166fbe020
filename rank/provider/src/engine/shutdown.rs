//! A closing endpoint waits until its peers have received all accepted messages.

use core::time::Duration;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use endpoint::{Completion, Linger, ShutdownHooks};
use transport::PortId;

use super::Engine;
use crate::boundary::complain;
use crate::keeper::{Keeper, keeper};
use crate::limits::{LINGER_MAX, LINGER_NAMED_MAX, LINGER_WARN_AFTER, QUIET, SILENCE_MAX};

/// Seconds that a closing endpoint stays for live peers that do not receive its messages.
const LINGER_VARIABLE: &str = "STILLWIRE_LINGER_S";

/// Read when an endpoint opens: while one closes, other threads of the program may change the environment.
pub(super) fn linger() -> Linger {
    let most = std::env::var_os(LINGER_VARIABLE).and_then(|text| {
        let seconds = text.to_str().and_then(|text| text.parse().ok());
        if seconds.is_none() {
            complain(format_args!(
                "{LINGER_VARIABLE} is {text:?}, expected whole seconds such as 60; it is taken for {}",
                LINGER_MAX.as_secs()
            ));
        }
        seconds.map(Duration::from_secs)
    });
    Linger {
        silence: SILENCE_MAX,
        quiet: QUIET,
        warn_after: LINGER_WARN_AFTER,
        most: most.unwrap_or(LINGER_MAX),
    }
}

/// An engine whose endpoint leaves.
struct EngineShutdown<'a> {
    engine: &'a Engine,
    keeper: Option<&'static Keeper>,
}

impl ShutdownHooks for EngineShutdown<'_> {
    fn completed(&mut self, completion: Completion) {
        let mut state = self.engine.lock();
        self.engine.handle(&mut state, completion);
        self.engine.flush(&mut state);
    }

    fn closed(&mut self, silent: &[PortId]) -> Vec<(PortId, u64)> {
        let Some(keeper) = self.keeper else { return Vec::new() };
        for peer in silent {
            keeper.ask(*peer, self.engine.port);
        }
        keeper.answers(self.engine.port)
    }

    fn waiting(&mut self, waited: Duration, peers: &[PortId]) {
        let named: Vec<String> =
            peers.iter().take(LINGER_NAMED_MAX).map(|peer| self.engine.name(*peer)).collect();
        let others = match peers.len().saturating_sub(LINGER_NAMED_MAX) {
            0 => String::new(),
            others => format!(" and {others} others"),
        };
        complain(format_args!(
            "closing an endpoint has waited {waited:.0?} for {}{others} to receive their messages; messages that they have not received after {:.0?} are lost ({LINGER_VARIABLE} sets another time)",
            named.join(", "),
            self.engine.linger.most
        ));
    }
}

impl Engine {
    /// Stays until every peer has received its messages, has been silent for `SILENCE_MAX`, or has not received it in
    /// `LINGER_MAX`.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        // The helper looks at it under the lock: work that it has begun is over now.
        drop(self.lock());
        if let Some(periodic_freeze) =
            self.periodic_freeze.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            periodic_freeze.join();
        }
        let keeper = keeper();
        let (counters, left) = self.endpoint.leave(self.linger, &mut EngineShutdown { engine: self, keeper });
        if let Err(error) = left {
            complain(format_args!("{error}"));
        }
        if let Some(keeper) = keeper {
            // Those that were not given up may still ask.
            keeper.port_closed(self.port, &counters);
        }
    }
}
