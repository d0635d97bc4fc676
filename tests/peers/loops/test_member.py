"""A member of a loop counts its energy round by round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from mdl.peers.loops import Member
from mdl.protocol.machine import Finish, SaveModel, StopRequested


def test_a_round_s_energy_ends_with_the_round() -> None:
    closed: list[bool] = []
    seen: Any = SimpleNamespace(
        _saying=SimpleNamespace(quiet=True),
        _lines=SimpleNamespace(look=lambda *_: None),
        _sampler=SimpleNamespace(close_round=lambda: closed.append(True)),
        _machine=SimpleNamespace(round_id=1, goal=0, part=None),
        _leaving=SimpleNamespace(why=lambda *_: ""),
    )
    Member._observe(seen, 1.0, StopRequested(), [Finish()])
    assert closed == []
    Member._observe(seen, 2.0, StopRequested(), [SaveModel(1, np.zeros(1, np.float32), b"")])
    assert closed == [True]
