"""Inputs of a trained model: recordings without labels, and rows that come as they are measured.

Recordings are cut into windows in the order of their rows. Live rows come from a pipe, or a file that grows; a window
is whole with its last row. None of these are resampled, since the next rows are not known yet; a gap, or a missing
value, begins a new window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from mdl.data.describe import draw_window
from mdl.data.readers.csv_streams import gather_windows, look_at_tables, read_streams, window_starts
from mdl.data.sources import parse_spec
from mdl.data.spec import read_options, split_names
from mdl.data.tables.columns import (
    THE_MODEL,
    Columns,
    choose_columns,
    find_units,
    likely_labels,
    rename_columns,
    scale_to,
)
from mdl.data.tables.dialect import CsvOptions, Dialect, dialect_of, is_number, parse_line, plain_name
from mdl.data.tables.recordings import find_recordings
from mdl.data.tables.rows import Floats64, to_numbers
from mdl.data.windows import Floats, Integers
from mdl.errors import DataError
from mdl.task import describe_rate, is_one_rate
from mdl.writing import make_private_folder, open_private


@dataclass(frozen=True)
class Unlabelled:
    """x: float32 (n, channels, window), mapped from a file. recording: (n,), into files.

    began: (n,), since the recording's first row, in seconds, or in rows without times.
    """

    x: Floats
    began: Floats64
    recording: Integers
    files: tuple[Path, ...]
    is_timed: bool
    rate_hz: float | None
    channels: tuple[str, ...]
    channel_units: tuple[str, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


@contextmanager
def read_unlabelled(
    path: str,
    options: CsvOptions,
    rate_hz: float | None,
    cache_dir: Path,
    channel_units: Sequence[str] | None = None,
) -> Iterator[Unlabelled]:
    """Yield all windows of csv:PATH, with any label or none; delete the files behind them at the end.

    rate_hz: the windows' rate; recordings of another one are resampled. channel_units: a model's, as `read_streams`
    takes them. Raises ConfigError or DataError, as `read_csv` does.
    """
    files = find_recordings(path)
    if rate_hz is not None and options.rate is None:
        clocks = [table.time.clock for table in look_at_tables(files, options) if table.time]
        if not all(is_one_rate(clock.rate_hz, rate_hz) for clock in clocks):
            options = msgspec.structs.replace(options, rate=rate_hz)
    make_private_folder(cache_dir)
    with TemporaryDirectory(dir=cache_dir) as folder:
        rows = Path(folder) / "rows.f32"
        with open_private(rows, "xb") as into:
            streams = read_streams(
                path, files, options, into, labelled=False, units=channel_units, scratch=Path(folder)
            )
        step = options.step or options.window
        width = len(streams.channels) + (len(streams.classes) if options.targets != "classes" else 0)
        starts, stretch = window_starts(streams.stretches, options.window, step)
        if not len(starts):
            raise DataError(
                f"{path}: no window of {options.window} samples fits: the longest stretch has {streams.longest}"
            )
        x = gather_windows(rows, starts, len(streams.channels), options.window, rows.with_name("x.npy"), width)
        within = starts - streams.stretches[stretch, 0]
        # Seconds between rows; without times, rows count.
        each = 1 / streams.rate_hz if streams.is_timed and streams.rate_hz else 1.0
        began = streams.began[stretch] + within * each
        recording = streams.stretches[stretch, 4]
        yield Unlabelled(
            x, np.asarray(began, np.float64), recording, tuple(files), streams.is_timed, streams.rate_hz,
            streams.channels, streams.channel_units, tuple(streams.notes), streams.left_out,
        )  # fmt: skip


@dataclass(frozen=True)
class Description:
    """values: plain JSON. lines: for people."""

    values: dict[str, Any]
    lines: list[str]


def describe_unlabelled(text: str, cache_dir: Path) -> Description | None:
    """Describe csv:PATH if no label is named; return None for other data, or if a label is likely."""
    spec = parse_spec(text)
    if spec.source != "csv":
        return None
    options = read_options(spec, CsvOptions)
    if options.is_labelled or likely_labels(look_at_tables(find_recordings(spec.path)[:1], options)[0].dialect):
        return None
    with read_unlabelled(spec.path, options, None, cache_dir) as found:
        count, channels, window = found.x.shape
        rate = f" at {describe_rate(found.rate_hz)}" if found.rate_hz else ""
        of = f"{channels} channel{'s' if channels > 1 else ''} x {window} samples{rate}"
        values = {
            "recordings": len(found.files),
            "windows": count,
            "channels": channels,
            "channel_names": list(found.channels),
            "channel_units": list(found.channel_units),
            "window": window,
            "rate_hz": found.rate_hz,
            "notes": list(found.notes),
            "left_out": list(found.left_out),
            "classes": [],
        }
        lines = [
            f"{len(found.files)} recording{'s' if len(found.files) > 1 else ''}: {count} windows of {of}",
            *found.notes, *(f"left out {sample}" for sample in found.left_out),
            "no label is said: mdl predict reads it so, training needs ?label= or ?target=",
            *draw_window(np.asarray(found.x[0]), found.channels),
        ]  # fmt: skip
        return Description(values, lines)


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
