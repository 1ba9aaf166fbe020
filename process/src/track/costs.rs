//! The costs of the ways of a capture in this process, and the choice by them.

use super::Extent;
use crate::arch::PAGE_BYTES;
use crate::capture::{Mode, Pause};

/// A program with fewer bytes of small pages is copied by a fork in less than a millisecond: nothing needs to be armed in it. Measured: 1 ms for
/// 64 MiB.
pub const ARMED_BYTES_MIN: u64 = 32 << 20;

/// A delta has at most the whole divided by this: then a new whole image is taken. If each checkpoint writes 3 % of new
/// pages, eight deltas come on each whole image, and the total of written bytes is least.
pub const DELTA_FRACTION: u64 = 4;

/// The cost of copying a page that was found written, until it has been measured: 0.65 us beside other work.
const PAGE_COPY_NS: u64 = 1000;

/// Most whole images in a row that are taken without arming, in a program that writes nearly all of its pages between checkpoints.
const REST_MAX: u32 = 64;

/// A copy of fewer pages shows nothing about the cost of a page.
const LEARNT_PAGES_MIN: u64 = 256;

/// Room for pages written between look and stop, if few were written before.
const COPY_ROOM_BYTES: u64 = 2 << 20;

impl Extent {
    /// Room for copies of written pages: the program continues to write until it stands still.
    #[must_use]
    pub fn copy_bytes(&self) -> u64 {
        self.written_bytes + self.written_bytes / 2 + COPY_ROOM_BYTES
    }
}

/// The kind of the next image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// A delta, copied in the stop.
    Copy,
    /// A delta, which a fork finds by its content: a copy would take longer than the fork.
    Compare,
    /// Whole.
    Whole,
}

/// The measurements in this process, and the choices that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// The last fork, ns.
    fork_ns: Option<u64>,
    /// Copying one page that was found written, ns.
    page_ns: u64,
    /// Times in a row that arming, or noting the content of pages, was in vain: more had been written than a
    /// copy pays for.
    misses: u32,
    /// Whole images that are still to be taken without it.
    rest: u32,
}

impl Costs {
    /// Nothing was measured yet.
    pub const NOTHING: Costs = Costs { fork_ns: None, page_ns: PAGE_COPY_NS, misses: 0, rest: 0 };

    /// A copy of written pages, if it takes a shorter pause than a fork, and is small enough to be kept beside a whole
    /// image. `always`: its pause does not count.
    #[must_use]
    pub fn way(&self, extent: &Extent, always: bool) -> Way {
        let copy_ns = extent.scan_ns + extent.written_bytes / PAGE_BYTES * self.page_ns;
        if extent.written_bytes > extent.own_bytes / DELTA_FRACTION {
            Way::Whole
        } else if always || self.fork_ns.is_none_or(|fork_ns| copy_ns < fork_ns) {
            Way::Copy
        } else {
            Way::Compare
        }
    }

    /// Arming was in vain. Each time in a row it is tried half as often.
    pub fn missed(&mut self) {
        self.misses = (self.misses + 1).min(REST_MAX.ilog2());
        self.rest = 1 << self.misses;
    }

    /// It was not in vain: a small delta was taken.
    pub fn paid(&mut self) {
        self.misses = 0;
    }

    /// Whether the next whole image is one of those without arming.
    pub fn rests(&mut self) -> bool {
        self.rest = self.rest.saturating_sub(1);
        self.rest > 0
    }

    /// Learns from a pause. `copied_bytes` were copied in it, if it was a copy; finding them took about `scan_ns`.
    pub fn captured(&mut self, mode: Mode, pause: &Pause, copied_bytes: u64, scan_ns: u64) {
        match mode {
            Mode::Fork => self.fork_ns = Some(pause.memory_ns),
            Mode::Scan => {
                let pages = copied_bytes / PAGE_BYTES;
                if pages >= LEARNT_PAGES_MIN {
                    self.page_ns = (pause.memory_ns.saturating_sub(scan_ns) / pages).max(1);
                }
            }
            Mode::Sync => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(own_mib: u64, written_mib: u64) -> Extent {
        Extent { own_bytes: own_mib << 20, written_bytes: written_mib << 20, scan_ns: 3_000_000 }
    }

    fn costs(fork_ms: u64) -> Costs {
        Costs { fork_ns: Some(fork_ms * 1_000_000), ..Costs::NOTHING }
    }

    #[test]
    fn a_copy_is_chosen_where_it_takes_less_than_the_fork() {
        assert_eq!(costs(20).way(&extent(1024, 20), false), Way::Copy);
        // 100 MiB are 25,600 pages.
        assert_eq!(costs(20).way(&extent(1024, 100), false), Way::Compare);
        assert_eq!(costs(200).way(&extent(1024, 100), false), Way::Copy);
        // Looking alone takes longer.
        assert_eq!(costs(2).way(&extent(1024, 0), false), Way::Compare);
        assert_eq!(costs(2).way(&extent(1024, 100), true), Way::Copy);
    }

    #[test]
    fn what_has_nearly_all_pages_is_a_whole_image() {
        for always in [false, true] {
            assert_eq!(costs(10_000).way(&extent(1024, 1024 / DELTA_FRACTION), always), Way::Copy);
            assert_eq!(costs(10_000).way(&extent(1024, 1024 / DELTA_FRACTION + 1), always), Way::Whole);
        }
    }

    #[test]
    fn many_bytes_of_huge_pages_are_reported_from_few_and_from_small_ones() {
        use crate::track::Bytes;
        let reported = |own: u64, small: u64| {
            let bytes = Bytes { own: own << 20, small: small << 20 };
            (bytes.are_armed(), bytes.are_huge())
        };
        assert_eq!(reported(1024, 1000), (true, false));
        assert_eq!(reported(1024, 20), (false, true));
        assert_eq!(reported(20, 20), (false, false));
    }

    #[test]
    fn whole_images_without_arming_are_counted() {
        let mut costs = costs(20);
        assert!(!costs.rests(), "the first is armed");
        costs.missed();
        assert!(costs.rests() && !costs.rests());
        costs.missed();
        assert_eq!([costs.rests(), costs.rests(), costs.rests(), costs.rests()], [true, true, true, false]);
    }

    #[test]
    fn arming_in_vain_is_tried_ever_less_often() {
        let mut costs = costs(20);
        let mut rests = Vec::new();
        for _ in 0..8 {
            costs.missed();
            rests.push(costs.rest);
        }
        assert_eq!(rests, [2, 4, 8, 16, 32, 64, 64, 64]);
        let pause = Pause { memory_ns: 7_000_000, ..Pause::default() };
        costs.captured(Mode::Scan, &pause, 4096 * 1000, 2_000_000);
        costs.paid();
        assert_eq!((costs.misses, costs.page_ns), (0, 5000));
        costs.captured(Mode::Scan, &pause, 4096 * 10, 2_000_000);
        assert_eq!(costs.page_ns, 5000, "ten pages teach nothing");
        costs.missed();
        assert_eq!(costs.rest, 2);
        costs.captured(Mode::Fork, &pause, 0, 0);
        assert_eq!(costs.fork_ns, Some(7_000_000));
    }
}
