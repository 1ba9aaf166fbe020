"""Runs sections of attacks, and counts those that were refused."""

import importlib
import os
import sys
import time

from common import Failed

SECTIONS = ("helper", "jobs", "directories")


def main(words):
    wanted = list(SECTIONS) if words == ["--list"] else words
    for name in wanted:
        if name not in SECTIONS:
            sys.exit(f"tests/attacks/run: no section is called '{name}'; there are {', '.join(SECTIONS)}")
    refused = 0
    for name in wanted:
        section = importlib.import_module(f"{name}_attacks")
        if words == ["--list"]:
            print(*(f"{name}: {sentence}" for sentence, _ in section.attacks.all), sep="\n")
            continue
        for sentence, attack in section.attacks.all:
            if os.environ.get("ATTACKS_ONLY", "") not in sentence:
                continue
            begun = time.monotonic()
            try:
                attack()
            except Failed as failure:
                sys.exit(f"tests/attacks/run: NOT refused: {name}: {sentence}\n{failure}")
            print(f"{name}: {sentence} ({time.monotonic() - begun:.1f} s)", flush=True)
            refused += 1
    if words != ["--list"]:
        print(f"passed: {refused} attacks refused")


main(sys.argv[1:])
