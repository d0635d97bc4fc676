"""Vectors of a few values stand for large ones here, which nobody sends unasked; test_pushed.py is about small ones."""

from __future__ import annotations

import pytest

from mdl.peers.roles.agent import aggregation
from mdl.peers.roles.trainer import broadcast, round_state


@pytest.fixture(autouse=True)
def _large_models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.stem != "test_pushed":
        for module in (aggregation, broadcast, round_state):
            monkeypatch.setattr(module, "PUSHED_BYTES", 0)
