"""Judges a partial sum by limits that a mesh has learned: merge it, merge it in part, or refuse it. Pure.

`Marks` are a receiver's measures of a partial sum (MDLdroid 5). Lengths are of whole vectors. Angles are of values at
secret places that the receiver has drawn. 64 Ki of them give a cosine to 0.4 % in a millisecond. An attacker that hides
something among the other values has to guess the places.
`mdl/defence/limits.py` has the limits; while they are not known this device's own delta is the measure.
docs/design-notes.md gives the sources of the numbers.

An owner of segments judges a device's pieces one after the other, and sees a part of each delta, in which a device with
other data may well pull the other way. So it judges only length and a clear turn. A device refused here is judged as a
whole: the agent has the round go on by hops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.defence.limits import Limits

Values = NDArray[np.float32]
Places = NDArray[np.int64]

MOST_PLACES = 1 << 16


class Marks(msgspec.Struct, frozen=True):
    """The measures of one partial sum, or of a device's pieces of one. None: not known.

    norm: its length. own_norm: of the receiver's own delta of this round. contributors: how many are in it.
    cosine: to the receiver's own partial sum. cosine_global: to the last global delta. rounds: the most work in it.
    loss: of the receiver's windows at w, in nats. loss_theirs: likewise after a step along this delta, or along its
    mean over its rounds. classes: of these windows.
    """

    norm: float
    own_norm: float | None = None
    contributors: int = 1
    cosine: float | None = None
    cosine_global: float | None = None
    rounds: int = 1
    loss: float | None = None
    loss_theirs: float | None = None
    classes: int = 2

    @property
    def rise(self) -> float | None:
        """The rise of the receiver's loss; below 0 where the delta is of use to the receiver."""
        return None if self.loss is None or self.loss_theirs is None else self.loss_theirs - self.loss


def draw_places(size: int, rng: np.random.Generator) -> Places | None:
    """Draw the places at which a vector of `size` values is examined, sorted int64; None: everywhere."""
    if size <= MOST_PLACES:
        return None
    return np.unique(rng.integers(0, size, MOST_PLACES))


def length(values: Values) -> float:
    """Return the Euclidean length; inf or nan if the values contain one."""
    return sqrt(float(np.vdot(values, values)))


def cosine(some: Values, others: Values) -> float | None:
    """Return the cosine of two vectors; None if one of them is all zeros and has no angle."""
    lengths = length(some) * length(others)
    return float(np.vdot(some, others)) / lengths if lengths > 0.0 else None


# Deltas above the limit of lengths are clipped to it, above 1.25 times the limit refused. While the mesh's limit is not
# known, it is so many times the receiver's own length.
REFUSED, ALONE = 1.25, 4.0
# Blame of a refusal for length (direction: 1): late in a run one honest device may still learn when others hardly do.
_LONG = 0.3
# One delta may carry the work of uncounted rounds, and is so much longer.
MOST_ROUNDS = 16
# Without a known global delta: a cosine to the receiver's own that is clearly against it.
_CLEARLY_AGAINST = -0.3


class Verdict(msgspec.Struct, frozen=True):
    """The decision on a partial sum. scale: the part to merge; 1: as it is, 0: refused. reason: for a scale below 1.

    blame: the weight of a refusal against its device, from 0 to 1.
    """

    scale: float = 1.0
    reason: str = ""
    blame: float = 1.0

    @property
    def is_refused(self) -> bool:
        return self.scale == 0.0


def judge(marks: Marks, limits: Limits = Limits()) -> Verdict:  # noqa: B008
    if not isfinite(marks.norm):
        return Verdict(0.0, "its length is no number")
    if reason := _judge_angle(marks, limits):
        return Verdict(0.0, reason)
    return _judge_length(marks, limits)


def without_clipping(verdict: Verdict, rounds: int) -> Verdict:
    """Replace clipping where means must be exact: merge whole if so many rounds explain the length, else refuse."""
    if verdict.is_refused or verdict.scale == 1.0:
        return verdict
    return Verdict() if verdict.scale * rounds_allowed(rounds) >= 1.0 else Verdict(0.0, verdict.reason, verdict.blame)


def most_length(own_norm: float, limits: Limits) -> float:
    """Return the length to which longer deltas are clipped."""
    return limits.length or ALONE * own_norm


def rounds_allowed(rounds: int) -> int:
    """Return how many rounds of work may come at once: a device that was away is clipped for that, and not refused."""
    return min(max(rounds, 1), MOST_ROUNDS)


def _judge_length(marks: Marks, limits: Limits) -> Verdict:
    if not marks.own_norm:
        return Verdict()
    limit = most_length(marks.own_norm, limits)
    if marks.norm <= limit:
        return Verdict()
    told = f"it is {marks.norm / marks.own_norm:.3g} times as long as ours; the limit is {limit / marks.own_norm:.3g}"
    is_refused = marks.norm > REFUSED * limit * rounds_allowed(marks.rounds)
    return Verdict(0.0 if is_refused else limit / marks.norm, told, _LONG)


def _judge_angle(marks: Marks, limits: Limits) -> str:
    own, last = marks.cosine, marks.cosine_global
    if own is None:
        return ""
    if last is None:
        return f"it goes against ours (cosine {own:.2f})" if own < _CLEARLY_AGAINST else ""
    if own < 0.0 and last < limits.angle:
        return f"it goes against the last round (cosine {last:.2f}) and ours ({own:.2f})"
    return ""


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
