"""Rounds of jobs over hosts that fail, some at one time.

Called by tests/hosts/run, which sets up what this needs. Each round is a process (round.py) with networks and mounts of its own.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

from faults import KINDS
from round import Stopped, parser, stop

# A round ends with this program, and its hosts with it.
ALONE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", sys.executable, "-B"]
ROUND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "round.py")


def medians(stages):
    return {name: round(statistics.median(each[name] for each in stages), 2) for name in (stages[0] if stages else ())} or None


def summary(rounds):
    by_kind = {}
    for kind in KINDS:
        own = [each for each in rounds if each["kind"] == kind]
        if own:
            seconds = [each["recovery_s"] for each in own if each["recovery_s"] is not None]
            by_kind[kind] = {
                "count": len(own),
                "failures": sum(bool(each["failures"]) for each in own),
                "restarted": sum(each["restarts"] > 0 for each in own),
                "stages_s": medians([each["stages"] for each in own if each["stages"]]),
                "recovery_s": {"median": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)} if seconds else None,
            }
    return {
        "rounds": len(rounds),
        "failures": sum(bool(each["failures"]) for each in rounds),
        "by_kind": by_kind,
        "two_lives": sum(len(each["two_lives"]) for each in rounds),
        "leftovers": sum(len(each["leftovers"]) for each in rounds),
    }


def table(result):
    lines = [f"{'kind':10} {'count':>6} {'failures':>9} {'restarted':>10} {'median s':>9} {'max s':>7}"]
    for kind, of_kind in result["by_kind"].items():
        seconds = of_kind["recovery_s"] or {"median": "-", "max": "-"}
        lines.append(f"{kind:10} {of_kind['count']:6} {of_kind['failures']:9} {of_kind['restarted']:10} {seconds['median']:>9} {seconds['max']:>7}")
    return "\n".join(lines)


def chosen_kinds(options, kinds):
    """Each kind as often as the others, in an order that the seed decides."""
    if options.kind:
        return [options.kind] * options.rounds
    dice, chosen = random.Random(options.seed), []
    while len(chosen) < options.rounds:
        chosen += dice.sample(list(kinds), len(kinds))
    return chosen[: options.rounds]


class Rounds:
    """Processes of rounds."""

    def __init__(self, program, words):
        self.program, self.words, self.running, self.is_stopped = program, words, set(), False

    def run(self, seed, kind):
        """What is known of a round; `None` if it was stopped."""
        if self.is_stopped:
            return None
        process = subprocess.Popen([*ALONE, self.program, *self.words, "--seed", str(seed), "--kind", kind], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.running.add(process)
        # It may have begun while the others were stopped.
        if self.is_stopped:
            process.terminate()
        printed, _ = process.communicate()
        self.running.discard(process)
        if self.is_stopped:
            return None
        if process.returncode:
            raise RuntimeError(f"the round of seed {seed}, kind {kind}, ends with exit code {process.returncode}")
        return json.loads(printed)

    def stop(self):
        self.is_stopped = True
        for process in list(self.running):
            process.terminate()


def main(program, kinds, summary, table):
    """Plays rounds of these kinds, each by `program`."""
    options = parser()
    options.add_argument("--rounds", type=int, required=True)
    options.add_argument("--jobs", type=int, default=1, help="rounds at one time")
    options.add_argument("--kind", choices=kinds)
    options.add_argument("--json", action="store_true")
    options = options.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    talk = sys.stderr if options.json else sys.stdout
    rounds, found, stopped = Rounds(program, words(options)), [], None
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            # A round can be repeated alone.
            begun = [pool.submit(rounds.run, options.seed + number, kind) for number, kind in enumerate(chosen_kinds(options, kinds))]
            for number, ended in enumerate(as_completed(begun), 1):
                found.append(ended.result())
                print(f"{number} of {options.rounds}: {found[-1]['report']}", file=talk, flush=True)
        except Stopped as reason:
            stopped = reason.args[0]
        finally:
            rounds.stop()
    result = summary(found)
    print(table(result), file=talk)
    if options.json:
        print(json.dumps(result))
    if stopped:
        print(f"stopped by {signal.Signals(stopped).name}: nothing is left", file=sys.stderr)
        sys.exit(128 + stopped)
    print(f"{'FAILED' if result['failures'] else 'passed'}: seed {options.seed}, {len(found)} rounds, {result['failures']} failures", file=talk)
    sys.exit(1 if result["failures"] else 0)


def words(options):
    """Options of one round, but its seed and kind."""
    found = ["--bytes", str(options.bytes), "--nodes", str(options.nodes), "--mtu", str(options.mtu)]
    found += ["--parity", options.parity] if options.parity else []
    found += [f"--{name}" for name in ("spares", "quick", "keep") if getattr(options, name)]
    for name in ("place", "stillwire", "provider", "program", "ssh", "keygen", "sshd", "nft"):
        found += [f"--{name}", getattr(options, name)]
    return found


if __name__ == "__main__":
    main(ROUND, KINDS, summary, table)
