"""Stretches: rows of one label, person and recording without a gap, on disk as they come, on an even grid if asked.

Stretches too short for a window are dropped. Values that are missing in a stream of rows are filled before, block by
block, if their neighbours are near. Memory holds no more than a block of rows and a few numbers a stretch.
"""

from __future__ import annotations

from array import array
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.data.tables.rows import ROWS_AT_ONCE, Floats64
from mdl.data.windows import Integers
from mdl.errors import DataError

# The most samples made of a row at a high rate: beyond, nearly all of a filled stretch would be invented.
MOST_SAMPLES_A_ROW = 100
# Label of rows that belong to no class.
UNLABELLED = -1
# Without times: rows that may lie between two values of a channel. Sensors of one device, logged in turns, need a few.
MOST_ROWS_BETWEEN = 10
# Rows that wait for a channel's next value; a channel that is silent for so long is missing.
_MOST_WAITING = 4 * ROWS_AT_ONCE

# (values, times, extra)
Settled: TypeAlias = tuple[Floats64, Floats64, NDArray[np.int64]]


class StretchWriter:
    """Takes rows in their order, writes float32 rows (channels,) one after the other, and notes the stretches.

    found: five numbers each, in order: first row in the file, rows, label, subject, recording. began: the start of
    each, in seconds since the recording's first row, or in rows without times. too_short: input rows of stretches that
    were too short.
    """

    def __init__(self, file: IO[bytes], channels: int, window: int) -> None:
        self._file, self._row_bytes, self._window = file, 4 * channels, window
        self.found, self.began, self.longest = array("q"), array("d"), 0
        self._rows, self._start, self._taken, self._made = 0, 0, 0, 0
        self._key: tuple[int, int, int] | None = None
        self._rate: float | None = None
        self._gap_s = np.inf
        self._last: tuple[float, Floats64] | None = None
        self._first_s, self._grid = 0.0, 0
        self._origin_s, self._seen = np.nan, 0
        self.too_short, self._source = 0, 0

    def begin(self, rate: float | None, gap_s: float) -> None:
        """Begin a recording. rate: Hz of the grid, None to take rows as they are. gap_s: a longer step is a gap."""
        self.end()
        self._rate, self._gap_s = rate, gap_s
        self._origin_s, self._seen = np.nan, 0

    def add(self, values: Floats64, times: Floats64 | None, label: Integers, subject: Integers, recording: int) -> None:
        """Add rows. values: (rows, channels), NaN if missing: there, and at a missing label, a stretch ends."""
        self._taken += len(values)
        good = np.isfinite(values).all(axis=1) & (label != UNLABELLED)
        cut = np.ones(len(values), np.bool_)
        cut[1:] = ~good[:-1] | (label[1:] != label[:-1]) | (subject[1:] != subject[:-1])
        if times is None:
            self._origin_s = 0.0
        else:
            good &= np.isfinite(times)
            if np.isnan(self._origin_s) and np.isfinite(times).any():
                self._origin_s = float(times[np.isfinite(times)][0])
            with np.errstate(invalid="ignore"):
                step = np.diff(times)
                cut[1:] |= ~good[:-1] | (step < 0) | (step > self._gap_s)
        starts = np.flatnonzero(good & (cut | ~np.concatenate([[False], good[:-1]])))
        ends = np.flatnonzero(good & np.concatenate([cut[1:] | ~good[1:], [True]])) + 1
        if len(good) and not good[0]:
            self.end()
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            key = (int(label[first]), int(subject[first]), recording)
            if first or key != self._key or self._steps_away(times):
                self.end()
            if self._key is None:
                self._first_s = float(self._seen + first if times is None else times[first])
            self._extend(key, values[first:last], None if times is None else times[first:last])
        if len(good) and not good[-1]:
            self.end()
        self._seen += len(good)

    def end(self) -> None:
        """End the stretch; take it back if it is too short."""
        length = self._rows - self._start
        self.longest = max(self.longest, length)
        if self._key is not None and length >= self._window:
            self.found.extend((self._start, length, *self._key))
            self.began.append(self._first_s - self._origin_s)
        elif length:
            self._file.seek(self._start * self._row_bytes)
            self._file.truncate()
            self._rows = self._start
            self.too_short += self._source
        self._start, self._key, self._last, self._source = self._rows, None, None, 0

    def _steps_away(self, times: Floats64 | None) -> bool:
        """Return True if the first row of a block is a gap away from the last row of the block before."""
        if times is None or self._last is None:
            return False
        return not 0 <= times[0] - self._last[0] <= self._gap_s

    def _extend(self, key: tuple[int, int, int], values: Floats64, times: Floats64 | None) -> None:
        if self._key is None:
            self._grid = 0
        self._key = key
        self._source += len(values)
        if times is not None:
            last = self._last
            self._last = (float(times[-1]), values[-1].copy())
            if self._rate is not None:
                values = self._resample(self._rate, last, values, times)
        with np.errstate(over="ignore"):
            self._file.write(np.ascontiguousarray(values, np.float32).tobytes())
        self._rows += len(values)

    def _resample(
        self, rate: float, last: tuple[float, Floats64] | None, values: Floats64, times: Floats64
    ) -> Floats64:
        """Resample linearly on the stretch's own grid, which goes on from block to block."""
        if last is not None:
            times, values = np.append(last[0], times), np.concatenate([last[1][None], values])
        since_s = times - self._first_s
        count = int(since_s[-1] * rate) + 1 - self._grid
        self._made += count
        if not self._made <= MOST_SAMPLES_A_ROW * self._taken:
            raise DataError(
                f"rate={rate:g} would make more than {MOST_SAMPLES_A_ROW} samples of a row: a gap is filled in"
            )
        grid_s = (self._grid + np.arange(max(0, count))) / rate
        self._grid += len(grid_s)
        made: Floats64 = np.stack([np.interp(grid_s, since_s, column) for column in values.T], axis=1)
        return made


def list_stretches(writer: StretchWriter) -> NDArray[np.int64]:
    """Return the stretches, int64 (stretches, 5): first row, rows, label, subject, recording."""
    return np.frombuffer(writer.found, np.int64).reshape(-1, 5) if writer.found else np.zeros((0, 5), np.int64)


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
