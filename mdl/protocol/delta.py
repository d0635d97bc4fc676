"""The model delta and the one operation of ChainSGD: merging two partial sums.

A partial sum holds theta_i * delta_i of its contributors as integers (`mdl/protocol/grid.py`), with their weight theta.
Merging adds the integers and the thetas up and joins the contributors. So the last holder of a chain has the same bytes
whatever the order was, and sum / theta is the central mean. Knows nothing of merge partners and times.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mdl.bounds import Incarnation, PeerId, SegmentBits, Theta, ValueCount
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.grid import Grid, Sums, Vector

# A delta beyond this is no training step but a fault or an attack: one such value would drown the mean of all others.
LARGEST_VALUE = 1e6
# Two sums of the same weights differ by the order in which they were added, by less than this part.
THETA_ROUNDING = 1e-6
_THETA_STEPS = 1024
# If the squares of values sum up to less, none of them is beyond LARGEST_VALUE, whatever rounding does to the sum.
_SMALL_SQUARES = 0.9 * LARGEST_VALUE**2


class Contributor(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One start of one peer's process. A restarted peer is another contributor."""

    peer_id: PeerId
    incarnation: Incarnation


class Partial(msgspec.Struct, frozen=True, order=True):
    """A contributor that was lost while a result came about in segments: some of them have its work.

    contributor: the process.
    theta: the weight of its own delta.
    segment_values: values of one segment.
    lacks: one bit for each segment, 1 where its work is not counted (`mdl/protocol/segments.py`).
    """

    contributor: Contributor
    theta: Theta
    segment_values: ValueCount
    lacks: SegmentBits


class ModelDelta(msgspec.Struct, frozen=True):
    """A model delta w(t) - w_i of one device, as it was trained.

    values: float32, shape (P,), never changed once here.
    theta: its weight, > 0 (3.2.2).
    contributors: the one device.
    """

    values: Vector
    theta: float
    contributors: frozenset[Contributor]


class PartialSum(msgspec.Struct, frozen=True):
    """A sum of theta_i * delta_i over its contributors, as integers on the round's grid.

    values: int32, shape (P,), never changed once here.
    theta: summed weight of the contributors, > 0 (3.2.2).
    contributors: the processes with deltas in it.
    room: of the round's grid: sums of two rooms have different units.
    partial: in a result, the further contributors that are in some of its segments.
    """

    values: Sums
    theta: float
    contributors: frozenset[Contributor]
    room: int = 0
    partial: tuple[Partial, ...] = ()


def pair_aggregate(mine: PartialSum, theirs: PartialSum, out: Sums | None = None) -> PartialSum:
    """Merge two partial sums into one (MDLdroid Eq. 3, times theta); they must share no contributor.

    The result's values are the sums' sum, int32, shape (P,), written to `out` if given: pass `theirs.values` when the
    incoming sum is not needed any more, and merging takes no memory at all.
    Raises LocalProtocolError if a contributor would count twice, or the shapes or the grids differ.
    """
    if shared := mine.contributors & theirs.contributors:
        raise LocalProtocolError(f"{min(shared).peer_id} would count twice")
    if mine.values.shape != theirs.values.shape or mine.room != theirs.room:
        raise LocalProtocolError(f"sums of {mine.values.size} and {theirs.values.size} values cannot be merged")
    values = np.add(mine.values, theirs.values, out=out)
    return PartialSum(values, mine.theta + theirs.theta, mine.contributors | theirs.contributors, mine.room)


def weight_of(theta: float) -> float:
    """Return a weight as devices use it: a multiple of 1/1024, so that sums of weights are exact in any order."""
    return max(round(theta * _THETA_STEPS), 1) / _THETA_STEPS


def own_sum(delta: ModelDelta, grid: Grid) -> PartialSum:
    """Return the partial sum of one device's own delta, rounded to the grid."""
    theta = weight_of(delta.theta)
    return PartialSum(grid.to_sums(delta.values, theta), theta, delta.contributors, grid.room)


def apply_delta(parameters: Vector, delta: Vector, eta: float, out: Vector | None = None) -> Vector:
    """Return w(t+1) = w(t) - eta * delta (Algorithm 1), float32 (P,): a new vector, or `out`, which may be `delta`."""
    applied = np.multiply(delta, np.float32(-eta), out=out)
    applied += parameters
    return applied


def central_mean(deltas: Iterable[ModelDelta]) -> NDArray[np.float64]:
    """Return the mean that a server would compute from all deltas (Eq. 1), in float64: to check `pair_aggregate`."""
    total: NDArray[np.float64] | None = None
    theta = 0.0
    for delta in deltas:
        weighted = delta.values.astype(np.float64) * delta.theta
        total = weighted if total is None else total + weighted
        theta += delta.theta
    if total is None:
        raise LocalProtocolError("the mean of no deltas is not defined")
    return total / theta


def check_values(values: Vector, size: int) -> None:
    """Raise RemoteProtocolError for values that would poison a mean: a wrong size, NaN, infinity or |value| > 1e6."""
    check_size(values, size)
    # The sum of squares is quick, and small enough for all but a few; min and max carry NaN and infinity along. A sum
    # that overflows is looked at then, and is no warning's affair: `vdot` gives none.
    if (
        size
        and not np.vdot(values, values) < _SMALL_SQUARES
        and not (np.minimum.reduce(values) >= -LARGEST_VALUE and np.maximum.reduce(values) <= LARGEST_VALUE)
    ):
        raise RemoteProtocolError(f"values that are not finite or beyond {LARGEST_VALUE:g}")


def check_size(values: Vector | Sums, size: int) -> None:
    """Raise RemoteProtocolError for another number of values than the model's."""
    if values.shape != (size,):
        raise RemoteProtocolError(f"{values.size} values where the model has {size}")


class ValuesHash:
    """The hash of values that come piece by piece, in order. BLAKE3: some four times as fast as BLAKE2b in hashlib."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, data: bytes | memoryview, /) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        """Return the digest, 16 bytes."""
        return self._hash.digest(length=16)


def digest_of(values: Vector | Sums | bytes) -> bytes:
    """Return 16 bytes that tell two vectors, or two packed models, apart."""
    whole = new_hash()
    whole.update(values if isinstance(values, bytes) else np.ascontiguousarray(values).data.cast("B"))
    return whole.digest()


def digest_of_result(values_digest: bytes, result: PartialSum) -> bytes:
    """Return 16 bytes that name the result of a round: its integers, their grid, and the contributors with weights.

    values_digest: of the integers. They alone are no result: with another theta or grid they are another mean.
    """
    told = (values_digest, result.theta, result.room, tuple(sorted(result.contributors)), result.partial)
    return blake3(msgspec.msgpack.encode(told)).digest(length=16)


def new_hash() -> ValuesHash:
    """Return a hash for values that come piece by piece, in order."""
    return ValuesHash()
