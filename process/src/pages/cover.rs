//! Pages on their way into an encrypted file: they are copied into a buffer, encrypted there, and written from there.

use std::sync::atomic::Ordering;

use super::write::{NOTHING, Progress, Target, WriteFault, all};
use super::{COVER_TAG_BYTES, Cover, Run, Sum};
use crate::arch::PAGE_BYTES;
use crate::content::Noting;
use crate::sys::{self, Errno};

/// Pages that are covered at once, at most.
const COVERED_PAGES: usize = 64;

/// Copies as many pages as the buffer has room for, encrypts them there, and writes them. So a change
/// meanwhile does no harm. Returns the bytes of these pages: 0 if none was left.
pub(super) fn cover_some(
    runs: &[Run],
    progress: &mut Progress,
    (target, cover): (Target<'_>, &dyn Cover),
    buffer: &mut [u8],
    sum: &mut dyn Sum,
    mut noting: Option<&mut Noting<'_>>,
) -> Result<u64, WriteFault> {
    let room = (buffer.len() / PAGE_BYTES as usize).min(COVERED_PAGES) as u64 * PAGE_BYTES;
    let room = room.min(target.at_once(room));
    let mut pieces = [NOTHING; COVERED_PAGES];
    let (mut filled, mut bytes, mut address) = (0, 0, 0);
    while let Some(run) = progress.next(runs) {
        let take = run.bytes().min(room - bytes);
        progress.leave_rest(run, take);
        if take == 0 {
            break;
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
    if bytes == 0 {
        return progress.at_the_end();
    }
    let fault = |errno| WriteFault { errno, address };
    let taken = buffer.get_mut(..bytes as usize).ok_or(fault(Errno(libc::ENOBUFS)))?;
    sys::copy_own(pieces.get(..filled).unwrap_or(&[]), taken).map_err(fault)?;
    let pages_done = progress.bytes / PAGE_BYTES;
    let mut tags = [0; COVERED_PAGES * COVER_TAG_BYTES];
    let mut tags_bytes = 0;
    let pages = (pages_done..).zip(taken.chunks_mut(PAGE_BYTES as usize));
    for ((page, bytes), tag) in pages.zip(tags.chunks_mut(COVER_TAG_BYTES)) {
        if let Some(noting) = noting.as_deref_mut() {
            noting.note(bytes);
        }
        tag.copy_from_slice(&cover.cover(page, bytes));
        tags_bytes += COVER_TAG_BYTES;
    }
    let one = |bytes: &[u8]| [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
    let offset = target.offset + progress.bytes;
    all(&mut one(taken), target.sink, offset).map_err(fault)?;
    // Not the tags: they are few, and the next bytes lie in the same page of the file.
    target.passed_on(offset, bytes);
    let (tags, tags_done) = (tags.get(..tags_bytes).unwrap_or(&[]), pages_done * COVER_TAG_BYTES as u64);
    all(&mut one(tags), target.sink, target.tags_at + tags_done).map_err(fault)?;
    sum.update(taken);
    progress.bytes += bytes;
    target.written.store(progress.bytes, Ordering::Release);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicU64;

    use super::super::write::tests::{Count, PaceRecord};
    use super::super::{InUse, Pace as _, write};
    use super::*;

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
        let target = Target {
            sink: file.as_raw_fd(),
            offset: 8192,
            written: &written,
            cover: Some(&Masked),
            tags_at: 8192 + 130 * 4096,
            piece_bytes: Some(PaceRecord::default().piece_bytes()),
        };
        let mut room = [0; 17 * 4096 + 5];
        let mut in_use = InUse::nothing(&mut room);
        let mut pace = PaceRecord::default();
        write(&runs, target, &mut in_use, &mut sum, None, Some(&mut pace)).expect("room for it");
        assert_eq!(written.load(Ordering::Relaxed), 130 * 4096);
        assert_eq!(
            (pace.0, pace.1),
            (130 * 4096, PaceRecord::LARGEST),
            "all of it is held back, piece by piece"
        );
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
    fn what_cannot_be_covered_is_named() {
        let file = tempfile::tempfile().expect("a temporary file");
        let runs = [Run { address: 0x7000, source: 0x1000, pages: 1 }];
        let written = AtomicU64::new(0);
        let target = Target {
            sink: file.as_raw_fd(),
            offset: 0,
            written: &written,
            cover: Some(&Masked),
            tags_at: 4096,
            piece_bytes: None,
        };
        let failed = |buffer: &mut [u8]| {
            let mut in_use = InUse::nothing(buffer);
            write(&runs, target, &mut in_use, &mut Count(0, 0), None, None).map_err(|fault| fault.errno)
        };
        assert_eq!(failed(&mut [0; 4096]), Err(Errno(libc::EFAULT)), "it cannot be read");
        assert_eq!(failed(&mut [0; 4095]), Err(Errno(libc::ENOBUFS)), "there is no room for it");
    }
}
