"""Bulk data that comes in: the receiver's side of `mdl.transport.wire.bulk`, a pure state machine.

It decides which offer gets a place, allocates the destination once, and asks for chunks until all are there.

Digests of arriving values are computed beside the loop: 800 MB take 0.3 s, in which no heartbeat would be read. A value
is hashed chunk by chunk while it comes: its digest is there with its last byte, and nobody hashes it again. The same
pass finds values that would poison a model, and adds the checksum of a sum up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError
from mdl.protocol.checksum import add_up, checksum_of
from mdl.protocol.delta import Contributor, check_values, new_hash
from mdl.protocol.machine import Received, TransferProgressed
from mdl.protocol.messages import DIGESTED, PACKED
from mdl.protocol.round_messages import ModelMessage
from mdl.protocol.vocabulary import Bulk, Packed
from mdl.transport.wire.bulk import EXPIRY_S, RETRY_S, WINDOW_BYTES, Outgoing, Rhythm, Step, TransferPace, window_bytes
from mdl.transport.wire.codec import (
    CHUNK_BYTES,
    MAX_STREAMS,
    SMALLEST_CHUNK_BYTES,
    Carrier,
    ChunkSent,
    ChunksWanted,
    TransferDropped,
    TransferEnded,
    TransferOffered,
)
from mdl.transport.wire.places import PlacesInLine

# New credit every quarter window: often enough that the sender never waits, seldom enough to cost nothing.
_CREDIT_STEPS = 4
_SIZES = frozenset(1 << power for power in range(SMALLEST_CHUNK_BYTES.bit_length() - 1, CHUNK_BYTES.bit_length()))
# Peers with a remembered rhythm: more than take part in a round with one device.
_MAX_RHYTHMS = 64
# One delta at a time is the rule (3.2.2); the second is a catch-up that may overlap. Bounds the receiver's memory.
MAX_INCOMING = 2
PROGRESS_S = 1.0
# Ids of transfers that arrived, so that a repeated offer is answered "done" instead of fetched again.
_REMEMBERED = 64
# Peers that this node asked for values go before others; it asks again each second or two.
ASKED_S = 30.0
# Peers asked at the same time: a partner, a parent, a peer to catch up with, and those of them that were lost.
_MAX_ASKED = 16
# Smaller values are hashed in the loop: a millisecond, and no thread to hand them to.
_BESIDE_BYTES = 1 << 20


class IncomingHash(Protocol):
    """A hash of values as they come: in order, in pieces of whole values, all but the last of whole blocks of a grid.

    checksum: of integers, once digest was asked for; 0 of parameters. digest raises RemoteProtocolError if a parameter
    is not finite, or beyond 1e6.
    """

    @property
    def checksum(self) -> int: ...

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


MakeHash: TypeAlias = Callable[[int, bool], IncomingHash]


def make_hash(size_bytes: int, is_model: bool) -> IncomingHash:
    """Return a hash that works at once. is_model: the values are parameters, float32, and checked; else integers."""
    return CheckedHash() if is_model else SumHash()


class HashThread:
    """Hashes of all values of one node; the thread starts with the first large one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mdl-hash")

    def new(self, size_bytes: int, is_model: bool) -> IncomingHash:
        """Return a hash for values of this size. is_model: as in `make_hash`."""
        made = make_hash(size_bytes, is_model)
        return _Beside(self._thread, made) if size_bytes >= _BESIDE_BYTES else made

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class SumHash:
    """A hash of integers, with their checksum; see `IncomingHash`."""

    def __init__(self) -> None:
        self.checksum = 0
        self._hash = new_hash()
        self._values = 0

    def update(self, data: memoryview, /) -> None:
        self._hash.update(data)
        sums = np.frombuffer(data, np.int32)
        self.checksum = add_up((self.checksum, checksum_of(sums, self._values)))
        self._values += sums.size

    def digest(self) -> bytes:
        return self._hash.digest()


class CheckedHash:
    """A hash that checks its values; see `IncomingHash`."""

    checksum = 0

    def __init__(self) -> None:
        self._hash = new_hash()
        self._problem: RemoteProtocolError | None = None

    def update(self, data: memoryview, /) -> None:
        self._hash.update(data)
        values = np.frombuffer(data, np.float32)
        try:
            check_values(values, values.size)
        except RemoteProtocolError as error:
            self._problem = error

    def digest(self) -> bytes:
        if self._problem:
            raise self._problem
        return self._hash.digest()


