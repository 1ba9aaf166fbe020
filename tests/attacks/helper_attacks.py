"""Attacks on `stillwire nic-helper`. Its messages have to name the reason, and another user of it is served all the while."""

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import time

import fuse
import wire
from common import HONEST, MALLORY, SERVED_WITHIN, STILLWIRE, STRANGER, Attacks, Program, User, as_user, expect, honest, until

attacks = Attacks()
LIBC = ctypes.CDLL(None, use_errno=True)
SOCKET = "/run/stillwire/nic.sock"
ADDRESS = "10.79.0.1"


@contextlib.contextmanager
def helper(*options, users=(HONEST, MALLORY), path=SOCKET):
    """A helper that serves these users; it ends in time, whatever was done to it."""
    words = [STILLWIRE, "nic-helper", "--socket", path, "--interface", "eth0", "--generic"]
    for user in users:
        words += ["--uid", str(user)]
    with Program(*words, *options) as program:
        program.wait_for("serves at")
        yield program
        is_served(path)
        expect(program.process.poll() is None, f"the helper has ended:\n{program.said()}")
        program.process.send_signal(signal.SIGTERM)
        expect(program.finish(5) == 0, program.said())
        expect("no program of it is left at any device" in program.said(), program.said())


def is_served(path=SOCKET, user=HONEST):
    """The honest user gets a rail in time."""
    begun = time.monotonic()
    word, numbers, _ = as_user(user, wire.ask, path, wire.rail())
    took = time.monotonic() - begun
    expect(word == "given", f"the honest user gets '{word}' {numbers}")
    expect(took < SERVED_WITHIN, f"the honest user is served after {took:.1f} s")


def says(program, words):
    until(f"'{words}' in the helper's log:\n{program.said()}", lambda: words in program.said())


@attacks("a user who is not served connects")
def _():
    with helper() as program:
        word, _, took = as_user(STRANGER, wire.ask, SOCKET, wire.rail())
        expect(word == "user" and took < SERVED_WITHIN, f"'{word}' after {took} s")
        says(program, f"of user {STRANGER}: refused: this user is not among those that it serves")


def silent_answer(path):
    """The answer to a client that has sent nothing."""
    return wire.Connection(path).answer()[0]


@attacks("a user who is not served is refused before it has sent a byte")
def _():
    with helper():
        expect(as_user(STRANGER, silent_answer, SOCKET) == "user", "it waits for a request")


def send_files(path, count, kind):
    """Connections on which that many descriptors wait, of files of this kind. What the kernel says, and the helper."""
    made = {
        "files": lambda: os.open("/dev/null", os.O_RDONLY),
        "folders": lambda: os.open("/tmp", os.O_RDONLY),
        "event queues": event_queue,
        "memory that shrinks": lambda: os.memfd_create("frames"),
        "sockets": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach(),
        "the sender's own connections": lambda: None,
        "files that never close": lambda: os.open("/run/fuse/file", os.O_RDWR),
        "sockets that linger": lingering,
    }[kind]
    said = []
    for number in range(8):
        connection = wire.Connection(path)
        KEPT.append(connection)
        file = made()
        file = connection.socket.fileno() if file is None else file
        message = [wire.probe(), wire.rail(), b"x", b"x" * 4096][number % 4]
        sent = connection.send(message, [file] * count)
        said.append((sent, "" if sent else connection.answer()[0]))
    return said


# What a user keeps open until it is ended.
KEPT = []


def event_queue():
    KEPT.append(select.epoll())
    return KEPT[-1].fileno()


