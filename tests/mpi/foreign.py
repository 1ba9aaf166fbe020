"""Programs that know nothing of us, run undisturbed, then killed twice at random instants: what they compute has to be the same.

Called by tests/mpi/foreign, which sets up what this needs.
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time

from rounds import LEFT_MAX, Failure, Stopped, exit_stopped, job_of, raise_stopped

KILLS = 2
ATTEMPTS = 5
EVERY_MS = 200

# Between two runs of one program the order of sums over messages differs, and with it what is left when an iteration has converged.
TOLERANCE = 1e-6


def values_of(program, text):
    """The last of each: a part that ran again has printed some before."""
    values = {}
    if "rows" in program:
        values["rows"] = sorted({" ".join(" ".join(row).split()) for row in re.findall(program["rows"], text)})
        if len(values["rows"]) != program["row_count"]:
            raise Failure(f"it has printed {len(values['rows'])} different rows, expected {program['row_count']}:\n{text[-3000:]}")
    for name, pattern in program.get("values", {}).items():
        found = re.findall(pattern, text)
        if not found:
            raise Failure(f"it has printed no {name}:\n{text[-3000:]}")
        values[name] = float(found[-1])
    return values


def shown(values):
    return ", ".join(f"{len(value)} {name}" if name == "rows" else f"{name} {value}" for name, value in values.items())


def undisturbed(options, program):
    with tempfile.TemporaryDirectory(dir=options.place) as directory:
        job = job_of(options, directory, program)
        try:
            job.start(["run", "-n", str(program["ranks"]), "--", *program["command"]])
            job.finish()
        except (Failure, Stopped):
            job.end()
            print(job.text()[-3000:], flush=True)
            raise
        if f"replaced by {options.library}" not in job.text():
            raise Failure(f"it does not say that the library is replaced:\n{job.text()[:2000]}")
        return values_of(program, job.text()), time.monotonic() - job.started


def uses(pid, library):
    """Whether a process has loaded the library, and no MPICH of Debian's beside it."""
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:
            text = file.read()
    except OSError:
        return True
    return os.path.realpath(library) in text and "/libmpich.so.12." not in text


def kill_one(options, job, at, again, dice):
    """Kills a rank at this time, counted from when all ranks run. False: the job ended before."""
    if not job.wait_for("all ranks run", again + 1):
        return False
    time.sleep(at)
    # Where nothing is saved yet it would only begin anew.
    if not job.wait_for("committed", again + 1):
        return False
    ranks = job.ranks()
    if not ranks:
        return False
    for pid in ranks:
        if not uses(pid, options.library):
            raise Failure(f"process {pid} has not loaded {options.library} alone")
    job.kill(dice.choice(ranks))
    return True


def one(options, program, dice):
    """One job, which ends well however often it was killed. Returns its values, and how often that was: at most KILLS."""
    directory = tempfile.mkdtemp(prefix=program["name"] + "-", dir=options.place)
    os.environ["ROUNDS_OF"] = directory
    job = job_of(options, directory, program)
    try:
        job.run(program["ranks"], EVERY_MS, [])
        kills = 0
        while kills < KILLS and kill_one(options, job, dice.random() * program["seconds"] / (KILLS + 1), kills, dice):
            kills += 1
        job.finish()
        found = values_of(program, job.text())
        for name, value in program["expected"].items():
            differs = found[name] != value if name == "rows" else abs(found[name] - value) > TOLERANCE
            if differs:
                raise Failure(f"{name} {found[name]}, undisturbed {value}")
        if (again := job.text().count("all ranks run again")) < kills:
            raise Failure(f"it ran again {again} times after {kills} kills")
        until = time.monotonic() + LEFT_MAX
        while left := job.processes():
            if time.monotonic() > until:
                raise Failure(f"left are the processes {left}")
            time.sleep(0.02)
    except Stopped:
        job.end_and_remove()
        raise
    except Failure as failure:
        job.end()
        kept = os.path.join(options.place, f"failed-{program['name']}-{os.getpid()}-{int(time.time())}")
        os.rename(directory, kept)
        raise Failure(f"{program['name']}: {failure}; see {kept}/output") from None
    finally:
        del os.environ["ROUNDS_OF"]
    shutil.rmtree(directory)
    return found, kills


def one_in_time(options, program, dice):
    """Kills earlier after a job that was over too soon: with checkpoints it may take less time than the undisturbed one did."""
    for _ in range(ATTEMPTS):
        found, kills = one(options, program, dice)
        if kills == KILLS:
            return found
        program["seconds"] *= 0.6
    raise Failure(f"{program['name']}: {ATTEMPTS} jobs ended before they were killed {KILLS} times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stillwire", required=True)
    parser.add_argument("--place", required=True, help="where jobs lie")
    parser.add_argument("--rounds", type=int, required=True, help="jobs of each program")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--library", required=True, help="the MPI library that the programs are to get")
    parser.add_argument("--programs", required=True, help="a file of JSON: name, ranks, command, files, patterns of values")
    options = parser.parse_args()
    with open(options.programs) as file:
        programs = json.load(file)
    dice = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    for program in programs:
        program["expected"], program["seconds"] = undisturbed(options, program)
        print(f"{program['name']}, undisturbed: {program['seconds']:.1f} s, {shown(program['expected'])}", flush=True)
    kills, failures = 0, 0
    for _ in range(options.rounds):
        for program in programs:
            try:
                found = one_in_time(options, program, dice)
                print(f"{program['name']}, killed {KILLS} times: {shown(found)}", flush=True)
                kills += KILLS
            except Failure as failure:
                failures += 1
                print(f"FAILED: {failure}", flush=True)
    print(f"{'FAILED' if failures else 'passed'}: {kills} kills, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    raise_stopped()
    try:
        main()
    except Stopped as stopped:
        exit_stopped(stopped)
    except Failure as failure:
        print(f"FAILED: undisturbed: {failure}", flush=True)
        sys.exit(1)
