"""A loop of one's own joins a run of a mesh, as `--run` does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mdl.peers import api
from mdl.transport.trust.keys import Mesh, new_join_code

CODE = new_join_code("home", bytes(range(19)))


@pytest.mark.parametrize(
    ("mesh", "run", "joined"),
    [("home", "", "home"), ("home", "gait", "home/gait"), ("home/gait", "", "home/gait"), (None, "gait", "home/gait")],
)
def test_a_run_is_joined_by_its_name(monkeypatch: pytest.MonkeyPatch, mesh: str | None, run: str, joined: str) -> None:
    def find(name: str | None, code: str | None) -> str:
        assert name == (mesh and "home")
        return CODE

    seen: list[Mesh] = []
    monkeypatch.setattr(api, "find_code", find)
    monkeypatch.setattr(api, "Member", lambda mesh, *rest: seen.append(mesh))
    model: Any = torch.nn.Linear(2, 2)
    api.join(mesh, model=model, run=run)
    assert [each.shown for each in seen] == [joined]
