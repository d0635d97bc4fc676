"""Devices that have link-local addresses of IPv6 and nothing else, by themselves and among others."""

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.integration import lan
from tests.integration.test_bad_links import MOST_S, START_S, VALUES
from tests.integration.test_lan import HOME
from tests.integration.test_lan import Node as Greeter
from tests.integration.test_lan_moves import BACK_S, PATIENCE_S, Node

HERE = Path(__file__).parent
REASON = lan.why_not()
pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(240),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
# An address is tried for a second or two before it may be used (RFC 4862, 5.4).
READY_S = 10.0


def address_of(net, host, link="eth0"):
    """A host's link-local address on this link, as soon as it may be used."""
    give_up_at, pause = time.monotonic() + READY_S, threading.Event()
    while time.monotonic() < give_up_at:
        command = ["ip", "-n", net.names[host], "-j", "-6", "addr", "show", "dev", link]
        told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=10).stdout)
        found = [each for each in told[0]["addr_info"] if not each.get("tentative")]
        if found:
            return found[0]["local"]
        pause.wait(0.1)
    raise AssertionError(f"host {host} has no IPv6 address on {link}")


def datagrams_of(net, host):
    """Sent by IPv6."""
    command = ["ip", "netns", "exec", net.names[host], "cat", "/proc/net/snmp6"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    return int(dict(line.split() for line in told.splitlines())["Udp6OutDatagrams"])


@pytest.mark.parametrize("ipv4", [(False, False, False), (True, False, True)], ids=["alone", "beside IPv4"])
def test_devices_without_ipv4_find_the_others_by_mdns_and_train(tmp_path, ipv4):
    with lan.Lan(3, ipv4=ipv4) as net:
        nodes = [Node(net, host, HOME, tmp_path, "--set", "round.min_peers=3") for host in range(3)]
        assert all(node.wait_for(3, 3, 0.0) for node in nodes), [node.errors.read_text() for node in nodes]


def test_a_host_whose_lease_runs_out_goes_on_by_ipv6(tmp_path):
    with lan.Lan(3) as net:
        nodes = [Node(net, host, HOME, tmp_path, "--set", "round.min_peers=3") for host in range(3)]
        assert all(node.wait_for(3, 3, 0.0) for node in nodes)
        lan.ip(f"-n {net.names[1]} addr del {net.hosts[1]}/24 dev eth0")
        moved = time.monotonic()
        assert all(node.wait_for(5, 3, moved, BACK_S) for node in nodes), [node.errors.read_text() for node in nodes]


def test_without_multicast_an_address_with_its_link_is_enough_and_long_ways_have_datagrams(tmp_path):
    with lan.Lan(3, mbit=40, ipv4=(False,) * 3, delay_s=0.3, deaf=True) as net:
        join = f"mesh.join={json.dumps([f'[{address_of(net, 0)}%eth0]:5750'])}"
        ports = (["mesh.port=5750"], [join], [join])
        nodes = [
            Node(net, host, HOME, tmp_path, "--values", VALUES, "--set", "round.min_peers=3", *ports[host])
            for host in range(3)
        ]
        assert all(node.wait_for(2, 3, 0.0, START_S) for node in nodes), [node.errors.read_text() for node in nodes]
        began, before = time.monotonic(), datagrams_of(net, 1)
        assert nodes[1].wait_for(3, 3, began, 3 * MOST_S)
        # A round has two vectors of 400 KB and more from a device to the others: 340 packets each.
        assert datagrams_of(net, 1) - before > 600


def test_a_device_on_two_links_dials_each_neighbour_where_it_is():
    with lan.Lan(3, ipv4=(False,) * 3) as net:
        for host in (1, 2):  # the third one has a cable to the second one, and no other
            lan.ip(f"-n {net.names[host]} link set eth0 {'down' if host == 2 else 'up'}")
        lan.ip(f"-n {net.names[1]} link add eth1 type veth peer name eth1 netns {net.names[2]}")
        for host in (1, 2):
            lan.ip(f"-n {net.names[host]} link set eth1 multicast on up")
        for host, link in ((0, "eth0"), (1, "eth0"), (1, "eth1"), (2, "eth1")):
            address_of(net, host, link)
        first, second, third = (Greeter(net, host, HOME, name) for host, name in enumerate("abc"))
        for node, other in ((second, "a"), (first, "b"), (second, "c"), (third, "b")):
            assert node.wait_for(PATIENCE_S, heard=other)
