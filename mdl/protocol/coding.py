"""Values of a segment in fewer bytes: float16, or int8, int4 or ternary in blocks with a scale each. Pure.

Coded values travel as a float32 vector of as many bytes: links and simulator need not know. Everybody decodes the same
bytes, so that all apply the same values.

Ternary: of each block the largest values, of both signs, with one size for all of them; the others are zero (sparse
ternary compression: Sattler et al. 2019, but as many of a block as leave the least squares to round off).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import LARGEST_VALUE
from mdl.protocol.grid import Vector

Coding: TypeAlias = Literal["none", "float16", "int8", "int4", "ternary"]
CODINGS: tuple[Coding, ...] = get_args(Coding)
# Values that share a scale, so that one large value spoils no more than that: 1.6 % more bytes for int8. int4 has
# 15 steps from end to end: blocks of 64 cost 12.5 % more bytes, and 15 to 20 % less is rounded off than in 256.
BLOCKS: dict[Coding, int] = {"int8": 256, "int4": 64, "ternary": 128}
_STEPS: dict[Coding, int] = {"int8": 127, "int4": 7, "ternary": 1}  # from zero to the largest
_IN_A_BYTE: dict[Coding, int] = {"int8": 1, "int4": 2, "ternary": 5}
_LARGEST_FLOAT16 = 65504.0
# Five codes of -1, 0 or 1 are the digits of a number in a byte, the first the lowest.
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
_DIGITS = (np.arange(243)[:, None] // _POWERS % 3 - 1).astype(np.int8)


def encode(values: Vector, coding: Coding) -> Vector:
    """Encode float32, shape (n,), to float32, shape (coded_size(n),), which travels. float16 clips at 65,504."""
    if coding == "none":
        return values
    if coding == "float16":
        halves = np.clip(values, -_LARGEST_FLOAT16, _LARGEST_FLOAT16).astype(np.float16)
        return np.resize(halves, 2 * coded_size(values.size, coding)).view(np.float32)
    block = BLOCKS[coding]
    blocks = np.zeros((-(-values.size // block), block), np.float32)
    blocks.reshape(-1)[: values.size] = values
    scales, codes = _signs(blocks) if coding == "ternary" else _steps(blocks, _STEPS[coding])
    packed = _pack(codes.reshape(-1), coding)
    coded = np.zeros(4 * coded_size(values.size, coding), np.int8)
    coded[: 4 * scales.size] = scales.astype("<f4").view(np.int8)
    coded[4 * scales.size :][: packed.size] = packed[: coded.size - 4 * scales.size]
    return coded.view(np.float32)


def decode(coded: Vector, size: int, coding: Coding) -> Vector:
    """Decode to float32, shape (size,). Raises RemoteProtocolError if these are not so many coded values."""
    if coding == "none":
        return coded  # `check_values` looks at them
    if coded.size != coded_size(size, coding):
        raise RemoteProtocolError(f"{coded.size} coded values, where {size} of {coding} are {coded_size(size, coding)}")
    if coding == "float16":
        return coded.view("<f2")[:size].astype(np.float32)
    block = BLOCKS[coding]
    count = -(-size // block)
    scales = coded[:count]
    if not (np.isfinite(scales).all() and scales.min() >= 0 and scales.max() <= LARGEST_VALUE / _STEPS[coding]):
        raise RemoteProtocolError("scales that are not finite, negative or too large")
    values = _unpack(coded[count:].view(np.int8), coding)[:size].astype(np.float32)
    whole = size // block * block
    values[:whole].reshape(-1, block)[:] *= scales[: size // block, None]
    values[whole:] *= scales[-1]
    return values


def coded_size(size: int, coding: Coding) -> int:
    """Return the number of float32 that so many values take when coded."""
    if coding == "none":
        return size
    if coding == "float16":
        return -(-size // 2)
    return -(-size // BLOCKS[coding]) + -(-size // (4 * _IN_A_BYTE[coding]))


class RoundedOff:
    """The remainder that coding has rounded off this device's pieces, and the results it owns (error feedback).

    values: in the measure of an own delta, float32 (P,), to come in with the next one; None if nothing is coded,
        or this device has no own delta.
    """

    def __init__(self, size: int, coding: Coding, has_own: bool) -> None:
        self.values = np.zeros(size, np.float32) if coding != "none" and has_own else None
        self._coding = coding

    def encode(self, values: Vector, bounds: slice, weight: float = 1.0) -> tuple[Vector, Vector]:
        """Return a segment's values as they travel, and as the others decode them. weight: in an own delta."""
        coded = encode(values, self._coding)
        read = decode(coded, values.size, self._coding)
        if self.values is not None:
            self.values[bounds] = (values - read) * np.float32(weight)
        return coded, read

    def part_ways(self) -> None:
        """Copy what is changed in place: this object is a copy of another one (`sim/mesh/search.py`)."""
        self.values = None if self.values is None else self.values.copy()


def _steps(blocks: Vector, steps: int) -> tuple[Vector, NDArray[np.int8]]:
    """Return scales, and codes from -steps to steps. blocks: float32 (blocks, values of each); it is used up."""
    scales = np.maximum.reduce(np.abs(blocks), axis=1) / np.float32(steps)
    # In a block of zeros, or of values that a scale cannot tell apart, all are zero.
    blocks /= np.where(scales > 0, scales, np.float32(1))[:, None]
    # The least of scales are rounded so much that a value may be more steps away than there are.
    return scales, np.clip(np.rint(blocks, out=blocks), -steps, steps, out=blocks).astype(np.int8)


def _signs(blocks: Vector) -> tuple[Vector, NDArray[np.int8]]:
    """Return scales, and the signs of the values that are kept, 0 of the others.

    The mean size of k values is their best scale, and k * mean ** 2 is what it leaves less to round off.
    """
    sizes = np.abs(blocks)
    largest = np.sort(sizes, axis=1)[:, ::-1]
    gains = np.cumsum(largest, axis=1) / np.sqrt(np.arange(1, blocks.shape[1] + 1, dtype=np.float32))
    kept = sizes >= np.take_along_axis(largest, gains.argmax(axis=1)[:, None], axis=1)
    scales = np.where(kept, sizes, np.float32(0)).mean(axis=1) / kept.mean(axis=1, dtype=np.float32)
    return scales, np.where(kept, np.sign(blocks), np.float32(0)).astype(np.int8)


def _pack(codes: NDArray[np.int8], coding: Coding) -> NDArray[np.int8]:
    """Pack the codes of whole blocks, as many in a byte as it holds; of two, the first in its lower half."""
    if coding == "int8":
        return codes
    if coding == "int4":
        return (codes[1::2] << 4) | (codes[::2] & 15)
    fives = np.ones((-(-codes.size // 5), 5), np.uint8)
    fives.reshape(-1)[: codes.size] = codes + 1
    return (fives @ _POWERS).view(np.int8)


def _unpack(packed: NDArray[np.int8], coding: Coding) -> NDArray[np.int8]:
    if coding == "int8":
        return packed
    if coding == "ternary":
        numbers = packed.view(np.uint8)
        if numbers.size and numbers.max() >= len(_DIGITS):
            raise RemoteProtocolError("a byte that is not five signs")
        return _DIGITS[numbers].reshape(-1)
    codes = np.empty((packed.size, 2), np.int8)
    np.right_shift(packed << 4, 4, out=codes[:, 0])
    np.right_shift(packed, 4, out=codes[:, 1])
    return codes.reshape(-1)
