"""Looking for members by unicast: which hosts, how many at a time, and only if nobody was found otherwise."""

import socket
import threading
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest

from mdl.transport.discovery import interfaces as scan_module
from mdl.transport.discovery.directory import FIRST_GREETING_S, TRIED_S, Address, Greetings
from mdl.transport.discovery.interfaces import MOST_FOUND, MOST_HOSTS, Scan, hosts_near


def test_all_other_hosts_of_a_homes_network_are_near():
    hosts = hosts_near([IPv4Interface("192.168.1.7/24")])
    assert len(hosts) == 253
    assert "192.168.1.7" not in hosts
    assert {"192.168.1.1", "192.168.1.254"} <= set(hosts)


def test_of_a_large_network_only_the_part_around_this_device_is_near():
    hosts = hosts_near([IPv4Interface("10.20.30.40/8")])
    assert len(hosts) == MOST_HOSTS - 1
    assert all(IPv4Address(host) in IPv4Network("10.20.28.0/22") for host in hosts)


def test_several_networks_share_the_bound():
    assert len(hosts_near([IPv4Interface("10.1.0.1/16"), IPv4Interface("10.2.0.1/16")])) == MOST_HOSTS


def test_this_machine_alone_has_nobody_near():
    assert hosts_near([IPv4Interface("127.0.0.1/8"), IPv4Interface("10.0.0.1/32")]) == []


def test_a_network_of_public_addresses_is_never_looked_at():
    for text in ("192.0.2.2/24", "198.51.100.7/28", "100.64.0.3/24", "8.8.8.8/24"):
        assert hosts_near([IPv4Interface(text)]) == [], text


@pytest.fixture
def listener():
    """A program at a port of 127.1.0.3, in a network of six hosts that this machine answers for."""
    with socket.create_server(("127.1.0.3", 0)) as found:
        yield found


NEAR = IPv4Interface("127.1.0.1/29")


@pytest.fixture(autouse=True)
def _this_machine_is_private(monkeypatch):
    """There is no other network in a test."""
    monkeypatch.setattr(scan_module, "_PRIVATE", (*scan_module._PRIVATE, NEAR.network))


def test_who_has_the_port_open_is_found_once(listener):
    there, done = [], threading.Event()

    def found(addresses):
        there.extend(addresses)
        done.set()

    port = listener.getsockname()[1]
    scan = Scan([NEAR], lambda: True, found, port, wait_s=0.0)
    assert done.wait(10.0)
    scan.close()
    assert there == [Address("127.1.0.3", port)]


def test_nobody_is_looked_for_when_somebody_was_found(listener):
    asked = threading.Event()
    scan = Scan([NEAR], lambda: asked.set(), pytest.fail, listener.getsockname()[1], wait_s=0.0)
    assert asked.wait(10.0)
    scan.close()
    listener.settimeout(0.1)
    with pytest.raises(TimeoutError):
        listener.accept()


def test_who_does_not_answer_is_greeted_no_more():
    there = [Address(f"10.0.0.{number}", 7300) for number in range(1, MOST_FOUND)]
    greetings = Greetings([], 0.0)
    greetings.try_some(there, 0.0)
    assert greetings.due(0.0) == there
    greetings.answered(there[0], 1.0)
    assert greetings.over(TRIED_S - 0.1) == []
    assert greetings.over(TRIED_S) == there[1:]
    assert greetings.due(100.0) == there[:1]


def test_an_address_that_the_user_gave_is_greeted_for_ever():
    given = Address("10.0.0.1", 7300)
    greetings = Greetings([given], 0.0)
    greetings.try_some([given], 0.0)
    assert greetings.over(10 * TRIED_S) == []
    assert greetings.due(FIRST_GREETING_S) == [given]
