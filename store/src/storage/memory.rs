//! A directory tree in memory that loses power when a test says so.
//!
//! Unsynced changes are kept in logs beside the synced state: for a file its unsynced writes, for a directory its unsynced changes of entries.
//! [`Memory::crash`] undoes them all and lets the caller choose, one by one, which of them the disk had taken: a write may be lost, whole, or torn at
//! any byte, and later writes may survive earlier ones; a change of entries may be lost alone, but never apart from an earlier one of the same name.
//! Nothing is copied when a file is written at its end or synced, so a simulator can run many of these.

mod nodes;

use std::collections::{BTreeMap, BTreeSet};

use nodes::{DirectoryNode, FileNode, Inode, Node};

use super::{DirectoryEntry, EntryKind, Operation, Storage, StorageError, parent_and_name};
use crate::limits::DIRECTORY_ENTRIES_MAX;

const ROOT: Inode = 0;

/// The fault of an operation picked with [`Memory::fault_after`] meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Power is lost during the operation: it may have happened or not. All later ones fail with
    /// [`StorageError::Crashed`] until [`Memory::crash`].
    Crash,
    /// The disk is full at this operation, and has room again after it; half of a write is done.
    NoSpace,
    /// The device fails at this operation (`EIO`), and works again after it; half of a write is done.
    Device,
}

/// A directory tree in memory. See the module.
#[derive(Clone, Debug)]
pub struct Memory {
    nodes: BTreeMap<Inode, Node>,
    next_inode: Inode,
    capacity_bytes: Option<u64>,
    used_bytes: u64,
    changes_done: u64,
    fault: Option<(u64, Fault)>,
    crashed: bool,
}

