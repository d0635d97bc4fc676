"""The values of one segment, which travel in the frame beside their message: no offer, no credit, and no copy.

A node sends a view of its array. A received segment is a read-only view of the frame from ZeroMQ, so that the frame
lives as long as the values do. Knows no sockets.
"""

from __future__ import annotations

import numpy as np

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.bulk import Bulk
from mdl.protocol.grid import Vector
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES
from mdl.transport.wire.bulk import bytes_of


def pack_segment(values: Bulk | None) -> memoryview:
    """Return the bytes beside a message of SEGMENTS. Raises LocalProtocolError if they are not one segment's values."""
    if not isinstance(values, np.ndarray):
        raise LocalProtocolError(f"a segment with {type(values).__name__} for its values")
    packed = bytes_of(values)
    if len(packed) > LARGEST_SEGMENT_BYTES:
        raise LocalProtocolError(f"a segment of {len(packed)} bytes, at most {LARGEST_SEGMENT_BYTES} travel in one")
    return packed


def read_segment(frame: memoryview) -> Vector:
    """Return the values in a received frame, read-only. Raises RemoteProtocolError unless it holds float32 alone."""
    size = frame.nbytes
    if not 0 < size <= LARGEST_SEGMENT_BYTES or size % 4:
        raise RemoteProtocolError(f"a segment of {size} bytes, not of 1 to {LARGEST_SEGMENT_BYTES // 4} float32")
    values = np.frombuffer(frame, "<f4")
    if not values.flags.aligned:  # short messages lie in the read buffer, one behind the other
        values = values.copy()
    values.flags.writeable = False
    return values
