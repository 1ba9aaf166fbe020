"""What is done to a job: one function for each kind, which chooses host, length and variant by its dice before anything happens."""

import signal
import time
from dataclasses import dataclass, field

from networks import CONTROL, DATA, IN, OUT

# Seconds that a host may be out of reach without the end of a job that has no spare: the launcher waits 30 s for an answer after 2 s of silence, and a connection
# that is being made tries again at growing intervals.
OUT_OF_REACH_MAX = 20

# Seconds of a cut of the data network that a launcher reports: ranks notice it within one, and it reports what has lasted three more.
REPORTED_AFTER = 6

# Seconds of stops and cuts, and of a boot; quick rounds have the first ones.
SPANS = (1, 3, 6, 12, 20, 35, 60)
QUICK_SPANS = 3
BOOTS = (1, 4, 10)
QUICK_BOOTS = 2


@dataclass
class Fault:
    what: str
    begin: callable
    # After so many seconds it is taken back, if it can be.
    end: callable = lambda: None
    seconds: float = 0.0
    # A job without spares may end by it, and is restarted.
    may_end: bool = False
    # The launcher is gone, and nobody but a person restarts the job.
    ends_launcher: bool = False
    # Hosts whose processes have ended: no rank runs on in its process.
    ends_ranks: bool = False
    # Hosts that never come back: a spare takes their places at a restart.
    lost: list = field(default_factory=list)
    # What the launcher has to print meanwhile, if anything: a regular expression.
    says: str = ""
    # The host that the launcher cannot reach: somebody may not wait for it, and restart the job on a spare at once.
    silent: object = None


def choose_span(job, dice, least=0):
    spans = SPANS[:QUICK_SPANS] if job.options.quick else SPANS
    return dice.choice([span for span in spans if span >= least])


def choose_boot(job, dice):
    return dice.choice(BOOTS[:QUICK_BOOTS] if job.options.quick else BOOTS)


def kill_rank(job, dice, host):
    def begin():
        ranks = sorted(job.ranks(host), key=lambda rank: rank.pid)
        # The first of two faults may have ended them.
        if ranks:
            dice.choice(ranks).signal(signal.SIGKILL)

    return Fault(f"a rank on {host.name} killed", begin, ends_ranks=True)


def stop_keeper(job, dice, host):
    seconds, stopped = choose_span(job, dice), []

    def begin():
        stopped.extend(job.keepers(host))
        for keeper in stopped:
            keeper.signal(signal.SIGSTOP)

    def end():
        for keeper in stopped:
            keeper.signal(signal.SIGCONT)

    # The launcher gives the node another keeper.
    return Fault(f"keeper on {host.name} stopped for {seconds} s", begin, end, seconds)


def stop_host(job, dice, host):
    seconds = choose_span(job, dice)
    what = f"all processes of {host.name} stopped for {seconds} s"
    return Fault(what, host.stop, lambda: host.resume(dice), seconds, may_end=seconds > OUT_OF_REACH_MAX, silent=host)


def cut(job, dice, host, networks, may_end, least=0):
    seconds = choose_span(job, dice, least)

    def set_cut(is_cut):
        for network in networks:
            job.cluster.networks.set_cut(network, host.number, is_cut)

    what = f"{' and '.join(networks)} network of {host.name} cut for {seconds} s"
    return Fault(what, lambda: set_cut(True), lambda: set_cut(False), seconds, may_end=may_end and seconds > OUT_OF_REACH_MAX, silent=host)


def cut_control(job, dice, host):
    return cut(job, dice, host, [CONTROL], True)


def cut_data(job, dice, host):
    # A quick run has few rounds, so each cut lasts until it is reported.
    fault = cut(job, dice, host, [DATA], False, least=REPORTED_AFTER if job.options.quick else 0)
    if fault.seconds >= REPORTED_AFTER:
        fault.says = f"the data network of {host.name} \\(node \\d+\\) may be cut"
    return fault


def cut_both(job, dice, host):
    return cut(job, dice, host, [CONTROL, DATA], True)


def one_way(job, dice, host):
    seconds, network, direction = choose_span(job, dice), dice.choice([CONTROL, DATA]), dice.choice([IN, OUT])

    def set_drop(drops):
        job.cluster.networks.set_drop(network, host.number, direction, drops)

    what = f"no packet {'from' if direction == OUT else 'to'} {host.name} over the {network} network for {seconds} s"
    return Fault(what, lambda: set_drop(True), lambda: set_drop(False), seconds, may_end=network == CONTROL and seconds > OUT_OF_REACH_MAX, silent=host)


