//! The parts of a region that are in an image.

use std::ops::Range;

use crate::maps::Line;

/// How the content of a region gets into an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Saved {
    /// Not at all: its file has it, or the kernel makes it.
    Not,
    /// The pages that differ from its backing.
    Changed,
    /// All of it: its file will not be found again.
    Whole,
    /// The pages that were ever touched, from a copy that is made while threads stand still: a forked child would share
    /// them with its parent.
    Copied,
    /// The kernel's code. All of it, by a copy: not every kernel lets it be written straight to a file.
    Vdso,
}

/// The decisions before the stop about saved regions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Addresses that are left out, rising.
    pub(crate) ignored: Vec<Range<u64>>,
    /// Devices of file systems in memory.
    pub(crate) memory_devices: Vec<(u32, u32)>,
    /// Addresses that our own tracker watches, rising, without overlap.
    pub(crate) tracked: Vec<Range<u64>>,
}

impl Plan {
    /// How `line` is saved.
    pub(crate) fn saved(&self, line: &Line<'_>) -> Saved {
        if line.is_vvar() || line.is_everywhere() {
            Saved::Not
        } else if line.is_vdso() {
            Saved::Vdso
        } else if line.is_shared {
            if self.is_memory(line) { Saved::Copied } else { Saved::Not }
        } else if line.is_deleted() {
            Saved::Whole
        } else {
            Saved::Changed
        }
    }

    /// Whether our own tracker watches `line`: a mapping has one watcher, and grows with it.
    pub(crate) fn is_tracked(&self, line: &Line<'_>) -> bool {
        self.tracked.iter().any(|tracked| tracked.start < line.end && line.start < tracked.end)
    }

    /// Whether a shared mapping is of memory that ends with the process, rather than of a file that stays.
    pub(crate) fn is_memory(&self, line: &Line<'_>) -> bool {
        line.is_shared && (line.is_deleted() || self.memory_devices.contains(&line.device))
    }

    /// The parts of `line` that are not left out.
    pub(crate) fn parts(&self, line: &Line<'_>) -> impl Iterator<Item = Range<u64>> {
        let (mut at, end) = (line.start, line.end);
        let mut ignored = self.ignored.iter();
        std::iter::from_fn(move || {
            while at < end {
                match ignored.next() {
                    None => {
                        let part = at..end;
                        at = end;
                        return Some(part);
                    }
                    Some(out) if out.end <= at || out.start >= end => {}
                    Some(out) => {
                        let part = at..out.start.max(at);
                        at = out.end;
                        if !part.is_empty() {
                            return Some(part);
                        }
                    }
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::lines;

    #[test]
    fn what_is_left_out_cuts_regions() {
        let line = lines(b"1000-9000 rw-p 0 00:00 0").next().flatten().expect("a line");
        let cases = [
            ("", "1000-9000"),
            ("0-1000 9000-a000", "1000-9000"),
            ("0-2000 3000-4000 8000-b000", "2000-3000 4000-8000"),
            ("0-ffff", ""),
            ("1000-2000", "2000-9000"),
        ];
        let ranges = |text: &str| -> Vec<Range<u64>> {
            let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
            let range = |text: &str| text.split_once('-').map(|(start, end)| number(start)..number(end));
            text.split_whitespace().filter_map(range).collect()
        };
        for (ignored, parts) in cases {
            let plan = Plan { ignored: ranges(ignored), ..Plan::default() };
            assert_eq!(plan.parts(&line).collect::<Vec<_>>(), ranges(parts), "{ignored}");
        }
    }

    #[test]
    fn shared_memory_is_copied_and_files_are_not() {
        let text = b"1000-2000 rw-s 0 00:01 5 /dev/zero (deleted)\n2000-3000 rw-s 0 00:20 6 /dev/shm/x\n\
            3000-4000 rw-s 0 08:01 7 /data/x\n4000-5000 rw-p 0 08:01 7 /data/x\n5000-6000 r-xp 0 08:01 8 /lib/y (deleted)\n\
            6000-7000 r--p 0 00:00 0 [vvar_vclock]\n7000-8000 r-xp 0 00:00 0 [vdso]\n";
        let plan = Plan { memory_devices: vec![(0, 0x20)], ..Plan::default() };
        let saved: Vec<Saved> = lines(text).flatten().map(|line| plan.saved(&line)).collect();
        use Saved::{Changed, Copied, Not, Vdso, Whole};
        assert_eq!(saved, [Copied, Copied, Not, Changed, Whole, Not, Vdso]);
    }
}
