"""What the ranks of tests/hosts/steps.c have written down: which process ran when, how far it was, and whether two lives of the job ran at one time."""

from collections import namedtuple

Line = namedtuple("Line", "rank pid step number ms")

# Milliseconds without a step that are a pause, and not a busy machine.
PAUSE_MS = 1000

# Steps that a rank makes before it counts as running.
STEPS_RUNNING = 5


class Lines:
    """The file, in the order in which it was written."""

    def __init__(self, path):
        self.path, self.read_bytes, self.lines = path, 0, []
        open(path, "w").close()

    def update(self):
        with open(self.path, "rb") as file:
            file.seek(0, 2)
            # A restore cuts the file if it was open at that instant (docs/guide/files.md).
            if file.tell() < self.read_bytes:
                self.read_bytes, self.lines = 0, []
            file.seek(self.read_bytes)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        for text in whole.splitlines():
            fields = text.split()
            if len(fields) == len(Line._fields):
                self.lines.append(Line(*map(int, fields)))
        return self.lines

    def newest(self):
        """The newest line of each rank."""
        return {line.rank: line for line in self.update()}


def without_copies(lines):
    """A process that was saved between making a line and writing it writes it again when it is restored: under the old number, and the same."""
    seen, kept = set(), []
    for line in lines:
        if line not in seen:
            seen.add(line)
            kept.append(line)
    return kept


def two_lives(lines):
    """Processes that wrote while a process of another life did, which has to have ended before.

    Processes that wrote during each other's time are of one life, and so are those that they have in common. A life has one process of each rank.
    """
    spans = {}
    for at, line in enumerate(without_copies(lines)):
        spans.setdefault((line.rank, line.pid), [at, at])[1] = at
    found, life, life_end = [], {}, -1
    for (rank, pid), (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin > life_end:
            life = {}
        if rank in life:
            found.append(f"rank {rank}: process {pid} ran in the time of process {life[rank]}")
        life.setdefault(rank, pid)
        life_end = max(life_end, end)
    return found


def recovery(lines, before, ms):
    """Seconds from an instant until all ranks run and go on doing so; `before`: the newest line of each rank then."""
    last = {line.rank: line.pid for line in lines}
    if any(last[rank] != line.pid for rank, line in before.items()):
        return (max(running_since(lines, rank, pid) for rank, pid in last.items()) - ms) / 1000
    return pause_end(lines, ms) / 1000


def running_since(lines, rank, pid):
    own = [line for line in lines if line.pid == pid]
    return next((line.ms for line in own if line.step >= own[0].step + STEPS_RUNNING), own[-1].ms)


def pause_end(lines, ms):
    """Milliseconds to the end of the last pause; 0 without one."""
    step, since, end = -1, ms, 0
    for line in lines:
        if line.step > step:
            if line.ms > ms and line.ms - max(since, ms) > PAUSE_MS:
                end = line.ms - ms
            step, since = line.step, line.ms
    return end
