//! How much each user of the machine has, and gets: decisions, without effects.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use super::refusal::{Limit, Refusal};

/// The time for which lines of the log are counted.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Users that are remembered for their lines alone, before the oldest are forgotten.
const REMEMBERED_MAX: usize = 1024;

/// The most that one user gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Rails.
    pub rails: u32,
    /// MiB of memory for frames, which the kernel pins.
    pub memory_mib: u32,
    /// Connections, those of rails included.
    pub connections: u32,
    /// Lines of the log within a minute.
    pub log_lines: u32,
}

impl Default for Limits {
    /// Enough for a rank on each of 16 queues, which all open at once.
    fn default() -> Limits {
        Limits { rails: 16, memory_mib: 128, connections: 48, log_lines: 60 }
    }
}

#[derive(Default, Debug)]
struct Usage {
    connections: u32,
    rails: u32,
    memory_bytes: usize,
    /// Lines since then.
    log_since: Option<Instant>,
    lines: u32,
    withheld: u32,
}

/// Whether a line of the log is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// After so many that were not.
    Print {
        withheld: u32,
    },
    /// The user's last one within this minute: further ones are withheld.
    Last,
    Withhold,
}

/// Users by their number.
#[derive(Debug)]
pub(super) struct Users {
    limits: Limits,
    users: BTreeMap<u32, Usage>,
}

impl Users {
    pub(super) fn new(limits: Limits) -> Users {
        Users { limits, users: BTreeMap::new() }
    }

    fn of(&self, uid: u32) -> (u32, u32, usize) {
        self.users.get(&uid).map_or((0, 0, 0), |user| (user.connections, user.rails, user.memory_bytes))
    }

    /// A connection more.
    pub(super) fn connect(&mut self, uid: u32) -> Result<(), Refusal> {
        let max = self.limits.connections;
        if self.of(uid).0 >= max {
            return Err(Refusal::Limit { limit: Limit::Connections, max });
        }
        self.users.entry(uid).or_default().connections += 1;
        Ok(())
    }

