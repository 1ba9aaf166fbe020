"""What is done to a job for each pair of fault model and recovery protocol, and what its launcher has to print then.

A job of four ranks runs on three hosts, with two spare ones. Each pair has a policy of its own, where the default is another one.
"""

import re
import signal
import subprocess
import time
from dataclasses import dataclass

from host import wait_until
from job import Failure
from networks import DATA

# Seconds that a recovery may take on a busy machine.
RECOVERED_MAX = 90

# Shortest silence of a data network that a policy may take for a fault.
NETWORK_AFTER = "[thresholds]\nnetwork-after = \"5s\"\n"
TWICE = "[thresholds]\nrepeated-faults = 2\n"


@dataclass
class Pair:
    act: callable
    policy: str
    # The price that the launcher prints with the end of the recovery, or its reason for the end of the job; none: the job goes on as it is.
    says: str
    ends_job: bool = False
    # The host that is at fault is gone for good.
    loses_host: bool = False


def rollbacks(job):
    return len(re.findall(r"all ranks run again", job.text()))


def kill(job, host, dice):
    ranks = sorted(job.ranks(host), key=lambda rank: rank.pid)
    dice.choice(ranks).signal(signal.SIGKILL)


def once(job, host, dice):
    kill(job, host, dice)


def twice(job, host, dice):
    before = rollbacks(job)
    kill(job, host, dice)
    wait_until("the end of the first recovery", lambda: rollbacks(job) > before, RECOVERED_MAX)
    time.sleep(dice.random())
    kill(job, host, dice)


def reboot(_job, host, _dice):
    host.power_off()
    time.sleep(1)
    host.boot()


def away(_job, host, _dice):
    host.power_off()
    time.sleep(12)
    host.boot()


def destroy(_job, host, _dice):
    host.destroy()


def cut(job, host, _dice):
    job.cluster.networks.set_cut(DATA, host.number, True)


def cut_for_a_while(job, host, dice):
    cut(job, host, dice)
    time.sleep(8)
    job.cluster.networks.set_cut(DATA, host.number, False)


def suspect(job, host, _dice):
    environment = {"PATH": "/usr/bin:/bin", "HOME": f"{job.cluster.place}/home", "USER": "root"}
    found = re.search(r"^stillwire: job ([0-9a-f]{32}),", job.text(), re.MULTILINE)
    command = job.cluster.login.enter(job.options.stillwire, "suspect", found[1], host.name)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"`suspect {host.name}` ends with code {done.returncode}: {done.stderr.strip()}")


def on(model, order):
    return f'[on]\n{model} = "{order}"\n'


PAIRS = {
    "process/restart": Pair(once, "", r"\(process fault, restart: 4 ranks rolled back\)"),
    "process/migration": Pair(once, on("process", "migration, stop"), r"\(process fault, migration of node \d: 4 ranks rolled back\)"),
    "process/stop": Pair(once, on("process", "stop"), "the reaction to process faults is stop", ends_job=True),
    "repeated/restart": Pair(twice, TWICE + on("repeated", "restart"), r"\(repeated fault, restart: 4 ranks rolled back\)"),
    "repeated/migration": Pair(twice, TWICE, r"\(repeated fault, migration of node \d: 4 ranks rolled back\)"),
    "repeated/stop": Pair(twice, TWICE + on("repeated", "stop"), "the reaction to repeated faults is stop", ends_job=True),
    "transient/restart": Pair(reboot, "[thresholds]\ntransient-within = \"20s\"\n", r"\(transient fault, restart: 4 ranks rolled back\)"),
    "transient/migration": Pair(
        reboot, on("transient", "migration, restart") + 'permanent = "restart"\n', r"\(transient fault, migration of node \d: 4 ranks rolled back\)"
    ),
    "permanent/restart": Pair(away, on("permanent", "restart"), r"\(transient fault, restart: 4 ranks rolled back\)"),
    "permanent/migration": Pair(destroy, "", r"\(permanent fault, migration of node \d: 4 ranks rolled back\)", loses_host=True),
    "permanent/stop": Pair(destroy, on("permanent", "stop"), "the reaction to permanent faults is stop", ends_job=True, loses_host=True),
    "suspected/migration": Pair(suspect, "", r"\(permanent fault, migration of node \d: 4 ranks rolled back\)"),
    "network/wait": Pair(cut_for_a_while, NETWORK_AFTER + on("network", "wait"), ""),
    "network/restart": Pair(cut_for_a_while, NETWORK_AFTER + on("network", "restart"), r"\(network fault, restart: 4 ranks rolled back\)"),
    "network/migration": Pair(cut, NETWORK_AFTER + on("network", "migration, stop"), r"\(network fault, migration of node \d: 4 ranks rolled back\)"),
    "network/stop": Pair(cut, NETWORK_AFTER + on("network", "stop"), "the reaction to network faults is stop", ends_job=True),
}
