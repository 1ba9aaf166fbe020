//! Where in a node's content each page of its files lies.
//!
//! Pages keep their places from one generation to the next by identity (a page of a section, at its address), not by
//! their offset in a file: otherwise a heap that grows by a page would move everything behind it, and all of that would
//! count as changed. Places of pages that are gone are used again, the lowest first, so content stays as short as can
//! be.

use std::collections::BTreeMap;

use crate::checksum::checksum;
use crate::image::ImageReader;
use crate::image::layout::HEADER_BYTES;
use crate::limits::PAGE_BYTES;

/// A part of a file, and its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length; the last page may be filled in part.
    pub bytes: u64,
    /// Which series of pages it belongs to, such as one section of one rank's images.
    pub series: u64,
    /// Number of its first page in that series, such as an address divided by the length of a page.
    pub page: u64,
}

/// A piece that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its kind.
    pub piece: Piece,
    /// First page in the node's content.
    pub place: u64,
}

impl Piece {
    /// Pages that it takes.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES as u64)
    }

    /// So many of its pages, without those before `skipped`.
    fn part(&self, skipped: u64, pages: u64) -> Piece {
        let from = skipped * PAGE_BYTES as u64;
        let bytes = (self.bytes - from).min(pages * PAGE_BYTES as u64);
        Piece { offset: self.offset + from, bytes, series: self.series, page: self.page + skipped }
    }

    /// An image: its header, each section as a series of its own, its table. The bytes between them are zero.
    ///
    /// `name` is that of the file, which stays the same over generations. `runs` gives the runs of pages of a section,
    /// by the section's number (address of the first page, divided by the length of a page, and number of pages); none:
    /// it is one run from 0 on.
    pub fn of_image(name: &str, image: &ImageReader, runs: impl Fn(u32) -> Vec<(u64, u64)>) -> Vec<Piece> {
        let mut pieces =
            vec![Piece { offset: 0, bytes: HEADER_BYTES as u64, series: series(name, 0, 0), page: 0 }];
        let mut end = HEADER_BYTES as u64;
        for (number, entry) in (0..).zip(image.entries()) {
            let whole = Piece {
                offset: entry.offset,
                bytes: entry.stored_bytes,
                series: series(name, entry.kind, entry.id),
                page: 0,
            };
            end = entry.offset + entry.stored_bytes;
            let runs = runs(number);
            let mut skipped = 0;
            for (page, pages) in runs {
                let pages = pages.min(whole.pages() - skipped);
                pieces.extend((pages > 0).then(|| Piece { page, ..whole.part(skipped, pages) }));
                skipped += pages;
            }
            if skipped < whole.pages() {
                pieces.push(whole.part(skipped, whole.pages() - skipped));
            }
        }
        let bytes = image.header().total_bytes - end;
        pieces.push(Piece { offset: end, bytes, series: series(name, 0, 1), page: 0 });
        pieces.retain(|piece| piece.bytes > 0);
        pieces
    }
}

/// The number of a series. Two that have the same by chance only share no place.
fn series(name: &str, kind: u32, id: u64) -> u64 {
    checksum(&[name.as_bytes(), &kind.to_le_bytes(), &id.to_le_bytes()].concat())
}

/// Places that are taken: runs from a first page to behind the last.
#[derive(Default)]
struct Taken(BTreeMap<u64, u64>);

impl Taken {
    /// The first run of at most `pages` free pages from `from` on: where it begins, and how long it is.
    fn free_from(&self, from: u64, pages: u64) -> (u64, u64) {
        let mut at = from;
        if let Some((_, end)) = self.0.range(..=at).next_back() {
            at = at.max(*end);
        }
        while let Some((start, end)) = self.0.range(at..).next() {
            if *start > at {
                return (at, pages.min(start - at));
            }
            at = *end;
        }
        (at, pages)
    }

    fn take(&mut self, start: u64, pages: u64) {
        let (mut start, mut end) = (start, start + pages);
        if let Some((before, until)) =
            self.0.range(..=start).next_back().map(|(before, until)| (*before, *until))
            && until >= start
        {
            self.0.remove(&before);
            (start, end) = (before, end.max(until));
        }
        if let Some(until) = self.0.remove(&end) {
            end = until;
        }
        self.0.insert(start, end);
    }
}

/// Gives each piece of each file its place: the one that its pages have in `old`, or a free one.
#[must_use]
pub fn place(old: &[Extent], files: &[Vec<Piece>]) -> Vec<Vec<Extent>> {
    let before: BTreeMap<(u64, u64), (u64, u64)> = old
        .iter()
        .map(|extent| ((extent.piece.series, extent.piece.page), (extent.piece.pages(), extent.place)))
        .collect();
    let mut taken = Taken::default();
    let (mut placed, mut homeless) = (vec![Vec::new(); files.len()], Vec::new());
    for (file, piece) in
        files.iter().enumerate().flat_map(|(file, pieces)| pieces.iter().map(move |at| (file, at)))
    {
        let mut skipped = 0;
        while skipped < piece.pages() {
            let (pages, place) = known_run(&before, piece, skipped);
            let part = piece.part(skipped, pages);
            match place.filter(|place| taken.free_from(*place, pages) == (*place, pages)) {
                Some(place) => {
                    taken.take(place, pages);
                    placed[file].push(Extent { piece: part, place });
                }
                None => homeless.push((file, part)),
            }
            skipped += pages;
        }
    }
    let mut from = 0;
    for (file, piece) in homeless {
        let mut skipped = 0;
        while skipped < piece.pages() {
            let (place, pages) = taken.free_from(from, piece.pages() - skipped);
            taken.take(place, pages);
            from = place + pages;
            placed[file].push(Extent { piece: piece.part(skipped, pages), place });
            skipped += pages;
        }
    }
    placed.into_iter().map(merged).collect()
}

