"""Own work, and sums of works with the same fate, so that memory does not grow with rounds and forks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mdl.protocol.grid import Vector
from mdl.protocol.vocabulary import Counted, Lineage

# Bounds of memory, however often a mesh falls apart: trainings known of a sum, works kept apart since another fork has
# or may have counted them too, and sums of rounds.
_TRAININGS_KNOWN, _MOST_APART, _MOST_SUMS = 16, 12, 24
# The last so many rounds of a small model are remembered separately.
_ROUNDS_APART = 4

# In place of a digest in `Work.trained`: training went on from where the round before had left off. The digest that
# follows is of the w at which that round began (`OwnWork`, "overlaps").
AHEAD_OF = b"ahead of "

Round: TypeAlias = tuple[Lineage, int]


class Work(Struct, frozen=True, eq=False):
    """Own work, float32 (P,): one training, or the sum of several that rounds of a fork have counted.

    trained: the round of each training, and the digest of the w at which it began. rounds: rounds with it in their
    own delta. counted: rounds known to have counted it; in a sum, the first entry is the last round, and `since` the
    first. partly: a round that has counted some of its segments; the work is split once its values are here.
    rounded_in: set if this is the remainder that coding rounded off this round's own delta: work only where w holds
    that round.
    """

    values: Vector
    trained: tuple[tuple[int, bytes], ...] = ()
    rounds: tuple[Round, ...] = ()
    counted: tuple[Round, ...] = ()
    since: int = 0
    partly: tuple[Round, Counted] | None = None
    rounded_in: Round | None = None

    @property
    def is_ahead(self) -> bool:
        """True for one training that was done for a round before its w was known."""
        return len(self.trained) == 1 and self.trained[0][1].startswith(AHEAD_OF)

    def is_training(self, round_id: int, digest: bytes) -> bool:
        """Return True for one training for this round that began at, or was counted from, this w."""
        begun = [each for each in self.trained if not each[1].startswith(AHEAD_OF)]
        return begun == [(round_id, digest)]

    def has_counted(self, here: Round) -> bool:
        """Return True if this round has counted it, or part of it if it is a sum."""
        of_sum = bool(self.since) and self.counted[0][0] == here[0] and self.since <= here[1] <= self.counted[0][1]
        return of_sum or here in self.counted

    def given_in(self, here: Round) -> Work:
        """Return the work, marked as part of this round's own delta."""
        return self if here in self.rounds else replace(self, rounds=(*self.rounds, here))

    def counted_in(self, here: Round) -> Work:
        return self if here in self.counted else replace(self, counted=(*self.counted, here))


def total(works: Sequence[Work]) -> Vector | None:
    """Return the sum of the values; None if there are no works. The values of a single work are not copied."""
    return sum((work.values for work in works[1:]), start=works[0].values) if works else None


def add_up_plain(works: Sequence[Work]) -> tuple[Work, ...]:
    """Add up all works that were never given away: they stay together from here on."""
    plain = [work for work in works if not (work.rounds or work.counted or work.rounded_in)]
    values = total(plain) if len(plain) > 1 else None
    if values is None:
        return tuple(works)
    return (Work(values, _known(plain)), *(work for work in works if work not in plain))


def add_up_counted(works: Sequence[Work], round_id: int, is_small: bool) -> tuple[Work, ...]:
    """Add up the works that a fork has counted, seen from round `round_id`. is_small: there is room for several sums.

    A fork may be left in its middle: then the sum that contains this point is lost. So the last rounds of a small model
    stay apart. The rounds before are in sums of 1, 2, 4 ... rounds, none longer than the rounds that came since.
    Work that another fork has counted too, or may count, stays apart. If there is too much of it, works counted by the
    same other forks become one.
    """
    alone: list[Work] = []
    apart: list[Work] = []
    for work in works:
        lineage, last = work.counted[0]
        is_elsewhere = any(other != lineage for other, _ in (*work.counted, *work.rounds))
        (apart if last >= round_id or is_elsewhere else alone).append(work)
    sums = _grouped(alone, lambda work: (work.counted[0][0], _block(work.counted[0][1], round_id - _ROUNDS_APART)))
    if not is_small or len(sums) > _MOST_SUMS:
        sums = _grouped(alone, lambda work: work.counted[0][0])
    if len(apart) > _MOST_APART:
        alike = _grouped(apart, lambda work: (work.counted[0][0], work.counted[1:], work.rounds))
        apart = [_sum(group) if len(group) > 1 else group[0] for group in alike]
    return (*map(_sum, sums), *apart[-_MOST_APART:])


def _block(round_id: int, before: int) -> int:
    """Return the last round of the sum that this one is in: 2^n rounds, ended at least so many before `before`."""
    size, end = 1, round_id
    while (longer := round_id | (2 * size - 1)) + 2 * size <= before:
        size, end = 2 * size, longer
    return end


def _grouped(works: Sequence[Work], by: Callable[[Work], object]) -> list[list[Work]]:
    groups: dict[object, list[Work]] = {}
    for work in works:
        groups.setdefault(by(work), []).append(work)
    return list(groups.values())


def _sum(works: Sequence[Work]) -> Work:
    """Return the sum of works that rounds of one fork, and the same other forks, have counted."""
    first, values = works[0], works[0].values if len(works) == 1 else total(works)
    assert values is not None
    lineage, last = first.counted[0][0], max(work.counted[0][1] for work in works)
    since = min(work.since or work.counted[0][1] for work in works)
    elsewhere = tuple(given for given in first.rounds if given[0] != lineage)
    return Work(values, _known(works), elsewhere, ((lineage, last), *first.counted[1:]), since)


def _known(works: Sequence[Work]) -> tuple[tuple[int, bytes], ...]:
    """Return the first and the last trainings of a sum: a fork is nearly always left at one of its ends."""
    trained, some = tuple(training for work in works for training in work.trained), _TRAININGS_KNOWN // 2
    return trained if len(trained) <= 2 * some else (*trained[:some], *trained[-some:])
