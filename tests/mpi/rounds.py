"""MPI programs that are killed at random instants, and go on: their results have to be those of an undisturbed run.

Called by tests/mpi/restarted, which sets up what this needs.
"""

import argparse
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

# Seconds. A job may take the first, and the second for each second that it needs undisturbed.
JOB_MAX = 240
DISTURBED_TIMES = 8
STEP_MAX = 120
LEFT_MAX = 10

# What programs print that has to be as if they had not been disturbed, if they do not say otherwise.
RESULT = r"rank \d+ result [0-9a-f]+"

CAPTURES = ["auto", "fork", "scan", "content", "sync"]


class Failure(Exception):
    pass


class Stopped(Exception):
    """Somebody wants this to end: what was started is to be ended, and what was made is to go."""


# What ends a program. `timeout` kills it some seconds later.
ENDING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def raise_stopped():
    """From here on the first of them raises `Stopped`, and none disturbs what is done about it."""

    def stop(number, _frame):
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for each in ENDING:
        signal.signal(each, stop)


def exit_stopped(stopped):
    number = stopped.args[0]
    print(f"stopped by {signal.Signals(number).name}: nothing is left", flush=True)
    sys.exit(128 + number)


class Job:
    """A launcher that runs, with what it and its ranks print."""

    def __init__(self, options, directory, command, undisturbed=0.0, result=RESULT, folder=None):
        self.stillwire, self.directory, self.command = options.stillwire, directory, command
        self.result, self.folder = result, folder
        self.longest = JOB_MAX + DISTURBED_TIMES * undisturbed
        self.output = open(os.path.join(directory, "output"), "ab+")
        self.launcher = None
        self.started = time.monotonic()

    @property
    def job(self):
        return os.path.join(self.directory, "job")

    def run(self, ranks, every_ms, extra):
        self.start(["run", "-n", str(ranks), "--ckpt-every", f"{every_ms}ms", "--ckpt-dir", self.job, "--retries", "50", *extra, "--", *self.command])

    def restart(self, extra=()):
        # Its guard takes a moment to end the ranks.
        until = time.monotonic() + STEP_MAX
        while self.processes():
            if time.monotonic() > until:
                raise Failure(f"processes {self.processes()} outlive their launcher")
            time.sleep(0.02)
        self.start(["restart", self.job, *extra])

    def start(self, arguments):
        # Whatever happens to this program, the launcher goes with it, and its guard ends the rest.
        bound = ["setpriv", "--pdeathsig", "KILL"]
        self.launcher = subprocess.Popen(
            [*bound, self.stillwire, *arguments], stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, cwd=self.folder
        )

    def text(self):
        self.output.flush()
        with open(self.output.name, errors="replace") as file:
            return file.read()

    def ranks(self):
        """Processes of the ranks, without those that write their images, those that they have spawned, and the launcher's guard."""
        return [pid for pid, is_rank in self.processes() if is_rank]

    def processes(self):
        """Processes of the job: those that have its directory in their environment; and whether each is a rank."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    environment = file.read().split(b"\0")
                with open(f"/proc/{entry}/comm") as file:
                    name = file.read().strip()
            except OSError:
                continue
            if f"ROUNDS_OF={self.directory}".encode() in environment and int(entry) != self.launcher.pid:
                variables = {word.split(b"=")[0] for word in environment}
                is_rank = b"STILLWIRE_RANK" in variables and b"PMI_SPAWNED" not in variables and name != "stillwire-image"
                found.append((int(entry), is_rank))
        return found

    def keepers(self):
        """The launcher's children."""
        try:
            with open(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children") as file:
                return [int(pid) for pid in file.read().split()]
        except OSError:
            return []

    def wait_for(self, words, count):
        """Until the words have been printed so often, or the launcher has ended. The lines are the launcher's own."""
        until = time.monotonic() + STEP_MAX
        while self.text().count(words) < count:
            if self.launcher.poll() is not None:
                return False
            if time.monotonic() > until:
                raise Failure(f"{words!r} has not come {count} times")
            time.sleep(0.01)
        return True

    def wait(self):
        """Until the launcher has ended. Returns its exit code."""
        try:
            return self.launcher.wait(max(1, self.longest - (time.monotonic() - self.started)))
        except subprocess.TimeoutExpired:
            raise Failure("it does not end") from None

    def finish(self):
        code = self.wait()
        if code != 0:
            raise Failure(f"exit code {code}")

    def results(self):
        return sorted(set(re.findall(self.result, self.text(), re.MULTILINE)))

    def kill(self, pid, number=signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def end(self):
        if self.launcher is None:
            return
        self.kill(self.launcher.pid)
        self.launcher.wait()
        until = time.monotonic() + LEFT_MAX
        while (left := self.processes()) and time.monotonic() < until:
            for pid, _ in left:
                self.kill(pid)
            time.sleep(0.02)

    def end_and_remove(self):
        self.end()
        self.output.close()
        shutil.rmtree(self.directory)


def segments(folder="/dev/shm"):
    """Files of this user in memory through which processes of an MPI library share it, and which no process has mapped: those of other jobs are none of ours."""
    names = [name for name in os.listdir(folder) if name.startswith(("mpich_", "Intel_MPI"))]
    files = {name for name in names if owner(os.path.join(folder, name)) == os.geteuid()}
    return files - mapped_files() if files else files


def mapped_files():
    """Names of the files in memory that processes have mapped."""
    mapped = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/maps", errors="replace") as file:
                mapped.update(re.findall(r" /dev/shm/(\S+)$", file.read(), re.MULTILINE))
        except OSError:
            continue
    return mapped


def owner(file):
    try:
        return os.stat(file).st_uid
    except FileNotFoundError:
        return None


def job_of(options, directory, program):
    """One that runs in a folder of its own, if it wants files there."""
    folder = None
    if "files" in program:
        folder = os.path.join(directory, "folder")
        os.mkdir(folder)
        for file in program["files"]:
            shutil.copy(file, folder)
    return Job(options, directory, program["command"], program.get("seconds", 0.0), program.get("result", RESULT), folder)


def check(job, program):
    """What it has written."""
    if "check" in program:
        done = subprocess.run(program["check"], cwd=job.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"it is checked with exit code {done.returncode}: {done.stdout}{done.stderr}")


def expected_of(options, program):
    with tempfile.TemporaryDirectory(dir=options.place) as directory:
        job = job_of(options, directory, program)
        began = time.monotonic()
        try:
            job.start(["run", "-q", "-n", str(program["ranks"]), "--", *program["command"]])
            job.finish()
        except Stopped:
            job.end()
            raise
        check(job, program)
        results = job.results()
        if len(results) != program.get("results", program["ranks"]):
            raise Failure(f"{program['name']}, undisturbed, has the results {results}:\n{job.text()}")
        return results, time.monotonic() - began


def kill_once(job, dice, again):
    """One kill, of one kind. Returns how often the ranks should have run again, and what was done."""
    # Sometimes while a restart is under way.
    if dice.random() < 0.85 and not job.wait_for("all ranks run", again + 1):
        return None
    time.sleep(dice.choice([0.02, 0.3, 1.0, 2.0]) * dice.random())
    kind = dice.choices(["rank", "two ranks", "all ranks", "keeper", "launcher", "launcher and ranks"], [5, 1, 2, 2, 1, 1])[0]
    ranks = job.ranks()
    if not ranks or job.launcher.poll() is not None:
        return None
    dice.shuffle(ranks)
    if kind.startswith("launcher"):
        job.kill(job.launcher.pid)
        if "ranks" in kind:
            for pid in ranks:
                job.kill(pid)
        job.launcher.wait()
        # One that had committed nothing, or had finished, cannot be restarted.
        if "committed" not in job.text() or "all ranks have finished" in job.text():
            return None
        job.restart()
        return job.text().count("all ranks run"), kind
    victims = job.keepers() if kind == "keeper" else ranks
    dice.shuffle(victims)
    for pid in victims[: {"rank": 1, "two ranks": 2, "keeper": 1}.get(kind, len(victims))]:
        job.kill(pid)
    return job.text().count("all ranks run"), kind


def segments_of(pid):
    """Memory of the transport that a process has mapped: its own, and that of ranks of its host, each once."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            return {line.split()[4] for line in file if "/memfd:stillwire " in line}
    except OSError:
        return set()


def wait_for_shared(job):
    """Until a rank has mapped the memory of another, although it cannot see it in its pid namespace."""
    until = time.monotonic() + STEP_MAX
    while job.launcher.poll() is None and not any(len(segments_of(pid)) > 1 for pid in job.ranks()):
        if time.monotonic() > until:
            raise Failure("ranks of one host share no memory")
        time.sleep(0.02)


def end_well(job, program, segments, before):
    """The job ends with the results of an undisturbed run, unless it was killed before its first checkpoint; and nothing of it is left."""
    lost = job.launcher.poll() not in (None, 0) and "committed" not in job.text()
    if not lost:
        job.finish()
        if job.results() != program["expected"]:
            raise Failure(f"results {job.results()}, expected {program['expected']}")
        check(job, program)
    del os.environ["ROUNDS_OF"]
    until = time.monotonic() + LEFT_MAX
    while job.processes() or segments() - before:
        if time.monotonic() > until:
            raise Failure(f"left are the processes {job.processes()}, and in /dev/shm {sorted(segments() - before)}")
        time.sleep(0.02)


def keep(options, program, directory):
    """Files of a job that failed are kept; where."""
    kept = os.path.join(options.place, f"failed-{program['name']}-{os.getpid()}-{int(time.time())}")
    os.rename(directory, kept)
    return kept


def encrypting(dice):
    """Options of a job whose images are encrypted, or are not; the key is in the environment, also when it begins again."""
    os.environ["STILLWIRE_KEY"] = dice.randbytes(32).hex()
    return ["--encrypt"] if dice.random() < 0.4 else []


def one(options, program, dice):
    """One job, killed several times. Returns the kinds of its kills, and how its images were made."""
    directory = tempfile.mkdtemp(prefix=program["name"] + "-", dir=options.place)
    os.environ["ROUNDS_OF"] = directory
    job = job_of(options, directory, program)
    before = segments()
    every_ms = dice.choice([60, 150, 300, 600])
    # Two nodes are partners, unless that is not wanted; one has nobody.
    nodes = dice.choice([["1"], ["1"], ["2"], ["2", "--parity", "none"]])
    chosen = [*dice.choice(program["extra"]), *encrypting(dice), "--nodes", *nodes, "--capture", dice.choice(CAPTURES)]
    kinds = []
    try:
        job.run(program["ranks"], every_ms, chosen)
        if "--pid-namespace" in chosen and "--rails" not in chosen and chosen[chosen.index("--nodes") + 1] == "1":
            wait_for_shared(job)
        again = 0
        for _ in range(dice.randint(1, options.kills_per_job)):
            done = kill_once(job, dice, again)
            if done is None:
                break
            again, kind = done
            kinds.append(kind)
        end_well(job, program, segments, before)
    except Stopped:
        job.end_and_remove()
        raise
    except Failure as failure:
        job.end()
        kept = keep(options, program, directory)
        raise Failure(f"{program['name']}, a checkpoint every {every_ms} ms, {' '.join(chosen)}, killed: {', '.join(kinds) or 'nothing'}: {failure}; see {kept}/output") from None
    shutil.rmtree(directory)
    return kinds, chosen[-1] + (" encrypted" if "--encrypt" in chosen else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stillwire", required=True)
    parser.add_argument("--place", required=True, help="where jobs lie")
    parser.add_argument("--rounds", type=int, required=True, help="kills")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills-per-job", type=int, default=6)
    parser.add_argument(
        "--programs",
        required=True,
        help="a file of JSON: name, ranks, command, extra options of which one is chosen; if wanted, a pattern of results and how many there are, "
        "files that are copied into the folder where it runs, a command that checks there what it has written",
    )
    options = parser.parse_args()
    with open(options.programs) as file:
        programs = json.load(file)
    dice = random.Random(options.seed)
    for program in programs:
        program["expected"], program["seconds"] = expected_of(options, program)
        print(f"{program['name']}: {program['seconds']:.1f} s undisturbed", flush=True)
    kinds, captures, failures, jobs = [], [], [], 0
    while len(kinds) < options.rounds:
        program = programs[jobs % len(programs)]
        jobs += 1
        try:
            done, capture = one(options, program, dice)
            captures += [capture] * len(done)
        except Failure as failure:
            failures.append(str(failure))
            print(f"FAILED: {failure}", flush=True)
            done = ["(failed)"]
        kinds += done
        print(f"{len(kinds)} of {options.rounds} rounds, {jobs} jobs, {len(failures)} failures: {program['name']}: {', '.join(done) or 'no kill'}", flush=True)
    counts = [", ".join(f"{words.count(word)} x {word}" for word in sorted(set(words))) for words in (kinds, captures)]
    print(
        f"{'FAILED' if failures else 'passed'}: seed {options.seed}, {len(kinds)} kills in {jobs} jobs ({counts[0]}; --capture: {counts[1]}), "
        f"{len(failures)} failures"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    raise_stopped()
    try:
        main()
    except Stopped as stopped:
        exit_stopped(stopped)