/// A file of a [`Memory`] being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFile(Inode);

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Memory {
    /// An empty tree on a disk without bound.
    #[must_use]
    pub fn new() -> Memory {
        Memory {
            nodes: BTreeMap::from([(ROOT, Node::Directory(DirectoryNode::default()))]),
            next_inode: ROOT + 1,
            capacity_bytes: None,
            used_bytes: 0,
            changes_done: 0,
            fault: None,
            crashed: false,
        }
    }

    /// Bounds the bytes of all files together; `None` lifts the bound. Files that lie there already stay.
    pub fn set_capacity_bytes(&mut self, capacity: Option<u64>) {
        self.capacity_bytes = capacity;
    }

    /// Changing operations done or begun so far (everything but reading). Counts where a fault can be put.
    #[must_use]
    pub fn changes_done(&self) -> u64 {
        self.changes_done
    }

    /// Lets the changing operation after the next `operations` ones meet `fault`; replaces a fault not yet met.
    pub fn fault_after(&mut self, operations: u64, fault: Fault) {
        self.fault = Some((self.changes_done + operations, fault));
    }

    /// Takes back a fault not yet met. True if there was one.
    pub fn clear_fault(&mut self) -> bool {
        self.fault.take().is_some()
    }

    /// True between a [`Fault::Crash`] and [`Memory::crash`].
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.crashed
    }

    /// Loses power now and starts again: synced data stays; `choose` decides about the rest.
    ///
    /// `choose(n)` returns a number below `n`. For an unsynced write: 0 lost, 1 whole, 2 torn (then again for the
    /// number of bytes that stay); for an unsynced change of entries: 0 lost, 1 kept. A number that is too large
    /// counts as the largest. Handles of files from before must not be used again.
    pub fn crash(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.lose_power(choose),
                Node::Directory(directory) => directory.lose_power(choose),
            }
        }
        self.forget_unreachable();
        self.used_bytes = self.nodes.values().map(Node::file_bytes).sum();
        self.crashed = false;
        self.fault = None;
    }

    /// The harshest loss of power: everything that was not synced is gone.
    pub fn crash_losing_all(&mut self) {
        self.crash(&mut |_| 0);
    }

    /// The process was killed by its [`Fault::Crash`], and not the machine: a next process finds everything as it was,
    /// still not durable.
    pub fn restart_process(&mut self) {
        self.crashed = false;
        self.fault = None;
    }

    /// Flips the bits of `mask` in the byte at `offset` of the file `path`, behind everybody's back and durably: rot.
    /// False if there is no such byte.
    pub fn damage(&mut self, path: &str, offset: u64, mask: u8) -> bool {
        let Some(inode) = self.find(path) else { return false };
        let Some(Node::File(file)) = self.nodes.get_mut(&inode) else { return false };
        let Some(byte) = usize::try_from(offset).ok().and_then(|at| file.bytes.get_mut(at)) else {
            return false;
        };
        *byte ^= mask;
        true
    }

    /// Cuts the file `path` to `bytes` bytes, behind everybody's back and durably. False if it is not that long.
    pub fn truncate(&mut self, path: &str, bytes: u64) -> bool {
        let Some(inode) = self.find(path) else { return false };
        let Some(Node::File(file)) = self.nodes.get_mut(&inode) else { return false };
        let Some(length) = usize::try_from(bytes).ok().filter(|length| *length <= file.bytes.len()) else {
            return false;
        };
        self.used_bytes -= (file.bytes.len() - length) as u64;
        file.bytes.truncate(length);
        file.unsynced.clear();
        true
    }

    fn find(&self, path: &str) -> Option<Inode> {
        let mut inode = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let Some(Node::Directory(directory)) = self.nodes.get(&inode) else { return None };
            inode = *directory.entries.get(part)?;
        }
        Some(inode)
    }

    fn directory(&mut self, operation: Operation, path: &str) -> Result<&mut DirectoryNode, StorageError> {
        let inode = self.find(path);
        match inode.and_then(|inode| self.nodes.get_mut(&inode)) {
            Some(Node::Directory(directory)) => Ok(directory),
            _ => Err(StorageError::NotFound { operation, path: path.to_owned() }),
        }
    }

    fn file(&self, operation: Operation, path: &str) -> Result<&FileNode, StorageError> {
        match self.find(path).and_then(|inode| self.nodes.get(&inode)) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(StorageError::NotFound { operation, path: path.to_owned() }),
        }
    }

    /// Counts a changing operation; says which fault it meets. `Err` if the machine is down already.
    fn change(&mut self) -> Result<Option<Fault>, StorageError> {
        if self.crashed {
            return Err(StorageError::Crashed);
        }
        let due = self.fault.filter(|(at, _)| *at == self.changes_done);
        self.changes_done += 1;
        if due.is_some() {
            self.fault = None;
        }
        let fault = due.map(|(_, fault)| fault);
        self.crashed = fault == Some(Fault::Crash);
        Ok(fault)
    }

    fn reading(&self) -> Result<(), StorageError> {
        if self.crashed { Err(StorageError::Crashed) } else { Ok(()) }
    }

    fn fails(&self, fault: Fault, operation: Operation, path: &str, wanted_bytes: u64) -> StorageError {
        let path = path.to_owned();
        match fault {
            Fault::Crash => StorageError::Crashed,
            Fault::NoSpace => StorageError::NoSpace { path, wanted_bytes, free_bytes: self.free() },
            Fault::Device => StorageError::Device { operation, path },
        }
    }

    fn free(&self) -> Option<u64> {
        self.capacity_bytes.map(|capacity| capacity.saturating_sub(self.used_bytes))
    }

    fn insert(&mut self, operation: Operation, path: &str, node: Node) -> Result<Inode, StorageError> {
        let fault = self.change()?;
        if let Some(fault @ (Fault::NoSpace | Fault::Device)) = fault {
            return Err(self.fails(fault, operation, path, 0));
        }
        let inode = self.next_inode;
        let (parent, name) = parent_and_name(path);
        let directory = self.directory(operation, parent)?;
        if directory.entries.contains_key(name) {
            return Err(StorageError::AlreadyExists { operation, path: path.to_owned() });
        }
        directory.apply(vec![(name.to_owned(), None, Some(inode))]);
        self.nodes.insert(inode, node);
        self.next_inode += 1;
        if fault.is_some() { Err(StorageError::Crashed) } else { Ok(inode) }
    }

    fn write(
        &mut self,
        operation: Operation,
        file: MemoryFile,
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), StorageError> {
        let fault = self.change()?;
        let free = self.free();
        let gone = || StorageError::NotFound { operation, path: format!("(file {})", file.0) };
        let Some(Node::File(node)) = self.nodes.get_mut(&file.0) else { return Err(gone()) };
        let offset = match offset {
            None => node.bytes.len(),
            Some(offset) => usize::try_from(offset).map_err(|_| gone())?,
        };
        let grows = (offset + bytes.len()).saturating_sub(node.bytes.len());
        let fits = free.is_none_or(|free| grows as u64 <= free);
        let done = match fault {
            Some(Fault::NoSpace | Fault::Device) => bytes.len() / 2,
            _ if fits => bytes.len(),
            _ => bytes.len() - (grows - usize::try_from(free.unwrap_or(0)).unwrap_or(0).min(grows)),
        };
        let length_before = node.bytes.len();
        node.write(offset, &bytes[..done]);
        self.used_bytes += (node.bytes.len() - length_before) as u64;
        match fault {
            Some(fault) => {
                Err(self.fails(fault, operation, &format!("(file {})", file.0), bytes.len() as u64))
            }
            None if fits => Ok(()),
            None => {
                Err(self.fails(Fault::NoSpace, operation, &format!("(file {})", file.0), bytes.len() as u64))
            }
        }
    }

    fn move_entry(
        &mut self,
        operation: Operation,
        from: &str,
        to: &str,
        replaces: bool,
    ) -> Result<(), StorageError> {
        let fault = self.change()?;
        if let Some(fault @ (Fault::NoSpace | Fault::Device)) = fault {
            return Err(self.fails(fault, operation, to, 0));
        }
        let ((from_parent, from_name), (to_parent, to_name)) = (parent_and_name(from), parent_and_name(to));
        assert_eq!(from_parent, to_parent, "the store renames within one directory only");
        let directory = self.directory(operation, from_parent)?;
        let Some(moved) = directory.entries.get(from_name).copied() else {
            return Err(StorageError::NotFound { operation, path: from.to_owned() });
        };
        let replaced = directory.entries.get(to_name).copied();
        if replaced.is_some() && !replaces {
            return Err(StorageError::AlreadyExists { operation, path: to.to_owned() });
        }
        directory.apply(vec![
            (from_name.to_owned(), Some(moved), None),
            (to_name.to_owned(), replaced, Some(moved)),
        ]);
        if let Some(replaced) = replaced {
            self.used_bytes -= self.nodes.get(&replaced).map_or(0, Node::file_bytes);
        }
        if fault.is_some() { Err(StorageError::Crashed) } else { Ok(()) }
    }

    fn remove(
        &mut self,
        operation: Operation,
        path: &str,
        removable: impl Fn(&Node) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let fault = self.change()?;
        if let Some(fault @ (Fault::NoSpace | Fault::Device)) = fault {
            return Err(self.fails(fault, operation, path, 0));
        }
        let absent = || StorageError::NotFound { operation, path: path.to_owned() };
        let inode = self.find(path).filter(|inode| *inode != ROOT).ok_or_else(absent)?;
        let node = self.nodes.get(&inode).ok_or_else(absent)?;
        removable(node)?;
        self.used_bytes -= node.file_bytes();
        let (parent, name) = parent_and_name(path);
        self.directory(operation, parent)?.apply(vec![(name.to_owned(), Some(inode), None)]);
        if fault.is_some() { Err(StorageError::Crashed) } else { Ok(()) }
    }

    /// Drops every node that no directory names, now or after a crash.
    fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut to_visit = vec![ROOT];
        while let Some(inode) = to_visit.pop() {
            if !reached.insert(inode) {
                continue;
            }
            if let Some(Node::Directory(directory)) = self.nodes.get(&inode) {
                to_visit.extend(directory.entries.values());
                let changed = directory.unsynced.iter().flat_map(|change| &change.names);
                to_visit.extend(changed.filter_map(|(_, before, _)| *before));
            }
        }
        self.nodes.retain(|inode, _| reached.contains(inode));
    }
}

