//! Pages on their way into a file: straight from where they lie, in pieces of some megabytes.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cover::cover_some;
use super::{Cover, Pace, Run, Sum};
use crate::arch::PAGE_BYTES;
use crate::content::Noting;
use crate::sys::{self, Errno};

/// Bytes of one write.
const WRITE_BYTES: u64 = 4 << 20;
/// Pieces of one write.
const PIECES: usize = 256;

/// The data being written when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WriteFault {
    pub(crate) errno: Errno,
    /// Address of the first page of the write.
    pub(crate) address: u64,
}

/// Memory that changes while it is written, because the writer itself uses it, or threads that wait: it goes through a buffer, so
/// that the file gets the bytes that were summed.
pub(crate) struct InUse<'a> {
    /// Pages, rising: the writer's stack, its checksum, its pace.
    pub(crate) ranges: [Range<u64>; 3],
    /// Addresses of pages that waiting threads use, rising.
    pub(crate) waiting: &'a [u64],
    /// The buffer, whole pages.
    pub(crate) buffer: &'a mut [u8],
}

impl<'a> InUse<'a> {
    /// Nothing is in use.
    pub(crate) fn nothing(buffer: &'a mut [u8]) -> InUse<'a> {
        InUse { ranges: [0..0, 0..0, 0..0], waiting: &[], buffer }
    }
    /// How much from `address` on, at most `bytes`, is of one kind: in use, or not.
    pub(crate) fn kind(&self, address: u64, bytes: u64) -> (bool, u64) {
        let mut until = address + bytes;
        for range in &self.ranges {
            if range.contains(&address) {
                return (true, range.end.min(until) - address);
            }
            if address < range.start {
                until = until.min(range.start);
            }
        }
        let next = self.waiting.partition_point(|page| page + PAGE_BYTES <= address);
        match self.waiting.get(next) {
            Some(page) if *page <= address => return (true, until.min(page + PAGE_BYTES) - address),
            Some(page) => until = until.min(*page),
            None => {}
        }
        (false, until - address)
    }
}

/// Where the pages go.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) sink: RawFd,
    pub(crate) offset: u64,
    /// Its progress, for others.
    pub(crate) written: &'a AtomicU64,
    /// The encryption of the pages; `None`: they are written in plain.
    pub(crate) cover: Option<&'a dyn Cover>,
    /// Where their tags go then: behind all pages.
    pub(crate) tags_at: u64,
    /// If writing is limited: the bytes written at once. Each piece is passed on to the disk then: otherwise the disk
    /// would get all at once when the file is made durable.
    pub(crate) piece_bytes: Option<u64>,
}

impl Target<'_> {
    /// How much to write at once, if it could be so much: whole pages.
    pub(super) fn at_once(&self, bytes_max: u64) -> u64 {
        let bytes = self.piece_bytes.map_or(bytes_max, |piece| piece.min(bytes_max));
        (bytes / PAGE_BYTES).max(1) * PAGE_BYTES
    }

    /// So many bytes have been written, from there on.
    pub(super) fn passed_on(&self, offset: u64, bytes: u64) {
        if self.piece_bytes.is_some() {
            sys::begin_write_back(self.sink, offset, bytes);
        }
    }
}

/// How far runs have been written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Runs that were begun.
    begun: usize,
    /// Of the last one of them.
    rest: Option<Run>,
    pub(super) bytes: u64,
}

impl Progress {
    pub(super) fn next(&mut self, runs: &[Run]) -> Option<Run> {
        self.rest.take().or_else(|| {
            let next = runs.get(self.begun)?;
            self.begun += 1;
            Some(*next)
        })
    }

    /// So many bytes of a run were taken.
    pub(super) fn leave_rest(&mut self, run: Run, taken: u64) {
        if taken < run.bytes() {
            let (after, left) = (run.address + taken, run.bytes() - taken);
            self.rest = Some(Run { source: run.source + taken, ..Run::in_place(after, left) });
        }
    }

    /// Nothing was taken, because nothing is left; or else because a buffer has no room for a page.
    pub(super) fn at_the_end(&self) -> Result<u64, WriteFault> {
        match self.rest {
            None => Ok(0),
            Some(run) => Err(WriteFault { errno: Errno(libc::ENOBUFS), address: run.address }),
        }
    }
}

