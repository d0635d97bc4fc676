"""The line with which `mdl peer` ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.peers.cli.main import _tell
from mdl.peers.edge.node import Ended


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (Ended("", 0, 0, 0), "no round was finished, nothing is saved"),
        (Ended("", 0, 9, 0), "the model of round 9 is in out/global.safetensors"),
        (
            Ended("", 0, 9, 0, best_round=7),
            "the model of round 9 is in out/global.safetensors, the best one, of round 7, in best.safetensors",
        ),
        (
            Ended("", 0, 9, 0, best_round=2, missed_best=7),
            "the model of round 9 is in out/global.safetensors; "
            "the best one, of round 7, is on devices that were there",
        ),
    ],
)
def test_it_says_where_the_last_model_and_the_best_are(ended: Ended, line: str) -> None:
    assert _tell(ended, Path("out")) == line
