"""What the simulated network charges for values, and what their receiver is told."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import Event, Received, Send, TransferProgressed
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import GlobalMessage, PieceMessage, SegmentMessage
from mdl.protocol.vocabulary import ResourceState
from mdl.sim.mesh.network import Network, SimulatedTransfers

ANN = Contributor("ann", 1)
MODEL = np.arange(256, dtype=np.float32)
PIECE, RESULT = PieceMessage(1, 1, 0, 3, 1.0), SegmentMessage(1, 1, 0, 3)
WHOLE = GlobalMessage(1, 1.0, (ANN,), 1, 0)


def _transfers(**faults: float) -> SimulatedTransfers:
    """A model of 256 values that weighs 10 MB, on links of 5 MB/s."""
    return SimulatedTransfers(Network(np.random.default_rng(0), **faults), 10_000_000, MODEL.size)  # type: ignore[arg-type]


def _begin(transfers: SimulatedTransfers, message: Said, size: int, now: float = 0.0) -> list[tuple[float, Event]]:
    return list(transfers.begin(ANN, Send("bob", message, MODEL[:size]), ResourceState(0, 0.0), now))


@pytest.mark.parametrize("message", [PIECE, RESULT])
def test_a_segment_takes_its_part_of_the_models_time(message: Said) -> None:
    ((delay_s, event),) = _begin(_transfers(), message, 32)
    assert delay_s == pytest.approx(10 / 8 / 5 + 0.005)
    assert isinstance(event, Received)
    assert (event.sender, event.message, event.digest) == (ANN, message, b"")
    assert isinstance(event.values, np.ndarray)
    assert event.values.tolist() == list(range(32))


def test_segments_follow_each_other_on_a_link() -> None:
    transfers = _transfers()
    delays = [_begin(transfers, SegmentMessage(1, 1, 0, number), 64)[0][0] for number in range(4)]
    assert delays == [pytest.approx(0.5 * (number + 1) + 0.005) for number in range(4)]


def test_a_segment_of_one_value_is_no_word() -> None:
    transfers = SimulatedTransfers(Network(np.random.default_rng(0)), 10, MODEL.size)
    ((delay_s, _),) = _begin(transfers, PIECE, 1)
    assert delay_s > 0.005


def test_nobody_writes_to_a_segment_that_comes_in_and_what_comes_is_what_its_sender_has_there_by_then() -> None:
    values = MODEL[:4].copy()
    ((_, event),) = _transfers().begin(ANN, Send("bob", RESULT, values), ResourceState(0, 0.0), 0.0)
    values[:] = 7
    assert isinstance(event, Received)
    assert isinstance(event.values, np.ndarray)
    assert event.values.tolist() == [7, 7, 7, 7]
    with pytest.raises(ValueError, match="read-only"):
        event.values[0] = 1


def test_a_segment_that_is_sent_again_comes_again_and_a_whole_model_does_not() -> None:
    transfers = _transfers()
    assert [len(_begin(transfers, PIECE, 32)) for _ in range(2)] == [1, 1]
    whole = [_begin(transfers, WHOLE, MODEL.size) for _ in range(2)]
    assert [type(event) for _, event in whole[0]] == [Received, *[TransferProgressed] * (len(whole[0]) - 1)]
    assert whole[1] == []


def test_whole_models_keep_their_price_and_their_digest() -> None:
    received = _begin(_transfers(), WHOLE, MODEL.size)[0]
    assert received[0] == pytest.approx(2.005)
    assert isinstance(received[1], Received)
    assert received[1].digest == digest_of(MODEL)


def test_a_segment_may_be_lost_and_may_come_twice() -> None:
    assert _begin(_transfers(loss=1.0), PIECE, 32) == []
    assert [type(event) for _, event in _begin(_transfers(duplication=1.0), PIECE, 32)] == [Received, Received]
