"""Whether a partial mean is merged, merged in part, or refused: by limits that are learned from earlier ones. Pure.

A limit stands so far from the median of all that was judged, refused or not: less than half of them cannot move it
far, and what is refused is remembered as no worse than the limit. It is never stricter than a floor, so that what
devices with different data do to each other stays within it. docs/design-notes.md says where these numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, isfinite, log
from statistics import median

import msgspec

from mdl.defence.marks import Marks

# Judged deltas that limits are learned from: some ten rounds of a small mesh. From FEW on the spread of lengths is
# believed, from ENOUGH on what others do to angles and losses.
KEPT, FEW, ENOUGH = 32, 4, 8
# 1.4826 median absolute deviations are a standard deviation of normal values.
_NORMAL = 1.4826
# Lengths, in logarithms of their ratio to the receiver's own: above a limit of 2 to 4 times the usual ratio they are
# clipped, above twice that refused.
_LEAST, _MOST, _DEVIATIONS, REFUSED = log(2.0), log(4.0), 3.0, 2.0
# Work of rounds that did not count comes in one delta, which is so much longer.
MOST_ROUNDS = 16
# Cosines: against the last global delta and against what the receiver holds; where no global delta is known, clearly
# so. Where honest devices go against the last one, too, it takes so much more than they do.
_AGAINST, _CLEARLY_AGAINST, _MORE_THAN_USUAL = -0.2, -0.3, 0.4
# Of the loss of guessing, ln(classes); and so much more than others' deltas usually raise it.
_RISE = 0.5


class Record(msgspec.Struct, frozen=True):
    """What a device has seen of the others, the last KEPT of each.

    ratios: logarithms of lengths, in own ones. angles: cosines to the last global delta. rises: of its loss.
    """

    ratios: tuple[float, ...] = ()
    angles: tuple[float, ...] = ()
    rises: tuple[float, ...] = ()

    def with_marks(self, marks: Marks) -> Record:
        """The record that goes on with these."""
        ratio = _ratio(marks) if marks.contributors == 1 and marks.rounds == 1 else None
        angle, rise = marks.cosine_global, marks.rise
        return Record(
            _add(self.ratios, None if ratio is None else min(ratio, log(REFUSED * most_length(1.0, self)))),
            _add(self.angles, None if angle is None else max(angle, _most_against(self))),
            _add(self.rises, None if rise is None else _worst(rise, _most_rise(self, marks.classes))),
        )


class Verdict(msgspec.Struct, frozen=True):
    """scale: what of it is merged; 1: as it is, 0: nothing, it is refused. reason: why it is not 1, in words."""

    scale: float = 1.0
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        return self.scale == 0.0


def judge(marks: Marks, record: Record) -> Verdict:
    if not isfinite(marks.norm):
        return Verdict(0.0, "its length is no number")
    if reason := _judge_angle(marks, record):
        return Verdict(0.0, reason)
    return _judge_length(marks, record)


def judge_loss(marks: Marks, record: Record) -> str:
    """Why it is refused for what it does to the receiver's loss, "" if it is not. Of what would be merged of it."""
    rise = marks.rise
    if rise is None:
        return ""
    if not isfinite(rise):
        return "it makes the loss of our windows no number"
    limit = _most_rise(record, marks.classes)
    return "" if rise <= limit else f"it raises the loss of our windows by {rise:.2f} nats; the limit is {limit:.2f}"


def without_clipping(verdict: Verdict, rounds: int) -> Verdict:
    """Where means are to be exact: what would be clipped is merged whole if it is of so many rounds, else refused."""
    if verdict.is_refused or verdict.scale == 1.0:
        return verdict
    return Verdict() if verdict.scale * rounds_allowed(rounds) >= 1.0 else Verdict(0.0, verdict.reason)


def most_length(own_norm: float, record: Record) -> float:
    """Longer ones are clipped to it."""
    ratios = (0.0, *record.ratios)
    allowed = min(max(_DEVIATIONS * spread(ratios), _LEAST), _MOST) if len(ratios) >= FEW else _MOST
    return own_norm * exp(max(median(ratios), 0.0) + allowed)


def rounds_allowed(rounds: int) -> int:
    """Of how many rounds work may come at once: who was away is clipped for that, and not refused."""
    return min(max(rounds, 1), MOST_ROUNDS)


def spread(values: Iterable[float]) -> float:
    """A standard deviation that less than half of the values cannot move: by median absolute deviation."""
    known = list(values)
    middle = median(known)
    return _NORMAL * median(abs(value - middle) for value in known)


def _judge_length(marks: Marks, record: Record) -> Verdict:
    if not marks.own_norm:
        return Verdict()
    limit = most_length(marks.own_norm, record)
    if marks.norm <= limit:
        return Verdict()
    told = f"it is {marks.norm / marks.own_norm:.3g} times as long as ours; the limit is {limit / marks.own_norm:.3g}"
    is_refused = marks.norm > REFUSED * limit * rounds_allowed(marks.rounds)
    return Verdict(0.0 if is_refused else limit / marks.norm, told)


def _judge_angle(marks: Marks, record: Record) -> str:
    own, last = marks.cosine, marks.cosine_global
    if own is None:
        return ""
    if last is None:
        return f"it goes against ours (cosine {own:.2f})" if own < _CLEARLY_AGAINST else ""
    if own < 0.0 and last < _most_against(record):
        return f"it goes against the last round (cosine {last:.2f}) and ours ({own:.2f})"
    return ""


def _most_against(record: Record) -> float:
    if len(record.angles) < ENOUGH:
        return _AGAINST  # they may all be of one device
    return min(_AGAINST, median(record.angles) - _MORE_THAN_USUAL)


def _most_rise(record: Record, classes: int) -> float:
    floor = _RISE * log(max(classes, 2))
    return floor + max(median(record.rises), 0.0) if len(record.rises) >= ENOUGH else floor


def _worst(rise: float, limit: float) -> float:
    return min(rise, limit) if isfinite(rise) else limit


def _ratio(marks: Marks) -> float | None:
    return log(marks.norm / marks.own_norm) if marks.own_norm and marks.norm > 0.0 else None


def _add(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    return values if value is None or not isfinite(value) else (*values, value)[-KEPT:]
