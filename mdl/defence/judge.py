"""Judges a partial sum by limits that a mesh has learned: merge it, merge it in part, or refuse it. Pure.

`mdl/defence/limits.py` has the limits; while they are not known this device's own delta is the measure.
docs/design-notes.md gives the sources of the numbers.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from mdl.defence.limits import Limits
from mdl.defence.marks import Marks

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