/// Writes the content of `runs`, as fast as the pace has it; if it is covered, their tags behind it. The sum covers the
/// written bytes, without tags; hashes cover the pages' plain contents.
pub(crate) fn write(
    runs: &[Run],
    target: Target<'_>,
    in_use: &mut InUse<'_>,
    sum: &mut dyn Sum,
    mut noting: Option<&mut Noting<'_>>,
    mut pace: Option<&mut (dyn Pace + 'static)>,
) -> Result<(), WriteFault> {
    let mut progress = Progress::default();
    loop {
        let bytes = write_some(runs, &mut progress, target, in_use, sum, noting.as_deref_mut())?;
        if bytes == 0 {
            return Ok(());
        }
        match pace.as_mut().map_or(0, |pace| pace.wait_ns(bytes)) {
            0 => {}
            wait => sys::sleep_ns(wait),
        }
    }
}

/// Makes the next write, and returns its bytes: 0 if nothing was left.
pub(crate) fn write_some(
    runs: &[Run],
    progress: &mut Progress,
    target: Target<'_>,
    in_use: &mut InUse<'_>,
    sum: &mut dyn Sum,
    mut noting: Option<&mut Noting<'_>>,
) -> Result<u64, WriteFault> {
    if let Some(cover) = target.cover {
        return cover_some(runs, progress, (target, cover), in_use.buffer, sum, noting);
    }
    let mut pieces = [NOTHING; PIECES];
    let at_once = target.at_once(WRITE_BYTES);
    let (mut filled, mut bytes, mut address, mut buffered) = (0, 0, 0, 0usize);
    while filled < PIECES && bytes < at_once {
        let Some(run) = progress.next(runs) else { break };
        let (is_in_use, mut take) = in_use.kind(run.source, run.bytes().min(at_once - bytes));
        let mut source = run.source;
        if is_in_use {
            let room = in_use.buffer.get_mut(buffered..).unwrap_or(&mut []);
            take = take.min(room.len() as u64);
            if take == 0 {
                progress.leave_rest(run, 0);
                break;
            }
            // SAFETY: the writer's own memory is mapped and readable; the buffer is none of it.
            unsafe {
                std::ptr::copy_nonoverlapping(source as *const u8, room.as_mut_ptr(), take as usize);
            }
            source = room.as_ptr() as u64;
            buffered += take as usize;
        }
        progress.leave_rest(run, take);
        if filled == 0 {
            address = run.address;
        }
        if let Some(piece) = pieces.get_mut(filled) {
            *piece = libc::iovec { iov_base: source as *mut _, iov_len: take as usize };
        }
        filled += 1;
        bytes += take;
    }
    let Some(pieces) = pieces.get_mut(..filled).filter(|pieces| !pieces.is_empty()) else {
        return progress.at_the_end();
    };
    // The write comes first: it finds out, without a signal, whether all of it can be read.
    let offset = target.offset + progress.bytes;
    all(pieces, target.sink, offset).map_err(|errno| WriteFault { errno, address })?;
    target.passed_on(offset, bytes);
    progress.bytes += bytes;
    for piece in &*pieces {
        // SAFETY: the kernel has just read these bytes, and no other thread runs that could remove or change them.
        let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
        match noting.as_deref_mut() {
            None => sum.update(bytes),
            // Page by page: the second look finds it in the cache.
            Some(noting) => bytes.chunks(PAGE_BYTES as usize).for_each(|page| {
                sum.update(page);
                noting.note(page);
            }),
        }
    }
    target.written.store(progress.bytes, Ordering::Release);
    Ok(bytes)
}

pub(super) const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Writes all pieces. They are as they were when it returns.
pub(super) fn all(pieces: &mut [libc::iovec], sink: RawFd, offset: u64) -> Result<(), Errno> {
    let (mut first, mut done_of_first, mut at) = (0, 0usize, offset);
    while let Some(left) = pieces.get_mut(first..).filter(|left| !left.is_empty()) {
        let Some(head) = left.first_mut() else { return Ok(()) };
        let whole = *head;
        head.iov_base = whole.iov_base.wrapping_byte_add(done_of_first);
        head.iov_len = whole.iov_len - done_of_first;
        // SAFETY: memory that cannot be read ends the call with EFAULT.
        let answer = unsafe { sys::write_vector_at(sink, left, at) };
        if let Some(head) = left.first_mut() {
            *head = whole;
        }
        let mut written = match answer {
            Ok(0) => return Err(Errno(libc::ENOSPC)),
            Ok(written) => written,
            Err(Errno(libc::EINTR)) => continue,
            Err(Errno(libc::EINVAL)) if stop_direct(sink) => continue,
            Err(errno) => return Err(errno),
        };
        at += written as u64;
        while let Some(piece) = pieces.get(first).filter(|piece| written >= piece.iov_len - done_of_first) {
            written -= piece.iov_len - done_of_first;
            (first, done_of_first) = (first + 1, 0);
        }
        done_of_first += written;
    }
    Ok(())
}

/// A file system that takes no direct writes, or not from these addresses, gets them through the page cache. Whether this
/// changed anything.
fn stop_direct(sink: RawFd) -> bool {
    let fcntl = |command: i32, argument: usize| {
        // SAFETY: no memory is touched.
        unsafe { sys::call(libc::SYS_fcntl, [sink as usize, command as usize, argument, 0, 0, 0]) }
    };
    let direct = libc::O_DIRECT as usize;
    match fcntl(libc::F_GETFL, 0) {
        Ok(flags) if flags & direct != 0 => fcntl(libc::F_SETFL, flags & !direct).is_ok(),
        _ => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    pub(in crate::pages) struct Count(pub(in crate::pages) u64, pub(in crate::pages) u64);

    impl Sum for Count {
        fn update(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(*byte));
            }
            self.1 += bytes.len() as u64;
        }

        fn value(&self) -> u64 {
            self.0
        }
    }

    /// Counts reported bytes: the total, and the largest piece.
    #[derive(Default)]
    pub(in crate::pages) struct PaceRecord(pub(in crate::pages) u64, pub(in crate::pages) u64);

    impl PaceRecord {
        /// Of whole pages.
        pub(in crate::pages) const LARGEST: u64 = 12 * 4096;
    }

    impl Pace for PaceRecord {
        fn piece_bytes(&self) -> u64 {
            PaceRecord::LARGEST + 1
        }

        fn wait_ns(&mut self, bytes: u64) -> u64 {
            self.0 += bytes;
            self.1 = self.1.max(bytes);
            1
        }
    }

    #[test]
    fn runs_come_one_after_the_other_and_large_ones_in_pieces() {
        let pages = 3000usize;
        let memory: Vec<u8> = (0..(pages + 1) * 4096).map(|at| (at / 4096 * 7 + at % 13) as u8).collect();
        let start = memory.as_ptr() as u64;
        let base = start.next_multiple_of(4096);
        // One longer than any write, then more short ones than a write has pieces.
        let mut runs = vec![Run { address: 0x1000, source: base, pages: 2300 }];
        runs.extend((0..300).map(|n| Run {
            address: n << 40,
            source: base + (2300 + 2 * n) * 4096,
            pages: 1,
        }));
        let expected: Vec<u8> = runs
            .iter()
            .flat_map(|run| {
                let from = (run.source - start) as usize;
                memory[from..from + run.bytes() as usize].iter().copied()
            })
            .collect();
        let file = tempfile::tempfile().expect("a temporary file");
        let written = AtomicU64::new(0);
        let target = Target {
            sink: file.as_raw_fd(),
            offset: 8192,
            written: &written,
            cover: None,
            tags_at: 0,
            piece_bytes: None,
        };
        // Of these pages, some go through a buffer that is smaller than they are.
        let mut buffer = vec![0; 2 * 4096];
        let page = |n: u64| base + n * 4096;
        let ranges = [page(5)..page(12), page(2290)..page(2310), page(2995)..page(2996)];
        let waiting = [page(0), page(100), page(101), page(2293), page(2302), page(2999)];
        let mut in_use = InUse { ranges, waiting: &waiting, buffer: &mut buffer };
        let mut whole = Count(0, 0);
        whole.update(&expected);
        // As fast as it goes, and held back.
        for piece_bytes in [None, Some(PaceRecord::default().piece_bytes())] {
            let (mut sum, mut pace) = (Count(0, 0), PaceRecord::default());
            let target = Target { piece_bytes, ..target };
            file.set_len(0).expect("an empty file");
            write(&runs, target, &mut in_use, &mut sum, None, Some(&mut pace)).expect("room for it");
            assert_eq!(written.load(Ordering::Relaxed), expected.len() as u64);
            assert_eq!(pace.0, expected.len() as u64, "all of it is held back");
            assert_eq!(pace.1 > PaceRecord::LARGEST, piece_bytes.is_none(), "a piece of {} bytes", pace.1);
            let mut read = vec![0; expected.len()];
            file.read_exact_at(&mut read, 8192).expect("as many bytes");
            assert!(read == expected);
            assert_eq!((whole.0, whole.1), (sum.0, sum.1));
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let file = tempfile::tempfile().expect("a temporary file");
        let runs = [Run { address: 0x7000, source: 0x1000, pages: 1 }];
        let written = AtomicU64::new(0);
        let target = Target {
            sink: file.as_raw_fd(),
            offset: 0,
            written: &written,
            cover: None,
            tags_at: 0,
            piece_bytes: None,
        };
        let mut in_use = InUse::nothing(&mut []);
        let fault = write(&runs, target, &mut in_use, &mut Count(0, 0), None, None);
        assert_eq!(fault, Err(WriteFault { errno: Errno(libc::EFAULT), address: 0x7000 }));
        // The page is in use, and there is no room to copy it to.
        in_use.ranges[0] = 0x1000..0x2000;
        let fault = write(&runs, target, &mut in_use, &mut Count(0, 0), None, None);
        assert_eq!(fault, Err(WriteFault { errno: Errno(libc::ENOBUFS), address: 0x7000 }));
    }
}
