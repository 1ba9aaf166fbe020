//! Messages to and from the other members in one life: queues, limits, and which members were heard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use endpoint::{Completion, Waiting};
use store::GenerationId;
use store::protect::Strip;
use transport::Life;
use transport::config::RAILS_MAX;
use transport::matching::{Envelope, Space};

use crate::bucket::Bucket;
use crate::limits::{MESSAGE_BYTES_MAX, MESSAGES_UNDER_WAY_MAX, SMALL_BYTES_MAX, WORDS_MAX};
use crate::message::{Message, Strips};
use crate::peer_links::{PeerLinks, STRIPS, Seen, WORDS};

/// A message that is shorter takes as long as the way.
const SHORT_BYTES: usize = 4 << 10;

/// An event.
pub(crate) enum News {
    /// A message other than strips.
    Words { from: usize, bytes: Vec<u8> },
    /// Strips.
    Strips { from: usize, bytes: Vec<u8> },
    /// Strips of a window have been received by their addressee.
    Sent { epoch: u32, window: u64 },
    /// The link to a member cannot be used any more.
    Broken { member: usize, reason: String },
    /// A member has sent a message that nobody can take.
    Nonsense { member: usize, reason: String },
}

impl News {
    fn broken_link(member: usize) -> News {
        News::Broken { member, reason: "its link is broken".to_owned() }
    }

    fn full_queue(member: usize) -> News {
        let reason = format!("it has not taken {WORDS_MAX} messages that wait for it (WORDS_MAX)");
        News::Broken { member, reason }
    }
}

/// Which strips may come in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Accept {
    /// Those of this epoch, of windows below.
    pub(crate) now: Option<(u32, u64)>,
    /// Messages up to this epoch are discarded.
    pub(crate) over: u32,
}

/// The treatment of strips that wait.
#[derive(PartialEq, Eq)]
enum Verdict {
    Take,
    Drop,
    Leave,
}

impl Accept {
    fn verdict(self, envelope: &Envelope) -> Verdict {
        let epoch = u32::try_from(envelope.tag).unwrap_or(0);
        match self.now {
            Some((now, below)) if epoch == now && envelope.data < below => Verdict::Take,
            Some((now, _)) if epoch >= now => Verdict::Leave,
            None if epoch > self.over => Verdict::Leave,
            _ => Verdict::Drop,
        }
    }
}

struct Queued {
    to: usize,
    generation: GenerationId,
    parts: Vec<(u16, u16, Strip)>,
}

struct InFlight {
    to: usize,
    /// When it was sent, if it is so short that only the way counts.
    short_at: Option<Instant>,
    /// Epoch and window of strips.
    strips: Option<(u32, u64)>,
}

pub(crate) struct Messenger {
    links: PeerLinks,
    /// Limits of the link, in each direction.
    out: Option<Bucket>,
    into: Option<Bucket>,
    pub(crate) accept: Accept,
    /// By member.
    words: Vec<VecDeque<Vec<u8>>>,
    /// By window, then as they came.
    strips: BTreeMap<(u64, u64), Queued>,
    going: BTreeMap<u64, InFlight>,
    /// Sender, and whether it is strips.
    coming: BTreeMap<u64, (usize, bool)>,
    /// By member: messages under way.
    strips_to: Vec<usize>,
    strips_from: Vec<usize>,
    words_from: Vec<usize>,
    /// Links over which nothing could be sent.
    broken: Vec<usize>,
    /// Members for which [`WORDS_MAX`] messages wait, and one more was dropped.
    full: BTreeSet<usize>,
    next: u64,
    heard: Vec<Instant>,
    /// The shortest time in which a short message was acknowledged.
    answered_in: Option<Duration>,
    /// Of strips.
    pub(crate) sent_messages: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    looked: Instant,
    busy: Duration,
}

impl Messenger {
    pub(crate) fn new(links: PeerLinks, members: usize, link_bytes_per_s: Option<u64>) -> Messenger {
        let now = Instant::now();
        Messenger {
            links,
            out: link_bytes_per_s.map(Bucket::new),
            into: link_bytes_per_s.map(Bucket::new),
            accept: Accept::default(),
            words: vec![VecDeque::new(); members],
            strips: BTreeMap::new(),
            going: BTreeMap::new(),
            coming: BTreeMap::new(),
            strips_to: vec![0; members],
            strips_from: vec![0; members],
            words_from: vec![0; members],
            broken: Vec::new(),
            full: BTreeSet::new(),
            next: 0,
            heard: vec![now; members],
            answered_in: None,
            sent_messages: 0,
            sent_bytes: 0,
            received_bytes: 0,
            looked: now,
            busy: Duration::ZERO,
        }
    }

