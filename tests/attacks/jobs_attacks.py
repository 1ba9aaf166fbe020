"""Attacks on a running job of another user: its sockets, its processes, its ports, and names that it may be about to make."""

import json
import os
import random
import re
import socket
import struct
import subprocess
import time

from common import HONEST, MALLORY, RUNTIME, SERVED_WITHIN, STILLWIRE, Attacks, User, as_user, expect, honest, until

attacks = Attacks()
JOB = "/tmp/honest/job"


class Job:
    """A job of two nodes with parity, whose ranks speak over UDP, and which ends well when it is left alone."""

    def __init__(self, rails="nic"):
        subprocess.run(["rm", "-rf", JOB], check=True)
        run = ["run", "-q", "-n", "2", "--nodes", "2", "--rails", rails, "--ckpt-every", "200ms", "--ckpt-dir", JOB]
        self.program = honest(*run, "--", STILLWIRE, "example", "ring", "--steps", "1000000000")

    def __enter__(self):
        self.program.__enter__()
        until(f"it runs:\n{self.program.said()}", lambda: self.committed() >= 1 or self.program.process.poll() is not None, 20)
        expect(self.program.process.poll() is None, f"the job has ended:\n{self.program.said()}")
        return self

    def __exit__(self, *_):
        self.program.end()

    def status(self):
        """What `ps` shows to its user, in time."""
        begun = time.monotonic()
        with honest("ps", "--json") as ps:
            expect(ps.finish(10) == 0, ps.said())
            took = time.monotonic() - begun
            expect(took < SERVED_WITHIN, f"`ps` took {took:.1f} s")
            jobs = json.loads(ps.said())
        jobs = jobs["jobs"] if isinstance(jobs, dict) else jobs
        expect(self.program.process.poll() is None, f"the job has ended:\n{self.program.said()}")
        return jobs[0] if jobs else {}

    def committed(self):
        return sum("commit" in files for _, _, files in os.walk(JOB))

    def goes_on(self):
        """It takes another checkpoint in time, without a rollback."""
        begun = time.monotonic()
        with honest("checkpoint", self.status()["job"][:8]) as checkpoint:
            expect(checkpoint.finish(10) == 0, f"{checkpoint.said()}\n{self.program.said()}")
            took = time.monotonic() - begun
            expect(took < 2 * SERVED_WITHIN, f"a checkpoint took {took:.1f} s")
        expect("rolling back" not in self.program.said(), self.program.said())

    def processes(self):
        """The launcher and all below it."""
        found, left = [], [self.program.process.pid]
        while left:
            pid = left.pop()
            found.append(pid)
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                        left += [int(child) for child in children.read().split()]
            except FileNotFoundError:
                continue
        return found


def udp_ports(uid):
    """Addresses of the UDP sockets of a user."""
    found = []
    with open("/proc/net/udp", encoding="ascii") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if int(fields[7]) == uid:
                found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def listening(uid):
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as lines:
            for line in lines.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[7]) == uid:
                    found.append(fields[1])
    return found


def connect(path, message):
    file = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    file.settimeout(2)
    try:
        file.connect(path)
        file.sendall(message)
        return file.recv(4096).decode()
    except OSError as error:
        return error.strerror or "closed"


def job_sockets():
    return [os.path.join(folder, name) for folder, _, names in os.walk(RUNTIME) for name in names
            if os.path.exists(os.path.join(folder, name)) and not os.path.isfile(os.path.join(folder, name))]


@attacks("another user reaches the launcher's socket")
def _():
    with Job() as job:
        sockets = job_sockets()
        expect(sockets, f"the job has a socket below {RUNTIME}")
        for path in sockets:
            said = as_user(MALLORY, connect, path, b'"Stop"\n')
            expect(said == "Permission denied", said)
        job.goes_on()


@attacks("another user sends requests to the launcher's socket")
def _():
    with Job() as job:
        # Whatever has opened the folders to all: the launcher asks the kernel who has connected.
        for folder, _, names in os.walk(RUNTIME):
            os.chmod(folder, 0o711)
            for name in names:
                os.chmod(os.path.join(folder, name), 0o666)
        # `ps` of the user refuses such a folder: a command has to be there before.
        for path in job_sockets():
            for message in (b'"Stop"\n', b'"Status"\n', b"{" * 100_000, b"\0" * 70_000 + b"\n"):
                said = as_user(MALLORY, connect, path, message)
                expect(said in ("", "closed", "Connection reset by peer", "Broken pipe"), said)
        os.chmod(RUNTIME, 0o700)
        for folder, _, _ in os.walk(RUNTIME):
            os.chmod(folder, 0o700)
        job.goes_on()


