"""A host: namespaces for network, mounts, processes, memory and name, a disk, a home, and an sshd. All processes of it end with its first one.

Hosts share the kernel and its clocks, and the file system below the folder of the test, as they would share one over a network that never fails.
"""

import os
import shutil
import signal
import subprocess
import time

from networks import CONTROL, NETWORKS, address, tool

# Seconds.
STEP_MAX = 30

# Of a disk, without the images of large ranks; and how many images of such a rank it holds: two generations, parity, and what is being written or rebuilt.
DISK_BYTES = 512 << 20
IMAGES_HELD = 6

# Ids of processes are unique over all hosts and their boots: a line that a process wrote names its host and its boot.
PIDS_PER_BOOT = 20_000

# States of TCP sockets (net/tcp_states.h) that some process has; the kernel alone keeps those that are being closed.
HELD_BY_PROCESSES = ("01", "02", "03", "08")

# What a host runs first, and for as long as it is there. The last part waits for every orphan.
BOOT = """
set -e
exec 2>&1
hostname "$NAME"
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs run /run
for file in hosts passwd shadow; do mount --bind "$PLACE/etc/$file" "/etc/$file"; done
mount --bind "$DISK/home" "$PLACE/home"
mount --bind "$DISK/var-tmp" /var/tmp
mkdir -p /run/sshd
echo "$FIRST_PID" >/proc/sys/kernel/ns_last_pid
echo up
read -r _joined
$SSHD -D -E "$PLACE/logs/sshd.$NAME" -f "$PLACE/etc/sshd_config" -o "ListenAddress=$ADDRESS" </dev/null >/dev/null 2>&1 &
exec >/dev/null </dev/null
while :; do
    sleep 3600 &
    wait $!
done
"""


def wait_until(what, met, seconds=STEP_MAX):
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not in {seconds} s")
        time.sleep(0.01)


