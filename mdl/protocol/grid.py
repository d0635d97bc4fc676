"""The integer grid on which devices round their deltas, so that every order of merging gives the same bytes. Pure.

All devices of a round stand at the same w(r-1). It gives each block of coordinates a unit, a power of two: a sixteenth
of float32's spacing at the block's largest parameter, times the room that the round gives to the sum of the weights. A
device rounds theta_i * delta_i to multiples of it, once. Sums of these are sums of integers.

A device gives each coordinate its share of int32, in proportion to its weight. So no sum overflows, whatever the values
are. The part of a value beyond that share is clipped: it is own work, and comes with a later delta. The share is 8
times the block's largest parameter, or more.

In a mesh's first round nothing is known of the sizes: statistics that begin at zero jump to those of the data. Its grid
is wide: each block is taken to have a parameter of 4,096.

The room of a grid says, too, how coarse the own deltas are that go into its sums (`mdl/protocol/coding.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2, sqrt
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError
from mdl.protocol.coding import CODINGS, Coding

Vector: TypeAlias = NDArray[np.float32]
Sums: TypeAlias = NDArray[np.int32]

# Coordinates that share a unit.
BLOCK = 1024
# The unit of a mean is 2^-28 of its block's largest parameter, rounded up to a power of two: 2^3 of these fit in int32.
_PRECISION = 28
# Blocks of smaller parameters (biases that begin at zero) have the unit of 2^0: their deltas need room, too. On a wide
# grid they have that of 2^12.
_LEAST_EXPONENT, _WIDE_EXPONENT = 0, 12
# A room of so much more is that of a wide grid; of so much more for each of CODINGS, that of coarser own deltas.
WIDE, CODED = 64, 128
# The share of int32 that is given out: the rest is for the rounding of the shares.
_SHARED = 2.0**31 * (1.0 - 2.0**-20)
# Vectors are converted in pieces of so many blocks, so that temporaries stay in the processor's cache.
_AT_ONCE = 64


class Grid(msgspec.Struct, frozen=True, eq=False):
    """The units of one round: of block b it is 2^(max(exponents[b], least) - 28 + room).

    exponents: of each block's largest parameter, int16, shape (ceil(P / BLOCK),).
    room: the sum of the weights is at most 2^room; WIDE more on a wide grid, CODED more for each coding.
    """

    exponents: NDArray[np.int16]
    room: int

    def to_sums(self, values: Vector, theta: float, start: int = 0) -> Sums:
        """Round theta * values to the grid: int32, as long as the values; clipped to the share of this weight.

        values: float32, finite, of the coordinates from `start` on.
        """
        sums = np.empty(values.size, np.int32)
        limit = np.float32(share_of(theta, self.room))
        for part, units in self._parts(start, values.size):
            with np.errstate(over="ignore"):  # it is clipped
                scaled = values[part].reshape(len(units), -1) * (theta / units).astype(np.float32)
            np.rint(scaled, out=scaled)
            np.clip(scaled, -limit, limit, out=scaled)
            sums[part] = scaled.reshape(-1)
        return sums

    def to_mean(self, sums: Sums, theta: float | Vector, start: int = 0, out: Vector | None = None) -> Vector:
        """Return sums / theta, the mean, in float32: the same bytes on every device.

        theta: weight behind all the sums, or behind each. start: coordinate of the first. out: where the values go; it
        may be the memory of the sums.
        """
        values = np.empty(sums.size, np.float32) if out is None else out
        for part, units in self._parts(start, sums.size):
            mean = sums[part].astype(np.float32).reshape(len(units), -1)
            mean *= units.astype(np.float32)
            values[part] = mean.reshape(-1)
            values[part] /= np.float32(theta) if isinstance(theta, float) else theta[part]
        return values

    def mean_at(self, sums: Sums, theta: float, places: NDArray[np.int64] | None) -> Vector:
        """Return sums / theta at these places, float32; None: everywhere."""
        if places is None:
            return self.to_mean(sums, theta)
        units = self._units(self.exponents[places // BLOCK])
        mean: Vector = sums[places].astype(np.float32) * units.astype(np.float32) / np.float32(theta)
        return mean

    def length(self, sums: Sums, theta: float) -> float:
        """Return the Euclidean length of sums / theta."""
        squares = 0.0
        for part, units in self._parts(0, sums.size):
            mean = sums[part].reshape(len(units), -1) * units
            squares += float(np.vdot(mean, mean))
        return sqrt(squares) / theta

    def clipped(self, values: Vector, own: Sums, theta: float) -> Vector | None:
        """Return the part of the values that their share of the sum cut off, float32; None: nothing was cut off.

        own: the values on the grid, by `to_sums`.
        """
        limit = share_of(theta, self.room)
        if not own.size or (int(own.max()) < limit and int(own.min()) > -limit):
            return None
        return np.where(np.abs(own) >= limit, values - self.to_mean(own, theta), np.float32(0.0))

    def _units(self, exponents: NDArray[np.int16]) -> NDArray[np.float64]:
        least = _WIDE_EXPONENT if self.room % CODED >= WIDE else _LEAST_EXPONENT
        return np.exp2(np.maximum(exponents, least).astype(np.float64) - _PRECISION + self.room % WIDE)

    def _parts(self, start: int, size: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield slices of `size` values, of which the first is coordinate `start`, and the units of their blocks.

        A slice is of whole blocks, or of values of one block. units: shape (blocks, 1).
        """
        at = 0
        while at < size:
            first, ahead = divmod(start + at, BLOCK)
            whole = 0 if ahead else min((size - at) // BLOCK, _AT_ONCE)
            stop = at + whole * BLOCK if whole else min(at + BLOCK - ahead, size)
            yield slice(at, stop), self._units(self.exponents[first : first + max(whole, 1)])[:, None]
            at = stop


def grid_of(parameters: Vector, room: int) -> Grid:
    """Return the grid of the round that begins at these parameters, float32 (P,)."""
    count = -(-parameters.size // BLOCK)
    largest = np.empty(count, np.float32)
    whole = parameters.size // BLOCK
    blocks = parameters[: whole * BLOCK].reshape(whole, BLOCK)
    for first in range(0, whole, _AT_ONCE):
        some = slice(first, min(first + _AT_ONCE, whole))
        largest[some] = np.abs(blocks[some]).max(axis=1)
    if count > whole:
        largest[whole] = np.abs(parameters[whole * BLOCK :]).max()
    return Grid(np.frexp(largest)[1].astype(np.int16), room)


def room_for(theta: float, is_first: bool = False, coding: Coding = "none") -> int:
    """Return the room for weights of this sum, each of which may still double. is_first: in a mesh's first round."""
    room = min(WIDE - 1, ceil(log2(theta)) + 1) if theta > 0.5 else 0
    return CODED * CODINGS.index(coding) + WIDE * is_first + room


def coding_in(room: int) -> Coding:
    """Return the coding of the own deltas in sums of this room."""
    return CODINGS[room // CODED]


def weights_in(room: int) -> float:
    """Return the sum of the weights that a room is for."""
    return 2.0 ** (room % WIDE)


def share_of(theta: float, room: int) -> int:
    """Return the largest integer that a sum of this weight may have: its share of int32, a float32, too."""
    share = _share(theta, room)
    rounded = np.float32(share)
    return int(rounded if float(rounded) <= share else np.nextafter(rounded, np.float32(0.0)))


def _share(theta: float, room: int) -> float:
    return min(_SHARED * theta / weights_in(room), _SHARED)


def check_sums(sums: Sums, theta: float, room: int) -> None:
    """Raise RemoteProtocolError for a sum beyond the share of its weight: further ones could overflow with it."""
    limit = int(_share(theta, room)) + 1
    if sums.size and (int(sums.max()) > limit or int(sums.min()) < -limit):
        raise RemoteProtocolError(f"values beyond the share of a weight of {theta:g}")


def scale_sums(sums: Sums, scale: float) -> None:
    """Multiply sums where they lie, rounded to the grid."""
    for start in range(0, sums.size, _AT_ONCE * BLOCK):
        part = slice(start, start + _AT_ONCE * BLOCK)
        sums[part] = np.rint(sums[part] * scale)


def change_room(sums: Sums, before: int, after: int) -> Sums:
    """Return sums of a grid with the room `before` on the same grid with the room `after`, rounded if it is coarser."""
    if before == after:
        return sums
    most = share_of(weights_in(after), after)
    moved: Sums = np.rint(np.clip(sums * 2.0 ** (before % CODED - after % CODED), -most, most)).astype(np.int32)
    return moved
