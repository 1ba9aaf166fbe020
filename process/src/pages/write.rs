//! Pages on their way into a file: straight from where they lie, in pieces of some megabytes; or, covered, by way of a buffer.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{COVER_TAG_BYTES, Cover, Run, Sum};
use crate::arch::PAGE_BYTES;
use crate::content::Noting;
use crate::sys::{self, Errno};

/// Bytes of one write.
const WRITE_BYTES: u64 = 4 << 20;
/// Pieces of one write.
const PIECES: usize = 256;

/// What was being written when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WriteFault {
    pub(crate) errno: Errno,
    /// Address of the first page of the write.
    pub(crate) address: u64,
}

/// Memory that changes while it is written, because the writer itself uses it, or threads that wait: it goes through a buffer, so
/// that the file gets the bytes that were summed.
pub(crate) struct InUse<'a> {
    /// Pages, rising: the writer's stack, and its checksum.
    pub(crate) ranges: [Range<u64>; 2],
    /// Addresses of pages that waiting threads use, rising.
    pub(crate) waiting: &'a [u64],
    /// The buffer, whole pages.
    pub(crate) buffer: &'a mut [u8],
}

impl InUse<'_> {
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
    /// Tells others how far it is.
    pub(crate) written: &'a AtomicU64,
    /// What covers the pages.
    pub(crate) cover: Option<&'a dyn Cover>,
}

/// Writes the content of `runs`; if it is covered, their tags behind it. The sum is of what is written, without tags; hashes are of what the pages hold.
pub(crate) fn write(
    runs: &[Run],
    target: Target<'_>,
    in_use: &mut InUse<'_>,
    sum: &mut dyn Sum,
    mut noting: Option<Noting<'_>>,
) -> Result<(), WriteFault> {
    if let Some(cover) = target.cover {
        return write_covered(runs, target, cover, in_use.buffer, sum, noting);
    }
    let mut pieces = [NOTHING; PIECES];
    let mut at = target.offset;
    let mut runs = runs.iter().copied();
    let mut rest: Option<Run> = None;
    loop {
        let (mut filled, mut bytes, mut address, mut buffered) = (0, 0, 0, 0usize);
        while filled < PIECES && bytes < WRITE_BYTES {
            let Some(run) = rest.take().or_else(|| runs.next()) else { break };
            let (is_in_use, mut take) = in_use.kind(run.source, run.bytes().min(WRITE_BYTES - bytes));
            let mut source = run.source;
            if is_in_use {
                let room = in_use.buffer.get_mut(buffered..).unwrap_or(&mut []);
                take = take.min(room.len() as u64);
                if take == 0 {
                    rest = Some(run);
                    break;
                }
                // SAFETY: the writer's own memory is mapped and readable; the buffer is none of it.
                unsafe {
                    std::ptr::copy_nonoverlapping(source as *const u8, room.as_mut_ptr(), take as usize);
                }
                source = room.as_ptr() as u64;
                buffered += take as usize;
            }
            if take < run.bytes() {
                let (after, left) = (run.address + take, run.bytes() - take);
                rest = Some(Run { source: run.source + take, ..Run::in_place(after, left) });
            }
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
            return Ok(());
        };
        // The write comes first: it finds out, without a signal, whether all of it can be read.
        all(pieces, target.sink, at).map_err(|errno| WriteFault { errno, address })?;
        at += bytes;
        for piece in &*pieces {
            // SAFETY: the kernel has just read these bytes, and nobody else runs who could take them away or change them.
            let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
            match &mut noting {
                None => sum.update(bytes),
                // Page by page: the second look finds it in the cache.
                Some(noting) => bytes.chunks(PAGE_BYTES as usize).for_each(|page| {
                    sum.update(page);
                    noting.note(page);
                }),
            }
        }
        target.written.store(at - target.offset, Ordering::Release);
    }
}

/// Pages that are covered at once, at most.
const COVERED_PAGES: usize = 64;

