"""The table of fault models and recovery protocols: for each pair, jobs over hosts with one fault of that model.

Called by tests/recovery/run, which sets up what this needs.
"""

import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hosts"))

import rounds
from pairs import PAIRS

ROUND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pair_round.py")


def summary(found):
    rows = []
    for kind in PAIRS:
        own = [each for each in found if each["kind"] == kind]
        if own:
            model, protocol = kind.split("/")
            seconds = [each["recovery_s"] for each in own if each["recovery_s"] is not None]
            rows.append(
                {
                    "model": model,
                    "protocol": protocol,
                    "rounds": len(own),
                    "failures": sum(bool(each["failures"]) for each in own),
                    "recovery_ms_p50": round(1000 * statistics.median(seconds)) if seconds else None,
                    "ranks_rolled_back": max(each["ranks_rolled_back"] for each in own),
                }
            )
    return {
        "rounds": len(found),
        "failures": sum(bool(each["failures"]) for each in found),
        "two_lives": sum(len(each["two_lives"]) for each in found),
        "leftovers": sum(len(each["leftovers"]) for each in found),
        "rows": rows,
    }


def table(result):
    lines = [f"{'model':10} {'protocol':10} {'rounds':>6} {'failures':>9} {'recovery p50 ms':>16} {'ranks rolled back':>18}"]
    for row in result["rows"]:
        ms = "-" if row["recovery_ms_p50"] is None else row["recovery_ms_p50"]
        lines.append(f"{row['model']:10} {row['protocol']:10} {row['rounds']:6} {row['failures']:9} {ms:>16} {row['ranks_rolled_back']:18}")
    return "\n".join(lines)


if __name__ == "__main__":
    rounds.main(ROUND, PAIRS, summary, table)
