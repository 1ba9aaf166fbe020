"""Reads that fail: of which files, when, and for how long.

For a moment, some reads fail and the next ones succeed. For good, blocks are lost: they can be neither read nor written any more. A file that takes the place of theirs
has other blocks.
"""

import errno

from disk import Fault

IMAGE, PARITY, RECORD = r"rank-\d+\.(image|base)$", r"(parity|pages-[^/]+)$", r"(commit|manifest|protected|content-\d+|sums|decision-\d+)$"

# A report of a file that cannot be read.
UNREADABLE = r"cannot (read|measure) \S*{}\S*: the device failed \(input/output error\)"

# Of reads that each lose a block, or of blocks.
ALL = -1

# protected: images are read for parity, and parity is folded. restored: a restart reads the newest images. node: nothing of one node can be read.
# launcher: records in the job's own directory. rebuilt: one node has lost everything, and another one is to help.
TIMES = ("protected", "protected", "restored", "restored", "node", "launcher", "rebuilt")


class Reads:
    """The faults of one round, and their report."""

    def __init__(self, dice, nodes, is_silent=False):
        """`is_silent`: the disk gives zeros in place of lost blocks, and no error."""
        self.dice, self.is_silent = dice, is_silent
        self.when, self.node = "restored" if is_silent else dice.choice(TIMES), dice.randrange(nodes)
        self.lost = (self.node + 1) % nodes if self.when == "rebuilt" else None
        self.is_for_good = is_silent or self.when == "node" or dice.randrange(2) == 1
        self.files = dice.choice([IMAGE, PARITY, RECORD])
        # Of two nodes that lack pages of one stripe none can be rebuilt.
        self.costs_newest = self.when == "rebuilt" and self.is_for_good

    def fault(self, path):
        if self.is_for_good:
            counts = {"node": [ALL], "protected": [1, 3]}.get(self.when, [1, 3, ALL])
            count = self.dice.choice(counts)
            return Fault("read", path, "zero", count=ALL) if self.is_silent else Fault("read", path, "bad", count=count)
        return Fault("read", path, errno.EIO, count=self.dice.randint(1, 8))

    def while_running(self):
        """Faults of the disk below the job."""
        if self.when != "protected":
            return []
        return [self.fault(rf"^job/nodes/{self.node}/.*/{self.files}")]

    def expected_running(self):
        """What the launcher has to print of them. A read that fails for a moment may be one that the kernel made in advance, and repeats; and of records there are
        copies on all nodes."""
        is_reported = self.when == "protected" and self.is_for_good and self.files != RECORD
        return UNREADABLE.format("") if is_reported else None

    def at_restart(self, disk, newest):
        """Puts the faults of the restart onto its disk. `newest`: the epoch of the newest generation."""
        of_newest = rf"^job/nodes/{self.node}/life[^/]+/epoch-0*{newest}/"
        paths = {
            "restored": of_newest + IMAGE,
            "node": rf"^job/nodes/{self.node}/",
            "launcher": r"^job/(life.*/(commit|manifest)|decision-\d+)$",
            "rebuilt": of_newest + IMAGE if self.is_for_good else rf"^job/nodes/{self.node}/.*/{self.files}",
        }
        if self.when in paths:
            fault = self.fault(paths[self.when])
            # What is written in place of a lost file lies elsewhere.
            fault.last_file = disk.numbers
            disk.faults.append(fault)
        if self.lost is not None:
            disk.lose(f"job/nodes/{self.lost}")

    def expected_at_restart(self):
        """What the restart has to print."""
        if self.when == "rebuilt":
            return rf"rebuilding what .*node {self.lost}" + (rf"(.|\n)*{UNREADABLE.format('rank-')}" if self.is_for_good else "")
        if self.when == "node":
            return rf"rebuilding what node {self.node} had "
        if self.when == "restored" and self.is_for_good:
            return rf"rebuilding what node {self.node} had .*{UNREADABLE.format('rank-')}"
        return None

    def __str__(self):
        what = f"everything of node {self.node}" if self.when == "node" else f"node {self.node}"
        return f"{'the launcher' if self.when == 'launcher' else what}, {self.when}, {'for good' if self.is_for_good else 'for a moment'}"
