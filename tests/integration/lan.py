"""A small LAN inside this machine: network namespaces on one bridge, each with a limited link.

Needs root and iproute2. Everything is removed again when the `with` block ends, whatever happened in it; nothing of it
can be reached from the machine's own network.
"""

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

COMMAND_S = 10.0
END_S = 5.0


def why_not():
    """None if namespaces can be made here, else the reason to skip."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need root and iproute2"
    name = f"mdl{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=COMMAND_S, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_S, check=False)
    return None if made.returncode == 0 else f"network namespaces are not allowed here: {made.stderr.decode().strip()}"


class Lan:
    """`size` hosts 10.213.0.1 ... on one switch. mbit: of each host's link, or a list of them.

    multicast=False: no mDNS between them, as in many guest networks. delay_s, loss: of each frame on its way, and how
    many of them get lost; flap_s: how long the first host is there, and then away, in turn (`slow_switch.py`).
    deaf: the switch loses what goes to groups, as in many guest networks. ipv4: of each host, whether it has such an
    address; all have a link-local one of IPv6 (after some two seconds, RFC 4862), but for those of no_ipv6.
    subnets: the number of each host's network; others are reached through a router, by IPv4 alone, without multicast.
    shared_mbit: of the one channel that takes all their frames in turn, as a Wi-Fi cell; 0: each host has its link to
    itself.
    """

    def __init__(
        self,
        size,
        mbit=100,
        multicast=True,
        delay_s=0.0,
        loss=0.0,
        shared_mbit=0,
        flap_s=(1.0, 0.0),
        deaf=False,
        ipv4=(),
        no_ipv6=(),
        subnets=(),
    ):
        self.size, self.multicast, self.delay_s, self.loss, self.flap_s = size, multicast, delay_s, loss, flap_s
        self.shared_mbit, self.deaf = shared_mbit, deaf
        self.ipv4, self.no_ipv6 = list(ipv4) or [True] * size, no_ipv6
        self.mbit = list(mbit) if isinstance(mbit, (list, tuple)) else [mbit] * size
        self.subnets = list(subnets) or [0] * size
        self.hosts = [f"10.213.{self.subnets[i]}.{i + 1}" for i in range(size)]
        tag = f"mdl{uuid.uuid4().hex[:6]}"
        self.switch = f"{tag}s"
        self.names = [f"{tag}h{i}" for i in range(size)]
        self.processes = []

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def start(self, i, *arguments, stderr=None, python=sys.executable):
        """Run this Python with `arguments` on host i; stdin ends with the LAN, stdout is line by line."""
        command = ["ip", "netns", "exec", self.names[i], python, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.processes.append(process)
        return process

    def remove(self):
        """End what still runs and take the network down; safe to call twice."""
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)
            process.stdout.close()
        self.processes.clear()
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_S, check=False)

    def _build(self):
        ip(f"netns add {self.switch}")
        for subnet in sorted(set(self.subnets)):
            ip(f"-n {self.switch} link add br{subnet} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            ip(f"-n {self.switch} link set br{subnet} up")
            if self._is_routed():
                ip(f"-n {self.switch} addr add 10.213.{subnet}.254/24 dev br{subnet}")
        if self._is_routed():
            run(f"ip netns exec {self.switch} sysctl -qw net.ipv4.ip_forward=1")
        for i, (name, host) in enumerate(zip(self.names, self.hosts, strict=True)):
            ip(f"netns add {name}")
            ip(f"-n {self.switch} link add v{i} type veth peer name eth0 netns {name}")
            ip(f"-n {self.switch} link set v{i} {'up' if self._is_slow() else f'master br{self.subnets[i]} up'}")
            if self._is_slow():  # a frame that is lost is one frame
                ip(f"-n {name} link set eth0 gso_max_segs 1")
                ip(f"-n {self.switch} link set v{i} promisc on addrgenmode none")
            ip(f"-n {name} link set lo up")
            if i in self.no_ipv6:
                self.sysctl(i, "net.ipv6.conf.all.disable_ipv6=1")
            if self.ipv4[i]:
                ip(f"-n {name} addr add {host}/24 dev eth0")
            ip(f"-n {name} link set eth0 multicast {'on' if self.multicast else 'off'} up")
            if self.multicast and self.ipv4[i]:
                ip(f"-n {name} route add 224.0.0.0/4 dev eth0")
            elif not self.multicast:  # nowhere to send a group's packets to
                ip(f"-n {name} route add prohibit 224.0.0.0/4")
                ip(f"-n {name} -6 route add prohibit ff00::/8 table local metric 1")
            if self._is_routed():
                ip(f"-n {name} route add default via 10.213.{self.subnets[i]}.254")
            self.limit(i, self.mbit[i], "add")
        if self.shared_mbit:
            self._share_channel()
        if self._is_slow():
            self._start_slow_switch()

    def _share_channel(self):
        """All that comes to the switch goes through one device with the channel's rate."""
        ip(f"-n {self.switch} link add air type ifb")
        ip(f"-n {self.switch} link set air up")
        run(f"tc -n {self.switch} qdisc add dev air root tbf rate {self.shared_mbit}mbit burst 64kb latency 50ms")
        for i in range(self.size):
            taken = "protocol all u32 match u32 0 0 action mirred egress redirect dev air"
            run(f"tc -n {self.switch} qdisc add dev v{i} handle ffff: ingress")
            run(f"tc -n {self.switch} filter add dev v{i} parent ffff: {taken}")

    def _is_routed(self):
        return len(set(self.subnets)) > 1

    def _is_slow(self):
        return self.delay_s > 0 or self.loss > 0 or self.flap_s[1] > 0 or self.deaf

    def _start_slow_switch(self):
        ports = [f"v{i}" for i in range(self.size)]
        command = ["ip", "netns", "exec", self.switch, sys.executable, Path(__file__).parent / "slow_switch.py", *ports]
        command += ["--delay-s", str(self.delay_s), "--loss", str(self.loss)]
        command += ["--no-multicast"] if self.deaf else []
        command += ["--flap-s", ",".join(map(str, self.flap_s))]
        switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(switch)
        assert switch.stdout.readline() == "ready\n"

    def move(self, i, host, away_s=0.0):
        """Host i loses its address, and gets this one after a while: another lease, or another network."""
        ip(f"-n {self.names[i]} addr del {self.hosts[i]}/24 dev eth0")
        if away_s:
            time.sleep(away_s)
        ip(f"-n {self.names[i]} addr add {host}/24 dev eth0")
        ip(f"-n {self.names[i]} route replace {'' if self.multicast else 'prohibit '}224.0.0.0/4"
           + (" dev eth0" if self.multicast else ""))  # fmt: skip
        self.hosts[i] = host

    def roam(self, i, subnet, away_s=0.0):
        """Host i goes over to another subnet, as a device that changes its Wi-Fi."""
        self.subnets[i] = subnet
        ip(f"-n {self.switch} link set v{i} master br{subnet}")
        self.move(i, f"10.213.{subnet}.{i + 1}", away_s)
        ip(f"-n {self.names[i]} route replace default via 10.213.{subnet}.254")

    def sysctl(self, i, setting):
        """Host i's kernel gets this setting: NAME=VALUE."""
        run(f"ip netns exec {self.names[i]} sysctl -qw {setting}")

    def limit(self, i, mbit, verb="replace"):
        """Host i's link gets this rate, both ways; also while it is used."""
        for namespace, device in ((self.names[i], "eth0"), (self.switch, f"v{i}")):
            run(f"tc -n {namespace} qdisc {verb} dev {device} root tbf rate {mbit}mbit burst 64kb latency 50ms")


def ip(arguments):
    run(f"ip {arguments}")


def run(command):
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
