"""Whether a partial mean is merged, merged in part, or refused: by limits that are learned from earlier ones. Pure.

Limits of angles and losses are the mesh's (`mdl/defence/limits.py`); that of lengths is this device's, in its own
length, from the median over devices. docs/design-notes.md says where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Collection
from math import exp, isfinite, log
from statistics import median

import msgspec

from mdl.defence.limits import FEW, Limits, spread
from mdl.defence.marks import Marks

# Devices that the limits of lengths are learned from at most.
KEPT = 32
# Lengths, in logarithms of their ratio to the receiver's own: above a limit of 2 to 4 times the usual ratio they are
# clipped, above 1.25 times that refused.
_LEAST, _MOST, _DEVIATIONS, REFUSED = log(2.0), log(4.0), 3.0, 1.25
# Work of rounds that did not count comes in one delta, which is so much longer.
MOST_ROUNDS = 16
# Where no global delta is known yet, a cosine to the receiver's own that is clearly against it.
_CLEARLY_AGAINST = -0.3
# A delta may always raise the loss by this share of the loss of guessing, ln(classes).
_RISE = 0.2


class Record(msgspec.Struct, frozen=True):
    """What a device has seen of the others. ratios: peer id -> the length of the last own delta of it that came alone,
    as logarithm of its ratio to this device's.
    """

    ratios: dict[str, float] = {}

    def with_marks(self, peer_ids: Collection[str], marks: Marks) -> Record:
        """The record that goes on with these, of what those gave; no longer than what would be refused."""
        ratio = _ratio(marks)
        if len(peer_ids) != 1 or marks.rounds != 1 or ratio is None or not isfinite(ratio):
            return self
        (peer_id,) = peer_ids
        others = [each for each in self.ratios.items() if each[0] != peer_id]
        return Record(dict([*others, (peer_id, min(ratio, log(REFUSED * most_length(1.0, self))))][-KEPT:]))


class Verdict(msgspec.Struct, frozen=True):
    """scale: what of it is merged; 1: as it is, 0: nothing, it is refused. reason: why it is not 1, in words."""

    scale: float = 1.0
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        return self.scale == 0.0


def judge(marks: Marks, record: Record, limits: Limits = Limits()) -> Verdict:  # noqa: B008
    if not isfinite(marks.norm):
        return Verdict(0.0, "its length is no number")
    if reason := _judge_angle(marks, limits):
        return Verdict(0.0, reason)
    return _judge_length(marks, record)


def judge_loss(marks: Marks, limits: Limits) -> str:
    """Why it is refused for what it does to the receiver's loss, "" if it is not."""
    rise = marks.rise
    if rise is None:
        return ""
    if not isfinite(rise):
        return "it makes the loss of our windows no number"
    limit = max(limits.rise, _RISE * log(max(marks.classes, 2)))
    return "" if rise <= limit else f"it raises the loss of our windows by {rise:.2f} nats; the limit is {limit:.2f}"


def without_clipping(verdict: Verdict, rounds: int) -> Verdict:
    """Where means are to be exact: what would be clipped is merged whole if it is of so many rounds, else refused."""
    if verdict.is_refused or verdict.scale == 1.0:
        return verdict
    return Verdict() if verdict.scale * rounds_allowed(rounds) >= 1.0 else Verdict(0.0, verdict.reason)


def most_length(own_norm: float, record: Record) -> float:
    """Longer ones are clipped to it."""
    if len(record.ratios) < FEW:
        return own_norm * exp(_MOST)
    ratios = (0.0, *record.ratios.values())
    return own_norm * exp(max(median(ratios), 0.0) + min(max(_DEVIATIONS * spread(ratios), _LEAST), _MOST))


def rounds_allowed(rounds: int) -> int:
    """Of how many rounds work may come at once: who was away is clipped for that, and not refused."""
    return min(max(rounds, 1), MOST_ROUNDS)


def _judge_length(marks: Marks, record: Record) -> Verdict:
    if not marks.own_norm:
        return Verdict()
    limit = most_length(marks.own_norm, record)
    if marks.norm <= limit:
        return Verdict()
    told = f"it is {marks.norm / marks.own_norm:.3g} times as long as ours; the limit is {limit / marks.own_norm:.3g}"
    is_refused = marks.norm > REFUSED * limit * rounds_allowed(marks.rounds)
    return Verdict(0.0 if is_refused else limit / marks.norm, told)


def _judge_angle(marks: Marks, limits: Limits) -> str:
    own, last = marks.cosine, marks.cosine_global
    if own is None:
        return ""
    if last is None:
        return f"it goes against ours (cosine {own:.2f})" if own < _CLEARLY_AGAINST else ""
    if own < 0.0 and last < limits.angle:
        return f"it goes against the last round (cosine {last:.2f}) and ours ({own:.2f})"
    return ""


def _ratio(marks: Marks) -> float | None:
    return log(marks.norm / marks.own_norm) if marks.own_norm and marks.norm > 0.0 else None
