"""One job, one fault, and the reaction that its policy names. In namespaces for networks and mounts of its own; prints what is known of it as JSON."""

import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hosts"))

import round as hosts
from host import wait_until
from job import Failure, Job
from lives import recovery
from pairs import PAIRS, RECOVERED_MAX


class Round(hosts.Round):
    """A round whose fault and policy are those of a pair."""

    SCRIPT = "tests/recovery/run"

    def make_job(self):
        path = os.path.join(self.folder, "recovery.toml")
        with open(path, "w") as file:
            file.write(PAIRS[self.kind].policy)
        return Job(self.options, self.cluster, self.folder, self.parity(), True, ["--recovery", path])

    def disturb(self):
        pair, job = PAIRS[self.kind], self.job
        host = self.dice.choice(self.cluster.nodes)
        self.what = f"at {host.name}"
        job.wait_until_saved()
        time.sleep(self.dice.random() * 2)
        before, began = dict(job.lines.newest()), time.monotonic()
        job.note(f"{self.kind} at {host.name}")
        pair.act(job, host, self.dice)
        if not pair.says:
            self.must_go_on(pair)
        else:
            wait_until(f"the launcher prints `{pair.says}`", lambda: re.search(pair.says, job.text()) or job.has_ended(), RECOVERED_MAX)
            if pair.ends_job:
                self.must_end(pair, host)
            elif not re.search(pair.says, job.text()):
                raise Failure(f"the job ends with exit code {job.outside.returncode}, without `{pair.says}`")
        if not job.is_steady(set(), RECOVERED_MAX):
            raise Failure(f"the job ends with exit code {job.outside.returncode}")
        self.check_frames()
        job.finish()
        self.recovery_s = max(0.0, recovery(job.lines.update(), before, began * 1000))

    def must_go_on(self, pair):
        if re.search("rolling back", self.job.text()):
            raise Failure("the job has rolled back")

    def must_end(self, pair, host):
        """It ends, says why, and a person has it go on with its last checkpoint."""
        job = self.job
        self.cluster.networks.heal()
        code = job.outside.wait(RECOVERED_MAX)
        if code != 4 or not re.search(pair.says, job.text()):
            raise Failure(f"the job ends with exit code {code}, and not with 4 and `{pair.says}`")
        self.cluster.replace([host] if pair.loses_host else [])
        job.restart()
        self.restarts += 1

    def judge(self):
        super().judge()
        found = re.findall(r"(\d+) ranks? rolled back\)", self.job.text())
        self.ranks_rolled_back = max((int(ranks) for ranks in found), default=0)


if __name__ == "__main__":
    hosts.main(Round, list(PAIRS))
