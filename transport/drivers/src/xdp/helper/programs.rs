//! The helper's programs, one at each device in use.
//!
//! Attaching a program resets the link of some NICs. So a program stays attached for a while when its last rail has ended, with nothing to take, and it is
//! attached anew only so often: a user who opens and closes rails resets no link. The users do not choose the mode, for the same reason.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd as _;
use std::time::Instant;

use super::refusal::Refusal;
use crate::error::{Errno, Operation};
use crate::limits::{XDP_HELPER_ATTACHES_MAX, XDP_HELPER_ATTACHES_PERIOD};
use crate::xdp::program::{self, Destination, Link};
use crate::xdp::{Attach, open, program_at};

struct Attached {
    link: Link,
    attach: Attach,
    /// Since when it has had nothing to take.
    idle: Option<Instant>,
}

/// Programs by the number of their device.
pub(super) struct Programs {
    attached: BTreeMap<u32, Attached>,
    attaches: Attaches,
    /// Whether programs are attached in the kernel's receive path.
    generic: bool,
    /// How long one stays attached that takes nothing.
    detach_after: Duration,
}

impl Programs {
    pub(super) fn new(generic: bool, detach_after: Duration) -> Programs {
        Programs { attached: BTreeMap::new(), attaches: Attaches::default(), generic, detach_after }
    }

    /// The way in which rails at the device are attached; `None`: it is not known before.
    pub(super) fn mode(&self, interface: u32) -> Option<Attach> {
        let attached = self.attached.get(&interface).map(|attached| attached.attach);
        attached.or(self.generic.then_some(Attach::Generic))
    }

    /// Has a device run the program for these rails. With `in_parts` it sees frames whose bytes do not lie in one piece.
    pub(super) fn run(
        &mut self,
        interface: u32,
        rails: &[Destination<'_>],
        in_parts: bool,
    ) -> Result<Attach, Refusal> {
        let failed = |operation| move |errno| Refusal::Failed { operation, errno };
        let idle = rails.is_empty().then(Instant::now);
        let program = program::load(rails, in_parts).map_err(failed(Operation::LoadProgram))?;
        if let Some(attached) = self.attached.get_mut(&interface) {
            match attached.link.replace(program.as_fd()) {
                Ok(()) => {
                    attached.idle = idle;
                    return Ok(attached.attach);
                }
                // Somebody has detached it by force.
                Err(Errno(libc::ENOLINK)) => drop(self.attached.remove(&interface)),
                Err(errno) => return Err(failed(Operation::AttachProgram)(errno)),
            }
        }
        if let Some((id, name)) = program_at::program_at(interface).map_err(failed(Operation::AskRoutes))? {
            return Err(Refusal::Program { id, name });
        }
        self.attaches.count(interface, Instant::now())?;
        let asked = self.generic.then_some(Attach::Generic);
        let (link, attach) =
            open::attach_once(&program, interface, asked).map_err(failed(Operation::AttachProgram))?;
        self.attached.insert(interface, Attached { link, attach, idle });
        Ok(attach)
    }

    /// Detaches programs that have taken nothing for long.
    pub(super) fn detach_idle(&mut self, now: Instant) {
        let after = self.detach_after;
        let is_over = |since: Instant| now.saturating_duration_since(since) >= after;
        self.attached.retain(|_, attached| !attached.idle.is_some_and(is_over));
    }

    /// Whether one is attached that may be detached later.
    pub(super) fn any_idle(&self) -> bool {
        self.attached.values().any(|attached| attached.idle.is_some())
    }
}

/// When programs were attached, by device.
#[derive(Default, Debug)]
struct Attaches(BTreeMap<u32, VecDeque<Instant>>);

impl Attaches {
    /// One more, also if it fails then.
    fn count(&mut self, interface: u32, now: Instant) -> Result<(), Refusal> {
        let recent = |at: &Instant| now.saturating_duration_since(*at) < XDP_HELPER_ATTACHES_PERIOD;
        // Numbers of devices that are gone come back no more.
        self.0.retain(|_, attaches| attaches.back().is_some_and(recent));
        let attaches = self.0.entry(interface).or_default();
        attaches.retain(recent);
        if attaches.len() >= XDP_HELPER_ATTACHES_MAX {
            return Err(Refusal::Attaches { times: u32::try_from(attaches.len()).unwrap_or(u32::MAX) });
        }
        attaches.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attaching_is_bounded_for_each_device() {
        let mut attaches = Attaches::default();
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        for number in 0..XDP_HELPER_ATTACHES_MAX {
            let at = start + minute * u32::try_from(number).expect("few");
            assert_eq!(attaches.count(3, at), Ok(()));
        }
        let late = start + XDP_HELPER_ATTACHES_PERIOD - Duration::from_secs(1);
        let times = u32::try_from(XDP_HELPER_ATTACHES_MAX).expect("few");
        assert_eq!(attaches.count(3, late), Err(Refusal::Attaches { times }));
        assert_eq!(attaches.count(4, late), Ok(()), "another device");
        assert_eq!(attaches.count(3, start + XDP_HELPER_ATTACHES_PERIOD), Ok(()));
        assert_eq!(
            attaches.count(3, start + XDP_HELPER_ATTACHES_PERIOD),
            Err(Refusal::Attaches { times }),
            "the second of them is as old only a minute later"
        );
    }
}
