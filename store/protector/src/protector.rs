//! The handle.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use store::Directory;

use crate::api::{Event, Request, Settings};
use crate::encode_worker::{EncodeWorker, Task};
use crate::error::ProtectorError;
use crate::limits::REQUESTS_MAX;
use crate::mailbox::{EventQueue, Mailbox};

/// A protector. Dropping it abandons the current work and ends its threads.
pub struct Protector {
    tasks: Arc<Mailbox<Task>>,
    events: Arc<EventQueue<Event>>,
    /// Requests whose events have not been taken.
    open: AtomicUsize,
    thread: Option<JoinHandle<()>>,
}

impl Protector {
    /// Starts it. It does nothing before the first request.
    ///
    /// # Errors
    /// [`ProtectorError::NotInGroup`], [`ProtectorError::Thread`], [`ProtectorError::Store`] if the directory is not there.
    pub fn start(settings: Settings) -> Result<Protector, ProtectorError> {
        let node = settings.node;
        let Some(me) = settings.group.member(node) else {
            return Err(ProtectorError::NotInGroup { node, nodes: settings.group.nodes().to_vec() });
        };
        let directory = Directory::open(&settings.directory).map_err(store::StoreError::from)?;
        let failed = |reason: String| ProtectorError::Thread { node, reason };
        let events = Arc::new(EventQueue::new().map_err(|error| failed(error.to_string()))?);
        let tasks = Arc::new(Mailbox::new());
        let encode_worker =
            EncodeWorker::new(settings, me, directory, Arc::clone(&tasks), Arc::clone(&events))?;
        let thread = std::thread::Builder::new().name("stillwire-parity".into());
        let thread = thread.spawn(move || encode_worker.run()).map_err(|error| failed(error.to_string()))?;
        Ok(Protector { tasks, events, open: AtomicUsize::new(0), thread: Some(thread) })
    }

    /// A descriptor that is readable while [`Protector::next`] has something.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Orders something. Returns at once; the outcome is one event. False: [`REQUESTS_MAX`] orders are open, and this one is not accepted.
    pub fn send(&self, request: Request) -> bool {
        let accept = |open| (open < REQUESTS_MAX).then_some(open + 1);
        let is_accepted = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, accept).is_ok();
        if is_accepted {
            self.tasks.post_at_once(Task::Request(request));
        }
        is_accepted
    }

    /// The next event, if there is one.
    #[must_use]
    pub fn next(&self) -> Option<Event> {
        let event = self.events.next()?;
        self.open.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }
}

