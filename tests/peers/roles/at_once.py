"""A trainer whose work on whole vectors takes no time, for tests of what comes before and after that work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.protocol.delta import Contributor, Partial, PartialSum, digest_of, digest_of_result
from mdl.protocol.grid import Vector, grid_of
from mdl.protocol.machine import Effect, Event, Received
from mdl.protocol.messages import DIGESTED, SUMMED
from mdl.protocol.vector_work import VECTOR_WORK, ApplyDelta, Outer, apply_result
from mdl.sim.mesh.network import with_checksum


class TrainerAtOnce(Trainer):
    """Digests and parameters are there in the very step that asks for them; so are those of values that come in."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.message, DIGESTED) and event.values is not None:
            event = msgspec.structs.replace(event, digest=event.digest or digest_of(event.values))
        if isinstance(event, Received) and type(event.message) in SUMMED and event.values is not None:
            event = with_checksum(event)
        effects, events = [], [event]
        for each in events:
            for effect in super().handle(each, now):
                if work := VECTOR_WORK.get(type(effect)):
                    events.append(work(effect))
                else:
                    effects.append(effect)
        return effects


def sum_of(
    mean: Vector | Sequence[float],
    who: Iterable[Contributor] = (),
    theta: float | None = None,
    partial: tuple[Partial, ...] = (),
    room: int = 0,
    parameters: Vector | None = None,
) -> PartialSum:
    """Return the sum with this mean. theta: one a contributor if None.

    parameters: those with the grid, which is that of parameters below 1 if None.
    """
    values, contributors = np.array(mean, np.float32), frozenset(who)
    weight = float(len(contributors) or 1) if theta is None else theta
    sums = grid_of(values * 0 if parameters is None else parameters, room).to_sums(values, weight)
    return PartialSum(sums, weight, contributors, room, partial)


def as_sent(held: PartialSum) -> Vector:
    """Return a copy of a sum as it travels: its integers seen as float32."""
    return held.values.copy().view(np.float32)


def on_way(
    mean: Vector | Sequence[float], theta: float = 1.0, room: int = 0, parameters: Vector | None = None
) -> Vector:
    """Return the sum with this mean as it travels. parameters: as in `sum_of`."""
    return as_sent(sum_of(mean, theta=theta, room=room, parameters=parameters))


def name_of(result: PartialSum) -> bytes:
    return digest_of_result(digest_of(result.values), result)


def mean_of(held: PartialSum, parameters: Vector | None = None) -> Vector:
    """Return the mean of a sum. parameters: as in `sum_of`."""
    at = np.zeros(held.values.size, np.float32) if parameters is None else parameters
    return grid_of(at, held.room).to_mean(held.values, held.theta)


def apply_at_once(standing: ModelState, result: PartialSum, eta: float = 1.0) -> None:
    applied = apply_result(ApplyDelta(standing.round_id + 1, standing.state, result, Outer(eta)))
    standing.apply(result, applied.state, applied.digest)
