//! Bursts around the points of another program.

use zerocopy::IntoBytes;

use super::{BurstConfig, Progress, check_same_run, receive_burst, send_burst};
use crate::communicator::{Communicator, Fault, Region, State, Tag};

/// Region of the bursts, besides those of the program.
const REGION: u32 = 0xb0b0;

/// A communicator that sends a burst from every rank to every other one just before each point and receives it just
/// after: whole bursts are in flight whenever the program is saved.
pub struct Bursting<'a> {
    inner: &'a mut dyn Communicator,
    config: BurstConfig,
    progress: Progress,
}

/// The program's state and the bursts' own.
struct Both<'a> {
    program: &'a mut dyn State,
    progress: &'a mut Progress,
}

impl State for Both<'_> {
    fn regions(&mut self) -> Vec<Region<'_>> {
        let mut regions = self.program.regions();
        regions.push(Region { id: REGION, bytes: self.progress.as_mut_bytes() });
        regions
    }
}

impl<'a> Bursting<'a> {
    /// Puts bursts of `config.messages` messages around the points; the number of rounds is that of the points.
    pub fn new(inner: &'a mut dyn Communicator, config: BurstConfig) -> Bursting<'a> {
        let (messages, bytes) = (u64::from(config.messages), config.bytes as u64);
        let progress = Progress { messages, bytes, ..Progress::default() };
        Bursting { inner, config, progress }
    }

    /// Burst messages of this rank that came as they had to, in all lives together.
    pub fn received(&self) -> u64 {
        self.progress.received
    }

    fn receive(&mut self) -> Result<(), Fault> {
        self.progress.received += receive_burst(self.inner, &self.config, self.progress.rounds_done)?;
        self.progress.open.end(self.inner)?;
        self.progress.in_flight = 0;
        self.progress.rounds_done += 1;
        Ok(())
    }
}

impl Communicator for Bursting<'_> {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<(), Fault> {
        self.inner.send(to, tag, bytes)
    }

    fn begin_send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<u64, Fault> {
        self.inner.begin_send(to, tag, bytes)
    }

    fn end_send(&mut self, request: u64) -> Result<(), Fault> {
        self.inner.end_send(request)
    }

    fn receive(&mut self, from: u32, tag: Tag) -> Result<Vec<u8>, Fault> {
        self.inner.receive(from, tag)
    }

    fn restore(&mut self, state: &mut dyn State) -> Result<bool, Fault> {
        let mut both = Both { program: state, progress: &mut self.progress };
        let restored = self.inner.restore(&mut both)?;
        if restored {
            check_same_run(self.inner.rank(), &self.config, &self.progress)?;
            self.progress.restarts += 1;
            if self.progress.in_flight != 0 {
                Bursting::receive(self)?;
            }
        }
        Ok(restored)
    }

    fn point(&mut self, state: &mut dyn State) -> Result<(), Fault> {
        send_burst(self.inner, &self.config, self.progress.rounds_done, &mut self.progress.open)?;
        self.progress.in_flight = 1;
        self.inner.point(&mut Both { program: state, progress: &mut self.progress })?;
        Bursting::receive(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is::{self, Class, IsConfig};
    use crate::threads::{Plan, run};

    #[test]
    fn bursts_are_in_flight_at_every_point_and_none_is_lost() {
        let config = IsConfig { class: Class::S, iterations: 3, rounds: 1 };
        let program = |world: &mut crate::threads::ThreadCommunicator| {
            let mut world = Bursting::new(world, BurstConfig { messages: 8, bytes: 40, rounds: 0 });
            let report = is::run(&mut world, &config, &mut |_| {})?;
            Ok((report.verified, world.received()))
        };
        for point in 1..=8 {
            let plan = Plan { cut_at: Some(point), ..Plan::default() };
            let outcome = run(4, &plan, program);
            let cut = outcome.cut.expect("every rank passes the point");
            assert!(cut.messages_in_flight() > 0, "point {point}");
            let again = run(4, &Plan { from: Some(cut), ..Plan::default() }, program);
            // Two points in each of four iterations, the untimed one included; and a restarted sort that was saved at the
            // begin of an iteration comes to that point again.
            let (bursts, more) = (8, point % 2);
            for result in outcome.ranks {
                assert_eq!(result.unwrap(), (true, bursts * 3 * 8), "point {point}");
            }
            for result in again.ranks {
                assert_eq!(result.unwrap(), (true, (bursts + more) * 3 * 8), "point {point}");
            }
        }
    }

    #[test]
    fn the_first_rank_says_when_it_is_enough() {
        let config = IsConfig { class: Class::S, iterations: 2, rounds: 1 };
        let outcome = run(2, &Plan::default(), |world| {
            let mut asked = 0;
            let mut enough = || {
                asked += 1;
                asked == 3
            };
            is::run_until(world, &config, &mut enough, &mut |_| {})
        });
        for report in outcome.ranks {
            let report = report.unwrap();
            assert!(report.verified && report.rounds == 3, "{report}");
        }
    }
}
