//! One encoding, from the order to its end.
//!
//! Place; report this node's share to the others; when all have reported, window by window; finish, seal. A member that
//! fails informs the others.

use std::time::{Duration, Instant};

use store::GenerationId;
use store::protect::Changes;
use store::record::Content;
use transport::Rank;

use super::{Baseline, Current, EncodeWorker};
use crate::account::{Activity, Watch};
use crate::api::{Event, RequestKind};
use crate::cost::{Conditions, windows};
use crate::encode_pipeline::{EncodePipeline, Out};
use crate::error::ProtectorError;
use crate::limits::{ALIVE_EVERY, LATENCY_ASSUMED, LINK_ASSUMED, LINK_SEEN_BYTES, STUCK_AFTER, WINDOWS_MAX};
use crate::message::{Body, Message, Strips};
use crate::messenger::Messenger;
use crate::reader;
use crate::shape::Shape;
use crate::windows::{Share, Windows, pages_of};
use crate::writer::{self, failed};

/// A member's message about an encoding.
pub(super) enum Early {
    Content {
        generation: GenerationId,
        from: Option<GenerationId>,
        shape: Shape,
        pages: u64,
        share: Share,
        record: Vec<u8>,
    },
    GaveUp {
        generation: GenerationId,
        reason: String,
    },
}

impl Early {
    fn generation(&self) -> GenerationId {
        match self {
            Early::Content { generation, .. } | Early::GaveUp { generation, .. } => *generation,
        }
    }
}

pub(super) struct Encoding {
    pub(super) generation: GenerationId,
    from: Option<GenerationId>,
    since: Baseline,
    /// By member: which pages may have changed, as it says.
    reported: Vec<Option<Share>>,
    /// The same, of those whose records bear them out: nothing is made as large as a mere word says.
    shares: Vec<Option<Share>>,
    /// The choice of the group's first member.
    shape: Option<Shape>,
    /// As this member found them.
    conditions: Option<Conditions>,
    /// Contents of others that are durable here.
    contents_kept: usize,
    pipeline: Option<EncodePipeline>,
    finishing: bool,
    /// Parity, and the checksums of pages, are durable.
    finished: [bool; 2],
    sealing: bool,
    /// Seconds that the reader has computed.
    arithmetic: f64,
    /// When something happened last, and when members were asked whether they live.
    progress: Instant,
    asked_alive: Instant,
    /// Jobs of the reader and the writer that are not done.
    jobs: usize,
    watch: Watch,
}

impl Encoding {
    fn has_reported(&self, member: usize) -> bool {
        self.reported[member].is_some() || self.shares[member].is_some()
    }
}

impl EncodeWorker {
    pub(super) fn protect(
        &mut self,
        generation: GenerationId,
        from: Option<GenerationId>,
        ranks: Vec<Rank>,
    ) -> Result<(), ProtectorError> {
        let node = self.settings.node;
        let members = self.settings.group.members();
        let (life, open) = (generation.life, self.life());
        // The endpoint's nonce is another one each time that it is opened.
        let messenger = self.messenger.as_ref().filter(|messenger| messenger.life().counter == life.counter);
        if !messenger.ok_or(ProtectorError::NotOpen { node, life, open })?.has_met() {
            return Err(ProtectorError::NotMet { node });
        }
        self.attempt += 1;
        let now = Instant::now();
        self.current = Current::Encoding(Box::new(Encoding {
            generation,
            from,
            since: self.since(),
            reported: vec![None; members],
            shares: vec![None; members],
            shape: None,
            conditions: None,
            contents_kept: 0,
            pipeline: None,
            finishing: false,
            finished: [false; 2],
            sealing: false,
            arithmetic: 0.0,
            progress: now,
            asked_alive: now,
            jobs: 1,
            watch: Watch::new(now, members),
        }));
        self.to_writer(writer::Job::Place { attempt: self.attempt, generation, from, ranks });
        Ok(())
    }