class _Beside:
    """A hash that another thread computes; `digest` waits for it. The data must not change until then."""

    def __init__(self, thread: ThreadPoolExecutor, made: IncomingHash) -> None:
        self._thread = thread
        self._hash = made
        self._last: Future[None] | None = None

    @property
    def checksum(self) -> int:
        return self._hash.checksum

    def update(self, data: memoryview, /) -> None:
        self._last = self._thread.submit(self._hash.update, data)

    def digest(self) -> bytes:
        if self._last is not None:
            self._last.result()
        return self._hash.digest()


@dataclass
class _Receiving:
    """A transfer that comes in.

    came_at: the time of the last new chunk. ahead: start -> end of chunks here that lie beyond the offset.
    streams: connections that carry it; with several, a gap is no loss.
    """

    message: Carrier
    buffer: NDArray[np.uint8]
    pace: TransferPace
    asked_at: float
    reported_at: float
    came_at: float
    rhythm: Rhythm
    limit: int = 0
    retries: int = 0
    streams: int = 1
    ahead: dict[int, int] = field(default_factory=dict)
    asked_offset: int = field(default=-1)
    hash: IncomingHash | None = None

    @property
    def data(self) -> memoryview:
        return self.buffer.data

    def values(self) -> Bulk:
        """Return the values of a whole transfer: a vector in the memory that it came into."""
        return Packed(self.data) if isinstance(self.message, PACKED) else self.buffer.view("<f4")

    @property
    def offset(self) -> int:
        """The offset before which all bytes are here."""
        return self.pace.moved

    def patience_s(self) -> float:
        """Return the pause after which to ask again: a slow link is not broken, and repetition makes it slower.

        Short enough for a second try before the transfer expires.
        """
        return self.rhythm.patience_s(EXPIRY_S / 2)

    def store(self, start: int, payload: memoryview, now: float) -> bool:
        """Put a chunk into place, also ahead of missing ones; return True if it is new."""
        end = start + len(payload)
        if start < self.offset or start in self.ahead:
            return False
        self.data[start:end] = payload
        self.ahead[start] = end
        reached = self.offset
        while reached in self.ahead:
            reached = self.ahead.pop(reached)
        if reached > self.offset:
            self.pace.move(reached, now)
            self.ahead = {start: end for start, end in self.ahead.items() if start > reached}
        return True


