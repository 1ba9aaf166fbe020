//! The thread that talks: to the owner of the protector, to the other members, and to the threads that read and write.

mod encoding;
mod repair;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ckpt_glue::protection::Account;
use crossbeam_channel::{Sender, bounded};
use store::protect::Member;
use store::{Directory, GenerationId, JobDirectory};
use transport::config::RAILS_MAX;
use transport::{Epoch, Life};

use crate::api::{Event, Request, Seconds, Settings, Statistics};
use crate::disk::{Disk, DiskUsage, Meter};
use crate::error::ProtectorError;
use crate::limits::{QUESTIONS_MAX, jobs_of_one, reader_jobs_max, writer_jobs_max};
use crate::mailbox::{EventQueue, Mailbox};
use crate::message::{Body, Message};
use crate::messenger::{Messenger, News};
use crate::peer_links::PeerLinks;
use crate::reader::{self, Reader};
use crate::remote::PeerQuestion;
use crate::usage::Usage;
use crate::work::{UNENDING, Work};
use crate::writer::{self, Writer, failed};
use encoding::{Early, Encoding};
use repair::{Question, Repair};

/// Messages that wait for the encode worker.
pub(crate) enum Task {
    /// The owner's.
    Request(Request),
    /// The writer has done something.
    Written(writer::Done),
    /// The reader has done something.
    Read(reader::Done),
    /// The writer asks another member.
    Ask(PeerQuestion),
    /// The handle is gone.
    End,
}

/// The work under way.
enum Current {
    Nothing,
    /// A generation is given up.
    Abandoning,
    Encoding(Box<Encoding>),
    Repair(Repair),
}

/// Where counters were when something began.
#[derive(Clone, Copy)]
struct Baseline {
    at: Instant,
    disk: DiskUsage,
    processor: f64,
    messages: u64,
    sent: u64,
    received: u64,
    rail_frames: [u64; RAILS_MAX],
    network: Duration,
}

pub(crate) struct EncodeWorker {
    settings: Settings,
    /// This node's place in its group.
    me: usize,
    tasks: Arc<Mailbox<Task>>,
    events: Arc<EventQueue<Event>>,
    disk: Arc<Meter>,
    usage: Arc<Usage>,
    writer: Sender<writer::Job>,
    reader: Sender<reader::Job>,
    threads: Vec<JoinHandle<()>>,
    /// Of the reader, and of the writer.
    works: [Arc<Work>; 2],
    messenger: Option<Messenger>,
    /// Requests whose turn has not come: at most [`crate::REQUESTS_MAX`], as no more are accepted.
    requests: VecDeque<Request>,
    current: Current,
    /// Number of the current or last encoding: it rises with every encoding and every life.
    attempt: u64,
    /// Members' messages about encodings that have not begun here, by member.
    early: BTreeMap<usize, Early>,
    /// Ours: of one repair, which asks each member for its current and its next needs.
    questions: BTreeMap<u64, Question>,
    /// Of other members, by member: how many the reader has not answered.
    questions_of: Vec<usize>,
    asked: u64,
    /// Last time at which awaited members were asked whether they are alive.
    asked_alive: Instant,
    /// Bytes per second that the last long encoding sent.
    link_seen: Option<f64>,
    /// The last encoding that failed, and how far it was.
    failed: Option<(GenerationId, Account)>,
}

