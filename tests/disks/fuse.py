"""A Disk as a file system of the kernel's, by FUSE: below every process, whatever system calls it makes, and whether it maps files or not."""

import ctypes
import errno
import os
import stat
import struct
import threading

from disk import CAPACITY_BYTES, Disk, File, Folder, PowerLost

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_FORCE, MNT_DETACH = 1, 2
MS_NOSUID, MS_NODEV = 2, 4

# Of the protocol that is spoken here, so that no later structure is expected.
MAJOR, MINOR = 7, 31
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
PAGES_MAX = 256
REQUEST_BYTES_MAX = PAGES_MAX * 4096 + 4096

# Of the layouts in linux/fuse.h.
IN = struct.Struct("<IIQQIIIHH")
OUT = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
VALID_SIZE, VALID_MODE = 1 << 3, 1 << 0
RENAME_NOREPLACE = 1


class Mount:
    """A disk at a folder, served by a thread."""

    def __init__(self, disk, folder):
        self.disk, self.folder = disk, folder
        self.inodes, self.looked_up = {1: disk.root}, {}
        self.listings, self.handles = {}, 0
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other,default_permissions"
        if LIBC.mount(b"stillwire-disk", os.fsencode(folder), b"fuse", MS_NOSUID | MS_NODEV, options.encode()) != 0:
            code = ctypes.get_errno()
            os.close(self.device)
            raise OSError(code, os.strerror(code), folder)
        self.failure = None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def end(self):
        """Unmounts it. False if a process still has something of it open."""
        is_free = LIBC.umount2(os.fsencode(self.folder), 0) == 0
        if not is_free:
            self.abort()
        else:
            self.close()
        return is_free

    def abort(self):
        """Takes it away from whoever waits for an answer."""
        LIBC.umount2(os.fsencode(self.folder), MNT_FORCE | MNT_DETACH)
        self.close()

    def close(self):
        self.thread.join(10)
        os.close(self.device)

    def serve(self):
        buffer = bytearray(REQUEST_BYTES_MAX)
        view = memoryview(buffer)
        while True:
            try:
                length = os.readv(self.device, [buffer])
            except InterruptedError:
                continue
            except OSError as error:
                # Nobody needs the answer any more.
                if error.errno == errno.ENOENT:
                    continue
                # Unmounted.
                return
            _, call, unique, number, *_ = IN.unpack_from(buffer)
            body = view[IN.size : length]
            try:
                reply, code = self.answer(call, number, body), 0
            except PowerLost:
                return
            except OSError as error:
                reply, code = b"", error.errno
            except Exception as error:  # noqa: B902 a mistake in here, which the round reports
                self.failure = f"{type(error).__name__} in call {call}: {error}"
                reply, code = b"", errno.EIO
            if reply is None:
                continue
            try:
                os.writev(self.device, [OUT.pack(OUT.size + len(reply), -code, unique), reply])
            except OSError:
                # The caller was interrupted, or all is over.
                pass

    def answer(self, call, number, body):
        """The answer to a request; None if there is none."""
        if call == FORGET:
            self.forget(number, struct.unpack_from("<Q", body)[0])
            return None
        if call == BATCH_FORGET:
            for at in range(struct.unpack_from("<I", body)[0]):
                self.forget(*struct.unpack_from("<QQ", body, 8 + 16 * at))
            return None
        if call == INTERRUPT:
            return None
        if call not in CALLS:
            raise OSError(errno.ENOSYS, "no such call")
        return CALLS[call](self, self.inodes.get(number), body)

    def forget(self, number, times):
        left = self.looked_up.get(number, 0) - times
        self.looked_up[number] = left
        if left <= 0 and number != 1:
            self.looked_up.pop(number, None)
            self.inodes.pop(number, None)

    def entry(self, inode):
        self.inodes[inode.number] = inode
        self.looked_up[inode.number] = self.looked_up.get(inode.number, 0) + 1
        # Valid for no time: links and lengths are always asked for.
        return struct.pack("<4Q2I", inode.number, 0, 0, 0, 0, 0) + attributes(inode)

    def init(self, _inode, body):
        ahead = struct.unpack_from("<I", body, 8)[0]
        return struct.pack("<4I2H2I2H8I", MAJOR, MINOR, ahead, BIG_WRITES | MAX_PAGES, 64, 48, PAGES_MAX * 4096, 1, PAGES_MAX, 0, *[0] * 8)

    def lookup(self, folder, body):
        name = text(body)
        if name not in folder.live:
            raise OSError(errno.ENOENT, name)
        return self.entry(folder.live[name])

    def get_attributes(self, inode, _body):
        return struct.pack("<QII", 0, 0, 0) + attributes(inode)

    def set_attributes(self, inode, body):
        valid = struct.unpack_from("<I", body)[0]
        if valid & VALID_SIZE:
            self.disk.cut(inode, struct.unpack_from("<Q", body, 16)[0])
        if valid & VALID_MODE:
            inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(struct.unpack_from("<I", body, 68)[0])
        return self.get_attributes(inode, body)

    def make_folder(self, folder, body):
        mode, mask = struct.unpack_from("<II", body)
        return self.entry(self.disk.add(Folder, folder, text(body[8:]), stat.S_IFDIR | (mode & ~mask & 0o7777)))

    def remove_file(self, folder, body):
        self.disk.remove(folder, text(body), is_folder=False)
        return b""

    def remove_folder(self, folder, body):
        self.disk.remove(folder, text(body), is_folder=True)
        return b""

    def renamed(self, folder, to_number, flags, body):
        name, to_name = (os.fsdecode(part) for part in bytes(body).split(b"\0")[:2])
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, name)
        self.disk.rename(folder, name, self.inodes[to_number], to_name, bool(flags))
        return b""

    def rename(self, folder, body):
        return self.renamed(folder, struct.unpack_from("<Q", body)[0], 0, body[8:])

    def rename2(self, folder, body):
        to_number, flags = struct.unpack_from("<QI", body)
        return self.renamed(folder, to_number, flags, body[16:])

    def link(self, folder, body):
        inode = self.inodes[struct.unpack_from("<Q", body)[0]]
        self.disk.link(inode, folder, text(body[8:]))
        return self.entry(inode)

    def open(self, _inode, _body):
        return struct.pack("<QII", 0, 0, 0)

    def read(self, inode, body):
        _, offset, count = struct.unpack_from("<QQI", body)
        return self.disk.read(inode, offset, count)

    def write(self, inode, body):
        _, offset, count = struct.unpack_from("<QQI", body)
        self.disk.write(inode, offset, bytes(body[40 : 40 + count]))
        return struct.pack("<II", count, 0)

    def space(self, _inode, _body):
        total, free = CAPACITY_BLOCKS, CAPACITY_BLOCKS - self.disk.used_bytes // 4096
        return struct.pack("<5Q10I", total, free, free, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *[0] * 6)

    def sync(self, inode, _body):
        self.disk.sync(inode)
        return b""

    def nothing(self, _inode, _body):
        return b""

    def open_folder(self, folder, _body):
        self.handles += 1
        self.listings[self.handles] = [(name, inode.number, inode.mode) for name, inode in sorted(folder.live.items())]
        return struct.pack("<QII", self.handles, 0, 0)

    def list(self, _folder, body):
        handle, offset, count = struct.unpack_from("<QQI", body)
        reply = b""
        for at, (name, number, mode) in list(enumerate(self.listings[handle]))[offset:]:
            encoded = os.fsencode(name)
            entry = struct.pack("<QQII", number, at + 1, len(encoded), stat.S_IFMT(mode) >> 12) + encoded
            entry += bytes(-len(entry) % 8)
            if len(reply) + len(entry) > count:
                break
            reply += entry
        return reply

    def close_folder(self, _folder, body):
        self.listings.pop(struct.unpack_from("<Q", body)[0], None)
        return b""

    def create(self, folder, body):
        _flags, mode, mask = struct.unpack_from("<III", body)
        inode = self.disk.add(File, folder, text(body[16:]), stat.S_IFREG | (mode & ~mask & 0o7777))
        return self.entry(inode) + self.open(inode, body)


FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42
CAPACITY_BLOCKS = CAPACITY_BYTES // 4096
CALLS = {
    1: Mount.lookup, 3: Mount.get_attributes, 4: Mount.set_attributes, 9: Mount.make_folder, 10: Mount.remove_file,
    11: Mount.remove_folder, 12: Mount.rename, 13: Mount.link, 14: Mount.open, 15: Mount.read, 16: Mount.write, 17: Mount.space,
    18: Mount.nothing, 20: Mount.sync, 26: Mount.init, 27: Mount.open_folder, 28: Mount.list, 29: Mount.close_folder,
    30: Mount.sync, 35: Mount.create, 45: Mount.rename2,
}


def text(body):
    return os.fsdecode(bytes(body).split(b"\0", 1)[0])


def attributes(inode):
    size = 4096 if inode.is_folder else len(inode.live)
    at, nanos = int(inode.changed), int(inode.changed % 1 * 1e9)
    links = 0 if inode.links == 0 else 2 if inode.is_folder else inode.links
    owner = os.getuid(), os.getgid()
    return ATTRIBUTES.pack(inode.number, size, -(-size // 512), at, at, at, nanos, nanos, nanos, inode.mode, links, *owner, 0, 4096, 0)


def is_possible(folder):
    """Whether this kernel has FUSE, and lets us mount it."""
    try:
        mount = Mount(Disk(), folder)
    except OSError:
        return False
    mount.end()
    return True
