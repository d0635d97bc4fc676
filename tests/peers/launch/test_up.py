"""When `mdl up` takes a run for over: what its processes tell by their ends."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mdl.peers.launch import up


@dataclass
class Process:
    """code: the exit code, None while it runs."""

    code: int | None

    def poll(self) -> int | None:
        return self.code


@pytest.mark.parametrize(
    ("agent", "rounds", "is_alone", "waits_for_agent"),
    [
        (None, 0, False, True),
        (None, 3, False, True),
        (None, 3, True, False),  # it was succeeded, stands by, and has not heard that the mesh ended
        (None, 0, True, True),
        (4, 3, False, False),
        (0, 3, False, True),
    ],
)
def test_whose_end_is_the_end_of_a_run(agent: int | None, rounds: int, is_alone: bool, waits_for_agent: bool) -> None:
    running = [SimpleNamespace(process=Process(code)) for code in (agent, 0, 0)]
    children, reader = SimpleNamespace(running=running), SimpleNamespace(rounds=[1] * rounds)
    found = up._waited_for(cast(Any, children), cast(Any, reader), is_alone)
    assert found == (running[:1] if waits_for_agent else running[1:])