    fn encoding(&mut self) -> Option<&mut Encoding> {
        match &mut self.current {
            Current::Encoding(encoding) => Some(encoding),
            _ => None,
        }
    }

    /// Abandons the current encoding; informs the others and the owner.
    pub(super) fn fail(&mut self, error: ProtectorError) {
        let Current::Encoding(encoding) = &mut self.current else { return };
        let generation = encoding.generation;
        let windows = encoding.pipeline.as_ref().map(EncodePipeline::windows);
        let account = encoding.watch.account(Instant::now(), self.settings.group.nodes(), windows);
        self.failed = Some((generation, account));
        // A member that has given up has informed all others.
        if !matches!(error, ProtectorError::PeerGaveUp { .. }) {
            self.say_to_all(generation, &Body::GaveUp { reason: error.to_string() });
        }
        self.to_writer(writer::Job::Drop);
        self.leave(generation);
        self.events.push(failed(RequestKind::Protect, Some(generation), error));
    }

    /// Drops remaining messages of an encoding.
    fn leave(&mut self, generation: GenerationId) {
        self.current = Current::Nothing;
        // End the wait for a limit: later work would wait for it.
        self.works.iter().for_each(|work| work.end(self.attempt));
        self.attempt += 1;
        self.to_reader(reader::Job::Forget);
        self.early.retain(|_, early| early.generation() > generation);
        if let Some(messenger) = &mut self.messenger {
            messenger.forget_strips(generation.epoch.0);
        }
    }

    /// Handles another member's message about an encoding, now or ahead of its time.
    pub(super) fn content(&mut self, member: usize, said: Early) {
        let begun = self.encoding().filter(|encoding| !encoding.has_reported(member));
        let now = begun.is_some_and(|encoding| encoding.generation == said.generation());
        if now && self.is_placed() {
            return self.take_content(member, said);
        }
        if let (Early::GaveUp { generation, reason }, true) = (&said, self.encodes(said.generation())) {
            let (peer, generation, reason) = (self.node(member), *generation, reason.clone());
            return self.fail(ProtectorError::PeerGaveUp { peer, generation, reason });
        }
        self.early.insert(member, said);
    }

    pub(super) fn encodes(&self, generation: GenerationId) -> bool {
        matches!(&self.current, Current::Encoding(encoding) if encoding.generation == generation)
    }

    fn is_placed(&self) -> bool {
        matches!(&self.current, Current::Encoding(encoding) if encoding.shares[self.me].is_some())
    }

    fn take_content(&mut self, member: usize, said: Early) {
        let (peer, attempt) = (self.node(member), self.attempt);
        let cycle_pages = self.settings.group.data_pages();
        let Some(encoding) = self.encoding() else { return };
        let (from, shape, pages, share, record) = match said {
            Early::GaveUp { generation, reason } => {
                return self.fail(ProtectorError::PeerGaveUp { peer, generation, reason });
            }
            Early::Content { from, shape, pages, share, record, .. } => (from, shape, pages, share, record),
        };
        let (generation, ours) = (encoding.generation, encoding.from);
        let upon = |from: Option<GenerationId>| {
            from.map_or_else(|| "as a whole".to_owned(), |from| format!("upon {from}"))
        };
        if from != ours {
            let (theirs, ours) = (upon(from), upon(ours));
            return self.fail(ProtectorError::Disagree { peer, generation, theirs, ours });
        }
        let content = match Content::parse(&record) {
            Ok(content) if (content.generation, content.node) == (generation, peer) => content,
            Ok(_) => return self.nonsense(member, "a record of another node or generation".to_owned()),
            Err(error) => return self.nonsense(member, error.to_string()),
        };
        let cycles: u64 = share.iter().map(|(cycles, _)| cycles).sum();
        if cycles > pages.div_ceil(cycle_pages) || share.iter().any(|(_, pages)| *pages > cycle_pages) {
            return self.nonsense(member, "more pages have changed than there are".to_owned());
        }
        encoding.reported[member] = Some(share);
        encoding.progress = Instant::now();
        encoding.jobs += 2;
        if member == 0 {
            encoding.shape = Some(shape);
        }
        let content = Box::new(content);
        self.to_reader(reader::Job::Check { attempt, member, pages, from, content: content.clone() });
        self.to_writer(writer::Job::Content { attempt, content });
    }

