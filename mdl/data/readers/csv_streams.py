"""Streams in CSV files, cut into windows that never straddle a change of label, a gap in time or two recordings.

csv:PATH?label=activity&columns=ax,ay,az&rate=50&window=128&step=64 where PATH is a file, a glob or a folder. Each file
is a recording; the first line of each is its header. The delimiter (comma, semicolon or tab) is found in the header.
Columns are found by their names: the files of one folder may have them in any order. The unit of the times is found in
their steps (`mdl.data.readers.clock`).
"""

from __future__ import annotations

import glob
import itertools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.assemble import assemble_data, number_names
from mdl.data.readers.archive import list_files, open_text
from mdl.data.readers.clock import RATE_TOLERANCE, UNITS_S, Clock, Times, find_clock, is_time_name, parse_dates
from mdl.data.readers.streams import cut_runs, overlap_gap, take_rows
from mdl.data.spec import describe_choices
from mdl.data.windows import DataSet, Integers, number_runs
from mdl.errors import ConfigError, DataError
from mdl.reading import shorten
from mdl.task import describe_rate

_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")

# A suit of motion sensors has 300.
_MOST_COLUMNS = 4096
# Names of classes and people; a text of a row's own is none.
_LONGEST_NAME = 256
# A gap that is filled in, at a high rate: beyond, nearly all of a stretch would be invented.
_MOST_SAMPLES_A_ROW = 100

Texts = NDArray[np.str_]