def lingering():
    """A connected socket whose last closing waits for a peer that does not read."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    file = socket.socket()
    file.connect(listener.getsockname())
    KEPT.extend([listener, listener.accept()[0]])
    file.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            file.send(bytes(65536))
    file.setblocking(True)
    file.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    return file.detach()


def hostile_files(kind, count):
    def attack():
        for user in (MALLORY, STRANGER):
            with helper() as program, User(user, send_files, SOCKET, count, kind) as hostile:
                said = hostile.result()
                # The kernel refuses to send them (Linux 6.16), or they are left where they are.
                taken = {"would", "given", "request"} if user == MALLORY else {"user", "closed"}
                for sent, answered in said:
                    refused = sent in ("Operation not permitted", "Broken pipe", "Connection reset by peer")
                    expect(refused or answered in taken, f"{sent}, {answered}")
                is_served()
                files = os.listdir(f"/proc/{program.process.pid}/fd")
                expect(len(files) < 100, f"the helper has {len(files)} files open")
                is_served()

    return attack


for kind in ("files", "folders", "event queues", "memory that shrinks", "sockets", "the sender's own connections",
             "sockets that linger"):
    for count in (2, 3, 253) if kind == "files" else (3,):
        attacks(f"{count} {kind} beside a request")(hostile_files(kind, count))


@attacks("files that never close beside a request")
def _():
    device = fuse.mounted("/run/fuse", MALLORY)
    expect(device is not None, "no FUSE here")
    server = os.fork()
    if server == 0:
        fuse.serve(device, MALLORY)
        os._exit(0)
    os.close(device)
    try:
        hostile_files("files that never close", 3)()
    finally:
        # Without its server, whatever waits for it ends.
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        subprocess.run(["umount", "-l", "/run/fuse"], check=False)


def hostile_bytes(path):
    words = []
    good = wire.rail()
    messages = [b"x", bytes(4096), good[:39], good + b"x", b"\xff" * 64]
    for at in (8, 12, 56):
        for number in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
            messages.append(good[:at] + struct.pack("<I", number) + good[at + 4 :])
    for at in (4, 6, 7, 16, 17, 20):
        messages.append(good[:at] + b"\xff" + good[at + 1 :])
    for message in messages:
        words.append(wire.ask(path, message)[0])
    return words


@attacks("half a message, long messages, hostile lengths")
def _():
    with helper() as program:
        words = as_user(MALLORY, hostile_bytes, SOCKET)
        expect(set(words) == {"request"}, f"{words}")
        says(program, "refused: it does not understand the request")


def keep_silent(path, count, message=b""):
    for _ in range(count):
        connection = wire.Connection(path)
        if message:
            connection.send(message)
        KEPT.append(connection)
    return count


@attacks("clients that say nothing, or never read the answer")
def _():
    with helper():
        with User(MALLORY, keep_silent, SOCKET, 40) as silent, User(MALLORY, keep_silent, SOCKET, 8, wire.rail()) as deaf:
            silent.result(), deaf.result()
            is_served()
            # They are dropped after a second, and the user may come again.
            until("silent ones are dropped", lambda: as_user(MALLORY, wire.ask, SOCKET, wire.probe())[0] == "would", 5)


def flood(path):
    end = time.monotonic() + 2
    count, words = 0, {}
    while time.monotonic() < end:
        connection = wire.Connection(path)
        connection.send(wire.probe()[: count % 64 + 1])
        KEPT.append(connection)
        if len(KEPT) > 200:
            word = KEPT.pop(0).answer()[0]
            words[word] = words.get(word, 0) + 1
        count += 1
    return count, words


def flooded(user, words):
    def attack():
        with helper() as program:
            floods = [User(user, flood, SOCKET) for _ in range(4)]
            try:
                for _ in range(4):
                    is_served()
                for one in floods:
                    count, answers = one.result(30)
                    expect(count > 200 and any(word in answers for word in words), f"{count}: {answers}")
            finally:
                for one in floods:
                    one.end()
            lines = program.said().count("\n")
            expect(lines < 200, f"{lines} lines in the log")
            says(program, "further lines within this minute are not printed (--user-log-lines)")

    return attack


@attacks("a flood of connections while the job of another user starts")
def _():
    with helper() as program:
        floods = [User(user, flood, SOCKET) for user in (MALLORY, STRANGER)]
        try:
            run = ["run", "-q", "-n", "1", "--rails", "nic", "--nic", "xdp:eth0", "--bind", ADDRESS, "--"]
            with honest(*run, STILLWIRE, "example", "ring", "--steps", "10", STILLWIRE_NIC_HELPER=SOCKET) as job:
                expect(job.finish(5 * SERVED_WITHIN) == 0, job.said())
            says(program, f"of user {HONEST}: given queues")
        finally:
            for one in floods:
                one.end()


attacks("a flood of connections by a user who is served")(flooded(MALLORY, ["limit connections"]))
attacks("a flood of connections by a user who is not")(flooded(STRANGER, ["user"]))


def take_all(path, **wanted):
    """Rails until there are no more."""
    for count in range(100):
        connection = wire.Connection(path)
        connection.send(wire.rail(**wanted))
        word, numbers, files = connection.answer()
        KEPT.append((connection, files))
        if word != "given":
            return count, word, numbers
    return 100, "given", []


@attacks("one user takes all queues")
def _():
    with helper() as program, User(MALLORY, take_all, SOCKET) as greedy:
        count, word, numbers = greedy.result()
        expect((count, word, numbers[0]) == (16, "limit rails", 16), f"{count}, {word}, {numbers}")
        says(program, "this user has 16 rails (--user-rails of `stillwire nic-helper`), and gets no more")
        is_served()


@attacks("one user locks all memory")
def _():
    with helper("--user-memory", "20") as program, User(MALLORY, take_all, SOCKET) as greedy:
        count, word, numbers = greedy.result()
        expect((count, word, numbers[0]) == (8, "limit memory", 20), f"{count}, {word}, {numbers}")
        says(program, "this user has 20 MiB of memory for frames (--user-memory of `stillwire nic-helper`)")
        is_served()


def ask_often(path, count):
    return [wire.ask(path, wire.probe("lo"))[0] for _ in range(count)]


@attacks("limits that the administrator has set")
def _():
    for option, limit, words in (("--user-rails", "rails", "2 rails"), ("--user-connections", "connections", "2 connections")):
        with helper(option, "2") as program, User(MALLORY, take_all, SOCKET) as greedy:
            count, word, numbers = greedy.result()
            expect((count, word, numbers[0]) == (2, f"limit {limit}", 2), f"{count}, {word}, {numbers}")
            says(program, f"this user has {words} ({option} of `stillwire nic-helper`), and gets no more")
            is_served()
    with helper("--user-log-lines", "5") as program:
        expect(set(as_user(MALLORY, ask_often, SOCKET, 40)) == {"device"}, "an interface that is not served")
        lines = program.said().count(f"of user {MALLORY}: ")
        expect(lines == 5, f"{lines} lines:\n{program.said()}")
        is_served()
        says(program, f"of user {HONEST}: given queues")


def asked(user, **wanted):
    return as_user(user, wire.ask, SOCKET, wire.rail(**wanted))[0]


@attacks("an address of another interface, of nobody, of all")
def _():
    with helper() as program:
        for address in ("127.0.0.1", "10.79.0.2", "0.0.0.0", "::", "255.255.255.255", "224.0.0.1"):
            expect(asked(MALLORY, address=address) == "address", address)
        expect(asked(MALLORY, device="peer0") == "device", "an interface that is not served")
        expect(asked(MALLORY, device="lo", address="127.0.0.1") == "device", "an interface that is not served")
        says(program, "refused: the device is not among those that it serves (--interface")


@attacks("an address of the host, asked for from another network")
def _():
    with helper():
        other = lambda: expect(LIBC.unshare(0x40000000) == 0, "a network namespace")
        word, _, _ = as_user(MALLORY, wire.ask, SOCKET, wire.rail(), before=other)
        expect(word == "address", word)


@attacks("a port of the system")
def _():
    with helper() as program:
        expect(asked(MALLORY, port=53) == "low port", "port 53")
        says(program, "refused: it gives no port below 1024")


def bound(port, share):
    file = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in share:
        file.setsockopt(socket.SOL_SOCKET, option, 1)
    file.bind(("0.0.0.0", port))
    KEPT.append(file)
    return file.getsockname()[1]


@attacks("a port of another user's service, that may be shared")
def _():
    with helper() as program:
        for share in ([], [socket.SO_REUSEADDR], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]):
            with User(HONEST, bound, 0, share) as service:
                expect(asked(MALLORY, port=service.result()) == "port", f"{share}")
        says(program, "refused: another socket has this address and port already")


def free_port(path, how):
    """Gets a rail, and then does that to its port. The port."""
    connection = wire.Connection(path)
    connection.send(wire.rail())
    word, _, files = connection.answer()
    KEPT.append((connection, files))
    expect(word == "given", word)
    port = socket.socket(fileno=files[0])
    KEPT.append(port)
    number = port.getsockname()[1]
    if how == "disconnect":
        expect(LIBC.connect(files[0], bytes(16), 16) == 0, "connect(AF_UNSPEC)")
    elif how == "close":
        port.close()
    else:
        port.setsockopt(socket.SOL_SOCKET, how, 1)
    return number


def bind_to(address, share):
    file = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in share:
        file.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        file.bind(tuple(address))
    except OSError as error:
        return error.strerror
    return "bound"


@attacks("a rank gives its port up, for another user to bind")
def _():
    for how in ("disconnect", "close"):
        with helper(), User(MALLORY, free_port, SOCKET, how) as rank:
            port = rank.result()
            for share in ([], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT]):
                said = as_user(HONEST, bind_to, (ADDRESS, port), share)
                expect(said == "Address already in use", f"{how}: {said}")


@attacks("a rank shares its port with another user")
def _():
    for how in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        with helper() as program, User(MALLORY, free_port, SOCKET, how) as rank:
            port = rank.result()
            says(program, f"its socket no longer has {ADDRESS}:{port} for itself")


def programs():
    listed = subprocess.run(["ip", "-j", "link", "show", "eth0"], capture_output=True, text=True, check=True)
    return "xdpgeneric" in listed.stdout or '"xdp"' in listed.stdout


@attacks("rails that come and go, to reset the link")
def _():
    with helper():
        for _ in range(20):
            expect(asked(MALLORY) == "given", "a free queue")
            expect(programs(), "the program was detached")
    expect(not programs(), "the program outlives the helper")


def choose_mode(path):
    return wire.ask(path, wire.rail(attach=1))[0]


@attacks("a user chooses how the program is attached")
def _():
    with helper():
        expect(as_user(MALLORY, choose_mode, SOCKET) == "attached", "the mode of the helper's program")


@attacks("the helper's socket, made first by another user")
def _():
    def folder():
        os.makedirs("/tmp/theirs")
        os.chmod("/tmp/theirs", 0o777)

    def make(kind, path):
        with contextlib.suppress(OSError):
            os.unlink(path)
        if kind == "file":
            open(path, "w", encoding="utf-8").close()
        elif kind == "link":
            os.symlink("/run/victim", path)
        else:
            file = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            file.bind(path)
            file.listen()
            KEPT.append(file)

    def refused(path, words):
        with Program(STILLWIRE, "nic-helper", "--socket", path, "--interface", "eth0") as program:
            expect(program.finish(5) != 0 and words in program.said(), program.said())

    as_user(MALLORY, folder)
    refused("/tmp/theirs/nic.sock", f"of user {MALLORY}, permissions 777, lets other users replace files")
    os.makedirs("/run/open", exist_ok=True)
    os.chmod("/run/open", 0o777)
    refused("/run/open/nic.sock", "of user 0, permissions 777, lets other users replace files")
    for kind, words in (("file", "is no socket"), ("link", "is no socket"), ("socket", "another nic-helper listens")):
        with User(MALLORY, make, kind, "/tmp/nic.sock") as first:
            first.result()
            refused("/tmp/nic.sock", words)
            expect(not os.path.lexists("/run/victim"), "the link was followed")
        os.unlink("/tmp/nic.sock")


@attacks("a helper of all interfaces")
def _():
    with Program(STILLWIRE, "nic-helper") as program:
        expect(program.finish(5) == 2 and "--interface <INTERFACE>" in program.said(), program.said())
