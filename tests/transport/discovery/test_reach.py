"""What this machine answers itself: echo requests, full segments, and nobody else with its address."""

from __future__ import annotations

import select
import socket
import threading

import pytest

from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.interfaces import who_else_has
from mdl.transport.links.probe import are_taken, echo, measure_speed

WAIT_S = 5.0


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as found:
            found.connect(("::1", 9))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6"))]
)
def test_echo_requests_come_back_from_this_machine_or_are_not_allowed(host: str) -> None:
    found = echo(host, 1_280, 3, WAIT_S)
    assert found is None or (len(found.round_trips_s), found.loss) == (3, 0.0)
    speed = measure_speed(host, 1_280)
    assert speed is None or speed > 1e6


def test_packets_that_are_longer_than_the_link_are_not_sent_in_parts() -> None:
    found = echo("127.0.0.1", 65_537, 1, WAIT_S)
    assert found is None or (found.too_long, found.round_trips_s) == (True, ())


def test_what_nobody_answers_is_lost_in_the_time_that_was_given() -> None:
    found = echo("127.255.255.255", 64, 2, 0.05)
    assert found is None or found.round_trips_s == ()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="what TCP knows of a connection is told by Linux alone")
def test_full_segments_are_acknowledged_whatever_becomes_of_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])

        def close_what_comes() -> None:
            if select.select([server], [], [], WAIT_S)[0]:
                server.accept()[0].close()

        assert are_taken(address, WAIT_S) is True, "the system takes them before a program does"
        thread = threading.Thread(target=close_what_comes)
        thread.start()
        assert are_taken(address, WAIT_S) in (True, None)
        thread.join()
    assert are_taken(address, WAIT_S) is None


def test_nobody_else_has_the_loopback_address() -> None:
    assert who_else_has("127.0.0.1", "lo", 0.05) is None
    assert who_else_has("10.0.0.1", "no-such-interface", 0.05) is None
