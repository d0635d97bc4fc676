"""Who is let in, who waits for its introduction, and who is turned away."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import zmq
from zmq.utils import z85

from mdl.transport.links import gate as gate_module
from mdl.transport.links.gate import ALLOWED, LATER, LINKS, REFUSED, WAIT_S, ZAP_ADDRESS, Gate, admit_devices, answer
from mdl.transport.loglimit import LogLimit
from mdl.transport.trust.keys import MeshKeys, new_join_code

KEYS = MeshKeys.from_code(new_join_code("home", bytes([1]) * 19))
KEY = bytes(range(32))


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
        self.gate = Gate(self.context, self._admit, LogLimit(logging.getLogger("test")))
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
    monkeypatch.setattr(gate_module, "_MOST_WAITING", 3)
    for number in range(5):
        asking.ask(bytes([number + 1]) * 32, number)
    assert asking.serve(10.0) == [(b"3", LATER), (b"4", LATER)]
    assert len(asking.serve(10.0 + WAIT_S)) == 3
