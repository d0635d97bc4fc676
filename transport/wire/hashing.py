"""Digests of arriving values, computed beside the loop: 800 MB take 0.3 s, in which no heartbeat would be read.

A value is hashed chunk by chunk while it comes: its digest is there with its last byte, and nobody hashes it again. The
same pass finds values that would poison a model, and adds the checksum of a sum up.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeAlias

import numpy as np

from mdl.errors import RemoteProtocolError
from mdl.protocol.checksum import add_up, checksum_of
from mdl.protocol.delta import check_values, new_hash

# Smaller values are hashed in the loop: a millisecond, and no thread to hand them to.
_BESIDE_BYTES = 1 << 20


class Hash(Protocol):
    """A hash of values as they come: in order, in pieces of whole values, all but the last of whole blocks of a grid.

    checksum: of integers, once digest was asked for; 0 of parameters. digest raises RemoteProtocolError if a parameter
    is not finite, or beyond 1e6.
    """

    @property
    def checksum(self) -> int: ...

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


MakeHash: TypeAlias = Callable[[int, bool], Hash]


def make_hash(size_bytes: int, is_model: bool) -> Hash:
    """Return a hash that works at once. is_model: the values are parameters, float32, and checked; else integers."""
    return CheckedHash() if is_model else SumHash()


class HashThread:
    """Hashes of all values of one node; the thread starts with the first large one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mdl-hash")

    def new(self, size_bytes: int, is_model: bool) -> Hash:
        """Return a hash for values of this size. is_model: as in `make_hash`."""
        made = make_hash(size_bytes, is_model)
        return _Beside(self._thread, made) if size_bytes >= _BESIDE_BYTES else made

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class SumHash:
    """A hash of integers, with their checksum; see `Hash`."""

    def __init__(self) -> None:
        self.checksum = 0
        self._hash = new_hash()
        self._values = 0

    def update(self, data: memoryview, /) -> None:
        self._hash.update(data)
        sums = np.frombuffer(data, np.int32)
        self.checksum = add_up((self.checksum, checksum_of(sums, self._values)))
        self._values += sums.size

    def digest(self) -> bytes:
        return self._hash.digest()


class CheckedHash:
    """A hash that checks its values; see `Hash`."""

    checksum = 0

    def __init__(self) -> None:
        self._hash = new_hash()
        self._problem: RemoteProtocolError | None = None

    def update(self, data: memoryview, /) -> None:
        self._hash.update(data)
        values = np.frombuffer(data, np.float32)
        try:
            check_values(values, values.size)
        except RemoteProtocolError as error:
            self._problem = error

    def digest(self) -> bytes:
        if self._problem:
            raise self._problem
        return self._hash.digest()


class _Beside:
    """A hash that another thread computes; `digest` waits for it. The data must not change until then."""

    def __init__(self, thread: ThreadPoolExecutor, made: Hash) -> None:
        self._thread = thread
        self._hash = made
        self._last: Future[None] | None = None

    @property
    def checksum(self) -> int:
        return self._hash.checksum

    def update(self, data: memoryview, /) -> None:
        self._last = self._thread.submit(self._hash.update, data)

    def digest(self) -> bytes:
        if self._last is not None:
            self._last.result()
        return self._hash.digest()
