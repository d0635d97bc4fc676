"""A result that a device has in part: while it comes about in segments, or after an exchange that came to no end.

In the second case only its gaps are fetched. The values that are here need not be believed. The order names the result
by its digest, and the values are hashed once the last gap is filled. If they are another result's after all, all of it
is fetched.
A device may have all of a result, while most devices have another one. Then it compares its values with all that come,
to learn which device gave something else. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from mdl.protocol.delta import Contributor, check_size
from mdl.protocol.grid import Sums
from mdl.protocol.round_messages import GlobalMessage, GlobalWanted
from mdl.protocol.segments import Cut

# Values that are asked for at once, 16 MB: they take so much memory beside the result, and milliseconds to copy.
MOST_AT_ONCE = 1 << 22


class GrowingResult:
    """The result of an exchange. values: int32 (P,). lacking: its segments that are not here.

    Values that are still read may not change under their reader: the result then comes about in other memory from there
    on (`leave`). A large one is not copied at once: at 800 MB that would hold up the device's heartbeats for half a
    second. Each `follow` copies some, and segments that are touched are copied first. behind: the segments that are to
    be copied.
    """

    def __init__(self, values: Sums, cut: Cut) -> None:
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
        """Return the gaps: values that are not here, or not in their place."""
        return join_gaps(map(self._cut.bounds, sorted(self.lacking | self.behind)))

    def part(self, segment: int) -> Sums:
        """Return a segment's values, or the memory for them."""
        bounds = self._cut.bounds(segment)
        if segment in self.behind:
            self.behind.discard(segment)
            self.values[bounds] = self._left[bounds]
        return self.values[bounds]

    def leave(self) -> None:
        """Leave the values that are here unchanged for their readers, and go on in other memory."""
        while self.follow():
            pass
        self._left, self.values = self.values, np.empty_like(self.values)
        self.behind = set(range(self._cut.segments))
        self.follow()

    def follow(self) -> bool:
        """Copy up to MOST_AT_ONCE values of what was left; return True if there are more."""
        for segment in islice(sorted(self.behind), max(1, MOST_AT_ONCE // self._cut.values)):
            self.part(segment)
        if not self.behind:
            self._left = self.values
        return bool(self.behind)


@dataclass
class GappedResult:
    """See the module. digest: of the result that is ordered. values: float32 (P,). gaps: (start, stop), in order.

    givers: for a result that is here, while most devices have another one: gap -> the device that gave these values.
    odd: those givers that gave other values than those that fill the gap.
    """

    digest: bytes
    values: Sums
    gaps: deque[tuple[int, int]]
    givers: Mapping[tuple[int, int], Contributor] = field(default_factory=dict)
    odd: set[Contributor] = field(default_factory=set)

    def ask(self, round_id: int) -> GlobalWanted:
        """Return the request for the first gap."""
        start, stop = self.gaps[0]
        return GlobalWanted(round_id, start, stop)

    def fill(self, message: GlobalMessage, values: Sums) -> bool:
        """Fill the gap asked for; return False if it is another one. Raises RemoteProtocolError for a wrong size."""
        start, stop = message.start, message.stop
        if not self.gaps or (start, stop) != self.gaps[0]:
            return False
        check_size(values, stop - start)
        giver = self.givers.get((start, stop))
        if giver and not np.array_equal(self.values[start:stop], values):
            self.odd.add(giver)
        self.values[start:stop] = values
        self.gaps.popleft()
        return True

    def part_ways(self) -> None:
        """Copy what is changed in place: this object is a copy of another one (`sim/mesh/snapshot.py`)."""
        self.values = self.values.copy() if self.gaps else self.values


def join_gaps(lacking: Iterable[slice]) -> deque[tuple[int, int]]:
    """Return the gaps: neighbouring slices are joined, up to MOST_AT_ONCE values."""
    gaps: deque[tuple[int, int]] = deque()
    for each in lacking:
        if gaps and gaps[-1][1] == each.start and each.stop - gaps[-1][0] <= MOST_AT_ONCE:
            gaps[-1] = gaps[-1][0], each.stop
        else:
            gaps.append((each.start, each.stop))
    return gaps
