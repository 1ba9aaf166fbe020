"""Directories that another user has made first, or can write to. Each has to be refused by a message that names it and the reason: its owner, its mode, or that it is a
link. Nothing may be written there. The section is not among those that `tests/attacks/run` runs without arguments."""

import os
import re
import subprocess

from common import HONEST, MALLORY, SERVED_WITHIN, STILLWIRE, Attacks, as_user, expect, honest, prepare

attacks = Attacks()
SHARED = "/tmp/shared"
REASON = r"(Permission denied|belongs to|owner|owned by|user \d+|mode|write|symlink|symbolic link|is a link)"

# Options that name a directory, and the commands that take them. `{}` is the directory.
JOB = ["run", "-q", "-n", "1", "--ckpt-every", "100ms", "--ckpt-dir", "{}", "--", STILLWIRE, "example", "ring", "--steps", "1000"]
NODE = ["run", "-q", "-n", "2", "--nodes", "2", "--ckpt-every", "100ms", "--ckpt-dir", "/tmp/honest/job", "--node-dir", "{}",
        "--", STILLWIRE, "example", "ring", "--steps", "1000"]


def theirs(path):
    os.makedirs(path)
    os.chmod(path, 0o777)


def link_to_theirs(path):
    theirs(path + "-target")
    os.symlink(path + "-target", path)


def link_of_theirs_to_ours(path):
    os.symlink("/tmp/honest/kept", path)


def tree(folder):
    return sorted((where, *folders, *files) for where, folders, files in os.walk(folder))


def refused(words, path):
    before = tree(SHARED), tree("/tmp/honest/kept")
    with honest(*[word.format(path) if "{}" in word else word for word in words]) as command:
        code = command.finish(15)
        said = re.sub(r"\s+", " ", command.said())
    expect(code not in (0, None), f"it succeeds at {path}:\n{said}")
    expect(path in said and re.search(REASON, said), f"the message names no reason: {said}")
    expect((tree(SHARED), tree("/tmp/honest/kept")) == before, f"something was written:\n{tree(SHARED)}")


def served(words, path):
    """The same command with a directory of the user's own."""
    with honest(*[word.format(path) if "{}" in word else word for word in words]) as command:
        expect(command.finish(10 * SERVED_WITHIN) == 0, command.said())


def attack(words, make, own=False):
    def run():
        prepare()
        subprocess.run(["rm", "-rf", SHARED, "/tmp/honest/kept", "/tmp/honest/job", "/tmp/honest/good"], check=True)
        os.makedirs(SHARED)
        os.chmod(SHARED, 0o1777)
        os.makedirs("/tmp/honest/kept")
        os.chown("/tmp/honest/kept", HONEST, HONEST)
        path = f"{SHARED}/place"
        as_user(HONEST if own else MALLORY, make, path)
        refused(words, path)
        subprocess.run(["rm", "-rf", "/tmp/honest/job"], check=True)
        served(words, "/tmp/honest/good")

    return run


def open_to_all(path):
    os.makedirs(path)
    os.chmod(path, 0o777)


for name, words in (("the job's directory", JOB), ("the nodes' directory", NODE)):
    attacks(f"{name}, made first by another user")(attack(words, theirs))
    attacks(f"{name}, a link of another user to a directory of that user")(attack(words, link_to_theirs))
    attacks(f"{name}, a link of another user to a directory of this user")(attack(words, link_of_theirs_to_ours))
    attacks(f"{name}, of this user, that all may write to")(attack(words, open_to_all, own=True))