/// The run of pages behind those that are `skipped` which were together before, with their place; or which were not there.
fn known_run(before: &BTreeMap<(u64, u64), (u64, u64)>, piece: &Piece, skipped: u64) -> (u64, Option<u64>) {
    let (page, rest) = (piece.page + skipped, piece.pages() - skipped);
    let known = before.range(..=(piece.series, page)).next_back();
    let known = known.filter(|((series, first), (pages, _))| *series == piece.series && first + pages > page);
    if let Some(((_, first), (pages, place))) = known {
        return ((first + pages - page).min(rest), Some(place + (page - first)));
    }
    let next = before.range((piece.series, page)..).next();
    let until = next.filter(|((series, _), _)| *series == piece.series).map(|((_, next), _)| next - page);
    (until.map_or(rest, |until| until.min(rest)), None)
}

/// Neighbours in file, series and content become one.
fn merged(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_by_key(|extent| extent.piece.offset);
    let mut merged: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        if let Some(last) = merged.last_mut() {
            let pages = last.piece.pages();
            let follows = last.piece.offset + last.piece.bytes == extent.piece.offset
                && pages * PAGE_BYTES as u64 == last.piece.bytes
                && last.piece.series == extent.piece.series
                && last.piece.page + pages == extent.piece.page
                && last.place + pages == extent.place;
            if follows {
                last.piece.bytes += extent.piece.bytes;
                continue;
            }
        }
        merged.push(extent);
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn piece(offset: u64, pages: u64, series: u64, page: u64) -> Piece {
        Piece { offset: offset * PAGE, bytes: pages * PAGE, series, page }
    }

    fn places(extents: &[Extent]) -> BTreeMap<(u64, u64), u64> {
        let of = |extent: &Extent| {
            let (piece, place) = (extent.piece, extent.place);
            (0..piece.pages()).map(move |i| ((piece.series, piece.page + i), place + i)).collect::<Vec<_>>()
        };
        extents.iter().flat_map(of).collect()
    }

    fn place_one(old: &[Extent], pieces: &[Piece]) -> Vec<Extent> {
        place(old, &[pieces.to_vec()]).remove(0)
    }

    #[test]
    fn a_heap_that_grows_moves_nothing_behind_it() {
        let old = place_one(&[], &[piece(0, 10, 1, 100), piece(10, 5, 2, 0)]);
        assert_eq!(places(&old)[&(2, 0)], 10);
        // Two pages more, so everything behind lies two pages further on in the file.
        let new = place_one(&old, &[piece(0, 12, 1, 100), piece(12, 5, 2, 0)]);
        for (page, at) in places(&old) {
            assert_eq!(places(&new)[&page], at, "{page:?}");
        }
        assert_eq!((places(&new)[&(1, 110)], places(&new)[&(1, 111)]), (15, 16));
        // It grows downwards, and loses its middle; the freed places are used again.
        let third = place_one(
            &new,
            &[piece(0, 3, 1, 98), piece(3, 4, 1, 108), piece(7, 5, 2, 0), piece(12, 3, 3, 0)],
        );
        assert_eq!(
            (places(&third)[&(1, 100)], places(&third)[&(1, 108)], places(&third)[&(2, 4)]),
            (0, 8, 14)
        );
        assert_eq!((places(&third)[&(1, 98)], places(&third)[&(3, 0)]), (1, 3));
    }

    proptest! {
        #[test]
        fn pages_keep_their_places_and_no_two_share_one(
            rounds in prop::collection::vec(prop::collection::vec((0..4u64, 0..40u64, 1..12u64), 1..8), 1..6),
        ) {
            let mut old: Vec<Extent> = Vec::new();
            for runs in rounds {
                let (mut pieces, mut offset) = (Vec::new(), 0);
                let mut seen = std::collections::BTreeSet::new();
                for (series, page, pages) in runs {
                    // A page is in a file once.
                    if (page..page + pages).all(|page| !seen.contains(&(series, page))) {
                        seen.extend((page..page + pages).map(|page| (series, page)));
                        pieces.push(piece(offset, pages, series, page));
                        offset += pages;
                    }
                }
                let new = place_one(&old, &pieces);
                let (before, after) = (places(&old), places(&new));
                prop_assert_eq!(after.keys().copied().collect::<Vec<_>>(), seen.iter().copied().collect::<Vec<_>>());
                let distinct: std::collections::BTreeSet<u64> = after.values().copied().collect();
                prop_assert_eq!(distinct.len(), after.len());
                for (page, at) in &after {
                    prop_assert!(before.get(page).is_none_or(|before| before == at), "{:?} moved", page);
                }
                prop_assert_eq!(new.iter().map(|extent| extent.piece.bytes).sum::<u64>(), offset * PAGE);
                old = new;
            }
        }
    }
}
