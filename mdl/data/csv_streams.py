"""Streams in CSV files, cut into windows that never straddle a change of label, a gap in time or two recordings.

csv:PATH?label=activity&columns=ax,ay,az&rate=50&window=128&step=64 where PATH is a file, a glob or a folder. Each file
is a recording; the first line of each is its header. The delimiter (comma, semicolon or tab) is found in the header.
"""

from __future__ import annotations

import glob
import gzip
import itertools
import re
import warnings
from pathlib import Path
from typing import IO, Annotated, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.archive import list_files
from mdl.data.assemble import assemble_data, number_names
from mdl.data.spec import describe_choices
from mdl.data.streams import cut_runs, overlap_gap, take_rows
from mdl.data.windows import DataSet, Integers, number_runs
from mdl.errors import ConfigError, DataError

_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_TIME_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_Kind = TypeVar("_Kind", bound=np.generic)
Texts = NDArray[np.str_]
Table = tuple[NDArray[np.float64], Texts, Texts]


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: column with the class; columns: the channels (all others if empty); subject, time: optional columns.

    rate: Hz; with a time column each stretch is resampled to it, otherwise it only describes. A step in time above
    max_gap (s) ends a stretch. window and step count samples; step is half a window where not given. split, seed: what
    is held out for testing. skip: labels (comma-separated) that mean "not labelled".
    """

    label: str = ""
    columns: str = ""
    subject: str = ""
    time: str = ""
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_gap: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    window: Annotated[int, msgspec.Meta(ge=2)] = 128
    step: Annotated[int, msgspec.Meta(ge=1)] | None = None
    split: Literal["auto", "subject", "recording", "time"] = "auto"
    skip: str = ""
    seed: int = 0


def find_csv_files(path: str) -> list[Path]:
    """The files that a file name, a folder or a glob stands for. Raises DataError if there is none."""
    if glob.has_magic(path) and not Path(path).exists():
        files = sorted(Path(name) for name in glob.glob(path, recursive=True) if Path(name).is_file())
    else:
        root = Path(path)
        files = [file for file in list_files(root) if root.is_file() or file.name.endswith(_ENDINGS)]
    if not files:
        raise DataError(f"{path}: no file; expected a file, a folder with {', '.join(_ENDINGS[:3])}, or a glob")
    return files


def read_csv(path: str, options: CsvOptions) -> DataSet:
    """The data set at `path`. Raises ConfigError or DataError naming the file, the column or line, and the header."""
    files = find_csv_files(path)
    tables = [_read_file(file, options) for file in files]
    _check_widths(files, tables)
    values, labels, subjects = (np.concatenate(column) for column in zip(*tables, strict=True))
    recording = np.repeat(np.arange(len(tables)), [len(table[1]) for table in tables])
    keys: list[NDArray[np.generic]] = [recording, labels, subjects]
    if options.time:
        keys.append(_number_gaps(values[:, 0], options))
    run = number_runs(*keys)
    # One row of each run stands for what does not change within it.
    first = np.flatnonzero(np.diff(run, prepend=-1))
    if options.time:
        values, run = _resample(values, run, options)
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
            recording[row] if len(tables) > 1 else None,
            group,
            how=options.split,
            gap=overlap_gap(options.window, step),
            seed=options.seed,
            description=f"streams from {path}, {len(tables)} recordings",
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _check_widths(files: list[Path], tables: list[Table]) -> None:
    widths = [table[0].shape[1] for table in tables]
    for file, width in zip(files, widths, strict=True):
        if width != widths[0]:
            raise DataError(
                f"{file}: {width} number columns, {files[0]} has {widths[0]}; name the channels with ?columns="
            )


def _read_file(file: Path, options: CsvOptions) -> Table:
    """(values (rows, [time +] channels), labels, subjects) of one file."""
    with _open_text(file) as lines:
        header_line = lines.readline().rstrip("\r\n")
    delimiter = max(",;\t", key=header_line.count)
    header = [name.strip().strip('"') for name in header_line.split(delimiter)]
    channels = _choose_columns(file, header, options)
    numbers = ([options.time] if options.time else []) + channels
    values = _load(file, delimiter, header, numbers, np.float64)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        found = values[row, column]
        raise DataError(f"{file}: data row {row + 1}: column {numbers[column]!r} is {found}; expected a finite number")
    texts = [
        np.char.strip(_load(file, delimiter, header, [name], np.str_)[:, 0])
        for name in (options.label, options.subject)
        if name
    ]
    return values, texts[0], texts[1] if options.subject else np.zeros(len(values), dtype="U1")


def _open_text(file: Path) -> IO[str]:
    if file.name.endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", errors="replace")
    return file.open(encoding="utf-8-sig", errors="replace")


def _choose_columns(file: Path, header: list[str], options: CsvOptions) -> list[str]:
    """The channels' names, all checked against the header."""
    shown = ", ".join(header)
    if not options.label:
        raise ConfigError(f"{file}: say which column holds the class, as in ?label=NAME; the header is: {shown}")
    named = [name.strip() for name in options.columns.split(",") if name.strip()]
    others = [options.label, *(name for name in (options.subject, options.time) if name)]
    for name in [*others, *named]:
        if name not in header:
            hint = describe_choices(name, header).partition("valid:")[0].rstrip(" ?")
            raise ConfigError(f"{file}: no column {name!r}{f' ({hint}?)' if hint else ''}; the header is: {shown}")
    chosen = named or [name for name in header if name and name not in others]
    if not chosen or set(chosen) & set(others):
        raise ConfigError(f"{file}: columns must name channels other than {', '.join(others)}; the header is: {shown}")
    return chosen


