"""Values of a segment in fewer bytes: float16, or int8 in blocks that each have a scale of their own. Pure.

What is coded travels as a float32 vector of as many bytes: links and simulator need not know. Everybody decodes the
same bytes, so that all apply the same values.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import LARGEST_VALUE, Vector

Coding: TypeAlias = Literal["none", "float16", "int8"]
CODINGS: tuple[Coding, ...] = get_args(Coding)
# Values that share a scale: 1.6 % more bytes, and one large value spoils no more than that.
BLOCK = 256
_LARGEST_FLOAT16 = 65504.0


def encode(values: Vector, coding: Coding) -> Vector:
    """float32, shape (n,) -> what travels, float32, shape (coded_size(n),). float16 clips at 65,504."""
    if coding == "none":
        return values
    if coding == "float16":
        halves = np.clip(values, -_LARGEST_FLOAT16, _LARGEST_FLOAT16).astype(np.float16)
        return np.resize(halves, 2 * coded_size(values.size, coding)).view(np.float32)
    blocks = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: values.size] = values
    scales = np.maximum.reduce(np.abs(blocks), axis=1) / np.float32(127)
    # Of a block of zeros, or of values that a scale cannot tell apart, all are zero.
    codes = np.rint(blocks / np.where(scales > 0, scales, np.float32(1))[:, None]).astype(np.int8)
    coded = np.zeros(4 * coded_size(values.size, coding), np.int8)
    coded[: 4 * scales.size] = scales.astype("<f4").view(np.int8)
    coded[4 * scales.size : 4 * scales.size + values.size] = codes.reshape(-1)[: values.size]
    return coded.view(np.float32)


def decode(coded: Vector, size: int, coding: Coding) -> Vector:
    """What travels -> float32, shape (size,). Raises RemoteProtocolError if it is not that of so many values."""
    if coding == "none":
        return coded  # `check_values` looks at them
    if coded.size != coded_size(size, coding):
        raise RemoteProtocolError(f"{coded.size} coded values, where {size} of {coding} are {coded_size(size, coding)}")
    if coding == "float16":
        return coded.view("<f2")[:size].astype(np.float32)
    count = -(-size // BLOCK)
    scales = coded[:count]
    if not (np.isfinite(scales).all() and scales.min() >= 0 and scales.max() * 127 <= LARGEST_VALUE):
        raise RemoteProtocolError("scales that are not finite, negative or too large")
    values = coded[count:].view(np.int8)[:size].astype(np.float32)
    whole = size // BLOCK * BLOCK
    values[:whole].reshape(-1, BLOCK)[:] *= scales[: size // BLOCK, None]
    values[whole:] *= scales[-1]
    return values


def coded_size(size: int, coding: Coding) -> int:
    """How many float32 the coded values of so many take."""
    if coding == "none":
        return size
    if coding == "float16":
        return -(-size // 2)
    return -(-size // BLOCK) + -(-size // 4)
