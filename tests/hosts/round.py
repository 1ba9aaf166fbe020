"""One job over hosts, one of which fails: the result has to be right, no two lives may run at one time, and nothing may be left."""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time

from faults import KINDS
from host import DISK_BYTES, IMAGES_HELD, Host, wait_until
from job import RANKS, Failure, Job
from lives import recovery, two_lives
from networks import DATA, MTU_USUAL, NETWORKS, Networks, address, tool

SPARES = 2

# Seconds. The first is for a fault that the job survives by itself, and for a restart: leases, pauses between attempts, and a busy machine.
RECOVERED_MAX = 120
# After the job's end, and as long again as the fault was: the sshd of a host that was cut off sends to a client that is gone when its TCP tries again, and
# the pauses between tries grow to the length of the cut.
LEFT_MAX = 20
SAID_MAX = 20

# Bytes of frames that a host sends in a round, at the least.
FRAMES_MIN = 1 << 20

# The hosts of whose loss the launcher has to speak when it ends a job.
REASON = re.compile(r"^stillwire: .*(\bh\d\b|\bnode \d|keepers?\b).*$", re.MULTILINE)


class Stopped(Exception):
    """Somebody wants this to end."""


class Cluster:
    """The login host, the hosts of the job's nodes, and spares."""

    def __init__(self, options, place):
        self.place, self.networks = place, Networks(options.nft, options.mtu)
        for folder in ("disks", "etc", "home", "logs"):
            os.mkdir(os.path.join(place, folder))
        self.write_settings(options)
        disk_bytes = DISK_BYTES + IMAGES_HELD * options.bytes * -(-RANKS // options.nodes)
        self.hosts = [Host(number, place, self.networks, options.sshd, disk_bytes) for number in range(1 + options.nodes + SPARES)]
        self.login, self.nodes, self.spares = self.hosts[0], self.hosts[1 : 1 + options.nodes], self.hosts[1 + options.nodes :]

    def boot(self):
        for host in self.hosts:
            host.boot()

    def write_settings(self, options):
        etc = os.path.join(self.place, "etc")
        home = os.path.join(self.place, "home")
        for name in ("host_key", "id"):
            tool(*options.keygen, "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(etc, name))
        shutil.copy(os.path.join(etc, "id.pub"), os.path.join(etc, "authorized_keys"))
        names = [("login" if number == 0 else f"h{number}", number) for number in range(1 + options.nodes + SPARES)]
        files = {
            "hosts": "127.0.0.1 localhost\n" + "".join(f"{address('control', number)} {name}\n" for name, number in names),
            "passwd": f"root:x:0:0:root:{home}:/bin/bash\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
            "shadow": "root:*:19000::::::\nsshd:!:19000::::::\n",
            "sshd_config": f"HostKey {etc}/host_key\nAuthorizedKeysFile {etc}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n",
            "ssh_config": f"Host *\n    IdentityFile {etc}/id\n    StrictHostKeyChecking no\n    UserKnownHostsFile {home}/known_hosts\n    LogLevel ERROR\n",
        }
        for name, text in files.items():
            with open(os.path.join(etc, name), "w") as file:
                file.write(text)

    def replace(self, lost):
        """Spares take the places of some hosts of the job."""
        self.nodes = [self.spares.pop(0) if host in lost else host for host in self.nodes]

    def leftovers(self):
        return [what for host in self.hosts if host.is_up for what in host.leftovers()]

    def end(self):
        for host in self.hosts:
            host.destroy()
        self.networks.end()


class Round:
    """One job, and one fault."""

    SCRIPT = "tests/hosts/run"

    def __init__(self, options):
        self.seed, self.kind = options.seed, options.kind
        self.dice = random.Random(f"{self.seed} {self.kind}")
        self.options, self.what = options, ""
        self.folder = tempfile.mkdtemp(prefix=f"{self.kind.replace('/', '-')}-", dir=options.place)
        self.failures, self.two_lives, self.leftovers = [], [], []
        self.recovery_s, self.stages, self.restarts, self.fault_seconds = None, {}, 0, 0.0
        # As far as it is counted.
        self.ranks_rolled_back = 0
        self.cluster = self.job = None

    def run(self):
        try:
            self.cluster = Cluster(self.options, self.folder)
            self.cluster.boot()
            self.job = self.make_job()
            self.disturb()
        except (Failure, RuntimeError) as failure:
            self.failures.append(str(failure))
        if self.job:
            self.judge()
        return self

    def make_job(self):
        return Job(self.options, self.cluster, self.folder, self.parity(), self.options.spares)

    def parity(self):
        chosen = self.dice.choice(["xor", "rs:2+1"])
        return self.options.parity or chosen

    def disturb(self):
        job = self.job
        host = self.dice.choice(self.cluster.nodes)
        fault = KINDS[self.kind](job, self.dice, host)
        self.what, self.fault_seconds = fault.what, fault.seconds
        wait = self.dice.random() * 2
        job.wait_until_saved()
        time.sleep(wait)
        before, began = dict(job.lines.newest()), time.monotonic()
        job.note(fault.what)
        fault.begin()
        replaces = self.dice.random() < 0.5 and not self.options.spares
        end = time.monotonic() + fault.seconds
        while (left := end - time.monotonic()) > 0:
            if replaces and fault.silent and not fault.ends_launcher and job.has_ended() and not self.restarts:
                self.restart(fault, [fault.silent])
            time.sleep(min(0.1, left))
        if fault.says:
            # On a busy machine later than the fault was to last: it lasts until then.
            wait_until(f"the launcher prints `{fault.says}`", lambda: re.search(fault.says, job.text()), SAID_MAX)
        fault.end()
        job.note("the fault is over")
        # Nobody who ran before runs on where the fault has ended a process of the job.
        old = {line.pid for line in before.values()} if fault.ends_ranks else set()
        if fault.ends_launcher or not job.is_steady(old, RECOVERED_MAX):
            if self.restarts:
                raise Failure(f"the restart ends with exit code {job.outside.returncode}")
            self.restart(fault, fault.lost)
            if not job.is_steady(old, RECOVERED_MAX):
                raise Failure(f"the restart ends with exit code {job.outside.returncode}")
        self.check_frames()
        job.finish()
        self.recovery_s = max(0.0, recovery(job.lines.update(), before, began * 1000))
        self.stages = job.printed.stages(began)

    def restart(self, fault, lost):
        """Somebody does what the launcher has asked for: with spares in the places of some hosts."""
        job = self.job
        if not fault.ends_launcher:
            code = job.outside.returncode
            if not fault.may_end or self.options.spares:
                raise Failure(f"the job ends with exit code {code}")
            if code != 4 or not REASON.search(job.text()):
                raise Failure(f"the job ends with exit code {code}, and not with 4 and the name of the host")
        self.cluster.replace(lost)
        job.restart()
        self.restarts += 1

    def check_frames(self):
        """Frames go over the network for data, and not over the other."""
        text = self.job.text()
        replaced = re.findall(r"(\S+) does not answer any more: \S+ takes its place", text)
        replaced += re.findall(r"takes the place of (\S+), which leaves the job", text)
        hosts = [host for host in self.cluster.nodes if host.is_up and host.name not in replaced]
        sent = {network: min(self.cluster.networks.received(network, host.number) for host in hosts) for network in NETWORKS}
        if sent[DATA] < FRAMES_MIN:
            raise Failure(f"hosts have sent {sent} bytes: frames did not go over the data network")

    def judge(self):
        self.two_lives = two_lives(self.job.lines.update())
        if self.two_lives:
            self.failures.append(f"two lives at one time: {'; '.join(self.two_lives)}")
        if not self.failures:
            limit = LEFT_MAX + self.fault_seconds
            end = time.monotonic() + limit
            while (left := self.cluster.leftovers()) and time.monotonic() < end:
                time.sleep(0.01)
            if left:
                self.leftovers = left
                self.failures.append(f"left {limit:.0f} s after the end: {'; '.join(self.leftovers)}")

    def end(self, keeps):
        """Nothing of it is left, but what was printed and recorded."""
        if not self.job:
            self.abandon()
            return
        self.job.end()
        records = os.path.join(self.folder, "disks", "login", "home", "job")
        if keeps and os.path.isdir(records):
            shutil.copytree(records, os.path.join(self.folder, "job"), ignore=shutil.ignore_patterns("lock*"), dirs_exist_ok=True)
        self.cluster.end()
        for folder in ("disks", "home", "etc") if keeps else ("",):
            shutil.rmtree(os.path.join(self.folder, folder))

    def abandon(self):
        """Nothing at all is left, whatever it was about to do."""
        if self.cluster:
            for host in self.cluster.hosts:
                host.kill()
            self.cluster.networks.end()
        disks = os.path.join(self.folder, "disks")
        for name in os.listdir(disks) if os.path.isdir(disks) else ():
            if os.path.ismount(os.path.join(disks, name)):
                tool("umount", "--lazy", os.path.join(disks, name))
        shutil.rmtree(self.folder)

    def of_size(self):
        parity = f" --parity {self.options.parity}" if self.options.parity else ""
        mtu = f" --mtu {self.options.mtu}" if self.options.mtu != MTU_USUAL else ""
        size = f" --bytes {self.options.bytes} --nodes {self.options.nodes}" if self.options.bytes or self.options.nodes != 3 else ""
        return size + parity + mtu

    def report(self):
        what = f"{self.kind}, seed {self.seed}: {self.what or 'nothing was done to it'}"
        if self.failures:
            script = f"{self.SCRIPT} --rounds 1 --seed {self.seed} --kind {self.kind}{' --spares' if self.options.spares else ''}{' --quick' if self.options.quick else ''}{self.of_size()}"
            return f"FAILED: {what}: {'; '.join(self.failures)}; see {self.folder}; again: {script}"
        stages = "".join(f", {name} {seconds:.2f}" for name, seconds in self.stages.items())
        parts = f" (seconds:{stages[1:]})" if stages else ""
        return f"{what}: all ranks run again {self.recovery_s:.1f} s after it{', restarted' if self.restarts else ''}{parts}"


def stop(number, _frame):
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def parser():
    """Options of a round, and of all rounds."""
    found = argparse.ArgumentParser()
    found.add_argument("--seed", type=int, required=True)
    found.add_argument("--spares", action="store_true", help="the job has spare hosts, and survives by itself")
    found.add_argument("--quick", action="store_true", help="no fault lasts longer than some seconds")
    found.add_argument("--keep", action="store_true", help="keep what the launchers of all rounds print")
    found.add_argument("--bytes", type=int, default=0, help="memory of each rank")
    found.add_argument("--nodes", type=int, default=3, choices=(3, 4))
    found.add_argument("--parity")
    found.add_argument("--mtu", type=int, default=MTU_USUAL, help="bytes of the longest packet of frames")
    found.add_argument("--place", required=True, help="where the hosts' files lie")
    for name in ("stillwire", "provider", "program", "ssh", "keygen"):
        found.add_argument(f"--{name}", required=True)
    for name in ("sshd", "nft"):
        found.add_argument(f"--{name}", required=True, help="a command, in words")
    return found


def main(kind_of_round, kinds):
    """One round, in namespaces for networks and mounts that are its own. Prints what is known of it as one line of JSON."""
    options = parser()
    options.add_argument("--kind", choices=kinds, required=True)
    options = options.parse_args()
    options.nft, options.keygen = options.nft.split(), options.keygen.split()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # Hosts see unmounts of each other's disks.
    tool("mount", "--make-rshared", "/")
    current = kind_of_round(options)
    try:
        current.run()
        current.end(keeps=options.keep or bool(current.failures))
    except Stopped as reason:
        current.abandon()
        sys.exit(128 + reason.args[0])
    known = ("kind", "failures", "two_lives", "leftovers", "recovery_s", "stages", "restarts", "ranks_rolled_back")
    print(json.dumps({name: getattr(current, name) for name in known} | {"report": current.report()}))


if __name__ == "__main__":
    main(Round, list(KINDS))
