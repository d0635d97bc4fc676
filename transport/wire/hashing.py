"""Digests of values that arrive, computed beside the loop: 46 MB take 50 ms, in which no heartbeat would be read.

A value is hashed chunk by chunk while it comes: its digest is there with its last byte, and nobody hashes it again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeAlias

from mdl.protocol.delta import new_hash

# Smaller values are hashed where they are: a millisecond, and no thread to hand them to.
_BESIDE_BYTES = 1 << 20


class Hash(Protocol):
    """As hashlib's: what came so far, in order."""

    def update(self, data: memoryview, /) -> object: ...

    def digest(self) -> bytes: ...


MakeHash: TypeAlias = Callable[[int], Hash]


class HashThread:
    """Hashes of all values of one node; the thread starts with the first large one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mdl-hash")

    def new(self, size_bytes: int) -> Hash:
        """For a value of this size."""
        return _Beside(self._thread) if size_bytes >= _BESIDE_BYTES else new_hash()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class _Beside:
    """A hash that another thread computes; `digest` waits for the rest of it. The data must not change till then."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._hash = new_hash()
        self._last: Future[None] | None = None

    def update(self, data: memoryview, /) -> None:
        self._last = self._thread.submit(self._hash.update, data)

    def digest(self) -> bytes:
        if self._last is not None:
            self._last.result()
        return self._hash.digest()
