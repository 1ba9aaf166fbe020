//! State that cannot be saved, and the message about it.

use std::path::Path;

use process::declared::Declared;
use process::files::{Fault, Room, UNNAMED_BYTES_MAX, prepare};

use super::Scenario;
use super::act::{at, close, in_child, ok, open, refusals, standard, write};

pub(crate) const ALL: &[Scenario] = &[
    ("every refusal names its descriptor and what to do", by_name),
    ("what cannot be put back is refused by what it is in", by_state),
    ("ends that others have are refused", outsiders),
    ("files that cannot be found again are refused", files),
    ("what is declared is not refused", declared),
    ("what comes between the look and the stop is seen", between),
];

/// Opens at number 30, and compares the sentence about it.
fn refused(fd: i32, expected: &[&str]) {
    at(30, fd);
    let refusals = refusals(&standard());
    let [(number, sentence)] = &refusals[..] else { panic!("{refusals:?}, expected {expected:?}") };
    assert_eq!(*number, 30);
    assert!(sentence.starts_with("descriptor 30 ("), "{sentence}");
    for part in expected {
        assert!(sentence.contains(part), "{sentence}, expected {part}");
    }
    close(30);
}

fn call(number: i64, first: i64, second: i64) -> i32 {
    // SAFETY: used for calls that make a descriptor of numbers.
    ok(i32::try_from(unsafe { libc::syscall(number, first, second, 0, 0, 0) }).unwrap())
}

fn by_name(directory: &Path) {
    in_child(|| {
        // SAFETY: calls that make descriptors of numbers and of names that end with a zero byte.
        unsafe {
            refused(libc::inotify_init1(0), &["inotify"]);
            refused(call(libc::SYS_pidfd_open, i64::from(libc::getpid()), 0), &["pidfd_open"]);
            refused(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0), &["stream", "outside"]);
            refused(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), &["socket:[", "outside"]);
            refused(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), &["not connected", "socketpair"]);
            let fifo = std::ffi::CString::new(directory.join("fifo").to_str().unwrap()).unwrap();
            ok(libc::mkfifo(fifo.as_ptr(), 0o600));
        }
        refused(open(&directory.join("fifo"), libc::O_RDWR), &["/fifo", "named pipe"]);
        refused(open(Path::new("/proc/self/ns/net"), libc::O_RDONLY), &["net:[", "namespace"]);
        refused(open(Path::new("/proc/1/status"), libc::O_RDONLY), &["/proc/1/status", "another process"]);
        let listener = std::os::unix::net::UnixListener::bind(directory.join("listener")).unwrap();
        refused(std::os::fd::IntoRawFd::into_raw_fd(listener), &["address"]);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        refused(std::os::fd::IntoRawFd::into_raw_fd(tcp), &["stream, 127.0.0.1:", "outside"]);
        // SAFETY: no memory is touched.
        let asynchronous = unsafe {
            let mut ends = [0; 2];
            ok(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()));
            close(ends[1]);
            ok(libc::fcntl(ends[0], libc::F_SETFL, libc::O_ASYNC));
            ends[0]
        };
        refused(asynchronous, &["O_ASYNC"]);
        // Not every machine lets everybody have these.
        let mut rings = [0u8; 256];
        // SAFETY: room for the kernel's answer.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, rings.as_mut_ptr()) };
        if ring >= 0 {
            refused(i32::try_from(ring).unwrap(), &["io_uring"]);
        }
        // SAFETY: no memory is touched.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, 1) };
        if faults >= 0 {
            refused(i32::try_from(faults).unwrap(), &["userfaultfd"]);
        }
        if let Ok(terminal) = std::fs::File::open("/dev/ptmx") {
            refused(std::os::fd::IntoRawFd::into_raw_fd(terminal), &["terminal"]);
        }
    });
}

fn by_state(directory: &Path) {
    in_child(|| {
        let leased = open(&directory.join("leased"), libc::O_RDWR | libc::O_CREAT);
        // SAFETY: no memory is touched.
        if unsafe { libc::fcntl(leased, libc::F_SETLEASE, libc::F_WRLCK) } == 0 {
            refused(leased, &["/leased", "lease", "give it up"]);
        } else {
            close(leased);
        }
        let replaced = open(&directory.join("replaced"), libc::O_RDWR | libc::O_CREAT);
        let aside = directory.join("aside");
        std::fs::hard_link(directory.join("replaced"), &aside).unwrap();
        std::fs::remove_file(directory.join("replaced")).unwrap();
        std::fs::write(directory.join("replaced"), b"another").unwrap();
        refused(replaced, &["/replaced", "has another one"]);
        if let Ok(memory) = std::fs::File::open("/dev/kmsg") {
            refused(std::os::fd::IntoRawFd::into_raw_fd(memory), &["/dev/kmsg", "state of a device"]);
        }
    });
    in_child(|| {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers; then a message of one byte that carries one descriptor, all of this frame.
        unsafe {
            ok(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()));
            let mut byte = 0u8;
            let mut piece = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            let mut control = [0u64; 8];
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(1);
            assert_eq!(libc::sendmsg(ends[0], &raw const message, 0), 1);
        }
        let reported = refusals(&standard());
        assert!(
            reported.iter().any(|(_, sentence)| sentence.contains("receive them before")),
            "{reported:?}"
        );
    });
}

