//! Files, directories, devices, descriptors that the launcher hands in.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use process::declared::Declared;
use process::files::{Changed, FileId, Given, Grown, Policy, Unknown, remake};
use process::state::files::{Regular, What};
use process::state::{Files, VERSION};

use super::Scenario;
use super::act::{
    at, close, closes_on_exec, describe, describe_in_child, duplicate, flags, in_child, ok, open, read,
    remake_here, seek, standard, through_an_image, try_read, write,
};

pub(crate) const ALL: &[Scenario] = &[
    ("files keep offsets, flags, and who shares them", offsets),
    ("a file that grew is cut, unless it is to be kept", grown),
    ("a longer file that is another one is copied before it is cut", unknown),
    ("the last bytes before the cut tell a moved file", moved),
    ("record locks survive that a file is looked at", locks_while_looked_at),
    ("a file that another process writes is not cut", common),
    ("a file that is not what it was is refused", changed),
    ("locks are taken again", locks),
    ("files without a name keep their content", unnamed),
    ("shared memory is opened again", shared),
    ("directories, devices, files of the kernel", others),
    ("what is handed in is found again, also by another description", handed_in),
    ("what an owner remakes stays free", remade),
    ("numbers up to the limit", high),
];

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;

fn offsets(directory: &Path) {
    let path = directory.join("data");
    through_an_image(
        directory,
        || {
            at(10, open(&path, RDWR | libc::O_CLOEXEC));
            write(10, b"0123456789");
            seek(10, 3, libc::SEEK_SET);
            duplicate(10, 11);
            at(12, open(&path, libc::O_RDONLY | libc::O_NONBLOCK));
            at(4, open(&path, libc::O_WRONLY | libc::O_APPEND));
            at(13, open(&path, libc::O_PATH));
        },
        || {
            assert_eq!(read(10, 2), b"34");
            assert_eq!(read(11, 2), b"56", "one offset for both");
            assert_eq!(read(12, 2), b"01", "an offset of its own");
            write(4, b"ab");
            assert_eq!(std::fs::read(&path).unwrap(), b"0123456789ab");
            assert!(closes_on_exec(10) && !closes_on_exec(11) && !closes_on_exec(12));
            assert!(flags(12) & libc::O_NONBLOCK != 0 && flags(4) & libc::O_APPEND != 0);
            assert!(flags(13) & libc::O_PATH != 0);
        },
    );
}

fn common(directory: &Path) {
    let path = directory.join("common");
    // Another process that writes it.
    let other = open(&path, RDWR | libc::O_APPEND);
    let describe = || {
        describe_in_child(directory, || {
            at(7, open(&path, RDWR | libc::O_APPEND));
            write(7, b"mine ");
        });
    };
    describe();
    write(other, b"other's ");
    in_child(|| {
        let remade = remake_here(directory, Policy::default()).unwrap();
        assert!(
            remade.warnings[0].contains("common: 8 bytes came after the checkpoint and stay"),
            "{remade:?}"
        );
        write(7, b"more ");
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"mine other's more ");
    close(other);
    // One that only reads it.
    let other = open(&path, libc::O_RDONLY);
    describe();
    std::fs::write(&path, b"mine other's more mine again").unwrap();
    in_child(|| drop(remake_here(directory, Policy::default()).unwrap()));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine other's more mine ");
    close(other);
}

fn grown(directory: &Path) {
    let path = directory.join("log");
    describe_in_child(directory, || {
        at(7, open(&path, RDWR | libc::O_APPEND));
        write(7, b"before ");
    });
    std::fs::write(&path, b"before and after").unwrap();
    in_child(|| {
        let keep = Policy { grown: Grown::Keep, ..Policy::default() };
        remake_here(directory, keep).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"before and after");
    });
    in_child(|| {
        remake_here(directory, Policy::default()).unwrap();
        write(7, b"again");
        assert_eq!(std::fs::read(&path).unwrap(), b"before again");
    });
}

const LINES: &[u8] = b"a line of a log that was written before the cut\n";