impl Drop for Protector {
    fn drop(&mut self) {
        self.tasks.post_at_once(Task::End);
        if let Some(thread) = self.thread.take() {
            // It has said why it panicked already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::{Duration, Instant};

    use store::limits::CONTENT_PAGES_MAX;
    use store::protect::{Group, Member};
    use store::record::Content;
    use store::{GenerationId, JobDirectory};
    use transport::config::AuthLevel;
    use transport::{Epoch, JobId, Life};

    use super::*;
    use crate::api::{Limits, Rail, RequestKind};
    use crate::limits::QUESTIONS_MAX;
    use crate::message::{Answer, Body, Message, Question};
    use crate::messenger::{Messenger, News};
    use crate::peer_links::PeerLinks;
    use crate::shape::Shape;

    const JOB: JobId = JobId(7);
    const LIFE: Life = Life { counter: 1, nonce: 2 };
    const ASKED: GenerationId = GenerationId { life: LIFE, epoch: Epoch(3) };

    fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < deadline, "what was waited for has not come");
            std::thread::yield_now();
        }
    }

    /// A protector of node 0 that has met node 1, which speaks for itself.
    fn with_a_peer(settings: impl Fn(u32) -> Settings) -> (Protector, Messenger) {
        let protector = Protector::start(settings(0)).expect("a protector");
        protector.send(Request::Open { life: LIFE });
        let Event::Opened { addresses, .. } = wait_for(|| protector.next()) else { panic!("it opens") };
        let mut links = PeerLinks::open(&settings(1), LIFE).expect("a socket");
        let there = vec![(1, links.addresses())];
        links.meet(&settings(1), &[(0, addresses)]).expect("an address");
        protector.send(Request::Meet { life: LIFE, addresses: there });
        assert!(matches!(wait_for(|| protector.next()), Event::Met { .. }));
        (protector, Messenger::new(links, 2, None))
    }

    // Nothing is made as large as a peer says before its records bear it out.
    #[test]
    fn a_peer_that_lies_about_its_pages_is_named() {
        let scratch = tempfile::tempdir().expect("a folder");
        let group = Group::new(vec![0, 1], 1).expect("a shape");
        let settings = |node| Settings {
            job: JOB,
            key: [1; 16],
            auth: AuthLevel::Header,
            rails: vec![Rail::new(IpAddr::V4(Ipv4Addr::LOCALHOST))],
            node,
            group: group.clone(),
            directory: scratch.path().to_owned(),
            limits: Limits::default(),
            shape: None,
            patience: Duration::from_secs(60),
        };
        std::fs::create_dir_all(scratch.path().join(store::job::folder(ASKED))).expect("a folder");
        let (protector, mut messenger) = with_a_peer(settings);
        protector.send(Request::Protect { generation: ASKED, from: None, ranks: Vec::new() });
        let content = Content { job: JOB, generation: ASKED, node: 1, files: Vec::new() };
        // As many as a message can hold: more than any machine has.
        let pages = CONTENT_PAGES_MAX;
        let changed = vec![(pages / group.data_pages(), group.data_pages())];
        let body = Body::Content { from: None, shape: Shape::Ring, pages, changed, record: content.emit() };
        messenger.say(0, &Message { generation: ASKED, number: 0, body });
        let failed = wait_for(|| {
            messenger.send();
            messenger.receive();
            protector.next()
        });
        let Event::Failed {
            request: RequestKind::Protect,
            error: ProtectorError::Message { peer: 1, reason },
            ..
        } = failed
        else {
            panic!("{failed:?}")
        };
        assert_eq!(reason, format!("it tells of {pages} pages, by its records it has 0"));
    }

    #[test]
    fn an_owner_that_takes_no_answers_has_a_bounded_number_of_open_requests() {
        let scratch = tempfile::tempdir().expect("a folder");
        let settings = Settings {
            job: JOB,
            key: [1; 16],
            auth: AuthLevel::Header,
            rails: vec![Rail::new(IpAddr::V4(Ipv4Addr::LOCALHOST))],
            node: 0,
            group: Group::new(vec![0, 1], 1).expect("a shape"),
            directory: scratch.path().to_owned(),
            limits: Limits::default(),
            shape: None,
            patience: Duration::from_secs(60),
        };
        let protector = Protector::start(settings).expect("a protector");
        // Each fails at once: no life is open.
        let protect = Request::Protect { generation: ASKED, from: None, ranks: Vec::new() };
        let accepted = (0..2 * REQUESTS_MAX).filter(|_| protector.send(protect.clone())).count();
        assert_eq!(accepted, REQUESTS_MAX);
        for _ in 0..REQUESTS_MAX {
            assert!(matches!(wait_for(|| protector.next()), Event::Failed { .. }));
        }
        assert!(protector.next().is_none(), "each request has one event");
        assert!(protector.send(protect), "there is room again");
    }

    #[test]
    fn who_asks_too_much_at_once_is_reported_so() {
        let scratch = tempfile::tempdir().expect("a folder");
        let group = Group::new(vec![0, 1], 1).expect("a shape");
        // Its disk stands still: the first question is never answered.
        let settings = |node| Settings {
            job: JOB,
            key: [1; 16],
            auth: AuthLevel::Header,
            rails: vec![Rail::new(IpAddr::V4(Ipv4Addr::LOCALHOST))],
            node,
            group: group.clone(),
            directory: scratch.path().to_owned(),
            limits: Limits { disk_bytes_per_s: Some(1), ..Limits::default() },
            shape: None,
            patience: Duration::from_secs(60),
        };
        std::fs::create_dir_all(scratch.path().join(store::job::folder(ASKED))).expect("a folder");
        let storage = Directory::open(scratch.path()).expect("a folder");
        let mut member = Member::new(JobDirectory::attach(storage, JOB).on_node(0), group.clone(), 0);
        let content = Content { job: JOB, generation: ASKED, node: 1, files: Vec::new() };
        member.write_content(&content).expect("a record");

        let (_protector, mut messenger) = with_a_peer(settings);
        for number in 1..=QUESTIONS_MAX as u64 + 2 {
            let body = Body::Question(Question::Content { of: 1 });
            messenger.say(0, &Message { generation: ASKED, number, body });
        }
        let mut refused = Vec::new();
        wait_for(|| {
            messenger.send();
            for news in messenger.receive() {
                let News::Words { from: 0, bytes } = news else { continue };
                let Message { number, body, .. } = Message::parse(&bytes).expect("a message");
                let why = match body {
                    Body::Answer(Answer::Failed(why)) => why,
                    // Its first message when they meet.
                    Body::Alive => continue,
                    body => panic!("{body:?}"),
                };
                assert!(why.contains("questions of this node wait already"), "{why}");
                refused.push(number);
            }
            (refused.len() == 2).then_some(())
        });
        assert_eq!(refused, [QUESTIONS_MAX as u64 + 1, QUESTIONS_MAX as u64 + 2]);
    }
}
