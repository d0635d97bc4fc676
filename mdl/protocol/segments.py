"""The ways of a whole delta to all devices: its cut into segments with their owners, and the tree of the broadcast.

The table of segments is the same on every device of a round. The tree is binomial (MDLdroid 3.2.3): position 0 is the
root, early positions have most children.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import accumulate
from math import ceil

import numpy as np

from mdl.bounds import MAX_SEGMENTS
from mdl.errors import RemoteProtocolError
from mdl.protocol.checksum import piece_values
from mdl.protocol.delta import Contributor, Partial, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.round_messages import BroadcastOrdered, Lost
from mdl.protocol.vocabulary import Partials

# Limit of about so many segments: results of some go out while pieces of others come in. More cost messages.
_SEGMENTS = 160
# Each keeps a link busy for so long: both ends spend less than that on a message.
_SEGMENT_S = 0.004
# A small model is cut for each device to own a part, but into none that takes a link less: a message costs more.
_LEAST_S = 0.001
# Bytes of a segment on links that nobody has measured: small models end before a link is known.
_UNKNOWN_BYTES = 1 << 16
# Bytes of a segment, a power of two between these. The largest is as much as a message carries at once, for links that
# carry it in _SEGMENT_S: there messages cost most. On other links segments stay smaller, however large the model is.
SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES, _LARGEST_USUAL_BYTES = 1 << 14, 1 << 19, 1 << 18


def places_of(order: BroadcastOrdered) -> list[tuple[Contributor, int]]:
    """Return each device's place when the exchange began, and its number of segments then; also of those lost since.

    Raises RemoteProtocolError if that is no table.
    """
    lost = {each.place: (each.contributor, each.owns) for each in order.lost}
    count = len(order.order) + len(order.lost)
    if len(order.owns) != len(order.order) or len(lost) != len(order.lost) or max(lost, default=0) >= count:
        raise RemoteProtocolError(f"{len(order.owns)} shares for {count} devices")
    here = iter(zip(order.order, order.owns, strict=True))
    return [lost[place] if place in lost else next(here) for place in range(count)]


def segment_values(size: int, mb_s: float = 0.0, owners: int = 1) -> int:
    """Return the float32 values of one segment, for a delta of `size` values; the last segment may have fewer.

    mb_s: of the links, in MB/s; 0.0: not known. owners: each should have one, if that is long enough. Segments are made
    of whole pieces with checksums (`piece_values`).
    """
    least = mb_s * 1e6 * _SEGMENT_S if mb_s else _UNKNOWN_BYTES
    wanted = max(4 * size / _SEGMENTS, least)
    if mb_s:
        wanted = min(wanted, max(4 * size / owners, mb_s * 1e6 * _LEAST_S))
    power = 1 << max(0, ceil(wanted) - 1).bit_length()
    largest = LARGEST_SEGMENT_BYTES if least > _LARGEST_USUAL_BYTES else _LARGEST_USUAL_BYTES
    return max(min(max(power, SMALLEST_SEGMENT_BYTES), largest) // 4, piece_values(size))


def count_segments(size: int, values: int) -> int:
    """Return the number of segments of `values` values in a delta of `size` values."""
    return -(-size // values)


@dataclass(frozen=True)
class SegmentCut:
    """size: values of the delta, P. values: of one segment. owns: number of segments that each place of the order owns.

    Each place owns neighbours, in the order of the places. lost: places that the other owners have taken over since,
    one after the other. Raises RemoteProtocolError if the segments are not those of the delta, or no owner is left.
    """

    size: int
    values: int
    owns: tuple[int, ...]
    lost: tuple[int, ...] = ()

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
        """Return the bounds of a segment's values. Raises RemoteProtocolError if there is none of this number."""
        if not 0 <= segment < self.segments:
            raise RemoteProtocolError(f"segment {segment} of {self.segments}")
        return slice(segment * self.values, min((segment + 1) * self.values, self.size))

    def owner(self, segment: int) -> int:
        """Return the place that owns a segment."""
        return self._owners[segment] if self.lost else bisect_right(self._ends, segment)

    def owned(self, place: int) -> Sequence[int]:
        """Return the segments that a place owns, in their order."""
        if self.lost:
            return [segment for segment, owner in enumerate(self._owners) if owner == place]
        end = self._ends[place]
        return range(end - self.owns[place], end)

    @cached_property
    def _owners(self) -> list[int]:
        """The owners by segment: those of a lost place go to the others, in proportion to what each owned at first."""
        owners = [place for place, count in enumerate(self.owns) for _ in range(count)]
        for number, place in enumerate(self.lost):
            gone = self.lost[: number + 1]
            turns = [(1.0 / count, heir) for heir, count in enumerate(self.owns) if count and heir not in gone]
            if not turns:
                raise RemoteProtocolError("segments that nobody is left to own")
            heapify(turns)
            for segment in [segment for segment, owner in enumerate(owners) if owner == place]:
                turn, heir = turns[0]
                owners[segment] = heir
                heapreplace(turns, (turn + 1.0 / self.owns[heir], heir))
        return owners

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.owns))