@dataclass(frozen=True)
class _Recording:
    """One file. values: (rows, channels). time_s: (rows,), and the clock it was read by; None without a time column.

    left_out: columns that are no channels because of their names.
    """

    file: Path
    channels: tuple[str, ...]
    values: NDArray[np.float64]
    labels: Texts
    subjects: Texts
    time_s: Times | None
    clock: Clock | None
    left_out: tuple[str, ...]


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: column with the class; columns: the channels (all others that are no times if empty); subject, time: more.

    time: numbers, or ISO dates; time_unit: instead of the one that their steps show. rate: Hz; with a time column each
    stretch is resampled to it, otherwise it only describes. A step in time above max_gap (s) ends a stretch. window and
    step count samples; step is half a window where not given. split, seed: what is held out for testing. skip: labels
    (comma-separated) that mean "not labelled".
    """

    label: str = ""
    columns: str = ""
    subject: str = ""
    time: str = ""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    max_gap: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 1.0
    window: Annotated[int, msgspec.Meta(ge=2, le=1 << 20)] = 128
    step: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None
    split: Literal["auto", "subject", "recording", "time"] = "auto"
    skip: str = ""
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


def find_csv_files(path: str) -> list[Path]:
    """The files that a file name, a folder or a glob stands for. Raises DataError if there is none."""
    if glob.has_magic(path) and not Path(path).exists():
        files = sorted(file for file in _expand(path) if file.is_file())
    else:
        root = Path(path)
        files = [file for file in list_files(root) if root.is_file() or file.name.endswith(_ENDINGS)]
    if not files:
        raise DataError(f"{path}: no file; expected a file, a folder with {', '.join(_ENDINGS[:3])}, or a glob")
    return files


def read_csv(path: str, options: CsvOptions) -> DataSet:
    """The data set at `path`. Raises ConfigError or DataError naming the file, the column or line, and the header."""
    recordings = _read_files(find_csv_files(path), options)
    channels = recordings[0].channels
    values = np.concatenate([recording.values for recording in recordings])
    labels = np.concatenate([recording.labels for recording in recordings])
    subjects = np.concatenate([recording.subjects for recording in recordings])
    recording = np.repeat(np.arange(len(recordings)), [len(each.labels) for each in recordings])
    keys: list[NDArray[np.generic]] = [recording, labels, subjects]
    time_s = np.concatenate([each.time_s for each in recordings if each.time_s is not None] or [np.zeros(0)])
    if options.time:
        keys.append(_number_gaps(time_s, options.max_gap))
    run = number_runs(*keys)
    # One row of each run stands for what does not change within it.
    first = np.flatnonzero(np.diff(run, prepend=-1))
    if options.time and options.rate is not None:
        values, run = _resample(values, time_s, run, options.rate)
    step = options.step or max(1, options.window // 2)
    starts, group = cut_runs(run, options.window, step)
    keep = ~np.isin(labels[first[group]], [word for word in options.skip.split(",") if word])
    starts, group = starts[keep], group[keep]
    if not len(starts):
        longest = int(np.bincount(run).max())
        raise DataError(
            f"{path}: no window of {options.window} samples fits: the longest stretch of one label has {longest}"
        )
    row = first[group]
    try:
        return assemble_data(
            Path(path).stem if not glob.has_magic(path) else "csv",
            take_rows(values, starts, options.window),
            number_names(labels[row]),
            subjects[row] if options.subject else None,
            recording[row] if len(recordings) > 1 else None,
            group,
            how=options.split,
            gap=overlap_gap(options.window, step),
            seed=options.seed,
            description=f"streams from {path}, {len(recordings)} recordings",
            channels=channels,
            notes=_describe_reading(recordings, options),
            rate_hz=options.rate or _usual_rate(recordings),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _read_files(files: Sequence[Path], options: CsvOptions) -> list[_Recording]:
    """All of one set of channels, in the order of the first file, and of one rate if they are not resampled."""
    recordings = [_read_file(files[0], options)]
    recordings += [_read_file(file, options, recordings[0]) for file in files[1:]]
    by_rate = sorted((each for each in recordings if each.clock), key=lambda each: _rate_of(each))
    if by_rate and options.rate is None and _rate_of(by_rate[-1]) > RATE_TOLERANCE * _rate_of(by_rate[0]):
        slow, fast = by_rate[0], by_rate[-1]
        raise DataError(
            f"{fast.file}: {describe_rate(_rate_of(fast))}, but {slow.file} has {describe_rate(_rate_of(slow))}; "
            f"bring them to one rate with ?rate={_rate_of(slow):.3g}"
        )
    return recordings


def _usual_rate(recordings: Sequence[_Recording]) -> float | None:
    """The middle one, of recordings that are as they were sampled; None without times."""
    rates = sorted(each.clock.rate_hz for each in recordings if each.clock)
    return rates[len(rates) // 2] if rates else None


def _rate_of(recording: _Recording) -> float:
    return recording.clock.rate_hz if recording.clock else 0.0


def _read_file(file: Path, options: CsvOptions, like: _Recording | None = None) -> _Recording:
    """like: whose channels it must have, in whatever order."""
    with open_text(file, errors="replace") as lines:
        header_line = next(lines, "").rstrip("\r\n")
    delimiter = max(",;\t", key=header_line.count)
    header = [name.strip().strip('"') for name in header_line.split(delimiter)]
    if len(header) > _MOST_COLUMNS:
        raise DataError(f"{file}: {len(header)} columns; at most {_MOST_COLUMNS} are read")
    channels, left_out = _choose_columns(file, header, options)
    if like is not None:
        _check_channels(file, channels, like)
        channels = list(like.channels)
    values = _load(file, delimiter, header, channels, np.float64)
    _check_finite(file, values, channels)
    texts = [_load_texts(file, delimiter, header, name) for name in (options.label, options.subject) if name]
    time_s, clock = _load_times(file, delimiter, header, options) if options.time else (None, None)
    subjects = texts[1] if options.subject else np.zeros(len(values), dtype="U1")
    return _Recording(file, tuple(channels), values, texts[0], subjects, time_s, clock, tuple(left_out))


def _check_channels(file: Path, channels: list[str], like: _Recording) -> None:
    if missing := [name for name in like.channels if name not in channels]:
        raise DataError(f"{file}: no column {missing[0]!r}, which {like.file} has; name the channels with ?columns=")
    if more := [name for name in channels if name not in like.channels]:
        raise DataError(f"{file}: column {more[0]!r} is not in {like.file}; name the channels with ?columns=")


def _load_times(file: Path, delimiter: str, header: list[str], options: CsvOptions) -> tuple[Times, Clock]:
    """Seconds, and the clock they were read by."""
    name, unit = options.time, options.time_unit
    try:
        times = _load(file, delimiter, header, [name], np.float64)[:, 0]
    except DataError:
        dates = parse_dates(_load_texts(file, delimiter, header, name))
        if dates is None:
            raise
        if unit not in (None, "s"):
            raise DataError(f"{file}: time_unit={unit}, but column {name!r} holds dates; leave time_unit out") from None
        times, unit = dates, "s"
    _check_finite(file, times[:, None], [name])
    clock = find_clock(times, name, str(file), unit=unit, rate=options.rate, max_gap_s=options.max_gap)
    return times * UNITS_S[clock.unit], clock


def _check_finite(file: Path, values: NDArray[np.float64], names: Sequence[str]) -> None:
    if len(bad := np.argwhere(~np.isfinite(values))):
        row, column = bad[0]
        found = values[row, column]
        raise DataError(f"{file}: data row {row + 1}: column {names[column]!r} is {found}; expected a finite number")


def _describe_reading(recordings: list[_Recording], options: CsvOptions) -> tuple[str, ...]:
    """What was found out, not said by the user."""
    notes = []
    if clocks := [each.clock for each in recordings if each.clock]:
        units = "/".join(sorted({clock.unit for clock in clocks}, key=list(UNITS_S).index))
        slowest, fastest = (describe_rate(pick(clock.rate_hz for clock in clocks)) for pick in (min, max))
        rates = slowest if slowest == fastest else f"{slowest} to {fastest}"
        then = f"resampled to {options.rate:g} Hz" if options.rate else "not resampled (?rate= does)"
        notes.append(f"times in column {options.time!r} are in {units}, {rates}; {then}")
    if left_out := recordings[0].left_out:
        notes.append(
            f"no channel, by the name: {', '.join(left_out)} (?time={left_out[0]} tells gaps; ?columns= takes any)"
        )
    return tuple(notes)


def _expand(path: str) -> list[Path]:
    """What a glob stands for. `**` goes into no linked folder, or two links to the folder they lie in have no end."""
    if "**" not in path:
        return [Path(name) for name in glob.glob(path)]
    root = Path(Path(path).anchor)
    found = root.glob(str(Path(path).relative_to(root)))
    return [file for file in found if not file.name.startswith(".")]


def _choose_columns(file: Path, header: list[str], options: CsvOptions) -> tuple[list[str], list[str]]:
    """The channels' names, all checked against the header; and columns that are none since they look like times."""
    shown = ", ".join(header)
    if not options.label:
        raise ConfigError(f"{file}: say which column holds the class, as in ?label=NAME; the header is: {shown}")
    named = [name.strip() for name in options.columns.split(",") if name.strip()]
    others = [options.label, *(name for name in (options.subject, options.time) if name)]
    for name in [*others, *named]:
        if name not in header:
            hint = describe_choices(name, header).partition("valid:")[0].rstrip(" ?")
            raise ConfigError(f"{file}: no column {name!r}{f' ({hint}?)' if hint else ''}; the header is: {shown}")
    free = [name for name in header if name and name not in others]
    left_out = [] if named else [name for name in free if is_time_name(name)]
    chosen = named or [name for name in free if name not in left_out]
    if not chosen or set(chosen) & set(others):
        raise ConfigError(f"{file}: columns must name channels other than {', '.join(others)}; the header is: {shown}")
    if twice := [name for name in chosen if header.count(name) > 1 or chosen.count(name) > 1]:
        raise ConfigError(f"{file}: column {twice[0]!r} is there twice; the header is: {shown}")
    return chosen, left_out


