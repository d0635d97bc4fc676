"""Where a machine meets its links: what ends if they cannot begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mdl.config import MeshSection
from mdl.errors import ConfigError
from peers.edge import node
from transport.trust.keys import Mesh


def test_a_node_that_cannot_look_for_others_closes_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> None:
        raise ConfigError("multicast is blocked")

    monkeypatch.setattr(node, "Discovery", refuse)
    closed: list[bool] = []
    links = SimpleNamespace(me=None, introducer=SimpleNamespace(announced=None))
    runtime: Any = SimpleNamespace(links=links, close=lambda: closed.append(True))
    with pytest.raises(ConfigError, match="multicast"):
        node.drive(runtime, Mesh("home", None), MeshSection())
    assert closed == [True]