impl EncodeWorker {
    pub(crate) fn new(
        settings: Settings,
        me: usize,
        directory: Directory,
        tasks: Arc<Mailbox<Task>>,
        events: Arc<EventQueue<Event>>,
    ) -> Result<EncodeWorker, ProtectorError> {
        let disk = Arc::new(Meter::new(settings.limits.disk_bytes_per_s));
        let usage = Arc::new(Usage::new(settings.limits.cores));
        let works = [Arc::new(Work::default()), Arc::new(Work::default())];
        let [read, write] = &works;
        let member = |work: &Arc<Work>| {
            let disk = Disk::new(directory.clone(), Arc::clone(&disk), Arc::clone(work));
            let directory = JobDirectory::attach(disk, settings.job).on_node(settings.node);
            Member::new(directory, settings.group.clone(), me)
        };
        let mut threads = Vec::new();
        let mut start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            let failed = |error: std::io::Error| ProtectorError::Thread {
                node: settings.node,
                reason: error.to_string(),
            };
            thread.map(|thread| threads.push(thread)).map_err(failed)
        };
        let members = settings.group.members();
        let (reader, jobs) = bounded(reader_jobs_max(members) + members * QUESTIONS_MAX);
        let thread = Reader::new(member(read), Arc::clone(&tasks), Arc::clone(&usage), Arc::clone(read));
        start("stillwire-read", Box::new(move || thread.run(&jobs)))?;
        let (writer, jobs) = bounded(writer_jobs_max(members));
        let thread = Writer::new(member(write), Arc::clone(&tasks), Arc::clone(&usage), Arc::clone(write));
        start("stillwire-write", Box::new(move || thread.run(&jobs)))?;
        Ok(EncodeWorker {
            settings,
            me,
            tasks,
            events,
            disk,
            usage,
            writer,
            reader,
            threads,
            works,
            messenger: None,
            requests: VecDeque::new(),
            current: Current::Nothing,
            attempt: 1,
            early: BTreeMap::new(),
            questions: BTreeMap::new(),
            questions_of: vec![0; members],
            asked: 0,
            asked_alive: Instant::now(),
            link_seen: None,
            failed: None,
        })
    }

    /// Until the handle is gone.
    pub(crate) fn run(mut self) {
        let usage = Arc::clone(&self.usage);
        let mut meter = usage.meter();
        loop {
            while let Some(task) = self.tasks.take() {
                match task {
                    Task::Request(request) => self.enqueue(request),
                    Task::Written(done) => self.written(done),
                    Task::Read(done) => self.read(done),
                    Task::Ask(asking) => self.ask(asking),
                    Task::End => return self.end(),
                }
            }
            let news = self.messenger.as_mut().map(Messenger::receive).unwrap_or_default();
            for news in news {
                self.news(news);
            }
            while matches!(self.current, Current::Nothing) {
                let Some(request) = self.requests.pop_front() else { break };
                self.begin(request);
            }
            self.go_on();
            self.watch_questions();
            let mut timeout = Duration::from_millis(200);
            if let Some(messenger) = &mut self.messenger {
                messenger.send();
                timeout = messenger.due().map_or(timeout, |due| due.min(timeout));
            }
            // It never rests: others wait for its answers. The other threads rest for its processor time as well.
            let _ = meter.count();
            match &self.messenger {
                Some(messenger) => self.tasks.wait(timeout, messenger.seen()),
                None => self.tasks.wait(timeout, |_| false),
            }
        }
    }

    fn end(mut self) {
        self.works.iter().for_each(|work| work.end(UNENDING));
        // The question gets no answer.
        self.tasks.close();
        self.questions.clear();
        drop((self.writer, self.reader));
        for thread in self.threads.drain(..) {
            // It has said why it panicked already.
            let _ = thread.join();
        }
    }

    fn enqueue(&mut self, request: Request) {
        match &request {
            Request::Open { .. } => self.end_all(),
            Request::Abandon { generation } if self.encodes(*generation) => {
                self.fail(ProtectorError::Ended { by: "the generation is abandoned" });
            }
            Request::Protect { .. } => self.end_repairs("a checkpoint goes first"),
            _ => {}
        }
        self.requests.push_back(request);
    }

    /// A new life: the current work ends, and waiting work does not begin.
    fn end_all(&mut self) {
        const BY: &str = "a new life has begun";
        self.works.iter().for_each(|work| work.end(self.attempt));
        match &self.current {
            Current::Encoding(_) => self.fail(ProtectorError::Ended { by: BY }),
            Current::Repair(_) => self.end_repair(BY),
            Current::Nothing | Current::Abandoning => {}
        }
        self.attempt += 1;
        for request in std::mem::take(&mut self.requests) {
            if matches!(request, Request::Abandon { .. }) {
                self.requests.push_back(request);
                continue;
            }
            let (kind, generation) = request.kind();
            self.events.push(failed(kind, generation, ProtectorError::Ended { by: BY }));
        }
    }

    /// Repairs, under way or waiting: they can be done again.
    fn end_repairs(&mut self, by: &'static str) {
        if matches!(self.current, Current::Repair(_)) {
            self.works.iter().for_each(|work| work.end(self.attempt));
            self.end_repair(by);
            self.attempt += 1;
        }
        let is_repair = |request: &Request| matches!(request, Request::Repair { .. });
        let (repairs, rest): (VecDeque<Request>, VecDeque<Request>) =
            std::mem::take(&mut self.requests).into_iter().partition(is_repair);
        self.requests = rest;
        for request in repairs {
            let (kind, generation) = request.kind();
            self.events.push(failed(kind, generation, ProtectorError::Ended { by }));
        }
    }

    /// Whether the threads can take all jobs of one more encoding or repair. If not, they have done nothing for some lives.
    fn has_room(&self) -> Result<(), ProtectorError> {
        let (node, members) = (self.settings.node, self.settings.group.members());
        let writes = self.writer.len() + jobs_of_one(members) > writer_jobs_max(members);
        let reads = self.reader.len() + jobs_of_one(members) > reader_jobs_max(members);
        if writes || reads {
            let waiting = if writes { self.writer.len() } else { self.reader.len() };
            return Err(ProtectorError::QueueFull { node, waiting });
        }
        Ok(())
    }

    fn begin(&mut self, request: Request) {
        let (kind, generation) = request.kind();
        let needs_disk = !matches!(request, Request::Open { .. } | Request::Meet { .. });
        if let Err(error) = if needs_disk { self.has_room() } else { Ok(()) } {
            return self.events.push(failed(kind, generation, error));
        }
        let begun = match request {
            Request::Open { life } => self.open(life).map(Some),
            Request::Meet { life, addresses } => {
                self.meet(life, &addresses).map(|()| Some(Event::Met { life }))
            }
            Request::Protect { generation, from, ranks } => {
                self.protect(generation, from, ranks).map(|()| None)
            }
            Request::Repair { generation } => self.repair(generation).map(|()| None),
            Request::Abandon { generation } => {
                self.current = Current::Abandoning;
                self.to_writer(writer::Job::Abandon(generation));
                Ok(None)
            }
        };
        if let Some(event) = begun.unwrap_or_else(|error| Some(failed(kind, generation, error))) {
            self.events.push(event);
        }
    }

    fn to_writer(&self, job: writer::Job) {
        // It lives as long as this sender. This thread waits for no other: all wait for it.
        let sent = self.writer.try_send(job);
        debug_assert!(sent.is_ok(), "one encoding makes more jobs than jobs_of_one");
    }

    fn to_reader(&self, job: reader::Job) {
        // Likewise.
        let sent = self.reader.try_send(job);
        debug_assert!(sent.is_ok(), "one encoding makes more jobs than jobs_of_one");
    }

    fn open(&mut self, life: Life) -> Result<Event, ProtectorError> {
        self.tasks.sleep_in(None);
        self.messenger = None;
        self.early.clear();
        let links = PeerLinks::open(&self.settings, life)?;
        let (addresses, unusable) = (links.addresses(), links.unusable().to_vec());
        self.tasks.sleep_in(Some(links.endpoint().clone()));
        let members = self.settings.group.members();
        self.messenger = Some(Messenger::new(links, members, self.settings.limits.link_bytes_per_s));
        Ok(Event::Opened { life, addresses, unusable })
    }

    fn meet(&mut self, life: Life, addresses: &[(u32, Vec<u8>)]) -> Result<(), ProtectorError> {
        let (node, open) = (self.settings.node, self.life());
        let messenger = self.messenger.as_mut().filter(|messenger| messenger.life() == life);
        let messenger = messenger.ok_or(ProtectorError::NotOpen { node, life, open })?;
        messenger.links().meet(&self.settings, addresses)?;
        // The first message shows how far away the others are, before an encoding needs to know it.
        self.say_to_all(GenerationId { life, epoch: Epoch(0) }, &Body::Alive);
        Ok(())
    }

    /// The life whose endpoint is open.
    fn life(&self) -> Option<Life> {
        self.messenger.as_ref().map(Messenger::life)
    }

    /// The number of a member's node.
    fn node(&self, member: usize) -> u32 {
        self.settings.group.nodes()[member]
    }

    fn since(&self) -> Baseline {
        let messenger = self.messenger.as_ref();
        Baseline {
            at: Instant::now(),
            disk: self.disk.gone(),
            processor: self.usage.seconds(),
            messages: messenger.map_or(0, |messenger| messenger.sent_messages),
            sent: messenger.map_or(0, |messenger| messenger.sent_bytes),
            received: messenger.map_or(0, |messenger| messenger.received_bytes),
            rail_frames: messenger.map_or([0; RAILS_MAX], Messenger::rail_frames),
            network: messenger.map_or(Duration::ZERO, Messenger::busy),
        }
    }

    fn statistics(&self, since: &Baseline, arithmetic: f64) -> Statistics {
        let now = self.since();
        Statistics {
            shape: None,
            sent_messages: now.messages - since.messages,
            // A rail that has died since then has none.
            rail_frames: std::array::from_fn(|rail| {
                now.rail_frames[rail].saturating_sub(since.rail_frames[rail])
            }),
            rails_lost: self.messenger.as_ref().map_or(0, Messenger::rails_lost),
            sent_bytes: now.sent - since.sent,
            received_bytes: now.received - since.received,
            read_bytes: now.disk.read - since.disk.read,
            written_bytes: now.disk.written - since.disk.written,
            seconds: Seconds {
                network: (now.network - since.network).as_secs_f64(),
                disk: now.disk.seconds - since.disk.seconds,
                arithmetic,
                processor: now.processor - since.processor,
                total: (now.at - since.at).as_secs_f64(),
                predicted: 0.0,
            },
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Words { from, bytes } => match Message::parse(&bytes) {
                Ok(message) => self.heard(from, message),
                Err(error) => self.nonsense(from, error.to_string()),
            },
            News::Strips { from, bytes } => self.strips(from, &bytes),
            News::Sent { epoch, window } => self.sent(epoch, window),
            News::Nonsense { member, reason } => self.nonsense(member, reason),
            News::Broken { member, reason } => {
                self.drop_questions(|question| (question.to == member).then(|| reason.clone()));
                self.fail(ProtectorError::Unreachable { peer: self.node(member), reason });
            }
        }
    }

    fn heard(&mut self, from: usize, message: Message) {
        let Message { generation, number, body } = message;
        match body {
            Body::Content { from: builds_upon, shape, pages, changed, record } => {
                let share = changed;
                self.content(
                    from,
                    Early::Content { generation, from: builds_upon, shape, pages, share, record },
                );
            }
            Body::GaveUp { reason } => self.content(from, Early::GaveUp { generation, reason }),
            Body::Question(question) => self.asked_by(from, generation, number, question),
            Body::Answer(answer) => self.answered(from, generation, number, answer),
            Body::Alive => {}
        }
    }

    /// A member's message cannot be used: the work under way with that member fails, and nothing else.
    fn nonsense(&mut self, from: usize, reason: String) {
        self.drop_questions(|question| (question.to == from).then(|| reason.clone()));
        self.fail(ProtectorError::Message { peer: self.node(from), reason });
    }

    fn say_to_all(&mut self, generation: GenerationId, body: &Body) {
        let (members, me) = (self.settings.group.members(), self.me);
        let message = Message { generation, number: 0, body: body.clone() };
        if let Some(messenger) = &mut self.messenger {
            (0..members).filter(|member| *member != me).for_each(|member| messenger.say(member, &message));
        }
    }
}