impl Storage for Memory {
    type File = MemoryFile;

    fn create_directory(&mut self, path: &str) -> Result<(), StorageError> {
        self.insert(Operation::CreateDirectory, path, Node::Directory(DirectoryNode::default())).map(|_| ())
    }

    fn create(&mut self, path: &str) -> Result<MemoryFile, StorageError> {
        self.insert(Operation::Create, path, Node::File(FileNode::default())).map(MemoryFile)
    }

    fn reopen(&mut self, path: &str) -> Result<MemoryFile, StorageError> {
        self.reading()?;
        self.file(Operation::Reopen, path)?;
        let found = self.find(path).map(MemoryFile);
        found.ok_or_else(|| StorageError::NotFound { operation: Operation::Reopen, path: path.to_owned() })
    }

    fn append(&mut self, file: &mut MemoryFile, bytes: &[u8]) -> Result<(), StorageError> {
        self.write(Operation::Append, *file, None, bytes)
    }

    fn overwrite(&mut self, file: &mut MemoryFile, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.write(Operation::Overwrite, *file, Some(offset), bytes)
    }

    fn sync_file(&mut self, file: &mut MemoryFile) -> Result<(), StorageError> {
        let path = format!("(file {})", file.0);
        if let Some(fault) = self.change()? {
            return Err(self.fails(fault, Operation::SyncFile, &path, 0));
        }
        match self.nodes.get_mut(&file.0) {
            Some(Node::File(node)) => node.unsynced.clear(),
            _ => return Err(StorageError::NotFound { operation: Operation::SyncFile, path }),
        }
        Ok(())
    }

