"""A result that a device has in part: as it comes about in segments, and where an exchange came to no end.

Then only its gaps are fetched. What is here need not be believed: the order names the result by its digest, and the
values are hashed once the last gap is filled. If they are another result's after all, all of it is fetched.
Likewise a result that is here in full, while most devices have another one: what comes is compared with it, so that
the device is known that gave something else. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from mdl.protocol.delta import Contributor, Vector, check_size
from mdl.protocol.round_messages import GlobalMessage, GlobalWanted
from mdl.protocol.segments import Cut

# Values that are asked for at once, 16 MB: so much memory it takes beside the result, and some milliseconds to copy.
MOST_AT_ONCE = 1 << 22


class GrowingResult:
    """The result of an exchange. values: float32 (P,). lacking: its segments that are not here.

    What is still read where it lies may not change under its reader: then the result comes about in other memory from
    there on (`leave`). A large one is not copied at once, which would hold up the device's heartbeats for half a second
    at 800 MB, but some at each `follow`, and what is touched first, first. behind: the segments that are to be copied.
    """

    def __init__(self, values: Vector, cut: Cut) -> None:
        self.values = values
        self.lacking = set(range(cut.segments))
        self.behind: set[int] = set()
        self._left = values
        self._cut = cut

    @property
    def is_whole(self) -> bool:
        return not (self.lacking or self.behind)

    @property
    def received_bytes(self) -> int:
        return 4 * self._cut.values * (self._cut.segments - len(self.lacking))

    def gaps(self) -> deque[tuple[int, int]]:
        """What is not here, or not in its place."""
        return join_gaps(map(self._cut.bounds, sorted(self.lacking | self.behind)))

    def part(self, segment: int) -> Vector:
        """A segment's values, or the memory for them."""
        bounds = self._cut.bounds(segment)
        if segment in self.behind:
            self.behind.discard(segment)
            self.values[bounds] = self._left[bounds]
        return self.values[bounds]

    def leave(self) -> None:
        """What is here stays as it is for those that read it, and changes no more."""
        while self.follow():
            pass
        self._left, self.values = self.values, np.empty_like(self.values)
        self.behind = set(range(self._cut.segments))
        self.follow()

    def follow(self) -> bool:
        """Copy up to MOST_AT_ONCE values of what was left; whether there are more."""
        for segment in islice(sorted(self.behind), max(1, MOST_AT_ONCE // self._cut.values)):
            self.part(segment)
        if not self.behind:
            self._left = self.values
        return bool(self.behind)


@dataclass
class GappedResult:
    """See the module. digest: of the result that is ordered. values: float32 (P,). gaps: (start, stop), in order.

    givers: of a result that is here, while most devices have another one: gap -> the device that gave what is there.
    odd: of these, whose values were others than those that fill the gap.
    """

    digest: bytes
    values: Vector
    gaps: deque[tuple[int, int]]
    givers: Mapping[tuple[int, int], Contributor] = field(default_factory=dict)
    odd: set[Contributor] = field(default_factory=set)

    def ask(self, round_id: int) -> GlobalWanted:
        """For the first gap; for all of it if nothing is here."""
        start, stop = self.gaps[0]
        return GlobalWanted(round_id, start, stop)

    def fill(self, message: GlobalMessage, values: Vector) -> bool:
        """Whether this is the gap that is asked for. Raises RemoteProtocolError if it has another number of values."""
        start, stop = message.start, message.stop
        if not self.gaps or (start, stop) != self.gaps[0]:
            return False
        check_size(values, stop - start)
        giver = self.givers.get((start, stop))
        if giver and not np.array_equal(self.values[start:stop].view(np.uint32), values.view(np.uint32)):
            self.odd.add(giver)
        self.values[start:stop] = values
        self.gaps.popleft()
        return True

    def part_ways(self) -> None:
        """This is a copy (`sim/mesh/snapshot.py`): what it changes in place is its own from here on."""
        self.values = self.values.copy() if self.gaps else self.values


def join_gaps(lacking: Iterable[slice]) -> deque[tuple[int, int]]:
    """Neighbours of those that are lacking as one gap, unless that would be more than MOST_AT_ONCE."""
    gaps: deque[tuple[int, int]] = deque()
    for each in lacking:
        if gaps and gaps[-1][1] == each.start and each.stop - gaps[-1][0] <= MOST_AT_ONCE:
            gaps[-1] = gaps[-1][0], each.stop
        else:
            gaps.append((each.start, each.stop))
    return gaps
