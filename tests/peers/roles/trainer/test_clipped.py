"""A delta beyond its share of the round's sum: the rest is own work, and comes once."""

from __future__ import annotations

import logging

import pytest

from mdl.protocol.delta import ModelDelta
from mdl.protocol.machine import LocalDeltaReady, TrainLocally
from mdl.protocol.vector_work import hold_own
from mdl.protocol.vocabulary import TrainingReport
from tests.peers.roles.trainer.own_work import (
    ANN,
    BEFORE,
    BOB,
    ME,
    MEMBERS,
    ROOM,
    a_trainer,
    carry_of,
    close_round,
    held_by,
    open_round,
    train,
    vector,
)


def test_the_rest_comes_with_the_next_delta_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    with caplog.at_level(logging.INFO):
        train(trainer, 20.0, 1.0, -9.0, 0.0)
    assert "round 6: 2 of 4 values are beyond their share of the sum; the rest comes with the next delta" in caplog.text
    assert held_by(trainer) == pytest.approx([8.0, 1.0, -8.0, 0.0], rel=2e-6)  # a share at w = 0, but for a millionth
    close_round(trainer, MEMBERS, 4.0, 0.0, 0.0, 0.0)
    open_round(trainer, attempt=2)
    train(trainer, 0.5, 0.0, 0.0, 0.0)
    assert held_by(trainer) == [pytest.approx(12.5, rel=2e-6), 0.0, pytest.approx(-1.0, rel=2e-5), 0.0]
    close_round(trainer, MEMBERS, 0.0, 0.0, 0.0, 0.0)
    assert carry_of(trainer) is None


def test_the_report_tells_how_many_values_were_clipped() -> None:
    trainer = a_trainer(5, BEFORE)
    (work,) = open_round(trainer)
    assert isinstance(work, TrainLocally)
    delta = ModelDelta(vector(20.0, 1.0, -9.0, 0.0), 1.0, frozenset([ME]))
    held = hold_own(work.parameters, delta, ROOM)
    trainer.handle(LocalDeltaReady(6, delta, TrainingReport(0.5, 8, 1.0), held), 2.0)
    report = trainer.report(1, "agent", 3.0)
    assert report.training is not None
    assert report.training.clipped == 2


def test_a_round_that_does_not_count_the_delta_gives_all_of_it_back() -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    train(trainer, 20.0, 1.0, 0.0, 0.0)
    close_round(trainer, (ANN, BOB), 4.0, 0.0, 0.0, 0.0)
    carried = carry_of(trainer)
    assert carried is not None
    assert carried == pytest.approx([20.0, 1.0, 0.0, 0.0], rel=1e-6)