def read(path):
    """Text of a file of /proc; nothing if the process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class Process:
    def __init__(self, pid):
        self.pid = pid
        self.words = read(f"/proc/{pid}/cmdline").split("\0")[:-1]
        self.environment = read(f"/proc/{pid}/environ").split("\0")
        stat = read(f"/proc/{pid}/stat")
        self.name = stat[stat.find("(") + 1 : stat.rfind(")")]
        self.state = stat[stat.rfind(")") + 2 :][:1]

    def runs(self):
        return self.state not in ("", "Z", "X")

    def rank(self):
        """Its number, if it is one; the process that writes its image is none."""
        if self.name == "stillwire-image" or "__guard" in self.words:
            return None
        numbers = [word.split("=")[1] for word in self.environment if word.startswith("STILLWIRE_RANK=")]
        return int(numbers[0]) if numbers else None

    def is_keeper(self):
        return "__keeper" in self.words and "sshd" not in self.name and self.name not in ("sh", "bash", "ssh")

    def is_of_host(self):
        """Whether it is there without any job."""
        return self.name == "sleep" or self.name == "sshd" and "[listener]" in "".join(self.words)

    def signal(self, number):
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def __str__(self):
        return f"{self.pid} {' '.join(self.words)[:100] or self.name} ({self.state})"


class Host:
    def __init__(self, number, place, networks, sshd, disk_bytes):
        self.disk_bytes = disk_bytes
        self.number, self.place, self.networks, self.sshd = number, place, networks, sshd
        self.name = f"h{number}" if number else "login"
        self.disk = os.path.join(place, "disks", self.name)
        self.outside = self.pid = self.mounts = None
        self.boots = 0
        self.make_disk()

    def make_disk(self):
        os.makedirs(self.disk, exist_ok=True)
        tool("mount", "-t", "tmpfs", "-o", f"size={self.disk_bytes}", self.name, self.disk)
        os.mkdir(os.path.join(self.disk, "home"), 0o700)
        os.mkdir(os.path.join(self.disk, "var-tmp"))
        os.chmod(os.path.join(self.disk, "var-tmp"), 0o1777)

    @property
    def is_up(self):
        return self.pid is not None

    def boot(self):
        variables = {
            "PATH": os.environ["PATH"],
            "NAME": self.name,
            "PLACE": self.place,
            "DISK": self.disk,
            "SSHD": self.sshd,
            "ADDRESS": address(CONTROL, self.number),
            "FIRST_PID": str((self.number * 16 + self.boots) * PIDS_PER_BOOT + 1000),
        }
        self.boots += 1
        namespaces = ["--net", "--uts", "--ipc", "--pid", "--mount", "--propagation", "slave", "--fork", "--mount-proc", "--kill-child"]
        # The end of this program is that of every host.
        self.outside = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "bash", "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # It complains of a signal mask when its child is to end with it, and continues.
            stderr=subprocess.DEVNULL,
            env=variables,
        )
        said = self.outside.stdout.readline()
        if said != b"up\n":
            raise RuntimeError(f"{self.name} does not come up: {said.decode()}{self.outside.stdout.read().decode()}")
        self.pid = int(read(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children"))
        self.networks.join(self.number, self.pid)
        self.outside.stdin.write(b"joined\n")
        self.outside.stdin.close()
        wait_until(f"sshd of {self.name}", lambda: ":0016 00000000:0000 0A" in read(f"/proc/{self.pid}/net/tcp"))
        self.mounts = self.mount_points()

    def power_off(self):
        """All processes are gone at one instant, and no peer gets a packet of them any more."""
        for network in NETWORKS:
            tool("ip", "link", "delete", f"{network}{self.number}")
        os.kill(self.pid, signal.SIGKILL)
        self.outside.wait()
        self.pid = None

    def destroy(self):
        """Its disk is gone, too."""
        if self.is_up:
            self.power_off()
        if os.path.ismount(self.disk):
            tool("umount", "--lazy", self.disk)

    def kill(self):
        """All its processes end; the rest of it goes with this program."""
        if self.outside and self.outside.poll() is None:
            self.outside.kill()
            self.outside.wait()

    def enter(self, *words):
        """A command that runs on this host."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--ipc", "--pid", "--mount", f"--wd={self.place}", *words]

    def processes(self):
        """All but the first one."""
        namespace = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and int(entry) != self.pid and os.stat(f"/proc/{entry}/ns/pid").st_ino == namespace:
                    found.append(Process(int(entry)))
            except OSError:
                continue
        return [process for process in found if process.runs()]

    def stop(self):
        """All processes but the first one, which the kernel protects."""
        for process in self.processes():
            process.signal(signal.SIGSTOP)

    def resume(self, dice):
        """In any order, as the processes of a machine that was paused."""
        processes = sorted(self.processes(), key=lambda process: process.pid)
        dice.shuffle(processes)
        for process in processes:
            process.signal(signal.SIGCONT)

    def set_disk(self, bytes):
        tool("mount", "-o", f"remount,size={bytes}", self.disk)

    def fill(self):
        """No page is left on its disk, until something is removed."""

        def has_shrunk():
            try:
                self.set_disk(shutil.disk_usage(self.disk).used)
                return True
            except RuntimeError:
                # More was written meanwhile.
                return False

        wait_until(f"a full disk of {self.name}", has_shrunk)

    def empty(self):
        self.set_disk(self.disk_bytes)

    def mount_points(self):
        points = [line.split()[4] for line in read(f"/proc/{self.pid}/mountinfo").splitlines()]
        # Other hosts' disks come and go.
        return [point for point in points if not point.startswith(os.path.join(self.place, "disks"))]

    def leftovers(self):
        """What a job may not leave: processes, sockets, files in memory, mounts."""
        left = [f"process {process}" for process in self.processes() if not process.is_of_host()]
        for kind in ("tcp", "udp"):
            for line in read(f"/proc/{self.pid}/net/{kind}").splitlines()[1:]:
                _, local, remote, state = line.split()[:4]
                if kind == "udp" or state in HELD_BY_PROCESSES:
                    left.append(f"{kind} socket {local} {remote} {state}")
        left += [f"unix socket {line.split()[-1]}" for line in read(f"/proc/{self.pid}/net/unix").splitlines()[1:] if "stillwire" in line]
        root = f"/proc/{self.pid}/root"
        left += [f"/dev/shm/{name}" for name in os.listdir(f"{root}/dev/shm")]
        left += [f"/tmp/{name}" for name in os.listdir(f"{root}/tmp") if not name.startswith("stillwire-")]
        left += [f"mount {point}" for point in set(self.mount_points()) - set(self.mounts)]
        return [f"{self.name}: {what}" for what in left]
