"""The values of a segment, between an array and the frame they travel in."""

import numpy as np
import pytest

from mdl.bounds import MAX_HEADER_BYTES
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.bulk import Packed
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from mdl.transport.links.sockets import BULK_QUEUE, RECEIVE_QUEUE
from mdl.transport.wire.codec import CHUNK_BYTES, MAX_FRAME_BYTES
from mdl.transport.wire.segments import pack_segment, read_segment

LARGEST = np.zeros(LARGEST_SEGMENT_BYTES // 4, np.float32)


def test_what_is_packed_is_a_view_of_the_array():
    model = np.arange(100, dtype=np.float32)
    packed = pack_segment(model[10:20])
    model[10] = -7
    assert packed.readonly
    assert np.frombuffer(packed, "<f4").tolist() == [-7, *range(11, 20)]


def test_what_is_read_is_a_read_only_view_of_the_frame():
    frame = bytearray(np.arange(5, dtype="<f4").tobytes())
    values = read_segment(memoryview(frame))
    frame[:4] = np.float32(9).tobytes()
    assert values.tolist() == [9, 1, 2, 3, 4]
    assert not values.flags.writeable


def test_a_frame_at_an_odd_address_is_read_all_the_same():
    frame = bytes(1) + np.arange(5, dtype="<f4").tobytes()
    values = read_segment(memoryview(frame)[1:])
    assert values.flags.aligned
    assert values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, 1, 3, 6, LARGEST_SEGMENT_BYTES + 4])
def test_a_frame_that_holds_no_segment_is_refused(size):
    with pytest.raises(RemoteProtocolError, match=rf"^a segment of {size} bytes"):
        read_segment(memoryview(bytes(size)))


@pytest.mark.parametrize(
    "values",
    [
        None,
        Packed(b"1234"),
        LARGEST[:0],
        np.zeros(LARGEST.size + 1, np.float32),
        LARGEST.astype(np.float64),
        LARGEST[:4].reshape(2, 2),
    ],
)
def test_what_is_no_segment_is_not_sent(values):
    with pytest.raises(LocalProtocolError):
        pack_segment(values)


def test_the_largest_segment_takes_the_room_of_two_chunks_and_no_more_than_a_header_may():
    assert len(pack_segment(LARGEST)) == 2 * CHUNK_BYTES <= MAX_HEADER_BYTES < MAX_FRAME_BYTES
    assert read_segment(memoryview(bytes(2 * CHUNK_BYTES))).size == LARGEST.size


def test_queues_hold_a_megabyte_of_the_smallest_segments():
    assert min(BULK_QUEUE, RECEIVE_QUEUE) * SMALLEST_SEGMENT_BYTES >= 1 << 20
