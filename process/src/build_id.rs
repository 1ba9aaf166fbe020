//! The build id of an ELF file: shows whether a mapped program or library is the same as before.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a note segment that are read, at most; linkers write a few hundred.
const NOTES_BYTES_MAX: u64 = 64 * 1024;
const HEADERS_MAX: usize = 256;
const NOTE_SEGMENT: u32 = 4;
const BUILD_ID_NOTE: u32 = 3;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// `NT_GNU_BUILD_ID` of `file`, if it is a 64-bit ELF file of this byte order that has one.
#[must_use]
pub fn of(file: &File) -> Option<Vec<u8>> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let entry_bytes = usize::from(u16::from_le_bytes([head[54], head[55]]));
    let entries = usize::from(u16::from_le_bytes([head[56], head[57]]));
    if entry_bytes < 56 || entries > HEADERS_MAX {
        return None;
    }
    let mut headers = vec![0; entry_bytes * entries];
    file.read_exact_at(&mut headers, u64_at(&head, 32)?).ok()?;
    for header in headers.chunks_exact(entry_bytes) {
        if u32_at(header, 0)? != NOTE_SEGMENT {
            continue;
        }
        let (offset, bytes) = (u64_at(header, 8)?, u64_at(header, 32)?.min(NOTES_BYTES_MAX));
        let mut notes = vec![0; usize::try_from(bytes).ok()?];
        file.read_exact_at(&mut notes, offset).ok()?;
        if let Some(id) = in_notes(&notes) {
            return Some(id);
        }
    }
    None
}

fn in_notes(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let [name, content] = [u32_at(notes, 0)?, u32_at(notes, 4)?].map(|bytes| bytes as usize);
        let kind = u32_at(notes, 8)?;
        let start = 12 + name.checked_next_multiple_of(4)?;
        let end = start.checked_add(content)?;
        if kind == BUILD_ID_NOTE && notes.get(12..16)? == b"GNU\0" {
            return Some(notes.get(start..end)?.to_vec());
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_has_one_and_a_text_has_none() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let library = path.into_iter().find(|path| path.contains("/libc.so")).expect("a C library");
        let id = of(&File::open(library).expect("readable")).expect("distributions build with ids");
        assert_eq!(id.len(), 20);
        assert_eq!(of(&File::open("/proc/self/maps").expect("readable")), None);
    }

    #[test]
    fn damaged_notes_have_none() {
        let mut notes = Vec::new();
        for word in [4u32, 3, 1] {
            notes.extend_from_slice(&word.to_le_bytes());
        }
        notes.extend_from_slice(b"GNU\0abc\0");
        for word in [4u32, 2, 3] {
            notes.extend_from_slice(&word.to_le_bytes());
        }
        notes.extend_from_slice(b"GNU\0ID\0\0");
        assert_eq!(in_notes(&notes), Some(b"ID".to_vec()));
        for length in 0..notes.len() - 2 {
            assert_eq!(in_notes(&notes[..length]), None);
        }
        for at in 0..notes.len() {
            let mut damaged = notes.clone();
            damaged[at] = 0xff;
            let _ = in_notes(&damaged);
        }
    }
}
