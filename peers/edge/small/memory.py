"""Returns freed memory of the C library to the system: a peer is one of many programs on a small computer.

Between two rounds glibc holds what training has freed, some 20 MB for the LeNet; giving it back takes a millisecond.
Most pages of torch's library that are read at its loading are never read again. They go then, some 50 MB
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

# Options of mallopt(3). A peer has ten threads; each would get an arena that never shrinks below its former size.
# Memory that a segment or an activation has freed stays for the next one: else its pages go and come again each time.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_HEAP = {_ARENA_MAX: 2, _TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20}
# An advice of madvise(2): the pages of a mapping may go; those of a file are read from there again.
_DONT_NEED = 4
_SMAPS = Path("/proc/self/smaps")
# Smaller mappings free too little.
_LARGE_BYTES = 1 << 20
# Rounds of a fast LAN take 0.2 s: giving back and asking again in each would be felt.
_EVERY_S = 2.0


class Spare:
    """Gives freed memory back, at most once in every_s seconds. Use it from one thread."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._given_at = time.monotonic()

    def give_back(self) -> None:
        now = time.monotonic()
        if now - self._given_at >= self._every_s and (library := _library()):
            self._given_at = now
            library.malloc_trim(0)


def set_up_heap() -> None:
    """Set few arenas, which keep freed memory until `Spare` gives it back. Call this before threads start."""
    if library := _library():
        for option, value in _HEAP.items():
            library.mallopt(option, value)


def forget_loading() -> None:
    """Drop the unchanged pages of loaded libraries, and freeze the loaded objects. Call this once all is loaded.

    A later read of such a page gets it from the file again, which the system has in its cache. Garbage collection no
    longer visits the frozen objects: all of torch takes up to 0.3 s, and no heartbeat goes out meanwhile.
    """
    gc.freeze()
    if library := _library():
        with contextlib.suppress(OSError), _SMAPS.open(encoding="utf-8", errors="replace") as lines:
            for start, end in list(untouched_files(lines)):
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def untouched_files(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the address range of each large read-only mapping of a file without changed pages.

    Changed pages are kept: dropping them would lose relocations. A mapping without resident pages has none to give: an
    emulator (qemu) says that of all, also of changed ones.
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
    """Return the C library if it is glibc, else None."""
    try:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
    except OSError:
        return None
    return library if library and hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
