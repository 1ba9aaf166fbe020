//! Files and directories of a [`super::Memory`], with the effect of a loss of power on each.

use std::collections::{BTreeMap, BTreeSet};

pub(super) type Inode = u64;

#[derive(Clone, Debug)]
pub(super) enum Node {
    File(FileNode),
    Directory(DirectoryNode),
}

#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    pub(super) bytes: Vec<u8>,
    pub(super) unsynced: Vec<UnsyncedWrite>,
}

#[derive(Clone, Debug)]
pub(super) struct UnsyncedWrite {
    offset: usize,
    length: usize,
    length_before: usize,
    overwritten: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DirectoryNode {
    pub(super) entries: BTreeMap<String, Inode>,
    pub(super) unsynced: Vec<UnsyncedChange>,
}

/// One change of a directory's entries: for each name its inode before and after.
#[derive(Clone, Debug)]
pub(super) struct UnsyncedChange {
    pub(super) names: Vec<(String, Option<Inode>, Option<Inode>)>,
}

impl Node {
    pub(super) fn file_bytes(&self) -> u64 {
        match self {
            Node::File(file) => file.bytes.len() as u64,
            Node::Directory(_) => 0,
        }
    }
}

impl FileNode {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let length_before = self.bytes.len();
        assert!(offset <= length_before, "the store leaves no holes in files");
        let covered = (length_before - offset).min(bytes.len());
        let overwritten = self.bytes[offset..offset + covered].to_vec();
        self.bytes[offset..offset + covered].copy_from_slice(&bytes[..covered]);
        self.bytes.extend_from_slice(&bytes[covered..]);
        self.unsynced.push(UnsyncedWrite { offset, length: bytes.len(), length_before, overwritten });
    }

    pub(super) fn lose_power(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        let mut redo = Vec::with_capacity(self.unsynced.len());
        for write in std::mem::take(&mut self.unsynced).into_iter().rev() {
            redo.push((write.offset, self.bytes[write.offset..write.offset + write.length].to_vec()));
            self.bytes.truncate(write.length_before);
            let end = write.offset + write.overwritten.len();
            self.bytes[write.offset..end].copy_from_slice(&write.overwritten);
        }
        for (offset, bytes) in redo.into_iter().rev() {
            let kept = match choose(3) {
                0 => 0,
                1 => bytes.len(),
                _ => usize::try_from(choose(bytes.len() as u64 + 1)).unwrap_or(bytes.len()).min(bytes.len()),
            };
            if kept == 0 {
                continue;
            }
            if self.bytes.len() < offset + kept {
                self.bytes.resize(offset + kept, 0);
            }
            self.bytes[offset..offset + kept].copy_from_slice(&bytes[..kept]);
        }
    }
}

impl DirectoryNode {
    pub(super) fn apply(&mut self, names: Vec<(String, Option<Inode>, Option<Inode>)>) {
        for (name, _, after) in &names {
            self.set(name, *after);
        }
        self.unsynced.push(UnsyncedChange { names });
    }

    fn set(&mut self, name: &str, meaning: Option<Inode>) {
        match meaning {
            Some(inode) => self.entries.insert(name.to_owned(), inode),
            None => self.entries.remove(name),
        };
    }

    pub(super) fn lose_power(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        let changes = std::mem::take(&mut self.unsynced);
        for change in changes.iter().rev() {
            for (name, before, _) in change.names.iter().rev() {
                self.set(name, *before);
            }
        }
        let mut lost: BTreeSet<&str> = BTreeSet::new();
        for change in &changes {
            let follows_lost = change.names.iter().any(|(name, ..)| lost.contains(name.as_str()));
            if follows_lost || choose(2) == 0 {
                lost.extend(change.names.iter().map(|(name, ..)| name.as_str()));
                continue;
            }
            for (name, _, after) in &change.names {
                self.set(name, *after);
            }
        }
    }
}
