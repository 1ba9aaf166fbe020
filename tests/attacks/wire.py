"""The nic-helper's messages, version 2 (transport/drivers/src/xdp/helper/wire.rs), and a connection to it."""

import array
import ipaddress
import socket
import struct
import time

REQUEST_BYTES, ANSWER_BYTES = 64, 80
HEAD = b"SWNH" + struct.pack("<H", 2)
REFUSALS = {
    2: "user", 3: "device", 4: "request", 5: "address", 6: "port", 7: "low port", 8: "queues", 9: "attached",
    10: "full", 11: "failed", 12: "program", 13: "attaches", 14: "limit",
}
LIMITS = ["rails", "memory", "connections"]


def probe(device="eth0"):
    return HEAD + bytes(18) + device.encode().ljust(16, b"\0") + bytes(24)


def rail(address="10.79.0.1", port=0, queues=(1, 1), memory=2048 * 1280, attach=0, device="eth0"):
    ip = ipaddress.ip_address(address)
    head = HEAD + struct.pack("<BBIIBBHB", 1, attach, 1514, 2048, *queues, port, ip.version) + bytes(3)
    return head + device.encode().ljust(16, b"\0") + ip.packed.ljust(16, b"\0") + struct.pack("<I", memory) + bytes(4)


class Connection:
    def __init__(self, path, seconds=10):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # One that may not wait is refused where many others wait to be let in.
        self.socket.connect(path)
        self.socket.settimeout(seconds)

    def send(self, message, files=()):
        """None, or the name of the error."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            self.socket.sendmsg([message], rights)
        except OSError as error:
            return error.strerror
        return None

    def answer(self):
        """A word for the answer, its numbers, and the descriptors beside it."""
        for _ in range(2):
            try:
                message, files, _, _ = socket.recv_fds(self.socket, ANSWER_BYTES + 1, 32)
                break
            except ConnectionResetError:
                continue
        else:
            return "closed", [], []
        if not message:
            return "closed", [], []
        kind = message[6]
        if kind == 0:
            return "would", [], files
        if kind == 1:
            return "given", list(struct.unpack(f"<{message[12]}I", message[16 : 16 + 4 * message[12]])), files
        numbers = list(struct.unpack("<II", message[16:24]))
        if kind == 14:
            return "limit " + LIMITS[message[7]], numbers, files
        return REFUSALS.get(kind, f"answer {kind}"), numbers, files


def ask(path, message, files=()):
    """One request; the answer's word, its numbers, and the seconds that it took. What came is closed again."""
    begun = time.monotonic()
    connection = Connection(path)
    connection.send(message, files)
    word, numbers, _ = connection.answer()
    return word, numbers, time.monotonic() - begun
