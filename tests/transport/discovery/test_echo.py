"""What this machine answers itself: echo requests, full segments, and nobody else with its address."""

from __future__ import annotations

import select
import socket
import threading

import pytest

from transport.discovery.arp import who_else_has
from transport.discovery.directory import Address
from transport.discovery.echo import echo, measure_speed
from transport.discovery.full_segments import are_taken

WAIT_S = 5.0


def test_echo_requests_come_back_from_this_machine_or_are_not_allowed() -> None:
    found = echo("127.0.0.1", 576, 3, WAIT_S)
    assert found is None or (len(found.round_trips_s), found.loss) == (3, 0.0)


def test_what_nobody_answers_is_lost_in_the_time_that_was_given() -> None:
    found = echo("127.255.255.255", 64, 2, 0.05)
    assert found is None or found.round_trips_s == ()


def test_this_machine_is_faster_than_a_slow_link() -> None:
    speed = measure_speed("127.0.0.1", 1_500)
    assert speed is None or speed > 1e6


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
