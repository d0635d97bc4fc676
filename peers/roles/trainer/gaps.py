"""A result that a device has in part, from an exchange that came to no end here: only its gaps are fetched.

What is here need not be believed: the order names the result by its digest, and the values are hashed once the last
gap is filled. If they are another result's after all, all of it is fetched. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mdl.protocol.delta import Vector, check_size
from mdl.protocol.round_messages import GlobalMessage, GlobalWanted

# Values that are asked for at once, 16 MB: so much memory it takes beside the result, and some milliseconds to copy.
MOST_AT_ONCE = 1 << 22


@dataclass
class GappedResult:
    """See the module. digest: of the result that is ordered. values: float32 (P,). gaps: (start, stop), in order."""

    digest: bytes
    values: Vector
    gaps: deque[tuple[int, int]]

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
