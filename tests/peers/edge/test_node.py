"""Where a machine meets its links: what ends if they cannot begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mdl.config import Config, MeshSection, RoundSection
from mdl.errors import ConfigError
from mdl.peers.edge import node
from mdl.protocol.machine import Finish, SaveModel, StopRequested
from mdl.transport.trust.keys import Mesh


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


def test_a_device_says_what_it_weighs() -> None:
    assert node.tell_weight(Config(), 1.0) == "it weighs 1, as every device does (round.theta)"
    by_windows = Config(round=RoundSection(theta="samples"))
    assert node.tell_weight(by_windows, 2340.0) == "it weighs 2,340, its windows (round.theta)"


def test_a_round_s_energy_ends_with_the_round() -> None:
    closed: list[bool] = []
    standing = SimpleNamespace(note_worked=lambda *_: None)
    seen: Any = SimpleNamespace(
        runtime=SimpleNamespace(links=SimpleNamespace(standing=standing)),
        machine=SimpleNamespace(agent=None),
        _sampler=SimpleNamespace(close_round=lambda: closed.append(True)),
        _observe_too=None,
    )
    node._Node._observe(seen, 1.0, StopRequested(), [Finish()])
    assert closed == []
    node._Node._observe(seen, 2.0, StopRequested(), [SaveModel(1, np.zeros(1, np.float32), b"")])
    assert closed == [True]
