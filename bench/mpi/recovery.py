"""Measures recoveries; called by bench/mpi/recovery."""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

# Seconds.
STEP_MAX = 120


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def ranks_of(launcher):
    """The processes of the ranks: children of the launcher's keeper."""
    found = []
    for pid in (pid for keeper in children_of(launcher) for pid in children_of(keeper)):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if b"STILLWIRE_RANK=" in file.read():
                found.append(int(pid))
    return found


def measure(stillwire, program, ranks, mib, kills, place):
    with tempfile.TemporaryDirectory(dir=place) as directory:
        output = open(os.path.join(directory, "output"), "wb")
        command = [stillwire, "run", "-n", str(ranks), "--ckpt-every", "2s", "--retries", "100", "--ckpt-dir", f"{directory}/job", "--", program, str(mib)]
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

        def text():
            with open(output.name, errors="replace") as file:
                return file.read()

        def wait(what, is_there):
            until = time.monotonic() + STEP_MAX
            while not is_there():
                if time.monotonic() > until or job.poll() is not None:
                    sys.exit(f"{what} has not come: {text()[-2000:]}")
                time.sleep(0.005)

        def first_rounds(place):
            """By rank: when its first round ended that was printed after a place of the text."""
            first = {}
            for rank, at in re.findall(r"rank (\d+) round \d+ at (\d+)\n", text()[place:]):
                first.setdefault(rank, int(at))
            return first

        times = []
        try:
            for kill in range(kills):
                # Each time from a checkpoint that is new.
                seen = text().count(" committed ")
                wait("a checkpoint", lambda: text().count(" committed ") > seen + 1)
                again = text().count("run again")
                victim = ranks_of(job.pid)[kill % ranks]
                killed = time.monotonic_ns()
                os.kill(victim, signal.SIGKILL)
                wait("the new life", lambda: text().count("run again") > again)
                # What the old life has printed stands before what the launcher says of its end.
                begun = text().rindex(" begins from generation ")
                wait("a round of each rank", lambda: len(first_rounds(begun)) == ranks)
                times.append((max(first_rounds(begun).values()) - killed) / 1e6)
        finally:
            job.terminate()
            job.wait()
        return times


def main():
    stillwire, program, kills, place = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    for ranks, mib in ((1, 1024), (4, 256)):
        times = measure(stillwire, program, ranks, mib, kills, place)
        print(f"{ranks} x {mib} MiB: {kills} kills, from SIGKILL to the last rank's first round: median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms", flush=True)


if __name__ == "__main__":
    main()
