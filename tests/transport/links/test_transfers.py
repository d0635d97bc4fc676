"""Which messages bring a frame beside them, and which may not."""

import logging
import re

import numpy as np
import pytest
import zmq

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.checksum import checksum_of
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.round_messages import PieceMessage, SegmentMessage, SegmentTaken
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES
from mdl.transport.limits import LogLimit
from mdl.transport.links.transfers import Transfers, check_frames
from mdl.transport.wire.bulk import Outgoing
from mdl.transport.wire.codec import ChunkSent, decode, encode

ANN = Contributor("ann", 1)
PIECE, RESULT, TAKEN = (
    PieceMessage(3, 70_000, 1, 5, 2.0),
    SegmentMessage(3, 70_000, 1, 5),
    SegmentTaken(3, 70_000, 1, 5),
)
VALUES = np.arange(10, dtype=np.float32)


@pytest.fixture
def transfers():
    transfers = Transfers(1 << 20, LogLimit(logging.getLogger(__name__)))
    yield transfers
    transfers.close()


def take(transfers, message, *payloads):
    frames = [zmq.Frame(encode(ANN, message)), *map(zmq.Frame, payloads)]
    envelope = decode(frames[0].buffer)
    check_frames(envelope, frames)
    return transfers.take(envelope, frames, 1.0)


@pytest.mark.parametrize("message", [PIECE, RESULT])
def test_a_segment_leaves_at_once_and_comes_in_whole(transfers, message):
    (outgoing,) = transfers.send("bob", message, VALUES, 0.0)
    assert outgoing == Outgoing("bob", message, memoryview(VALUES).cast("B"), 0)
    assert len(transfers) == 0, "nothing is kept of it: its sender asks for it again if it is lost"
    (received,) = take(transfers, message, bytes(outgoing.payload))
    assert received == Received(ANN, message, received.values, checksum=checksum_of(VALUES.view(np.int32)))
    assert received.values.tolist() == VALUES.tolist()


@pytest.mark.parametrize("message", [PIECE, RESULT])
def test_a_segment_needs_just_its_values(transfers, message):
    for values in (None, VALUES[:0], np.zeros((LARGEST_SEGMENT_BYTES >> 2) + 1, np.float32)):
        with pytest.raises(LocalProtocolError):
            transfers.send("bob", message, values, 0.0)
    for payloads in ((), (bytes(3),), (b"",), (bytes(4), bytes(4)), (bytes(LARGEST_SEGMENT_BYTES + 4),)):
        with pytest.raises(RemoteProtocolError):
            take(transfers, message, *payloads)


def test_what_carries_nothing_brings_no_frame(transfers):
    assert take(transfers, TAKEN) == [Received(ANN, TAKEN)]
    with pytest.raises(RemoteProtocolError, match=re.escape("SegmentTaken with 1 frames beside it")):
        take(transfers, TAKEN, bytes(4))
    with pytest.raises(LocalProtocolError, match="SegmentTaken carries no values"):
        transfers.send("bob", TAKEN, VALUES, 0.0)
    with pytest.raises(RemoteProtocolError, match="ChunkSent with 0 frames"):
        take(transfers, ChunkSent(1, 0))
