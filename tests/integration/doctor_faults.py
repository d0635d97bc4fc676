"""What people's machines and networks do to a mesh, one fault each, for `mdl doctor` to name.

Each has a host of its own on one LAN (lan.py), on whose host 0 a member runs at port 5750; a fault concerns its own
host and the way to the member, so that all can be there at once.
"""

import os

from tests.integration.doctor_case import MEMBER_PORT, TAKEN_PORT, on_tmpfs
from tests.integration.lan import ip, run

# A program of another version of mdl: everything of this one, but for the number.
OLD_PEER = """
import sys
import time
import mdl.protocol.messages as messages
messages.PROTOCOL_VERSION -= 1
from mdl.__main__ import main
sys.argv = ["mdl", *sys.argv[1:]]
main()
"""


def no_network(case):
    ip(f"-n {case.name} link set eth0 down")


def only_containers(case):
    ip(f"-n {case.name} link set eth0 down")
    ip(f"-n {case.name} link set eth0 name docker0")
    ip(f"-n {case.name} addr flush dev docker0")
    ip(f"-n {case.name} addr add 172.17.0.1/16 dev docker0")
    ip(f"-n {case.name} link set docker0 up")


def unknown_interface(case):
    case.words += ["--interface", "wlan7"]


def multicast_out_blocked(case):
    case.nft("output ip daddr 224.0.0.251 drop")


def multicast_in_blocked(case):
    case.nft("input udp dport 5353 drop")


def mdns_port_taken(case):
    case.hold("udp", 5353)


def member_drops(case):
    case.nft(f"input ip saddr {case.address} tcp flags syn drop", host=0)


def member_rejects(case):
    case.nft(f"input ip saddr {case.address} tcp flags syn reject with tcp reset", host=0)


def answers_blocked(case):
    case.nft("input tcp flags & (syn | ack) == syn drop")


def out_blocked(case):
    case.nft(f"output tcp dport {MEMBER_PORT} reject")


def other_code(case):
    from mdl.transport.trust.keys import new_join_code

    case.code = new_join_code(case.code.partition(":")[0])


def mistyped_code(case):
    case.code = case.code[:-1] + ("2" if case.code[-1] != "2" else "3")


def no_code(case):
    case.code = ""


def other_version(case):
    """The one that is examined is the older one."""
    case.before += ["-c", OLD_PEER]


def port_taken(case):
    case.hold("tcp", TAKEN_PORT)
    case.words += ["--port", TAKEN_PORT]


def other_program(case):
    case.hold("tcp", TAKEN_PORT)
    case.words += ["--peer", f"{case.address}:{TAKEN_PORT}"]


def black_hole(case):
    ip(f"-n {case.net.switch} link set v{case.host} mtu 1300")


def few_descriptors(case):
    case.variables["DOCTOR_NOFILE"] = "60"


def full_disk(case):
    (on_tmpfs(case, "size=1m") / "full").write_bytes(os.urandom(1_000_000))


def broken_torch(case):
    """A wheel with instructions that this processor lacks."""
    fake = case.folder / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("import os\nos.kill(os.getpid(), 4)\n")
    case.variables["PYTHONPATH"] = str(fake.parent)


def other_subnet(case):
    case.without_ipv6()
    ip(f"-n {case.name} addr flush dev eth0")
    ip(f"-n {case.name} addr add 10.99.{case.host}.5/24 dev eth0")
    ip(f"-n {case.name} route replace 224.0.0.0/4 dev eth0")


def guest_network(case):
    """Clients of the Wi-Fi cannot reach each other: not even ARP gets through."""
    run(f"bridge -n {case.net.switch} link set dev v0 isolated on")
    run(f"bridge -n {case.net.switch} link set dev v{case.host} isolated on")
    case.words += ["--peer", case.member_address]


def multicast_lost_in_switch(case):
    chain = f"{{ type filter hook ingress device v{case.host} priority 0; }}"
    run(f"ip netns exec {case.net.switch} nft add table netdev mdl{case.host}")
    run(f"ip netns exec {case.net.switch} nft add chain netdev mdl{case.host} in {chain}")
    run(f"ip netns exec {case.net.switch} nft add rule netdev mdl{case.host} in ip daddr 224.0.0.251 drop")
    run(f"bridge -n {case.net.switch} link set dev v{case.host} mcast_flood off")
    case.words += ["--join", case.member_address]


# The fault -> which check names it, how bad that is, and the exit code.
FAULTS = {
    no_network: ("interfaces", "fail", 4),
    only_containers: ("interfaces", "fail", 4),
    unknown_interface: ("interfaces", "fail", 4),
    multicast_out_blocked: ("multicast", "fail", 4),
    multicast_in_blocked: ("multicast", "fail", 4),
    mdns_port_taken: ("multicast", "fail", 4),
    member_drops: ("port", "fail", 4),
    member_rejects: ("port", "fail", 4),
    answers_blocked: ("port", "fail", 4),
    out_blocked: ("port", "fail", 4),
    other_code: ("code", "fail", 4),
    mistyped_code: ("code", "fail", 4),
    no_code: ("code", "fail", 4),
    other_version: ("version", "fail", 4),
    port_taken: ("port", "fail", 4),
    other_program: ("port", "fail", 4),
    black_hole: ("mtu", "fail", 4),
    few_descriptors: ("descriptors", "fail", 4),
    full_disk: ("disk", "fail", 4),
    broken_torch: ("torch", "fail", 4),
    other_subnet: ("way", "fail", 4),
    multicast_lost_in_switch: ("multicast", "note", 0),
}
# It takes the member's own way to all others, too: on a LAN of its own.
ALONE = {guest_network: ("way", "fail", 4)}
