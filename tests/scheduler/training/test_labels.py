"""Labels are what each pick leads to; training on them is repeatable, can be followed, stopped and gone on with."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.errors import ConfigError
from mdl.scheduler.policies.features import COLUMN
from mdl.scheduler.policies.qnet_numpy import Weights, draw_weights
from mdl.scheduler.training import train as labels
from mdl.scheduler.training.train import (
    IMBALANCE_TRANSFERS,
    LabelJob,
    TrainingProgress,
    produce_labels,
    train_on_labels,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "_CYCLE", (((3, 5), 12), ((5, 7), 8)))
    monkeypatch.setattr(labels, "_MINIBATCH", 32)


def _is_same(one: Weights, other: Weights) -> bool:
    return all(np.array_equal(values, other[name]) for name, values in one.items())


def test_of_two_devices_a_label_is_minus_the_time_of_the_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "_FAMILY_SHARES", (0.0, 1.0, 0.0, 0.0))
    found = produce_labels(LabelJob(0, 0, 40, (2, 2)))
    both_free = found.valid[:, :2].all(axis=1)
    assert both_free.sum() > 5
    for features, values in zip(found.features[both_free], found.values[both_free], strict=True):
        link, merge = features[:, COLUMN["link_time"]], features[:, COLUMN["merge_time"]] / 10.0
        hop = np.max(link) + merge[::-1]
        imbalance = -(values[:2] + hop) / IMBALANCE_TRANSFERS
        assert (imbalance > -1e-3).all()
        assert (imbalance < 100.0).all()
        assert values[:2] == pytest.approx(-hop, abs=100.0 * IMBALANCE_TRANSFERS)


def test_every_pick_of_a_small_mesh_is_tried_and_at_most_a_dozen_of_a_large_one() -> None:
    few = produce_labels(LabelJob(1, 0, 6, (3, 6)))
    assert np.array_equal(few.tried, few.valid)
    assert (few.values[few.tried] <= 0.0).all()
    many = produce_labels(LabelJob(1, 1, 2, (20, 24)))
    assert (many.tried.sum(axis=1) <= 12).all()
    assert not (many.tried & ~many.valid).any()


def test_the_same_job_gives_the_same_labels_and_another_number_others() -> None:
    job = LabelJob(3, 5, 6, (3, 5), draw_weights(np.random.default_rng(0)))
    one, two = produce_labels(job), produce_labels(job)
    assert np.array_equal(one.features, two.features)
    assert np.array_equal(one.values, two.values)
    other = produce_labels(LabelJob(3, 6, 6, (3, 5)))
    assert other.features.shape != one.features.shape or not np.array_equal(other.features, one.features)


@pytest.mark.usefixtures("small")
def test_the_same_steps_and_seed_give_the_same_network() -> None:
    one, two = train_on_labels(4, seed=1, processes=0), train_on_labels(4, seed=1, processes=0)
    assert _is_same(one, two)
    assert not _is_same(one, train_on_labels(4, seed=2, processes=0))


@pytest.mark.usefixtures("small")
def test_a_network_goes_on_from_where_it_was_and_is_stopped_when_told() -> None:
    seen: list[TrainingProgress] = []

    def follow(progress: TrainingProgress) -> bool:
        seen.append(progress)
        return progress.step == 2

    start = train_on_labels(2, seed=1, processes=0)
    network = train_on_labels(9, seed=2, processes=0, start=start, on_progress=follow)
    assert [progress.step for progress in seen] == [1, 2]
    assert seen[1].states > seen[0].states > 0
    assert _is_same(network, seen[-1].network)
    assert not _is_same(network, start)


def test_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps must be at least 1, not 0"):
        train_on_labels(0)
