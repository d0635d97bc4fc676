"""A device whose owner does not let it train (`--when`): what it still does, and when it trains again."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.machine import (
    Evaluate,
    Event,
    LocalDeltaReady,
    PauseChanged,
    Received,
    SaveModel,
    Send,
    TrainingPaused,
    TrainLocally,
)
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import Activity, TrainingReport
from tests.peers.roles.at_once import TrainerAtOnce, as_sent, name_of, sum_of

AGENT, ME, ANN = (Contributor(name, 1) for name in ("agent", "me", "ann"))
ZEROS, ONES = np.zeros(4, np.float32), np.ones(4, np.float32)
OPENED = RoundOpened(term=1, round_id=1, digest=digest_of(ZEROS), members=(ANN, ME), attempt=1, planned_rounds=3)
AFRESH = RoundOpened(term=2, round_id=1, digest=digest_of(ZEROS), members=(ANN, ME), attempt=2, planned_rounds=3)
READY = LocalDeltaReady(1, ModelDelta(ONES, 1.0, frozenset([ME])), TrainingReport(0.5, 100, 1.0))
TRAIN = TrainLocally(1, ZEROS, 3, room=0)
IN_USE, FREE, CUT_OFF = PauseChanged("in use"), PauseChanged(), TrainingPaused(1)
OPEN, OPEN_AFRESH = Received(AGENT, OPENED), Received(AGENT, AFRESH)


def _trainer() -> Trainer:
    return TrainerAtOnce(ME, ZEROS, "schema", "lenet", TrainerSettings())


def _trained(*events: Event) -> list[int]:
    """After which of these events training begins."""
    trainer, found = _trainer(), []
    for index, event in enumerate(events):
        if TRAIN in trainer.handle(event, 1.0 + index / 10):
            found.append(index)
    return found


@pytest.mark.parametrize(
    ("events", "begins_after"),
    [
        ((OPEN, IN_USE, CUT_OFF, FREE), [0, 3]),
        ((OPEN, IN_USE, FREE, CUT_OFF), [0, 3]),  # the pause is over before its driver has given up
        ((IN_USE, OPEN, FREE), [2]),  # the agent had not heard of it yet
        ((IN_USE, FREE, OPEN), [2]),
        ((OPEN, IN_USE, READY, FREE), [0]),  # its last batch was done
        ((OPEN, READY, IN_USE, FREE), [0]),
        ((OPEN, IN_USE, CUT_OFF, OPEN_AFRESH, FREE), [0, 4]),
        ((OPEN, IN_USE, OPEN_AFRESH, CUT_OFF, FREE, OPEN_AFRESH), [0, 4]),
        ((OPEN, IN_USE, CUT_OFF, IN_USE, FREE, FREE), [0, 4]),
    ],
)
def test_a_round_is_trained_for_once_when_it_may_be(events: tuple[Event, ...], begins_after: list[int]) -> None:
    assert _trained(*events) == begins_after


def test_a_paused_device_says_so_and_for_whom_nobody_waits_it_does_not_train() -> None:
    trainer = _trainer()
    trainer.handle(OPEN, 1.0)
    assert not trainer.report(1, "agent", 1.0).away
    trainer.handle(PauseChanged("on battery (42 % < 50 %)"), 1.1)
    assert trainer.voice.has_news(1.1)
    report = trainer.report(1, "agent", 1.1)
    assert (report.away, report.activity, report.open_round) == ("on battery (42 % < 50 %)", Activity.WAITING, 1)
    trainer.handle(FREE, 1.2)
    report = trainer.report(1, "agent", 1.2)
    assert (report.away, report.activity) == ("", Activity.TRAINING)


def test_what_it_holds_it_hands_on_while_it_is_paused() -> None:
    trainer = _trainer()
    for event in (OPEN, READY, IN_USE):
        trainer.handle(event, 1.0)
    assert trainer.report(1, "agent", 1.1).activity is Activity.HOLDING
    (sent,) = trainer.handle(Received(ANN, DeltaWanted(1, 1, 10)), 1.2)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, DeltaMessage)


def test_it_takes_and_applies_a_result_that_it_has_no_part_in_and_does_not_test_it() -> None:
    trainer = _trainer()
    for event in (OPEN, IN_USE, CUT_OFF):
        trainer.handle(event, 1.0)
    trainer.handle(Received(AGENT, BroadcastOrdered(1, 1, digest_of(ZEROS), 1, (ANN, ME), 1.0, (ANN,))), 1.1)
    result = sum_of(ONES, [ANN])
    trainer.handle(Received(ANN, GlobalMessage(1, 1.0, (ANN,), 1, 1), as_sent(result)), 1.2)
    effects = trainer.handle(Received(AGENT, RoundClosed(1, 1, name_of(result))), 1.3)
    assert [type(effect) for effect in effects] == [SaveModel]
    assert trainer.round_id == 1
    trainer.handle(FREE, 1.4)
    assert not trainer.report(1, "agent", 1.4).away
    assert not any(isinstance(effect, Evaluate | TrainLocally) for effect in trainer.handle(CUT_OFF, 1.5))
