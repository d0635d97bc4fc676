"""A loop of the user's own that gives a round up: what it has left in the model is nobody's delta."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import numpy as np

from mdl.peers.loops import Member
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.machine import DeltaRecalled, LocalDeltaReady, RecallDelta, TrainingPaused, TrainLocally
from mdl.protocol.vocabulary import TrainingReport

START, LATER = (np.full(4, value, np.float32) for value in (1.0, 2.0))


def test_what_a_round_that_was_given_up_has_left_is_no_earlier_own_delta() -> None:
    member: Any = object.__new__(Member)  # without a mesh
    member._leaving = SimpleNamespace(stays_for=lambda round_id: True)
    member._todo, member._done = queue.SimpleQueue(), queue.SimpleQueue()
    member._flat = SimpleNamespace(values=lambda: LATER)
    delta = ModelDelta(START - LATER, 1.0, frozenset([Contributor("me", 1)]))
    trained = LocalDeltaReady(1, delta, TrainingReport(0.0, 1, 0.0))
    member._done.put(trained)
    assert member._train(TrainLocally(1, START)) is trained
    assert np.array_equal(member._recall(RecallDelta(1, START)).values, START - LATER)
    member._done.put(TrainingPaused(2))
    assert member._train(TrainLocally(2, LATER)) == TrainingPaused(2)
    assert member._recall(RecallDelta(1, START)) == DeltaRecalled(1, None)
