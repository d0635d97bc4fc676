"""Recordings without labels, cut into windows in the order of their rows: inputs of a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from mdl.data.describe import draw_window
from mdl.data.readers.csv_streams import find_recordings, gather_windows, window_starts
from mdl.data.sources import parse_spec
from mdl.data.spec import read_options
from mdl.data.tables.columns import likely_labels
from mdl.data.tables.options import CsvOptions
from mdl.data.tables.rows import Floats64
from mdl.data.tables.streams import look_at_tables, read_streams
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