def _load_texts(file: Path, delimiter: str, header: list[str], name: str) -> Texts:
    """One column, stripped. Every text takes the room of the longest, so that one must not be a book."""
    cells = [cell.strip() for cell in _load(file, delimiter, header, [name], np.object_)[:, 0].tolist()]
    for row, cell in enumerate(cells, 1):
        if len(cell) > _LONGEST_NAME:
            raise DataError(f"{file}: data row {row}: column {name!r} has {len(cell)} characters; expected a name")
    return np.array(cells, np.str_)


def _load(file: Path, delimiter: str, header: list[str], names: list[str], kind: type[np.generic]) -> NDArray[Any]:
    with open_text(file, errors="replace") as lines, warnings.catch_warnings():
        # An empty table is refused below, in our own words.
        warnings.simplefilter("ignore", UserWarning)
        try:
            table = np.loadtxt(
                lines, dtype=kind, delimiter=delimiter, skiprows=1, usecols=[header.index(name) for name in names],
                ndmin=2, comments=None, quotechar='"',
            )  # fmt: skip
        except ValueError as error:
            raise DataError(f"{file}: {_explain(str(error), header)}") from None
    if not len(table):
        raise DataError(f"{file}: no rows below the header")
    return table


def _explain(reason: str, header: list[str]) -> str:
    """numpy's "could not convert string 'a' to float64 at row 3, column 2." in the user's words."""
    match = re.search(r"could not convert string (.*) to float64 at row (\d+), column (\d+)", reason)
    if not match:
        return shorten(reason.rstrip("."))
    column = header[int(match[3]) - 1]
    row = int(match[2]) + 1
    return f"data row {row}: column {column!r} is {match[1]}; expected a number (choose channels with ?columns=)"


def _number_gaps(time_s: Times, max_gap_s: float) -> Integers:
    step_s = np.diff(time_s, prepend=time_s[:1])
    return np.cumsum((step_s < 0) | (step_s > max_gap_s)).astype(np.int64)


def _resample(
    values: NDArray[np.float64], time_s: Times, run: Integers, rate: float
) -> tuple[NDArray[np.float64], Integers]:
    """Each run's channels on an even grid at `rate` (linear)."""
    parts, runs, samples = [], [], 0.0
    edges = np.flatnonzero(np.diff(run, prepend=-1, append=-1))
    for first, last in itertools.pairwise(edges):
        since_s = time_s[first:last] - time_s[first]
        samples += since_s[-1] * rate + 1
        if not samples <= _MOST_SAMPLES_A_ROW * len(values):
            raise DataError(
                f"rate={rate:g} would make more than {_MOST_SAMPLES_A_ROW} samples of a row: a gap is filled in"
            )
        grid_s = np.arange(int(since_s[-1] * rate) + 1) / rate
        parts.append(np.stack([np.interp(grid_s, since_s, column) for column in values[first:last].T], axis=1))
        runs.append(np.full(len(grid_s), run[first]))
    return np.concatenate(parts), np.concatenate(runs)
