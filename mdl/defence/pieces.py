"""Judges a device's pieces of some segments before their owner merges them, one after the other. Pure.

An owner sees a part of each delta, in which a device with other data may well pull the other way. So it judges only
length and a clear turn. A device refused here is judged as a whole: the agent has the round go on by hops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, sqrt

import numpy as np

from mdl.defence.judge import ALONE, REFUSED, rounds_allowed
from mdl.defence.marks import Places, Values, length

# Cosine clearly against both this device's own delta and the last global delta, over no fewer values than these.
_TURNED, _FEWEST = -0.3, 1024


@dataclass
class _Seen:
    """Sums over the pieces of one device: squares of the values, and products with other vectors."""

    squares: float = 0.0
    with_own: float = 0.0
    at_places: float = 0.0
    with_last: float = 0.0
    pieces: int = 0


@dataclass
class PieceJudge:
    """The judge of one exchange. own: this device's delta. owned: its segments to merge. last: global delta, at places.

    times: a device's pieces may be so many times as long as its own. refused: peer id -> reason.
    """

    own: Values
    owned: list[slice]
    places: Places | None = None
    last: Values | None = None
    times: float = ALONE
    refused: dict[str, str] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _own_norm: float = 0.0
    _last_norm: float = 0.0

    def __post_init__(self) -> None:
        parts = [length(self.own[bounds]) for bounds in self.owned]
        self._own_norm = sqrt(sum(part * part for part in parts)) or length(self.own)
        if self.last is not None:
            self._last_norm = sqrt(sum(length(self._last_at(bounds)[0]) ** 2 for bounds in self.owned))

    def look(self, peer_id: str, rounds: int, bounds: slice, values: Values) -> str:
        """Return why this piece is refused, "" if it may be merged. rounds: of work that may come at once."""
        if peer_id in self.refused:
            return self.refused[peer_id]
        seen = self._seen.setdefault(peer_id, _Seen())
        seen.squares += float(np.vdot(values, values))
        seen.with_own += float(np.vdot(values, self.own[bounds]))
        seen.pieces += 1
        if self.last is not None:
            last, there = self._last_at(bounds)
            here = values if there is None else values[there]
            seen.at_places += float(np.vdot(here, here))
            seen.with_last += float(np.vdot(here, last))
        if reason := self._judge_length(seen, rounds) or self._judge_angle(seen):
            self.refused[peer_id] = reason
        return reason

    def _judge_length(self, seen: _Seen, rounds: int) -> str:
        norm, limit = sqrt(seen.squares), REFUSED * self.times * self._own_norm
        limit *= rounds_allowed(rounds)
        if isfinite(norm) and (norm <= limit or not self._own_norm):
            return ""
        return f"its pieces are {norm / self._own_norm:.3g} times as long as ours; at most {limit / self._own_norm:.3g}"

    def _judge_angle(self, seen: _Seen) -> str:
        """Judge the angle once all pieces of the device are here."""
        lengths, last = sqrt(seen.squares) * self._own_norm, sqrt(seen.at_places) * self._last_norm
        count = sum(bounds.stop - bounds.start for bounds in self.owned)
        if seen.pieces < len(self.owned) or count < _FEWEST or not (lengths and last):
            return ""
        own, turned = seen.with_own / lengths, seen.with_last / last
        if own < _TURNED and turned < _TURNED:
            return f"its pieces go against the last round (cosine {turned:.2f}) and ours ({own:.2f})"
        return ""

    def _last_at(self, bounds: slice) -> tuple[Values, Places | None]:
        """Return the last global delta in a segment, and its places there; None: all of them."""
        assert self.last is not None
        if self.places is None:
            return self.last[bounds], None
        low, high = np.searchsorted(self.places, [bounds.start, bounds.stop])
        return self.last[low:high], self.places[low:high] - bounds.start
