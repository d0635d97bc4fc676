"""Ten pairs of devices that differ in one thing: each is converted, refused or named before the first merge.

The table in docs/data-mismatch.md is of these pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from mdl.config import Config, DataSection, ModelSection, RoundSection
from mdl.errors import ConfigError
from mdl.peers.edge.device import Device
from mdl.peers.edge.node import tell_weight
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import LocalDeltaReady, Received, TrainLocally
from mdl.protocol.round_messages import MemberRefused, RoundOpened
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from tests.peers.roles.desk import A, B, Desk

G_MS2 = 9.80665
Samples = NDArray[np.float64]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def samples(seed: int, count: int = 800) -> Samples:
    """Return (count, 3) accelerations in m/s2 of a phone that is carried upright."""
    rng = np.random.default_rng(seed)
    return np.array([1.0, 9.0, 3.0]) + rng.normal(size=(count, 3)) * [1.0, 2.0, 1.5]


class Pair:
    """Two devices, and what an agent that hears both says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.devices: dict[Contributor, Device] = {}

    def add(
        self,
        values: Samples,
        header: str = "ax,ay,az",
        *,
        options: str = "",
        window: int = 20,
        rate_hz: float = 50,
        labels: str = "ab",
        settings: dict[str, Any] | None = None,
    ) -> Device:
        me = (A, B)[len(self.devices)]
        path = self._folder / f"{me.peer_id}.csv"
        rows = (
            f"{row / rate_hz:.3f},{','.join(f'{value:.4f}' for value in each)},{labels[row // 40 % len(labels)]}"
            for row, each in enumerate(values)
        )
        path.write_text("\n".join([f"time (s),{header},label", *rows]))
        spec = f"csv:{path}?label=label&window={window}{options}"
        config = Config(data=DataSection(spec=spec), **(settings or {}))
        self.devices[me] = Device(config, me, "home", self._folder / me.peer_id)
        return self.devices[me]

    def meet(self) -> tuple[str, tuple[str, ...]]:
        """Return why one of the two is refused, "" if none is, and whose channels are named as a round is opened."""
        desk = Desk()
        for me, device in self.devices.items():
            start = device.start(device.restore())
            said = {"schema_hash": start.schema_hash, "model": start.model, "channels": start.channels}
            desk.report(me, size=start.size, **said)
        for me in self.devices:
            desk.report(me)
        refused = next((each.reason for _, each in desk.said if isinstance(each, MemberRefused)), "")
        opened = desk.newest.get(RoundOpened)
        unlike = opened.unlike if opened else ()
        told = desk.hand(Received(Contributor("observer", 1), StatusWanted()))[0].message  # type: ignore[union-attr]
        assert isinstance(told, MeshStatus)
        assert told.unlike == unlike, "mdl peers, the page and the doctor show what is logged"
        return refused, unlike


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_two_people_who_differ_in_nothing_are_neither_refused_nor_named(pair: Pair) -> None:
    pair.add(samples(1))
    pair.add(samples(2))
    assert pair.meet() == ("", ())


def test_pair_1_a_unit_is_converted_where_it_is_written_and_named_where_it_is_not(pair: Pair, tmp_path: Path) -> None:
    one = pair.add(samples(1), "ax (m/s2),ay (m/s2),az (m/s2)")
    other = pair.add(samples(1) / G_MS2, "ax (g),ay (g),az (g)")
    assert pair.meet() == ("", ())
    assert np.allclose(one.train.x, other.train.x, atol=0.01)
    unsaid = Pair(tmp_path)
    unsaid.add(samples(1), "left,top,front")
    unsaid.add(samples(2) / G_MS2, "left,top,front")
    assert unsaid.meet() == ("", ("left, top, front of device b: 9.8 times smaller than all others': in g?",))


def test_pair_2_axes_in_another_order_are_refused_by_name_and_named_by_their_values(pair: Pair, tmp_path: Path) -> None:
    pair.add(samples(1))
    pair.add(samples(2)[:, [2, 0, 1]], "az,ax,ay")
    assert "are the mesh's in another order: give them as ax, ay, az" in pair.meet()[0]
    unsaid = Pair(tmp_path)
    unsaid.add(samples(1))
    unsaid.add(samples(2)[:, [2, 0, 1]])
    (line,) = unsaid.meet()[1]
    assert "has ax, ay, az in another order, by its values" in line


