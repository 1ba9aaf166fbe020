//! The thread that talks: to the owner of the protector, to the other members, and to the threads that read and write.

mod encoding;
mod repair;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use store::protect::Member;
use store::{Directory, GenerationId, JobDirectory};
use transport::Life;

use crate::api::{Asked, Event, Order, Seconds, Settings, Statistics};
use crate::disk::{Disk, Gone, Meter};
use crate::error::ProtectorError;
use crate::lines::Lines;
use crate::mailbox::{Bell, Mailbox};
use crate::message::{Message, Word};
use crate::post::{News, Post};
use crate::reader::{self, Reader};
use crate::remote::Asking;
use crate::usage::Usage;
use crate::writer::{self, Writer, failed};
use encoding::{Early, Encoding};
use repair::Question;

/// What waits for the clerk.
pub(crate) enum Task {
    /// The owner's.
    Order(Order),
    /// The writer has done something.
    Written(writer::Done),
    /// The reader has done something.
    Read(reader::Done),
    /// The writer asks another member.
    Ask(Asking),
    /// The handle is gone.
    End,
}

/// What is under way.
enum Current {
    Nothing,
    /// A generation is given up.
    Abandoning,
    Encoding(Box<Encoding>),
    Repair(Since),
}

/// Where counters were when something began.
#[derive(Clone, Copy)]
struct Since {
    at: Instant,
    disk: Gone,
    processor: f64,
    sent: u64,
    received: u64,
    network: Duration,
}

pub(crate) struct Clerk {
    settings: Settings,
    /// This node's place in its group.
    me: usize,
    tasks: Arc<Mailbox<Task>>,
    bell: Arc<Bell<Event>>,
    disk: Arc<Meter>,
    usage: Arc<Usage>,
    writer: Sender<writer::Job>,
    reader: Sender<reader::Job>,
    threads: Vec<JoinHandle<()>>,
    post: Option<Post>,
    /// Orders whose turn has not come.
    orders: VecDeque<Order>,
    current: Current,
    /// Number of the encoding that is under way, or was last.
    attempt: u64,
    /// What members have said of encodings that have not begun here, by member.
    early: BTreeMap<usize, Early>,
    questions: BTreeMap<u64, Question>,
    asked: u64,
    /// When those who are asked were asked whether they live.
    asked_alive: Instant,
    /// Bytes per second that the last long encoding sent.
    link_seen: Option<f64>,
}

