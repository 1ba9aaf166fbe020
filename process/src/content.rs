//! A hash of each page when all of them were saved, so that a later image need hold only different ones. For kernels
//! that do not report written pages ([`crate::track`]).
//!
//! A page with an unchanged hash is taken for unchanged, without a comparison of bytes: they are on a disk. So the hash
//! has 128 bits. A page that was changed is compared with one hash, that of its own older content; 65,536 processes of
//! 4 GiB that change every page and are saved every minute make 2^55 such comparisons a year. One in 2^64 would be
//! wrong: with 64 bits one such year in 500 would have an image with an old page in it, without any sign of it; with
//! 128 bits none has. The hash is XXH3, which finds accidents and is no defence by itself against a person who makes
//! two pages of one hash; its secret is random in each table, and never leaves the process.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_128_with_secret;

use crate::arch::PAGE_BYTES;
use crate::declared::Declared;
use crate::maps;
use crate::pages::{InUse, Run, Runs};
use crate::scratch::Scratch;
use crate::state::memory::PageRun;
use crate::sys::{self, Answer};

/// As long as XXH3's own.
const SECRET_BYTES: usize = 192;

/// A hash of 128 bits, in halves. Its writer is another process than its reader, and ends before.
type Slot = [AtomicU64; 2];

/// The hashes of the pages of one image that holds all of them. In memory of its own, which is in no image, and of which a fork copies nothing.
pub struct Hashes {
    /// In the order in which the image has the pages.
    slots: &'static [Slot],
    secret: [u8; SECRET_BYTES],
    /// The image's pages.
    runs: Vec<PageRun>,
    // After `slots`, which lie in it.
    scratch: Scratch,
}

impl Hashes {
    /// Room for so many pages. It costs only the filled part.
    pub(crate) fn new(pages: u64) -> Answer<Hashes> {
        let scratch = Scratch::new(pages.max(1) * size_of::<Slot>() as u64)?;
        // SAFETY: aligned as a page, of a type that may be all zeros, and not referred to elsewhere; it lives as long
        // as the scratch, which is dropped with it.
        let slots: &'static [Slot] = unsafe { scratch.slice(0, pages as usize) };
        let mut secret = [0; SECRET_BYTES];
        // SAFETY: as many bytes; so few come whole.
        unsafe { sys::call(libc::SYS_getrandom, [secret.as_mut_ptr() as usize, SECRET_BYTES, 0, 0, 0, 0]) }?;
        Ok(Hashes { slots, secret, runs: Vec::new(), scratch })
    }

    /// Declares that no image needs its memory.
    pub fn declare(&self, declared: &mut Declared) {
        declared.ignored_memory.push(self.memory());
    }

    /// For a restored process: nothing is mapped there, or something else.
    pub fn forget(self: Arc<Hashes>) {
        std::mem::forget(self);
    }

    pub(crate) fn memory(&self) -> Range<u64> {
        self.scratch.range()
    }

    /// The image is whole: these are its pages.
    pub(crate) fn belong_to(mut self, runs: &[PageRun]) -> Arc<Hashes> {
        self.runs = runs.to_vec();
        Arc::new(self)
    }

    fn hash(&self, page: &[u8]) -> [u64; 2] {
        let hash = xxh3_128_with_secret(page, &self.secret);
        [hash as u64, (hash >> 64) as u64]
    }

    /// Notes the content of the page of that number. One for which there is no room counts as changed later.
    fn note(&self, number: usize, page: &[u8]) {
        if let Some(slot) = self.slots.get(number) {
            for (half, hash) in slot.iter().zip(self.hash(page)) {
                half.store(hash, Ordering::Relaxed);
            }
        }
    }
}

/// Records the hashes of written pages.
pub(crate) struct Noting<'a> {
    hashes: &'a Hashes,
    number: usize,
}

impl<'a> Noting<'a> {
    pub(crate) fn new(hashes: &'a Hashes) -> Noting<'a> {
        Noting { hashes, number: 0 }
    }

    /// The next page.
    pub(crate) fn note(&mut self, page: &[u8]) {
        self.hashes.note(self.number, page);
        self.number += 1;
    }
}

/// Finds the slots of pages whose addresses rise.
struct Slots<'a> {
    hashes: &'a Hashes,
    run: usize,
    /// Pages of the runs before.
    before: u64,
}

