"""What coding has rounded off of an own delta comes with the next one, once, and only where w holds the rounded one."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.peers.roles.trainer.model_state import TrainedWork
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector, room_for
from mdl.protocol.machine import DeltaRecalled, Event, LocalDeltaReady, RecallDelta, Received, Send
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    GlobalMessage,
    HopOrdered,
    ModelMessage,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import Fork, History, Lineage, TrainingReport
from tests.peers.roles.at_once import TrainerAtOnce, as_sent, mean_of, name_of, on_way, sum_of

SIZE, SEGMENT = 64, 16
AGENT, ANN, BOB, CLEO = (Contributor(name, 1) for name in ("agent", "ann", "bob", "cleo"))
TRUNK: Lineage = (Fork(0, 3, "agent.1.1"),)
FORK: Lineage = (*TRUNK, Fork(5, 2, "ann.1.9"))
ZEROS = np.zeros(SIZE, np.float32)
LINE = np.linspace(0.0, 1.0, SIZE, dtype=np.float32)

# Of the grid of all rounds here: own deltas are rounded to int4.
ROOM = room_for(3.0, coding="int4")

Pair = dict[Contributor, Trainer]


@pytest.fixture
def pair() -> Pair:
    """Ann and Bob at w(5) of the trunk, on which Cleo is, too."""
    history = History(TRUNK, ("ann", "bob", "cleo"))
    return {me: TrainerAtOnce(me, ZEROS, "schema", "model", TrainerSettings(), 5, history) for me in (ANN, BOB)}


def _hand(pair: Pair, to: Contributor, event: Event) -> list[RecallDelta]:
    """And all that follows between the two; what is to be recalled."""
    names, recalls, queue = {me.peer_id: me for me in pair}, list[RecallDelta](), [(to, event)]
    while queue:
        me, event = queue.pop(0)
        for effect in pair[me].handle(event, 1.0):
            if isinstance(effect, Send) and effect.receiver in names:
                queue.append((names[effect.receiver], Received(me, effect.message, effect.values)))
            elif isinstance(effect, RecallDelta):
                recalls.append(effect)
    return recalls


def _open(pair: Pair, lineage: Lineage, term: int, values: Vector | None) -> None:
    """values: what both train; None: they have that already."""
    for me, trainer in pair.items():
        round_id = trainer.round_id + 1
        at, members = (round_id, trainer.digest), (ANN, BOB, CLEO)
        opened = RoundOpened(term, *at, members, term, lineage, ("ann", "bob"), room=ROOM)
        _hand(pair, me, Received(AGENT, opened))
        if values is not None:
            own = ModelDelta(values.copy(), 1.0, frozenset([me]))
            _hand(pair, me, LocalDeltaReady(round_id, own, TrainingReport(0.0, 1, 0.0)))


def _exchange(pair: Pair, lineage: Lineage, term: int, values: Vector) -> None:
    """The round goes in segments, rounded to int4, and is closed. values: what both have trained."""
    at, both = (pair[ANN].round_id + 1, pair[ANN].digest), (ANN, BOB)
    order = BroadcastOrdered(
        term, *at, 1, both, 2.0, both, lineage=lineage, owns=(2, 2), segment_values=SEGMENT, room=ROOM
    )
    for me in pair:
        _hand(pair, me, Received(AGENT, order))
    part = pair[ANN].part
    assert part is not None
    for me in pair:
        for recall in _hand(pair, me, Received(AGENT, RoundClosed(term, at[0], part.broadcast.digest))):
            _hand(pair, me, DeltaRecalled(recall.round_id, values.copy()))
    assert pair[ANN].digest == pair[BOB].digest


def _round(pair: Pair, lineage: Lineage, term: int, values: Vector) -> None:
    _open(pair, lineage, term, values)
    _exchange(pair, lineage, term, values)


def _move(trainer: Trainer, round_id: int, lineage: Lineage) -> None:
    """To what Cleo has."""
    state = ZEROS + 9
    target = CatchUp(99, round_id, digest_of(state), CLEO, lineage, ("cleo",))
    trainer.handle(Received(AGENT, target), 6.0)
    trainer.handle(Received(CLEO, ModelMessage(round_id, target.digest, History(lineage, ("cleo",))), state), 6.1)
    assert trainer.round_id == round_id


def _own(trainer: Trainer) -> Vector:
    """Return the own delta that it holds, with the rest that coding has left."""
    assert trainer.part is not None
    assert trainer.part.rest is not None
    own: Vector = mean_of(trainer.hold(), trainer.parameters) + trainer.part.rest
    return own


def _rounded_off(trainer: Trainer) -> Vector:
    """By the last round; nothing else is to come."""
    carry = trainer.carry
    assert carry is not None
    assert np.abs(carry).max() > 0.01
    return carry


def _in_w_or_to_come(pair: Pair) -> Vector:
    """Of both: a result is their mean, and goes from w."""
    return sum((trainer.carry for trainer in pair.values() if trainer.carry is not None), -2 * pair[ANN].parameters)


def _merge_cleos(trainer: Trainer) -> None:
    """Her delta comes by a hop, and the own one is gone."""
    trainer.handle(Received(AGENT, HopOrdered(11, 7, 9, CLEO)), 2.0)
    hers = on_way(ZEROS + 3, parameters=trainer.parameters, room=ROOM)
    trainer.handle(Received(CLEO, DeltaMessage(7, 9, 1.0, (CLEO,)), hers), 2.1)
    assert trainer.hold().contributors == {ANN, CLEO}


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_a_fork_has_rounded_off_stays_there(pair: Pair, rounds: int) -> None:
    """What was trained on it comes as it was; what the fork's result lacks of it is of no other w."""
    _round(pair, FORK, 10, LINE)
    if rounds == 2:
        _round(pair, FORK, 11, ZEROS)  # with what the first one has rounded off
    ann = pair[ANN]
    _move(ann, 6, TRUNK)
    np.testing.assert_allclose(ann.carry, LINE, atol=1e-6)
    _open({ANN: ann}, TRUNK, 20, ZEROS)
    np.testing.assert_allclose(_own(ann), LINE, atol=1e-6)


