"""Rows of a recording with a file for each sensor: the fastest one's rows, the others' values in between.

Sensors of one device have clocks that agree and rates that do not. Values of a slower sensor are interpolated to the
times of the fastest one; a row beyond its measurements, or in a gap of them, is left out. Memory holds some blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdl.data.tables.blocks import Cells
from mdl.data.tables.dialect import Dialect, Part
from mdl.data.tables.rows import Floats64, Rows, read_rows, to_numbers
from mdl.data.tally import Tally
from mdl.errors import DataError

# A step so many times a sensor's usual one is a gap.
_GAP_STEPS = 10.0
# Rows of a slower sensor beside a block of the fastest: more mean that their times are of two clocks.
_MOST_WAITING = 1 << 20


def read_table(
    file: Path,
    dialect: Dialect,
    wanted: Sequence[int],
    tally: Tally | None = None,
    *,
    numbers: Collection[int] = (),
    cut_before: int | None = None,
) -> Iterator[Rows]:
    """Yield rows like `read_rows`, from a file or from a recording in parts."""
    if not dialect.parts:
        yield from read_rows(file, dialect, wanted, tally, numbers=numbers, cut_before=cut_before)
        return
    base = dialect.parts[dialect.base]
    followers = [
        _Follower(part, [place for place in wanted if place in part.places.values()])
        for part in dialect.parts
        if part is not base and any(place in part.places.values() for place in wanted)
    ]
    own = {place: column for column, place in base.places.items()}
    columns = [base.time, *(own[place] for place in wanted if place in own)]
    seen = kept = 0
    own_numbers = {base.time, *(own[place] for place in numbers if place in own)}
    for rows in read_rows(base.file, base.dialect, columns, tally, numbers=own_numbers):
        good = np.ones(len(rows), np.bool_)
        cells: dict[int, Sequence[str]] = dict(
            zip([place for place in wanted if place in own], rows.columns[1:], strict=True)
        )
        if followers:
            times = _times(base, rows)
            for follower in followers:
                values = follower.at(times)
                good &= np.isfinite(values).all(axis=1)
                cells |= {place: _written(column) for place, column in zip(follower.wanted, values.T, strict=True)}
        cells.setdefault(0, rows.columns[0])
        chosen = np.flatnonzero(good).tolist()
        if len(chosen) < len(rows):
            cells = {
                place: column.take(chosen) if isinstance(column, Cells) else tuple(column[row] for row in chosen)
                for place, column in cells.items()
            }
        if chosen:
            yield Rows(kept + 1, tuple(cells[place] for place in wanted))
        seen, kept = seen + len(rows), kept + len(chosen)
    if not kept:
        names = ", ".join(part.file.name for part in dialect.parts)
        raise DataError(f"{file}: its files share no time ({names}); choose one sensor's channels with ?columns=")
    if kept < seen and tally is not None:
        tally.see(seen - kept)
        tally.leave("from when not all sensors measured", seen - kept, f"{file}: {seen - kept} of {seen} rows")


def measure_rate(file: Path, dialect: Dialect, time: int) -> float:
    """Return the rows of a file for one unit of its times, by its first block; 0 if its times do not advance."""
    rows = next(read_rows(file, dialect, [time], numbers=[time]))
    times = to_numbers(rows.columns[0], file, rows.first, dialect.header[time], dialect, as_times=True)
    steps = np.diff(times[np.isfinite(times)])
    steps = steps[steps > 0]
    return float(1 / np.median(steps)) if len(steps) else 0.0


class _Follower:
    """A slower sensor, read as far as the fastest one. wanted: its places in the recording's header."""

    def __init__(self, part: Part, wanted: Sequence[int]) -> None:
        self.wanted = list(wanted)
        own = {place: column for column, place in part.places.items()}
        self._part = part
        self._columns = [own[place] for place in self.wanted]
        columns = [part.time, *self._columns]
        self._blocks = read_rows(part.file, part.dialect, columns, numbers=columns)
        self._times: Floats64 = np.zeros(0)
        self._values: Floats64 = np.zeros((0, len(self.wanted)))

    def at(self, times: Floats64) -> Floats64:
        """Return its values at these times, (times, wanted); NaN beyond its measurements and in its gaps."""
        while not len(self._times) or self._times[-1] < times[-1]:
            if (rows := next(self._blocks, None)) is None:
                break
            self._take(rows)
        if not len(self._times):
            return np.full((len(times), len(self.wanted)), np.nan)
        after = np.searchsorted(self._times, times)
        inside = (times >= self._times[0]) & (times <= self._times[-1])
        last = np.clip(after, 0, len(self._times) - 1)
        first = np.maximum(last - (self._times[last] > times), 0)
        near = self._times[last] - self._times[first] <= _GAP_STEPS / self._part.rate_hz
        made = np.stack([np.interp(times, self._times, column) for column in self._values.T], axis=1)
        made[~(inside & near)] = np.nan
        # The last value before the next block stays, as a neighbour of later ones.
        keep = max(0, int(np.searchsorted(self._times, times[-1], side="right")) - 1)
        self._times, self._values = self._times[keep:], self._values[keep:]
        return made

    def _take(self, rows: Rows) -> None:
        part = self._part
        times = _times(part, rows)
        values = np.stack(
            [
                to_numbers(cells, part.file, rows.first, part.dialect.header[column], part.dialect)
                for column, cells in zip(self._columns, rows.columns[1:], strict=True)
            ],
            axis=1,
        )
        good: NDArray[np.bool_] = np.isfinite(times) & np.isfinite(values).all(axis=1)
        times, values = np.append(self._times, times[good]), np.concatenate([self._values, values[good]])
        # Rows that go back in time have no place between their neighbours.
        ahead = times >= np.maximum.accumulate(times)
        self._times, self._values = times[ahead], values[ahead]
        if len(self._times) > _MOST_WAITING:
            raise DataError(
                f"{part.file}: {len(self._times)} rows in the time of one block of the fastest sensor's file"
            )


def _written(values: Floats64) -> Cells:
    """Return numbers as cells."""
    return Cells(len(values), lambda: list(map(repr, values.tolist())), values)


def _times(part: Part, rows: Rows) -> Floats64:
    dialect = part.dialect
    return to_numbers(rows.columns[0], part.file, rows.first, dialect.header[part.time], dialect, as_times=True)