def open_all(pids):
    opened, shared = [], 0
    for pid in pids:
        for number in range(64):
            try:
                os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR))
                opened.append((pid, number))
            except OSError as error:
                shared += error.errno == 13
        for name in ("mem", "maps", "environ"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    if file.read(64):
                        opened.append((pid, name))
            except OSError:
                shared += 1
        try:
            os.kill(pid, 9)
            opened.append((pid, "killed"))
        except PermissionError:
            pass
    return opened, shared


@attacks("another user opens the memory files, pipes and keys of launcher, keepers and ranks")
def _():
    with Job("auto") as job:
        pids = job.processes()
        expect(len(pids) >= 4, f"launcher, keepers and ranks: {pids}")
        opened, refused = as_user(MALLORY, open_all, pids)
        expect(not opened and refused, f"{opened}")
        job.goes_on()


def throw(addresses, seconds):
    """Datagrams: noise, and what begins as frames and packs do."""
    file = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    chance, sent = random.Random(1), 0
    heads = [b"", b"SW", b"SWPK", b"SWFR", bytes(16), b"\xff" * 16, b"\1" + bytes(31)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for address in addresses:
            message = chance.choice(heads) + chance.randbytes(chance.choice((0, 1, 7, 64, 88, 200, 1400, 9000)))
            try:
                sent += file.sendto(message, tuple(address)) > 0
            except OSError:
                pass
    return sent


@attacks("datagrams without the job's key, to the ports of ranks and protectors")
def _():
    with Job() as job:
        ports = udp_ports(HONEST)
        expect(len(ports) >= 4, f"ports of two ranks, and of protectors: {ports}")
        floods = [User(MALLORY, throw, ports, 2.0) for _ in range(2)]
        try:
            job.goes_on()
            for flood in floods:
                expect(flood.result(30) > 100, "datagrams were sent")
        finally:
            for flood in floods:
                flood.end()
        job.goes_on()


@attacks("another user binds the ports of ranks and protectors too")
def _():
    def bind(addresses):
        said = set()
        for address in addresses:
            for host in (address[0], "0.0.0.0"):
                file = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                    file.setsockopt(socket.SOL_SOCKET, option, 1)
                try:
                    file.bind((host, address[1]))
                    said.add("bound")
                except OSError as error:
                    said.add(error.strerror)
        return list(said)

    with Job() as job:
        said = as_user(MALLORY, bind, udp_ports(HONEST))
        expect(said == ["Address already in use"], f"{said}")
        job.goes_on()


@attacks("TCP ports of a job: there are none")
def _():
    with Job() as job:
        expect(listening(HONEST) == [], f"{listening(HONEST)}")
        job.goes_on()


def squat(names):
    for name in names:
        os.close(os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_RDWR, 0o666))
    return len(names)


@attacks("names of shared memory, made first by another user")
def _():
    names = ["stillwire", f"stillwire-{HONEST}", "stillwire-0", "sem.stillwire"] + [f"stillwire-{n}" for n in range(300, 900)]
    with User(MALLORY, squat, names) as first:
        first.result()
        run = ["run", "-q", "-n", "2", "--rails", "shm", "--", STILLWIRE, "example", "ring", "--steps", "1000"]
        with honest(*run) as job:
            expect(job.finish(SERVED_WITHIN * 5) == 0, job.said())
        expect(all(os.stat(f"/dev/shm/{name}").st_size == 0 for name in names), "something was written to their memory")


def make(kind, path):
    if kind == "folder":
        os.mkdir(path)
        os.chmod(path, 0o777)
    elif kind == "file":
        open(path, "w", encoding="utf-8").close()
    elif kind == "link":
        os.makedirs("/tmp/theirs", exist_ok=True)
        os.chmod("/tmp/theirs", 0o777)
        os.symlink("/tmp/theirs", path)
    return True


@attacks("the folder of the launcher's sockets in /tmp, made first by another user")
def _():
    path = f"/tmp/stillwire-{HONEST}"
    for kind in ("folder", "file", "link"):
        as_user(MALLORY, make, kind, path)
        for words in (["run", "-q", "-n", "1", "--", "true"], ["ps"]):
            with honest(*words, runtime=None) as command:
                expect(command.finish(10) != 0, f"{kind}: {words} succeeds:\n{command.said()}")
                said = re.sub(r"\s+", " ", command.said())
                expect(f"{path} belongs to another user" in said or path in said, f"{kind}: {said}")
        with honest("run", "-q", "-n", "1", "--", "true") as command:
            expect(command.finish(10) == 0, f"with a folder of its own it runs:\n{command.said()}")
        expect(not os.path.isdir("/tmp/theirs") or not os.listdir("/tmp/theirs"), "something was written there")
        subprocess.run(["rm", "-rf", path, "/tmp/theirs"], check=True)
