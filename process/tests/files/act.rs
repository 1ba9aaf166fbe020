//! The two children of a scenario, and calls that fail loudly.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;

use process::declared::Declared;
use process::files::{FileId, Given, Policy, PrepareError, Remade, RemakeError, prepare, remake};
use process::state::{Files, VERSION};

use super::FORBIDDEN;

/// Standard input, output and error, as a launcher declares them.
pub(crate) fn standard() -> Declared {
    let names = ["stdin", "stdout", "stderr"].into_iter().zip(0..);
    let handed_in = names.map(|(name, fd): (&str, RawFd)| (name.to_owned(), fd)).collect();
    Declared { handed_in, ..Declared::new() }
}

/// Does something in a child, and fails as it fails.
pub(crate) fn in_child(act: impl FnOnce()) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: descriptors that cargo left open have no owner here.
        unsafe { libc::close_range(3, u32::MAX, 0) };
        let ended = catch_unwind(AssertUnwindSafe(act));
        // SAFETY: the child ends without the parent's ends.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: room for a status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

/// Describes the descriptors of this process, the look under an allocator that ends the process.
pub(crate) fn describe(declared: &Declared, mapped: &[FileId]) -> Files {
    let mut prepared = prepare(declared, mapped.to_vec()).unwrap_or_else(|error| panic!("{error}"));
    FORBIDDEN.store(true, Ordering::Relaxed);
    let first = prepared.look();
    let second = prepared.look();
    FORBIDDEN.store(false, Ordering::Relaxed);
    first.unwrap();
    second.unwrap();
    let files = prepared.finish(mapped).expect("what could be saved before");
    assert_eq!(Files::decode(VERSION, &files.encode()).as_ref(), Ok(&files));
    files
}

/// Why this process's descriptors cannot be saved.
pub(crate) fn refusals(declared: &Declared) -> Vec<(u32, String)> {
    match prepare(declared, Vec::new()) {
        Err(PrepareError::Refused(refusals)) => {
            refusals.iter().map(|refusal| (refusal.number, refusal.to_string())).collect()
        }
        Err(error) => panic!("{error}"),
        Ok(_) => Vec::new(),
    }
}

/// Opens in one child, and checks the result in another one.
pub(crate) fn through_an_image(directory: &Path, open: impl FnOnce(), check: impl FnOnce()) {
    describe_in_child(directory, open);
    in_child(|| {
        remake_here(directory, Policy::default()).unwrap_or_else(|error| panic!("{error}"));
        check();
    });
}

/// The first half of [`through_an_image`].
pub(crate) fn describe_in_child(directory: &Path, open: impl FnOnce()) {
    in_child(|| {
        open();
        let files = describe(&standard(), &[]);
        std::fs::write(directory.join("image"), files.encode()).unwrap();
    });
}

/// The second half: makes the described files anew.
pub(crate) fn remake_here(directory: &Path, policy: Policy) -> Result<Remade, RemakeError> {
    let files = Files::decode(VERSION, &std::fs::read(directory.join("image")).unwrap()).unwrap();
    // They lie where others belong.
    let kept =
        [open(&directory.join("image"), libc::O_RDONLY), open(&directory.join("image"), libc::O_RDONLY)];
    let handed_in = standard().handed_in;
    let given = Given { handed_in: &handed_in, kept: &kept, policy, ..Given::default() };
    let remade = remake(&files, &given)?;
    for fd in &remade.kept {
        assert!(remade.kept.len() == 2 && read(*fd, 4).len() == 4, "what is kept can be read");
        close(*fd);
    }
    let mut wanted: Vec<RawFd> =
        files.descriptors.iter().map(|descriptor| descriptor.number.cast_signed()).collect();
    wanted.sort_unstable();
    assert_eq!(numbers(), wanted, "these numbers and no others are open");
    Ok(remade)
}

/// The open descriptors, rising.
pub(crate) fn numbers() -> Vec<RawFd> {
    let listed = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut numbers: Vec<RawFd> =
        listed.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    // The list itself is closed by now.
    numbers.retain(|fd| unsafe_flags(*fd) >= 0);
    numbers.sort_unstable();
    numbers
}

fn unsafe_flags(fd: RawFd) -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::fcntl(fd, libc::F_GETFD) }
}

pub(crate) fn ok(answer: i32) -> i32 {
    assert!(answer >= 0, "{}", std::io::Error::last_os_error());
    answer
}

pub(crate) fn open(path: &Path, flags: i32) -> RawFd {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with a zero byte.
    ok(unsafe { libc::open(path.as_ptr(), flags, 0o600) })
}

/// Moves a descriptor to a number, where the scenario finds it again.
pub(crate) fn at(number: RawFd, fd: RawFd) -> RawFd {
    if fd != number {
        // SAFETY: no memory is touched.
        let flags = if ok(unsafe { libc::fcntl(fd, libc::F_GETFD) }) & libc::FD_CLOEXEC != 0 {
            libc::O_CLOEXEC
        } else {
            0
        };
        // SAFETY: no memory is touched.
        ok(unsafe { libc::dup3(fd, number, flags) });
        close(fd);
    }
    number
}

pub(crate) fn close(fd: RawFd) {
    // SAFETY: the scenario's own.
    ok(unsafe { libc::close(fd) });
}

pub(crate) fn duplicate(fd: RawFd, number: RawFd) {
    // SAFETY: no memory is touched.
    ok(unsafe { libc::dup2(fd, number) });
}

pub(crate) fn write(fd: RawFd, bytes: &[u8]) {
    // SAFETY: the kernel reads the bytes.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(usize::try_from(written), Ok(bytes.len()), "{}", std::io::Error::last_os_error());
}

/// At most `most` bytes of one read.
pub(crate) fn try_read(fd: RawFd, most: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; most];
    // SAFETY: room for as many.
    let read = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), most) };
    let read = usize::try_from(read).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())?;
    bytes.truncate(read);
    Ok(bytes)
}

pub(crate) fn read(fd: RawFd, most: usize) -> Vec<u8> {
    try_read(fd, most).unwrap_or_else(|error| panic!("read: {}", std::io::Error::from_raw_os_error(error)))
}

pub(crate) fn read_number(fd: RawFd) -> u64 {
    u64::from_ne_bytes(read(fd, 8).try_into().unwrap())
}

pub(crate) fn seek(fd: RawFd, offset: i64, whence: i32) -> i64 {
    // SAFETY: no memory is touched.
    let at = unsafe { libc::lseek(fd, offset, whence) };
    assert!(at >= 0, "{}", std::io::Error::last_os_error());
    at
}

pub(crate) fn flags(fd: RawFd) -> i32 {
    // SAFETY: no memory is touched.
    ok(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

pub(crate) fn closes_on_exec(fd: RawFd) -> bool {
    ok(unsafe_flags(fd)) & libc::FD_CLOEXEC != 0
}
