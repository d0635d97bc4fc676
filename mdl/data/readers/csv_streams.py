"""Streams in CSV files, cut into windows that never straddle a change of label, a gap in time or two recordings.

Named as in `csv:PATH?label=activity&columns=ax,ay,az&rate=50&window=128&step=64`. PATH is a file, a glob, a folder or
a zip. Each file is a recording, and so is each folder or zip as a known app exports it. `mdl.data.tables` finds out the
form of a file: delimiter, encoding, units, dates. Columns are found by their names: the files of one folder may have
them in any order. Rows and windows go through files, so that memory does not grow with the recordings.

A row comes by these steps. `look_at_tables` finds the form of its file, the roles of its columns, and the times of the
whole file. `_Reader` reads its values, its label and its person, and `StretchWriter` puts it into a stretch. Windows
are cut of that. A file is read once: its rows are kept on the disk while its times are looked for (`KeptRows`).

Facts that were found out and not given by the user go into notes. Channels are brought to the unit that mdl keeps for
their quantity. Two files of one set may differ in nothing else (channels, rates, quantities, spellings of a class): the
error then says what to do.
"""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.bounds import first_few
from mdl.channels import describe_units, kept_unit, quantity_of
from mdl.data.spec import split_names
from mdl.data.tables.columns import (
    NO_TIME,
    THE_MODEL,
    Columns,
    agree_on_units,
    ask_for_label,
    choose_columns,
    find_units,
    from_path,
    read_map,
    rename_columns,
    scale_to,
)
from mdl.data.tables.dialect import CsvOptions, Dialect, is_time_name, without_unit
from mdl.data.tables.recordings import (
    KeptRows,
    choose_base,
    find_recordings,
    look_at_recording,
    read_table,
)
from mdl.data.tables.rows import Floats64, TableRows, to_numbers
from mdl.data.tables.stretches import (
    UNLABELLED,
    Filler,
    Numbering,
    Settled,
    StretchWriter,
    below_sides,
    find_sides,
    list_stretches,
    name_from_path,
    number_classes,
    part_labels,
    read_flags,
    refuse_one_class_by_two_names,
)
from mdl.data.tables.times import RATE_TOLERANCE, UNITS_S, TimeColumn, UnsortedError, find_time, unwrap
from mdl.data.windows import LARGEST_WINDOWS_BYTES, DataSet, Floats, Integers, assemble_data, overlap_gap
from mdl.errors import DataError
from mdl.reading import Tally
from mdl.task import describe_rate
from mdl.writing import open_private

__all__ = ["CsvOptions", "gather_windows", "look_at_tables", "read_csv", "read_streams", "window_starts"]

# Windows gathered together: 512 of 9 x 128 in float32 are 2.4 MB.
_AT_ONCE = 512
# Classes named in one line.
_MOST_SHOWN = 8
# A step so many times the usual one is a gap in rows that are taken as they are; for resampled ones, a second too.
_GAP_STEPS, _GAP_S = 10.0, 1.0
# Columns of a known app that are named in one line.
_MOST_PAIRS = 12


@dataclass(frozen=True)
class Table:
    """One file, before its rows are read. time: None without one."""

    file: Path
    dialect: Dialect
    columns: Columns
    time: TimeColumn | None
    why_no_time: str = ""


@dataclass
class Streams:
    """The content of all files. stretches: int64 (n, 5), as `list_stretches` gives them, into the file of rows.

    classes: their names, or those of the numbers or labels that follow the channels in each row. units: of the numbers.
    channel_units: of the channels; () if none is known. is_converted: some were written in another one.
    left_out: samples of rows that were left out.
    began: start of each stretch since its recording's first row: seconds, or rows without times (is_timed says).
    rate_hz: of the rows in it; None if it is not known. longest: rows of the longest stretch, even if it is too short.
    """

    channels: tuple[str, ...]
    classes: tuple[str, ...]
    people: tuple[str, ...]
    stretches: NDArray[np.int64]
    rate_hz: float | None
    longest: int
    began: Floats64
    is_timed: bool
    notes: list[str] = field(default_factory=list)
    units: tuple[str, ...] = ()
    channel_units: tuple[str, ...] = ()
    is_converted: bool = False
    left_out: tuple[str, ...] = ()


