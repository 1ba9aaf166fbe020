"""MPI programs whose nodes are destroyed at random instants, and go on: their results have to be those of an undisturbed run.

Called by tests/mpi/destroyed, which sets up what this needs.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time

from namespaces import Hosts
from rounds import STEP_MAX, Failure, Stopped, encrypting, end_well, exit_stopped, expected_of, job_of, keep, raise_stopped, segments

NODES = 4

# What is said of a round after which nodes that nobody has heard of before take the places of those that are lost; without --namespaces, empty folders.
REPLACED = ", replaced"
ENCRYPTED = " of encrypted jobs"

# How nodes protect each other, and how many may be lost.
SCHEMES = {"xor": 1, "partner": 1, "rs:3+1": 1, "rs:2+2": 2}


def ranks_and_keepers(job):
    """By node, each of which has one rank with its own number: the rank's process and its keeper's; none while not all are there."""
    found = {}
    for pid in job.ranks():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
            with open(f"/proc/{pid}/stat") as file:
                keeper = int(file.read().rsplit(") ", 1)[1].split()[1])
        except OSError:
            return None
        found[int(variables[b"STILLWIRE_RANK"])] = (pid, keeper)
    return found if sorted(found) == list(range(NODES)) else None


class Folders:
    """Nodes that are a folder and a keeper each, all on this host."""

    def __init__(self, job):
        self.job = job

    def begin(self):
        """Each is made by its keeper."""

    def chosen(self):
        """How a job begins on them."""
        return ["--nodes", str(NODES), "--rails", "udp"]

    def places(self):
        """How it begins again, on those that are there then."""
        return []

    def destroy(self, node, processes):
        """Its processes end, and its directory is gone at one instant, whoever still writes into it."""
        for pid in processes:
            self.job.kill(pid)
        gone = tempfile.mkdtemp(dir=self.job.directory)
        os.rename(os.path.join(self.job.job, "nodes", str(node)), os.path.join(gone, "it"))
        shutil.rmtree(gone, ignore_errors=True)

    def renew(self, node):
        """There is another one in its place, with nothing: its keeper makes its folder."""

    def replace(self, node):
        """The same."""

    def segments(self):
        return segments()

    def end(self):
        pass


class Namespaces:
    """Nodes that are a host each, with network, processes and disk of its own."""

    def __init__(self, job, dice):
        self.job, self.dice = job, dice
        self.hosts = Hosts(tempfile.mkdtemp(dir=job.directory))
        self.numbers = list(range(1, NODES + 1))

    def begin(self):
        for number in self.numbers:
            self.hosts.start(number)

    def chosen(self):
        return [*self.places(), "--remote-shell", self.hosts.enter, "--node-dir", self.hosts.disk]

    def places(self):
        return ["--hosts", ",".join(self.hosts.named(number) for number in self.numbers)]

    def destroy(self, node, _processes):
        self.hosts.destroy(self.numbers[node], link_first=self.dice.random() < 0.5)

    def renew(self, node):
        """The host comes back under its name and address, with an empty disk."""
        self.hosts.start(self.numbers[node])

    def replace(self, node):
        """A spare, which nobody has heard of before."""
        self.numbers[node] = max(self.numbers) + 1
        self.hosts.start(self.numbers[node])

    def segments(self):
        """On the hosts that are there: what one that was destroyed had is gone with it."""
        return {f"host{number}: {name}" for number, folder in self.hosts.shared() for name in segments(folder)}

    def end(self):
        self.hosts.end()


def destroy_once(job, nodes, dice, losses, again):
    """One round. Returns how often the ranks should have run again, and what was done; nothing if the job has ended before."""
    if not job.wait_for("all ranks run", again + 1):
        return None
    time.sleep(dice.choice([0.02, 0.3, 1.0, 2.0]) * dice.random())
    processes = ranks_and_keepers(job)
    if processes is None or job.launcher.poll() is not None:
        return None
    if dice.random() < 0.6:
        node = dice.randrange(NODES)
        nodes.destroy(node, processes[node])
        nodes.renew(node)
        return job.text().count("all ranks run"), f"node {node}"
    lost = dice.sample(range(NODES), losses)
    is_told = dice.random() < 0.5
    if is_told:
        # Somebody sees that nodes are gone, and ends the job.
        for node in lost:
            nodes.destroy(node, processes[node])
        job.kill(job.launcher.pid, signal.SIGINT)
    else:
        job.kill(job.launcher.pid)
        for pids in processes.values():
            for pid in pids:
                job.kill(pid)
        for node in lost:
            nodes.destroy(node, processes[node])
    job.wait()
    # One that had committed nothing, or had finished, cannot be restarted.
    if "committed" not in job.text() or "all ranks have finished" in job.text():
        return None
    for node in lost:
        nodes.replace(node)
    job.restart(nodes.places())
    what = "and the job ended" if is_told else "and everything killed"
    return job.text().count("all ranks run"), f"nodes {', '.join(map(str, lost))} {what}{REPLACED}"


def one(options, program, dice):
    """One job, of which nodes are destroyed several times. Returns what was done."""
    directory = tempfile.mkdtemp(prefix=program["name"] + "-", dir=options.place)
    os.environ["ROUNDS_OF"] = directory
    job = job_of(options, directory, program)
    every_ms = dice.choice([100, 200, 400])
    scheme = dice.choice(list(SCHEMES))
    encrypted = encrypting(dice)
    done, rebuilt = [], 0
    nodes = Namespaces(job, dice) if options.namespaces else Folders(job)
    try:
        nodes.begin()
        before = nodes.segments()
        # What so many nodes have if nobody says otherwise is not always said.
        said = [] if scheme == "xor" and dice.random() < 0.5 else ["--parity", scheme]
        job.run(program["ranks"], every_ms, [*nodes.chosen(), *said, *encrypted])
        again = 0
        for _ in range(dice.randint(1, options.losses_per_job)):
            # Before the first checkpoint of a life there may be nothing to rebuild.
            if dice.random() < 0.8:
                job.wait_for("committed", job.text().count("committed") + 1)
            round_ = destroy_once(job, nodes, dice, SCHEMES[scheme], again)
            if round_ is None:
                break
            again, what = round_
            done.append(what)
        end_well(job, program, nodes.segments, before)
        rebuilt = job.text().count("has what it had: ")
        nodes.end()
    except Stopped:
        # The hosts first: what runs there can be left by nobody.
        nodes.end()
        job.end_and_remove()
        raise
    except Failure as failure:
        job.end()
        nodes.end()
        kept = keep(options, program, directory)
        what = ", ".join(done) or "nothing"
        raise Failure(f"{program['name']}, {' '.join([scheme, *encrypted])}, a checkpoint every {every_ms} ms, destroyed: {what}: {failure}; see {kept}/output") from None
    shutil.rmtree(directory)
    return [what + ENCRYPTED if encrypted else what for what in done], rebuilt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stillwire", required=True)
    parser.add_argument("--place", required=True, help="where jobs lie")
    parser.add_argument("--rounds", type=int, required=True, help="nodes destroyed")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--losses-per-job", type=int, default=4)
    parser.add_argument("--namespaces", action="store_true", help="each node is a host in namespaces of its own; otherwise a folder and a keeper")
    parser.add_argument("--programs", required=True, help="a file of JSON: name, ranks, command")
    options = parser.parse_args()
    with open(options.programs) as file:
        programs = json.load(file)
    dice = random.Random(options.seed)
    for program in programs:
        program["expected"], program["seconds"] = expected_of(options, program)
        print(f"{program['name']}: {program['seconds']:.1f} s undisturbed", flush=True)
    rounds, failures, jobs, rebuilt = [], [], 0, 0
    until = time.monotonic() + STEP_MAX * (options.rounds + len(programs))
    while (len(rounds) < options.rounds or not rebuilt) and time.monotonic() < until:
        program = programs[jobs % len(programs)]
        jobs += 1
        try:
            done, nodes = one(options, program, dice)
            rebuilt += nodes
        except Failure as failure:
            failures.append(str(failure))
            print(f"FAILED: {failure}", flush=True)
            done = ["(failed)"]
        rounds += done
        print(f"{len(rounds)} of {options.rounds} rounds, {jobs} jobs, {len(failures)} failures: {program['name']}: {', '.join(done) or 'nothing destroyed'}", flush=True)
    if len(rounds) < options.rounds:
        failures.append("the rounds were not done in time")
    replaced, encrypted = (sum(words in done for done in rounds) for words in (REPLACED, ENCRYPTED))
    print(
        f"{'FAILED' if failures else 'passed'}: seed {options.seed}, {len(rounds)} rounds in {jobs} jobs ({replaced} with nodes replaced, {encrypted}{ENCRYPTED}), "
        f"{rebuilt} nodes were rebuilt, {len(failures)} failures"
    )
    sys.exit(1 if failures or not rebuilt else 0)


if __name__ == "__main__":
    raise_stopped()
    try:
        main()
    except Stopped as stopped:
        exit_stopped(stopped)
