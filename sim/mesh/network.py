"""The simulated network: latency, one rate a device, and faults that may be injected. Pure, seeded, virtual seconds.

Values occupy the sender's uplink and the receiver's downlink one after the other, at the rate of the slower end;
messages without values take the latency alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from mdl.devices.busy_periods import Periods, active_end_s

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
