"""Linear checksums: a device that has those of all contributors can tell if a sum is the sum of their deltas.

The checksum of a vector s is the sum of r_k s_k modulo 2^63, with fixed odd r_k. It is linear: the checksums of own
deltas add up to that of their sum, in any order. Each device tells that of its own delta before anything is merged. So
a device that alters what it merges, by a fault or on purpose, is found by the next one that gets it.

One altered value is always found. Several that were altered without regard to r are not found with a probability below
2^-31. A device that merges may choose its own delta, and tell the checksum of that: what it adds to a sum then is its
delta, as far as anybody can know (docs/protocol-sums.md). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.protocol.grid import BLOCK, Sums

_MODULUS = 1 << 63
# A vector has at most so many pieces with a checksum of their own, unless each would have more values than the largest.
# Their size is a power of two: segments for up to so many owners are made of whole pieces.
_PIECES, _LARGEST = 256, 1 << 16
_Numbers: TypeAlias = NDArray[np.uint64]


def checksum_of(sums: Sums, start: int = 0) -> int:
    """Return the checksum of a sum, or of a part of one.

    sums: int32, any number of values. start: coordinate of the first.
    """
    ahead = min(-start % BLOCK, sums.size) if start % BLOCK or sums.size >= BLOCK else sums.size
    found = int(np.dot(_factors(start, ahead), sums[:ahead].astype(np.int64).view(np.uint64))) if ahead else 0
    if ahead < sums.size:
        found += int(_of_blocks(sums[ahead:], (start + ahead) // BLOCK).sum())
    return found % _MODULUS


def checksums_by_piece(sums: Sums) -> tuple[int, ...]:
    """Return the checksums of a sum's pieces of `piece_values` values, int32 (P,); the last may be shorter."""
    piece = piece_values(sums.size)
    if not sums.size:
        return ()
    if piece < BLOCK:
        parts, step = _factors.__wrapped__(0, sums.size) * sums.astype(np.int64).view(np.uint64), piece
    else:
        parts, step = _of_blocks(sums, 0), piece // BLOCK
    found = np.add.reduceat(parts, np.arange(0, parts.size, step))
    return tuple(int(each) % _MODULUS for each in found)


def piece_values(size: int) -> int:
    """Return the values of one piece of a sum of `size` values."""
    least = -(-size // _PIECES)
    return min(1 << max(0, least - 1).bit_length(), _LARGEST)


def checksums_by_segment(pieces: Sequence[int], size: int, values: int) -> tuple[int, ...]:
    """Return the checksums of the segments of `values` values, which are made of whole pieces.

    pieces: by `checksums_by_piece`, of a sum of `size` values.
    """
    count = values // piece_values(size)
    return tuple(add_up(pieces[first : first + count]) for first in range(0, len(pieces), count))


def add_up(checksums: Iterable[int]) -> int:
    """Return the checksum of a sum, from those of all its parts."""
    return sum(checksums) % _MODULUS


def _mixed(numbers: _Numbers) -> _Numbers:
    """Return a pseudo-random odd number for each of these (SplitMix64; Steele, Lea and Flood 2014)."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


# r_k is the product of a number of its block, and one of its place in the block.
_IN_BLOCK = _mixed(np.arange(BLOCK, dtype=np.uint64))


@lru_cache(maxsize=512)
def _of_block(first: int, count: int) -> _Numbers:
    """Return the numbers of neighbouring blocks, of which the first is this one."""
    return _mixed(np.arange(BLOCK + first, BLOCK + first + count, dtype=np.uint64))


@lru_cache(maxsize=64)
def _factors(start: int, count: int) -> _Numbers:
    """Return r_k of `count` coordinates from `start` on."""
    first, places = start // BLOCK, np.arange(start % BLOCK, start % BLOCK + count)
    return _of_block(first, 1 + int(places[-1]) // BLOCK)[places // BLOCK] * _IN_BLOCK[places % BLOCK]


def _of_blocks(sums: Sums, first: int) -> _Numbers:
    """Return the checksums of whole blocks, of which the first is this one; the last may be shorter."""
    whole = sums.size // BLOCK
    found = np.zeros(-(-sums.size // BLOCK), np.int64)
    np.einsum("bk,k->b", sums[: whole * BLOCK].reshape(whole, BLOCK), _IN_BLOCK.view(np.int64), out=found[:whole])
    if found.size > whole:
        rest = sums[whole * BLOCK :].astype(np.int64)
        found[whole] = np.dot(rest, _IN_BLOCK[: rest.size].view(np.int64))
    return _of_block(first, found.size) * found.view(np.uint64)
