"""The programs of which jobs are made: each computes something that depends on every message, and looks at the end whether it is right."""

import os


class Native:
    """A ring, which is saved at its own points. It ends by itself."""

    name = "native"
    STEPS = 120_000
    EVERY = "100ms"
    VERIFIED = "verification successful"

    # Operations on the disk between two commits, roughly: a power loss falls anywhere within some of them.
    CYCLE = 300

    def __init__(self, options, _folder):
        self.words = [options.stillwire, "example", "ring", "--steps", str(self.STEPS)]
        self.environment = {}

    def let_end(self):
        pass


class Mpi:
    """tests/hosts/steps.c over MPICH, which knows nothing of being saved: its processes are saved as a whole. It runs until it may end."""

    name = "mpi"
    EVERY = "500ms"
    VERIFIED = "verified: "
    CYCLE = 600

    def __init__(self, options, folder):
        self.end = os.path.join(folder, "end")
        lines = os.path.join(folder, "lines")
        open(lines, "w").close()
        self.words = [options.mpi_program, lines, self.end]
        self.environment = {"STILLWIRE_PROVIDER": options.provider}

    def let_end(self):
        open(self.end, "w").close()


PROGRAMS = {program.name: program for program in (Native, Mpi)}
