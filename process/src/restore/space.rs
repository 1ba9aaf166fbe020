//! A place in the address space that neither the process of the image nor this one uses.

use super::table::Span;
use super::x86_64::ADDRESSES_END;
use crate::arch::PAGE_BYTES;

/// Bytes that must stay free around the place: regions grow downwards, the heap upwards.
const MARGIN_BYTES: u64 = 256 << 20;

/// The lowest address looked at; kernels keep the first pages free of mappings.
const ADDRESSES_START: u64 = 1 << 20;

/// The middle of the largest gap between all `used`, if it has room for `bytes`. Growing regions are far from
/// there.
pub(super) fn place(used: impl Iterator<Item = Span>, bytes: u64) -> Option<u64> {
    let mut used: Vec<Span> = used.collect();
    used.sort_unstable_by_key(|span| span.start);
    used.push(Span { start: ADDRESSES_END, end: ADDRESSES_END });
    let mut free_from = ADDRESSES_START;
    let mut largest = Span { start: 0, end: 0 };
    for span in used {
        let end = span.start.min(ADDRESSES_END);
        if end.saturating_sub(free_from) > largest.end - largest.start {
            largest = Span { start: free_from, end };
        }
        free_from = free_from.max(span.end);
    }
    let room = largest.end - largest.start;
    if room < bytes.checked_add(2 * MARGIN_BYTES)? {
        return None;
    }
    let start = largest.start + (room - bytes) / 2;
    Some(start & !(PAGE_BYTES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn a_place_lies_in_the_middle_of_what_both_leave_free() {
        let old = [span(0x40_0000, 0x50_0000), span(0x7000_0000_0000, 0x7100_0000_0000)];
        let own = [span(0x5000_0000_0000, 0x5100_0000_0000), span(0x7ff0_0000_0000, 0x7fff_0000_0000)];
        let at = place(old.into_iter().chain(own), 0x10_0000).expect("room");
        assert_eq!(at >> 36, 0x280, "{at:#x}");
        assert_eq!(at % PAGE_BYTES, 0);
    }

    #[test]
    fn a_full_address_space_has_none() {
        assert_eq!(place([span(0, ADDRESSES_END - 0x1000)].into_iter(), 0x1000), None);
        assert_eq!(place(std::iter::empty(), u64::MAX), None);
        assert_eq!(place([span(0, u64::MAX)].into_iter(), 0), None);
        assert!(place(std::iter::empty(), 0x1000).is_some());
    }

    #[test]
    fn overlapping_and_unordered_spans_are_fine() {
        let end = 1 << 46;
        let at = place([span(0x1000, end), span(0x500, 0x2000), span(end - 5, end)].into_iter(), 0x1000);
        assert!(at.is_some_and(|at| at > end));
    }
}