/// Changes the numbers by which the image knows a file, as if it had been taken on another host.
fn from_another_host(directory: &Path) {
    let image = directory.join("image");
    let mut files = Files::decode(VERSION, &std::fs::read(&image).unwrap()).unwrap();
    for open in &mut files.open {
        if let What::Regular(regular) = &mut open.what {
            regular.identity = (regular.identity.0 + 1000, regular.identity.1 + 1000);
        }
    }
    std::fs::write(&image, files.encode()).unwrap();
}

fn describe_log(directory: &Path, path: &Path) {
    describe_in_child(directory, || {
        at(7, open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND));
        write(7, LINES);
    });
}

fn unknown(directory: &Path) {
    let path = directory.join("log");
    describe_log(directory, &path);
    from_another_host(directory);
    // Another program's, which happens to have this name on this host.
    let others = b"all that somebody else has written on this host, which is more than there was\n";
    std::fs::write(&path, others).unwrap();
    in_child(|| {
        let refuse = Policy { unknown: Unknown::Refuse, ..Policy::default() };
        let error = remake_here(directory, refuse).expect_err("refused").to_string();
        assert!(error.contains("cannot be recognised as the file of then"), "{error}");
    });
    assert_eq!(std::fs::read(&path).unwrap(), others);
    for number in 1..=2 {
        std::fs::write(&path, others).unwrap();
        let kept = directory.join(format!("log.stillwire-kept-{number}"));
        in_child(|| {
            let remade = remake_here(directory, Policy::default()).unwrap();
            assert!(
                remade.warnings[0].contains(&format!("log.stillwire-kept-{number} is a copy")),
                "{remade:?}"
            );
        });
        assert_eq!(std::fs::read(&kept).unwrap(), others);
        assert_eq!(std::fs::read(&path).unwrap(), &others[..LINES.len()]);
    }
    // A copy that cannot be made costs no byte.
    std::fs::write(&path, others).unwrap();
    in_child(|| {
        let limit = libc::rlimit { rlim_cur: 10, rlim_max: 10 };
        // SAFETY: the kernel reads the limit; files of this child get no longer.
        ok(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) });
        // SAFETY: a disposition without a handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let error = remake_here(directory, Policy::default()).expect_err("refused").to_string();
        assert!(error.contains("no copy of it could be kept beside it"), "{error}");
    });
    assert_eq!(std::fs::read(&path).unwrap(), others);
    assert!(!directory.join("log.stillwire-kept-3").exists());
    // A file in the place of a removed one may get its number again.
    describe_log(directory, &directory.join("fresh"));
    let image = directory.join("image");
    let mut files = Files::decode(VERSION, &std::fs::read(&image).unwrap()).unwrap();
    for open in &mut files.open {
        if let What::Regular(Regular { marks: Some(marks), .. }) = &mut open.what {
            assert!(marks.born_ns > 0 && marks.tail.is_some(), "{marks:?}");
            marks.born_ns -= 1;
        }
    }
    std::fs::write(&image, files.encode()).unwrap();
    std::fs::write(directory.join("fresh"), others).unwrap();
    in_child(|| {
        let remade = remake_here(directory, Policy::default()).unwrap();
        assert!(remade.warnings[0].contains("fresh.stillwire-kept-1 is a copy"), "{remade:?}");
    });
}

fn moved(directory: &Path) {
    let path = directory.join("log");
    describe_log(directory, &path);
    from_another_host(directory);
    let later = [LINES, b"written after the cut\n"].concat();
    std::fs::write(&path, &later).unwrap();
    in_child(|| {
        let refuse = Policy { unknown: Unknown::Refuse, ..Policy::default() };
        assert_eq!(remake_here(directory, refuse).unwrap().warnings, Vec::<String>::new());
    });
    assert_eq!(std::fs::read(&path).unwrap(), LINES);
}

fn locks_while_looked_at(directory: &Path) {
    let path = directory.join("locked");
    in_child(|| {
        at(7, open(&path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND));
        write(7, LINES);
        range_lock(7, libc::F_SETLK, libc::F_WRLCK, 0, 5);
        let files = describe(&standard(), &[]);
        let marks = files.open.iter().find_map(|open| match &open.what {
            What::Regular(regular) => regular.marks,
            _ => None,
        });
        assert!(marks.is_some(), "it was looked at");
        in_child_keeping_files(|| {
            let other = open(&path, libc::O_RDWR);
            let found = range_lock(other, libc::F_GETLK, libc::F_WRLCK, 0, 5);
            assert_eq!(i32::from(found.l_type), libc::F_WRLCK, "the lock is there still");
        });
    });
}

