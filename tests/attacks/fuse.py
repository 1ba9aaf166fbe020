"""A file system with one file, `file`, that is opened like any other, and whose closing is never answered."""

import ctypes
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
GETATTR, LOOKUP, OPEN, FLUSH, INIT, FORGET, RELEASE = 3, 1, 14, 25, 26, 2, 18
NO_SUCH_CALL = -38


def attributes(node, uid):
    mode = 0o40755 if node == 1 else 0o100666
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, uid, uid, 0, 4096, 0)


def serve(device, uid):
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:
            return
        _, call, unique, node = struct.unpack("<IIQQ", request[:24])
        if call in (FORGET, FLUSH, RELEASE):
            continue
        reply, error = b"", 0
        if call == INIT:
            reply = struct.pack("<IIIIHHIIHH", 7, 31, 65536, 0, 12, 10, 65536, 1, 16, 0) + bytes(32)
        elif call == GETATTR:
            reply = struct.pack("<QII", 60, 0, 0) + attributes(node, uid)
        elif call == LOOKUP:
            reply = struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + attributes(2, uid)
        elif call == OPEN:
            reply = struct.pack("<QII", 1, 0, 0)
        else:
            error = NO_SUCH_CALL
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)
        except OSError:
            return


def mounted(folder, uid):
    """Mounts it; the descriptor of its server, or None: this kernel has no FUSE."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        return None
    os.makedirs(folder, exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
    if LIBC.mount(b"attacks", folder.encode(), b"fuse", 6, options) != 0:
        os.close(device)
        return None
    return device