def to_bits(segments: Iterable[int], count: int) -> bytes:
    """Return one bit for each of `count` segments, 1 for those named."""
    flags = np.zeros(count, np.bool_)
    flags[list(segments)] = True
    return np.packbits(flags, bitorder="little").tobytes()


def has_bit(bits: bytes, segment: int) -> bool:
    """Return True if a segment's bit is 1; those beyond the end are 0."""
    return segment >> 3 < len(bits) and bool(bits[segment >> 3] >> (segment & 7) & 1)


def mask_of(bits: bytes, values: int, size: int) -> np.typing.NDArray[np.bool_]:
    """Return for each of `size` values True if the bit of its segment of `values` values is 1."""
    segments = count_segments(size, values)
    flags = np.zeros(segments, np.bool_)
    known = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:segments]
    flags[: known.size] = known
    return np.repeat(flags, values)[:size]


def share_counted(partial: Partial, size: int) -> float:
    """Return the share of a model of `size` values that has the work of a lost contributor, 0 to 1."""
    return 1.0 - float(mask_of(partial.lacks, partial.segment_values, size).mean())


def partials_of(lost: Sequence[Lost], without: Mapping[int, Sequence[int]], segments: int, values: int) -> Partials:
    """Return the lost contributors that are in some of a result's segments, each with the segments that lack it.

    without: segment -> its missing contributors, by their number among the lost; segments that have all are left out.
    values: of one segment.
    """
    lacks = [[segment for segment, missing in without.items() if place in missing] for place in range(len(lost))]
    return tuple(
        Partial(each.contributor, each.theta, values, to_bits(lacking, segments) if lacking else b"")
        for each, lacking in zip(lost, lacks, strict=True)
        if len(lacking) < segments
    )


def theta_by_value(result: PartialSum) -> Vector:
    """Return the weight behind each value of a result, float32: partial contributors count in their segments only."""
    thetas = np.full(result.values.size, result.theta, np.float32)
    for each in result.partial:
        thetas[~mask_of(each.lacks, each.segment_values, thetas.size)] += np.float32(each.theta)
    return thetas


def split_values(whole: Vector, bits: bytes, values: int) -> tuple[Vector, Vector]:
    """Return the values in the segments with bit 1, and the rest: two vectors of the same size, zero elsewhere."""
    mask = mask_of(bits, values, whole.size)
    inside = np.where(mask, whole, np.float32(0.0))
    return inside, np.where(mask, np.float32(0.0), whole)


def tree_parent(position: int) -> int | None:
    """Return the position that feeds this one; None for the root. In round k 2^k positions have the values."""
    return None if position == 0 else position & ~(1 << (position.bit_length() - 1))


def tree_children(position: int, count: int) -> list[int]:
    """Return the positions that this one feeds among `count` peers, the one with the largest subtree first."""
    reach = 1 << position.bit_length()
    children = []
    while position + reach < count:
        children.append(position + reach)
        reach <<= 1
    return children
