//! Text of `/proc/…/fdinfo`, read where nothing may allocate.

use crate::maps::number;

/// The options of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Options {
    /// `SO_TYPE`.
    pub(super) kind: i32,
    /// `SO_SNDBUF`, as the kernel reports it: twice the value that was set.
    pub(super) send_bytes: u32,
    /// `SO_RCVBUF`, likewise.
    pub(super) receive_bytes: u32,
    /// `SO_PASSCRED`.
    pub(super) passes_credentials: bool,
    /// `SO_RCVTIMEO`, `SO_SNDTIMEO`, ns; 0: none.
    pub(super) timeouts_ns: (u64, u64),
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// The rest of the line that starts with `label`, trimmed.
pub(super) fn line<'a>(text: &'a [u8], label: &[u8]) -> Option<&'a [u8]> {
    lines(text).find_map(|line| line.strip_prefix(label)).map(<[u8]>::trim_ascii)
}

/// The number that follows a label at the start of a line.
pub(super) fn field(text: &[u8], label: &[u8], base: u32) -> Option<u64> {
    number(line(text, label)?, base).map(|(value, _)| value)
}

/// Two numbers in parentheses: seconds and nanoseconds, as nanoseconds.
pub(super) fn time_ns(text: &[u8], label: &[u8]) -> Option<u64> {
    let (seconds, rest) = number(line(text, label)?.strip_prefix(b"(")?, 10)?;
    let (ns, _) = number(rest.strip_prefix(b",")?.trim_ascii_start(), 10)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// A line of an epoll descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) number: u32,
    pub(super) events: u32,
    pub(super) data: u64,
    pub(super) inode: u64,
}

/// The entry of an epoll descriptor whose line starts at `at` or later, and where the search goes on.
pub(super) fn watched(text: &[u8], at: usize) -> Option<(Entry, usize)> {
    let mut start = at;
    loop {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let next = start + length + 1;
        if let Some(entry) = rest.get(..length).and_then(entry) {
            return Some((entry, next));
        }
        start = next;
    }
}

fn after<'a>(text: &'a [u8], label: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(label.len()).position(|window| window == label)?;
    text.get(at + label.len()..).map(<[u8]>::trim_ascii_start)
}

fn entry(line: &[u8]) -> Option<Entry> {
    let (watched, rest) = number(line.strip_prefix(b"tfd:")?.trim_ascii_start(), 10)?;
    let (events, rest) = number(after(rest, b"events:")?, 16)?;
    let (data, rest) = number(after(rest, b"data:")?, 16)?;
    // Kernels before 4.13 do not report it.
    let inode = after(rest, b"ino:").and_then(|rest| number(rest, 16)).map_or(0, |(inode, _)| inode);
    Some(Entry { number: u32::try_from(watched).ok()?, events: u32::try_from(events).ok()?, data, inode })
}

/// A line about a lock: its words.
pub(super) fn locks(text: &[u8]) -> impl Iterator<Item = impl Iterator<Item = &[u8]>> {
    lines(text)
        .filter_map(|line| line.strip_prefix(b"lock:"))
        .map(|line| line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL: &[u8] = b"pos:\t0\nflags:\t02\nmnt_id:\t17\nino:\t1038\n\
tfd:        8 events: c0000019 data: 1234567890abcdef  pos:0 ino:4f8e85 sdev:f\n\
tfd:       14 events:       19 data: ffffffffffffffff  pos:0 ino:4f8e8e sdev:f\n";

    #[test]
    fn what_an_epoll_descriptor_watches_is_read_line_by_line() {
        let (first, next) = watched(EPOLL, 0).unwrap();
        let expected =
            Entry { number: 8, events: 0xc000_0019, data: 0x1234_5678_90ab_cdef, inode: 0x4f_8e85 };
        assert_eq!(first, expected);
        let (second, next) = watched(EPOLL, next).unwrap();
        assert_eq!((second.number, second.data), (14, u64::MAX));
        assert_eq!(watched(EPOLL, next), None);
        assert_eq!(watched(b"tfd: x", 0), None);
    }

    #[test]
    fn fields_and_times_are_found_by_their_labels() {
        let text = b"pos:\t7\nticks: 3\nit_value: (2, 000000005)\nsigmask:\t0000008000000200\n";
        assert_eq!(field(text, b"ticks:", 10), Some(3));
        assert_eq!(field(text, b"tick:", 10), None);
        assert_eq!(field(text, b"sigmask:", 16), Some(0x80_0000_0200));
        assert_eq!(time_ns(text, b"it_value:"), Some(2_000_000_005));
        assert_eq!(time_ns(b"it_value: (2 5)", b"it_value:"), None);
        assert_eq!(field(b"ticks: 99999999999999999999999", b"ticks:", 10), None);
    }

    #[test]
    fn a_lock_is_a_line_of_words() {
        let text = b"pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 12 fe:00:77 0 EOF\n";
        let words: Vec<Vec<&[u8]>> = locks(text).map(Iterator::collect).collect();
        assert_eq!(words.len(), 1);
        assert_eq!(words[0][1..4], [&b"FLOCK"[..], b"ADVISORY", b"WRITE"]);
    }
}