/// The sentence with which the descriptors cannot be made anew, and their acceptance under another policy.
fn refused(directory: &Path, expected: &str) {
    in_child(|| {
        let error = remake_here(directory, Policy::default()).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    });
}

fn accepted(directory: &Path) {
    in_child(|| {
        let accept = Policy { changed: Changed::Accept, ..Policy::default() };
        let remade = remake_here(directory, accept).unwrap();
        assert_eq!(remade.warnings.len(), 1, "{:?}", remade.warnings);
    });
}

fn changed(directory: &Path) {
    let path = directory.join("input");
    std::fs::write(&path, b"0123456789").unwrap();
    describe_in_child(directory, || {
        at(5, open(&path, libc::O_RDONLY));
        seek(5, 4, libc::SEEK_SET);
    });
    std::fs::write(&path, b"9876543210").unwrap();
    refused(directory, "descriptor 5: ");
    refused(directory, "which the process only reads, was changed after the checkpoint");
    accepted(directory);
    std::fs::write(&path, b"987").unwrap();
    refused(directory, "has 3 bytes, at the checkpoint it had 10");
    std::fs::remove_file(&path).unwrap();
    refused(directory, "cannot be opened: No such file");

    describe_in_child(directory, || {
        at(5, open(&path, RDWR));
        write(5, b"0123456789");
    });
    // The new file exists before the old one goes: it has another number.
    std::fs::write(directory.join("new"), b"0123456789 and more").unwrap();
    std::fs::rename(directory.join("new"), &path).unwrap();
    refused(directory, "is not the file that was open at the checkpoint");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 19, "nothing was cut off another file");
}

fn flock(fd: i32, how: i32) -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::flock(fd, how | libc::LOCK_NB) }
}

fn range_lock(fd: i32, command: i32, kind: i32, start: i64, bytes: i64) -> libc::flock {
    // SAFETY: plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap();
    (lock.l_start, lock.l_len) = (start, bytes);
    // SAFETY: the kernel reads and fills the lock.
    ok(unsafe { libc::fcntl(fd, command, &raw mut lock) });
    lock
}

fn locks(directory: &Path) {
    let (whole, parts) = (directory.join("whole"), directory.join("parts"));
    through_an_image(
        directory,
        || {
            at(5, open(&whole, RDWR));
            ok(flock(5, libc::LOCK_EX));
            at(6, open(&parts, RDWR));
            write(6, &[0; 100]);
            range_lock(6, libc::F_SETLK, libc::F_WRLCK, 10, 5);
            range_lock(6, libc::F_OFD_SETLK, libc::F_RDLCK, 50, 0);
        },
        || {
            let other = open(&whole, libc::O_RDWR);
            assert_eq!(flock(other, libc::LOCK_SH), -1, "the lock is there");
            close(5);
            ok(flock(other, libc::LOCK_SH));
            in_child_keeping_files(|| {
                let found = range_lock(6, libc::F_GETLK, libc::F_WRLCK, 0, 20);
                assert_eq!((i32::from(found.l_type), found.l_start, found.l_len), (libc::F_WRLCK, 10, 5));
                let other = open(&parts, libc::O_RDWR);
                let found = range_lock(other, libc::F_OFD_GETLK, libc::F_WRLCK, 60, 1);
                assert_eq!((i32::from(found.l_type), found.l_start, found.l_len), (libc::F_RDLCK, 50, 0));
            });
        },
    );
}

/// Like `in_child`, with the descriptors of this one.
fn in_child_keeping_files(act: impl FnOnce()) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        // SAFETY: the child ends without the parent's ends.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: room for a status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

