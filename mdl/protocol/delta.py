"""The model delta and the one operation of ChainSGD: merging two partial means.

A partial mean carries its weight theta and the contributors it already holds. Merging adds the thetas up and joins the
contributors, so that the last holder of a chain has exactly the central mean, whatever the order was.
Knows nothing of merge partners and times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mdl.bounds import Incarnation, PeerId, SegmentBits, Theta, ValueCount
from mdl.errors import LocalProtocolError, RemoteProtocolError

Vector: TypeAlias = NDArray[np.float32]
# Merging runs block by block, so that its temporaries stay in the processor's cache: 64 Ki floats are 256 KiB.
_BLOCK = 1 << 16
# A delta beyond this is no training step but a fault or an attack: one such value would drown the mean of all others.
LARGEST_VALUE = 1e6
# Two sums of the same weights differ by the order in which they were added, by less than this part.
THETA_ROUNDING = 1e-6
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
    """A partial mean of model deltas w(t) - w_i.

    values: float32, shape (P,), never changed once here. theta: summed weight of the contributors, > 0 (3.2.2).
    partial: in a result, the further contributors that are in some of its segments.
    """

    values: Vector
    theta: float
    contributors: frozenset[Contributor]
    partial: tuple[Partial, ...] = ()


def pair_aggregate(mine: ModelDelta, theirs: ModelDelta, out: Vector | None = None) -> ModelDelta:
    """Merge two partial means into one (MDLdroid Eq. 3); they must share no contributor.

    The result's values are the theta-weighted mean, float32, shape (P,), written to `out` if given: pass
    `theirs.values` when the incoming delta is not needed any more, and merging takes no memory at all.
    Raises LocalProtocolError if a contributor would count twice or the shapes differ.
    """
    if shared := mine.contributors & theirs.contributors:
        raise LocalProtocolError(f"{min(shared).peer_id} would count twice")
    if mine.values.shape != theirs.values.shape:
        raise LocalProtocolError(f"deltas of {mine.values.size} and {theirs.values.size} values cannot be merged")
    theta = mine.theta + theirs.theta
    values = np.empty_like(mine.values) if out is None else out
    share = np.float32(theirs.theta / theta)
    for start in range(0, values.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        step = theirs.values[block] - mine.values[block]
        step *= share
        np.add(mine.values[block], step, out=values[block])
    return ModelDelta(values, theta, mine.contributors | theirs.contributors)


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


def check_size(values: Vector, size: int) -> None:
    """Raise RemoteProtocolError for another number of values than the model's."""
    if values.shape != (size,):
        raise RemoteProtocolError(f"{values.size} values where the model has {size}")


class Hash:
    """The hash of values that come piece by piece, in order. BLAKE3: some four times as fast as BLAKE2b in hashlib."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, data: bytes | memoryview, /) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        """Return the digest, 16 bytes."""
        return self._hash.digest(length=16)


def digest_of(values: Vector | bytes) -> bytes:
    """Return 16 bytes that tell two vectors, or two packed models, apart."""
    whole = new_hash()
    whole.update(values if isinstance(values, bytes) else np.ascontiguousarray(values).data.cast("B"))
    return whole.digest()


def digest_of_result(values_digest: bytes, partial: tuple[Partial, ...]) -> bytes:
    """Return 16 bytes that name the result of a round: its values, and contributors in some segments only."""
    if not partial:
        return values_digest
    whole = new_hash()
    whole.update(values_digest)
    whole.update(msgspec.msgpack.encode(partial))
    return whole.digest()


def new_hash() -> Hash:
    """Return a hash for values that come piece by piece, in order."""
    return Hash()
