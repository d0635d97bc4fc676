"""A trainer among ann and bob, and what it hears: for tests of own work."""

from __future__ import annotations

import numpy as np

from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector, room_for
from mdl.protocol.machine import DeltaRecalled, Effect, LocalDeltaReady, RecallDelta, Received, Send
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    HopOrdered,
    ModelMessage,
    ModelWanted,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import Ballot, Fork, History, Lineage, TrainingReport
from tests.peers.roles.at_once import TrainerAtOnce, as_sent, mean_of, name_of, on_way, sum_of

AGENT = Contributor("agent", 1)
ME, ANN, BOB = Contributor("me", 1), Contributor("ann", 1), Contributor("bob", 1)
MEMBERS = (ANN, BOB, ME)
ZEROS = np.zeros(4, np.float32)
# Of the rounds' grids: each of three devices has a share of 8.
ROOM = room_for(3.0)
START = Fork(0, 3, "agent.1.1")
SPLIT = Fork(1, 1, "me.1.9")
ELSEWHERE = np.full(4, 9, np.float32)
FORK = Fork(5, 1, "me.1.9")
BEFORE = History((START,), ("ann", "bob", "me"))


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def a_trainer(round_id: int = 0, history: History | None = None, ballot: Ballot | None = None) -> Trainer:
    return TrainerAtOnce(ME, ZEROS, "schema", "lenet", TrainerSettings(), round_id, history, ballot)


def overlapping(overlaps: bool = True) -> Trainer:
    history = History((START,), ("ann", "bob", "me"))
    return TrainerAtOnce(ME, ZEROS, "schema", "lenet", TrainerSettings(overlaps=overlaps), 4, history)


def say(
    trainer: Trainer, message: Said, now: float = 1.0, sender: Contributor = AGENT, values: Vector | None = None
) -> list[Effect]:
    return trainer.handle(Received(sender, message, values), now)


def open_round(trainer: Trainer, lineage: Lineage | None = None, attempt: int = 1) -> list[Effect]:
    lineage = trainer.model_state.lineage if lineage is None else lineage
    opened = RoundOpened(attempt, trainer.round_id + 1, trainer.digest, MEMBERS, attempt, lineage, room=ROOM)
    return say(trainer, opened)


def train(trainer: Trainer, *values: float, round_id: int | None = None) -> None:
    """What the driver answers to TrainLocally."""
    delta = ModelDelta(vector(*values), 1.0, frozenset([ME]))
    trainer.handle(LocalDeltaReady(round_id or trainer.round_id + 1, delta, TrainingReport(0.5, 8, 1.0)), 2.0)


def merge(trainer: Trainer, *values: float) -> None:
    """ann's delta comes in, and the own one is gone."""
    say(trainer, HopOrdered(1, trainer.round_id + 1, 10, ANN), 3.0)
    message = DeltaMessage(trainer.round_id + 1, 10, 1.0, (ANN,))
    trainer.handle(Received(ANN, message, on_way(values, 1.0, ROOM, trainer.parameters)), 3.1)


def close_round(trainer: Trainer, contributors: tuple[Contributor, ...], *values: float) -> list[Effect]:
    """The round's result comes from bob and stands."""
    name = stage(trainer, contributors, *values)
    return say(trainer, RoundClosed(1, trainer.round_id + 1, name), 5.2)


def stage(
    trainer: Trainer, contributors: tuple[Contributor, ...], *values: float, lineage: Lineage | None = None
) -> bytes:
    """The round's result comes from bob; its name."""
    theta, round_id = float(len(contributors)), trainer.round_id + 1
    lineage = trainer.lineage if lineage is None else lineage
    result = sum_of(values, contributors, room=ROOM, parameters=trainer.parameters)
    names = 1, round_id, trainer.digest, 1, (BOB, ME), theta, contributors
    say(trainer, BroadcastOrdered(*names, lineage=lineage, room=ROOM), 5.0)
    say(trainer, GlobalMessage(round_id, theta, contributors, 1, 1), 5.1, BOB, as_sent(result))
    return name_of(result)


def lose_round(trainer: Trainer, *values: float, is_recalled: bool = True) -> None:
    """Train and merge for a round that ends without this device; its own delta is computed again."""
    open_round(trainer)
    train(trainer, *values)
    merge(trainer, 3, 3, 3, 3)
    round_id = trainer.round_id + 1
    assert recalls_in(close_round(trainer, (ANN, BOB), 0, 0, 0, 0))
    if is_recalled:
        trainer.handle(DeltaRecalled(round_id, vector(*values)), 6.0)


def move_on(trainer: Trainer, round_id: int, history: History, values: Vector = ELSEWHERE) -> list[Effect]:
    """The agent sends it to another model, and ann gives it."""
    target = CatchUp(1, round_id, digest_of(values), ANN, history.lineage, history.base)
    effects = say(trainer, target, 6.0)
    assert Send("ann", ModelWanted(round_id)) in effects
    return say(trainer, ModelMessage(round_id, digest_of(values), history), 6.1, ANN, values)


def carry_of(trainer: Trainer) -> list[float] | None:
    carry = trainer.carry
    return None if carry is None else list(carry)


def held_by(trainer: Trainer) -> list[float]:
    return list(mean_of(trainer.hold(), trainer.parameters))


def recalls_in(effects: list[Effect]) -> list[RecallDelta]:
    return [effect for effect in effects if isinstance(effect, RecallDelta)]


def cut_off(*, merged: bool = False) -> Trainer:
    """It has given its delta of round 6 away, [2, 0, 0, 0], when the mesh is cut in two and its half forks."""
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    train(trainer, 2, 0, 0, 0)
    if merged:
        merge(trainer, 0, 6, 0, 0)
    say(trainer, DeltaWanted(6, 1, 20), 3.0, BOB)
    effects = open_round(trainer, (START, FORK), attempt=9)
    if merged:
        assert len(recalls_in(effects)) == 1
        trainer.handle(DeltaRecalled(6, vector(2, 0, 0, 0)), 4.0)
    return trainer