def test_pair_3_another_sign_is_named(pair: Pair) -> None:
    pair.add(samples(1))
    pair.add(samples(2) * [1, -1, 1])
    assert pair.meet() == ("", ("device a has ay with another sign, by its values, than all others",))


def test_pair_4_another_rate_is_refused_with_the_option_that_converts(pair: Pair, tmp_path: Path) -> None:
    pair.add(samples(1))
    pair.add(samples(2), rate_hz=100)
    assert "windows of another sampling rate: this mesh: 50 Hz, this device: 100 Hz" in pair.meet()[0]
    converted = Pair(tmp_path)
    converted.add(samples(1))
    converted.add(samples(2), rate_hz=100, options="&rate=50")
    assert converted.meet()[0] == ""


def test_pair_5_another_window_is_refused_with_both_sizes(pair: Pair) -> None:
    pair.add(samples(1))
    pair.add(samples(2), window=40)
    refused = pair.meet()[0]
    assert "3x20" in refused
    assert "3x40" in refused


def test_pair_6_other_classes_are_refused_by_name(pair: Pair) -> None:
    pair.add(samples(1))
    pair.add(samples(2), labels="ac")
    assert pair.meet()[0] == "your classes (a, c) differ from the mesh's (a, b)"


def test_pair_7_classes_in_another_order_are_brought_into_one(pair: Pair) -> None:
    one, other = pair.add(samples(1)), pair.add(samples(1), labels="ba")
    assert pair.meet() == ("", ())
    assert one.description.class_names == other.description.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("theta", "told"), [("equal", "it weighs 1, as every device does"), ("samples", "its windows")]
)
def test_pair_8_what_a_device_weighs_is_told_before_it_trains(pair: Pair, theta: Any, told: str) -> None:
    settings = {"round": RoundSection(theta=theta)}
    few, many = pair.add(samples(1, 400), settings=settings), pair.add(samples(2, 8000), settings=settings)
    assert pair.meet() == ("", ())
    assert len(many.train) > 15 * len(few.train)
    assert [told in tell_weight(Config(**settings), device.theta) for device in (few, many)] == [True, True]
    assert (many.theta > 15 * few.theta) is (theta == "samples")


def test_pair_9_each_device_tests_on_people_of_its_own_and_says_on_how_many_windows(pair: Pair) -> None:
    one, other = pair.add(samples(1, 400)), pair.add(samples(2, 1600))
    assert pair.meet() == ("", ())
    assert 0 < len(one.test) < len(other.test)


class Divided(nn.Module):
    """A linear model of inputs that are divided by a constant."""

    def __init__(self, channels: int, time: int, classes: int, deviation: float) -> None:
        super().__init__()
        self.layer = nn.Linear(channels * time, classes)
        self.register_buffer("deviation", torch.full((1,), deviation))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer((x / self.deviation).flatten(1))  # type: ignore[no-any-return]


def by_two(channels: int, time: int, classes: int) -> nn.Module:
    return Divided(channels, time, classes, 2.0)


def by_three(channels: int, time: int, classes: int) -> nn.Module:
    return Divided(channels, time, classes, 3.0)


def test_pair_10_constants_of_a_model_are_named_before_its_delta_is_given(pair: Pair) -> None:
    first, same = (
        pair.add(samples(1), settings={"model": ModelSection(name=f"{__name__}:{model.__name__}")})
        for model in (by_two, by_two)
    )
    mesh = first.model.values().copy()
    assert isinstance(same.work()[TrainLocally](TrainLocally(1, mesh)), LocalDeltaReady)
    pair.devices.popitem()
    other = pair.add(samples(1), settings={"model": ModelSection(name=f"{__name__}:by_three")})
    assert pair.meet() == ("", ())
    with pytest.raises(ConfigError, match="buffer deviation of the model has other values here than in the mesh"):
        other.work()[TrainLocally](TrainLocally(1, mesh))


def test_a_device_that_shall_not_tell_its_values_tells_none(pair: Pair, tmp_path: Path) -> None:
    telling = pair.add(samples(1))
    section = DataSection(spec=telling.description.data, tell_values=False)
    silent = Device(Config(data=section), B, "home", tmp_path / "silent")
    assert [len(each.start(each.restore()).channels) for each in (telling, silent)] == [3, 0]
