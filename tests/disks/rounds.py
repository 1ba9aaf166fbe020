"""Jobs whose disk fails below them: the launcher has to report it, and a restart has to begin from the newest generation that was reported committed, or a newer one.

Called by tests/disks/run, in namespaces of its own: this process is the first of them, so it can see and kill all others.
"""

import argparse
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from disk import Disk, Fault
from fuse import Mount
from programs import PROGRAMS
from reads import UNREADABLE, Reads

RANKS = 3
CHANGES = "create write cut sync sync_folder rename remove"

# Seconds.
COMMITTED_MAX, MET_MAX, RESTARTED_MAX, LEFT_MAX = 30, 30, 90, 10
# For lines that the launcher is about to print.
SETTLE = 0.3

IMAGE, RECORD, PARITY = r"\.image\.tmp$", r"/(commit|manifest)\.tmp$", r"/(parity|sums|protected|content-\d+)\.tmp$"

# A reported error names the file, the problem and the cure.
DEVICE = r"cannot (write|make durable|create|read) \S+: the device failed \(input/output error\); replace the disk"
FULL = r"disk full: .* needed for \S+, .* free; free some space"


class Failure(Exception):
    pass


def once(operation, effect):
    """One failure while an image, a record or parity is written."""
    return lambda dice: [Fault(operation, dice.choice([IMAGE, RECORD, PARITY]), effect)]


# kind: (what the disk does while the job runs, what the launcher has to print, how the power goes).
KINDS = {
    "lost": (None, None, "lost"),
    "torn": (None, None, "torn"),
    "reordered": (None, None, "reordered"),
    "fsync": (once("sync", errno.EIO), DEVICE, "lost"),
    "write": (once("write", errno.EIO), DEVICE, "lost"),
    "space": (lambda _dice: [Fault("write create", IMAGE, errno.ENOSPC, count=RANKS)], FULL, "lost"),
    # One node's disk says that data is durable which is not: parity has to make up for it.
    "lying": (lambda dice: [Fault("sync sync_folder", rf"nodes/{dice.randrange(RANKS)}/life", "drop", count=-1)], None, "lost"),
    # See Reads: while the job runs, or when it is restarted.
    "read": (None, None, "lost"),
}

# Calls that are taken out, and a kind of round that has to fail without them.
SABOTAGE = {
    "fsync of images": (Fault("sync", IMAGE, "drop", count=-1), "lost"),
    "fsync of records": (Fault("sync", RECORD, "drop", count=-1), "lost"),
    "fsync of parity": (Fault("sync", PARITY, "drop", count=-1), "lost"),
    "fsync of folders": (Fault("sync_folder", "life", "drop", count=-1), "lost"),
    # The operation fails, and nobody is told.
    "the error of a write": ("drop", "write"),
    "the error of fsync": ("drop", "fsync"),
    # A lost block is read as zeros: the file that cannot be read is not named.
    "the error of a read": ("drop", "read"),
}