def read_csv(
    path: str,
    options: CsvOptions,
    scratch: Path | None = None,
    *,
    labelled: bool = True,
    files: list[Path] | None = None,
) -> DataSet:
    """Read the data set at `path`. scratch: a folder on a disk for rows and windows; None for a temporary one.

    labelled: False takes all rows, with any label or none. files: only these of the files at `path`. Raises ConfigError
    or DataError naming the file, the column or row, and the header.
    """
    files = files or find_recordings(path)
    sides, split = find_sides(path, files) if options.split == "auto" else (None, "")
    if split:
        changes = {"label": below_sides(options.label), "subject": below_sides(options.subject)}
        options = msgspec.structs.replace(options, **changes)
    with _place_for_rows(scratch) as folder:
        rows = folder / "rows.f32"
        with open_private(rows, "xb") as into:
            streams = read_streams(path, files, options, into, labelled, scratch=folder)
        try:
            return _cut(
                path, replace(streams, notes=[*filter(None, [split]), *streams.notes]), options, rows, len(files), sides
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        finally:
            rows.unlink()


@contextmanager
def _place_for_rows(scratch: Path | None) -> Iterator[Path]:
    if scratch is not None:
        yield scratch
        return
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_streams(
    path: str,
    files: Sequence[Path],
    options: CsvOptions,
    into: IO[bytes],
    labelled: bool,
    units: Sequence[str] | None = None,
    scratch: Path | None = None,
) -> Streams:
    """Read all rows of all files. into: takes the rows, float32. labelled: False takes rows without a class too.

    scratch: a folder on a disk, for rows between their two uses; None reads files with times twice.

    units: a model's units of its channels, "" for an unknown one; None for the units that mdl keeps.

    Raises ConfigError or DataError naming the file and the column or row.
    """
    with KeptRows(scratch) as kept:
        tables = look_at_tables(files, options, kept)
        rate = _grid_rate(tables, options)
        if labelled and not options.is_labelled:
            raise ask_for_label(files[0], tables[0].dialect)
        reader = _Reader(path, options, into, tables[0], labelled, units)
        for number, table in enumerate(tables):
            reader.read(table, number, rate, kept)
        reader.writer.end()
    refuse_one_class_by_two_names(reader.classes.names, path)
    tally = reader.count()
    return Streams(
        tuple(name for name, _ in tables[0].columns.channels),
        tuple(name for name, _ in tables[0].columns.targets) or reader.classes.names,
        reader.people.names,
        list_stretches(reader.writer),
        rate or (_usual_rate(tables) if options.rate is None else options.rate),
        reader.writer.longest,
        np.array(reader.writer.began, np.float64),
        all(table.time for table in tables),
        [*_describe_tables(tables, options, rate), *reader.describe(), tally.line()],
        agree_on_units(
            [(each.file, tuple(each.dialect.units[place] for _, place in each.columns.targets)) for each in tables]
        )
        if options.target
        else (),
        reader.units if any(reader.units) else (),
        reader.is_converted,
        tally.samples(),
    )


def look_at_tables(files: Sequence[Path], options: CsvOptions, kept: KeptRows | None = None) -> list[Table]:
    """Find header and clock of each file. kept: keeps the rows. Raises DataError if channels or rates differ."""
    wanted = [
        name for name in (options.label, options.subject, options.time) if not from_path(name) and name != NO_TIME
    ]
    wanted += split_names(options.channels or options.columns) + split_names(options.target or options.labels)
    # A header is known by these names, as the files have them.
    theirs = {ours: name for name, ours in read_map(options.map).items()}
    tables: list[Table] = []
    for file in files:
        dialect = look_at_recording(file, [theirs.get(name, name) for name in wanted], split_names(options.names))
        dialect = rename_columns(file, dialect, options.map)
        like = tables[0] if tables else None
        channels = None if like is None else [name for name, _ in like.columns.channels]
        columns = choose_columns(file, dialect, options, channels, like.file if like else None)
        tables.append(_with_time(Table(file, choose_base(dialect, columns), columns, None), options, kept))
    rates = sorted((table for table in tables if table.time), key=_rate_of)
    if rates and options.rate is None and _rate_of(rates[-1]) > RATE_TOLERANCE * _rate_of(rates[0]):
        slow, fast = rates[0], rates[-1]
        raise DataError(
            f"{fast.file}: {describe_rate(_rate_of(fast))}, but {slow.file} has {describe_rate(_rate_of(slow))}; "
            f"bring them to one rate with ?rate={_rate_of(slow):.3g}"
        )
    return tables


def _wanted(table: Table, options: CsvOptions, time: int | None) -> tuple[list[int], set[int], int]:
    """Return (columns to read in their order, those that are numbers, count of channels and targets among the first).

    time: the column of the times, which comes last.
    """
    channels, targets = table.columns.channels, table.columns.targets
    # Labels that share a cell are one column here.
    wanted = [place for _, place in channels] + list(dict.fromkeys(place for _, place in targets))
    extra = [place for place in (table.columns.label, table.columns.subject, time) if place is not None]
    numbers = {place for _, place in (*channels, *(targets if options.target else ()))}
    return [*wanted, *extra], numbers, len(wanted)


def _with_time(table: Table, options: CsvOptions, kept: KeptRows | None) -> Table:
    """Add the table's time. One that the user named must be valid; one found by its name is used if it is."""
    why = ""
    for place in table.columns.times:
        try:
            with _reading_times(table, place, options, kept) as read:
                time = find_time(table.file, table.dialect, place, options, read)
            return Table(table.file, table.dialect, table.columns, time)
        except UnsortedError:
            raise
        except DataError as error:
            if options.time or options.fill_s is not None or _is_time(table, place, options):
                raise
            why = why or str(error)
    return Table(table.file, table.dialect, table.columns, None, why)


@contextmanager
def _reading_times(
    table: Table, place: int, options: CsvOptions, kept: KeptRows | None
) -> Iterator[Iterator[TableRows] | None]:
    """Yield rows of the times, which are kept meanwhile; None if they are not to be kept."""
    wanted, numbers, _ = _wanted(table, options, place)
    numbers.add(place)
    # A column that is read both as numbers and as names is needed as it was written.
    if kept is None or numbers & {table.columns.label, table.columns.subject}:
        yield None
        return
    with closing(kept.read_times(table.file, table.dialect, place, wanted, numbers)) as read:
        yield read


def _is_time(table: Table, place: int, options: CsvOptions) -> bool:
    """Return True if a column found by its name is a good time, and only contradicts the user's options."""
    if options.rate is None and options.time_unit is None and options.max_gap is None:
        return False
    unsaid = msgspec.structs.replace(options, rate=None, time_unit=None, max_gap=None)
    try:
        find_time(table.file, table.dialect, place, unsaid)
    except DataError:
        return False
    return True


def _grid_rate(tables: Sequence[Table], options: CsvOptions) -> float | None:
    """Return the Hz that stretches are brought to; None if rows are taken as they are."""
    timed = all(table.time for table in tables)
    if options.fill_s is not None and not timed:
        file = next(table.file for table in tables if not table.time)
        raise DataError(f"{file}: gaps={options.gaps} needs to know when each row was; say which column with ?time=")
    if options.fill_s is not None:
        return options.rate or float(f"{_usual_rate(tables):.3g}")
    return options.rate if timed else None


def _usual_rate(tables: Sequence[Table]) -> float | None:
    """Return the middle rate of the recordings, as they were sampled; None without times."""
    rates = sorted(_rate_of(table) for table in tables if table.time)
    return rates[len(rates) // 2] if rates else None


def _rate_of(table: Table) -> float:
    return table.time.clock.rate_hz if table.time else 0.0


class _Reader:
    def __init__(
        self,
        path: str,
        options: CsvOptions,
        into: IO[bytes],
        first: Table,
        labelled: bool,
        units: Sequence[str] | None,
    ) -> None:
        self._path, self._options, self._labelled = path, options, labelled
        self.classes, self.people = number_classes(options), Numbering("person")
        width = len(first.columns.channels) + len(first.columns.targets)
        self.writer = StretchWriter(into, width, options.window)
        self._tally = Tally()
        self._filled = 0
        self._channels = [name for name, _ in first.columns.channels]
        # The unit of each channel: the model's if there is one, else the first file's.
        self.units, self._like = tuple(units or ()), THE_MODEL
        self._converted: dict[int, list[str]] = {}

    @property
    def is_converted(self) -> bool:
        """True if a channel was written in another unit."""
        return bool(self._converted)

    def read(self, table: Table, number: int, rate: float | None, kept: KeptRows) -> None:
        """Read all rows of one recording. kept: may have them."""
        options, step_s = self._options, 1 / _rate_of(table) if table.time else 0.0
        usual = _GAP_STEPS * step_s if rate is None else max(_GAP_S, _GAP_STEPS * step_s)
        gap_s = options.fill_s or options.max_gap or usual
        self.writer.begin(rate if table.time else None, gap_s)
        channels, targets = table.columns.channels, table.columns.targets
        filler = Filler(len(channels) + len(targets), gap_s) if options.missing == "interpolate" else None
        scale: tuple[Floats64, Floats64] | None = None
        last = np.nan
        time = table.time.place if table.time else None
        wanted, numbers, count = _wanted(table, options, time)
        numbers |= {table.time.place} if table.time and table.time.parser is None else set()
        found = None if time is None else kept.read(table.file, table.dialect, time, wanted)
        for rows in found or read_table(table.file, table.dialect, wanted, self._tally, numbers=numbers):
            self._tally.see(len(rows))
            values = self._values(table, rows)
            if scale is None:
                scale = self._scale(table, values)
            values[:, : len(channels)] = values[:, : len(channels)] * scale[0] + scale[1]
            keys = self._keys(table, rows, count)
            times = None
            if table.time:
                times = table.time.read(rows.columns[-1], table.file, rows.first, table.dialect)
                times = unwrap(times, last) if table.time.wraps else times
                last = times[-1] if np.isfinite(times[-1]) else last
            self._meet_missing(table, rows, values, times, keys)
            if filler is None:
                self.writer.add(values, times, keys[:, 0], keys[:, 1], number)
            else:
                self._add_filled(filler.add(values, times, keys), times is not None, number)
        if filler is not None:
            self._add_filled(filler.finish(), table.time is not None, number)
            self._filled += filler.filled
        self.writer.end()

    def describe(self) -> list[str]:
        """Return notes on filled values and on units."""
        notes = []
        if self._filled:
            notes.append(f"{self._filled} values that were missing are filled in (missing=interpolate)")
        units = describe_units(self._channels, self.units, lambda place: self._converted.get(place, ()))
        return [*notes, units] if units else notes

    def count(self) -> Tally:
        """Return the counts of rows read, and of rows left out by reason."""
        self._tally.leave(f"in stretches of less than {self._options.window} rows (?window=)", self.writer.too_short)
        return self._tally

    def _values(self, table: Table, rows: TableRows) -> Floats64:
        columns = [
            to_numbers(cells, table.file, rows.first, table.dialect.header[place], table.dialect)
            for (_, place), cells in zip(table.columns.channels, rows.columns, strict=False)
        ]
        targets, cells = table.columns.targets, rows.columns[len(columns) :]
        if self._options.label_sep and targets:
            names, separator = [name for name, _ in targets], self._options.label_sep
            columns += part_labels(cells[0], names, separator, table.file, rows.first, self._options.label)
        elif self._options.labels:
            columns += [
                read_flags(each, table.file, rows.first, name) for (name, _), each in zip(targets, cells, strict=False)
            ]
        else:
            columns += [
                to_numbers(each, table.file, rows.first, name, table.dialect)
                for (name, _), each in zip(targets, cells, strict=False)
            ]
        return np.stack(columns, axis=1)

    def _keys(self, table: Table, rows: TableRows, channels: int) -> NDArray[np.int64]:
        """Return label and subject of each row, int64 (rows, 2)."""
        cells, said, columns = list(rows.columns[channels:]), self._options, table.columns
        keys = np.zeros((len(rows), 2), np.int64)
        label = "" if said.label_sep else said.label
        for place, column, word, numbering in (
            (0, columns.label, label, self.classes), (1, columns.subject, said.subject, self.people),
        ):  # fmt: skip
            if column is not None:
                keys[:, place] = numbering.number(cells.pop(0), table.file, rows.first, table.dialect.header[column])
            elif word:
                name = name_from_path(word, self._path, table.file)
                keys[:, place] = numbering.number([name], table.file, 1, word)
        self._meet_unlabelled(table, rows, keys[:, 0], rows.columns[channels] if columns.label is not None else ())
        if not self._labelled:
            keys[:, 0] = np.maximum(keys[:, 0], 0)
        return keys

    def _meet_unlabelled(self, table: Table, rows: TableRows, labels: NDArray[np.int64], cells: Sequence[str]) -> None:
        """Count rows without a label; none if all rows are taken."""
        left = np.flatnonzero(labels == UNLABELLED).tolist() if self._labelled else []
        for row in left:
            why = "without a label" if not cells or self.classes.is_nothing(cells[row]) else "that ?skip= names"
            is_sample = self._tally.wants(why)
            told = f"{table.file}: data row {rows.first + row}: {cells[row] if cells else ''}" if is_sample else ""
            self._tally.leave(why, 1, told)

    def _scale(self, table: Table, values: Floats64) -> tuple[Floats64, Floats64]:
        """Return (factor, offset) of each channel, (channels,), which bring its values to the kept unit.

        Raises DataError that names both files, or the model, if a channel measures another quantity.
        """
        channels = table.columns.channels
        found = find_units(table.file, table.dialect, channels, values, split_names(self._options.units))
        if not self.units:
            self.units, self._like = tuple(map(self._keep, found)), str(table.file)
        for place, (here, there) in enumerate(zip(found, self.units, strict=True)):
            if here and there and here != there:
                self._converted.setdefault(place, []).append(here)
        if self._options.acceleration and self._options.acceleration not in self.units:
            said = self._options.acceleration
            raise DataError(f"{table.file}: acceleration={said}, but neither header nor values tell its unit")
        return scale_to(table.file, channels, found, self.units, self._like)

    def _keep(self, unit: str) -> str:
        return self._options.acceleration or kept_unit(unit) if quantity_of(unit) == "acceleration" else kept_unit(unit)

    def _meet_missing(
        self, table: Table, rows: TableRows, values: Floats64, times: Floats64 | None, keys: NDArray[np.int64]
    ) -> None:
        lost = ~np.isfinite(values)
        if times is not None:
            lost = np.concatenate([lost, ~np.isfinite(times)[:, None]], axis=1)
        wanted = keys[:, 0] != UNLABELLED
        hit = np.argwhere(lost & wanted[:, None])
        if not len(hit):
            return
        drops = self._options.missing == "drop" or bool(table.dialect.row_end)
        if self._options.missing == "refuse" and not drops:
            row, column = hit[0].tolist()
            places = [place for _, place in (*table.columns.channels, *table.columns.targets)]
            is_value, read = column < len(places), list(dict.fromkeys(places))
            place = places[column] if is_value else table.time.place if table.time else 0
            cell = rows.columns[read.index(place) if is_value else -1][row].strip() or "empty"
            raise DataError(
                f"{table.file}: data row {rows.first + row}: column {table.dialect.header[place]!r} is {cell[:40]}; "
                f"expected a finite number (?missing=drop leaves such rows out, ?missing=interpolate fills them in)"
            )
        if drops:
            lines = np.unique(hit[:, 0])
            place = f"{table.file}: data row {rows.first + int(lines[0])}"
            self._tally.leave("that miss a value", len(lines), place)

    def _add_filled(self, settled: Settled, timed: bool, number: int) -> None:
        values, times, keys = settled
        if len(values):
            self.writer.add(values, times if timed else None, keys[:, 0], keys[:, 1], number)


def _describe_app(table: Table) -> str:
    """Return the line on the app that wrote the columns, and their names here; "" for no known app's."""
    dialect = table.dialect
    named = [(name, place) for name, place in table.columns.channels if name == dialect.alias(place)]
    if not dialect.app or not named:
        return ""
    theirs = [(without_unit(dialect.header[place]), name) for name, place in named]
    pairs = [name if their == name else f"{their} is {name}" for their, name in theirs]
    return f"as {dialect.app} writes it: {first_few(pairs, _MOST_PAIRS)}"


def _describe_tables(tables: Sequence[Table], options: CsvOptions, rate: float | None) -> list[str]:
    """Return notes on facts that were found out, not given by the user."""
    notes = sorted({said for table in tables for said in (table.dialect.describe(), _describe_app(table)) if said})
    if clocks := [table.time.clock for table in tables if table.time]:
        units = "/".join(sorted({clock.unit for clock in clocks}, key=list(UNITS_S).index))
        slowest, fastest = (describe_rate(pick(clock.rate_hz for clock in clocks)) for pick in (min, max))
        rates = slowest if slowest == fastest else f"{slowest} to {fastest}"
        then = f"resampled to {rate:g} Hz" if rate else "not resampled (?rate= does)"
        name = next(table.time.name for table in tables if table.time)
        notes.append(f"times in column {name!r} are in {units}, {rates}; {then}")
    used = {table.time.name for table in tables if table.time}
    if left_out := [name for name in tables[0].columns.left_out if name not in used]:
        told = f"?time={left_out[0]} tells gaps; " if is_time_name(left_out[0]) else ""
        notes.append(f"no channel, by the name: {first_few(left_out, _MOST_PAIRS)} ({told}?columns= takes any)")
    if beside := sorted({name for table in tables for name in table.dialect.left_out}):
        notes.append(f"no sensor's files, and left out: {first_few(beside, _MOST_PAIRS)}")
    if why := next((table.why_no_time for table in tables if table.why_no_time), ""):
        notes.append(f"gaps are not seen: {why}")
    return notes


def _cut(
    path: str, streams: Streams, options: CsvOptions, rows: Path, recordings: int, sides: NDArray[np.bool_] | None
) -> DataSet:
    """Cut streams into windows. sides: True for test recordings, if their folders tell."""
    window, step = options.window, options.step or max(1, options.window // 2)
    starts, group = window_starts(streams.stretches, window, step)
    if not len(starts):
        raise DataError(
            f"no window of {window} samples fits: the longest stretch of one label has {streams.longest}; "
            f"?window= takes shorter ones"
        )
    _, _, label, subject, recording = streams.stretches[group].T
    people, channels = np.array(streams.people or ("",)), len(streams.channels)
    _check_size(len(starts), channels, window)
    width = channels
    warnings: tuple[str, ...] = ()
    if options.targets == "classes":
        classes, warnings = _order_classes(streams, label, options)
        number = np.array([classes.index(name) if name in classes else 0 for name in streams.classes] or [0])
        y = number[label]
    else:
        classes, width = streams.classes, channels + len(streams.classes)
        y = gather_targets(rows, starts, slice(channels, width), width, options)
    return assemble_data(
        Path(path).stem if not glob.has_magic(path) else "csv",
        lambda chosen, side: gather_windows(
            rows, starts[chosen], channels, window, rows.with_name(f"{side}_x.npy"), width
        ),
        (classes, y),
        people[subject] if options.subject else None,
        recording if recordings > 1 else None,
        group,
        how=options.split,
        given=None if sides is None else sides[recording],
        gap=overlap_gap(window, step),
        seed=options.seed,
        description=f"streams from {path}, {recordings} recordings",
        channels=streams.channels,
        notes=tuple(streams.notes),
        warnings=warnings,
        rate_hz=streams.rate_hz,
        units=streams.units,
        channel_units=streams.channel_units,
        is_converted=streams.is_converted,
        left_out=streams.left_out,
    )


def gather_targets(
    rows: Path, starts: Integers, columns: slice, width: int, options: CsvOptions
) -> NDArray[np.float32] | NDArray[np.uint8]:
    """Return each window's numbers, float32 (n, k), or the labels that hold in more than half of it, uint8 (n, k)."""
    found = np.empty((len(starts), columns.stop - columns.start))
    for first in range(0, len(starts), _AT_ONCE):
        stream = np.asarray(np.memmap(rows, np.float32, "r")).reshape(-1, width)[:, columns]
        for place, start in enumerate(starts[first : first + _AT_ONCE].tolist(), first):
            window = stream[start : start + options.window]
            is_last = options.target and options.target_of == "last"
            found[place] = window[-1] if is_last else window.mean(axis=0, dtype=np.float64)
    return (found > 0.5).astype(np.uint8) if options.targets == "labels" else found.astype(np.float32)


def window_starts(stretches: NDArray[np.int64], window: int, step: int) -> tuple[Integers, Integers]:
    """Return (starts, stretch of each): first row of every window; windows start at a stretch's first row."""
    counts = (stretches[:, 1] - window) // step + 1
    group = np.repeat(np.arange(len(stretches)), counts)
    within = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    return stretches[group, 0] + within * step, group


def _order_classes(streams: Streams, label: Integers, options: CsvOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (classes, warnings): as declared, else those with windows, by name; the others are named in a warning."""
    held = {streams.classes[number] for number in np.unique(label).tolist()} if streams.classes else {"?"}
    if options.classes:
        return tuple(split_names(options.classes)), ()
    without = sorted(set(streams.classes) - held)
    shown = ", ".join(without[:_MOST_SHOWN]) + (" ..." if len(without) > _MOST_SHOWN else "")
    lost = (f"no stretch of {options.window} samples has the class {shown}: left out; ?window= takes shorter ones",)
    return tuple(sorted(held)), lost if without else ()


def gather_windows(
    rows: Path, starts: Integers, channels: int, window: int, into: Path, width: int | None = None
) -> Floats:
    """Gather windows (n, channels, window), float32, mapped from a file: memory holds some hundred at a time.

    width: values of a row, if it holds more than the channels, which are the first.
    """
    with open_private(into, "xb") as file:
        shape = (len(starts), channels, window)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(starts), _AT_ONCE):
            # Mapped anew each time: pages that were read count as memory as long as they are mapped.
            stream = np.asarray(np.memmap(rows, np.float32, "r")).reshape(-1, width or channels)[:, :channels]
            some = [stream[start : start + window].T for start in starts[first : first + _AT_ONCE].tolist()]
            file.write(np.stack(some).tobytes())
    # "c": torch wants writable memory, and the file must stay as it is.
    mapped: Floats = np.load(into, mmap_mode="c", allow_pickle=False) if len(starts) else np.zeros(shape, np.float32)
    return mapped


def _check_size(count: int, channels: int, window: int) -> None:
    size_bytes = 4 * count * channels * window
    if size_bytes > LARGEST_WINDOWS_BYTES:
        raise DataError(
            f"{count} windows of {window} rows would take {size_bytes / 2**30:.0f} GB of memory, at most "
            f"{LARGEST_WINDOWS_BYTES >> 30} are taken: a larger step, or shorter windows"
        )
