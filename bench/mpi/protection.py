"""Measures what protection costs a program; called by bench/mpi/protection."""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

EVERY = "2s"

# Seconds: beside those of the program itself.
BESIDE_MAX = 120
SAMPLE_EVERY = 0.05

# Cores: a run beside which others use more does not count.
OTHERS_MAX = 0.1


def processor_seconds(launcher):
    """Of all keepers together, with all their threads, and without their ranks."""
    used = 0
    with open(f"/proc/{launcher}/task/{launcher}/children") as file:
        keepers = file.read().split()
    for pid in keepers:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def ticks(pid):
    """Of a process and all below it, and of what of theirs has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            used = sum(map(int, file.read().rsplit(") ", 1)[1].split()[11:15]))
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                used += sum(ticks(child) for child in file.read().split())
        return used
    except (OSError, IndexError):
        return 0


def others_seconds(launcher):
    """Of all processors, by whatever is not the job."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal - ticks(launcher)) / os.sysconf("SC_CLK_TCK")


def measure(options, extra):
    """Rounds per second, cores that the keepers and others use, committed checkpoints, and those that were abandoned."""
    with tempfile.TemporaryDirectory(dir=options.place) as directory:
        output = open(os.path.join(directory, "output"), "wb")
        program = [options.program, str(options.mib), str(options.percent), str(options.seconds)]
        own = ["--ckpt-dir", f"{directory}/job", "--node-dir", f"{directory}/disks"]
        nodes = str(options.nodes)
        command = [options.stillwire, "run", "-n", nodes, "--nodes", nodes, *own, *extra, "--", *program]
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

        def text():
            with open(output.name, errors="replace") as file:
                return file.read()

        until = time.monotonic() + options.seconds + BESIDE_MAX
        first, last = None, None
        try:
            while job.poll() is None:
                if time.monotonic() > until:
                    sys.exit(f"it does not end: {text()[-2000:]}")
                time.sleep(SAMPLE_EVERY)
                said = text()
                if "rounds " in said:
                    continue
                try:
                    last = (time.monotonic(), processor_seconds(job.pid), others_seconds(job.pid))
                except (OSError, IndexError):
                    continue
                if "begun" in said and first is None:
                    first = last
        finally:
            job.terminate()
            job.wait()
        said = text()
        found = re.search(r"rounds (\d+) in ([\d.]+) s", said)
        if job.returncode != 0 or not found or first is None:
            sys.exit(f"exit code {job.returncode}: {said[-2000:]}")
        meanwhile = said[said.index("begun") : found.start()]
        return {
            "rounds_per_s": int(found[1]) / float(found[2]),
            "keepers_cores": (last[1] - first[1]) / (last[0] - first[0]),
            "others_cores": (last[2] - first[2]) / (last[0] - first[0]),
            "committed": meanwhile.count(" committed "),
            "came_to_nothing": meanwhile.count("was abandoned"),
        }


def main():
    parser = argparse.ArgumentParser()
    for name in ("stillwire", "program", "place"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=4, help="with a rank each; ranks poll, so that a machine should have a core for each")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--mib", type=int, default=64, help="memory of each rank")
    parser.add_argument("--percent", type=int, default=10, help="of it that a rank writes to")
    parser.add_argument("--budget", default="cores=0.1,link=20M", help="the small one, for --encode-budget")
    parser.add_argument("--json", help="a file for all that was measured")
    options = parser.parse_args()
    every = ["--ckpt-every", EVERY, "--parity"]
    ways = {
        "off": ["--parity", "none"],
        "none": [*every, "none"],
        "xor": [*every, "xor"],
        "budget": [*every, "xor", "--encode-budget", options.budget],
    }
    measured = {way: [] for way in ways}
    for number in range(options.rounds):
        # Another order each time: what comes first finds the machine as it was before.
        order = random.sample(list(ways), len(ways))
        for way in order:
            measured[way].append(measure(options, ways[way]))
        line = ", ".join(f"{way} {measured[way][-1]['rounds_per_s']:.1f}" for way in ways)
        print(f"round {number + 1} of {options.rounds}: rounds per second: {line}", flush=True)
    for way, base in (("none", "off"), ("xor", "off"), ("xor", "none"), ("budget", "none"), ("budget", "xor")):
        pairs = [pair for pair in zip(measured[way], measured[base]) if all(run["others_cores"] < OTHERS_MAX for run in pair)]
        ratios = sorted(ours["rounds_per_s"] / other["rounds_per_s"] for ours, other in pairs)
        if not ratios:
            print(f"{way} / {base}: nothing counts, for others used the processors")
            continue
        print(f"{way} / {base}: median {statistics.median(ratios):.4f}, least {ratios[0]:.4f}, greatest {ratios[-1]:.4f}, {len(ratios)} pairs")
    for way, runs in measured.items():
        cores = statistics.median(run["keepers_cores"] for run in runs)
        committed, nothing = (sum(run[name] for run in runs) for name in ("committed", "came_to_nothing"))
        others = ", ".join(f"{run['others_cores']:.2f}" for run in runs)
        print(f"{way}: keepers use {cores:.3f} cores; others {others}, which counts below {OTHERS_MAX}; {committed} checkpoints were committed, {nothing} were abandoned")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"options": vars(options), "ways": {way: " ".join(extra) for way, extra in ways.items()}, "measured": measured}, file, indent=1)


if __name__ == "__main__":
    main()
