//! A session: opened, asked for its rank, brought to its points, finalized.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use ckpt_glue::control::Message as Control;
use ckpt_glue::control::{FaultReport, Source as RequestSource};
use endpoint::Endpoint;
use transport::LinkIndex;

use crate::agent::Agent;
use crate::calls::{NotedCall, Waiting};
use crate::capture::ProgramMemory;
use crate::error::{RegionError, SessionError};
use crate::limits::{FINALIZE_SLICE, REGIONS_MAX, STAND_SLICE};
use crate::message::Request;
use crate::region::{Protect, Region};
use crate::requests::SessionState;

/// Ranks and links, both ways.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    links: Vec<LinkIndex>,
    ranks: BTreeMap<LinkIndex, u32>,
}

impl Peers {
    /// `links` by rank.
    pub(crate) fn new(links: Vec<LinkIndex>) -> Peers {
        let ranks = (0u32..).zip(&links).map(|(rank, link)| (*link, rank)).collect();
        Peers { links, ranks }
    }

    pub(crate) fn link(&self, rank: u32) -> Result<LinkIndex, SessionError> {
        let ranks = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        let link = usize::try_from(rank).ok().and_then(|place| self.links.get(place));
        link.copied().ok_or(SessionError::NoSuchRank { rank, ranks })
    }

    /// `None` for a port that is no rank's first: no peer can be reached there.
    pub(crate) fn rank(&self, link: LinkIndex) -> Option<u32> {
        self.ranks.get(&link).copied()
    }
}

/// One rank of a job.
///
/// A session belongs to one thread at a time; beneath it a helper thread acknowledges and resends while the program
/// computes, another speaks with the keeper, and a third writes images.
pub struct Session {
    pub(crate) agent: Arc<Agent>,
    pub(crate) endpoint: Endpoint,
    pub(crate) peers: Peers,
    pub(crate) state: SessionState,
    /// Regions of the image, until the program has taken them.
    pub(crate) saved: Option<BTreeMap<u32, Vec<u8>>>,
    pub(crate) restored: bool,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Ranks without which the job goes on (R37).
    pub(crate) lost: BTreeSet<u32>,
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Session { rank, ranks, state, .. } = self;
        write!(f, "Session(rank {rank} of {ranks}, {} points passed)", state.points)
    }
}