impl<'a> Slots<'a> {
    fn at(&mut self, address: u64) -> Option<&'a Slot> {
        while let Some(run) = self.hashes.runs.get(self.run) {
            let page = address.checked_sub(run.address)? / PAGE_BYTES;
            if page < run.pages {
                return self.hashes.slots.get((self.before + page) as usize);
            }
            self.before += run.pages;
            self.run += 1;
        }
        None
    }
}

/// Parts pages into those that are changed, or cannot be compared, and those that are not. `found` rises, and
/// lies in `maps`.
///
/// Only memory is compared that no other process can remove or change meanwhile: private memory without a file, and
/// copies of shared memory.
pub(crate) fn part(
    found: &[Run],
    maps: &[u8],
    in_use: &InUse<'_>,
    hashes: &Hashes,
    (changed, unchanged): (&mut Runs<'_>, &mut Runs<'_>),
) -> Answer<()> {
    let mut slots = Slots { hashes, run: 0, before: 0 };
    let mut lines = maps::lines(maps).flatten().peekable();
    for run in found {
        let piece = |done: u64, bytes: u64| Run {
            address: run.address + done,
            source: run.source + done,
            pages: bytes / PAGE_BYTES,
        };
        let mut done = 0;
        while done < run.bytes() {
            let address = run.address + done;
            while lines.next_if(|line| line.end <= address).is_some() {}
            let line = lines.peek().filter(|line| line.start <= address);
            let left = line.map_or(PAGE_BYTES, |line| line.end - address).min(run.bytes() - done);
            let (is_in_use, bytes) = in_use.kind(run.source + done, left);
            let is_copy = run.source != run.address;
            let stays = line.is_some_and(|line| line.is_anonymous() || (line.is_shared && is_copy));
            if is_in_use || !stays {
                changed.push(piece(done, bytes))?;
                done += bytes;
                continue;
            }
            for at in (done..done + bytes).step_by(PAGE_BYTES as usize) {
                let page = piece(at, PAGE_BYTES);
                let is_known = slots.at(page.address).is_some_and(|slot| {
                    // SAFETY: mapped and readable, and not written to meanwhile; it is no file that could be cut.
                    let content =
                        unsafe { std::slice::from_raw_parts(page.source as *const u8, PAGE_BYTES as usize) };
                    let [low, high] = hashes.hash(content);
                    slot[0].load(Ordering::Relaxed) == low && slot[1].load(Ordering::Relaxed) == high
                });
                if is_known { unchanged.push(page)? } else { changed.push(page)? }
            }
            done += bytes;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = PAGE_BYTES as usize;

    /// So many pages at a multiple of a page.
    struct Pages(Vec<u8>);

    impl Pages {
        fn new(pages: usize) -> Pages {
            Pages((0..(pages + 1) * PAGE).map(|at| (at / PAGE * 7 + at % 13) as u8).collect())
        }

        fn start(&self) -> u64 {
            (self.0.as_ptr() as u64).next_multiple_of(PAGE_BYTES)
        }

        fn run(&self, page: u64, pages: u64) -> Run {
            Run::in_place(self.start() + page * PAGE_BYTES, pages * PAGE_BYTES)
        }

        fn bytes(&mut self, page: u64) -> &mut [u8] {
            let at = (self.start() - self.0.as_ptr() as u64) as usize + page as usize * PAGE;
            &mut self.0[at..at + PAGE]
        }
    }

    fn noted(pages: &mut Pages, runs: &[(u64, u64)], room: u64) -> Arc<Hashes> {
        let hashes = Hashes::new(room).expect("memory");
        let mut noting = Noting::new(&hashes);
        for (first, count) in runs {
            for page in *first..first + count {
                noting.note(pages.bytes(page));
            }
        }
        let start = pages.start();
        let runs = runs.iter().map(|(first, pages)| PageRun { address: start + first * 4096, pages: *pages });
        hashes.belong_to(&runs.collect::<Vec<_>>())
    }

    type Parts = [Vec<(u64, u64)>; 2];

    /// Which pages are changed, and which are not.
    fn parts(pages: &Pages, found: &[Run], lines: &str, in_use: &InUse<'_>, hashes: &Hashes) -> Parts {
        let (mut changed, mut unchanged) = ([Run::in_place(0, 0); 32], [Run::in_place(0, 0); 32]);
        let (mut changed, mut unchanged) = (Runs::new(&mut changed), Runs::new(&mut unchanged));
        part(found, lines.as_bytes(), in_use, hashes, (&mut changed, &mut unchanged)).expect("room");
        let start = pages.start();
        let pages = |runs: &Runs<'_>| {
            runs.as_slice().iter().map(|run| ((run.address - start) / PAGE_BYTES, run.pages)).collect()
        };
        [pages(&changed), pages(&unchanged)]
    }

    fn line(pages: &Pages, (from, to): (u64, u64), rest: &str) -> String {
        let start = pages.start();
        format!("{:x}-{:x} {rest}\n", start + from * PAGE_BYTES, start + to * PAGE_BYTES)
    }

    const ANONYMOUS: &str = "rw-p 0 00:00 0";
    fn not_in_use() -> InUse<'static> {
        InUse::nothing(&mut [])
    }

    #[test]
    fn changed_pages_and_pages_that_were_not_there_are_reported_from_the_others() {
        let mut pages = Pages::new(16);
        let hashes = noted(&mut pages, &[(0, 4), (6, 3)], 100);
        let lines = line(&pages, (0, 16), ANONYMOUS);
        let found = [pages.run(0, 4), pages.run(5, 6)];
        let of = |pages: &Pages| parts(pages, &found, &lines, &not_in_use(), &hashes);
        assert_eq!(of(&pages), [vec![(5, 1), (9, 2)], vec![(0, 4), (6, 3)]]);
        pages.bytes(1)[4095] ^= 1;
        pages.bytes(6)[0] ^= 0x80;
        assert_eq!(of(&pages), [vec![(1, 1), (5, 2), (9, 2)], vec![(0, 1), (2, 2), (7, 2)]]);
        // It changes back.
        pages.bytes(1)[4095] ^= 1;
        assert_eq!(of(&pages), [vec![(5, 2), (9, 2)], vec![(0, 4), (7, 2)]]);
        // The content of one at the place of another is a change.
        let other = pages.bytes(0).to_vec();
        pages.bytes(2).copy_from_slice(&other);
        assert_eq!(of(&pages)[0], [(2, 1), (5, 2), (9, 2)]);
    }

    #[test]
    fn what_others_may_change_or_cut_is_not_compared() {
        let mut pages = Pages::new(12);
        let hashes = noted(&mut pages, &[(0, 12)], 12);
        let whole = [pages.run(0, 12)];
        let cut = [
            line(&pages, (0, 3), ANONYMOUS),
            line(&pages, (3, 6), "rw-p 0 08:01 7 /lib/x"),
            line(&pages, (6, 8), "rw-s 0 00:01 5 /dev/zero (deleted)"),
            line(&pages, (8, 12), "rw-p 0 00:00 0 [heap]"),
        ]
        .concat();
        assert_eq!(parts(&pages, &whole, &cut, &not_in_use(), &hashes), [vec![(3, 5)], vec![(0, 3), (8, 4)]]);
        // Of shared memory there is a copy.
        let mut copies = Pages::new(12);
        (0..12).for_each(|page| copies.bytes(page).copy_from_slice(pages.bytes(page)));
        let copied = [Run { source: copies.start() + 6 * PAGE_BYTES, ..pages.run(6, 2) }];
        assert_eq!(parts(&pages, &copied, &cut, &not_in_use(), &hashes), [vec![], vec![(6, 2)]]);
        let start = pages.start();
        let in_use = InUse {
            ranges: [0..0, 0..0, start + PAGE_BYTES..start + 2 * PAGE_BYTES],
            waiting: &[start + 9 * PAGE_BYTES],
            buffer: &mut [],
        };
        let used = parts(&pages, &whole, &line(&pages, (0, 12), ANONYMOUS), &in_use, &hashes);
        assert_eq!(used, [vec![(1, 1), (9, 1)], vec![(0, 1), (2, 7), (10, 2)]]);
        // Nothing is known of an address that no region has.
        assert_eq!(parts(&pages, &whole, "", &not_in_use(), &hashes)[0], [(0, 12)]);
    }

    #[test]
    fn pages_that_found_no_room_count_as_changed() {
        let mut pages = Pages::new(8);
        let hashes = noted(&mut pages, &[(0, 8)], 5);
        let lines = line(&pages, (0, 8), ANONYMOUS);
        assert_eq!(
            parts(&pages, &[pages.run(0, 8)], &lines, &not_in_use(), &hashes),
            [vec![(5, 3)], vec![(0, 5)]]
        );
    }

    #[test]
    fn each_table_has_a_secret_of_its_own() {
        let [one, other] = [Hashes::new(1), Hashes::new(1)].map(|hashes| hashes.expect("memory"));
        assert_ne!(one.hash(&[0; PAGE]), other.hash(&[0; PAGE]));
    }
}
