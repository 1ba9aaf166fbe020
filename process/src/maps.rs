//! Lines of `/proc/self/maps`, read where nothing may allocate.

use crate::state::memory::Protection;

/// A line: addresses that are mapped alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) protection: Protection,
    pub(crate) is_shared: bool,
    /// Offset in the file, bytes.
    pub(crate) offset: u64,
    /// Major and minor number of the file's device.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// Path or name; empty for anonymous memory.
    pub(crate) name: &'a [u8],
}

/// The suffix that the kernel appends to the path of a file that has no name any more.
const DELETED: &[u8] = b" (deleted)";

impl<'a> Line<'a> {
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the kernel itself put it there: its data beside the vdso, in one or several parts.
    pub(crate) fn is_vvar(&self) -> bool {
        self.name.starts_with(b"[vvar")
    }

    pub(crate) fn is_vdso(&self) -> bool {
        self.name == b"[vdso]"
    }

    /// Pages that every process has and no process maps by itself.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.name == b"[vsyscall]" || self.name == b"[uprobes]"
    }

    /// Private memory that no file lies behind. Its name, if it has one, was given by the kernel or by `prctl(2)`.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.inode == 0 && !self.is_shared && !self.is_vvar() && !self.is_vdso() && !self.is_everywhere()
    }

    /// Whether its file has no name any more.
    pub(crate) fn is_deleted(&self) -> bool {
        self.inode != 0 && self.name.ends_with(DELETED)
    }

    /// The path without the kernel's remark, and without its escapes of line ends.
    pub(crate) fn path(&self) -> Vec<u8> {
        let path = self.name.strip_suffix(DELETED).filter(|_| self.inode != 0).unwrap_or(self.name);
        let mut plain = Vec::with_capacity(path.len());
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            if let Some(after) = rest.strip_prefix(b"\\012") {
                plain.push(b'\n');
                rest = after;
            } else {
                plain.push(*first);
                rest = after;
            }
        }
        plain
    }

    fn parse(line: &'a [u8]) -> Option<Line<'a>> {
        let (start, rest) = number(line, 16)?;
        let (end, rest) = number(rest.strip_prefix(b"-")?, 16)?;
        let rest = rest.strip_prefix(b" ")?;
        let (flags, rest) = rest.split_at_checked(4)?;
        let mut protection = Protection::empty();
        for (flag, set) in flags.iter().zip([Protection::READ, Protection::WRITE, Protection::EXECUTE]) {
            if *flag != b'-' {
                protection = protection.union(set);
            }
        }
        let (offset, rest) = number(rest.strip_prefix(b" ")?, 16)?;
        let (major, rest) = number(rest.strip_prefix(b" ")?, 16)?;
        let (minor, rest) = number(rest.strip_prefix(b":")?, 16)?;
        let (inode, rest) = number(rest.strip_prefix(b" ")?, 10)?;
        (start < end).then_some(Line {
            start,
            end,
            protection,
            is_shared: flags.get(3) == Some(&b's'),
            offset,
            device: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
            inode,
            name: rest.trim_ascii_start(),
        })
    }
}

/// A number at the start of a text, and the rest. Every number of every mapping is read in a stop.
pub(crate) fn number(text: &[u8], base: u32) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut digits = 0;
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => break,
        };
        if u32::from(digit) >= base {
            break;
        }
        value = value.checked_mul(u64::from(base))?.checked_add(u64::from(digit))?;
        digits += 1;
    }
    if digits == 0 { None } else { text.get(digits..).map(|rest| (value, rest)) }
}

/// The lines of a text; one that cannot be read ends them with `None`.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = Option<Line<'_>>> + Clone {
    let mut starts_at = 0;
    memchr::memchr_iter(b'\n', text)
        .chain((!text.ends_with(b"\n")).then_some(text.len()))
        .filter_map(move |end| text.get(std::mem::replace(&mut starts_at, end + 1)..end))
        .filter(|line| !line.is_empty())
        .map(Line::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_the_kernel_wrote() {
        let text = b"7f0e4c000000-7f0e4c021000 rw-p 00000000 00:00 0 \n\
            55d0c8a00000-55d0c8a05000 r-xp 00001000 fd:02 1573126                    /opt/a b\\012c (deleted)\n\
            7ffd4e5f2000-7ffd4e5f6000 r--p 00000000 00:00 0                          [vvar]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n\
            7f0e4c100000-7f0e4c200000 rw-s 00002000 00:01 7                          /memfd:x (deleted)\n";
        let lines: Vec<Line<'_>> = lines(text).map(|line| line.expect("a line of the kernel's")).collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].is_anonymous() && !lines[0].is_deleted());
        assert_eq!(lines[0].bytes(), 0x21000);
        assert_eq!(lines[1].path(), b"/opt/a b\nc");
        assert_eq!((lines[1].device, lines[1].inode, lines[1].offset), ((0xfd, 2), 1_573_126, 0x1000));
        assert_eq!(lines[1].protection, Protection::READ | Protection::EXECUTE);
        assert!(lines[1].is_deleted() && lines[2].is_vvar() && lines[3].is_everywhere());
        assert!(lines[4].is_shared && !lines[4].is_anonymous());
    }

    #[test]
    fn what_is_no_line_is_none() {
        for bad in
            ["x", "10-5 rw-p 0 0:0 0", "10-20 rw", "10-20 rw-p 0 00 0", "fffffffffffffffff-1 rw-p 0 0:0 0"]
        {
            assert_eq!(lines(bad.as_bytes()).next(), Some(None), "{bad}");
        }
        assert_eq!(lines(b"\n\n").next(), None);
    }

    #[test]
    fn the_lines_of_this_process_are_all_read() {
        let text = std::fs::read("/proc/self/maps").expect("this kernel has /proc");
        let mut end = 0;
        for line in lines(&text) {
            let line = line.unwrap_or_else(|| panic!("unread line after {end:#x}"));
            assert!(line.start >= end);
            end = line.end;
        }
        assert!(lines(&text).flatten().any(|line| line.is_vdso()));
    }
}
