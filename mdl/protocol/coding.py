"""Coding of own deltas as int8 or int4, in blocks with a unit each, and packing of integers. Pure.

A device rounds its own delta once more, before it tells its checksums: the values of a block become multiples of a
power of two, so many that they fit in so few bits. The rest is own work, and comes with the next delta
(error feedback). So sums stay sums of integers: any order of merging gives the same bytes, and each is checked.

On their way the integers of a block of 64 take as many bits as the largest needs, without the zeros at their end. That
loses nothing. The sum of eight devices needs one or two bits more than an own delta.
"""

from __future__ import annotations

from math import log2
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError

Coding: TypeAlias = Literal["none", "int8", "int4"]
CODINGS: tuple[Coding, ...] = get_args(Coding)
# Values that share a unit, so that one large value spoils no more than that. int4 has 15 steps from end to end: 15 to
# 20 % less is rounded off in blocks of 64 than of 256.
BLOCKS: dict[Coding, int] = {"int8": 256, "int4": 64}
_STEPS: dict[Coding, int] = {"int8": 127, "int4": 7}  # from zero to the largest
_BITS: dict[Coding, float] = {"none": 32.0, "int8": 8.25, "int4": 4.25}
# The bits of a sum beyond those of an own delta, for two devices and for each doubling.
_MORE_BITS = 0.6
# Values that share a number of bits, and one of zeros at their end: two bytes.
_PACKED = 64
_SIZE = np.dtype("<u4")
_BYTE = 8
# Values are rounded so many at a time: temporaries stay small.
_AT_ONCE = 1 << 16
_Blocks: TypeAlias = NDArray[np.int64]


def coarsen(sums: NDArray[np.int32], coding: Coding, limit: int) -> None:
    """Round the integers of an own delta, int32 (P,), where they lie; none is beyond `limit` after that."""
    if coding == "none":
        return
    block = BLOCKS[coding]
    for start in range(0, sums.size, _AT_ONCE):
        part = sums[start : start + _AT_ONCE]
        blocks = np.zeros((-(-part.size // block), block), np.int64)
        blocks.reshape(-1)[: part.size] = part
        shifts = _shifts(blocks, _STEPS[coding])
        most = np.minimum(_STEPS[coding], limit >> shifts)[:, None]
        shifts = shifts[:, None]
        blocks += np.where(shifts > 0, 1 << np.maximum(shifts - 1, 0), 0)  # rounds to the nearest
        blocks >>= shifts
        np.clip(blocks, -most, most, out=blocks)
        blocks <<= shifts
        part[:] = blocks.reshape(-1)[: part.size]


def pack(sums: NDArray[np.int32]) -> bytes:
    """Pack integers, int32 (n,), n > 0: the bytes that `unpack` turns into just these."""
    count = -(-sums.size // _PACKED)
    blocks = np.zeros((count, _PACKED), np.int32)
    blocks.reshape(-1)[: sums.size] = sums
    together = np.bitwise_or.reduce(blocks, axis=1)
    # The lowest bit that is set in any of them; frexp is exact for powers of two.
    shifts = np.frexp((together & -together).astype(np.int64) & 0xFFFFFFFF)[1] - 1
    shifts[together == 0] = 0
    blocks >>= shifts[:, None]
    widths = np.frexp(np.bitwise_or.reduce(blocks ^ (blocks >> 31), axis=1))[1] + 1
    widths[together == 0] = 0
    widths[widths == _BYTE - 1] = _BYTE  # whole bytes are quick
    head = np.concatenate([shifts.astype(np.uint8), widths.astype(np.uint8)])
    groups = [_bits_of(blocks[widths == width], int(width)) for width in np.unique(widths[widths > 0])]
    return b"".join([np.array([sums.size], _SIZE).tobytes(), head.tobytes(), *(group.tobytes() for group in groups)])


def unpack(packed: memoryview, most: int) -> NDArray[np.int32]:
    """Return the integers, int32 (n,). Raises RemoteProtocolError for other bytes, or for more than `most` integers."""
    size = int(np.frombuffer(packed[:4], _SIZE)[0]) if len(packed) >= 4 else 0
    count = -(-size // _PACKED)
    if not 0 < size <= most or len(packed) < 4 + 2 * count:
        raise RemoteProtocolError(f"{len(packed)} bytes for {size} packed values, at most {most} travel in one")
    shifts, widths = np.frombuffer(packed[4 : 4 + 2 * count], np.uint8).reshape(2, count).astype(np.int32)
    # A value of 7 bits takes 8: its sign may be there twice.
    if (shifts + widths).max() > 33 or 4 + 2 * count + _PACKED // 8 * int(widths.sum()) != len(packed):
        raise RemoteProtocolError(f"{len(packed)} bytes that are not {size} packed values")
    blocks, at = np.zeros((count, _PACKED), np.int32), 4 + 2 * count
    for width in np.unique(widths[widths > 0]):
        having = np.flatnonzero(widths == width)
        stop = at + having.size * int(width) * _PACKED // 8
        blocks[having] = _from_bits(np.frombuffer(packed[at:stop], np.uint8), int(width))
        at = stop
    blocks <<= shifts[:, None]
    return blocks.reshape(-1)[:size]


def part_of_bytes(coding: Coding, devices: int = 1) -> float:
    """Return about which part of the bytes of an own delta, or of a sum of so many of them, travels when packed."""
    more = _MORE_BITS * log2(devices) if coding != "none" else 0.0
    return min(_BITS[coding] + more, 32.0) / 32.0


def _shifts(blocks: _Blocks, steps: int) -> NDArray[np.int64]:
    """Return the exponents of the blocks' units, so that the largest value has no more than these steps."""
    exponents: NDArray[np.int64] = np.frexp(np.abs(blocks).max(axis=1) / (steps + 0.5))[1].astype(np.int64)
    return np.maximum(exponents, 0)


def _bits_of(blocks: NDArray[np.int32], width: int) -> NDArray[np.uint8]:
    """Return the lowest bits of whole blocks: bytes as they are, then the bits above them."""
    if width > _BYTE:
        return np.concatenate([blocks.astype(np.uint8).reshape(-1), _bits_of(blocks >> _BYTE, width - _BYTE)])
    values = blocks.astype(np.int8).view(np.uint8).reshape(-1)
    return values if width == _BYTE else np.packbits(np.unpackbits(values).reshape(-1, _BYTE)[:, _BYTE - width :])


def _from_bits(packed: NDArray[np.uint8], width: int) -> NDArray[np.int32]:
    """Return blocks from the lowest bits of their values; the highest of these is the sign."""
    count = packed.size * 8 // width
    if width > _BYTE:
        return (_from_bits(packed[count:], width - _BYTE) << _BYTE) | packed[:count].reshape(-1, _PACKED)
    if width < _BYTE:
        wide = np.zeros((count, _BYTE), np.uint8)
        wide[:, :width] = np.unpackbits(packed).reshape(-1, width)
        packed = np.packbits(wide)
    return (packed.view(np.int8) >> np.int8(_BYTE - width)).reshape(-1, _PACKED).astype(np.int32)