class Round:
    def __init__(self, options, seed, kind, sabotage=None):
        self.options, self.seed, self.kind = options, seed, kind
        self.dice = random.Random(f"{seed} {kind}")
        self.reads = Reads(self.dice, RANKS, is_silent=sabotage == "drop") if kind == "read" else None
        self.folder = tempfile.mkdtemp(prefix=f"{kind}-", dir=options.place)
        program = options.program or random.Random(f"{seed} program").choice(list(PROGRAMS))
        self.program = PROGRAMS[program](options, self.folder)
        self.mounted = os.path.join(self.folder, "disk")
        self.directory = os.path.join(self.mounted, "job")
        os.mkdir(self.mounted)
        self.disk, self.mount, self.runs = Disk(), None, 0
        self.silences = sabotage == "drop"
        if isinstance(sabotage, Fault):
            self.disk.faults.append(sabotage)
        self.failure = None

    def run(self):
        try:
            self.disturb()
        except Failure as failure:
            self.failure = str(failure)
        finally:
            self.end_all()
        if not self.failure:
            shutil.rmtree(self.folder)
        return self

    def end_all(self):
        kill_all()
        # Whoever waits for an answer of the disk cannot end before it has one.
        if self.mount:
            self.mount.abort()
            self.mount = None

    def start(self, *words):
        """A command, and the file that has its output."""
        self.runs += 1
        path = os.path.join(self.folder, f"output-{self.runs}")
        home = os.path.join(self.folder, "home")
        os.makedirs(home, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": home, **self.program.environment}
        with open(path, "w") as output:
            words = (self.options.stillwire, *words)
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment), path

    def finish(self, *words):
        """A command's exit code and output."""
        return self.ended(*self.start(*words), words[0])

    def ended(self, process, path, command):
        try:
            process.wait(RESTARTED_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"`stillwire {command}` has not ended in {RESTARTED_MAX} s") from None
        return process.returncode, read(path)

    def disturb(self):
        effect, expected, style = KINDS[self.kind]
        self.mount = Mount(self.disk, self.mounted)
        words = ["-n", str(RANKS), "--nodes", str(RANKS), "--ckpt-every", self.program.EVERY, "--ckpt-dir", self.directory]
        process, path = self.start("run", *words, "--", *self.program.words)

        def wait(what, holds, seconds):
            self.wait(process, what, holds, seconds)

        wait("two generations are committed", lambda: len(committed(read(path))) >= 2, COMMITTED_MAX)
        faults = effect(self.dice) if effect else []
        if self.reads:
            faults, expected = self.reads.while_running(), self.reads.expected_running()
        for fault in faults if self.silences else ():
            fault.effect = "drop"
        self.disk.faults += faults
        for fault in faults:
            wait("the fault is met", lambda fault=fault: fault.met, MET_MAX)
        if expected:
            wait(f"a message like '{expected}'", lambda: re.search(expected, read(path)), MET_MAX)
        before = len(committed(read(path)))
        wait("another generation is committed", lambda: len(committed(read(path))) > before, COMMITTED_MAX)
        self.disk.faults.append(Fault(CHANGES, "", "power", self.dice.randrange(self.program.CYCLE)))
        wait("the power goes", self.disk.is_off.is_set, MET_MAX)
        time.sleep(SETTLE)
        self.end_all()
        process.wait()
        self.after(committed(read(path)), style)

    def after(self, reported, style):
        left = self.disk.after_power_loss(self.dice, style)
        self.mount = Mount(left, self.mounted)
        # Nothing that was committed may be lost but what newer generations have replaced (two are kept).
        listed = json.loads(self.checked("ls", self.directory, "--json"))["generations"]
        kept = {each["generation"]: each["state"] for each in listed}
        expected, newest = None, epoch(reported[-1])
        if self.kind != "lying":
            for generation in reported[-1:]:
                if kept.get(generation) != "committed":
                    raise Failure(f"generation {generation} was reported committed, and is {kept.get(generation, 'not there')}")
        if self.reads:
            # One more may have become durable with the power loss.
            epochs = sorted(epoch(generation) for generation, state in kept.items() if state == "committed")
            self.reads.at_restart(left, epochs[-1])
            expected = self.reads.expected_at_restart()
            newest = epochs[-2] if self.reads.costs_newest else newest
            self.verify_unreadable()
        elif self.kind != "lying":
            self.checked("verify", self.directory)
        code, text = self.restart()
        found = re.search(r"begins from generation \S+?/(\d+)", text)
        if code != 0 or self.program.VERIFIED not in text:
            raise Failure(f"the restart ends with exit code {code}, or its result is wrong")
        if not found or int(found[1]) < newest:
            raise Failure(f"generation {newest} was reported committed, and the restart begins from {found[1] if found else 'the beginning'}")
        if expected and not re.search(expected, text):
            raise Failure(f"the restart prints nothing like '{expected}'")
        self.nothing_left()

    def wait(self, process, what, holds, seconds):
        end = time.monotonic() + seconds
        while not holds():
            if process.poll() is not None:
                raise Failure(f"the job ends with exit code {process.returncode}, before {what}")
            if time.monotonic() > end:
                raise Failure(f"not in {seconds} s: {what}")
            time.sleep(0.01)

    def restart(self):
        """The restart's exit code and output. The job saves again, and ends then."""
        process, path = self.start("restart", self.directory)
        self.wait(process, "the restarted job commits a generation", lambda: committed(read(path)), RESTARTED_MAX)
        self.program.let_end()
        return self.ended(process, path, "restart")

    def verify_unreadable(self):
        """If something cannot be read, the check reports it, and names the file."""
        code, text = self.finish("verify", self.directory)
        if code != 0 and self.reads.lost is None and not self.silences and not re.search(UNREADABLE.format(""), text):
            raise Failure(f"`stillwire verify` ends with exit code {code}, and names no file that cannot be read: {text.strip()[-600:]}")

    def checked(self, *words):
        code, text = self.finish(*words)
        if code != 0:
            raise Failure(f"`stillwire {' '.join(words)}` ends with exit code {code}: {text.strip()[-600:]}")
        return text

    def nothing_left(self):
        end = time.monotonic() + LEFT_MAX
        while processes():
            if time.monotonic() > end:
                raise Failure(f"left {LEFT_MAX} s after the end: {processes()}")
            time.sleep(0.05)
        mount, self.mount = self.mount, None
        if not mount.end():
            raise Failure("something still has a file of the disk open")
        if mount.failure:
            raise Failure(f"the test's own disk fails: {mount.failure}")

    def report(self):
        again = f"tests/disks/run --rounds 1 --seed {self.seed} --kind {self.kind} --program {self.program.name}"
        what = f"{self.kind} ({self.reads})" if self.reads else self.kind
        return f"{what}, {self.program.name}, seed {self.seed}: " + (f"FAILED: {self.failure}; see {self.folder}; again: {again}" if self.failure else "right")


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def committed(text):
    """Generations that the launcher reports as committed, in order."""
    return re.findall(r"generation (\S+) committed \(", text)


