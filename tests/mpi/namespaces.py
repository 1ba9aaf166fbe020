"""Hosts that are namespaces of one user namespace, in which the caller runs (see namespaces.sh): no root is needed.

Each has an address, a disk, memory for shared files and processes of its own, and all that ends with it.
"""

import os
import signal
import subprocess
import time

# Seconds.
STEP_MAX = 30

# What runs in a host for as long as it is there.
INIT = """
exec 2>&1
hostname "$1" && mount -t tmpfs disk "$2" && mount -t tmpfs shm /dev/shm && ip link set lo up || exit
echo up
exec sleep infinity
"""

# What starts a program on a host: its name, and the program with its arguments.
ENTER = """#!/bin/sh
host=$1
shift
pid=$(cat "{place}/$host") || {{ echo "no way to $host" >&2; exit 255; }}
exec nsenter --target "$pid" --net --uts --ipc --pid --mount --wd="$PWD" "$@"
"""


def tool(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def until(what, met):
    end = time.monotonic() + STEP_MAX
    while not met():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not in {STEP_MAX} s")
        time.sleep(0.005)


def has_interface(name):
    return subprocess.run(["ip", "link", "show", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


class Hosts:
    """Those of one job, in a folder: how they are entered, and where the disk of each is."""

    def __init__(self, place):
        self.place, self.enter, self.disk = place, os.path.join(place, "enter"), os.path.join(place, "disk")
        os.mkdir(self.disk)
        with open(self.enter, "w") as file:
            file.write(ENTER.format(place=place))
        os.chmod(self.enter, 0o700)
        with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write("1")
        tool("ip", "link", "set", "lo", "up")
        self.up = {}

    def start(self, number):
        """A host with this number, and nothing on its disk."""
        name, environment = f"host{number}", {name: value for name, value in os.environ.items() if name != "ROUNDS_OF"}
        namespaces = ["--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child"]
        # Its end is that of all that runs in the host, and comes with the caller's at the latest.
        outside = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "sh", "-c", INIT, "sh", name, self.disk],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # It complains of a signal mask when its child is to end with it, and goes on.
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        said = outside.stdout.readline()
        if said != b"up\n":
            raise RuntimeError(f"{name} does not come up: {said.decode()}")
        with open(f"/proc/{outside.pid}/task/{outside.pid}/children") as file:
            pid = file.read().strip()
        tool("ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", pid)
        tool("ip", "address", "add", f"10.77.{number}.254/24", "dev", f"to{number}")
        tool("ip", "link", "set", f"to{number}", "up")
        inside = ["nsenter", "--target", pid, "--net", "ip"]
        tool(*inside, "address", "add", f"10.77.{number}.1/24", "dev", "eth0")
        tool(*inside, "link", "set", "eth0", "up")
        tool(*inside, "route", "add", "default", "via", f"10.77.{number}.254")
        with open(os.path.join(self.place, name), "w") as file:
            file.write(pid)
        self.up[number] = (outside, int(pid))

    def destroy(self, number, link_first):
        """Everything of it is gone at one instant: processes, address, disk. Sometimes it can be reached no more a moment before."""
        outside, pid = self.up.pop(number)
        if link_first:
            tool("ip", "link", "delete", f"to{number}")
        os.unlink(os.path.join(self.place, f"host{number}"))
        os.kill(pid, signal.SIGKILL)
        outside.wait()
        # The kernel takes the interface with the namespace, a moment after the last process.
        until(f"the end of host{number}", lambda: not os.path.exists(f"/proc/{pid}") and not has_interface(f"to{number}"))

    def shared(self):
        """Numbers of the hosts that are there, and the folders of their files in memory."""
        return [(number, f"/proc/{pid}/root/dev/shm") for number, (_, pid) in self.up.items()]

    def end(self):
        for number in list(self.up):
            self.destroy(number, link_first=False)

    @staticmethod
    def named(number):
        """As `--hosts` has it, with one rank."""
        return f"host{number}:1@10.77.{number}.1"
