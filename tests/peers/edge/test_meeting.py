"""Where a node listens: the port that firewalls let in is for those that train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mdl.config import MeshSection
from mdl.errors import ConfigError
from mdl.peers.edge import node as meeting
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.interfaces import DEFAULT_PORT
from mdl.transport.trust.keys import Mesh

MESH: Any = SimpleNamespace(name="home", keys=None)


@pytest.mark.parametrize(
    ("role", "port", "taken", "tried"),
    [
        (Role.TRAINER, 0, False, [DEFAULT_PORT]),
        (Role.TRAINER, 0, True, [DEFAULT_PORT, 0]),
        (Role.TRAINER, 9000, False, [9000]),
        (Role.OBSERVER, 0, False, [0]),
        (Role.OBSERVER, 5751, False, [5751]),
    ],
)
def test_who_only_looks_leaves_the_documented_port_to_a_peer(
    monkeypatch: pytest.MonkeyPatch, role: Role, port: int, taken: bool, tried: list[int]
) -> None:
    ports: list[int] = []

    def listen(info: PeerInfo, *_: object, **__: object) -> None:
        ports.append(info.port)
        if taken and info.port == DEFAULT_PORT:
            raise ConfigError("port 7300 is taken")

    monkeypatch.setattr(meeting, "Links", listen)
    mesh: Mesh = MESH
    meeting.open_links(PeerInfo("a", 1, role, "", port), mesh, MeshSection(), 0)
    assert ports == tried