    fn placed(&mut self, content: &Content, changes: Box<Changes>, share: Share) {
        let (me, attempt) = (self.me, self.attempt);
        let pages = changes.pages();
        let conditions = self.conditions(pages, pages_of(&share));
        let shape = self.settings.shape.unwrap_or_else(|| conditions.choose(&self.settings.group));
        let Some(encoding) = self.encoding() else { return };
        encoding.conditions = Some(conditions);
        encoding.jobs -= 1;
        let (generation, from) = (encoding.generation, encoding.from);
        encoding.shares[me] = Some(share.clone());
        encoding.progress = Instant::now();
        if me == 0 {
            encoding.shape = Some(shape);
        }
        self.to_reader(reader::Job::Begin { attempt, changes });
        self.say_to_all(
            generation,
            &Body::Content { from, shape, pages, changed: share, record: content.emit() },
        );
        // Earlier data.
        let early: Vec<usize> = self.early.keys().copied().collect();
        for member in early {
            let is_now = self.early.get(&member).is_some_and(|early| early.generation() == generation);
            if let Some(said) = is_now.then(|| self.early.remove(&member)).flatten() {
                self.take_content(member, said);
            }
        }
    }

    /// The facts known when an encoding begins: the pages that may have changed, limits, and the rate that the last encoding found.
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
    fn conditions(&self, pages: u64, changed: u64) -> Conditions {
        let limits = self.settings.limits;
        let link = limits.link_bytes_per_s.map(|rate| rate as f64);
        let latency = self.messenger.as_ref().and_then(Messenger::latency).unwrap_or(LATENCY_ASSUMED);
        Conditions {
            pages,
            changed,
            link_bytes_per_s: link.or(self.link_seen).unwrap_or(LINK_ASSUMED),
            disk_bytes_per_s: limits.disk_bytes_per_s.map(|rate| rate as f64),
            latency_s: latency.as_secs_f64(),
        }
    }

    pub(super) fn written(&mut self, done: writer::Done) {
        use writer::Done;
        let current = self.attempt;
        match done {
            Done::Abandoned { generation, abandoned } => {
                self.current = Current::Nothing;
                let account = self.failed.take_if(|(failed, _)| *failed == generation);
                let account = account.map(|(_, account)| account);
                self.events.push(match abandoned {
                    Ok(()) => Event::Abandoned { generation, account },
                    Err(error) => failed(RequestKind::Abandon, Some(generation), error),
                });
            }
            Done::Repaired { generation, repaired } => self.repaired(generation, repaired),
            Done::Placed { attempt, content, changes, share } if attempt == current => {
                self.placed(&content, changes, share)
            }
            Done::Failed { attempt, error } if attempt == current => self.fail(error),
            Done::Sealed { attempt } if attempt == current => self.sealed(),
            done => {
                let Some(encoding) = self.encoding() else { return };
                encoding.progress = Instant::now();
                encoding.jobs -= usize::from(done.attempt() == Some(current));
                match (done, &mut encoding.pipeline) {
                    (Done::Content { attempt }, _) if attempt == current => encoding.contents_kept += 1,
                    (Done::Kept { attempt, window }, Some(pipeline)) if attempt == current => {
                        pipeline.kept(window)
                    }
                    (Done::Finished { attempt }, _) if attempt == current => encoding.finished[0] = true,
                    _ => {}
                }
            }
        }
    }