fn unnamed(directory: &Path) {
    let path = directory.join("gone");
    through_an_image(
        directory,
        || {
            at(5, open(directory, libc::O_TMPFILE | libc::O_RDWR));
            write(5, b"temporary");
            seek(5, 4, libc::SEEK_SET);
            at(6, open(&path, RDWR));
            write(6, &vec![7; 3 << 20]);
            at(7, open(&path, libc::O_RDONLY));
            std::fs::remove_file(&path).unwrap();
            at(8, open(&path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND));
            write(8, b"only written");
            std::fs::remove_file(&path).unwrap();
            // SAFETY: a name that ends with a zero byte.
            at(9, ok(unsafe { libc::memfd_create(c"memory".as_ptr(), libc::MFD_ALLOW_SEALING) }));
            write(9, b"sealed");
            // SAFETY: no memory is touched.
            ok(unsafe { libc::fcntl(9, libc::F_ADD_SEALS, libc::F_SEAL_GROW) });
        },
        || {
            assert_eq!(read(5, 100), b"orary");
            write(5, b"!");
            let bytes = read(7, 4 << 20);
            assert!(bytes.len() == 3 << 20 && bytes.iter().all(|byte| *byte == 7));
            seek(6, 0, libc::SEEK_SET);
            write(6, b"x");
            seek(7, 0, libc::SEEK_SET);
            assert_eq!(read(7, 2), [b'x', 7], "both are one file");
            write(8, b" again");
            let again = open(Path::new("/proc/self/fd/8"), libc::O_RDONLY);
            assert_eq!(read(again, 100), b"only written again");
            assert_eq!(try_read(8, 1), Err(libc::EBADF));
            // SAFETY: no memory is touched.
            assert_eq!(unsafe { libc::fcntl(9, libc::F_GET_SEALS) }, libc::F_SEAL_GROW);
            seek(9, 0, libc::SEEK_SET);
            assert_eq!(read(9, 100), b"sealed");
            for fd in [5, 6, 8] {
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
                assert!(link.starts_with(directory), "{link:?}");
            }
        },
    );
}

fn shared(directory: &Path) {
    let image = directory.join("image");
    let id = |fd: i32| {
        let found = std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap();
        FileId { device: found.dev(), inode: found.ino() }
    };
    in_child(|| {
        // SAFETY: names that end with a zero byte.
        let files = [c"one", c"two"].map(|name| ok(unsafe { libc::memfd_create(name.as_ptr(), 0) }));
        at(8, files[1]);
        at(7, files[0]);
        write(8, b"not copied into this section");
        seek(8, 5, libc::SEEK_SET);
        let files = describe(&standard(), &[id(7), id(8)]);
        assert!(files.encode().len() < 100, "the content is memory's");
        std::fs::write(&image, files.encode()).unwrap();
    });
    in_child(|| {
        let files = Files::decode(VERSION, &std::fs::read(&image).unwrap()).unwrap();
        // SAFETY: names that end with a zero byte.
        let objects = [c"a", c"b"].map(|name| ok(unsafe { libc::memfd_create(name.as_ptr(), 0) }));
        write(objects[1], b"put there by memory");
        let handed_in = standard().handed_in;
        let given = Given { handed_in: &handed_in, shared: &objects, ..Given::default() };
        let remade = remake(&files, &given).unwrap();
        assert_eq!((id(7), id(8)), (id(remade.shared[0]), id(remade.shared[1])));
        assert_eq!(read(8, 5), b"here ");
    });
}

fn others(directory: &Path) {
    std::fs::create_dir(directory.join("inside")).unwrap();
    through_an_image(
        directory,
        || {
            at(5, open(&directory.join("inside"), libc::O_RDONLY | libc::O_DIRECTORY));
            at(6, open(Path::new("/dev/null"), libc::O_RDWR));
            at(7, open(Path::new("/dev/urandom"), libc::O_RDONLY | libc::O_CLOEXEC));
            at(8, open(Path::new("/proc/self/status"), libc::O_RDONLY));
            assert_eq!(read(8, 6), b"Name:\t");
            at(9, open(Path::new("/sys/kernel"), libc::O_PATH));
            at(11, open(Path::new("/proc/cpuinfo"), libc::O_RDONLY));
            at(12, open(Path::new("/dev/zero"), libc::O_RDONLY | libc::O_NONBLOCK));
        },
        || {
            // SAFETY: no memory is touched.
            ok(unsafe { libc::fchdir(5) });
            assert!(std::env::current_dir().unwrap().ends_with("inside"));
            write(6, b"nowhere");
            assert_eq!(read(7, 16).len(), 16);
            assert!(closes_on_exec(7));
            let rest = String::from_utf8(read(8, 4096)).unwrap();
            assert!(rest.contains(&format!("\nPid:\t{}\n", std::process::id())), "{rest}");
            assert!(flags(9) & libc::O_PATH != 0);
            assert!(!read(11, 16).is_empty());
            assert!(read(12, 4) == [0; 4] && flags(12) & libc::O_NONBLOCK != 0);
        },
    );
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    ok(unsafe { libc::pipe(ends.as_mut_ptr()) });
    ends
}

