"""How often a vector of the model's size is hashed in a round: each hash of 46 MB takes 50 ms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mdl.protocol.delta
from mdl.files.checkpoint import ModelCache
from mdl.peers.edge.resume import Origin, describe_state
from mdl.peers.roles.trainer.trainer import TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta, digest_of, pair_aggregate
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Effect, Event, LocalDeltaReady, Received, SaveModel
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    HopOrdered,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import TrainingReport
from mdl.transport.story import Story
from tests.peers.roles.at_once import TrainerAtOnce, name_of, on_way, sum_of

ME, ANN, BOB, AGENT = (Contributor(name, 1) for name in ("me", "ann", "bob", "agent"))
MEMBERS = (ANN, BOB, ME)
W = np.zeros(4, np.float32)
OPENED = RoundOpened(1, 1, digest_of(W), MEMBERS, 1)
READY = LocalDeltaReady(1, ModelDelta(np.ones(4, np.float32), 1.0, frozenset([ME])), TrainingReport(0.5, 100, 1.0))
HOP = HopOrdered(1, 1, 10, ANN)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many were begun since it was asked last."""
    made: list[object] = []
    new_hash = mdl.protocol.delta.new_hash
    monkeypatch.setattr(mdl.protocol.delta, "new_hash", lambda: made.append(0) or new_hash())  # type: ignore[func-returns-value]

    def count() -> int:
        begun = len(made)
        made.clear()
        return begun

    return count


def _play(tmp_path: Path, *events: Event) -> None:
    """As a node does: the machine handles an event, the story notes it, and w is saved."""
    trainer, story, cache = TrainerAtOnce(ME, W, "schema", "lenet", TrainerSettings()), Story(), ModelCache(tmp_path)
    saved = 0
    for at_s, event in enumerate(events):
        effects: list[Effect] = trainer.handle(event, float(at_s))
        story.add(float(at_s), event, effects)
        for effect in effects:
            if isinstance(effect, SaveModel):
                cache.save(describe_state(effect, Origin("home", "schema", "lenet")))
                saved += 1
    assert (trainer.round_id, saved) == (1, 1)


def _told(message: object, sender: Contributor = AGENT, values: Vector | None = None) -> Received:
    digest = digest_of(values) if values is not None and isinstance(message, GlobalMessage) else b""
    return Received(sender, message, values, digest)  # type: ignore[arg-type]


def test_who_receives_the_result_hashes_nothing_but_its_next_model(hashes: Callable[[], int], tmp_path: Path) -> None:
    result = sum_of([2.0] * 4, MEMBERS)
    events = [
        _told(OPENED),
        READY,
        _told(HOP),
        _told(DeltaMessage(1, 10, 1.0, (ANN,)), ANN, on_way([3.0] * 4)),
        _told(DeltaWanted(1, 1, 11), BOB),
        _told(BroadcastOrdered(1, 1, digest_of(W), 1, (BOB, ME, ANN), 3.0, MEMBERS)),
        _told(GlobalMessage(1, 3.0, MEMBERS, 1, 1), BOB, result.values.view(np.float32)),
        _told(RoundClosed(1, 1, name_of(result))),
    ]
    hashes()
    _play(tmp_path, *events)
    assert hashes() == 2  # w(0) when it starts, and w(1)


def test_the_root_hashes_the_result_that_it_has_merged_once_and_its_next_model(
    hashes: Callable[[], int], tmp_path: Path
) -> None:
    incoming = sum_of([3.0] * 4, [ANN, BOB])
    result = pair_aggregate(sum_of(READY.delta.values, [ME]), incoming)
    theirs = _told(DeltaMessage(1, 10, 2.0, (ANN, BOB)), ANN, incoming.values.copy().view(np.float32))
    order = BroadcastOrdered(1, 1, digest_of(W), 1, (ME, BOB, ANN), 3.0, MEMBERS)
    events = [_told(OPENED), READY, _told(HOP), theirs, _told(order), _told(RoundClosed(1, 1, name_of(result)))]
    hashes()
    _play(tmp_path, *events)
    assert hashes() == 3
