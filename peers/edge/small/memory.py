"""What the C library keeps of freed memory goes back to the system: a peer is one of many programs on a small computer.

Between two rounds glibc holds what training has freed, some 20 MB for the LeNet; giving it back takes a millisecond.
Most pages of torch's library that are read while it is loaded are never read again, and go then, some 50 MB
(docs/raspberry-pi.md has figures). Elsewhere than on Linux with glibc nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

# Of mallopt(3). A peer has ten threads; each would get an arena of its own that never shrinks below what it once held.
# What a segment or an activation has freed waits there for the next one: else its pages go and come again each time.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_HEAP = {_ARENA_MAX: 2, _TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20}
# Of madvise(2): the pages of a mapping may go; those of a file are read from there again.
_DONT_NEED = 4
_SMAPS = Path("/proc/self/smaps")
# Of small libraries there is little to have.
_LARGE_BYTES = 1 << 20
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


def set_up_heap() -> None:
    """Few arenas, which keep what is freed until `Spare` gives it back. Before threads are started."""
    if library := _library():
        for option, value in _HEAP.items():
            library.mallopt(option, value)


def forget_loading() -> None:
    """Once all is loaded: pages of libraries go that are as the file has them. Who reads one gets it from there again,
    which the system has in its cache. And what was loaded is looked at by no collection of garbage any more: all of
    torch takes up to 0.3 s, in which no heartbeat is said.
    """
    gc.freeze()
    if library := _library():
        with contextlib.suppress(OSError), _SMAPS.open(encoding="utf-8", errors="replace") as lines:
            for start, end in list(untouched_files(lines)):
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def untouched_files(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """First address and end of large mappings of files that cannot be written, and were not: relocations would be lost.

    A mapping without resident pages has none to give: an emulator (qemu) says that of all, also of changed ones.
    smaps: lines of it (proc(5)).
    """
    found: tuple[int, int] | None = None
    for line in smaps:
        words = line.split()
        if not words[0].endswith(":"):
            start, end = (int(word, 16) for word in words[0].split("-"))
            is_file = len(words) > 5 and words[5].startswith("/") and "w" not in words[1]
            found = (start, end) if is_file and end - start >= _LARGE_BYTES else None
        elif words[:2] == ["Rss:", "0"]:
            found = None
        elif words[0] == "Anonymous:" and words[1] == "0" and found:
            yield found


@cache
def _library() -> Any:
    """The C library if it is glibc, else None."""
    try:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
    except OSError:
        return None
    return library if library and hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
