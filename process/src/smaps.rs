//! `/proc/self/smaps`: advice for regions besides their protection, and how much of them is there.

use std::ops::Range;

use crate::maps::{self, number};
use crate::state::memory::Advice;

/// A region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) range: Range<u64>,
    pub(crate) advice: Advice,
    pub(crate) special: Special,
    /// Bytes of it that are private to the process, in memory or swapped out.
    pub(crate) private_bytes: u64,
    /// Of these, in huge pages.
    pub(crate) huge_bytes: u64,
    /// Its protection key; 0 is everybody's.
    pub(crate) protection_key: u64,
}

/// The reasons why a region cannot be saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Special {
    /// Pages of `hugetlbfs`.
    pub(crate) is_huge_file: bool,
    /// A shadow stack.
    pub(crate) is_shadow_stack: bool,
    /// A device's.
    pub(crate) is_device: bool,
    /// Its faults are handled by the program.
    pub(crate) is_watched: bool,
}

const ADVICE: [(&[u8], Advice); 11] = [
    (b"hg", Advice::HUGE),
    (b"nh", Advice::NO_HUGE),
    (b"dc", Advice::DONT_FORK),
    (b"wf", Advice::WIPE_ON_FORK),
    (b"dd", Advice::DONT_DUMP),
    (b"mg", Advice::MERGEABLE),
    (b"lo", Advice::LOCKED),
    (b"gd", Advice::GROWS_DOWN),
    (b"nr", Advice::NO_RESERVE),
    (b"sr", Advice::SEQUENTIAL),
    (b"rr", Advice::RANDOM),
];

/// All regions of a text, rising.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Smaps(pub(crate) Vec<Entry>);

impl Smaps {
    pub(crate) fn parse(text: &[u8]) -> Smaps {
        let mut entries: Vec<Entry> = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            if let Some(Some(region)) = is_header(line).then(|| maps::lines(line).next()).flatten() {
                entries.push(Entry {
                    range: region.start..region.end,
                    advice: Advice::empty(),
                    special: Special::default(),
                    private_bytes: 0,
                    huge_bytes: 0,
                    protection_key: 0,
                });
            } else if let (Some(entry), Some((key, value))) = (entries.last_mut(), split(line)) {
                entry.take(key, value);
            }
        }
        Smaps(entries)
    }

    /// The region that holds `address`.
    pub(crate) fn at(&self, address: u64) -> Option<&Entry> {
        let after = self.0.partition_point(|entry| entry.range.start <= address);
        self.0.get(..after)?.last().filter(|entry| address < entry.range.end)
    }
}

impl Smaps {
    /// A region that has a part of `range`, the lowest one.
    pub(crate) fn within(&self, range: &Range<u64>) -> Option<&Entry> {
        let after = self.0.partition_point(|entry| entry.range.end <= range.start);
        self.0.get(after).filter(|entry| entry.range.start < range.end)
    }
}

impl Entry {
    fn take(&mut self, key: &[u8], value: &[u8]) {
        let kilobytes = || number(value, 10).map_or(0, |(value, _)| value * 1024);
        match key {
            b"Anonymous" | b"Swap" => self.private_bytes += kilobytes(),
            b"AnonHugePages" => self.huge_bytes += kilobytes(),
            b"ProtectionKey" => self.protection_key = number(value, 10).map_or(0, |(value, _)| value),
            b"VmFlags" => {
                for flag in value.split(|byte| *byte == b' ') {
                    for (name, advice) in ADVICE {
                        if flag == name {
                            self.advice |= advice;
                        }
                    }
                    match flag {
                        b"ht" => self.special.is_huge_file = true,
                        b"ss" => self.special.is_shadow_stack = true,
                        b"io" | b"pf" => self.special.is_device = true,
                        b"um" | b"ui" | b"uw" => self.special.is_watched = true,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// Lines of values start with a name in capitals, lines of regions with an address.
fn is_header(line: &[u8]) -> bool {
    line.first().is_some_and(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
}

fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((line.get(..colon)?, line.get(colon + 1..)?.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_sizes_belong_to_the_region_above_them() {
        let text = b"7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize:  2048 kB\nAnonymous:   64 kB\nSwap: 8 kB\n\
            ProtectionKey:         0\nVmFlags: rd wr mr mw me ac sd hg dc \n\
            7f0000200000-7f0000201000 rw-s 00000000 00:10 9  /dev/x\nAnonymous: 0 kB\nVmFlags: rd sh io pf \n";
        let smaps = Smaps::parse(text);
        assert_eq!(smaps.0.len(), 2);
        let first = smaps.at(0x7f00_0010_0000).expect("the first region");
        assert_eq!((first.advice, first.private_bytes), (Advice::HUGE | Advice::DONT_FORK, 72 << 10));
        assert!(smaps.at(0x7f00_0020_0000).is_some_and(|entry| entry.special.is_device));
        assert_eq!(smaps.at(0x7f00_0020_1000), None);
        // A region that has grown downwards since.
        assert_eq!(smaps.at(0x7eff_ffe0_0000), None);
        assert_eq!(smaps.within(&(0x7eff_ffe0_0000..0x7f00_0020_0000)), Some(first));
        assert_eq!(smaps.within(&(0x7f00_0020_0000..0x7f00_0030_0000)), smaps.at(0x7f00_0020_0000));
        assert_eq!(smaps.within(&(0x7eff_ffe0_0000..0x7f00_0000_0000)), None);
        assert_eq!(smaps.within(&(0x7f00_0020_1000..0x7f00_0030_0000)), None);
    }

    #[test]
    fn this_process_has_a_stack_that_grows() {
        let smaps = Smaps::parse(&std::fs::read("/proc/self/smaps").expect("this kernel has it"));
        assert!(smaps.0.iter().any(|entry| entry.advice.contains(Advice::GROWS_DOWN)));
        assert!(smaps.0.iter().map(|entry| entry.private_bytes).sum::<u64>() > 4096);
    }
}