    fn sync_directory(&mut self, path: &str) -> Result<(), StorageError> {
        if let Some(fault) = self.change()? {
            return Err(self.fails(fault, Operation::SyncDirectory, path, 0));
        }
        let changes = std::mem::take(&mut self.directory(Operation::SyncDirectory, path)?.unsynced);
        let removes = changes.iter().flat_map(|change| &change.names).any(|(_, before, _)| before.is_some());
        if removes {
            self.forget_unreachable();
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.move_entry(Operation::Rename, from, to, true)
    }

    fn publish(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.move_entry(Operation::Publish, from, to, false)
    }

    fn remove_file(&mut self, path: &str) -> Result<(), StorageError> {
        let operation = Operation::RemoveFile;
        self.remove(operation, path, |node| match node {
            Node::File(_) => Ok(()),
            Node::Directory(_) => Err(StorageError::WrongType { operation, path: path.to_owned() }),
        })
    }

    fn remove_directory(&mut self, path: &str) -> Result<(), StorageError> {
        let operation = Operation::RemoveDirectory;
        self.remove(operation, path, |node| match node {
            Node::Directory(directory) if directory.entries.is_empty() => Ok(()),
            Node::Directory(_) => Err(StorageError::NotEmpty { operation, path: path.to_owned() }),
            Node::File(_) => Err(StorageError::WrongType { operation, path: path.to_owned() }),
        })
    }

    fn length(&mut self, path: &str) -> Result<u64, StorageError> {
        self.reading()?;
        Ok(self.file(Operation::Length, path)?.bytes.len() as u64)
    }

    fn read_range(&mut self, path: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.reading()?;
        let file = self.file(Operation::Read, path)?;
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(into.len()));
        match start.zip(end).and_then(|(start, end)| file.bytes.get(start..end)) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(StorageError::Short {
                path: path.to_owned(),
                offset,
                wanted_bytes: into.len() as u64,
                found_bytes: file.bytes.len() as u64,
            }),
        }
    }

    fn list(&mut self, path: &str) -> Result<Vec<DirectoryEntry>, StorageError> {
        self.reading()?;
        let entries = self.directory(Operation::List, path)?.entries.clone();
        if entries.len() > DIRECTORY_ENTRIES_MAX {
            return Err(StorageError::TooMany { path: path.to_owned(), entries_max: DIRECTORY_ENTRIES_MAX });
        }
        let kind = |inode: Inode| match self.nodes.get(&inode) {
            Some(Node::File(file)) => EntryKind::File { bytes: file.bytes.len() as u64 },
            Some(Node::Directory(_)) => EntryKind::Directory,
            None => EntryKind::Other,
        };
        Ok(entries.into_iter().map(|(name, inode)| DirectoryEntry { name, kind: kind(inode) }).collect())
    }

    fn free_bytes(&mut self) -> Result<Option<u64>, StorageError> {
        self.reading()?;
        Ok(self.free())
    }
}

#[cfg(test)]
mod tests;
