"""How a delta is cut into segments, and which device owns which: the same table on every device of a round."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil

from mdl.bounds import MAX_SEGMENTS
from mdl.errors import RemoteProtocolError

# At most about so many segments: results of some go out while pieces of others come in. More cost messages.
_SEGMENTS = 160
# And each keeps a link busy for so long: less than that is spent on what a message costs both ends.
_SEGMENT_S = 0.004
# Bytes of a segment, a power of two between these. The larger one is what a message carries at once.
SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES = 1 << 14, 1 << 18


def segment_values(size: int, mb_s: float = 0.0, owners: int = 1) -> int:
    """float32 values of one segment, for a delta of `size` values; the last segment may have fewer.

    mb_s: of the links, in MB/s; 0.0: not known. owners: each should have one at least.
    """
    wanted = min(max(4 * size / _SEGMENTS, mb_s * 1e6 * _SEGMENT_S), 4 * size / owners)
    power = 1 << max(0, ceil(wanted) - 1).bit_length()
    return min(max(power, SMALLEST_SEGMENT_BYTES), LARGEST_SEGMENT_BYTES) // 4


def count_segments(size: int, values: int) -> int:
    """Segments of `values` values that a delta of `size` values has."""
    return -(-size // values)


@dataclass(frozen=True)
class Cut:
    """size: values of the delta, P. values: of one segment. owns: how many segments each place of the order owns.

    Each place owns neighbours, in the order of the places. Raises RemoteProtocolError if that is not all of them.
    """

    size: int
    values: int
    owns: tuple[int, ...]

    def __post_init__(self) -> None:
        segments = count_segments(self.size, self.values) if self.values > 0 else 0
        if not 0 < segments <= MAX_SEGMENTS or sum(self.owns) != segments:
            raise RemoteProtocolError(
                f"{sum(self.owns)} segments of {self.values} values, where the model has {self.size}"
            )

    @property
    def segments(self) -> int:
        return self._ends[-1]

    def bounds(self, segment: int) -> slice:
        """The values of a segment. Raises RemoteProtocolError if there is none of this number."""
        if not 0 <= segment < self.segments:
            raise RemoteProtocolError(f"segment {segment} of {self.segments}")
        return slice(segment * self.values, min((segment + 1) * self.values, self.size))

    def owner(self, segment: int) -> int:
        """The place that owns a segment."""
        return bisect_right(self._ends, segment)

    def owned(self, place: int) -> range:
        """The segments that a place owns."""
        end = self._ends[place]
        return range(end - self.owns[place], end)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.owns))
