"""Whose delta is not like the others', by the word of several devices that have looked at each. Pure.

What one delta does to the losses of several devices tells lies from other data: a lie raises all of them, other data
raise some and lower others. So those devices count that agree with half of the others on the same deltas; if these are
no majority, data differ too much to tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from statistics import median

import msgspec

from mdl.bounds import within
from mdl.defence.limits import spread

# Two devices agree if their words on the same deltas differ by no more than this share of what deltas do to losses, or
# of the loss of guessing; more harm than so many times that of guessing is not told apart.
_AGREE, _CLOSE, _WORST = 0.6, 0.03, 10.0
# Fewer that agree may do so by chance, and tell little of how much honest deltas differ.
FEWEST = 5
# So many standard deviations above the median, and this share of the loss of guessing, make a delta stand out.
_DEVIATIONS, _RISE = 4.0, 0.2


class Word(msgspec.Struct, frozen=True):
    """What one device tells of another's delta: both peer ids, and rise as in `Seen`."""

    judge: str
    sender: str
    rise: float


def find_odd(words: Collection[Word]) -> dict[str, str] | None:
    """Who stands out, by peer id, and why; None if that cannot be told. Of words on one device the median counts."""
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
    """The devices that agree with half of those who have looked at the same; nobody if they are not most."""
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
