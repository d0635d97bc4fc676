"""What a mesh that learns numbers or labels tells Prometheus."""

from __future__ import annotations

import pytest

from mdl.peers.view.snapshot import FitPart, LabellingPart, LearningPart, MeshPart, RoundPoint, Snapshot, take_snapshot
from tests.peers.view.test_snapshot import TOLD

pytest.importorskip("prometheus_client")


def told(point: RoundPoint, names: tuple[str, ...]) -> list[str]:
    from msgspec.structs import replace

    from mdl.peers.web.prometheus import make_metrics

    now: Snapshot = replace(take_snapshot(TOLD), learning=LearningPart({"1": point}, classes=names))
    assert isinstance(now.mesh, MeshPart)
    return [line for line in make_metrics(lambda: now)().decode().split("\n") if line.startswith("mdl_round_")]


def test_numbers_are_told_one_by_one_by_their_names() -> None:
    lines = told(
        RoundPoint(0.1, None, None, 2, 8, {}, fits=(FitPart(5.5, 4.0, 0.75), FitPart(1.0, 0.5, None))), ("a", "b")
    )
    assert 'mdl_round_rmse{number="a"} 5.5' in lines
    assert 'mdl_round_mae{number="b"} 0.5' in lines
    assert [line for line in lines if "_r2" in line] == ['mdl_round_r2{number="a"} 0.75']
    assert not any("accuracy" in line or "f1" in line for line in lines)


def test_labels_are_told_by_both_kinds_of_f1() -> None:
    lines = told(RoundPoint(0.1, None, 0.7, 2, 8, {}, labelling=LabellingPart(0.8, 0.5)), ())
    assert {"mdl_round_micro_f1_ratio 0.8", "mdl_round_macro_f1_ratio 0.7"} <= set(lines)