    pub(super) fn read(&mut self, done: reader::Done) {
        use reader::Done;
        let current = self.attempt;
        match done {
            Done::Answered { life, to, message } => {
                self.questions_of[to] -= 1;
                if let Some(messenger) = self.messenger.as_mut().filter(|messenger| messenger.life() == life)
                {
                    messenger.pass(to, message);
                }
            }
            Done::Failed { attempt, error } if attempt == current => self.fail(error),
            done => {
                let Some(encoding) = self.encoding() else { return };
                encoding.progress = Instant::now();
                encoding.jobs -= usize::from(done.attempt() == Some(current));
                match (done, &mut encoding.pipeline) {
                    (Done::Window { attempt, window, strips, arithmetic }, Some(pipeline))
                        if attempt == current =>
                    {
                        encoding.arithmetic += arithmetic;
                        pipeline.own(window, strips);
                    }
                    (Done::Checked { attempt, member }, _) if attempt == current => {
                        encoding.shares[member] = encoding.reported[member].take();
                    }
                    (Done::Ended { attempt }, _) if attempt == current => encoding.finished[1] = true,
                    _ => {}
                }
            }
        }
    }

    pub(super) fn strips(&mut self, from: usize, bytes: &[u8]) {
        let strips = match Strips::parse(bytes) {
            Ok(strips) => strips,
            Err(error) => return self.nonsense(from, error.to_string()),
        };
        let Some(encoding) = self.encoding().filter(|encoding| encoding.generation == strips.generation)
        else {
            return;
        };
        encoding.progress = Instant::now();
        // Only accepted strips are received, and none is accepted before the round has begun.
        let Some(pipeline) = &mut encoding.pipeline else { return };
        if let Err(misplaced) = pipeline.received(from, &strips) {
            self.nonsense(from, misplaced.to_string());
        }
    }

    pub(super) fn sent(&mut self, epoch: u32, window: u64) {
        let Some(encoding) = self.encoding().filter(|encoding| encoding.generation.epoch.0 == epoch) else {
            return;
        };
        encoding.progress = Instant::now();
        if let Some(pipeline) = &mut encoding.pipeline {
            pipeline.sent(window);
        }
    }

    /// Does the next steps of the encoding that are possible.
    pub(super) fn go_on(&mut self) {
        let (attempt, group) = (self.attempt, &self.settings.group);
        let Current::Encoding(encoding) = &mut self.current else { return };
        if encoding.pipeline.is_none()
            && let Some(shape) = encoding.shape
            && let Some(shares) = encoding.shares.iter().map(Option::as_ref).collect::<Option<Vec<&Share>>>()
        {
            let (together, ahead) = windows(shape, group);
            let Some(windows) = Windows::new(&shares, together * group.data_pages()) else {
                let most = shares.iter().enumerate().max_by_key(|(_, share)| pages_of(share));
                let (member, pages) = most.map_or((0, 0), |(member, share)| (member, pages_of(share)));
                let reason =
                    format!("{pages} of its pages have changed, which makes more than {WINDOWS_MAX} windows");
                return self.nonsense(member, reason);
            };
            encoding.pipeline = Some(EncodePipeline::new(shape, group, self.me, windows, ahead));
        }
        let Some(pipeline) = &mut encoding.pipeline else { return self.watch() };
        let (mut to_reader, mut to_writer, mut to_send) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(out) = pipeline.poll() {
            match out {
                Out::Read { window, cycles } => {
                    to_reader.push(reader::Job::Window { attempt, window, cycles });
                }
                Out::Keep { window, strip } => to_writer.push(writer::Job::Keep { attempt, window, strip }),
                Out::Send { to, window, parts } => to_send.push((to, window, parts)),
            }
        }
        let below = pipeline.accepts_below();
        if pipeline.is_done() && !encoding.finishing {
            encoding.finishing = true;
            to_reader.push(reader::Job::End { attempt });
            to_writer.push(writer::Job::Finish { attempt });
        }
        if encoding.finished == [true; 2]
            && encoding.contents_kept + 1 == group.members()
            && !encoding.sealing
        {
            encoding.sealing = true;
            to_writer.push(writer::Job::Seal { attempt });
        }
        let generation = encoding.generation;
        encoding.jobs += to_reader.len() + to_writer.len();
        to_reader.into_iter().for_each(|job| self.to_reader(job));
        to_writer.into_iter().for_each(|job| self.to_writer(job));
        if let Some(messenger) = &mut self.messenger {
            messenger.accept.now = Some((generation.epoch.0, below));
            for (to, window, parts) in to_send {
                messenger.give(to, generation, window, parts);
            }
        }
        self.watch();
    }

