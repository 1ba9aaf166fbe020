"""A disk in memory that fails, lies and loses power.

A power loss leaves what was made durable: a file's bytes by fsync of the file, a folder's entries by fsync of the folder. Of everything since, any part may be left:
each write whole, in part or not at all, each change of entries or none of it, in any order. That is less than most file systems promise, and what POSIX promises.
"""

import errno
import re
import stat
import threading
import time

# Of pieces that a disk writes as a whole.
SECTOR_BYTES = 512

# Of pieces that a disk loses as a whole.
BLOCK_BYTES = 4096

CAPACITY_BYTES = 8 << 30
ENTRIES_MAX = 100_000


class PowerLost(Exception):
    """The machine is off: nobody gets an answer."""


class Inode:
    def __init__(self, number, path, mode):
        self.number, self.path, self.mode = number, path, mode
        self.links, self.changed = 1, time.time()

    @property
    def is_folder(self):
        return stat.S_ISDIR(self.mode)


class File(Inode):
    """`live` is what programs read, `durable` what a power loss leaves at the least, `pending` the changes in between: ("write", offset, bytes) or ("cut", length)."""

    def __init__(self, number, path, mode):
        super().__init__(number, path, mode)
        self.live, self.durable, self.pending = bytearray(), bytearray(), []
        # Numbers of blocks that can be neither read nor written any more. A file in place of this one has other blocks.
        self.bad = set()

    def expect_good(self, offset, count):
        if count and not self.bad.isdisjoint(range(offset // BLOCK_BYTES, -(-(offset + count) // BLOCK_BYTES))):
            raise OSError(errno.EIO, self.path)

    def change(self, change):
        apply(self.live, change)
        self.pending.append(change)
        self.changed = time.time()

    def sync(self):
        for change in self.pending:
            apply(self.durable, change)
        self.pending = []

    def forget(self):
        """The kernel after a failed fsync: the pages count as clean, stay readable, and never come to the disk."""
        self.pending = []


class Folder(Inode):
    """`pending`: changes of entries, each a map of names to inodes, or to None if the name is free after it."""

    def __init__(self, number, path, mode):
        super().__init__(number, path, mode)
        self.live, self.durable, self.pending = {}, {}, []

    def change(self, entries):
        set_entries(self.live, entries)
        self.pending.append(entries)
        self.changed = time.time()

    def sync(self):
        for entries in self.pending:
            set_entries(self.durable, entries)
        self.pending = []

    def forget(self):
        self.pending = []


def apply(content, change):
    if change[0] == "cut":
        length = change[1]
        del content[length:]
        content.extend(bytes(length - len(content)))
        return
    _, offset, data = change
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def set_entries(folder, entries):
    for name, inode in entries.items():
        if inode is None:
            folder.pop(name, None)
        else:
            folder[name] = inode


class Fault:
    """From the operation after the next `after` ones on whose kind is in `operations` and whose path matches, so many operations meet the effect.

    Effects: an error number; "drop" (success is reported, and nothing done); "power" (the machine is off before the operation); "bad", of reads (a block in the
    middle of what is read is lost for good); "zero", of reads (zeros are read instead).
    """

    def __init__(self, operations, path, effect, after=0, count=1):
        self.operations, self.path, self.effect = operations.split(), re.compile(path), effect
        self.after, self.left = after, count
        self.met = []
        # Of files that were made later no operation meets it; `None`: it does.
        self.last_file = None

    def meets(self, operation, path, number=0):
        if operation not in self.operations or not self.path.search(path) or self.left == 0:
            return False
        if self.last_file is not None and number > self.last_file:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.left -= 1
        self.met.append((operation, path))
        return True


class Disk:
    """A tree of folders and files. Operations raise OSError as a file system answers; they are called by one thread."""

    def __init__(self):
        self.root = Folder(1, "", stat.S_IFDIR | 0o700)
        self.numbers = 1
        self.faults = []
        # Of all operations that can meet a fault, in their order.
        self.operations = []
        self.is_off = threading.Event()
        self.used_bytes = 0

    def meet(self, operation, path, number=0):
        """The effect, if the operation is to be done in another way."""
        self.operations.append((operation, path))
        for fault in self.faults:
            if fault.meets(operation, path, number):
                if fault.effect == "power":
                    self.is_off.set()
                    raise PowerLost
                if isinstance(fault.effect, str):
                    return fault.effect
                raise OSError(fault.effect, path)
        return None

    def add(self, kind, folder, name, mode):
        path = below(folder, name)
        if name in folder.live:
            raise OSError(errno.EEXIST, path)
        if len(folder.live) >= ENTRIES_MAX:
            raise OSError(errno.ENOSPC, path)
        self.meet("create", path)
        self.numbers += 1
        inode = kind(self.numbers, path, mode)
        folder.change({name: inode})
        return inode

    def write(self, file, offset, data):
        try:
            file.expect_good(offset, len(data))
            if self.meet("write", file.path):
                return
        except OSError:
            # A part may have been written.
            if len(data) > 1:
                self.put(file, offset, data[: len(data) // 2])
            raise
        self.put(file, offset, data)

    def put(self, file, offset, data):
        grown = max(0, offset + len(data) - len(file.live))
        if self.used_bytes + grown > CAPACITY_BYTES:
            raise OSError(errno.ENOSPC, file.path)
        self.used_bytes += grown
        file.change(("write", offset, data))

    def cut(self, file, length):
        if not self.meet("cut", file.path):
            self.used_bytes += length - len(file.live)
            file.change(("cut", length))

    def read(self, file, offset, count):
        count = max(0, min(count, len(file.live) - offset))
        effect = self.meet("read", file.path, file.number)
        if effect == "zero":
            return bytes(count)
        if effect == "bad":
            file.bad.add((offset + count // 2) // BLOCK_BYTES)
        file.expect_good(offset, count)
        return file.live[offset : offset + count]

    def sync(self, inode):
        try:
            if not self.meet("sync_folder" if inode.is_folder else "sync", inode.path):
                inode.sync()
        except OSError:
            inode.forget()
            raise

    def rename(self, folder, name, to_folder, to_name, is_exclusive):
        inode = found(folder, name)
        path = below(to_folder, to_name)
        # The store renames within one folder only, so nothing here has to know which of two folders became durable first.
        if folder is not to_folder:
            raise OSError(errno.EXDEV, path)
        replaced = folder.live.get(to_name)
        if replaced is not None and is_exclusive:
            raise OSError(errno.EEXIST, path)
        if replaced is not None and replaced.is_folder:
            raise OSError(errno.EISDIR, path)
        if self.meet("rename", path):
            return
        inode.path = path
        if replaced is not None:
            self.unlinked(replaced)
        folder.change({name: None, to_name: inode})

    def link(self, inode, folder, name):
        path = below(folder, name)
        if name in folder.live:
            raise OSError(errno.EEXIST, path)
        if self.meet("rename", path):
            return
        inode.links += 1
        inode.path = path
        folder.change({name: inode})

    def remove(self, folder, name, is_folder):
        inode = found(folder, name)
        if inode.is_folder != is_folder:
            raise OSError(errno.ENOTDIR if is_folder else errno.EISDIR, inode.path)
        if is_folder and inode.live:
            raise OSError(errno.ENOTEMPTY, inode.path)
        if self.meet("remove", below(folder, name)):
            return
        folder.change({name: None})
        self.unlinked(inode)

    def unlinked(self, inode):
        inode.links -= 1
        if inode.links == 0 and not inode.is_folder:
            self.used_bytes -= len(inode.live)

    def after_power_loss(self, dice, style):
        """The disk as the next boot finds it. Of what was not durable, "lost" leaves nothing; "reordered" any of the changes, each as a whole; "torn" also any
        part of each write."""
        disk = Disk()
        disk.numbers = self.numbers
        done = {}

        def content(file):
            left = bytearray(file.durable)
            for change in file.pending:
                change = kept_part(change, dice, style)
                if change:
                    apply(left, change)
            return left

        def copied(inode):
            if inode.number in done:
                done[inode.number].links += 1
                return done[inode.number]
            copy = type(inode)(inode.number, inode.path, inode.mode)
            done[inode.number] = copy
            if inode.is_folder:
                entries = kept_entries(inode, dice, style)
                copy.live = {name: copied(entry) for name, entry in entries.items()}
                copy.durable = dict(copy.live)
                for name, entry in copy.live.items():
                    entry.path = below(copy, name)
            else:
                copy.live = content(inode)
                copy.durable, copy.bad = bytearray(copy.live), set(inode.bad)
                disk.used_bytes += len(copy.live)
            return copy

        self.root.path = ""
        disk.root = copied(self.root)
        return disk

    def lose(self, path):
        """The folder is empty, behind everybody's back."""
        folder = self.find(path)
        folder.live, folder.durable, folder.pending = {}, {}, []

    def find(self, path):
        """The inode at a path, or None."""
        inode = self.root
        for name in path.split("/"):
            inode = inode.live.get(name) if inode and inode.is_folder else None
        return inode

    def files(self, pattern):
        """Files whose paths match, by path."""
        found_files, folders = {}, [self.root]
        while folders:
            for inode in folders.pop().live.values():
                if inode.is_folder:
                    folders.append(inode)
                elif re.search(pattern, inode.path):
                    found_files[inode.path] = inode
        return [found_files[path] for path in sorted(found_files)]


def kept_part(change, dice, style):
    fate = dice.randrange({"lost": 1, "reordered": 2, "torn": 4}[style])
    if fate == 0:
        return None
    if fate == 1 or change[0] == "cut":
        return change
    _, offset, data = change
    length = dice.randrange(len(data) + 1)
    return ("write", offset, data[: length // SECTOR_BYTES * SECTOR_BYTES if fate == 2 else length])


def kept_entries(folder, dice, style):
    entries, lost = dict(folder.durable), set()
    for change in folder.pending:
        # A change of a name comes to the disk after the changes of that name before it.
        if style == "lost" or lost & change.keys() or dice.randrange(2):
            lost |= change.keys()
        else:
            set_entries(entries, change)
    return entries


def below(folder, name):
    return f"{folder.path}/{name}" if folder.path else name


def found(folder, name):
    if name not in folder.live:
        raise OSError(errno.ENOENT, below(folder, name))
    return folder.live[name]
