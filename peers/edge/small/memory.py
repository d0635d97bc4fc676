"""What the C library keeps of freed memory goes back to the system: a peer is one of many programs on a small computer.

Between two rounds glibc holds what training has freed, some 20 MB for the LeNet; giving it back takes a millisecond
(docs/raspberry-pi.md has figures). Elsewhere than on Linux with glibc nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
import time
from functools import cache
from typing import Any

# Of mallopt(3). A peer has ten threads; each would get an arena of its own that never shrinks below what it once held.
_ARENA_MAX, _ARENAS = -8, 2
# Rounds of a fast LAN take 0.2 s: giving back and asking again in each would be felt.
_EVERY_S = 2.0


class Spare:
    """Gives freed memory back, at most once in every_s. From one thread."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._given_at = time.monotonic()

    def give_back(self) -> None:
        now = time.monotonic()
        if now - self._given_at >= self._every_s and (library := _library()):
            self._given_at = now
            library.malloc_trim(0)


def limit_arenas() -> None:
    """Before threads are started."""
    if library := _library():
        library.mallopt(_ARENA_MAX, _ARENAS)


@cache
def _library() -> Any:
    """The C library if it is glibc, else None."""
    try:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
    except OSError:
        return None
    return library if library and hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
