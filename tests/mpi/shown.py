"""One rank of an MPI program is killed again and again, then everything at once, the launcher and its guard too: the result has to be that of an undisturbed run.

Called by tests/mpi/shown, which sets up what this needs.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import time

from rounds import LEFT_MAX, STEP_MAX, Failure, Job, segments

RANKS = 4

# Seconds. From a checkpoint to the kill at most the first, so that kills fall into the next checkpoint, too. With recovery and checkpoint one kill needs the
# second of the program's time, and what is before the first and after the last the third.
INSTANT_MAX = 1.5
KILL_NEEDS = 3.5
ENDS_NEED = 8.0

# The time of a run tells how many rounds the next one needs; the machine may have other work then, or less.
MORE = 1.2

# A job that ends before its last kill is started again, twice as long.
TRIES = 3


class TooShort(Exception):
    pass


def undisturbed(options, program, rounds):
    with tempfile.TemporaryDirectory(dir=options.place) as directory:
        job = Job(options, directory, [*program, str(rounds)])
        began = time.monotonic()
        job.start(["run", "-q", "-n", str(RANKS), "--", *job.command])
        try:
            job.finish()
        except Failure as failure:
            raise Failure(f"{failure}, undisturbed:\n{job.text()}") from None
        if len(job.results()) != RANKS:
            raise Failure(f"undisturbed it has the results {job.results()}:\n{job.text()}")
        return job.results(), time.monotonic() - began


def wait_for(job, words, count):
    if not job.wait_for(words, count):
        if job.launcher.returncode == 0:
            raise TooShort
        raise Failure(f"exit code {job.launcher.returncode}")


def kill_a_rank(job, dice):
    """At a random instant after the next checkpoint; returns when all ranks run again."""
    committed, again = job.text().count(" committed ("), job.text().count("all ranks run again")
    # A rank that dies before the next checkpoint is tried again only after a pause, which grows.
    wait_for(job, " committed (", committed + 1)
    time.sleep(INSTANT_MAX * dice.random())
    until = time.monotonic() + STEP_MAX
    # A process that is to write an image is one more, until it has its name; a rank that has finished is one less.
    while len(ranks := job.ranks()) != RANKS:
        if job.results():
            raise TooShort
        if time.monotonic() > until:
            raise Failure(f"there are the ranks {ranks}")
    job.kill(dice.choice(ranks))
    wait_for(job, "all ranks run again", again + 1)
    if job.text().count("all ranks run again") != again + 1:
        raise Failure("one kill, and more than one recovery")


def kill_everything(job):
    job.kill(job.launcher.pid)
    until = time.monotonic() + STEP_MAX
    # Ranks could fork until the last of them is gone.
    while job.processes():
        if time.monotonic() > until:
            raise Failure(f"processes {job.processes()} do not die")
        for pid, _ in job.processes():
            job.kill(pid)
    job.launcher.wait()


def left(options, job, before):
    """What the job has left behind."""
    if job.processes():
        return f"processes {job.processes()}"
    if segments() - before:
        return f"in /dev/shm {sorted(segments() - before)}"
    known = {job.directory, os.path.join(options.place, "stillwire")}
    files = [entry.path for entry in os.scandir(options.place) if entry.path not in known]
    # Here launchers have their sockets.
    for folder, _, names in os.walk(os.path.join(options.place, "stillwire")):
        files += [os.path.join(folder, name) for name in names]
    return f"files {files}" if files else None


def disturbed(options, program, rounds, expected, seconds, dice):
    with tempfile.TemporaryDirectory(dir=options.place) as directory:
        os.environ["ROUNDS_OF"] = directory
        job = Job(options, directory, [*program, str(rounds)], seconds)
        before = segments()
        try:
            job.start(["run", "-n", str(RANKS), "--ckpt-every", "1s", "--ckpt-dir", job.job, "--", *job.command])
            for _ in range(options.kills):
                kill_a_rank(job, dice)
            wait_for(job, " committed (", job.text().count(" committed (") + 1)
            time.sleep(INSTANT_MAX * dice.random())
            kill_everything(job)
            if job.results():
                raise TooShort
            job.restart()
            job.finish()
            if job.results() != expected:
                raise Failure(f"results {job.results()}, expected {expected}")
            until = time.monotonic() + LEFT_MAX
            while left(options, job, before):
                if time.monotonic() > until:
                    raise Failure(f"left behind: {left(options, job, before)}")
                time.sleep(0.02)
        except Failure:
            print(job.text())
            raise
        finally:
            del os.environ["ROUNDS_OF"]
            job.end()
        return re.findall(r"all ranks run again, (.*) after the fault", job.text()), job.text().count(" committed (")


def shown(options):
    dice, rounds = random.Random(options.seed), options.rounds
    needed = ENDS_NEED + KILL_NEEDS * options.kills
    expected, seconds = undisturbed(options, options.program, rounds)
    for _ in range(TRIES):
        while seconds < needed:
            rounds = int(rounds * needed / seconds * MORE)
            expected, seconds = undisturbed(options, options.program, rounds)
        try:
            return rounds, expected, *disturbed(options, options.program, rounds, expected, seconds, dice)
        except TooShort:
            print(f"{options.name}: {rounds} rounds, {seconds:.1f} s, end before the last kill", flush=True)
            needed = 2 * seconds
    raise Failure(f"it has ended before its last kill {TRIES} times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stillwire", required=True)
    parser.add_argument("--place", required=True, help="where jobs lie; nothing else may be there")
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rounds", type=int, required=True, help="of the program, to begin with: they become as many as the kills need")
    parser.add_argument("program", nargs="+", help="it is told the number of its rounds as its last argument")
    options = parser.parse_args()
    try:
        rounds, expected, times, committed = shown(options)
    except Failure as failure:
        print(f"FAILED: {options.name}, seed {options.seed}: {failure}", flush=True)
        sys.exit(1)
    ids = open("/proc/self/status").read()
    who = ", ".join(" ".join(re.search(rf"^({name}):\s*(\S+)", ids, re.MULTILINE).groups()) for name in ("Uid", "CapEff", "NoNewPrivs"))
    print(f"{options.name}, {RANKS} ranks, {rounds} rounds ({who}): {options.kills} ranks killed, all ranks ran again after {', '.join(times)};")
    print(f"    {committed} generations; everything killed; restarted; results as undisturbed: {', '.join(expected)}; nothing is left", flush=True)


if __name__ == "__main__":
    main()