    pub(super) fn disconnect(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.connections = user.connections.saturating_sub(1);
        }
        self.forget_idle(uid);
    }

    /// Whether a rail more of so much memory is within the limits.
    pub(super) fn permit_rail(&self, uid: u32, memory_bytes: usize) -> Result<(), Refusal> {
        let (_, rails, held) = self.of(uid);
        if rails >= self.limits.rails {
            return Err(Refusal::Limit { limit: Limit::Rails, max: self.limits.rails });
        }
        let max = self.limits.memory_mib;
        let bytes_max = usize::try_from(max).unwrap_or(usize::MAX).saturating_mul(1 << 20);
        if held.saturating_add(memory_bytes) > bytes_max {
            return Err(Refusal::Limit { limit: Limit::Memory, max });
        }
        Ok(())
    }

    pub(super) fn add_rail(&mut self, uid: u32, memory_bytes: usize) {
        let user = self.users.entry(uid).or_default();
        user.rails += 1;
        user.memory_bytes += memory_bytes;
    }

    pub(super) fn remove_rail(&mut self, uid: u32, memory_bytes: usize) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.rails = user.rails.saturating_sub(1);
            user.memory_bytes = user.memory_bytes.saturating_sub(memory_bytes);
        }
    }

    /// Whether a line about this user is printed now.
    pub(super) fn line(&mut self, uid: u32, now: Instant) -> Line {
        let max = self.limits.log_lines.max(1);
        self.make_room(uid, now);
        let user = self.users.entry(uid).or_default();
        if user.log_since.is_none_or(|since| now.saturating_duration_since(since) >= LOG_PERIOD) {
            (user.log_since, user.lines) = (Some(now), 0);
        }
        user.lines = user.lines.saturating_add(1);
        if user.lines > max {
            user.withheld = user.withheld.saturating_add(1);
            return Line::Withhold;
        }
        match core::mem::take(&mut user.withheld) {
            0 if user.lines == max => Line::Last,
            withheld => Line::Print { withheld },
        }
    }

    /// Nothing is remembered of a user that has nothing, and of whom no lines were counted.
    fn forget_idle(&mut self, uid: u32) {
        let is_idle = |user: &Usage| user.connections == 0 && user.rails == 0 && user.log_since.is_none();
        if self.users.get(&uid).is_some_and(is_idle) {
            self.users.remove(&uid);
        }
    }

    /// A process can have many users (those of its user namespace): counted lines of old ones are forgotten.
    fn make_room(&mut self, uid: u32, now: Instant) {
        if self.users.len() < REMEMBERED_MAX || self.users.contains_key(&uid) {
            return;
        }
        let is_recent = |user: &Usage| {
            user.log_since.is_some_and(|since| now.saturating_duration_since(since) < LOG_PERIOD)
        };
        self.users.retain(|_, user| user.connections > 0 || user.rails > 0 || is_recent(user));
        if self.users.len() >= REMEMBERED_MAX {
            self.users.retain(|_, user| user.connections > 0 || user.rails > 0);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_at_its_limits_takes_nothing_from_another() {
        let limits = Limits { rails: 2, memory_mib: 10, connections: 3, log_lines: 60 };
        let mut users = Users::new(limits);
        for _ in 0..3 {
            users.connect(1).expect("within the limit");
        }
        let refused = Refusal::Limit { limit: Limit::Connections, max: 3 };
        assert_eq!(users.connect(1), Err(refused));
        assert_eq!(users.connect(2), Ok(()));
        users.disconnect(1);
        assert_eq!(users.connect(1), Ok(()));
        let mib = 1 << 20;
        assert_eq!(users.permit_rail(1, 11 * mib), Err(Refusal::Limit { limit: Limit::Memory, max: 10 }));
        assert_eq!(users.permit_rail(1, usize::MAX), Err(Refusal::Limit { limit: Limit::Memory, max: 10 }));
        users.add_rail(1, 6 * mib);
        assert_eq!(users.permit_rail(1, 5 * mib), Err(Refusal::Limit { limit: Limit::Memory, max: 10 }));
        assert_eq!(users.permit_rail(1, 4 * mib), Ok(()));
        users.add_rail(1, 4 * mib);
        assert_eq!(users.permit_rail(1, 0), Err(Refusal::Limit { limit: Limit::Rails, max: 2 }));
        assert_eq!(users.permit_rail(2, 10 * mib), Ok(()));
        users.remove_rail(1, 6 * mib);
        assert_eq!(users.permit_rail(1, 6 * mib), Ok(()));
    }

    #[test]
    fn lines_of_one_user_are_bounded_and_counted() {
        let mut users = Users::new(Limits { log_lines: 3, ..Limits::default() });
        let start = Instant::now();
        let print = Line::Print { withheld: 0 };
        let lines: Vec<Line> = (0..6).map(|_| users.line(7, start)).collect();
        assert_eq!(lines, [print, print, Line::Last, Line::Withhold, Line::Withhold, Line::Withhold]);
        assert_eq!(users.line(8, start), print, "another user's");
        assert_eq!(users.line(7, start + LOG_PERIOD), Line::Print { withheld: 3 });
        assert_eq!(users.line(7, start + LOG_PERIOD), print);
    }

    #[test]
    fn a_process_of_many_users_fills_no_memory() {
        let mut users = Users::new(Limits::default());
        let start = Instant::now();
        users.connect(u32::MAX).expect("the first");
        for uid in 0..100_000 {
            users.line(uid, start);
            users.connect(uid).expect("the first");
            users.disconnect(uid);
            assert!(users.len() <= REMEMBERED_MAX + 1);
        }
        assert_eq!(users.of(u32::MAX).0, 1, "a user with a connection stays");
    }
}