impl Session {
    /// This rank's number, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ranks
    }

    /// Ranks whose processes have ended, and without which the job goes on: its reaction to process faults is `ignore`. No
    /// checkpoint is taken any more once there is one. A restart brings all ranks back.
    ///
    /// Calls that need such a rank fail with [`SessionError::RankLost`], and requests to and from it end with
    /// [`Outcome::Failed`](crate::Outcome::Failed). Messages of it that had arrived can still be received. A receive
    /// from any rank waits for the others.
    ///
    /// # Errors
    /// None so far.
    pub fn lost_ranks(&mut self) -> Result<&BTreeSet<u32>, SessionError> {
        self.pump()?;
        Ok(&self.lost)
    }

    /// Whether this process is the restart of a saved one.
    #[must_use]
    pub fn restored(&self) -> bool {
        self.restored
    }

    /// Whether the saved process had called [`Session::finalize`]: then all that is left to do is to call it again, so
    /// that the other ranks find this one's messages.
    #[must_use]
    pub fn had_finished(&self) -> bool {
        self.state.finished
    }

    /// Points passed since the program began, over all lives.
    #[must_use]
    pub fn points_passed(&self) -> u64 {
        self.state.points
    }

    /// The open request with that number, as [`Request::number`] gave it, perhaps before a restart.
    #[must_use]
    pub fn request(&self, number: u64) -> Option<Request> {
        let request = Request(number);
        self.state.knows(request).then_some(request)
    }

    /// Registers the state to save, and fills it if this process is the restart of a saved one; `false` when it is a
    /// fresh start. Called before the first message and the first point.
    ///
    /// # Errors
    /// [`RegionError`] when the regions are not the ones of the image, in number or in length, or have no ids of their own.
    pub fn protect(&mut self, state: &mut dyn Protect) -> Result<bool, SessionError> {
        if self.state.finished {
            return Err(SessionError::Finished);
        }
        let regions = state.regions();
        check(&regions)?;
        let Some(mut saved) = self.saved.take() else { return Ok(false) };
        for region in regions {
            let id = region.id();
            let bytes = saved.remove(&id).ok_or(RegionError::Missing { id })?;
            match region {
                Region::Fixed { bytes: place, .. } => {
                    if bytes.len() != place.len() {
                        let (saved, found) = (bytes.len(), place.len());
                        return Err(RegionError::Length { id, saved, found }.into());
                    }
                    place.copy_from_slice(&bytes);
                }
                Region::Growing { bytes: place, .. } => *place = bytes,
            }
        }
        match saved.keys().next() {
            Some(id) => Err(RegionError::Unclaimed { id: *id }.into()),
            None => Ok(true),
        }
    }

    /// A place where the program may be saved: `state` is complete here, and so is every request that is still open.
    /// Costs about a microsecond when no checkpoint is due here, else as long as it takes to copy the state. Messages
    /// that were sent and not received stay in flight, and no rank waits for the others to reach their points.
    ///
    /// Every rank must pass the same number of points, and reaching point `n` must not depend on anything
    /// another rank does after its point `n`. Receive messages sent with [`Session::send`] before a point
    /// before the receiver's same point; only a few short messages may be left over. Send messages that are
    /// received later with [`Session::isend`]: such a request may stay open over a point, and counts as done
    /// after it. A rank that is to be saved while a long message of [`Session::send`] has not been received
    /// waits for that, at most a second; then this checkpoint is given up, and the launcher reports whose
    /// message it was.
    ///
    /// # Errors
    /// [`RegionError::NotRestored`] if a restarted program has not taken its state back.
    pub fn point(&mut self, state: &mut dyn Protect) -> Result<(), SessionError> {
        if self.saved.is_some() {
            return Err(RegionError::NotRestored.into());
        }
        if self.state.finished {
            return Err(SessionError::Finished);
        }
        let entered = Instant::now();
        // Reports of peers about a higher epoch must be known before this point is counted.
        self.pump()?;
        self.state.points += 1;
        let count = self.state.points;
        let mut memory = ProgramMemory { state: &mut self.state, peers: &self.peers, program: state };
        let mut stands = self.agent.point(count, entered, &mut memory);
        while stands {
            self.endpoint.wait(STAND_SLICE);
            self.pump()?;
            let mut memory = ProgramMemory { state: &mut self.state, peers: &self.peers, program: state };
            stands = self.agent.stand(Some(&mut memory));
        }
        Ok(())
    }

    /// Asks for a checkpoint of the whole job; it is taken at a point to come.
    pub fn request_checkpoint(&mut self) {
        self.agent.send(Control::Request { source: RequestSource::Command });
    }

    /// Ends the whole job as failed: every process is killed, nothing is recovered.
    pub fn abort(&mut self, code: u8) -> ! {
        let rank = transport::Rank(self.rank);
        self.agent.send(Control::Fault { report: FaultReport::Aborted { rank, code } });
        loop {
            // The keeper ends this process.
            std::thread::sleep(core::time::Duration::from_secs(1));
        }
    }

    /// Reports that this rank has finished its work and waits until all have; until then it goes on
    /// acknowledging and retransmitting, and can still be saved. A rank that ends without this call counts as
    /// failed.
    ///
    /// # Errors
    /// [`SessionError::Ended`] when the launcher goes away meanwhile.
    pub fn finalize(mut self) -> Result<(), SessionError> {
        self.state.finished = true;
        self.agent.finish(self.state.emit());
        let _noted = NotedCall::begin(&self.agent, Waiting::Finish);
        while !self.agent.released()? {
            self.pump()?;
            self.agent.stand(None);
            self.endpoint.wait(FINALIZE_SLICE);
        }
        Ok(())
    }
}

fn check(regions: &[Region<'_>]) -> Result<(), RegionError> {
    if regions.len() > REGIONS_MAX {
        return Err(RegionError::TooMany { found: regions.len() });
    }
    let mut ids: Vec<u32> = regions.iter().map(Region::id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(RegionError::Twice { id: pair[0] }),
        None => Ok(()),
    }
}