    pub(crate) fn links(&mut self) -> &mut PeerLinks {
        &mut self.links
    }

    pub(crate) fn rail_frames(&self) -> [u64; RAILS_MAX] {
        self.links.rail_frames()
    }

    pub(crate) fn rails_lost(&self) -> usize {
        self.links.rails_lost()
    }

    pub(crate) fn life(&self) -> Life {
        self.links.life()
    }

    /// Whether links to all other members are there.
    pub(crate) fn has_met(&self) -> bool {
        self.links.has_met()
    }

    /// When a member was last known to be alive.
    pub(crate) fn heard(&self, member: usize) -> Instant {
        self.heard[member]
    }

    /// A round trip, if one is known. A distant member is asked again before it can have answered, so links know none before much has been sent.
    pub(crate) fn latency(&self) -> Option<Duration> {
        self.links.round_trip().or(self.answered_in)
    }

    /// Whether strips are on their way to a member, or wait for it.
    pub(crate) fn has_strips_to(&self, member: usize) -> bool {
        self.strips_to[member] > 0 || self.strips.values().any(|queued| queued.to == member)
    }

    /// Whether strips are on their way from a member.
    pub(crate) fn has_strips_from(&self, member: usize) -> bool {
        self.strips_from[member] > 0
    }

    /// Whether something waits for the link's limit, here or at its sender.
    pub(crate) fn is_limited(&self) -> bool {
        let full = |bucket: &Option<Bucket>| bucket.as_ref().is_some_and(|bucket| !bucket.wait().is_zero());
        full(&self.into) || full(&self.out) && !(self.strips.is_empty() && self.going.is_empty())
    }

    /// How long something was on its way, or waited for the link.
    pub(crate) fn busy(&self) -> Duration {
        self.busy
    }

    pub(crate) fn say(&mut self, to: usize, message: &Message) {
        self.pass(to, message.emit());
    }

    /// Sends a message that is written already.
    pub(crate) fn pass(&mut self, to: usize, message: Vec<u8>) {
        if self.words[to].len() < WORDS_MAX {
            self.words[to].push_back(message);
        } else {
            self.full.insert(to);
        }
    }

    pub(crate) fn give(
        &mut self,
        to: usize,
        generation: GenerationId,
        window: u64,
        parts: Vec<(u16, u16, Strip)>,
    ) {
        self.next += 1;
        self.strips.insert((window, self.next), Queued { to, generation, parts });
    }

    fn has_words(&self) -> bool {
        self.words.iter().any(|words| !words.is_empty())
    }

    /// Drops unsent strips, and those that arrive later up to this epoch.
    pub(crate) fn forget_strips(&mut self, over: u32) {
        self.strips.clear();
        self.accept = Accept { now: None, over };
    }

    /// Takes messages and completions that have come, and returns the news.
    pub(crate) fn receive(&mut self) -> Vec<News> {
        let now = Instant::now();
        let is_idle = self.going.is_empty() && self.coming.is_empty() && self.strips.is_empty();
        if !is_idle || self.has_words() {
            self.busy += now - self.looked;
        }
        self.looked = now;
        let broken = std::mem::take(&mut self.broken);
        let full = std::mem::take(&mut self.full).into_iter().map(News::full_queue);
        let mut news: Vec<News> = broken.into_iter().map(News::broken_link).chain(full).collect();
        while let Some(completion) = self.links.poll() {
            match completion {
                Completion::Received { context, bytes, buffer: Some(mut buffer), .. } => {
                    let Some((from, strips)) = self.come(context) else { continue };
                    self.heard[from] = now;
                    buffer.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
                    self.received_bytes += bytes;
                    news.push(match strips {
                        true => News::Strips { from, bytes: buffer },
                        false => News::Words { from, bytes: buffer },
                    });
                }
                Completion::SendDone { context, .. } => {
                    let Some(InFlight { to, short_at, strips }) = self.gone(context) else { continue };
                    self.heard[to] = now;
                    let took = short_at.map(|at| now.saturating_duration_since(at));
                    self.answered_in = self.answered_in.into_iter().chain(took).min();
                    if let Some((epoch, window)) = strips {
                        news.push(News::Sent { epoch, window });
                    }
                }
                Completion::SendFailed { context, .. } => {
                    news.extend(self.gone(context).map(|going| News::broken_link(going.to)));
                }
                Completion::ReceiveFailed { context, .. } => {
                    news.extend(self.come(context).map(|(from, _)| News::broken_link(from)));
                }
                _ => {}
            }
        }
        self.admit(&mut news);
        news
    }

    /// Something is not on its way to a member any more.
    fn gone(&mut self, context: u64) -> Option<InFlight> {
        let going = self.going.remove(&context)?;
        self.strips_to[going.to] -= usize::from(going.strips.is_some());
        Some(going)
    }

