"""Bulk data on its way: offered, asked for, and sent in chunks, as two pure state machines.

The receiver drives: it checks the offer, allocates the destination once, and gives credit for a window of chunks. The
first window may come right behind the offer, to save a round trip. A receiver without a place for it drops it. Progress
counts only up to the first gap. After a gap or a pause the receiver asks again from its offset, so a broken connection
resumes. Both sides drop a transfer that is silent, stands still or is too slow (`TransferPace`): only bytes that move
keep it alive, not messages about it. A carrier message is delivered whole or not at all. The sender's chunks are views
of its array: nothing is copied there.

`Rhythm` measures the usual pause between one peer's chunks, and the size of a chunk that its link carries in a moment.
Like TCP's measure of round trips (RFC 6298): a smoothed pause and its variation. A doubt doubles the patience until a
chunk comes that was not asked for twice (Karn's algorithm). TCP delivers what was once sent unless a connection breaks,
so asking again too early only doubles the load of a bad link. So the longest recent pause counts too.

The values of one segment travel in the frame beside their message: no offer, no credit, and no copy. A node sends a
view of its array. A received segment is a read-only view of the frame from ZeroMQ, so that the frame lives as long as
the values do. Knows no sockets and no clock.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.coding import pack, unpack
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Received, TransferProgressed
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES
from mdl.protocol.vocabulary import Bulk
from mdl.transport.wire.codec import (
    CHUNK_BYTES,
    MAX_STREAMS,
    SMALLEST_CHUNK_BYTES,
    Body,
    Carrier,
    ChunkSent,
    ChunksWanted,
    TransferDropped,
    TransferEnded,
    TransferOffered,
)

# Credit that keeps a 1 Gbit/s link of 10 ms busy (1.25 MB) with some to spare, and a small device's memory free.
WINDOW_BYTES = 8 * CHUNK_BYTES
# The most messages in a queue for one transfer, however small its chunks are (sockets.BULK_QUEUE).
WINDOW_CHUNKS = 32
# An answer that takes so long means a long way, on which each connection's TCP begins slowly: several begin at once.
LONG_S = 0.1
# One slow answer may come from a busy peer; if all are slow, the way has become longer.
_SLOWER = 1.25
# Receivers with a remembered way: more than one device feeds in a round.
_MAX_WAYS = 64
# The root of a binomial tree over 1024 peers has 10 children; offers hold no copy of the values.
MAX_OUTGOING = 16
# Transfers to one receiver: it takes one at a time, and needs no more to ask for the parts of a result in turn.
MAX_TO_ONE = 4
RETRY_S = 1.0
EXPIRY_S = 10.0
# A window that was repeated in vain keeps the slowest accepted link busy for so long, and brings nothing new.
STALL_S = 30.0
# A chunk each EXPIRY_S, half of which may be repetition: on slower links a small model takes minutes.
SLOWEST_BYTES_S = CHUNK_BYTES / EXPIRY_S / 2
# Before anything is known: a handshake and the first chunk took 3.9 s where a round trip takes 0.6 s.
FIRST_PATIENCE_S = 4.0
SHORTEST_PATIENCE_S = 1.0
# A chunk's time on the link: short enough to see progress, long enough to cost nothing.
CHUNK_S = 0.5
# The chunk of an unknown link: two seconds at 16 KB/s, about the slowest that is accepted (bulk.SLOWEST_BYTES_S).
FIRST_CHUNK_BYTES = 1 << 15
# A link that carries no larger chunks waits much, for losses or for a long way: several connections share it.
STREAMED_CHUNK_BYTES = 1 << 15
# RFC 6298: the weights of a new sample, and the number of deviations that are no accident.
_SHARE, _VARIATION_SHARE, _DEVIATIONS = 1 / 8, 1 / 4, 4
# TCP begins slowly again after each rest, and chunks come in bursts: wait for twice the longest recent pause, which
# fades within some transfers.
_PAUSES, _FADE = 2.0, 0.98


@dataclass(frozen=True)
class Outgoing:
    """A message for `receiver`. stream: its bulk connection, so that no small message waits behind it.

    Bulk connections bring messages in any order. None: the message is small, or asks.
    """

    receiver: str
    body: Body
    payload: memoryview | None = None
    stream: int | None = None


Step: TypeAlias = Outgoing | Received | TransferProgressed


@dataclass
class TransferPace:
    """The progress of a transfer. heard_at: the last valid message. moved_at: the last that increased `moved` bytes."""

    started_at: float
    heard_at: float
    moved_at: float
    moved: int = 0

    def move(self, moved: int, now: float) -> None:
        self.heard_at = self.moved_at = now
        self.moved = moved

    def ends_at(self) -> float:
        """Return the time at which the transfer is given up unless something moves."""
        slowest_at = self.started_at + STALL_S + self.moved / SLOWEST_BYTES_S
        return min(self.heard_at + EXPIRY_S, self.moved_at + STALL_S, slowest_at)


@dataclass
class _Way:
    """The known facts of the way to a receiver. chunk_bytes: as it last asked for them.

    answer_s: the quickest answer to an offer, about a round trip.
    """

    chunk_bytes: int = FIRST_CHUNK_BYTES
    answer_s: float = inf

    def note_answer(self, seconds: float) -> None:
        self.answer_s = min(seconds, _SLOWER * self.answer_s)

    def streams(self) -> int:
        return MAX_STREAMS if LONG_S <= self.answer_s < inf else 1

    def first_chunk_bytes(self) -> int:
        """Return the size of chunks sent before they are asked for; small ones share several connections better."""
        return self.chunk_bytes if self.streams() == 1 else min(self.chunk_bytes, FIRST_CHUNK_BYTES)


@dataclass
class _Sending:
    """A transfer under way. pace: of the receiver's offset.

    furthest: all before it was sent once. repeats: how often the receiver asked again.
    """

    receiver: str
    message: Carrier
    data: memoryview
    pace: TransferPace
    offered_at: float
    streams: int = 1
    furthest: int = 0
    repeats: int = 0
    repeated_at: float = -inf
    wanted: bool = False


class OutgoingTransfers:
    """The sender's side: its offers, and the progress that each receiver has allowed.

    is_ahead: the first window goes with the offer, since receivers have asked for the values that they are offered.
    """

    def __init__(self, is_ahead: bool = True) -> None:
        self._is_ahead = is_ahead
        self._sending: dict[int, _Sending] = {}
        self._ways: dict[str, _Way] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._sending)

    def offer(self, receiver: str, message: Carrier, values: Bulk, now: float) -> list[Step]:
        """Start to send `message` with `values`, unless just that is on its way.

        With MAX_OUTGOING under way the new offer replaces the oldest one that nobody has asked for; if there is none,
        nothing is sent.
        """
        before = [number for number, sending in self._sending.items() if sending.receiver == receiver]
        if any(self._sending[number].message == message for number in before):
            return []
        if len(before) >= MAX_TO_ONE:  # the latest that it asked for counts
            del self._sending[before[0]]
        if len(self._sending) >= MAX_OUTGOING:
            unwanted = next((i for i, s in self._sending.items() if not s.wanted and s.receiver != receiver), None)
            if unwanted is None:
                return []
            del self._sending[unwanted]
        transfer_id, self._next_id = self._next_id, self._next_id + 1
        way, is_first = self._way_to(receiver), all(s.receiver != receiver for s in self._sending.values())
        sending = _Sending(receiver, message, bytes_of(values), TransferPace(now, now, now), now, way.streams())
        self._sending[transfer_id] = sending
        if not (self._is_ahead and is_first):  # it takes one at a time
            return [self._offered(transfer_id)]
        size = way.first_chunk_bytes()
        chunks = self._chunks(transfer_id, 0, window_bytes(size), size, sending.streams)
        used = sorted({chunk.stream for chunk in chunks if chunk.stream is not None})
        return [*(self._offered(transfer_id, stream) for stream in used), *chunks]  # ahead of the chunks on each

    def on_wanted(self, sender: Contributor, wanted: ChunksWanted, now: float) -> list[Step]:
        """Return the chunks that the receiver has given credit for, at most a window of them."""
        sending = self._of(sender, wanted.transfer_id)
        if sending is None:
            return [Outgoing(sender.peer_id, TransferDropped(wanted.transfer_id))]
        size = wanted.chunk_bytes
        if wanted.offset_bytes % SMALLEST_CHUNK_BYTES or wanted.offset_bytes > sending.furthest:
            raise RemoteProtocolError(f"chunks wanted from {wanted.offset_bytes}, {sending.furthest} bytes were sent")
        if wanted.offset_bytes >= len(sending.data):
            raise RemoteProtocolError(f"chunks wanted from {wanted.offset_bytes} of {len(sending.data)} bytes")
        if wanted.offset_bytes < sending.pace.moved:
            return []  # outdated: the receiver has said since that it has more
        sending.pace.heard_at = now
        way = self._way_to(sending.receiver)
        way.chunk_bytes = size
        if not sending.wanted:
            way.note_answer(now - sending.pace.started_at)
        if wanted.offset_bytes > sending.pace.moved or not sending.wanted:
            sending.pace.move(wanted.offset_bytes, now)
        elif wanted.again and now - sending.repeated_at < RETRY_S / 2:
            return []  # a window of megabytes for each small message would be a weapon
        sending.wanted = True
        start = max(sending.furthest, wanted.offset_bytes)
        if wanted.again:
            start, sending.repeated_at, sending.repeats = wanted.offset_bytes, now, sending.repeats + 1
        limit = min(wanted.limit_bytes, wanted.offset_bytes + window_bytes(size))
        return [*self._chunks(wanted.transfer_id, start, limit, size, wanted.streams)]

    def on_ended(self, sender: Contributor, ended: TransferEnded) -> str | None:
        """End a transfer. Returns the receiver's reason if it refused, for the log."""
        if self._of(sender, ended.transfer_id) is None:
            return None
        del self._sending[ended.transfer_id]
        return ended.reason or None

    def forget(self, receiver: str) -> None:
        """Drop what was promised to a receiver that was restarted since."""
        self._ways.pop(receiver, None)
        self._sending = {i: s for i, s in self._sending.items() if s.receiver != receiver}

    def on_time(self, now: float) -> list[Step]:
        """Repeat offers without an answer; drop transfers without progress."""
        self._sending = {i: s for i, s in self._sending.items() if now < s.pace.ends_at()}
        steps: list[Step] = []
        for transfer_id, sending in self._sending.items():
            if now - max(sending.pace.heard_at, sending.offered_at) >= RETRY_S:
                sending.offered_at = now
                steps.append(self._offered(transfer_id))
        return steps

    def deadline(self) -> float | None:
        return min((max(s.pace.heard_at, s.offered_at) + RETRY_S for s in self._sending.values()), default=None)

    def _of(self, receiver: Contributor, transfer_id: int) -> _Sending | None:
        sending = self._sending.get(transfer_id)
        return sending if sending is not None and sending.receiver == receiver.peer_id else None

    def _chunks(self, transfer_id: int, start: int, limit: int, size: int, streams: int) -> list[Outgoing]:
        """Return chunks from start to limit or the values' end. Repeated ones take another connection than before."""
        sending = self._sending[transfer_id]
        chunks: list[Outgoing] = []
        while start < min(limit, len(sending.data)):
            payload = sending.data[start : start + size]
            stream = (start // size + sending.repeats) % streams
            chunks.append(Outgoing(sending.receiver, ChunkSent(transfer_id, start), payload, stream))
            start += len(payload)
        sending.furthest = max(sending.furthest, start)
        return chunks

    def _offered(self, transfer_id: int, stream: int | None = None) -> Outgoing:
        sending = self._sending[transfer_id]
        offered = TransferOffered(transfer_id, len(sending.data), sending.message, sending.streams)
        return Outgoing(sending.receiver, offered, None, stream)

    def _way_to(self, receiver: str) -> _Way:
        if receiver in self._ways:
            way = self._ways.pop(receiver)
        else:  # probably like the best of the others
            way = _Way(answer_s=min((way.answer_s for way in self._ways.values()), default=inf))
        self._ways[receiver] = way
        if len(self._ways) > _MAX_WAYS:
            del self._ways[next(iter(self._ways))]
        return way


def window_bytes(chunk_bytes: int) -> int:
    """Return the credit for chunks of this size."""
    return min(WINDOW_BYTES, WINDOW_CHUNKS * chunk_bytes)


def bytes_of(values: Bulk) -> memoryview:
    """Return values as they travel: their own memory as bytes, copied only for a vector on a big-endian machine."""
    if isinstance(values, bytes):
        if not values:
            raise LocalProtocolError("an empty packed model")
        return memoryview(values)
    if values.ndim != 1 or values.size == 0 or values.dtype != np.float32:
        raise LocalProtocolError(f"bulk values are a float32 vector, not {values.dtype} of shape {values.shape}")
    little = values if sys.byteorder == "little" else values.astype("<f4")
    return np.ascontiguousarray(little).data.cast("B").toreadonly()


class Rhythm:
    """The measured pauses of one link; see the module."""

    def __init__(self) -> None:
        self._pause_s: float | None = None
        self._varies_s = 0.0
        self._longest_s = 0.0
        self._s_per_byte: float | None = None
        self._backoff = 1

    def hear(self, pause_s: float, size_bytes: int) -> None:
        """Note that a chunk that was asked for once came after this pause."""
        self._longest_s = max(pause_s, _FADE * self._longest_s)
        if self._pause_s is None or self._s_per_byte is None:
            self._pause_s, self._varies_s, self._s_per_byte = pause_s, pause_s / 2, pause_s / size_bytes
        else:
            self._varies_s += _VARIATION_SHARE * (abs(pause_s - self._pause_s) - self._varies_s)
            self._pause_s += _SHARE * (pause_s - self._pause_s)
            self._s_per_byte += _SHARE * (pause_s / size_bytes - self._s_per_byte)
        self._backoff = 1

    def doubt(self) -> None:
        """Double the patience: the chunk was asked for again."""
        self._backoff *= 2

    def patience_s(self, longest_s: float) -> float:
        """Return the pause after which chunks are asked for again, at most longest_s."""
        usual_s = FIRST_PATIENCE_S if self._pause_s is None else self._pause_s + _DEVIATIONS * self._varies_s
        return min(max(usual_s, _PAUSES * self._longest_s, SHORTEST_PATIENCE_S) * self._backoff, longest_s)

    def chunk_bytes(self) -> int:
        """Return a power of two that this link carries in about CHUNK_S."""
        if self._s_per_byte is None:
            return FIRST_CHUNK_BYTES
        size = CHUNK_BYTES
        while size > SMALLEST_CHUNK_BYTES and size * self._s_per_byte > CHUNK_S:
            size //= 2
        return size

    def streams(self) -> int:
        """Return the number of connections that chunks are to come by."""
        return 1 if self._s_per_byte is None or self.chunk_bytes() > STREAMED_CHUNK_BYTES else MAX_STREAMS


def pack_segment(values: Bulk | None, is_packed: bool = False) -> memoryview:
    """Return the bytes beside a message of SEGMENTS. Raises LocalProtocolError if they are not one segment's values.

    is_packed: in as few bytes as the integers need.
    """
    if not isinstance(values, np.ndarray):
        raise LocalProtocolError(f"a segment with {type(values).__name__} for its values")
    packed = memoryview(pack(values.view(np.int32))) if is_packed else bytes_of(values)
    if len(packed) > LARGEST_SEGMENT_BYTES:
        raise LocalProtocolError(f"a segment of {len(packed)} bytes, at most {LARGEST_SEGMENT_BYTES} travel in one")
    return packed


def read_segment(frame: memoryview, is_packed: bool = False) -> Vector:
    """Return the values in a received frame, read-only. Raises RemoteProtocolError unless it holds these alone."""
    size = frame.nbytes
    if is_packed:
        return unpack(frame, LARGEST_SEGMENT_BYTES // 4).view(np.float32)
    if not 0 < size <= LARGEST_SEGMENT_BYTES or size % 4:
        raise RemoteProtocolError(f"a segment of {size} bytes, not of 1 to {LARGEST_SEGMENT_BYTES // 4} float32")
    values = np.frombuffer(frame, "<f4")
    if not values.flags.aligned:  # short messages lie in the read buffer, one behind the other
        values = values.copy()
    values.flags.writeable = False
    return values
