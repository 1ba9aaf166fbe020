"""Directories that another user has made first, or can write to. Each has to be refused by a message that names it and the reason: its owner, its mode, or that it is a
link. Nothing may be written there. A directory that others can only read is used, and they can read no file of it."""

import os
import re
import struct
import subprocess

from common import HONEST, MALLORY, SERVED_WITHIN, STILLWIRE, Attacks, as_user, expect, honest, prepare

attacks = Attacks()
SHARED = "/tmp/shared"
LONG = "200000"
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


def attack(words, make, own=False, inner=""):
    def run():
        prepare()
        subprocess.run(["rm", "-rf", SHARED, "/tmp/honest/kept", "/tmp/honest/job", "/tmp/honest/good"], check=True)
        os.makedirs(SHARED)
        os.chmod(SHARED, 0o1777)
        os.makedirs("/tmp/honest/kept")
        os.chown("/tmp/honest/kept", HONEST, HONEST)
        path = f"{SHARED}/place"
        as_user(HONEST if own else MALLORY, make, path)
        refused(words, path + inner)
        subprocess.run(["rm", "-rf", "/tmp/honest/job"], check=True)
        served(words, "/tmp/honest/good")

    return run


def open_to_all(path):
    os.makedirs(path)
    os.chmod(path, 0o777)


def of_a_group(path):
    os.makedirs(path)
    os.chmod(path, 0o770)


def closed(path):
    os.makedirs(path)
    os.chmod(path, 0o700)


def access_list(path, permissions):
    """An access list with an entry for the other user (acl(5), system.posix_acl_access: version 2, then tag, permissions and id of each entry)."""
    nobody = 0xFFFFFFFF
    entries = ((1, 7, nobody), (2, permissions, MALLORY), (4, 0, nobody), (0x10, permissions, nobody), (0x20, 0, nobody))
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", text)


def writable_by_access_list(path):
    closed(path)
    access_list(path, 7)


def readable_by_access_list(path):
    closed(path)
    access_list(path, 5)


def readable_by_all(path):
    os.makedirs(path)
    os.chmod(path, 0o755)


def readers(words, make):
    """A directory that others can read is used. They find names there at most. The job is long enough for checkpoints."""
    words = [*words[:-1], LONG]

    def run():
        prepare()
        subprocess.run(["rm", "-rf", SHARED, "/tmp/honest/job"], check=True)
        os.makedirs(SHARED)
        os.chmod(SHARED, 0o1777)
        path = f"{SHARED}/place"
        as_user(HONEST, make, path)
        served(words, path)
        files = [os.path.join(where, file) for where, _, names in os.walk(path) for file in names]
        expect(any(file.endswith(".image") for file in files), f"no image is there: {files}")
        as_user(MALLORY, read_none, files)

    return run


def read_none(files):
    for file in files:
        try:
            open(file, "rb").close()
        except PermissionError:
            continue
        raise AssertionError(f"another user can read {file}")


for name, words in (("the job's directory", JOB), ("the nodes' directory", NODE)):
    attacks(f"{name}, made first by another user")(attack(words, theirs))
    attacks(f"{name}, a link of another user to a directory of that user")(attack(words, link_to_theirs))
    attacks(f"{name}, a link of another user to a directory of this user")(attack(words, link_of_theirs_to_ours))
    attacks(f"{name}, of this user, that all may write to")(attack(words, open_to_all, own=True))
    attacks(f"{name}, closed, of another user")(attack(words, closed))
    attacks(f"{name}, of this user, that its group may write to")(attack(words, of_a_group, own=True))
    attacks(f"{name}, of this user, that an access list opens to another user")(attack(words, writable_by_access_list, own=True))
    attacks(f"{name}, below one that all may write to")(attack(words, open_to_all, own=True, inner="/inner"))
    attacks(f"{name}, that all may read")(readers(words, readable_by_all))
    attacks(f"{name}, that an access list lets another user read")(readers(words, readable_by_access_list))