/// Runs `act` while a child shares its parent's resources.
fn while_a_child_lives(act: impl FnOnce(i32)) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no memory is touched.
            unsafe { libc::pause() };
        }
    }
    act(child);
    // SAFETY: a child of this process.
    unsafe {
        ok(libc::kill(child, libc::SIGKILL));
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

fn outsiders(_directory: &Path) {
    in_child(|| {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers.
        ok(unsafe { libc::pipe(ends.as_mut_ptr()) });
        let [reader, writer] = ends;
        while_a_child_lives(|child| {
            let reported = refusals(&standard());
            assert_eq!(reported.len(), 2, "{reported:?}");
            assert!(reported[0].1.contains(&format!("process {child} (")), "{reported:?}");
            assert!(reported[0].1.contains("another process has it open as well"), "{reported:?}");
            close(writer);
            let reported = refusals(&standard());
            assert!(
                reported.len() == 1 && reported[0].1.contains("the other end of the pipe"),
                "{reported:?}"
            );
        });
        assert_eq!(refusals(&standard()), [], "the child is gone");
        close(reader);
        // SAFETY: room for two numbers.
        ok(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) });
        while_a_child_lives(|_| {
            close(ends[1]);
            let reported = refusals(&standard());
            assert!(
                reported.len() == 1 && reported[0].1.contains("the other end of the socket"),
                "{reported:?}"
            );
        });
        assert_eq!(refusals(&standard()), [], "the child is gone");
    });
}

fn files(directory: &Path) {
    in_child(|| {
        let path = directory.join("one name");
        let flags = libc::O_RDWR | libc::O_CREAT;
        let fd = open(&path, flags);
        std::fs::hard_link(&path, directory.join("another")).unwrap();
        std::fs::remove_file(&path).unwrap();
        refused(fd, &["one name (deleted)", "has another one"]);

        let fd = open(directory, libc::O_TMPFILE | libc::O_RDWR);
        // SAFETY: no memory is touched.
        ok(unsafe { libc::ftruncate(fd, i64::try_from(UNNAMED_BYTES_MAX).unwrap() + 1) });
        refused(fd, &["67108865 bytes", "too large", "do not unlink"]);

        std::fs::create_dir(directory.join("d")).unwrap();
        let fd = open(&directory.join("d"), libc::O_RDONLY);
        std::fs::remove_dir(directory.join("d")).unwrap();
        refused(fd, &["/d (deleted)", "directory was removed"]);

        // Its name ends like the kernel's remark: it can be found, and is no refusal.
        let odd = open(&directory.join("odd (deleted)"), flags);
        assert_eq!(refusals(&standard()), []);
        close(odd);
    });
}

fn declared(_directory: &Path) {
    in_child(|| {
        // SAFETY: no memory is touched.
        let socket = ok(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) });
        // SAFETY: no memory is touched.
        ok(unsafe { libc::dup(socket) });
        assert_eq!(refusals(&standard()).len(), 1, "one socket, two numbers");
        let declared = Declared { remade: vec![("transport".to_owned(), socket)], ..standard() };
        assert_eq!(refusals(&declared), []);
    });
}

fn between(directory: &Path) {
    in_child(|| {
        let mut prepared = prepare(&standard(), Vec::new()).unwrap();
        // Something that can be saved: the look takes it in.
        at(40, open(&directory.join("later"), libc::O_RDWR | libc::O_CREAT));
        write(40, b"abc");
        prepared.look().unwrap();
        let files = prepared.finish(&[]).unwrap();
        assert!(files.descriptors.iter().any(|descriptor| descriptor.number == 40));
        // Something that cannot.
        // SAFETY: no memory is touched.
        at(41, ok(unsafe { libc::inotify_init1(0) }));
        prepared.look().unwrap();
        let refused = prepared.finish(&[]).unwrap_err();
        assert!(refused.len() == 1 && refused[0].number == 41, "{refused:?}");
        close(41);
        // More than there is room for: an error, and the next attempt has it.
        for _ in 0..300 {
            open(Path::new("/dev/null"), libc::O_RDONLY);
        }
        assert_eq!(prepared.look(), Err(Fault::Full { what: Room::Descriptors }));
        let mut prepared = prepare(&standard(), Vec::new()).unwrap();
        prepared.look().unwrap();
        assert!(prepared.finish(&[]).unwrap().descriptors.len() > 300);
    });
}
