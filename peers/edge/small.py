"""Keeps a node small on a small computer: its threads, the memory that it gives back, and the memory limit above it.

A computer with few cores keeps one for its other programs.

Between two rounds glibc holds what training has freed, some 20 MB for the LeNet; giving it back takes a millisecond.
Most pages of torch's library that are read at its loading are never read again. They go then, some 50 MB
(docs/raspberry-pi.md has figures). Elsewhere than on Linux with glibc nothing happens.

The kernel kills a control group that exceeds its memory limit, and nothing is written or logged. So the limit of a
container or service is checked before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from mdl.errors import ConfigError

logger = logging.getLogger(__name__)

VARIABLE = "OMP_NUM_THREADS"
# With at most so many cores, training leaves one of them free.
_FEW_CORES = 4


def choose_threads(cores: int) -> int:
    """Return all cores, less one if there are few."""
    return max(1, cores - 1) if cores <= _FEW_CORES else cores


def board_model(system: Path = Path("/")) -> str:
    """Return the name of a board with a device tree, such as a Raspberry Pi; "" for other machines."""
    try:
        return (system / "proc/device-tree/model").read_text(errors="replace").strip("\0 \n")
    except OSError:
        return ""


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_a_core(system: Path = Path("/")) -> None:
    """Leave one core of a board free, unless the user sets another number or torch is loaded; log the number."""
    model, cores = board_model(system), usable_cores()
    threads = choose_threads(cores)
    if model and threads < cores and VARIABLE not in os.environ and "torch" not in sys.modules:
        os.environ[VARIABLE] = str(threads)
    if said := os.environ.get(VARIABLE):
        logger.info("%s of %d cores train%s (%s)", said, cores, f" on {model}" if model else "", VARIABLE)


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


# torch alone takes 143 MB that are in no file; a LeNet peer 195 MB with that (docs/results.md has larger ones).
LEAST_MB, LITTLE_MB = 150, 500
# The memory of a first step of training and its threads beside that, measured for a LeNet.
_STEP_BYTES = 16 << 20
# Vectors of a model's size that every round makes: gradients, the delta, the result.
_VECTORS = 3
# The limit that a control group without one reports (version 1).
_NO_LIMIT = 1 << 60
_ITS_LIMIT = "a container's or service's limit"


def read_memory_limit(system: Path = Path("/")) -> int | None:
    """Return the megabytes that the control group of this process, or one above it, may take; None without a limit."""
    limits = []
    for line in _read(system / "proc/self/cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds not in ("", "memory"):
            continue
        top = system / "sys/fs/cgroup" / kinds
        for place in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            limits += [_read(top / place / name) for name in ("memory.max", "memory.limit_in_bytes")]
    found = [int(limit) >> 20 for limit in limits if limit.isdigit() and int(limit) < _NO_LIMIT]
    return min(found, default=None)


def check_limit(trainers: int = 1, system: Path = Path("/")) -> None:
    """Raise ConfigError if the limit leaves these trainers no room; warn if it is narrow.

    Call this before libraries are loaded.
    """
    limit_mb = read_memory_limit(system)
    if limit_mb is None:
        return
    if limit_mb < trainers * LEAST_MB:
        raise ConfigError(
            f"only {limit_mb} MB of memory may be taken here ({_ITS_LIMIT}), and training takes at least "
            f"{trainers * LEAST_MB} MB. The system would kill it without a message: allow it {trainers * LITTLE_MB} MB"
        )
    if limit_mb < trainers * LITTLE_MB:
        text = (
            "only %d MB of memory may be taken here (%s): a small model takes 200 to 270, and a process that takes "
            "more is killed"
        )
        logger.warning(text, limit_mb, _ITS_LIMIT)


def check_room(parameters_bytes: int, system: Path = Path("/"), taken_bytes: int | None = None) -> None:
    """Raise ConfigError if a round cannot fit into the limit; call this once the model is built.

    taken_bytes: memory of this process without pages of files, which the system takes back.
    """
    limit_mb = read_memory_limit(system)
    if limit_mb is None:
        return
    taken = _taken_bytes() if taken_bytes is None else taken_bytes
    needed_mb = (taken + _VECTORS * parameters_bytes + _STEP_BYTES) >> 20
    if limit_mb < needed_mb:
        raise ConfigError(
            f"only {limit_mb} MB of memory may be taken here ({_ITS_LIMIT}), and training this model on this data "
            f"takes more than {needed_mb} MB. The system would kill it without a message: allow it {2 * needed_mb} "
            "MB, or take a smaller model or share of the data"
        )


def _taken_bytes() -> int:
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
