//! The bare speed of the link, to which encodings are compared.
//!
//! Nodes in a ring, each with an endpoint as its protector's and the same limit. Each sends to its right neighbour while it receives from its left one:
//! nothing is computed, nothing is read or written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use transport::Life;

use crate::api::Settings;
use crate::error::ProtectorError;
use crate::limits::ALONE_BYTES;
use crate::messenger::{Messenger, News};
use crate::peer_links::PeerLinks;

/// The nodes of one group, all in this process.
pub struct BareRing {
    messengers: Vec<Messenger>,
    nodes: Vec<u32>,
    patience: Duration,
}

impl BareRing {
    /// Opens an endpoint for each node of a group, given the settings that their protectors have, and links each with the others.
    ///
    /// # Errors
    /// [`ProtectorError`] if an endpoint cannot be opened, or no link made.
    pub fn open(settings: &[Settings], life: Life) -> Result<BareRing, ProtectorError> {
        let mut messengers = Vec::new();
        let mut addresses = Vec::new();
        for own in settings {
            let links = PeerLinks::open(own, life)?;
            addresses.push((own.node, links.addresses()));
            messengers.push(Messenger::new(links, settings.len(), own.limits.link_bytes_per_s));
        }
        for (messenger, own) in messengers.iter_mut().zip(settings) {
            messenger.links().meet(own, &addresses)?;
        }
        let patience = settings.iter().map(|own| own.patience).max().unwrap_or_default();
        Ok(BareRing { messengers, nodes: settings.iter().map(|own| own.node).collect(), patience })
    }

    /// Each node sends so many bytes. Returns the time until all have received theirs and every link could take the next byte.
    ///
    /// # Errors
    /// [`ProtectorError`] if a link breaks, or nothing comes for as long as a peer is waited for.
    pub fn turn(&mut self, bytes: u64) -> Result<Duration, ProtectorError> {
        let (members, patience, nodes) = (self.messengers.len(), self.patience, &self.nodes);
        let (started, ended) = (Instant::now(), AtomicUsize::new(0));
        let ends = std::thread::scope(|scope| {
            let turns: Vec<_> = (self.messengers.iter_mut().enumerate())
                .map(|(me, messenger)| {
                    let (right, left) = ((me + 1) % members, nodes[(me + members - 1) % members]);
                    let turn = Turn { messenger, right, left, bytes, patience, ended: &ended, members };
                    scope.spawn(move || turn.run())
                })
                .collect();
            turns.into_iter().map(|turn| turn.join().expect("a turn does not panic")).collect::<Vec<_>>()
        });
        let ends = ends.into_iter().collect::<Result<Vec<Instant>, ProtectorError>>()?;
        Ok(ends.into_iter().max().unwrap_or(started) - started)
    }
}

/// One node's part of a turn.
struct Turn<'a> {
    messenger: &'a mut Messenger,
    right: usize,
    /// Its number.
    left: u32,
    bytes: u64,
    patience: Duration,
    /// How many nodes have come to their end.
    ended: &'a AtomicUsize,
    members: usize,
}

impl Turn<'_> {
    /// Until all nodes have come to their end: one that left before could not answer any more. Returns when this one has.
    fn run(self) -> Result<Instant, ProtectorError> {
        let Turn { messenger, right, left, bytes, patience, ended, members } = self;
        let (mut passed, mut received, mut end) = (0, 0, None);
        let sent_before = messenger.sent_bytes;
        let endpoint = messenger.links().endpoint().clone();
        let mut progress = Instant::now();
        loop {
            for news in messenger.receive() {
                match news {
                    News::Words { bytes, .. } => {
                        (received, progress) = (received + bytes.len() as u64, Instant::now());
                    }
                    News::Broken { reason, .. } => {
                        return Err(ProtectorError::Unreachable { peer: left, reason });
                    }
                    News::Nonsense { reason, .. } => {
                        return Err(ProtectorError::Message { peer: left, reason });
                    }
                    News::Strips { .. } | News::Sent { .. } => {}
                }
            }
            // The next message when the one before has left the queue: more in it would only take memory.
            let sent = messenger.sent_bytes - sent_before;
            if passed < bytes && sent == passed {
                let length = (bytes - passed).min(ALONE_BYTES as u64);
                passed += length;
                messenger.pass(right, vec![0; usize::try_from(length).expect("a message is short")]);
            }
            messenger.send();
            let owed = messenger.owed();
            if end.is_none() && received >= bytes && sent == bytes && owed.is_zero() {
                (end, progress) = (Some(Instant::now()), Instant::now());
                ended.fetch_add(1, Ordering::AcqRel);
            }
            match end {
                Some(end) if ended.load(Ordering::Acquire) == members => return Ok(end),
                _ => {}
            }
            let waited = progress.elapsed();
            if waited >= patience {
                let what = format!("the end of {bytes} bytes over a bare link, {received} of them received,");
                return Err(ProtectorError::Silent { peer: left, waited, what });
            }
            let most = Duration::from_millis(1);
            endpoint.wait_for(if owed.is_zero() { most } else { owed.min(most) }, messenger.seen());
        }
    }
}
