"""A job on the hosts, and its launcher, which runs on the login host."""

import os
import re
import signal
import subprocess
import threading
import time

from host import wait_until
from lives import Lines
from networks import CONTROL, DATA, address

RANKS = 4

# Seconds.
BEGIN_MAX = 90
END_MAX = 90

# For so long all ranks run without a pause before the job is called recovered: a host that does not answer is noticed within that time.
STEADY = 3
PAUSE_MAX = 1.5


class Failure(Exception):
    pass


# What the launcher says of a host that is lost for good, in this order; each is the end of a part of the recovery.
STAGES = {
    "declared": re.compile(r"is gone or cut off; rolling back"),
    "replaced": re.compile(r"takes its place"),
    "rebuilt": re.compile(r"has what it had:"),
    "decided": re.compile(r"life \S+ begins from generation"),
    "running": re.compile(r"all ranks run again"),
}


class Printed(threading.Thread):
    """When each line of a file was written."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.lines, self.is_over = path, [], threading.Event()
        self.start()

    def run(self):
        with open(self.path, errors="replace") as file:
            while not self.is_over.wait(0.01):
                now = time.monotonic()
                self.lines += [(now, line) for line in file]

    def stages(self, since):
        """How long each part of a recovery took."""
        last, found = since, {}
        for name, said in STAGES.items():
            at = next((at for at, line in list(self.lines) if at >= last and said.search(line)), None)
            if at is None:
                return {}
            found[name], last = at - last, at
        return found


class Job:
    def __init__(self, options, cluster, folder, parity, spares, more=()):
        self.options, self.cluster, self.folder = options, cluster, folder
        self.output = open(os.path.join(folder, "output"), "ab+")
        self.printed = Printed(self.output.name)
        self.lines = Lines(os.path.join(folder, "lines"))
        self.end_file = os.path.join(folder, "end")
        # On the login host's own disk: no other host needs it.
        self.directory = os.path.join(cluster.place, "home", "job")
        self.outside = None
        shell = f"{options.ssh} -F {cluster.place}/etc/ssh_config -o BatchMode=yes -o ServerAliveInterval=2"
        every = "5s" if options.bytes else "1s"
        words = ["run", "-n", str(RANKS), "--ckpt-every", every, "--ckpt-dir", self.directory, "--parity", parity]
        words += ["--hosts", self.hosts(cluster.nodes), "--remote-shell", shell, "--rails", "udp"]
        if spares:
            words += ["--spare-hosts", ",".join(self.named(host) for host in cluster.spares)]
        self.start([*words, *more, "--", options.program, self.lines.path, self.end_file, *([str(options.bytes)] if options.bytes else [])])

    @staticmethod
    def named(host, ranks=None):
        return f"{host.name}{f':{ranks}' if ranks else ''}@{address(DATA, host.number)}"

    def hosts(self, hosts):
        shares = [RANKS // len(hosts) + (index < RANKS % len(hosts)) for index in range(len(hosts))]
        return ",".join(self.named(host, share) for host, share in zip(hosts, shares))

    def start(self, words):
        login = self.cluster.login
        environment = {"PATH": os.environ["PATH"], "HOME": os.path.join(self.cluster.place, "home"), "USER": "root", "SHELL": "/bin/sh"}
        if self.options.provider:
            environment["STILLWIRE_PROVIDER"] = self.options.provider
        self.note(f"$ stillwire {' '.join(words)}")
        command = login.enter(self.options.stillwire, *words)
        self.outside = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, env=environment)

    def is_reachable(self, host):
        connect = self.cluster.login.enter("bash", "-c", f"exec 3<>/dev/tcp/{address(CONTROL, host.number)}/22")
        try:
            return subprocess.run(connect, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=5, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def restart(self):
        # The carrier of a cable that is back comes a moment later.
        wait_until("the hosts can be reached", lambda: all(self.is_reachable(host) for host in self.cluster.nodes))
        self.start(["restart", self.directory, "--hosts", ",".join(self.named(host) for host in self.cluster.nodes)])

    def note(self, text):
        """A line about the test among those of the launcher."""
        self.output.write(f"-- {time.monotonic():.3f} {text}\n".encode())
        self.output.flush()

    def text(self):
        with open(self.output.name, errors="replace") as file:
            return file.read()

    def has_ended(self):
        return self.outside.poll() is not None

    def launcher(self):
        """Its process, which the program that entered the host has started."""
        found = [process for process in self.cluster.login.processes() if process.words[:1] == [self.options.stillwire] and process.words[1:2] in (["run"], ["restart"])]
        if not found:
            raise Failure("there is no launcher")
        return found[0]

    def kill_launcher(self):
        self.launcher().signal(signal.SIGKILL)
        self.outside.wait()

    def ranks(self, host):
        return [process for process in host.processes() if process.rank() is not None]

    def keepers(self, host):
        return [process for process in host.processes() if process.is_keeper()]

    def committed(self):
        return len(re.findall(r"generation \S+ committed \(", self.text()))

    def wait_until_saved(self):
        """All ranks run, and a generation is committed."""
        wait_until("the job's first checkpoint", lambda: self.has_ended() or self.committed() > 0 and len(self.lines.newest()) == RANKS, BEGIN_MAX)
        if self.has_ended():
            raise Failure(f"the job ends with exit code {self.outside.returncode} before anything was done to it")

    def is_steady(self, old, seconds):
        """Waits until all ranks have made steps for a while, none of them in one of the `old` processes, and a generation was committed meanwhile.

        The answer is no if the launcher has ended.
        """
        end = time.monotonic() + seconds
        pids, step, moved, steady_since, committed = None, -1, 0.0, 0.0, 0
        while not self.has_ended():
            newest, now = self.lines.newest(), time.monotonic()
            now_pids, now_step = {line.pid for line in newest.values()}, min(line.step for line in newest.values())
            if now_pids != pids or now_pids & old or now - moved > PAUSE_MAX:
                pids, steady_since, committed = now_pids, now, self.committed()
                step, moved = now_step, now
            elif now_step > step:
                step, moved = now_step, now
                if now - steady_since > STEADY and self.committed() > committed:
                    return True
            if now > end:
                raise Failure(f"{seconds} s after it the ranks do not run again, or no checkpoint is committed")
            time.sleep(0.1)
        return False

    def finish(self):
        open(self.end_file, "w").close()
        try:
            code = self.outside.wait(END_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"it has not ended {END_MAX} s after it may") from None
        if code != 0:
            raise Failure(f"exit code {code}")
        if not re.search(r"^(\[0\] )?verified: \d+ steps$", self.text(), re.MULTILINE):
            raise Failure("the result is not printed, or wrong")

    def end(self):
        if not self.has_ended():
            self.outside.kill()
            self.outside.wait()
        self.printed.is_over.set()
        self.printed.join()
        self.output.close()
