"""Streams cut into windows: one run of rows with one label, one recording and no gap in time is one group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdl.data.windows import Floats, Integers
from mdl.errors import DataError

# A hundred times UCI HAR. Overlapping windows repeat their rows, so a small file can make any number.
LARGEST_WINDOWS_BYTES = 4 << 30


def cut_runs(run: Integers, window: int, step: int) -> tuple[Integers, Integers]:
    """Return (starts, run of each): first row of every window that lies wholly inside one run of equal numbers.

    run: int64 (rows,), numbered so that neighbouring runs differ. Windows start at a run's first row.
    """
    edges = np.flatnonzero(np.diff(run)) + 1
    first = np.concatenate([[0], edges])
    last = np.concatenate([edges, [len(run)]])
    starts = [np.arange(a, b - window + 1, step, dtype=np.int64) for a, b in zip(first, last, strict=True)]
    joined = np.concatenate(starts) if starts else np.zeros(0, np.int64)
    return joined, run[joined]


def take_rows(stream: NDArray[np.floating], starts: Integers, window: int) -> Floats:
    """Return windows (n, channels, window), float32, of a stream (rows, channels). Raises DataError if too many."""
    size_bytes = 4 * len(starts) * stream.shape[1] * window
    if size_bytes > LARGEST_WINDOWS_BYTES:
        raise DataError(
            f"{len(starts)} windows of {window} rows would take {size_bytes / 2**30:.0f} GB of memory, at most "
            f"{LARGEST_WINDOWS_BYTES >> 30} are taken: a larger step, or shorter windows"
        )
    view = np.lib.stride_tricks.sliding_window_view(stream, window, axis=0)
    return np.ascontiguousarray(view[starts], dtype=np.float32)


def overlap_gap(window: int, step: int) -> int:
    """Return the number of windows to drop between two windows of one run so that these share no row."""
    return -(-window // step) - 1
