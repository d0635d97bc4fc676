"""The simulated network: latency, one rate a device, and faults that may be injected. Pure, seeded, virtual seconds.

Values occupy the sender's uplink and the receiver's downlink one after the other, at the rate of the slower end;
messages without values take the latency alone.

`SimulatedTransfers` holds the values that are on their way, tells their progress, and lets them arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

import msgspec
import numpy as np

from mdl.devices.usage import Periods, active_end_s
from mdl.protocol.checksum import add_up, checksum_of, checksums_by_piece, checksums_by_segment, piece_values
from mdl.protocol.coding import pack
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.grid import Sums, Vector
from mdl.protocol.machine import Event, Received, ResourcesSampled, Send, TransferProgressed
from mdl.protocol.messages import DIGESTED, SEGMENTS, Said
from mdl.protocol.round_messages import (
    DeltaMessage,
    GlobalMessage,
    PeerReport,
    PieceMessage,
    SegmentMessage,
    SegmentsReady,
)
from mdl.protocol.vocabulary import ResourceState

# A late message comes up to this much later: longer than any silence or patience of a simulated process.
LATE_S = 6.0
# Random numbers are drawn this many at once: one by one they cost more than the rest of a delivery.
_DRAWN_AT_ONCE = 1024


@dataclass
class Network:
    """rates_mb_s: peer id -> MB/s, both ways. loss, duplication: probabilities per message, control or values; late:
    per message without values, that its way takes up to `LATE_S` longer.

    cuts: (from, to) -> the number of faults that stop this direction at this moment. busy: peer id -> periods in which
    its transfers and merges stand still; merge_mb_s: peer id -> MB/s (without: merging takes no time).
    is_shared: values occupy each end for as long as its own rate takes, as streams that share a link do; nothing stands
    still then, and merging takes no time.
    """

    rng: np.random.Generator
    latency_s: float = 0.005
    jitter_s: float = 0.0
    default_mb_s: float = 5.0
    rates_mb_s: dict[str, float] = field(default_factory=dict)
    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0
    cuts: dict[tuple[str, str], int] = field(default_factory=dict)
    busy: dict[str, Periods] = field(default_factory=dict)
    merge_mb_s: dict[str, float] = field(default_factory=dict)
    is_shared: bool = False
    _up_free_at: dict[str, float] = field(default_factory=dict)
    _down_free_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = chain.from_iterable(self._batches()).__next__

    def rate_mb_s(self, peer_id: str) -> float:
        return self.rates_mb_s.get(peer_id, self.default_mb_s)

    def cut(self, sender: str, receiver: str) -> None:
        self.cuts[sender, receiver] = self.cuts.get((sender, receiver), 0) + 1

    def heal(self, sender: str, receiver: str) -> None:
        left = self.cuts.get((sender, receiver), 0) - 1
        if left > 0:
            self.cuts[sender, receiver] = left
        else:
            self.cuts.pop((sender, receiver), None)

    def deliver(self, sender: str, receiver: str, size_bytes: int, now: float, is_merged: bool = False) -> list[float]:
        """Return when the message has arrived and was merged: no time if it is lost, two if it is duplicated."""
        if self.cuts and (sender, receiver) in self.cuts:
            return []
        draw = self._next
        if self.loss and draw() < self.loss:
            return []
        if size_bytes:
            first = self._arrival(sender, receiver, size_bytes, now, is_merged)
        else:
            first = now + (self.latency_s + (draw() * self.jitter_s if self.jitter_s else 0.0))
            if self.late and draw() < self.late:
                first += draw() * LATE_S
        if self.duplication and draw() < self.duplication:
            if size_bytes:
                return [first, self._arrival(sender, receiver, size_bytes, now, is_merged)]
            return [first, now + (self.latency_s + (draw() * self.jitter_s if self.jitter_s else 0.0))]
        return [first]

    def _arrival(self, sender: str, receiver: str, size_bytes: int, now: float, is_merged: bool) -> float:
        delay_s = self.latency_s + (self._next() * self.jitter_s if self.jitter_s else 0.0)
        size_mb, busy = size_bytes / 1e6, self.busy.get(receiver, ())
        if self.is_shared:
            up_s, down_s = max(now, self._up_free_at.get(sender, 0.0)), max(now, self._down_free_at.get(receiver, 0.0))
            self._up_free_at[sender] = up_s + size_mb / self.rate_mb_s(sender)
            self._down_free_at[receiver] = down_s + size_mb / self.rate_mb_s(receiver)
            return max(self._up_free_at[sender], self._down_free_at[receiver]) + delay_s
        start = max(now, self._up_free_at.get(sender, 0.0), self._down_free_at.get(receiver, 0.0))
        transfer_s = size_mb / min(self.rate_mb_s(sender), self.rate_mb_s(receiver))
        end = active_end_s((self.busy.get(sender, ()), busy), start, transfer_s) if self.busy else start + transfer_s
        if is_merged and receiver in self.merge_mb_s:
            end = active_end_s((busy,), end, size_mb / self.merge_mb_s[receiver])
        self._up_free_at[sender] = self._down_free_at[receiver] = end
        return end + delay_s

    def _batches(self) -> Iterator[list[float]]:
        while True:
            yield self.rng.random(_DRAWN_AT_ONCE).tolist()


# A value of 1 is so much in a mesh of eight devices, and the largest integers are a little more than this.
_ONE, _LARGEST = 2.0**24, 2.0**31 - 2.0**10
_PROGRESS_S = 1.0


class SimulatedTransfers:
    """All values of one mesh that are under way. size_bytes: the network's charge for the whole model's `size`.

    lies, two_faced, alters: see `SimMesh`.
    """

    def __init__(
        self,
        network: Network,
        size_bytes: int,
        size: int,
        lies: Mapping[str, float] = MappingProxyType({}),
        two_faced: Mapping[str, tuple[frozenset[str], float]] = MappingProxyType({}),
        alters: Set[str] = frozenset(),
    ) -> None:
        self._alters = alters
        self._lies = lies
        self._two_faced = two_faced
        self._network = network
        self._size_bytes = size_bytes
        self._size = size
        self._ends: dict[tuple[str, str, Said], float] = {}

    def begin(
        self, sender: Contributor, send: Send, resources: ResourceState, now: float
    ) -> Iterator[tuple[float, Event]]:
        """Yield seconds and events for the receiver; none if the values are lost. resources: the receiver's."""
        values = send.values
        assert isinstance(values, np.ndarray)  # a simulated mesh has no cloud
        if sender.peer_id in self._lies and isinstance(send.message, DeltaMessage | PieceMessage):
            values = _altered(values, self._lies[sender.peer_id], 0.0)
        victims, more = self._two_faced.get(sender.peer_id, ((), 0.0))
        if send.receiver in victims and isinstance(send.message, GlobalMessage | SegmentMessage):
            values = _altered(values, 1.0, more)
        if sender.peer_id in self._alters and _is_of_several(send.message):
            values = values.copy()
            values.view(np.int32)[-1] += 1
        if isinstance(send.message, SEGMENTS):
            yield from self._begin_segment(sender, send, values, now)
            return
        receiver, size_bytes, ends = send.receiver, self._size_bytes, self._ends
        if type(send.message) is GlobalMessage:  # may be only a part of it
            size_bytes = max(1, size_bytes * values.size // self._size)
        transfer = (sender.peer_id, receiver, send.message)
        if ends.get(transfer, 0.0) > now:
            return  # like the transport, it does not start a transfer under way twice
        ends[transfer] = now
        is_merged = type(send.message) is DeltaMessage
        for arrival in self._network.deliver(sender.peer_id, receiver, size_bytes, now, is_merged):
            ends[transfer] = arrival
            if is_merged and receiver in self._network.merge_mb_s:
                yield arrival - now, self._merged(receiver, resources)
            digest = digest_of(values) if isinstance(send.message, DIGESTED) else b""
            yield arrival - now, Received(sender, send.message, values.copy(), digest)
            step = now + _PROGRESS_S
            while step < arrival:
                share = int(size_bytes * (step - now) / (arrival - now))
                yield step - now, TransferProgressed(sender, share, size_bytes)
                step += _PROGRESS_S

    def _begin_segment(
        self, sender: Contributor, send: Send, values: Vector, now: float
    ) -> Iterator[tuple[float, Event]]:
        """Send a segment at its share of the model's bytes. Sent twice it comes twice, read-only, as in the transport.

        The receiver gets the sender's memory as it is on arrival: the sender may have changed it by then.
        """
        is_packed = isinstance(send.message, SEGMENTS) and send.message.is_packed
        travelling = len(pack(values.view(np.int32))) if is_packed else values.nbytes
        size_bytes = max(1, self._size_bytes * travelling // (4 * self._size))
        for arrival in self._network.deliver(sender.peer_id, send.receiver, size_bytes, now):
            given = values.view()
            given.flags.writeable = False
            yield arrival - now, Received(sender, send.message, given)

    def _merged(self, receiver: str, resources: ResourceState) -> Event:
        """Tell how fast the device merges: it reports so after a merge, which here is over when the values arrive."""
        return ResourcesSampled(msgspec.structs.replace(resources, merge_mb_s=self._network.merge_mb_s[receiver]))


def with_checksum(event: Received) -> Received:
    """Return the event with the checksum of its values, as they are on arrival."""
    if not isinstance(event.values, np.ndarray):
        return event  # a forged one, without values
    start = 0 if type(event.message) is GlobalMessage else event.message.start  # type: ignore[union-attr]
    return msgspec.structs.replace(event, checksum=checksum_of(event.values.view(np.int32), start))


def checksums_of_lie(sums: Sums, times: float) -> tuple[int, ...]:
    """Return the checksums of the pieces of a sum that is given so many times as large."""
    return checksums_by_piece(_altered(sums.view(np.float32), times, 0.0).view(np.int32))


def with_checksums_of(message: Said, pieces: tuple[int, ...], size: int) -> Said:
    """Return the message as a device says it with an own delta of `size` values and these pieces' checksums."""
    if type(message) is PeerReport and message.checksum is not None:
        return msgspec.structs.replace(message, checksum=add_up(pieces))
    if type(message) is SegmentsReady and message.checksums:
        values = -(-len(pieces) // len(message.checksums)) * piece_values(size)
        return msgspec.structs.replace(message, checksums=checksums_by_segment(pieces, size, values))
    return message


def without_checksums(message: Said) -> Said:
    """Return the message as a device says it that tells no checksum of its own delta."""
    if type(message) is PeerReport:
        return msgspec.structs.replace(message, checksum=None)
    return msgspec.structs.replace(message, checksums=()) if type(message) is SegmentsReady else message


def _is_of_several(message: Said) -> bool:
    """Return True if it carries a sum of several devices' deltas, or a part of one."""
    if isinstance(message, DeltaMessage):
        return len(message.contributors) > 1
    return isinstance(message, GlobalMessage | SegmentMessage)


def _altered(values: Vector, times: float, more: float) -> Vector:
    """Return other integers of a sum: so many times as large, or so much more."""
    changed = values.view(np.int32) * times + more * _ONE
    sums: Sums = np.rint(np.clip(changed, -_LARGEST, _LARGEST)).astype(np.int32)
    return sums.view(np.float32)
