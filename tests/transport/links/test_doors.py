"""Admission to the doors of a node, and a bound on connections without a key.

The bound does not fall on those who have a key, and is cheap to keep.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest
import zmq
from zmq.utils import z85

from mdl.transport.discovery.directory import Address
from mdl.transport.limits import LogLimit
from mdl.transport.links import doors as doors_module
from mdl.transport.links.doors import (
    ALLOWED,
    LATER,
    LINKS,
    REFUSED,
    WAIT_S,
    ZAP_ADDRESS,
    Doorkeeper,
    HalfOpen,
    ZapGate,
    admit_devices,
    answer,
)
from mdl.transport.links.sockets import HANDSHAKE_MS, open_router
from mdl.transport.trust.keys import MeshKeys, new_join_code

ENEMY, FRIEND = ("192.0.2.66", "1"), ("192.0.2.7", "1")
HANDSHAKE_S = HANDSHAKE_MS / 1000
KEYS = MeshKeys.from_code(new_join_code("home", bytes([1]) * 19))
KEY = bytes(range(32))


def chosen(half_open, now):
    return [descriptor for descriptor, _ in half_open.excess(now)]


def test_as_many_as_a_node_can_bear_are_let_be():
    half_open = HalfOpen(3)
    for descriptor in (11, 12, 13):
        half_open.accept(descriptor, ENEMY, 0.0)
    assert half_open.excess(0.1) == []


def test_the_oldest_of_whoever_has_most_are_ended_first():
    half_open = HalfOpen(3)
    half_open.accept(5, FRIEND, 0.0)
    for descriptor in (11, 12, 13, 14):
        half_open.accept(descriptor, ENEMY, 0.1)
    assert half_open.excess(0.2) == [(11, ENEMY), (12, ENEMY)]
    assert half_open.excess(0.2) == []
    assert len(half_open) == 3


def test_who_has_said_something_or_is_gone_does_not_count():
    half_open = HalfOpen(2)
    for descriptor in (11, 12, 13, 14, 15):
        half_open.accept(descriptor, ENEMY, 0.0)
    for descriptor in (11, 13, 99):
        half_open.end(descriptor)
    assert chosen(half_open, 0.1) == [12]


def test_who_is_there_longer_than_a_handshake_may_take_has_a_key():
    half_open = HalfOpen(2)
    for descriptor in range(20, 22):
        half_open.accept(descriptor, FRIEND, 0.0)
    for descriptor in range(30, 34):
        half_open.accept(descriptor, FRIEND, HANDSHAKE_S)
    assert chosen(half_open, HANDSHAKE_S) == [30, 31]


def test_a_number_that_is_used_again_is_another_connection():
    half_open = HalfOpen(1)
    half_open.accept(11, ENEMY, 0.0)
    half_open.accept(12, ENEMY, 0.1)
    half_open.accept(11, FRIEND, 0.2)
    assert chosen(half_open, 0.3) == [12]


def test_of_many_hosts_none_is_ended_that_has_one_while_another_has_two():
    half_open = HalfOpen(10)
    for number in range(10):
        half_open.accept(number, (f"192.0.2.{number}", "1"), 0.0)
    half_open.accept(100, ("192.0.2.3", "2"), 1.0)
    assert chosen(half_open, 1.0) == [3]


def test_so_many_of_a_host_have_shown_a_key_and_the_oldest_are_taken_for_them():
    half_open = HalfOpen(2)
    half_open.accept(5, FRIEND, 0.0)
    for descriptor in (11, 12, 13, 14):
        half_open.accept(descriptor, ENEMY, 0.1)
    half_open.admit(ENEMY[0], 2)
    half_open.admit("192.0.2.99", 3)
    assert len(half_open) == 3
    assert half_open.excess(0.2) == [(13, ENEMY)]


class Door:
    """A ROUTER on loopback, its keeper, and whoever connects to it."""

    def __init__(self, most):
        self.context = zmq.Context()
        self.router = open_router(self.context, None, b"", Address("127.0.0.1", 0))
        self.keeper = Doorkeeper(self.context, self.router, most)
        self.bell = self.keeper.pollable()[0]
        self.clients = []

    def connect(self, count=1):
        """Until the keeper could know of each."""
        where = self.router.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://").split(":")
        for _ in range(count):
            self.clients.append(socket.create_connection((where[0], int(where[1])), timeout=10))
            self.clients[-1].recv(1)  # of a greeting: it was accepted before that

    def ended(self):
        """How many clients see the end of their connection: those that the keeper has ended."""
        count = 0
        for client in self.clients:
            client.settimeout(0.3)
            try:
                while said := client.recv(4096):
                    pass
                count += not said
            except TimeoutError:
                pass
        return count

    def close(self):
        for client in self.clients:
            client.close()
        self.context.destroy(linger=0)


@pytest.fixture
def door():
    door = Door(2)
    yield door
    door.close()


def test_a_keeper_rests_after_a_look_and_is_woken_by_nobody_meanwhile(door):
    assert door.keeper.deadline() is None
    door.connect()
    assert door.bell.poll(10_000)
    assert door.keeper.look(10.0) == 0
    until = door.keeper.deadline()
    assert 10.0 < until < 10.1
    assert door.keeper.pollable() == []
    door.connect(3)
    assert door.keeper.look(until - 0.001) == 0, "what comes meanwhile is looked at together"
    assert door.keeper.look(until) == 2
    assert door.ended() == 2
    while (now := door.keeper.deadline()) is not None:
        assert door.keeper.look(now) == 0
    assert door.keeper.pollable() == [door.bell]


def test_a_keeper_that_saw_many_looks_again_sooner(door):
    door.connect(40)
    assert door.keeper.look(10.0) == 38
    assert door.keeper.deadline() <= 10.01


def test_who_has_shown_a_key_is_not_ended(door):
    door.connect(4)
    door.keeper.admitted("127.0.0.1")
    door.keeper.admitted("127.0.0.1%lo")
    assert door.keeper.look(10.0) == 0


def request(mechanism: bytes, *credentials: bytes, number: int = 1) -> list[bytes]:
    return [b"1.0", str(number).encode(), LINKS, b"192.0.2.9", b"", mechanism, *credentials]


def test_a_cloud_lets_devices_in_by_keys_of_their_own_alone() -> None:
    admit = admit_devices(KEYS)
    member = request(b"CURVE", KEY)
    assert answer(member, admit)[:3] == [b"1.0", b"1", ALLOWED]
    strangers = [
        request(b"CURVE", z85.decode(KEYS.client_public)),  # which all holders of the code share
        request(b"NULL"),
        request(b"PLAIN", b"user", b"word"),
        [b"0.9", *member[1:]],
        [*member, b"more"],
        [],
        [b"1.0"],
    ]
    assert {answer(stranger, admit)[2] for stranger in strangers} == {REFUSED}


def test_only_who_is_let_in_is_known_by_its_key() -> None:
    for status, user in ((ALLOWED, KEY.hex().encode()), (LATER, b""), (REFUSED, b"")):
        assert answer(request(b"CURVE", KEY), lambda domain, key, status=status: status)[2:5:2] == [status, user]


class Asking:
    """libzmq, which asks who may come in."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.known: set[bytes] = set()
        self.let_in: list[tuple[bytes, str]] = []
        self.gate = ZapGate(self.context, self._admit, LogLimit(logging.getLogger("test")))
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(ZAP_ADDRESS)

    def _admit(self, domain: bytes, key: bytes) -> bytes:
        return REFUSED if key == bytes(32) else ALLOWED if key in self.known else LATER

    def ask(self, key: bytes, number: int = 1) -> None:
        self.socket.send_multipart([b"", *request(b"CURVE", key, number=number)])

    def serve(self, now: float) -> list[tuple[bytes, bytes]]:
        """(number, status) of each answer; inproc, so that all that was asked is there."""
        self.let_in += self.gate.serve(now)
        answers = []
        while self.socket.poll(0):
            frames = self.socket.recv_multipart()
            answers.append((frames[2], frames[3]))
        return answers


