"""Fills values that are missing in a stream of rows, block by block, if their neighbours are near."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.data.tables.rows import ROWS_AT_ONCE, Floats64

# Without times: rows that may lie between two values of a channel. Sensors of one device, logged in turns, need a few.
MOST_ROWS_BETWEEN = 10
# Rows that wait for a channel's next value; a channel that is silent for so long is missing.
_MOST_WAITING = 4 * ROWS_AT_ONCE

# (values, times, extra)
Settled: TypeAlias = tuple[Floats64, Floats64, NDArray[np.int64]]


class Filler:
    """Fills linearly in time, or in rows without times; nothing is invented beyond a stretch's first and last value."""

    def __init__(self, channels: int, longest_s: float) -> None:
        """Begin. longest_s: the most seconds between two values of a channel, if rows have times."""
        self._channels = channels
        self._longest_s = longest_s
        self.filled = 0
        self._longest, self._given, self._next = 0.0, 0, 0
        self._values: Floats64 = np.zeros((0, channels))
        self._times: Floats64 = np.zeros(0)
        self._extra: NDArray[np.int64] = np.zeros((0, 2), np.int64)

    def add(self, values: Floats64, times: Floats64 | None, extra: NDArray[np.int64]) -> Settled:
        """Return (values, times, extra) of the rows settled now. values: (rows, channels); extra: int64 (rows, 2)."""
        at = np.arange(self._next, self._next + len(values), dtype=np.float64)
        self._next += len(values)
        self._values = np.concatenate([self._values, values])
        self._times = np.concatenate([self._times, at if times is None else times])
        self._extra = np.concatenate([self._extra, extra])
        self._longest = float(MOST_ROWS_BETWEEN) if times is None else self._longest_s
        known = np.isfinite(self._values)
        last = np.where(known.any(axis=0), len(known) - 1 - np.argmax(known[::-1], axis=0), -1)
        settled = int(last.min()) + 1 if len(known) < _MOST_WAITING else len(known)
        return self._take(settled)

    def finish(self) -> Settled:
        """Return the rows that still wait; the next ones belong to another recording."""
        rest = self._take(len(self._values))
        self._begin()
        return rest

    def _begin(self) -> None:
        # The first `_given` rows have been returned, and stay as neighbours of later ones.
        self._values, self._times = self._values[:0], self._times[:0]
        self._extra = self._extra[:0]
        self._given = self._next = 0

    def _take(self, settled: int) -> Settled:
        settled = max(settled, self._given)
        filled = self._values[:settled].copy()
        for column in range(self._channels):
            self._fill(filled[:, column], self._values[:, column])
        given = slice(self._given, settled)
        made = (filled[given], self._times[given], self._extra[given])
        known = np.isfinite(self._values[:settled])
        self.filled += int((np.isfinite(made[0]) & ~known[given]).sum())
        # Each channel's last value stays, as a neighbour of later ones.
        lasts = settled - 1 - np.argmax(known[::-1], axis=0) if settled else np.zeros(0, np.int64)
        keep = max(int(lasts[known.any(axis=0)].min(initial=settled)), settled - _MOST_WAITING) if settled else 0
        self._values, self._times = self._values[keep:], self._times[keep:]
        self._extra = self._extra[keep:]
        self._given = settled - keep
        return made

    def _fill(self, into: Floats64, values: Floats64) -> None:
        known = np.flatnonzero(np.isfinite(values) & np.isfinite(self._times))
        wanted = np.flatnonzero(~np.isfinite(into))
        if not len(known) or not len(wanted):
            return
        after = np.searchsorted(known, wanted)
        inside = (after > 0) & (after < len(known))
        wanted, after = wanted[inside], after[inside]
        left, right = known[after - 1], known[after]
        span = self._times[right] - self._times[left]
        near = (span <= self._longest) & (span >= 0)
        wanted, left, right, span = wanted[near], left[near], right[near], span[near]
        share = np.divide(self._times[wanted] - self._times[left], span, out=np.zeros_like(span), where=span > 0)
        into[wanted] = values[left] + share * (values[right] - values[left])