def test_what_the_mesh_has_rounded_off_goes_to_a_fork_of_it(pair: Pair) -> None:
    _round(pair, TRUNK, 10, LINE)
    rounded = _rounded_off(pair[ANN])
    _open(pair, (*TRUNK, Fork(6, 2, "ann.1.11")), 11, ZEROS)
    np.testing.assert_allclose(_own(pair[ANN]), rounded, atol=1e-6)


def test_it_comes_once_with_an_own_delta_of_earlier_work_alone(pair: Pair) -> None:
    _round(pair, TRUNK, 10, LINE)
    ann = pair[ANN]
    rounded = _rounded_off(ann)
    # What she has trained for round 7, on a fork that went on: both come as one sum.
    ann.model_state.add(TrainedWork(LINE * 2, ((7, ann.digest), (8, b"w7 of a fork"))))
    _open(pair, TRUNK, 11, ZEROS)
    assert ann.part is not None
    assert ann.part.is_empty
    np.testing.assert_allclose(_own(ann), LINE * 2 + rounded, atol=1e-6)
    _exchange(pair, TRUNK, 11, ZEROS)
    np.testing.assert_allclose(_in_w_or_to_come(pair), LINE * 4, atol=1e-5)


def test_it_comes_again_if_the_round_goes_on_without_an_own_delta_that_a_hop_has_merged(pair: Pair) -> None:
    _round(pair, TRUNK, 10, LINE)
    ann = pair[ANN]
    rounded = _rounded_off(ann)
    _open(pair, TRUNK, 11, ZEROS)
    _merge_cleos(ann)
    result = sum_of(ZEROS + 7, [BOB], room=ROOM, parameters=ann.parameters)
    order = BroadcastOrdered(11, 7, ann.digest, 1, (BOB, ANN), 1.0, (BOB,), lineage=TRUNK, room=ROOM)
    ann.handle(Received(AGENT, order), 5.0)
    ann.handle(Received(BOB, GlobalMessage(7, 1.0, (BOB,), 11, 1), as_sent(result)), 5.1)
    recalls = _hand({ANN: ann}, ANN, Received(AGENT, RoundClosed(11, 7, name_of(result))))
    assert len(recalls) == 1
    ann.handle(DeltaRecalled(7, ZEROS.copy()), 5.3)
    np.testing.assert_allclose(ann.carry, rounded, atol=1e-6)


def test_an_own_delta_with_it_is_one_value_however_often_its_round_is_opened(pair: Pair) -> None:
    _round(pair, TRUNK, 10, LINE)
    _open(pair, TRUNK, 11, LINE)
    ann, before = pair[ANN], _own(pair[ANN]).copy()
    _merge_cleos(ann)
    _open({ANN: ann}, TRUNK, 12, None)
    ann.handle(DeltaRecalled(7, LINE.copy()), 3.0)
    np.testing.assert_allclose(_own(ann), before, atol=1e-6)
