"""What the person in front of a device is told, and that nothing is said twice."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest

from mdl.peers.edge.narrate import Narrator
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Effect,
    Event,
    PeerFound,
    Received,
    ResourcesSampled,
    SaveModel,
    Send,
    Tick,
    TrainLocally,
    TransferProgressed,
)
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    ModelWanted,
    RoundOpened,
    SegmentMessage,
)
from mdl.protocol.vocabulary import PeerInfo, ResourceState, Role

ANN, BOB = Contributor("ann", 1), Contributor("bob", 1)
VALUES = np.zeros(4, np.float32)
OPENED = RoundOpened(3, 7, b"", (ANN, BOB))
SAMPLE = ResourcesSampled(ResourceState(1, 1.0))
DELTA = DeltaMessage(7, 1, 1.0, (BOB,))


@dataclass
class Listener:
    """A narrator and what it has said since the last question."""

    caplog: pytest.LogCaptureFixture

    def __post_init__(self) -> None:
        self.narrator = Narrator("home", me="ann", stays_for=lambda round_id: round_id < 99)
        self.caplog.set_level(logging.INFO)

    def hear(self, now: float, event: Event, *effects: Effect) -> list[str]:
        self.caplog.clear()
        self.narrator.look(now, event, list(effects))
        return self.caplog.messages

    def progress(self, now: float, megabytes: float, of: float = 8.0, sender: Contributor = BOB) -> list[str]:
        return self.hear(now, TransferProgressed(sender, round(megabytes * 1e6), round(of * 1e6)))


@pytest.fixture
def listener(caplog: pytest.LogCaptureFixture) -> Listener:
    return Listener(caplog)


def _found(role: Role) -> PeerFound:
    return PeerFound(PeerInfo("x", 1, role, "192.0.2.7", 5750))


def test_a_device_that_follows_says_with_how_many_it_trains(listener: Listener) -> None:
    assert listener.hear(1.0, Received(ANN, OPENED), TrainLocally(7, VALUES)) == ["round 7: training with 2 peers"]
    assert listener.hear(2.0, Received(ANN, OPENED)) == []


def test_a_device_that_leads_says_so_too_though_it_never_receives_its_own_orders(listener: Listener) -> None:
    said = listener.hear(1.0, Tick(), Send("bob", OPENED), TrainLocally(7, VALUES))
    assert said == ["round 7: training with 2 peers"]
    assert listener.hear(9.0, Tick(), TrainLocally(8, VALUES)) == ["round 8: training"]


def test_who_leaves_before_a_round_does_not_say_that_it_trains_for_it(listener: Listener) -> None:
    assert listener.hear(1.0, Tick(), TrainLocally(99, VALUES)) == []


def test_who_catches_up_says_so_once_for_each_source_whoever_leads(listener: Listener) -> None:
    wanted = Send("bob", ModelWanted(6))
    assert listener.hear(1.0, Received(ANN, CatchUp(3, 6, b"", BOB)), wanted) == [
        "fetching the model of round 6 from bob"
    ]
    assert listener.hear(2.0, Tick(), wanted) == []
    assert listener.hear(3.0, Tick(), Send("cat", ModelWanted(6))) == ["fetching the model of round 6 from cat"]
    assert listener.hear(4.0, Tick(), SaveModel(6, VALUES, b"")) == ["round 6: the mesh's model is here"]


def test_who_is_alone_for_some_seconds_hears_once_what_to_do(listener: Listener) -> None:
    assert listener.hear(10.0, SAMPLE) == []
    assert listener.hear(13.0, _found(Role.OBSERVER)) == ["found x (observer) at 192.0.2.7:5750"]
    assert listener.hear(14.0, SAMPLE) == [
        "nobody else of mesh 'home' is found yet; on the other device: mdl peer --mesh NAME (mdl mesh show NAME shows "
        "the code); if it runs already, mdl peer --join HOST:PORT"
    ]
    assert listener.hear(15.0, SAMPLE) == []


@pytest.mark.parametrize("role", [Role.TRAINER, Role.AGENT])
def test_who_has_found_somebody_is_not_told_that_nobody_is_there(listener: Listener, role: Role) -> None:
    listener.hear(10.0, _found(role))
    assert listener.hear(20.0, SAMPLE) == []


def test_a_transfer_that_takes_more_than_five_seconds_is_told_once_with_its_rate(listener: Listener) -> None:
    for second in range(1, 6):
        assert listener.progress(100.0 + second, 0.5 * second) == []
    assert listener.progress(106.0, 3.0) == ["receiving from bob: 3.0 of 8.0 MB after 6 s, 0.50 MB/s (a slow network?)"]
    assert listener.progress(107.0, 3.5) == []


def test_the_next_transfer_is_another_one(listener: Listener) -> None:
    """After one that arrived, one that was dropped and begun again, and one that was forgotten for long."""
    for second in range(1, 7):
        listener.progress(100.0 + second, 1.0 * second)
    listener.hear(107.0, Received(BOB, DELTA, VALUES))
    assert listener.progress(108.0, 7.0) == []
    assert listener.progress(112.0, 1.0) == []
    assert listener.progress(113.0, 2.0) == []
    assert listener.progress(140.0, 3.0) == []
    assert listener.progress(144.9, 4.0) == ["receiving from bob: 4.0 of 8.0 MB after 6 s, 0.20 MB/s (a slow network?)"]


def test_two_transfers_at_a_time_are_told_apart(listener: Listener) -> None:
    for second in range(1, 6):
        listener.progress(100.0 + second, 0.1 * second)
        assert listener.progress(100.5 + second, 0.2 * second, sender=ANN) == []
    assert len(listener.progress(106.0, 0.6)) == 1
    assert listener.progress(106.5, 1.2, sender=ANN)[0].startswith("receiving from ann: 1.2 of 8.0 MB")


def _order(*owns: int, version: int = 1) -> BroadcastOrdered:
    return BroadcastOrdered(3, 7, b"", version, (ANN, BOB), 2.0, (ANN, BOB), owns=owns, segment_values=4)


def _segment(number: int) -> Received:
    return Received(BOB, SegmentMessage(7, 3, 1, number), VALUES)


def test_a_round_in_segments_is_told_once_whoever_leads(listener: Listener) -> None:
    told = ["round 7: the deltas travel in 6 segments, 2 of them merged here"]
    assert listener.hear(0.0, Received(BOB, _order(2, 4))) == told
    assert listener.hear(0.1, Received(BOB, _order(2, 4))) == []
    assert listener.hear(0.2, Tick(), Send("bob", _order(0, 6, version=2))) == [
        "round 7: the deltas travel in 6 segments, none of them merged here"
    ]
    assert listener.hear(0.3, Received(BOB, _order(version=3))) == []  # down the tree


def test_segments_that_take_more_than_five_seconds_are_told_once(listener: Listener) -> None:
    listener.hear(0.0, Received(BOB, _order(2, 4)))
    assert listener.hear(1.0, _segment(2)) == []
    assert listener.hear(6.0, _segment(3)) == [
        "round 7: 2 of 4 segments of others are here after 6 s (a slow network?)"
    ]
    assert listener.hear(7.0, _segment(4)) == []
