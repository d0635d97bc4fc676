"""Machines and networks that are in order, each in another way: `mdl doctor` is to find nothing in the way there."""

from tests.integration.doctor_case import MEMBER_PORT, UNPRIVILEGED, on_tmpfs
from tests.integration.lan import ip

# Shares UDP port 5353 with everybody, as avahi does.
SHARER = """
import socket, sys
shared = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
shared.bind(("0.0.0.0", 5353))
print("ready", flush=True)
sys.stdin.read()
"""


def add_network(case, name, address):
    """A second switch with nobody on it."""
    ip(f"-n {case.name} link add {name} type bridge")
    ip(f"-n {case.name} link add {name}p type veth peer name {name}q")
    ip(f"-n {case.name} link set {name}p master {name}")
    for each in (f"{name}p", f"{name}q", name):
        ip(f"-n {case.name} link set {each} up")
    ip(f"-n {case.name} addr add {address} dev {name}")


def plain(case):
    pass


def unprivileged(case):
    case.rights = UNPRIVILEGED


def unprivileged_that_may_ping(case):
    case.rights = UNPRIVILEGED
    case.net.sysctl(case.host, "net.ipv4.ping_group_range=0")


def default_route(case):
    ip(f"-n {case.name} route add default via {case.net.hosts[0]}")


def second_network(case):
    add_network(case, "eth1", f"192.168.{case.host}.5/24")


def docker_bridge(case):
    add_network(case, "docker0", "172.17.0.1/16")


def docker_bridge_without_containers(case):
    ip(f"-n {case.name} link add docker0 type bridge")
    ip(f"-n {case.name} link set docker0 up")
    ip(f"-n {case.name} addr add 172.17.0.1/16 dev docker0")


def vpn_beside(case):
    case.open_tunnel()


def vpn_has_the_default_route(case):
    case.open_tunnel()
    ip(f"-n {case.name} route add default dev tun0")


def no_ipv6(case):
    case.without_ipv6()


def ipv6_alone(case):
    ip(f"-n {case.name} -4 addr flush dev eth0")


def global_ipv6(case):
    ip(f"-n {case.name} addr add 2001:db8::{case.host + 1}/64 dev eth0 nodad")


def second_address(case):
    ip(f"-n {case.name} addr add 192.168.66.{case.host}/24 dev eth0")


def avahi_beside(case):
    assert case.net.start(case.host, "-c", SHARER).stdout.readline() == "ready\n"


def ping_blocked(case):
    case.nft("input icmp type { echo-request, echo-reply } drop")


def firewall_with_its_ports_open(case):
    case.words += ["--port", MEMBER_PORT]
    case.nft(
        "input iif lo accept",
        "input ct state established accept",
        f"input tcp dport {{ {MEMBER_PORT}, {MEMBER_PORT + 1} }} accept",
        f"input udp dport {{ 5353, {MEMBER_PORT} }} accept",
        "input ip protocol icmp accept",
        "input drop",
    )


def small_mtu(case):
    """As over PPPoE, and told by the interface."""
    ip(f"-n {case.name} link set eth0 mtu 1400")


def slow_but_usable(case):
    case.net.limit(case.host, 8)


def small_disk(case):
    on_tmpfs(case, "size=60m")


def some_descriptors(case):
    case.variables["DOCTOR_NOFILE"] = "256"


def asked_for_by_address(case):
    case.words += ["--peer", case.member_address, "--interface", "eth0"]


def another_mesh_on_the_lan(case):
    from tests.integration import product

    home = product.Home(case.folder / "neighbour", case.folder / "cache", ("ip", "netns", "exec", case.name))
    case.homes.append(home)
    assert home.run("mesh", "new", "garden").code == 0
    agent = home.start("agent", "--mesh", "garden", "--out", home.folder / "run")
    assert product.until(lambda: "is the agent now" in agent.told), agent.told


def runs_here_already(case):
    """`mdl agent` of this very mesh, on this machine and with its settings."""
    from tests.integration import product

    home = product.Home(case.folder, case.folder / "cache", ("ip", "netns", "exec", case.name))
    case.homes.append(home)
    agent = home.start("agent", "--code", case.code, "--name", f"host-{case.host}", "--out", case.folder / "run")
    assert product.until(lambda: "leads now" in agent.told), agent.told


HEALTHY = (
    *(plain, unprivileged, unprivileged_that_may_ping, default_route, second_network, docker_bridge),
    *(docker_bridge_without_containers, vpn_beside, vpn_has_the_default_route, no_ipv6, ipv6_alone, global_ipv6),
    *(second_address, avahi_beside, ping_blocked, firewall_with_its_ports_open, small_mtu, slow_but_usable),
    *(small_disk, some_descriptors, asked_for_by_address, another_mesh_on_the_lan, runs_here_already),
)