def half_open(job, dice, _host):
    """The launcher's host is out of reach, and nobody gets a FIN or RST; its launcher continues, is killed, or its host is switched off and on."""
    spans = [span for span in SPANS if 1 < span <= OUT_OF_REACH_MAX][: QUICK_SPANS - 1 if job.options.quick else None]
    seconds, fate = dice.choice(spans), dice.choice(["continues", "is killed", "is switched off with its host"])
    login, networks = job.cluster.login, job.cluster.networks

    def begin():
        for direction in (IN, OUT):
            networks.set_drop(CONTROL, login.number, direction, True)
        if fate != "continues":
            time.sleep(0.2)
            job.kill_launcher()
        if fate.startswith("is switched"):
            login.power_off()
            login.boot()

    def end():
        for direction in (IN, OUT):
            networks.set_drop(CONTROL, login.number, direction, False)

    return Fault(f"launcher out of reach for {seconds} s, and {fate}", begin, end, seconds, ends_launcher=fate != "continues", ends_ranks=fate != "continues")


def reboot(job, dice, host):
    seconds = choose_boot(job, dice)
    return Fault(f"{host.name} rebooted in {seconds} s", host.power_off, host.boot, seconds, ends_ranks=True)


def destroy(job, dice, host):
    """It comes back empty, or never, which takes too long for a quick round without spares."""
    seconds, returns = choose_boot(job, dice), dice.random() < 0.4 or job.options.quick and not job.options.spares

    def end():
        if returns:
            host.make_disk()
            host.boot()

    what = f"{host.name} destroyed{f', and back with an empty disk in {seconds} s' if returns else ''}"
    return Fault(what, host.destroy, end, seconds if returns else 0, may_end=not returns, ends_ranks=True, lost=[] if returns else [host])


def fill_disk(job, dice, host):
    seconds = dice.choice([2, 5, 10])
    return Fault(f"disk of {host.name} full for {seconds} s", host.fill, host.empty, seconds)


def kill_launcher(job, dice, _host):
    return Fault("launcher killed", job.kill_launcher, ends_launcher=True, ends_ranks=True)


# What may be one of two faults. Together they take no more than one disk.
PAIRED = (kill_rank, stop_keeper, stop_host, cut_control, cut_data, cut_both, one_way, reboot, fill_disk)
ON_ONE_HOST = (kill_rank, stop_keeper, cut_data, fill_disk)


def two(job, dice, host):
    """At once, or the second while the job deals with the first; on two hosts, or on one."""
    other = dice.choice([each for each in job.cluster.nodes if each is not host])
    if dice.random() < 0.3:
        makers = dice.sample(ON_ONE_HOST, 2)
        first, second = makers[0](job, dice, host), makers[1](job, dice, host)
    else:
        first, second = dice.choice([*PAIRED, destroy])(job, dice, host), dice.choice(PAIRED)(job, dice, other)
    gap = dice.choice([0.0, 4 * dice.random()])
    events = [(0.0, first.begin), (gap, second.begin), (first.seconds, first.end), (gap + second.seconds, second.end)]
    events.sort(key=lambda event: event[0])
    both_began = 1 + events.index((gap, second.begin))

    def play(some, now):
        for at, act in some:
            time.sleep(at - now)
            act()
            now = at

    longest = max(first.seconds, second.seconds)
    return Fault(
        f"{first.what}, and {f'{gap:.1f} s later ' if gap else ''}{second.what}",
        lambda: play(events[:both_began], 0.0),
        lambda: play(events[both_began:], events[both_began][0]),
        events[both_began][0] - gap,
        # Two of three keepers have to answer, and each that was given up does so later.
        may_end=first.may_end or second.may_end or longest > OUT_OF_REACH_MAX / 2,
        ends_ranks=first.ends_ranks or second.ends_ranks,
        lost=first.lost,
    )


KINDS = {
    "rank": kill_rank,
    "keeper": stop_keeper,
    "stop": stop_host,
    "control": cut_control,
    "data": cut_data,
    "both": cut_both,
    "one-way": one_way,
    "half-open": half_open,
    "reboot": reboot,
    "destroy": destroy,
    "disk": fill_disk,
    "launcher": kill_launcher,
    "two": two,
}
