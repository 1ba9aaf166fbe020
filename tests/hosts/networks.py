"""Two networks of one machine, a bridge each: one for the remote shell, one for the frames of ranks. Both lie in the network namespace of the caller.

A port of a bridge is a host's cable. It is cut (the host's interface loses its carrier), or drops packets in one direction or both, which nobody notices.
"""

import json
import subprocess

CONTROL, DATA = "control", "data"
NETWORKS = {CONTROL: 78, DATA: 79}

MTU_USUAL = 1500

# Directions, from the host's point of view.
OUT, IN = "out", "in"
HOOKS = {OUT: "ingress", IN: "egress"}


def tool(*words, **options):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def address(network, number):
    return f"10.{NETWORKS[network]}.0.{10 + number}"


def port(network, number):
    """Name of a host's port, on the bridge's side."""
    return f"{network}{number}"


class Networks:
    """Faults belong to the cable: they outlast a reboot of the host."""

    def __init__(self, nft, mtu):
        """`mtu`: bytes of the longest packet of frames; the remote shell has Ethernet's usual 1,500."""
        self.nft = nft
        self.mtus = {CONTROL: MTU_USUAL, DATA: mtu}
        self.cuts, self.drops = set(), set()
        for network in NETWORKS:
            tool("ip", "link", "add", network, "mtu", str(self.mtus[network]), "type", "bridge")
            tool("ip", "link", "set", network, "up")
        self.filter("add table netdev faults")

    def filter(self, commands):
        tool(*self.nft, commands)

    def join(self, number, pid):
        """Connects the network namespace of a process to both networks."""
        inside = ["nsenter", "--target", str(pid), "--net", "ip"]
        tool(*inside, "link", "set", "lo", "up")
        for network, octet in NETWORKS.items():
            at_bridge = port(network, number)
            # A host that reboots keeps its hardware address.
            hardware = f"02:00:00:00:{octet:02x}:{number:02x}"
            mtu = ["mtu", str(self.mtus[network])]
            tool("ip", "link", "add", at_bridge, *mtu, "type", "veth", "peer", "name", network, *mtu, "address", hardware, "netns", str(pid))
            tool("ip", "link", "set", at_bridge, "master", network)
            if (network, number) not in self.cuts:
                tool("ip", "link", "set", at_bridge, "up")
            for direction in HOOKS:
                if (network, number, direction) in self.drops:
                    self.add_filter(network, number, direction)
            tool(*inside, "address", "add", f"{address(network, number)}/24", "dev", network)
            tool(*inside, "link", "set", network, "up")

    @staticmethod
    def has(network, number):
        shown = subprocess.run(["ip", "link", "show", port(network, number)], capture_output=True, check=False)
        return shown.returncode == 0

    def set_cut(self, network, number, is_cut):
        (self.cuts.add if is_cut else self.cuts.discard)((network, number))
        if self.has(network, number):
            tool("ip", "link", "set", port(network, number), "down" if is_cut else "up")

    def set_drop(self, network, number, direction, drops):
        is_set = (network, number, direction) in self.drops
        if drops and not is_set:
            self.drops.add((network, number, direction))
            if self.has(network, number):
                self.add_filter(network, number, direction)
        elif is_set and not drops:
            self.drops.discard((network, number, direction))
            self.filter(self.without_chain(network, number, direction))

    @staticmethod
    def without_chain(network, number, direction):
        """Commands after which there is no such chain: the kernel may have taken it with the port, or not."""
        chain = f"netdev faults {direction}_{port(network, number)}"
        return f"add chain {chain}; delete chain {chain}"

    def add_filter(self, network, number, direction):
        name = port(network, number)
        hook = f"type filter hook {HOOKS[direction]} device {name} priority 0; policy drop;"
        self.filter(f"{self.without_chain(network, number, direction)}; add chain netdev faults {direction}_{name} {{ {hook} }}")

    def heal(self):
        for network, number in list(self.cuts):
            self.set_cut(network, number, False)
        for network, number, direction in list(self.drops):
            self.set_drop(network, number, direction, False)

    @staticmethod
    def received(network, number):
        """Bytes that a host has sent over a network since its port exists."""
        shown = json.loads(tool("ip", "-json", "-statistics", "link", "show", port(network, number)))
        return shown[0]["stats64"]["rx"]["bytes"]

    def end(self):
        """Whatever is there of them."""
        for command in ([*self.nft, "delete table netdev faults"], *(["ip", "link", "delete", network] for network in NETWORKS)):
            subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
