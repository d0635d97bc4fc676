"""Where a connection ends: nobody there, somebody else, another mesh's member, one of ours."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import zmq

from mdl.protocol.vocabulary import PeerInfo, Role
from transport.discovery.directory import Address
from transport.discovery.echo import echo
from transport.links.mesh_links import Links
from transport.links.probe import Reached, probe
from transport.trust.keys import Mesh, MeshKeys, new_join_code

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
    assert probe(member, keys[0], WAIT_S) is Reached.MEMBER
    assert probe(member, keys[1], WAIT_S) is Reached.OTHER_KEYS


def test_nobody_and_another_program_are_told_apart(keys: list[MeshKeys]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", other.getsockname()[1])
        assert probe(address, keys[0], WAIT_S) is Reached.REFUSED
        other.listen()
        assert probe(address, keys[0], 0.3) is Reached.NOT_MDL


def test_echo_requests_come_back_from_this_machine_or_are_not_allowed() -> None:
    found = echo("127.0.0.1", 576, 3, WAIT_S)
    assert found is None or (len(found.round_trips_s), found.loss) == (3, 0.0)
