//! Pipes, pairs of sockets, and event descriptors: eventfd, timerfd, signalfd, epoll.

use std::path::Path;

use super::Scenario;
use super::act::{
    at, close, duplicate, flags, ok, open, read, read_number, through_an_image, try_read, write,
};

pub(crate) const ALL: &[Scenario] = &[
    ("pipes keep content, capacity and closed ends", pipes),
    ("a pipe of packets keeps their borders", packets),
    ("several descriptions of one end of a pipe", several),
    ("streams between sockets of one process", streams),
    ("messages between sockets of one process", messages),
    ("eventfds keep their counts", events),
    ("timers keep what is left and what was not read", timers),
    ("signals are read from a descriptor", signals),
    ("epoll watches what it watched", polls),
    ("epoll watches what was closed under its number", polls_of_closed),
];

fn pipe(reader: i32, writer: i32, flags: i32) {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    ok(unsafe { libc::pipe2(ends.as_mut_ptr(), flags) });
    // High numbers first: the low ones may be in the way.
    at(writer + 500, ends[1]);
    at(reader, ends[0]);
    at(writer, writer + 500);
}

fn capacity(fd: i32) -> i32 {
    // SAFETY: no memory is touched.
    ok(unsafe { libc::fcntl(fd, libc::F_GETPIPE_SZ) })
}

fn pipes(directory: &Path) {
    through_an_image(
        directory,
        || {
            pipe(10, 11, libc::O_NONBLOCK);
            write(11, b"first");
            write(11, b"second");
            pipe(12, 13, libc::O_CLOEXEC);
            write(13, b"last words");
            close(13);
            pipe(14, 15, 0);
            close(14);
            pipe(16, 17, libc::O_NONBLOCK);
            // SAFETY: no memory is touched.
            ok(unsafe { libc::fcntl(16, libc::F_SETPIPE_SZ, 256 << 10) });
            while try_write(17, &[1; 4096]) {}
            pipe(18, 19, libc::O_NONBLOCK);
            for _ in 0..1000 {
                write(19, b"x");
            }
        },
        || {
            assert_eq!(read(10, 100), b"firstsecond");
            assert_eq!(try_read(10, 100), Err(libc::EAGAIN));
            write(11, b"more");
            assert_eq!(read(10, 100), b"more");
            close(11);
            assert_eq!(read(10, 100), b"", "nobody else has its writing end");
            assert_eq!(read(12, 100), b"last words");
            assert_eq!(read(12, 100), b"");
            // SAFETY: no memory is touched.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            assert!(!try_write(15, b"to nobody"));
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPIPE));
            assert_eq!(capacity(16), 256 << 10);
            assert!(!try_write(17, b"x"), "it is full");
            assert_eq!(read(16, 1 << 20).len(), 256 << 10);
            assert_eq!(read(18, 4096), [b'x'; 1000]);
        },
    );
}

fn try_write(fd: i32, bytes: &[u8]) -> bool {
    // SAFETY: the kernel reads the bytes.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) > 0 }
}

fn packets(directory: &Path) {
    through_an_image(
        directory,
        || {
            pipe(10, 11, libc::O_DIRECT | libc::O_NONBLOCK);
            write(11, b"one");
            write(11, b"and two");
        },
        || {
            assert_eq!((read(10, 100), read(10, 100)), (b"one".to_vec(), b"and two".to_vec()));
            write(11, b"three");
            write(11, b"four");
            assert_eq!(read(10, 100), b"three");
        },
    );
}

fn several(directory: &Path) {
    through_an_image(
        directory,
        || {
            pipe(10, 11, 0);
            at(12, open(Path::new("/proc/self/fd/10"), libc::O_RDONLY | libc::O_NONBLOCK));
            at(13, open(Path::new("/proc/self/fd/10"), libc::O_RDWR));
            duplicate(11, 14);
            write(11, b"abc");
        },
        || {
            assert_eq!((read(12, 1), read(10, 1), read(13, 1)), (vec![b'a'], vec![b'b'], vec![b'c']));
            assert_eq!(try_read(12, 1), Err(libc::EAGAIN), "only this description does not wait");
            assert_eq!(flags(10) & libc::O_NONBLOCK, 0);
            write(13, b"d");
            assert_eq!(read(10, 1), b"d");
        },
    );
}

fn sockets(left: i32, right: i32, kind: i32) {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    ok(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) });
    at(right + 500, ends[1]);
    at(left, ends[0]);
    at(right, right + 500);
}