def epoch(generation):
    return int(generation.rsplit("/", 1)[1])


def processes():
    """All but this one and those that have ended."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/stat") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
                if state not in "ZX":
                    found.append(f"{name} {read(f'/proc/{name}/cmdline')}")
            except OSError:
                pass
    return found


def kill_all():
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def self_test(options):
    unseen = []
    for name, (sabotage, kind) in SABOTAGE.items():
        # A loss may fall where the call makes no difference.
        for attempt in range(4):
            done = Round(options, options.seed + attempt, kind, sabotage).run()
            if done.failure:
                shutil.rmtree(done.folder)
                break
        print(f"without {name}: {done.failure or 'NOT noticed'}", flush=True)
        unseen += [] if done.failure else [name]
    print(f"{'FAILED' if unseen else 'passed'}: {len(SABOTAGE) - len(unseen)} of {len(SABOTAGE)} calls are missed when they are taken out")
    return 1 if unseen else 0


def main():
    parser = argparse.ArgumentParser()
    for name in ("rounds", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--program", choices=PROGRAMS)
    for name in ("provider", "mpi-program"):
        parser.add_argument(f"--{name}")
    for name in ("place", "stillwire"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("json", "self-test"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if os.getpid() != 1:
        sys.exit("tests/disks/rounds.py: it kills every process that it sees; run tests/disks/run, which gives it namespaces of its own")
    if options.self_test:
        sys.exit(self_test(options))
    talk = sys.stderr if options.json else sys.stdout
    rounds = []
    for number in range(options.rounds):
        kind = options.kind or list(KINDS)[(options.seed + number) % len(KINDS)]
        rounds.append(Round(options, options.seed + number, kind).run())
        print(f"{number + 1} of {options.rounds}: {rounds[-1].report()}", file=talk, flush=True)
    failures = sum(bool(each.failure) for each in rounds)
    if options.json:
        print(json.dumps({"rounds": len(rounds), "seed": options.seed, "failures": failures}))
    print(f"{'FAILED' if failures else 'passed'}: seed {options.seed}, {len(rounds)} rounds, {failures} failures", file=talk)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
