"""Values of a segment in fewer bytes: float16, or int8 or int4 in blocks that each have a scale of their own. Pure.

What is coded travels as a float32 vector of as many bytes: links and simulator need not know. Everybody decodes the
same bytes, so that all apply the same values.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import LARGEST_VALUE, Vector

Coding: TypeAlias = Literal["none", "float16", "int8", "int4"]
CODINGS: tuple[Coding, ...] = get_args(Coding)
# Values that share a scale, so that one large value spoils no more than that: 1.6 % more bytes for int8. int4 has
# 15 steps from end to end: blocks of 64 cost 12.5 % more bytes, and 15 to 20 % less is rounded off than in 256.
BLOCK, SMALL_BLOCK = 256, 64
_LARGEST_FLOAT16 = 65504.0


def encode(values: Vector, coding: Coding) -> Vector:
    """float32, shape (n,) -> what travels, float32, shape (coded_size(n),). float16 clips at 65,504."""
    if coding == "none":
        return values
    if coding == "float16":
        halves = np.clip(values, -_LARGEST_FLOAT16, _LARGEST_FLOAT16).astype(np.float16)
        return np.resize(halves, 2 * coded_size(values.size, coding)).view(np.float32)
    block, steps = _grid(coding)
    blocks = np.zeros((-(-values.size // block), block), np.float32)
    blocks.reshape(-1)[: values.size] = values
    scales = np.maximum.reduce(np.abs(blocks), axis=1) / np.float32(steps)
    # Of a block of zeros, or of values that a scale cannot tell apart, all are zero.
    blocks /= np.where(scales > 0, scales, np.float32(1))[:, None]
    # The least of scales are rounded so much that a value may be more steps away than there are.
    codes = np.clip(np.rint(blocks, out=blocks), -steps, steps, out=blocks).astype(np.int8).reshape(-1)
    packed = _pack(codes) if coding == "int4" else codes[: values.size]
    coded = np.zeros(4 * coded_size(values.size, coding), np.int8)
    coded[: 4 * scales.size] = scales.astype("<f4").view(np.int8)
    coded[4 * scales.size :][: packed.size] = packed[: coded.size - 4 * scales.size]
    return coded.view(np.float32)


def decode(coded: Vector, size: int, coding: Coding) -> Vector:
    """What travels -> float32, shape (size,). Raises RemoteProtocolError if it is not that of so many values."""
    if coding == "none":
        return coded  # `check_values` looks at them
    if coded.size != coded_size(size, coding):
        raise RemoteProtocolError(f"{coded.size} coded values, where {size} of {coding} are {coded_size(size, coding)}")
    if coding == "float16":
        return coded.view("<f2")[:size].astype(np.float32)
    block, steps = _grid(coding)
    count = -(-size // block)
    scales = coded[:count]
    if not (np.isfinite(scales).all() and scales.min() >= 0 and scales.max() <= LARGEST_VALUE / steps):
        raise RemoteProtocolError("scales that are not finite, negative or too large")
    codes = coded[count:].view(np.int8)
    values = (_unpack(codes) if coding == "int4" else codes)[:size].astype(np.float32)
    whole = size // block * block
    values[:whole].reshape(-1, block)[:] *= scales[: size // block, None]
    values[whole:] *= scales[-1]
    return values


def coded_size(size: int, coding: Coding) -> int:
    """How many float32 the coded values of so many take."""
    if coding == "none":
        return size
    if coding == "float16":
        return -(-size // 2)
    return -(-size // _grid(coding)[0]) + -(-size // (8 if coding == "int4" else 4))


class RoundedOff:
    """What coding has rounded off of this device's pieces, and of the results it owns (error feedback).

    values: in the measure of an own delta, with the next of which it comes in, float32 (P,); None if nothing is coded,
    or this device has none.
    """

    def __init__(self, size: int, coding: Coding, has_own: bool) -> None:
        self.values = np.zeros(size, np.float32) if coding != "none" and has_own else None
        self._coding = coding

    def encode(self, values: Vector, bounds: slice, weight: float = 1.0) -> tuple[Vector, Vector]:
        """What travels of a segment, and what the others make of it. weight: of its values in an own delta."""
        coded = encode(values, self._coding)
        read = decode(coded, values.size, self._coding)
        if self.values is not None:
            self.values[bounds] = (values - read) * np.float32(weight)
        return coded, read

    def part_ways(self) -> None:
        """This is a copy (`sim/mesh/snapshot.py`): what it changes in place is its own from here on."""
        self.values = None if self.values is None else self.values.copy()


def _grid(coding: Coding) -> tuple[int, int]:
    """Values of a block, and the steps from zero to the largest of them."""
    return (SMALL_BLOCK, 7) if coding == "int4" else (BLOCK, 127)


def _pack(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Two codes of -8 to 7 in a byte, the first in its lower half."""
    return (codes[1::2] << 4) | (codes[::2] & 15)


def _unpack(packed: NDArray[np.int8]) -> NDArray[np.int8]:
    codes = np.empty((packed.size, 2), np.int8)
    np.right_shift(packed << 4, 4, out=codes[:, 0])
    np.right_shift(packed, 4, out=codes[:, 1])
    return codes.reshape(-1)