def _load(file: Path, delimiter: str, header: list[str], names: list[str], kind: type[_Kind]) -> NDArray[_Kind]:
    with _open_text(file) as lines, warnings.catch_warnings():
        # An empty table is refused below, in our own words.
        warnings.simplefilter("ignore", UserWarning)
        try:
            table = np.loadtxt(
                lines, dtype=kind, delimiter=delimiter, skiprows=1, usecols=[header.index(name) for name in names],
                ndmin=2, comments=None, quotechar='"',
            )  # fmt: skip
        except ValueError as error:
            raise DataError(f"{file}: {_explain(str(error), header)}") from None
        except (OSError, EOFError) as error:
            raise DataError(f"{file}: damaged ({error})") from None
    if not len(table):
        raise DataError(f"{file}: no rows below the header")
    return table


def _explain(reason: str, header: list[str]) -> str:
    """numpy's "could not convert string 'a' to float64 at row 3, column 2." in the user's words."""
    match = re.search(r"could not convert string (.*) to float64 at row (\d+), column (\d+)", reason)
    if not match:
        return reason.rstrip(".").replace("\n", " ")
    column = header[int(match[3]) - 1]
    row = int(match[2]) + 1
    return f"data row {row}: column {column!r} is {match[1]}; expected a number (choose channels with ?columns=)"


def _number_gaps(time: NDArray[np.float64], options: CsvOptions) -> Integers:
    step_s = np.diff(time, prepend=time[:1]) * _TIME_UNITS_S[options.time_unit]
    return np.cumsum((step_s < 0) | (step_s > options.max_gap)).astype(np.int64)


def _resample(values: NDArray[np.float64], run: Integers, options: CsvOptions) -> tuple[NDArray[np.float64], Integers]:
    """Each run's channels on an even grid at `rate` (linear), the time column taken off; as it is without a rate."""
    if options.rate is None:
        return values[:, 1:], run
    parts, runs = [], []
    edges = np.flatnonzero(np.diff(run, prepend=-1, append=-1))
    for first, last in itertools.pairwise(edges):
        time_s = (values[first:last, 0] - values[first, 0]) * _TIME_UNITS_S[options.time_unit]
        grid_s = np.arange(int(time_s[-1] * options.rate) + 1) / options.rate
        columns = [np.interp(grid_s, time_s, column) for column in values[first:last, 1:].T]
        parts.append(np.stack(columns, axis=1))
        runs.append(np.full(len(grid_s), run[first]))
    return np.concatenate(parts), np.concatenate(runs)