impl Clerk {
    pub(crate) fn new(
        settings: Settings,
        me: usize,
        directory: Directory,
        tasks: Arc<Mailbox<Task>>,
        bell: Arc<Bell<Event>>,
    ) -> Result<Clerk, ProtectorError> {
        let disk = Arc::new(Meter::new(settings.limits.disk_bytes_per_s));
        let usage = Arc::new(Usage::new(settings.limits.cores));
        let directory = JobDirectory::attach(Disk::new(directory, Arc::clone(&disk)), settings.job)
            .on_node(settings.node);
        let member = Member::new(directory, settings.group.clone(), me);
        let mut threads = Vec::new();
        let mut start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            let failed = |error: std::io::Error| ProtectorError::Thread {
                node: settings.node,
                reason: error.to_string(),
            };
            thread.map(|thread| threads.push(thread)).map_err(failed)
        };
        let (reader, jobs) = channel();
        let thread = Reader::new(member.clone(), Arc::clone(&tasks), Arc::clone(&usage));
        start("stillwire-read", Box::new(move || thread.run(&jobs)))?;
        let (writer, jobs) = channel();
        let thread = Writer::new(member, Arc::clone(&tasks), Arc::clone(&usage));
        start("stillwire-write", Box::new(move || thread.run(&jobs)))?;
        Ok(Clerk {
            settings,
            me,
            tasks,
            bell,
            disk,
            usage,
            writer,
            reader,
            threads,
            post: None,
            orders: VecDeque::new(),
            current: Current::Nothing,
            attempt: 0,
            early: BTreeMap::new(),
            questions: BTreeMap::new(),
            asked: 0,
            asked_alive: Instant::now(),
            link_seen: None,
        })
    }

    /// Until the handle is gone.
    pub(crate) fn run(mut self) {
        let usage = Arc::clone(&self.usage);
        let mut meter = usage.meter();
        loop {
            while let Some(task) = self.tasks.take() {
                match task {
                    Task::Order(order) => self.ordered(order),
                    Task::Written(done) => self.written(done),
                    Task::Read(done) => self.read(done),
                    Task::Ask(asking) => self.ask(asking),
                    Task::End => return self.end(),
                }
            }
            let news = self.post.as_mut().map(Post::receive).unwrap_or_default();
            for news in news {
                self.news(news);
            }
            while matches!(self.current, Current::Nothing) {
                let Some(order) = self.orders.pop_front() else { break };
                self.begin(order);
            }
            self.go_on();
            self.give_up_questions();
            let mut timeout = Duration::from_millis(200);
            if let Some(post) = &mut self.post {
                post.send();
                timeout = post.due().map_or(timeout, |due| due.min(timeout));
            }
            // It never rests: others wait for its answers. What it has used the others rest for.
            let _ = meter.count();
            match &self.post {
                Some(post) => self.tasks.wait(timeout, post.seen()),
                None => self.tasks.wait(timeout, |_| false),
            }
        }
    }

    fn end(mut self) {
        // Who waits for an answer gets none.
        self.questions.clear();
        drop((self.writer, self.reader));
        for thread in self.threads.drain(..) {
            // While a repair still asks, nobody answers.
            while !thread.is_finished() {
                while self.tasks.take().is_some() {}
                std::thread::sleep(Duration::from_millis(1));
            }
            // It has said why it panicked already.
            let _ = thread.join();
        }
    }

    fn ordered(&mut self, order: Order) {
        match (&order, &self.current) {
            (Order::Open { .. }, Current::Encoding(_)) => {
                self.fail(ProtectorError::Ended { by: "a new life has begun" });
            }
            (Order::Open { .. }, Current::Repair(_)) => self.questions.clear(),
            (Order::Abandon { generation }, Current::Encoding(encoding))
                if encoding.generation == *generation =>
            {
                self.fail(ProtectorError::Ended { by: "the generation is abandoned" });
            }
            _ => {}
        }
        self.orders.push_back(order);
    }

    fn begin(&mut self, order: Order) {
        let told = match order {
            Order::Open { life } => self.open(life).map_err(|error| failed(Asked::Open, None, error)),
            Order::Meet { life, addresses } => {
                let met = self.meet(life, &addresses);
                met.map(|()| Some(Event::Met { life })).map_err(|error| failed(Asked::Meet, None, error))
            }
            Order::Protect { generation, from, ranks } => {
                let begun = self.protect(generation, from, ranks);
                begun.map_err(|error| failed(Asked::Protect, Some(generation), error))
            }
            Order::Repair { generation } => {
                self.repair(generation).map_err(|error| failed(Asked::Repair, Some(generation), error))
            }
            Order::Abandon { generation } => {
                self.current = Current::Abandoning;
                self.to_writer(writer::Job::Abandon(generation));
                Ok(None)
            }
        };
        if let Some(event) = told.unwrap_or_else(Some) {
            self.bell.tell(event);
        }
    }

    fn to_writer(&self, job: writer::Job) {
        // It lives as long as this sender.
        let _ = self.writer.send(job);
    }

    fn to_reader(&self, job: reader::Job) {
        // Likewise.
        let _ = self.reader.send(job);
    }

    fn open(&mut self, life: Life) -> Result<Option<Event>, ProtectorError> {
        self.tasks.sleep_in(None);
        self.post = None;
        self.early.clear();
        let lines = Lines::open(&self.settings, life)?;
        let addresses = lines.addresses();
        self.tasks.sleep_in(Some(lines.endpoint().clone()));
        let members = self.settings.group.members();
        self.post = Some(Post::new(lines, members, self.settings.limits.link_bytes_per_s));
        Ok(Some(Event::Opened { life, addresses }))
    }

    fn meet(&mut self, life: Life, addresses: &[(u32, Vec<u8>)]) -> Result<(), ProtectorError> {
        let node = self.settings.node;
        let lines = self.post.as_mut().map(Post::lines).filter(|lines| lines.life() == life);
        lines.ok_or(ProtectorError::NotOpen { node, life })?.meet(&self.settings, addresses)
    }

    /// The number of a member's node.
    fn node(&self, member: usize) -> u32 {
        self.settings.group.nodes()[member]
    }

    fn since(&self) -> Since {
        let post = self.post.as_ref();
        Since {
            at: Instant::now(),
            disk: self.disk.gone(),
            processor: self.usage.seconds(),
            sent: post.map_or(0, |post| post.sent_bytes),
            received: post.map_or(0, |post| post.received_bytes),
            network: post.map_or(Duration::ZERO, Post::busy),
        }
    }

    fn statistics(&self, since: &Since, arithmetic: f64) -> Statistics {
        let now = self.since();
        Statistics {
            shape: None,
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
            News::Broken { member, reason } => self.nonsense(member, reason),
        }
    }

    fn heard(&mut self, from: usize, message: Message) {
        let Message { generation, number, word } = message;
        match word {
            Word::Content { from: builds_upon, shape, pages, record } => {
                self.content(from, Early::Content { generation, from: builds_upon, shape, pages, record });
            }
            Word::GaveUp { reason } => self.content(from, Early::GaveUp { generation, reason }),
            Word::Question(question) => {
                self.to_reader(reader::Job::Answer { to: from, generation, number, question });
            }
            Word::Answer(answer) => self.answered(from, number, answer),
            Word::Alive => {}
        }
    }

    /// Something of a member that cannot be used: what is under way with it fails, and nothing else.
    fn nonsense(&mut self, from: usize, reason: String) {
        if matches!(self.current, Current::Encoding(_)) {
            self.fail(ProtectorError::Message { peer: self.node(from), reason });
        }
    }

    fn say_to_all(&mut self, generation: GenerationId, word: &Word) {
        let (members, me) = (self.settings.group.members(), self.me);
        let message = Message { generation, number: 0, word: word.clone() };
        if let Some(post) = &mut self.post {
            (0..members).filter(|member| *member != me).for_each(|member| post.say(member, &message));
        }
    }
}