    fn sealed(&mut self) {
        let Current::Encoding(encoding) = std::mem::replace(&mut self.current, Current::Nothing) else {
            return;
        };
        let adding =
            encoding.pipeline.as_ref().map_or(Duration::ZERO, EncodePipeline::arithmetic).as_secs_f64();
        let mut statistics = self.statistics(&encoding.since, encoding.arithmetic + adding);
        statistics.shape = encoding.shape;
        if let (Some(shape), Some(conditions)) = (encoding.shape, encoding.conditions) {
            statistics.seconds.predicted = conditions.seconds(shape, &self.settings.group);
        }
        if statistics.sent_bytes >= LINK_SEEN_BYTES && statistics.seconds.network > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
            let seen = statistics.sent_bytes as f64 / statistics.seconds.network;
            self.link_seen = Some(seen);
        }
        self.leave(encoding.generation);
        self.events.push(Event::Protected { generation: encoding.generation, statistics });
    }

    /// Checks that the awaited members are alive.
    fn watch(&mut self) {
        let (now, patience, me) = (Instant::now(), self.settings.patience, self.me);
        let (Current::Encoding(encoding), Some(messenger)) = (&mut self.current, &mut self.messenger) else {
            return;
        };
        let (generation, begun) = (encoding.generation, encoding.since.at);
        let mut awaited = match &encoding.pipeline {
            Some(pipeline) => pipeline.waits_for(),
            None => (0..encoding.shares.len()).filter(|member| !encoding.has_reported(*member)).collect(),
        };
        let windows = encoding.pipeline.as_ref().map(EncodePipeline::windows);
        let what = || match windows {
            Some((window, windows)) => {
                format!("its part of window {window} of {windows} of generation {generation}")
            }
            None => format!("what it has of generation {generation}"),
        };
        awaited.extend((0..encoding.shares.len()).filter(|member| messenger.has_strips_to(*member)));
        awaited.retain(|member| *member != me);
        let lacks = |member: usize| {
            member != me
                && (encoding.pipeline.is_none() && !encoding.has_reported(member)
                    || messenger.has_strips_from(member))
        };
        let sight = Activity {
            own: encoding.jobs > 0,
            limited: messenger.is_limited(),
            from: (0..encoding.shares.len()).map(lacks).collect(),
        };
        encoding.watch.look(now, sight);
        awaited.sort_unstable();
        awaited.dedup();
        let silent = |member: &usize| now.saturating_duration_since(messenger.heard(*member).max(begun));
        if let Some((member, waited)) =
            awaited.iter().map(|member| (*member, silent(member))).find(|(_, waited)| *waited >= patience)
        {
            let (peer, what) = (self.node(member), what());
            return self.fail(ProtectorError::Silent { peer, waited, what });
        }
        let waited = now.saturating_duration_since(encoding.progress);
        if waited >= patience * STUCK_AFTER {
            let awaited = awaited.into_iter().map(|member| self.node(member)).collect();
            return self.fail(ProtectorError::Stuck { awaited, waited, what: what() });
        }
        if now.saturating_duration_since(encoding.asked_alive) >= ALIVE_EVERY.min(patience / 4) {
            encoding.asked_alive = now;
            for member in awaited {
                messenger.say(member, &Message { generation, number: 0, body: Body::Alive });
            }
        }
    }
}
