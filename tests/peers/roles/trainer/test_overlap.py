"""Training for the next round under this one's exchange: each training once, whatever becomes of the round."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from mdl.peers.roles.trainer.trainer import Trainer
from mdl.peers.trials.campaign import Campaign, run_campaign
from mdl.protocol.machine import Effect, PauseChanged, RecallDelta, TrainingPaused, TrainLocally
from mdl.protocol.round_messages import RoundOpened
from mdl.protocol.vector_work import where_it_begins
from mdl.protocol.vocabulary import Fork, History
from tests.peers.roles.trainer.own_work import (
    ANN,
    BOB,
    ME,
    MEMBERS,
    START,
    ZEROS,
    carry_of,
    close_round,
    held_by,
    merge,
    move_on,
    open_round,
    overlapping,
    say,
    train,
    vector,
)


def _trained(effects: list[Effect]) -> list[tuple[int, list[float]]]:
    return [
        (each.round_id, list(where_it_begins(each.parameters, each.ahead)))
        for each in effects
        if isinstance(each, TrainLocally)
    ]


def _ready(trainer: Trainer, *values: float, round_id: int) -> list[tuple[int, list[float]]]:
    effects: list[Effect] = []
    handle = trainer.handle
    trainer.handle = lambda event, now: effects.extend(handle(event, now)) or effects  # type: ignore[method-assign]
    train(trainer, *values, round_id=round_id)
    trainer.handle = handle  # type: ignore[method-assign]
    return _trained(effects)


def test_a_device_trains_on_from_where_it_is_while_its_delta_travels() -> None:
    trainer = overlapping()
    assert _trained(open_round(trainer)) == [(5, [0, 0, 0, 0])]
    assert _ready(trainer, 1, 1, 1, 2, round_id=5) == [(6, [-1, -1, -1, -2])]
    assert _ready(trainer, 3, 3, 3, 3, round_id=6) == []  # one round ahead, and no more
    assert held_by(trainer) == [1, 1, 1, 2]
    effects = close_round(trainer, (BOB, ME), 2, 2, 2, 2)
    assert not [each for each in effects if isinstance(each, RecallDelta)]
    assert _trained(open_round(trainer, attempt=2)) == [(7, [-5, -5, -5, -5])]  # w(5) less what was trained for round 6
    assert held_by(trainer) == [3, 3, 3, 3]
    assert carry_of(trainer) is None


def test_without_it_the_next_round_begins_at_its_model() -> None:
    trainer = overlapping(overlaps=False)
    open_round(trainer)
    assert _ready(trainer, 1, 1, 1, 1, round_id=5) == []
    close_round(trainer, (BOB, ME), 2, 2, 2, 2)
    assert _trained(open_round(trainer, attempt=2)) == [(6, [-2, -2, -2, -2])]


def test_what_is_still_being_trained_when_its_round_opens_is_waited_for() -> None:
    trainer = overlapping()
    open_round(trainer)
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    close_round(trainer, (BOB, ME), 2, 2, 2, 2)
    assert _trained(open_round(trainer, attempt=2)) == []
    assert trainer.hold() is None
    assert _ready(trainer, 4, 4, 4, 4, round_id=6) == [(7, [-6, -6, -6, -6])]
    assert held_by(trainer) == [4, 4, 4, 4]


def test_a_round_that_goes_on_without_it_counts_its_work_in_the_next_one() -> None:
    trainer = overlapping()
    open_round(trainer)
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    _ready(trainer, 3, 3, 3, 3, round_id=6)
    merge(trainer, 5, 5, 5, 5)  # its own delta is no longer there, and its model holds what came after
    effects = close_round(trainer, (ANN, BOB), 2, 2, 2, 2)
    assert not [each for each in effects if isinstance(each, RecallDelta)]
    assert carry_of(trainer) == [4, 4, 4, 4]
    open_round(trainer, attempt=2)
    assert held_by(trainer) == [4, 4, 4, 4]
    assert carry_of(trainer) is None


def test_a_round_that_is_opened_anew_trains_nothing_twice() -> None:
    trainer = overlapping()
    open_round(trainer)
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    _ready(trainer, 3, 3, 3, 3, round_id=6)
    merge(trainer, 5, 5, 5, 5)
    assert _trained(open_round(trainer, attempt=9)) == []
    assert held_by(trainer) == [1, 1, 1, 1]
    assert carry_of(trainer) == [3, 3, 3, 3]


def test_what_was_trained_for_a_round_that_never_came_is_earlier_work() -> None:
    trainer = overlapping()
    open_round(trainer)
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    _ready(trainer, 3, 3, 3, 3, round_id=6)
    move_on(trainer, 8, History((START, Fork(4, 2, "ann.1.9")), ("ann", "bob")))
    assert carry_of(trainer) == [4, 4, 4, 4]
    assert _trained(open_round(trainer)) == []
    assert held_by(trainer) == [4, 4, 4, 4]


def test_what_a_fork_has_trained_ahead_from_here_is_not_trained_ahead_once_more() -> None:
    trainer, fork = overlapping(), Fork(4, 1, "me.1.9")
    open_round(trainer)
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    open_round(trainer, (START, fork), attempt=9)
    _ready(trainer, 3, 3, 3, 3, round_id=6)
    close_round(trainer, (ME,), 1, 1, 1, 1)
    open_round(trainer)
    trainer.handle(TrainingPaused(7), 2.0)
    close_round(trainer, (ME,), 3, 3, 3, 3)
    move_on(trainer, 4, History((START,), ("ann", "bob", "me")), ZEROS)
    assert _trained(open_round(trainer, attempt=20)) == []
    assert (held_by(trainer), carry_of(trainer)) == ([1, 1, 1, 1], [3, 3, 3, 3])
    close_round(trainer, (BOB, ME), 2, 2, 2, 2)
    assert _trained(open_round(trainer, attempt=21)) == [(6, [-2, -2, -2, -2])]


def test_nothing_is_trained_ahead_of_the_last_round_or_in_a_pause() -> None:
    trainer = overlapping()
    opened = RoundOpened(1, 5, trainer.digest, MEMBERS, 1, trainer.lineage, planned_rounds=5)
    assert _trained(say(trainer, opened)) == [(5, [0, 0, 0, 0])]
    assert _ready(trainer, 1, 1, 1, 1, round_id=5) == []
    trainer = overlapping()
    open_round(trainer)
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    trainer.handle(PauseChanged("on battery"), 2.0)
    trainer.handle(TrainingPaused(6), 2.1)
    close_round(trainer, (BOB, ME), 2, 2, 2, 2)
    assert _trained(open_round(trainer, attempt=2)) == []
    assert _trained(trainer.handle(PauseChanged(""), 9.0)) == [(6, [-2, -2, -2, -2])]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["chain", "shares"])
def test_under_faults_each_training_counts_once(exchange: str) -> None:
    campaign = Campaign(wide=True, exchange=exchange, overlap=True)  # type: ignore[arg-type]
    totals = run_campaign(campaign, range(40, 60), 1)
    assert (totals.seeds, dict(totals.violations)) == (20, {})
    plan = campaign.plan(40)
    assert [name for name in plan.peer_ids() if plan.overlaps(name)] == [
        name for number, name in enumerate(plan.peer_ids()) if number % 3 != 2
    ]


def test_broken_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training ahead that is begun again from the same place, since nobody knows of it, counts twice."""
    from mdl.peers.roles.trainer.own_delta import OwnWork

    take = OwnWork._take_ahead

    def forgets(self: OwnWork, round_id: int) -> object:
        if self._ahead and self._ahead[0].trained[0][0] == round_id + 1:
            self._ahead = replace(self._ahead[0], trained=()), self._ahead[1]
            self._put_back_ahead()
        return take(self, round_id)

    monkeypatch.setattr(OwnWork, "_take_ahead", forgets)
    totals = run_campaign(Campaign(wide=True, overlap=True), range(50, 51), 1)
    assert dict(totals.violations) == {"double": 1}


def test_the_start_of_a_training_ahead_is_a_vector_of_its_own() -> None:
    trainer = overlapping()
    open_round(trainer)
    before = trainer.parameters
    _ready(trainer, 1, 1, 1, 1, round_id=5)
    np.testing.assert_array_equal(before, vector(0, 0, 0, 0))