fn streams(directory: &Path) {
    through_an_image(
        directory,
        || {
            sockets(10, 11, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
            write(10, b"to the right, ");
            write(10, b"in two pieces");
            write(11, b"to the left");
            sockets(12, 13, libc::SOCK_STREAM);
            write(13, b"farewell");
            close(13);
            sockets(14, 15, libc::SOCK_STREAM);
            write(14, b"the last");
            // SAFETY: no memory is touched.
            ok(unsafe { libc::shutdown(14, libc::SHUT_WR) });
            sockets(16, 17, libc::SOCK_STREAM);
            let (one, bytes) = (1i32, 100_000i32);
            // SAFETY: the kernel reads four bytes each.
            unsafe {
                ok(libc::setsockopt(16, libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const one).cast(), 4));
                ok(libc::setsockopt(17, libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const bytes).cast(), 4));
            }
        },
        || {
            assert_eq!(read(11, 100), b"to the right, in two pieces");
            assert_eq!(read(10, 100), b"to the left");
            assert_eq!(try_read(10, 100), Err(libc::EAGAIN));
            write(11, b"again");
            assert_eq!(read(10, 100), b"again");
            assert_eq!((read(12, 100), read(12, 100)), (b"farewell".to_vec(), Vec::new()));
            assert_eq!((read(15, 100), read(15, 100)), (b"the last".to_vec(), Vec::new()));
            write(15, b"the other way");
            assert_eq!(read(14, 100), b"the other way");
            assert_eq!((option(16, libc::SO_PASSCRED), option(17, libc::SO_SNDBUF)), (1, 200_000));
        },
    );
}

fn option(fd: i32, name: i32) -> i32 {
    let (mut value, mut bytes) = (0i32, 4u32);
    // SAFETY: room for four bytes.
    ok(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut bytes) });
    value
}

fn messages(directory: &Path) {
    through_an_image(
        directory,
        || {
            sockets(10, 11, libc::SOCK_DGRAM);
            for message in [&b"one"[..], b"and two", &[9; 5000]] {
                write(10, message);
            }
            sockets(12, 13, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK);
            write(12, b"packet");
            write(12, b"packet 2");
            write(13, b"answer");
        },
        || {
            assert_eq!((read(11, 100), read(11, 100)), (b"one".to_vec(), b"and two".to_vec()));
            assert_eq!(read(11, 9000), [9; 5000]);
            assert_eq!((read(13, 100), read(13, 100)), (b"packet".to_vec(), b"packet 2".to_vec()));
            assert_eq!(read(12, 100), b"answer");
            close(12);
            assert_eq!(read(13, 100), b"");
        },
    );
}

fn events(directory: &Path) {
    through_an_image(
        directory,
        || {
            // SAFETY: no memory is touched.
            unsafe {
                at(10, ok(libc::eventfd(7, libc::EFD_NONBLOCK)));
                at(11, ok(libc::eventfd(3, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC)));
                at(12, ok(libc::eventfd(0, libc::EFD_NONBLOCK)));
            }
            write(12, &(u64::MAX - 1).to_ne_bytes());
            duplicate(10, 13);
        },
        || {
            assert_eq!(read_number(13), 7);
            assert_eq!(try_read(10, 8), Err(libc::EAGAIN), "one counter");
            assert_eq!((read_number(11), read_number(11), read_number(11)), (1, 1, 1));
            assert_eq!(read_number(12), u64::MAX - 1);
        },
    );
}

fn timer(number: i32, clock: i32, left_ns: i64, interval_ns: i64) {
    let time = |ns: i64| libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
    let set = libc::itimerspec { it_value: time(left_ns), it_interval: time(interval_ns) };
    // SAFETY: the kernel reads the time.
    unsafe {
        at(number, ok(libc::timerfd_create(clock, libc::TFD_NONBLOCK)));
        ok(libc::timerfd_settime(number, 0, &raw const set, std::ptr::null_mut()));
    }
}

fn left_ns(fd: i32) -> (i64, i64) {
    // SAFETY: plain numbers, which the kernel fills.
    let time = unsafe {
        let mut time: libc::itimerspec = std::mem::zeroed();
        ok(libc::timerfd_gettime(fd, &raw mut time));
        time
    };
    let ns = |time: libc::timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
    (ns(time.it_value), ns(time.it_interval))
}

