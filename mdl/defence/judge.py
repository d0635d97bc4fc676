"""Whether a partial mean is merged, merged in part, or refused: by limits that a mesh has learned. Pure.

`mdl/defence/limits.py` has the limits; where they are not known yet this device's own delta is the measure.
docs/design-notes.md says where the numbers come from.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from mdl.defence.limits import Limits
from mdl.defence.marks import Marks

# Above the limit of lengths they are clipped to it, above 1.25 times that refused. As long as the mesh's is not known
# it is so many times the receiver's own.
REFUSED, ALONE = 1.25, 4.0
# What one refusal for length weighs of one for direction: late in a run others have little left to learn, and one has.
_LONG = 0.3
# Work of rounds that did not count comes in one delta, which is so much longer.
MOST_ROUNDS = 16
# Where no global delta is known yet, a cosine to the receiver's own that is clearly against it.
_CLEARLY_AGAINST = -0.3


class Verdict(msgspec.Struct, frozen=True):
    """scale: what of it is merged; 1: as it is, 0: nothing, it is refused. reason: why it is not 1, in words.

    blame: how much a refusal says of its device, from 0 to 1.
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
    """Where means are to be exact: what would be clipped is merged whole if it is of so many rounds, else refused."""
    if verdict.is_refused or verdict.scale == 1.0:
        return verdict
    return Verdict() if verdict.scale * rounds_allowed(rounds) >= 1.0 else Verdict(0.0, verdict.reason, verdict.blame)


def most_length(own_norm: float, limits: Limits) -> float:
    """Longer ones are clipped to it."""
    return limits.length or ALONE * own_norm


def rounds_allowed(rounds: int) -> int:
    """Of how many rounds work may come at once: who was away is clipped for that, and not refused."""
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
