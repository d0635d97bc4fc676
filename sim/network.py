"""The simulated network: latency, one rate a device, and faults that may be injected. Pure, seeded, virtual seconds.

Values occupy the sender's uplink and the receiver's downlink one after the other, at the rate of the slower end;
messages without values take the latency alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Network:
    """rates_mb_s: peer id -> MB/s, both ways. loss, duplication: probabilities of one message, control or values."""

    rng: np.random.Generator
    latency_s: float = 0.005
    jitter_s: float = 0.0
    default_mb_s: float = 5.0
    rates_mb_s: dict[str, float] = field(default_factory=dict)
    loss: float = 0.0
    duplication: float = 0.0
    cuts: set[tuple[str, str]] = field(default_factory=set)
    _up_free_at: dict[str, float] = field(default_factory=dict)
    _down_free_at: dict[str, float] = field(default_factory=dict)

    def rate_mb_s(self, peer_id: str) -> float:
        return self.rates_mb_s.get(peer_id, self.default_mb_s)

    def deliver(self, sender: str, receiver: str, size_bytes: int, now: float) -> list[float]:
        """When the message arrives: no time if it is lost, two if it is duplicated."""
        if (sender, receiver) in self.cuts or (self.loss and self.rng.random() < self.loss):
            return []
        copies = 2 if self.duplication and self.rng.random() < self.duplication else 1
        return [self._arrival(sender, receiver, size_bytes, now) for _ in range(copies)]

    def _arrival(self, sender: str, receiver: str, size_bytes: int, now: float) -> float:
        delay_s = self.latency_s + (self.rng.random() * self.jitter_s if self.jitter_s else 0.0)
        if not size_bytes:
            return now + delay_s
        start = max(now, self._up_free_at.get(sender, 0.0), self._down_free_at.get(receiver, 0.0))
        end = start + size_bytes / 1e6 / min(self.rate_mb_s(sender), self.rate_mb_s(receiver))
        self._up_free_at[sender] = self._down_free_at[receiver] = end
        return end + delay_s