fn timers(directory: &Path) {
    const HOUR_NS: i64 = 3_600_000_000_000;
    through_an_image(
        directory,
        || {
            timer(10, libc::CLOCK_MONOTONIC, HOUR_NS, 0);
            timer(11, libc::CLOCK_MONOTONIC, 1, 0);
            timer(12, libc::CLOCK_REALTIME, 1, 2 * HOUR_NS);
            timer(13, libc::CLOCK_BOOTTIME, 0, 0);
            timer(14, libc::CLOCK_MONOTONIC, 1, 1_000_000);
            std::thread::sleep(std::time::Duration::from_millis(20));
        },
        || {
            let (left, interval) = left_ns(10);
            assert!(interval == 0 && left > HOUR_NS / 2 && left < HOUR_NS, "{left}");
            assert_eq!(try_read(10, 8), Err(libc::EAGAIN));
            assert_eq!((read_number(11), try_read(11, 8)), (1, Err(libc::EAGAIN)));
            assert_eq!(read_number(12), 1);
            let (left, interval) = left_ns(12);
            assert!(interval == 2 * HOUR_NS && left > HOUR_NS, "{left}");
            assert_eq!((left_ns(13), try_read(13, 8)), ((0, 0), Err(libc::EAGAIN)));
            assert!(read_number(14) >= 19, "what was not read is still told");
        },
    );
}

fn signals(directory: &Path) {
    through_an_image(
        directory,
        || {
            // SAFETY: a set of this frame.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGUSR2);
                libc::sigaddset(&raw mut set, 40);
                at(10, ok(libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK)));
            }
        },
        || {
            // SAFETY: a set of this frame.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGUSR2);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
                libc::raise(libc::SIGUSR2);
            }
            let bytes = read(10, 128);
            assert_eq!(bytes[..4], libc::SIGUSR2.to_ne_bytes());
            assert_eq!(try_read(10, 128), Err(libc::EAGAIN));
        },
    );
}

fn add(poll: i32, number: i32, events: i32, data: u64) {
    let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: data };
    // SAFETY: the kernel reads the event.
    ok(unsafe { libc::epoll_ctl(poll, libc::EPOLL_CTL_ADD, number, &raw mut event) });
}

/// The ready entries, by the data that was given.
fn ready(poll: i32) -> Vec<u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: room for as many events.
    let count = ok(unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), 16, 0) });
    let mut data: Vec<u64> =
        events[..usize::try_from(count).unwrap()].iter().map(|event| event.u64).collect();
    data.sort_unstable();
    data
}

fn new_poll(number: i32) {
    // SAFETY: no memory is touched.
    at(number, ok(unsafe { libc::epoll_create1(0) }));
}

fn polls(directory: &Path) {
    through_an_image(
        directory,
        || {
            pipe(10, 11, 0);
            pipe(12, 13, 0);
            new_poll(20);
            new_poll(21);
            add(20, 10, libc::EPOLLIN, 0xdead_beef_0000_0010);
            add(20, 12, libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT, 12);
            add(20, 13, libc::EPOLLPRI, 13);
            add(21, 20, libc::EPOLLIN, u64::MAX);
            write(11, b"x");
        },
        || {
            assert_eq!(ready(20), [0xdead_beef_0000_0010]);
            assert_eq!(ready(21), [u64::MAX], "it watches the other one");
            write(13, b"y");
            assert_eq!(ready(20), [12, 0xdead_beef_0000_0010]);
            write(13, b"y");
            assert_eq!(ready(20), [0xdead_beef_0000_0010], "once only");
            read(10, 1);
            assert_eq!((ready(20), ready(21)), (vec![], vec![]));
        },
    );
}

fn polls_of_closed(directory: &Path) {
    through_an_image(
        directory,
        || {
            pipe(10, 11, 0);
            pipe(12, 13, 0);
            pipe(16, 17, 0);
            new_poll(20);
            // Closed under its number, alive under another one.
            add(20, 10, libc::EPOLLIN, 10);
            duplicate(10, 14);
            close(10);
            // Likewise, and its number means another pipe, which is watched as well.
            add(20, 12, libc::EPOLLIN, 12);
            duplicate(12, 15);
            duplicate(16, 12);
            add(20, 12, libc::EPOLLIN, 16);
        },
        || {
            assert_eq!(ready(20), []);
            write(11, b"x");
            assert_eq!(ready(20), [10]);
            write(13, b"x");
            assert_eq!(ready(20), [10, 12]);
            write(17, b"x");
            assert_eq!(ready(20), [10, 12, 16]);
            assert_eq!((read(14, 9), read(15, 9), read(16, 9)), (vec![b'x'], vec![b'x'], vec![b'x']));
            close(15);
            write(17, b"x");
            assert_eq!(ready(20), [16]);
        },
    );
}