    /// A message is not on its way from a member any more: returns the sender, and whether it is strips.
    fn come(&mut self, context: u64) -> Option<(usize, bool)> {
        let (from, strips) = self.coming.remove(&context)?;
        let under_way = if strips { &mut self.strips_from } else { &mut self.words_from };
        under_way[from] -= 1;
        Some((from, strips))
    }

    /// Begins to receive waiting messages that may come.
    fn admit(&mut self, news: &mut Vec<News>) {
        let full = |into: &Option<Bucket>| into.as_ref().is_some_and(|into| !into.wait().is_zero());
        for from in 0..self.strips_from.len() {
            while self.words_from[from] < MESSAGES_UNDER_WAY_MAX
                && let Some(envelope) = self.links.waiting(WORDS, from)
                && (envelope.bytes <= SMALL_BYTES_MAX || !full(&self.into))
            {
                if !self.take(from, &envelope, false, news) {
                    break;
                }
            }
            while let Some(envelope) = self.links.waiting(STRIPS, from) {
                match self.accept.verdict(&envelope) {
                    Verdict::Drop => self.links.discard(&envelope),
                    Verdict::Take if self.strips_from[from] < MESSAGES_UNDER_WAY_MAX && !full(&self.into) => {
                        if !self.take(from, &envelope, true, news) {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        }
    }

    /// Whether a message is being received now, or is gone.
    fn take(&mut self, from: usize, envelope: &Envelope, strips: bool, news: &mut Vec<News>) -> bool {
        self.next += 1;
        if envelope.bytes > MESSAGE_BYTES_MAX {
            self.links.discard(envelope);
            let reason =
                format!("a message of {} bytes; at most {MESSAGE_BYTES_MAX} are received", envelope.bytes);
            news.push(News::Nonsense { member: from, reason });
        } else if self.links.receive(envelope, self.next) {
            self.into.as_ref().map(|into| into.take(envelope.bytes));
            self.coming.insert(self.next, (from, strips));
            let under_way = if strips { &mut self.strips_from } else { &mut self.words_from };
            under_way[from] += 1;
        } else {
            return false;
        }
        true
    }

    /// Sends the messages that may be sent.
    pub(crate) fn send(&mut self) {
        let full = |out: &Option<Bucket>| out.as_ref().is_some_and(|out| !out.wait().is_zero());
        for to in 0..self.words.len() {
            while let Some(bytes) = self.words[to].front()
                && self.links.can_send(to)
                && (bytes.len() as u64 <= SMALL_BYTES_MAX || !full(&self.out))
            {
                let bytes = self.words[to].pop_front().expect("it was just looked at");
                self.hand_over(to, bytes, None);
            }
        }
        let waiting: Vec<(u64, u64)> = self.strips.keys().copied().collect();
        for at in waiting {
            if full(&self.out) {
                return;
            }
            let to = self.strips[&at].to;
            if self.strips_to[to] >= MESSAGES_UNDER_WAY_MAX || !self.links.can_send(to) {
                continue;
            }
            let Queued { generation, parts, .. } = self.strips.remove(&at).expect("it is in the queue");
            let bytes = Strips::emit(generation, at.0, &parts);
            self.hand_over(to, bytes, Some((generation.epoch.0, at.0)));
        }
    }

    fn hand_over(&mut self, to: usize, bytes: Vec<u8>, strips: Option<(u32, u64)>) {
        self.next += 1;
        self.out.as_ref().map(|out| out.take(bytes.len() as u64));
        self.sent_bytes += bytes.len() as u64;
        let short_at = (bytes.len() < SHORT_BYTES).then(Instant::now);
        let (space, tag, data) = match strips {
            Some((epoch, window)) => (STRIPS, u64::from(epoch), window),
            None => (WORDS, 0, 0),
        };
        // The link has room, as checked before: if it refuses the message, it is broken.
        if !self.links.send(to, space, tag, data, bytes, self.next) {
            return self.broken.push(to);
        }
        self.strips_to[to] += usize::from(strips.is_some());
        self.sent_messages += u64::from(strips.is_some());
        self.going.insert(self.next, InFlight { to, short_at, strips });
    }

    /// When to look again though nothing happens.
    pub(crate) fn due(&self) -> Option<Duration> {
        if !self.broken.is_empty() || !self.full.is_empty() {
            return Some(Duration::ZERO);
        }
        let out = self.out.as_ref().filter(|_| !self.strips.is_empty() || self.has_words());
        let into = self.into.as_ref().map(Bucket::wait).filter(|wait| !wait.is_zero());
        // A queue that is full for another reason empties with a completion.
        let out = out.map(Bucket::wait).filter(|wait| !wait.is_zero());
        let words = self.has_words().then_some(Duration::from_millis(1));
        [out, into, words].into_iter().flatten().min()
    }

    /// How long until the link's limit would let the next byte through, in both directions.
    pub(crate) fn owed(&self) -> Duration {
        [&self.out, &self.into].into_iter().flatten().map(Bucket::wait).max().unwrap_or_default()
    }

    /// The events that are worth waking up for.
    pub(crate) fn seen(&self) -> impl FnMut(&mut Waiting<'_>) -> bool + use<> {
        let room = self.into.as_ref().is_none_or(|into| into.wait().is_zero());
        let seen = |space: Space, under_way: &[usize]| -> Vec<Seen> {
            let free = (0..under_way.len()).filter(|from| under_way[*from] < MESSAGES_UNDER_WAY_MAX);
            free.filter_map(|from| self.links.seen(space, from)).collect()
        };
        let words = seen(WORDS, &self.words_from);
        let strips = if room { seen(STRIPS, &self.strips_from) } else { Vec::new() };
        let accept = self.accept;
        move |waiting| {
            words.iter().any(|seen| {
                seen.among(waiting).is_some_and(|envelope| room || envelope.bytes <= SMALL_BYTES_MAX)
            }) || strips.iter().any(|seen| {
                seen.among(waiting).is_some_and(|envelope| accept.verdict(&envelope) != Verdict::Leave)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use store::protect::Group;
    use transport::config::AuthLevel;
    use transport::{Epoch, JobId};

    use super::*;
    use crate::api::{Limits, Rail, Settings};
    use crate::message::Body;
    use crate::peer_links::port_of;

    const LIFE: Life = Life { counter: 1, nonce: 2 };

    fn links(node: u32) -> (PeerLinks, Settings) {
        let settings = Settings {
            job: JobId(7),
            key: [1; 16],
            auth: AuthLevel::Header,
            rails: vec![Rail::new(IpAddr::V4(Ipv4Addr::LOCALHOST))],
            node,
            group: Group::new(vec![0, 1], 1).expect("a shape"),
            directory: "unused".into(),
            limits: Limits::default(),
            shape: None,
            patience: Duration::from_secs(10),
        };
        (PeerLinks::open(&settings, LIFE).expect("a socket on this machine"), settings)
    }

    #[test]
    fn a_member_that_takes_nothing_has_a_bounded_number_of_messages_waiting() {
        let mut messenger = Messenger::new(links(0).0, 2, None);
        let generation = GenerationId { life: LIFE, epoch: Epoch(3) };
        let alive = Message { generation, number: 0, body: Body::Alive };
        (0..WORDS_MAX).for_each(|_| messenger.say(1, &alive));
        assert!(messenger.receive().is_empty());
        (0..3).for_each(|_| messenger.say(1, &alive));
        let news = messenger.receive();
        let [News::Broken { member: 1, reason }] = news.as_slice() else { panic!("{} events", news.len()) };
        assert!(reason.contains("WORDS_MAX"), "{reason}");
        assert_eq!(messenger.words[1].len(), WORDS_MAX);
        assert!(messenger.receive().is_empty(), "it is reported once");
    }

    #[test]
    fn a_broken_link_is_reported_and_nothing_waits_for_it() {
        let (mut ours, settings) = links(0);
        let (theirs, _) = links(1);
        ours.meet(&settings, &[(1, theirs.addresses())]).expect("an address");
        let mut messenger = Messenger::new(ours, 2, None);
        let generation = GenerationId { life: LIFE, epoch: Epoch(3) };
        let give = |messenger: &mut Messenger| {
            messenger.say(1, &Message { generation, number: 0, body: Body::Alive });
            messenger.give(1, generation, 0, vec![(0, 0, Strip::default())]);
            messenger.send();
        };
        give(&mut messenger);
        assert!(messenger.has_strips_to(1));
        // Its keeper's report after its end contradicts the messages sent: it claims more than there were.
        messenger.links.endpoint().peer_has_closed(port_of(1), 1000);
        let reported = |messenger: &mut Messenger| {
            let news = messenger.receive();
            let broken = |news: &News| matches!(news, News::Broken { member: 1, reason } if reason == "its link is broken");
            assert!(news.iter().all(broken), "nothing of it has been received");
            news.len()
        };
        // A word and strips, before it broke and after it.
        assert_eq!(reported(&mut messenger), 2);
        give(&mut messenger);
        assert_eq!(messenger.due(), Some(Duration::ZERO));
        assert_eq!(reported(&mut messenger), 2);
        assert!(!messenger.has_strips_to(1) && messenger.going.is_empty());
    }
}
