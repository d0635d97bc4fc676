"""Own work, and how works of one fate are added up, so that memory does not grow with rounds and forks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mdl.protocol.delta import Vector
from mdl.protocol.vocabulary import Counted, Lineage

# Memory is bounded, however often a mesh falls apart: trainings known of a sum, and works that are known to have been
# given elsewhere, too.
_TRAININGS_KNOWN, _MOST_APART = 16, 12

Round: TypeAlias = tuple[Lineage, int]


class Work(Struct, frozen=True, eq=False):
    """Own work, float32 (P,): one training, or the sum of several that rounds of a fork have counted.

    trained: for which round, and the digest of the w it began at, of each. rounds: those whose own delta it was part
    of. counted: those that are known to have counted it; of a sum, the first entry is the last round, and `since` the
    first. partly: a round that has counted some segments of it, to be split when its values are here.
    """

    values: Vector
    trained: tuple[tuple[int, bytes], ...] = ()
    rounds: tuple[Round, ...] = ()
    counted: tuple[Round, ...] = ()
    since: int = 0
    partly: tuple[Round, Counted] | None = None

    def given_in(self, here: Round) -> Work:
        """The same after it was part of this round's own delta."""
        return self if here in self.rounds else replace(self, rounds=(*self.rounds, here))

    def counted_in(self, here: Round) -> Work:
        return self if here in self.counted else replace(self, counted=(*self.counted, here))


def total(works: Sequence[Work]) -> Vector | None:
    """All of it together; None if there is none."""
    return None if not works else sum((work.values for work in works[1:]), start=works[0].values.copy())


def add_up_plain(works: Sequence[Work]) -> tuple[Work, ...]:
    """One sum of all works that were never given away, as far as it matters: they stay together from here on."""
    plain = [work for work in works if not (work.rounds or work.counted)]
    values = total(plain)
    if values is None or len(plain) < 2:
        return tuple(works)
    return (Work(values, _known(plain)), *(work for work in works if work not in plain))


def add_up_counted(works: Sequence[Work], summed: int, round_id: int) -> tuple[Work, ...]:
    """Of each fork one sum of the works that it has counted up to round `summed`, and one of each round after that.

    They stay apart since a fork may be left before them. So does what another fork has counted, too, or may count, and
    what was counted in this round; of too many, those that only the same others have counted become one.
    """
    sums: dict[Round, list[Work]] = {}
    apart: list[Work] = []
    for work in works:
        lineage, last = work.counted[0]
        if last >= round_id or any(other != lineage for other, _ in (*work.counted, *work.rounds)):
            apart.append(work)
        else:
            sums.setdefault((lineage, max(last, summed)), []).append(work)
    if len(apart) > _MOST_APART:
        apart = _add_up_alike(apart)
    return (*map(_sum, sums.values()), *apart[-_MOST_APART:])


def _add_up_alike(works: Sequence[Work]) -> list[Work]:
    """One sum of those that differ only in which rounds of one fork have counted them."""
    alike: dict[object, list[Work]] = {}
    for work in works:
        alike.setdefault((work.counted[0][0], work.counted[1:], work.rounds), []).append(work)
    return [_sum(group) if len(group) > 1 else group[0] for group in alike.values()]


def _sum(works: Sequence[Work]) -> Work:
    """Of works that rounds of one fork have counted, and the same others."""
    first, values = works[0], works[0].values if len(works) == 1 else total(works)
    assert values is not None
    lineage, last = first.counted[0][0], max(work.counted[0][1] for work in works)
    since = min(work.since or work.counted[0][1] for work in works)
    elsewhere = tuple(given for given in first.rounds if given[0] != lineage)
    return Work(values, _known(works), elsewhere, ((lineage, last), *first.counted[1:]), since)


def _known(works: Sequence[Work]) -> tuple[tuple[int, bytes], ...]:
    """The first trainings of a sum and the last: nearly always it is left at one of its ends."""
    trained, some = tuple(training for work in works for training in work.trained), _TRAININGS_KNOWN // 2
    return trained if len(trained) <= 2 * some else (*trained[:some], *trained[-some:])