@pytest.fixture
def asking() -> Iterator[Asking]:
    asking = Asking()
    yield asking
    asking.context.destroy(linger=0)


def test_an_answer_waits_for_the_introduction_and_holds_up_nobody(asking: Asking) -> None:
    asking.ask(KEY, 1)
    asking.ask(bytes(32), 2)
    assert asking.serve(10.0) == [(b"2", REFUSED)]
    assert asking.gate.deadline() == 10.0 + WAIT_S
    assert asking.serve(11.0) == []
    assert asking.let_in == []
    asking.known.add(KEY)
    assert asking.serve(12.0) == [(b"1", ALLOWED)]
    assert asking.let_in == [(LINKS, "192.0.2.9")]
    assert asking.gate.deadline() is None


def test_who_is_not_introduced_in_time_may_come_again(asking: Asking) -> None:
    asking.ask(KEY)
    assert asking.serve(10.0) == []
    assert asking.serve(10.0 + WAIT_S) == [(b"1", LATER)]
    asking.known.add(KEY)
    asking.ask(KEY, 2)
    assert asking.serve(20.0) == [(b"2", ALLOWED)]


def test_so_many_wait_and_no_more(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors_module, "_MOST_WAITING", 3)
    for number in range(5):
        asking.ask(bytes([number + 1]) * 32, number)
    assert asking.serve(10.0) == [(b"3", LATER), (b"4", LATER)]
    assert len(asking.serve(10.0 + WAIT_S)) == 3
