"""Where a connection ends: nobody there, somebody else, another mesh's member, one of ours."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator

import pytest
import zmq

from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import Address
from mdl.transport.limits import LogLimit
from mdl.transport.links.doors import ALLOWED, LINKS, REFUSED, ZapGate
from mdl.transport.links.mesh_links import Links
from mdl.transport.links.probe import ProbeStage, probe, probe_link
from mdl.transport.links.sockets import Curve, new_context, open_router
from mdl.transport.trust.keys import DeviceKey, Mesh, MeshKeys, new_join_code

WAIT_S = 5.0


@pytest.fixture(scope="module")
def keys() -> list[MeshKeys]:
    found = [Mesh.from_code(new_join_code(name)).keys for name in ("ours", "theirs")]
    assert all(found)
    return [each for each in found if each]


@pytest.fixture
def member(keys: list[MeshKeys]) -> Iterator[Address]:
    """A node of our mesh that answers, in a thread of its own."""
    info, ended = PeerInfo("member", 1, Role.TRAINER, "", 0), threading.Event()
    with Links(info, keys[0], max_values=1, now=0.0, listen_host="127.0.0.1") as links:

        def answer() -> None:
            poller = zmq.Poller()
            for door in links.pollable():
                poller.register(door, zmq.POLLIN)
            while not ended.is_set():
                poller.poll(20)
                links.receive(0.0)

        thread = threading.Thread(target=answer)
        thread.start()
        yield Address("127.0.0.1", links.me.port)
        ended.set()
        thread.join()


def test_a_member_is_told_from_a_stranger_by_its_keys(member: Address, keys: list[MeshKeys]) -> None:
    assert probe(member, keys[0], WAIT_S) is ProbeStage.MEMBER
    assert probe(member, keys[1], WAIT_S) is ProbeStage.OTHER_KEYS


def test_nobody_and_another_program_are_told_apart(keys: list[MeshKeys]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", other.getsockname()[1])
        assert probe(address, keys[0], WAIT_S) is ProbeStage.REFUSED
        other.listen()
        assert probe(address, keys[0], 0.3) is ProbeStage.NOT_MDL


def test_where_words_are_taken_only_known_devices_are_let_in(
    keys: list[MeshKeys], caplog: pytest.LogCaptureFixture
) -> None:
    context, ended = new_context(4), threading.Event()
    member, known, unknown, planted = (DeviceKey.of(bytes([at]) * 32) for at in range(4))

    def admit(domain: bytes, key: bytes) -> bytes:
        if key == planted.link_key:
            raise ZeroDivisionError("planted")
        return ALLOWED if key == known.link_key else REFUSED

    gate = ZapGate(context, admit, LogLimit(logging.getLogger()))
    router = open_router(context, member.curve_secret, LINKS, Address("127.0.0.1", 0))
    at = Address("127.0.0.1", int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]))

    def serve() -> None:
        while not ended.is_set():
            gate.socket.poll(20)
            gate.serve(0.0)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for device, expected in ((unknown, False), (planted, False), (known, True)):
            curve = Curve(member.curve_public, device.curve_public, device.curve_secret)
            assert probe_link(at, curve, 1.0 if not expected else WAIT_S) is expected
    finally:
        ended.set()
        thread.join()
        context.destroy(linger=0)
    assert "a handshake met a bug here, and is refused" in caplog.text
