"""Faults of homes for `mdl doctor` to name, found on networks that its checks were not written for.

Where one machine cannot tell two causes apart, it has to say both (WORDS): behind_nat and split_mesh. Those of APART
take more than the own host's way: each on a LAN of its own.
"""

import subprocess

from tests.integration import product
from tests.integration.doctor_case import MEMBER_PORT
from tests.integration.doctor_fresh import in_switch, start_trainers
from tests.integration.lan import COMMAND_S, ip, run

# Takes all connections, and says nothing on them.
PROXY = """
import socket
taking = socket.create_server(("0.0.0.0", 8080))
print("ready", flush=True)
taken = []
while True:
    taken.append(taking.accept())
"""
# Holds all ports that the system would give, and ends with its stdin.
GREEDY = """
import socket, sys
held = []
for port in range(61000, 61004):
    held.append(socket.create_server(("0.0.0.0", port)))
print("ready", flush=True)
sys.stdin.read()
"""


def behind_nat(case):
    """Its own router hides the host: a second router in a home, or a virtual machine."""
    router = f"{case.name}r"
    ip(f"netns add {router}")
    case.after.append(f"ip netns del {router}")
    ip(f"-n {case.name} link set eth0 netns {router}")
    ip(f"-n {router} link set lo up")
    ip(f"-n {router} addr add {case.address}/24 dev eth0")
    ip(f"-n {router} link set eth0 up")
    ip(f"-n {router} link add inner type veth peer name eth0 netns {case.name}")
    ip(f"-n {router} addr add 192.168.77.1/24 dev inner")
    ip(f"-n {router} link set inner up")
    ip(f"-n {case.name} addr add 192.168.77.2/24 dev eth0")
    ip(f"-n {case.name} link set eth0 up")
    ip(f"-n {case.name} route add default via 192.168.77.1")
    run(f"ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1")
    run(f"ip netns exec {router} nft add table ip nat")
    run(f"ip netns exec {router} nft add chain ip nat out {{ type nat hook postrouting priority 100; }}")
    run(f"ip netns exec {router} nft add rule ip nat out oif eth0 masquerade")
    case.words += ["--join", case.member_address]


def blackhole_route(case):
    case.without_ipv6()
    ip(f"-n {case.name} route add blackhole {case.net.hosts[0]}/32")


def stale_neighbour(case):
    """Whoever had the member's address before is remembered."""
    case.without_ipv6()
    ip(f"-n {case.name} neigh replace {case.net.hosts[0]} lladdr 02:00:00:00:00:99 nud permanent dev eth0")


def dead_second_card(case):
    """Wi-Fi and a cable in one network; the cable's port in the switch is dead, and the system prefers it."""
    case.without_ipv6()
    ip(f"-n {case.net.switch} link add w{case.host} type veth peer name eth1 netns {case.name}")
    # In no bridge: nothing gets on. With IPv6, this end itself would ask for routers now and then.
    run(f"ip netns exec {case.net.switch} sysctl -qw net.ipv6.conf.w{case.host}.disable_ipv6=1")
    ip(f"-n {case.net.switch} link set w{case.host} up")
    ip(f"-n {case.name} addr add 10.213.0.{case.host + 120}/24 dev eth1 metric 10")
    ip(f"-n {case.name} link set eth1 up")
    ip(f"-n {case.name} route del 10.213.0.0/24 dev eth0")
    ip(f"-n {case.name} route add 10.213.0.0/24 dev eth0 metric 900")


def no_free_port(case):
    process = case.net.start(case.host, "-c", GREEDY)
    assert process.stdout.readline() == "ready\n"
    with_range = ["ip", "netns", "exec", case.name, "sysctl", "-qw", "net.ipv4.ip_local_port_range=61000 61003"]
    subprocess.run(with_range, check=True, timeout=COMMAND_S)


def reset_after_some_kb(case):
    """Security software that ends what it does not know once it has seen enough of it."""
    case.nft(
        f"input tcp sport {MEMBER_PORT} quota over 20 kbytes reject with tcp reset",
        f"output tcp dport {MEMBER_PORT} quota over 20 kbytes reject with tcp reset",
    )


def proxy_that_takes_all(case):
    case.without_ipv6()
    process = case.net.start(case.host, "-c", PROXY)
    assert process.stdout.readline() == "ready\n"
    run(f"ip netns exec {case.name} nft add table ip nat")
    run(f"ip netns exec {case.name} nft add chain ip nat out {{ type nat hook output priority -100; }}")
    run(f"ip netns exec {case.name} nft add rule ip nat out oif eth0 meta l4proto tcp redirect to :8080")


def multicast_mostly_lost(case):
    in_switch(case, case.host, "ip daddr 224.0.0.251 numgen random mod 100 < 70 drop")
    case.words += ["--join", case.member_address]


def same_hardware_address(case):
    case.without_ipv6()
    shown = ["ip", "-n", case.net.names[0], "-o", "link", "show", "eth0"]
    found = subprocess.run(shown, capture_output=True, text=True, check=True, timeout=COMMAND_S).stdout
    ip(f"-n {case.name} link set eth0 address {found.partition('link/ether ')[2].split()[0]}")


def split_mesh(case):
    """Those who trained a minute ago are beyond a switch that has lost its other half."""
    start_trainers(case, ann="lenet", bob="lenet")
    agent = case.member.agent
    assert product.until(lambda: "round 3, 2 contributors" in agent.told, 120.0), agent.told[-2000:]
    in_switch(case, 2, "drop")


# As in doctor_faults.py.
HOMES = {
    behind_nat: ("way", "fail", 4),
    blackhole_route: ("way", "fail", 4),
    stale_neighbour: ("address", "fail", 4),
    dead_second_card: ("way", "fail", 4),
    no_free_port: ("port", "fail", 4),
    reset_after_some_kb: ("path", "fail", 4),
    proxy_that_takes_all: ("way", "fail", 4),
    multicast_mostly_lost: ("multicast", "note", 0),
}
APART = {
    same_hardware_address: ("address", "fail", 4),
    split_mesh: ("member", "note", 0),
}
# What has to be said of each, in words.
WORDS = {
    behind_nat: ("NAT", "firewall"),
    blackhole_route: ("blackhole",),
    stale_neighbour: ("wrong hardware address",),
    dead_second_card: ("eth1", "nothing comes in"),
    no_free_port: ("no free port",),
    reset_after_some_kb: ("broken off",),
    proxy_that_takes_all: ("something between answers",),
    multicast_mostly_lost: ("much multicast is lost",),
    same_hardware_address: ("the same hardware address",),
    split_mesh: ("ann, bob", "switched off", "split"),
}
