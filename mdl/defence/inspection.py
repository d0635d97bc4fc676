"""Finds deltas unlike the others', from the reports of several devices that have tested each. Pure.

The effect of one delta on the losses of several devices tells lies from other data: a lie raises all of them, other
data raise some and lower others. So only devices count that agree with half of the others on the same deltas; if these
are no majority, data differ too much to tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from statistics import median

import msgspec

from mdl.bounds import within
from mdl.defence.limits import spread

# Two devices agree if their reports on the same deltas differ by no more than this share of the deltas' usual effect on
# losses, or of the loss of guessing. Rises beyond the last number times that of guessing are not told apart.
_AGREE, _CLOSE, _WORST = 0.6, 0.03, 10.0
# Fewer devices may agree by chance, and tell little of how much honest deltas differ.
FEWEST = 5
# A delta stands out so many standard deviations above the median, and above it by this share of the loss of guessing.
_DEVIATIONS, _RISE = 4.0, 0.2


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
    limit = median(theirs) + max(_DEVIATIONS * spread(theirs), _RISE)
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