class IncomingTransfers:
    """The receiver's side: at most MAX_INCOMING destinations, each at most `max_bytes` large.

    Each sender has one place at most: neither two transfers nor a slow one give it more (`mdl.transport.wire.places`).
    make_hash: returns the hash for values with a wanted digest (DIGESTED), by their size in bytes; True: of a model.
    """

    def __init__(self, max_bytes: int, make_hash: MakeHash = make_hash) -> None:
        self.max_bytes = max_bytes
        self._make_hash = make_hash
        self._receiving: dict[tuple[Contributor, int], _Receiving] = {}
        self._arrived: deque[tuple[Contributor, int]] = deque(maxlen=_REMEMBERED)
        self._missed: deque[tuple[Contributor, int]] = deque(maxlen=_REMEMBERED)  # chunks came before their offer
        self._places = PlacesInLine(MAX_INCOMING, 3 * RETRY_S)
        self._asked: dict[str, float] = {}
        self._rhythms: dict[str, Rhythm] = {}

    def ask(self, peer_id: str, now: float) -> None:
        """Note that this node has asked a peer for values: its offer goes before unasked ones."""
        self._asked.pop(peer_id, None)
        self._asked[peer_id] = now
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def __len__(self) -> int:
        return len(self._receiving)

    def on_offered(self, sender: Contributor, offered: TransferOffered, now: float) -> list[Step]:
        """Allocate the destination and give the first credit; refuse offers that are too large, or no whole float32.

        An offer that comes again later has its credit repeated. Without a free place it has to come again.
        """
        key = (sender, offered.transfer_id)
        if key in self._arrived:
            return [Outgoing(sender.peer_id, TransferEnded(offered.transfer_id))]
        if receiving := self._receiving.get(key):
            if now - receiving.pace.started_at < RETRY_S / 2:
                return []  # by another connection, answered already
            return [self._wanted(key, receiving, again=False)]
        if offered.size_bytes > self.max_bytes:
            reason = f"{offered.size_bytes} bytes offered, at most {self.max_bytes} are accepted"
            return [Outgoing(sender.peer_id, TransferEnded(offered.transfer_id, reason))]
        if offered.size_bytes % 4 and not isinstance(offered.message, PACKED):
            reason = f"{offered.size_bytes} bytes offered, which is no whole number of float32"
            return [Outgoing(sender.peer_id, TransferEnded(offered.transfer_id, reason))]
        self._drop_former(sender, now)
        steps = self._make_room(sender, now)
        if any(other.peer_id == sender.peer_id for other, _ in self._receiving):
            return steps
        if not self._places.ask(sender.peer_id, now, first=self._is_asked(sender, now)):
            return steps
        buffer = np.empty(offered.size_bytes, np.uint8)
        pace, rhythm = TransferPace(now, now, now), self._rhythm_of(sender.peer_id)
        receiving = _Receiving(offered.message, buffer, pace, now, now, now, rhythm)
        receiving.streams = offered.streams
        if isinstance(offered.message, DIGESTED):
            receiving.hash = self._make_hash(offered.size_bytes, isinstance(offered.message, ModelMessage))
        self._receiving[key] = receiving
        return [*steps, self._wanted(key, receiving, again=key in self._missed)]

    def on_chunk(self, sender: Contributor, chunk: ChunkSent, payload: memoryview, now: float) -> list[Step]:
        """Copy the next chunk into place. Raises RemoteProtocolError if it does not fit; repeated ones are ignored."""
        key = (sender, chunk.transfer_id)
        receiving = self._receiving.get(key)
        if receiving is None:
            if key not in self._missed:
                self._missed.append(key)
            return []
        start, end = chunk.offset_bytes, chunk.offset_bytes + len(payload)
        if start % SMALLEST_CHUNK_BYTES or not (end == len(receiving.data) or len(payload) in _SIZES) or not payload:
            raise RemoteProtocolError(f"a chunk of {len(payload)} bytes at {start} of {len(receiving.data)}")
        if end > min(len(receiving.data), receiving.offset + WINDOW_BYTES + CHUNK_BYTES):
            raise RemoteProtocolError(f"a chunk from {start} to {end}, {receiving.limit} bytes were asked for")
        receiving.pace.heard_at = now
        before = receiving.offset
        if not receiving.store(start, payload, now):
            return []
        if receiving.hash is not None and receiving.offset > before:
            receiving.hash.update(receiving.data[before : receiving.offset])
        if receiving.retries == 0 and receiving.asked_at <= receiving.came_at:
            receiving.rhythm.hear(now - receiving.came_at, len(payload))
        receiving.came_at = now
        if receiving.offset == before:
            return [] if receiving.streams > 1 else self._ask_once(key, receiving, now)
        receiving.retries = 0
        if receiving.offset == len(receiving.data):
            return self._complete(key, receiving)
        steps = self._progress(sender, receiving, now)
        window = window_bytes(receiving.rhythm.chunk_bytes())
        if receiving.limit - receiving.offset <= window - window // _CREDIT_STEPS:
            steps.append(self._wanted(key, receiving, again=False))
        return steps

    def on_dropped(self, sender: Contributor, dropped: TransferDropped) -> None:
        """Free the destination of a transfer that its sender has given up."""
        self._drop((sender, dropped.transfer_id))

    def forget(self, peer_id: str) -> None:
        """Drop all transfers from this peer, and what is known of its link."""
        for key in [key for key in self._receiving if key[0].peer_id == peer_id]:
            self._drop(key)
        self._places.give_back(peer_id)
        self._asked.pop(peer_id, None)
        self._rhythms.pop(peer_id, None)

    def on_time(self, now: float) -> list[Step]:
        """Ask again for chunks that are late; drop transfers without progress."""
        steps: list[Step] = []
        for key, receiving in list(self._receiving.items()):
            if now >= receiving.pace.ends_at():
                since_s, size = now - receiving.pace.started_at, len(receiving.data)
                reason = f"it does not get on: {receiving.offset} of {size} bytes came in {since_s:.0f} s"
                steps.append(self._give_up(key, reason))
            elif now >= self._due(receiving):
                receiving.retries += 1
                receiving.rhythm.doubt()
                receiving.asked_at, receiving.asked_offset = now, -1
                receiving.streams = MAX_STREAMS  # past a connection that waits
                steps.append(self._wanted(key, receiving, again=True))
        return steps

    def deadline(self) -> float | None:
        return min((min(r.pace.ends_at(), self._due(r)) for r in self._receiving.values()), default=None)

    def _due(self, receiving: _Receiving) -> float:
        return max(receiving.pace.heard_at, receiving.asked_at) + receiving.patience_s()

    def _drop_former(self, sender: Contributor, now: float) -> None:
        """Drop transfers that will never be finished: of an earlier incarnation, or abandoned by this one."""
        for key, receiving in list(self._receiving.items()):
            is_silent = key[0] == sender and now - receiving.pace.heard_at >= 2 * receiving.patience_s()
            if is_silent or (key[0].peer_id == sender.peer_id and key[0] < sender):
                self._drop(key)

    def _rhythm_of(self, peer_id: str) -> Rhythm:
        """Return the rhythm of a peer's link, as known from earlier transfers."""
        rhythm = self._rhythms.pop(peer_id) if peer_id in self._rhythms else Rhythm()
        self._rhythms[peer_id] = rhythm
        if len(self._rhythms) > _MAX_RHYTHMS:
            del self._rhythms[next(iter(self._rhythms))]
        return rhythm

    def _is_asked(self, sender: Contributor, now: float) -> bool:
        return now - self._asked.get(sender.peer_id, -inf) < ASKED_S

    def _make_room(self, sender: Contributor, now: float) -> list[Step]:
        """Give up a transfer that nobody asked for if a peer that this node asked would have to wait."""
        last = self._places.last_of_line()
        if last is None or last == sender.peer_id or sender.peer_id in self._places or not self._is_asked(sender, now):
            return []
        return [self._give_up(key, "another one was asked") for key in list(self._receiving) if key[0].peer_id == last]

    def _give_up(self, key: tuple[Contributor, int], reason: str) -> Outgoing:
        self._drop(key)
        return Outgoing(key[0].peer_id, TransferEnded(key[1], reason))

    def _drop(self, key: tuple[Contributor, int]) -> None:
        """Free the memory and the place of a transfer."""
        if self._receiving.pop(key, None) is not None:
            self._places.give_back(key[0].peer_id)

    def _ask_once(self, key: tuple[Contributor, int], receiving: _Receiving, now: float) -> list[Step]:
        """Ask for a missing chunk, once: not again for each chunk of its window, which is on the way and useless."""
        if receiving.asked_offset == receiving.offset:
            return []
        receiving.asked_offset, receiving.asked_at = receiving.offset, now
        return [self._wanted(key, receiving, again=True)]

    def _wanted(self, key: tuple[Contributor, int], receiving: _Receiving, again: bool) -> Outgoing:
        chunk_bytes = receiving.rhythm.chunk_bytes()
        receiving.limit = receiving.offset + window_bytes(chunk_bytes)
        receiving.streams = max(receiving.streams, receiving.rhythm.streams())
        wanted = ChunksWanted(key[1], receiving.offset, receiving.limit, again, chunk_bytes, receiving.streams)
        return Outgoing(key[0].peer_id, wanted)

    def _complete(self, key: tuple[Contributor, int], receiving: _Receiving) -> list[Step]:
        self._drop(key)
        self._asked.pop(key[0].peer_id, None)
        self._arrived.append(key)
        sender, transfer_id = key
        done = Outgoing(sender.peer_id, TransferEnded(transfer_id))
        digest, checksum = b"", 0
        if receiving.hash is not None:
            digest, checksum = receiving.hash.digest(), receiving.hash.checksum
        return [done, Received(sender, receiving.message, receiving.values(), digest, checksum)]

    def _progress(self, sender: Contributor, receiving: _Receiving, now: float) -> list[Step]:
        if now - receiving.reported_at < PROGRESS_S:
            return []
        receiving.reported_at = now
        return [TransferProgressed(sender, receiving.offset, len(receiving.data))]