fn handed_in(directory: &Path) {
    let image = directory.join("image");
    let declared = |fd| {
        let mut declared = standard();
        declared.handed_in.push(("log".to_owned(), fd));
        declared
    };
    in_child(|| {
        let [reader, writer] = pipe();
        at(20, writer);
        duplicate(20, 21);
        // Another description of the same pipe, as `open("/dev/stdout")` makes it.
        at(22, open(Path::new("/proc/self/fd/20"), libc::O_WRONLY | libc::O_NONBLOCK));
        close(reader);
        let files = describe(&declared(20), &[]);
        std::fs::write(&image, files.encode()).unwrap();
    });
    in_child(|| {
        let files = Files::decode(VERSION, &std::fs::read(&image).unwrap()).unwrap();
        let [reader, writer] = pipe();
        // Numbers that are in the way.
        at(22, reader);
        at(21, writer);
        let handed_in = declared(21).handed_in;
        let given = Given { handed_in: &handed_in, kept: &[22], ..Given::default() };
        let remade = remake(&files, &given).unwrap();
        write(20, b"a");
        write(21, b"b");
        write(22, b"c");
        assert_eq!(read(remade.kept[0], 10), b"abc");
        assert!(flags(22) & libc::O_NONBLOCK != 0 && flags(20) & libc::O_NONBLOCK == 0);
        for fd in [20, 21, 22] {
            close(fd);
        }
        assert_eq!(read(remade.kept[0], 10), b"", "nobody else has an end");
    });
    in_child(|| {
        let files = Files::decode(VERSION, &std::fs::read(&image).unwrap()).unwrap();
        let handed_in = standard().handed_in;
        let given = Given { handed_in: &handed_in, ..Given::default() };
        let error = remake(&files, &given).expect_err("nobody handed it in").to_string();
        assert!(error.contains("descriptor 20: \"log\" was not handed in"), "{error}");
    });
}

fn remade(directory: &Path) {
    let image = directory.join("image");
    in_child(|| {
        // SAFETY: no memory is touched.
        at(6, ok(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) }));
        at(7, open(Path::new("/dev/null"), libc::O_RDONLY));
        let declared = Declared { remade: vec![("transport".to_owned(), 6)], ..standard() };
        std::fs::write(&image, describe(&declared, &[]).encode()).unwrap();
    });
    in_child(|| {
        let files = Files::decode(VERSION, &std::fs::read(&image).unwrap()).unwrap();
        at(6, open(Path::new("/dev/zero"), libc::O_RDONLY));
        let handed_in = standard().handed_in;
        remake(&files, &Given { handed_in: &handed_in, ..Given::default() }).unwrap();
        assert_eq!(super::act::numbers(), [0, 1, 2, 7], "6 is free for its owner");
    });
}

fn high(directory: &Path) {
    through_an_image(
        directory,
        || {
            at(900, open(Path::new("/dev/zero"), libc::O_RDONLY));
        },
        || assert_eq!(read(900, 1), [0]),
    );
    describe_in_child(directory, || {
        at(60, open(Path::new("/dev/zero"), libc::O_RDONLY));
    });
    in_child(|| {
        let limit = libc::rlimit { rlim_cur: 32, rlim_max: 32 };
        // SAFETY: the kernel reads the limit.
        ok(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) });
        let error = remake_here(directory, Policy::default()).expect_err("beyond the limit").to_string();
        assert!(error.contains("hard limit (RLIMIT_NOFILE) is 32"), "{error}");
    });
}