/// Copies as many pages as the buffer has room for, covers them there, and writes them. So what changes meanwhile does no harm.
fn write_covered(
    runs: &[Run],
    target: Target<'_>,
    cover: &dyn Cover,
    buffer: &mut [u8],
    sum: &mut dyn Sum,
    mut noting: Option<Noting<'_>>,
) -> Result<(), WriteFault> {
    // Where there is no room for a page, nothing can be done.
    let room = (buffer.len() / PAGE_BYTES as usize).min(COVERED_PAGES) as u64 * PAGE_BYTES;
    let tags_at = target.offset + runs.iter().map(Run::bytes).sum::<u64>();
    let (mut runs, mut rest) = (runs.iter().copied(), None::<Run>);
    let mut pages_done = 0;
    loop {
        let mut pieces = [NOTHING; COVERED_PAGES];
        let (mut filled, mut bytes, mut address) = (0, 0, 0);
        while bytes < room {
            let Some(run) = rest.take().or_else(|| runs.next()) else { break };
            let take = run.bytes().min(room - bytes);
            if take < run.bytes() {
                let (after, left) = (run.address + take, run.bytes() - take);
                rest = Some(Run { source: run.source + take, ..Run::in_place(after, left) });
            }
            if filled == 0 {
                address = run.address;
            }
            if let Some(piece) = pieces.get_mut(filled) {
                *piece = libc::iovec { iov_base: run.source as *mut _, iov_len: take as usize };
            }
            filled += 1;
            bytes += take;
        }
        let fault = |errno| WriteFault { errno, address };
        if bytes == 0 {
            let is_done = rest.is_none() && runs.next().is_none();
            return if is_done { Ok(()) } else { Err(fault(Errno(libc::ENOBUFS))) };
        }
        let taken = buffer.get_mut(..bytes as usize).ok_or(fault(Errno(libc::ENOBUFS)))?;
        sys::copy_own(pieces.get(..filled).unwrap_or(&[]), taken).map_err(fault)?;
        let mut tags = [0; COVERED_PAGES * COVER_TAG_BYTES];
        let mut tags_bytes = 0;
        for ((page, bytes), tag) in
            (pages_done..).zip(taken.chunks_mut(PAGE_BYTES as usize)).zip(tags.chunks_mut(COVER_TAG_BYTES))
        {
            if let Some(noting) = &mut noting {
                noting.note(bytes);
            }
            tag.copy_from_slice(&cover.cover(page, bytes));
            tags_bytes += COVER_TAG_BYTES;
        }
        let (done, tags_done) = (pages_done * PAGE_BYTES, pages_done * COVER_TAG_BYTES as u64);
        let one = |bytes: &[u8]| [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
        all(&mut one(taken), target.sink, target.offset + done).map_err(fault)?;
        let tags = tags.get(..tags_bytes).unwrap_or(&[]);
        all(&mut one(tags), target.sink, tags_at + tags_done).map_err(fault)?;
        sum.update(taken);
        pages_done += bytes / PAGE_BYTES;
        target.written.store(pages_done * PAGE_BYTES, Ordering::Release);
    }
}

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Writes all pieces. They are as they were when it returns.
fn all(pieces: &mut [libc::iovec], sink: RawFd, offset: u64) -> Result<(), Errno> {
    let (mut first, mut done_of_first, mut at) = (0, 0usize, offset);
    while let Some(left) = pieces.get_mut(first..).filter(|left| !left.is_empty()) {
        let Some(head) = left.first_mut() else { return Ok(()) };
        let whole = *head;
        head.iov_base = whole.iov_base.wrapping_byte_add(done_of_first);
        head.iov_len = whole.iov_len - done_of_first;
        // SAFETY: what cannot be read ends the call with EFAULT.
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
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    struct Count(u64, u64);

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

    #[test]
    fn runs_come_one_after_the_other_and_large_ones_in_pieces() {
        let pages = 3000usize;
        let memory: Vec<u8> = (0..(pages + 1) * 4096).map(|at| (at / 4096 * 7 + at % 13) as u8).collect();
        let start = memory.as_ptr() as u64;
        let base = start.next_multiple_of(4096);
        // One longer than a write, then more short ones than a write has pieces.
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
        let (mut sum, written) = (Count(0, 0), AtomicU64::new(0));
        let target = Target { sink: file.as_raw_fd(), offset: 8192, written: &written, cover: None };
        // Of these pages, some go through a buffer that is smaller than they are.
        let mut buffer = vec![0; 2 * 4096];
        let page = |n: u64| base + n * 4096;
        let ranges = [page(5)..page(12), page(2290)..page(2310)];
        let waiting = [page(0), page(100), page(101), page(2293), page(2302), page(2999)];
        let mut in_use = InUse { ranges, waiting: &waiting, buffer: &mut buffer };
        write(&runs, target, &mut in_use, &mut sum, None).expect("room for it");
        assert_eq!(written.load(Ordering::Relaxed), expected.len() as u64);
        let mut read = vec![0; expected.len()];
        file.read_exact_at(&mut read, 8192).expect("as many bytes");
        assert!(read == expected);
        let mut whole = Count(0, 0);
        whole.update(&expected);
        assert_eq!((whole.0, whole.1), (sum.0, sum.1));
    }

    /// Every byte of a page is changed by its number.
    struct Masked;

    impl Cover for Masked {
        fn cover(&self, page: u64, bytes: &mut [u8]) -> [u8; COVER_TAG_BYTES] {
            bytes.iter_mut().for_each(|byte| *byte ^= page as u8 | 0x80);
            [page as u8; COVER_TAG_BYTES]
        }
    }

    #[test]
    fn what_is_covered_is_never_written_as_it_is_and_has_its_tags_behind_it() {
        let memory: Vec<u8> = (0..201 * 4096).map(|at| (at / 4096 * 7 + at % 13) as u8).collect();
        let before = memory.clone();
        let start = memory.as_ptr() as u64;
        let base = start.next_multiple_of(4096);
        // Longer than the buffer, then more short ones than it has room for.
        let mut runs = vec![Run { address: 0x1000, source: base, pages: 70 }];
        runs.extend((0..60).map(|n| Run { address: n << 40, source: base + (71 + 2 * n) * 4096, pages: 1 }));
        let pages: Vec<&[u8]> = runs
            .iter()
            .flat_map(|run| memory[(run.source - start) as usize..][..run.bytes() as usize].chunks(4096))
            .collect();
        let file = tempfile::tempfile().expect("a temporary file");
        let (mut sum, written) = (Count(0, 0), AtomicU64::new(0));
        let target = Target { sink: file.as_raw_fd(), offset: 8192, written: &written, cover: Some(&Masked) };
        let mut in_use = InUse { ranges: [0..0, 0..0], waiting: &[], buffer: &mut [0; 17 * 4096 + 5] };
        write(&runs, target, &mut in_use, &mut sum, None).expect("room for it");
        assert_eq!(written.load(Ordering::Relaxed), 130 * 4096);
        let mut read = vec![0; 130 * (4096 + COVER_TAG_BYTES)];
        file.read_exact_at(&mut read, 8192).expect("as many bytes, and as many tags");
        let (content, tags) = read.split_at(130 * 4096);
        for (number, (found, page)) in content.chunks(4096).zip(&pages).enumerate() {
            let mut expected = page.to_vec();
            assert_eq!(Masked.cover(number as u64, &mut expected), tags[number * 16..][..16], "{number}");
            assert!(found == expected, "{number}");
        }
        let mut whole = Count(0, 0);
        whole.update(content);
        assert_eq!((whole.0, whole.1), (sum.0, sum.1), "the sum is of what lies in the file");
        assert!(memory == before, "the program's memory stays as it is");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let file = tempfile::tempfile().expect("a temporary file");
        let runs = [Run { address: 0x7000, source: 0x1000, pages: 1 }];
        let target = Target { sink: file.as_raw_fd(), offset: 0, written: &AtomicU64::new(0), cover: None };
        let mut in_use = InUse { ranges: [0..0, 0..0], waiting: &[], buffer: &mut [] };
        let fault = write(&runs, target, &mut in_use, &mut Count(0, 0), None);
        assert_eq!(fault, Err(WriteFault { errno: Errno(libc::EFAULT), address: 0x7000 }));
        let mut in_use = InUse { ranges: [0..0, 0..0], waiting: &[], buffer: &mut [0; 4096] };
        let target = Target { cover: Some(&Masked), ..target };
        let fault = write(&runs, target, &mut in_use, &mut Count(0, 0), None);
        assert_eq!(fault, Err(WriteFault { errno: Errno(libc::EFAULT), address: 0x7000 }));
    }
}
