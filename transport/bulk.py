"""Bulk values on their way: offered, asked for, and sent in chunks, as two pure state machines.

The receiver drives: it checks the offer, allocates the destination once, and gives credit for a window of chunks.
Chunks count only in order; a gap or a pause makes it ask again from where it stands, so a broken connection resumes.
Both sides drop a transfer that is silent, stands still or is too slow (`Pace`): only bytes that move keep it alive, not
messages about it. A carrier message is delivered whole or not at all.
The sender's chunks are views of its array: nothing is copied there. Knows no sockets and no clock.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np

from mdl.delta import Contributor, Vector
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.machine import Received, TransferProgressed
from transport.wire import (
    CHUNK_BYTES,
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
# At most so many messages in a queue for each transfer, however small its chunks are (sockets.BULK_QUEUE).
WINDOW_CHUNKS = 32
# The root of a binomial tree over 1024 peers has 10 children; offers hold no copy of the values.
MAX_OUTGOING = 16
RETRY_S = 1.0
EXPIRY_S = 10.0
# A window that was repeated in vain keeps the slowest link that is accepted busy for so long, and brings nothing new.
STALL_S = 30.0
# A chunk each EXPIRY_S, of which repetition may take the half: on slower links a small model takes minutes.
SLOWEST_BYTES_S = CHUNK_BYTES / EXPIRY_S / 2


@dataclass(frozen=True)
class Outgoing:
    """A message for `receiver`; with a payload it goes the bulk way, so that nothing small waits behind it.

    stream: which of the bulk connections; they bring messages in any order.
    """

    receiver: str
    body: Body
    payload: memoryview | None = None
    stream: int = 0


Step: TypeAlias = Outgoing | Received | TransferProgressed


@dataclass
class Pace:
    """How a transfer gets on. heard_at: of any message that fits; moved_at: of one that made `moved` bytes more."""

    started_at: float
    heard_at: float
    moved_at: float
    moved: int = 0

    def move(self, moved: int, now: float) -> None:
        self.heard_at = self.moved_at = now
        self.moved = moved

    def ends_at(self) -> float:
        """When it is given up unless something moves."""
        slowest_at = self.started_at + STALL_S + self.moved / SLOWEST_BYTES_S
        return min(self.heard_at + EXPIRY_S, self.moved_at + STALL_S, slowest_at)


@dataclass
class _Sending:
    """pace: what the receiver has; position: where sending goes on; furthest: all before it was sent once."""

    receiver: str
    message: Carrier
    data: memoryview
    pace: Pace
    offered_at: float
    position: int = 0
    furthest: int = 0
    repeated_at: float = -inf
    wanted: bool = False


class OutgoingTransfers:
    """The sender's side: what it has offered, and how far each receiver has let it go."""

    def __init__(self) -> None:
        self._sending: dict[int, _Sending] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._sending)

    def offer(self, receiver: str, message: Carrier, values: Vector, now: float) -> list[Step]:
        """Start to send `message` with `values`, unless just that is on its way.

        With MAX_OUTGOING under way it takes the place of the oldest offer that nobody has asked for; empty without one.
        """
        if any(s.receiver == receiver and s.message == message for s in self._sending.values()):
            return []
        if len(self._sending) >= MAX_OUTGOING:
            unwanted = next((i for i, s in self._sending.items() if not s.wanted and s.receiver != receiver), None)
            if unwanted is None:
                return []
            del self._sending[unwanted]
        transfer_id, self._next_id = self._next_id, self._next_id + 1
        self._sending[transfer_id] = _Sending(receiver, message, _bytes_of(values), Pace(now, now, now), now)
        return [self._offered(transfer_id)]

    def on_wanted(self, sender: Contributor, wanted: ChunksWanted, now: float) -> list[Step]:
        """The chunks that the receiver has given credit for, at most a window of them."""
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
        if wanted.offset_bytes > sending.pace.moved or not sending.wanted:
            sending.pace.move(wanted.offset_bytes, now)
        elif wanted.again and now - sending.repeated_at < RETRY_S / 2:
            return []  # a window of megabytes for each small message would be a weapon
        sending.wanted = True
        if wanted.again:
            sending.position, sending.repeated_at = wanted.offset_bytes, now
        sending.position = max(sending.position, wanted.offset_bytes)
        limit = min(wanted.limit_bytes, wanted.offset_bytes + window_bytes(size), len(sending.data))
        steps: list[Step] = []
        while sending.position < limit:
            start = sending.position
            sending.position = min(start + size, len(sending.data))
            payload = sending.data[start : sending.position]
            stream = start // size % wanted.streams
            steps.append(Outgoing(sending.receiver, ChunkSent(wanted.transfer_id, start), payload, stream))
        sending.furthest = max(sending.furthest, sending.position)
        return steps

    def on_ended(self, sender: Contributor, ended: TransferEnded) -> str | None:
        """The receiver is done with it. Returns its reason if it refused, for the log."""
        if self._of(sender, ended.transfer_id) is None:
            return None
        del self._sending[ended.transfer_id]
        return ended.reason or None

    def forget(self, receiver: str) -> None:
        """The receiver was started anew: what was promised to its predecessor is void."""
        self._sending = {i: s for i, s in self._sending.items() if s.receiver != receiver}

    def on_time(self, now: float) -> list[Step]:
        """Offer again what nobody has answered; drop what does not get on."""
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

    def _offered(self, transfer_id: int) -> Outgoing:
        sending = self._sending[transfer_id]
        return Outgoing(sending.receiver, TransferOffered(transfer_id, len(sending.data) // 4, sending.message))


def window_bytes(chunk_bytes: int) -> int:
    """Credit for chunks of this size."""
    return min(WINDOW_BYTES, WINDOW_CHUNKS * chunk_bytes)


def _bytes_of(values: Vector) -> memoryview:
    """The vector's own memory as bytes, not a copy of it (but on a big-endian machine)."""
    if values.ndim != 1 or values.size == 0 or values.dtype != np.float32:
        raise LocalProtocolError(f"bulk values are a float32 vector, not {values.dtype} of shape {values.shape}")
    little = values if sys.byteorder == "little" else values.astype("<f4")
    return np.ascontiguousarray(little).data.cast("B").toreadonly()
