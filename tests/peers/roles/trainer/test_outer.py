"""Trainers with an outer optimizer: one state for the same results, and a device that catches up gets all of it."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.machine import Effect, LocalDeltaReady, Received, SaveModel, Send
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp, ModelMessage, ModelWanted, RoundClosed, RoundOpened
from mdl.protocol.vector_work import Outer
from mdl.protocol.vocabulary import TrainingReport
from tests.peers.roles.at_once import TrainerAtOnce

SIZE = 8
OUTER = Outer(0.7, 0.9)
AGENT, ANN, BOB = (Contributor(name, 1) for name in ("agent", "ann", "bob"))
START = np.zeros(SIZE, np.float32)


def _trainer(me: Contributor) -> Trainer:
    return TrainerAtOnce(me, OUTER.begin(START), "schema", "model", TrainerSettings(OUTER))


def _run_round(trainer: Trainer, round_id: int, value: float) -> list[Effect]:
    """Alone: what it has trained is the result."""
    me = trainer.me
    trainer.handle(Received(AGENT, RoundOpened(9, round_id, trainer.digest, (me,), 9)), 1.0)
    own = ModelDelta(np.full(SIZE, value, np.float32), 1.0, frozenset([me]))
    trainer.handle(LocalDeltaReady(round_id, own, TrainingReport(0.0, 1, 0.0)), 1.1)
    trainer.handle(Received(AGENT, BroadcastOrdered(9, round_id, trainer.digest, 1, (me,), 1.0, (me,))), 1.2)
    assert trainer.part is not None
    return trainer.handle(Received(AGENT, RoundClosed(9, round_id, trainer.part.broadcast.digest)), 1.3)


def test_results_go_on_in_later_rounds_and_are_saved_with_the_model() -> None:
    trainer, state = _trainer(ANN), OUTER.begin(START)
    for round_id in (1, 2, 3):
        (saved,) = (each for each in _run_round(trainer, round_id, 1.0) if isinstance(each, SaveModel))
        state = OUTER.step(state, np.ones(SIZE, np.float32))
        np.testing.assert_array_equal(saved.parameters, state[:SIZE])
        assert saved.momentum is not None
        np.testing.assert_array_equal(saved.momentum, state[SIZE:])
        assert saved.digest == trainer.digest == digest_of(state)
    assert trainer.parameters[0] < -0.7 * 3 * 1.5  # further than three plain steps
    assert trainer.parameters.size == SIZE


def test_a_device_that_catches_up_gets_the_momentum_and_goes_on_as_the_others() -> None:
    ann, bob = _trainer(ANN), _trainer(BOB)
    for round_id in (1, 2):
        _run_round(ann, round_id, 1.0)
    bob.handle(Received(AGENT, CatchUp(9, 2, ann.digest, ANN, ann.lineage, ann.base)), 2.0)
    (sent,) = (each for each in ann.handle(Received(BOB, ModelWanted(2)), 2.1) if isinstance(each, Send))
    assert isinstance(sent.message, ModelMessage)
    assert isinstance(sent.values, np.ndarray)
    assert sent.values.size == 2 * SIZE
    bob.handle(Received(ANN, sent.message, sent.values.copy()), 2.2)
    assert (bob.round_id, bob.digest) == (2, ann.digest)
    np.testing.assert_array_equal(bob.parameters, ann.parameters)
    after = OUTER.step(ann.model_state.state, np.full(SIZE, 0.5, np.float32))
    _run_round(bob, 3, 0.5)
    assert bob.digest == digest_of(after)


@pytest.mark.parametrize("size", [SIZE, 2 * SIZE + 1])
def test_a_model_without_its_momentum_is_refused(size: int) -> None:
    bob, values = _trainer(BOB), np.ones(size, np.float32)
    bob.handle(Received(AGENT, CatchUp(9, 2, digest_of(values), ANN)), 2.0)
    with pytest.raises(RemoteProtocolError, match=f"{size} values where the model has {2 * SIZE}"):
        bob.handle(Received(ANN, ModelMessage(2, digest_of(values)), values), 2.2)
    assert bob.round_id == 0
