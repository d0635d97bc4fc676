"""Rows that come as they are measured: from a pipe, or a file that grows. A window is whole with its last row.

Nothing is resampled, since the next rows are not known yet; a gap, or a missing value, begins a new window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from mdl.data.spec import split_names
from mdl.data.tables.columns import THE_MODEL, Columns, choose_columns, find_units, rename_columns, scale_to
from mdl.data.tables.dialect import Dialect, dialect_of, is_number, parse_line, plain_name
from mdl.data.tables.options import CsvOptions
from mdl.data.tables.rows import Floats64, to_numbers
from mdl.data.windows import Floats
from mdl.errors import DataError

# Lines above the header that are passed over, as in a file.
_MOST_ABOVE = 200
# Steps of the time that give the usual one, and the multiple of it that is a gap.
_STEPS, _GAP_STEPS = 64, 10.0


def live_windows(
    lines: Iterable[str], name: str, options: CsvOptions, units: Sequence[str] | None = None
) -> Iterator[tuple[int, Floats]]:
    """Yield (number of its last row, float32 (channels, window)) for each window, every `step` rows.

    options: the channels, and the length of windows. units: of the channels, as a model takes them. Raises ConfigError
    or DataError naming `name` and the row.
    """
    source, file = iter(lines), Path(name)
    above, dialect, columns = _find_header(source, file, options)
    step = options.step or options.window
    held: deque[Floats64] = deque(maxlen=options.window)
    steps: deque[float] = deque(maxlen=_STEPS)
    last, fresh = np.nan, 0
    scale: tuple[Floats64, Floats64] | None = None
    for number, row in enumerate(_cells(above, source, dialect), 1):
        values = _values(row, number, file, dialect, columns)
        time = _time(row, columns)
        if not np.isfinite(values).all() or _is_gap(time - last, steps):
            held.clear()
            fresh = 0
        last = time if np.isfinite(time) else last
        if np.isfinite(values).all():
            held.append(values)
            fresh += 1
        if len(held) == options.window and fresh >= step:
            fresh = 0
            rows = np.stack(held)
            if scale is None:
                found = find_units(file, dialect, columns.channels, rows, split_names(options.units))
                scale = scale_to(file, columns.channels, found, units or found, THE_MODEL)
            yield number, np.ascontiguousarray((rows * scale[0] + scale[1]).T, np.float32)


def _find_header(source: Iterator[str], file: Path, options: CsvOptions) -> tuple[list[str], Dialect, Columns]:
    """Return the lines that were read beyond the header, its dialect and its columns."""
    wanted, names, seen = split_names(options.channels or options.columns), split_names(options.names), list[str]()
    for line in source:
        seen.append(line)
        cells = {plain_name(cell) for mark in ",;\t|" for cell in parse_line(line, mark)}
        rows = [each for each in seen if each.strip()]
        is_row = len(rows) > 1 and any(is_number(cell) for mark in ",;\t|" for cell in parse_line(rows[-1], mark))
        if (wanted and {plain_name(name) for name in wanted} <= cells) or is_row or (names and rows):
            dialect = rename_columns(file, dialect_of(file, seen, "utf-8", wanted, names), options.map)
            return seen[dialect.skipped :], dialect, choose_columns(file, dialect, options)
        if len(seen) > _MOST_ABOVE:
            raise DataError(f"{file}: no header in its first {_MOST_ABOVE} lines; ?names= says the columns")
    raise DataError(f"{file}: it ended before a header and a row came")


def _cells(above: Sequence[str], source: Iterator[str], dialect: Dialect) -> Iterator[list[str]]:
    for lines in (above, source):
        for line in lines:
            if line.strip():
                cells = parse_line(line.strip().rstrip(dialect.row_end or None), dialect.delimiter)
                yield cells + [""] * (len(dialect.header) - len(cells))


def _values(row: Sequence[str], number: int, file: Path, dialect: Dialect, columns: Columns) -> Floats64:
    parts = [to_numbers([row[place]], file, number, dialect.header[place], dialect) for _, place in columns.channels]
    return np.concatenate(parts)


def _time(row: Sequence[str], columns: Columns) -> float:
    """Return the time as a number of any unit; NaN if there is none, or one with marks between thousands."""
    for place in columns.times:
        if is_number(row[place]):
            with suppress(ValueError):
                return float(row[place].replace(",", "."))
    return np.nan


def _is_gap(step: float, steps: deque[float]) -> bool:
    """Return True if a step is many times the usual one, or goes back; else remember it."""
    if not np.isfinite(step):
        return False
    usual = float(np.median(steps)) if len(steps) >= _STEPS // 8 else np.inf
    if step < 0 or (usual > 0 and step > _GAP_STEPS * usual):
        steps.clear()
        return True
    steps.append(step)
    return False
