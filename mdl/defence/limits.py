"""Limits that a mesh learns from the receivers' reports on its devices' own deltas, and deltas unlike all others. Pure.

One device judges few others, and cannot tell lies from other data by these; all devices together can. Less than a third
of them cannot move a limit far, and where devices have different data the limit is far away.

The effect of one delta on the losses of several devices tells lies from other data: a lie raises all of them, other
data raise some and lower others. So only devices count that agree with half of the others on the same deltas; if these
are no majority, data differ too much to tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil
from statistics import median

import msgspec

from mdl.bounds import MAX_LENGTH, MAX_LOSS, Length, Loss, within

# Rounds that count: each device comes alone in about every second one. Fewer than FEW devices give no limit.
RECENT, FEW = 2, 3
# Standard deviations from the median; and a cosine above the second number is never held against a device.
_DEVIATIONS, AGAINST = 4.0, -0.2
# A delta may be so many times as long as the longest of the shortest two thirds. On UCI HAR an honest one is 1.8
# times the median, also where classes differ much (docs/design-notes.md).
LONGER = 2.0
# 1.4826 median absolute deviations are a standard deviation of normal values.
NORMAL = 1.4826


class OwnDeltaSeen(msgspec.Struct, frozen=True):
    """A receiver's report on a device's own delta that came alone, merged or not.

    rise: how much it would raise the loss of the receiver's windows, as a share of that of guessing, ln(classes); None:
    not tested.
    angle: its cosine to the last global delta; None: not known.
    """

    rise: Loss | None = None
    angle: Loss | None = None


class Limits(msgspec.Struct, frozen=True):
    """The limits for a round's deltas.

    angle: the least cosine to the last global delta.
    length: the greatest; 0.0: not known.
    """

    angle: Loss = AGAINST
    length: Length = 0.0


@dataclass
class MeshKnowledge:
    """An agent's knowledge of its mesh. angles: peer id -> round, and the delta's cosine to the last result."""

    angles: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(self, round_id: int, seen: Mapping[str, OwnDeltaSeen]) -> set[str]:
        """Add the reports of a round; return the devices that stand out, now that all of them are known."""
        self.angles |= {who: (round_id, each.angle) for who, each in seen.items() if each.angle is not None}
        least = self.least_angle(round_id + 1)
        return {who for who, each in seen.items() if each.angle is not None and each.angle < least}

    def least_angle(self, round_id: int) -> float:
        """Return the least cosine allowed in this round, from the RECENT rounds before it."""
        self.angles = {who: each for who, each in self.angles.items() if each[0] >= round_id - RECENT}
        angles = [angle for _, angle in self.angles.values()]
        least = median(angles) - _DEVIATIONS * spread(angles) if len(angles) >= FEW else AGAINST
        return within(least, -MAX_LOSS, AGAINST)


def greatest_length(lengths: Collection[float]) -> float:
    """Return the greatest length allowed, from the devices' reports of their own deltas; 0.0: too few reports."""
    if len(lengths) < FEW:
        return 0.0
    return within(LONGER * sorted(lengths)[ceil(2 * len(lengths) / 3) - 1], 0.0, MAX_LENGTH)


def spread(values: Iterable[float]) -> float:
    """Return a standard deviation that less than half of the values cannot move: by median absolute deviation."""
    known = list(values)
    middle = median(known)
    return NORMAL * median(abs(value - middle) for value in known)


# Two devices agree if their reports on the same deltas differ by no more than this share of the deltas' usual effect on
# losses, or of the loss of guessing. Rises beyond the last number times that of guessing are not told apart.
_AGREE, _CLOSE, _WORST = 0.6, 0.03, 10.0
# Fewer devices may agree by chance, and tell little of how much honest deltas differ.
FEWEST = 5
# A delta stands out so many standard deviations above the median, and above it by this share of the loss of guessing.
_DEVIATIONS_ABOVE, _RISE = 4.0, 0.2


class Word(msgspec.Struct, frozen=True):
    """One device's report on another's delta: both peer ids, and rise as in `Seen`."""

    judge: str
    sender: str
    rise: float


def find_odd(words: Collection[Word]) -> dict[str, str] | None:
    """Return the devices that stand out, by peer id, with the reason; None if that cannot be told.

    The median of several reports on one device counts.
    """
    words = [msgspec.structs.replace(word, rise=within(word.rise, -_WORST, _WORST)) for word in words]
    trusted = find_agreeing(words)
    heard = [word for word in words if word.judge in trusted]
    usual = {sender: median(word.rise for word in heard if word.sender == sender) for sender in _senders(heard)}
    theirs = [rise for sender, rise in usual.items() if sender in trusted]
    if len(theirs) < FEWEST:
        return None
    limit = median(theirs) + max(_DEVIATIONS_ABOVE * spread(theirs), _RISE)
    return {
        sender: f"it raises the loss of others' windows by {rise:.0%} of guessing; the limit is {limit:.0%}"
        for sender, rise in usual.items()
        if rise > limit
    }


def find_agreeing(words: Collection[Word]) -> frozenset[str]:
    """Return the devices that agree with half of those that tested the same deltas; none if they are no majority."""
    size = median(abs(word.rise) for word in words) if words else 0.0
    differ: dict[tuple[str, str], list[float]] = {}
    for sender in _senders(words):
        for one, other in combinations([word for word in words if word.sender == sender], 2):
            for pair in ((one.judge, other.judge), (other.judge, one.judge)):
                differ.setdefault(pair, []).append(abs(one.rise - other.rise))
    agree: dict[str, list[bool]] = {}
    for (judge, _), gaps in differ.items():
        agree.setdefault(judge, []).append(median(gaps) <= max(_AGREE * size, _CLOSE))
    trusted = frozenset(judge for judge, answers in agree.items() if 2 * sum(answers) >= len(answers))
    return trusted if 2 * len(trusted) > len({word.judge for word in words}) else frozenset()


def _senders(words: Iterable[Word]) -> list[str]:
    return sorted({word.sender for word in words})
