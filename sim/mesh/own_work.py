"""The slow work of a simulated device: training, evaluation, recalls, whole vectors. It takes virtual time."""

from __future__ import annotations

from mdl.defence.marks import length
from mdl.protocol.counts import no_evaluation
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    LocalDeltaReady,
    PauseChanged,
    RecallDelta,
    TrainingPaused,
    TrainLocally,
    hold_recalled,
)
from mdl.protocol.vector_work import VECTOR_WORK, MergeDeltas, hold_own, merge_deltas, where_it_begins
from mdl.protocol.vocabulary import TrainingReport
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.process import Node

_EVALUATION_S = 0.01
_RECALL_S = 0.01
# Longer than a message takes here: messages that arrive meanwhile must do no harm.
_VECTOR_WORK_S = 0.02
# The network charges for a merge (`merge_mb_s`).
_MERGED_S = 0.001


class _Length:
    """Stands for the loss on a device's windows: it is high for vectors far from 0, so that large lies stand out."""

    classes = 2

    def __call__(self, parameters: Vector, keep: bool = False) -> float:
        return length(parameters)


def begin_work(node: Node, effect: Effect, accounts: Accounts) -> tuple[float, Event] | None:
    """Begin an effect's work: return its seconds and the event at its end; None for any other effect."""
    if type(effect) is TrainLocally:
        begins_at = where_it_begins(effect.parameters, effect.ahead)
        node.trained_from, node.is_cut_off = begins_at, False
        delta = accounts.train(node.contributor, effect.round_id, begins_at, node.theta)
        training = TrainingReport(1.0 / effect.round_id, 100, node.train_s, node.theta, length(delta.values))
        held = None if effect.room is None else hold_own(effect.parameters, delta, effect.room, effect.earlier)
        return node.train_s, LocalDeltaReady(effect.round_id, delta, training, held)
    if type(effect) is Evaluate:
        node.trained_from = None
        return _EVALUATION_S, Evaluated(effect.round_id, no_evaluation(1))
    if type(effect) is RecallDelta:
        values = None
        if node.trained_from is effect.parameters:  # else its model holds other parameters by now
            values = accounts.recall(node.contributor, effect.round_id, effect.parameters)
        return _RECALL_S, hold_recalled(effect, DeltaRecalled(effect.round_id, values))
    if type(effect) is MergeDeltas:
        return _MERGED_S, merge_deltas(effect, losses=_Length())
    work = VECTOR_WORK.get(type(effect))
    return (_VECTOR_WORK_S, work(effect)) if work else None


def as_delivered(node: Node, event: Event) -> Event:
    """Return the event as delivered after a possible pause: a pause cuts off training under way."""
    if type(event) is PauseChanged and event.reason:
        node.is_cut_off = True
    if type(event) is LocalDeltaReady and node.is_cut_off:
        node.is_cut_off, node.trained_from = False, None
        return TrainingPaused(event.round_id)
    return event


def note_delivered(event: Event, accounts: Accounts) -> None:
    """Count own work from now on: its machine is about to hear of it."""
    if type(event) is LocalDeltaReady:
        accounts.deliver(event.delta.values)
    elif type(event) is DeltaRecalled and event.values is not None:
        accounts.deliver(event.values)
