"""The recordings at a path, and their rows read once: each table is one, and so is what a known app exports together.

A folder or zip that an app exported is known by the app's files in it (`mdl.data.tables.dialect`). It is one recording,
with a table for each sensor; other files beside them are left out.

Rows of a recording with a file for each sensor are the fastest one's rows, with the others' values in between. Sensors
of one device have clocks that agree and rates that do not. Values of a slower sensor are interpolated to the times of
the fastest one; a row beyond its measurements, or in a gap of them, is left out. Memory holds some blocks.

`KeptRows` keeps rows in a file while their times are looked for, and gives them from there afterwards. Blocks of rows
are kept as they were read. A table with rows that had to be read one by one is read again.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mdl.data.readers.archive import list_tables, on_disk
from mdl.data.tables.apps import APPS
from mdl.data.tables.columns import Columns
from mdl.data.tables.dialect import Dialect, SensorFile, find_dialect, has_sensor, is_time_name, name_all
from mdl.data.tables.rows import LARGEST_NUMBER, Cells, Floats64, TableRows, read_rows, to_numbers, to_texts
from mdl.errors import DataError, MdlError
from mdl.reading import Tally

TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
# The most sensors of one device; each is read beside the others.
_MOST_PARTS = 64
# A step so many times a sensor's usual one is a gap.
_GAP_STEPS = 10.0
# Rows of a slower sensor beside a block of the fastest: more mean that their times are of two clocks.
_MOST_WAITING = 1 << 20


def find_csv_files(path: str) -> list[Path]:
    """Return the tables of a file name, a folder, a zip or a glob. Raises DataError if there is none."""
    return _find(path, lambda root: list_tables(root, TABLES))


def find_recordings(path: str) -> list[Path]:
    """Return files like `find_csv_files`; a folder or zip that a known app exported stands for all its tables."""
    return _find(path, list_recordings)


def _find(path: str, look: Callable[[Path], list[Path]]) -> list[Path]:
    if glob.has_magic(path) and not Path(path).exists():
        looked = [(found, look(found)) for found in sorted(_expand(path)) if found.is_file() or "**" not in path]
        # A folder counts only if it is one recording.
        files = [file for found, inside in looked if found.is_file() or inside == [found] for file in inside]
    else:
        files = look(Path(path))
    if not files:
        raise DataError(f"{path}: no file; expected a file, a folder or zip with {', '.join(TABLES[:3])}, or a glob")
    return files


def _expand(path: str) -> list[Path]:
    """Return the files of a glob. `**` enters no linked folder, or two links to their own folder would have no end."""
    if "**" not in path:
        return [Path(name) for name in glob.glob(path)]
    root = Path(Path(path).anchor)
    found = root.glob(str(Path(path).relative_to(root)))
    return [file for file in found if not file.name.startswith(".")]


def list_recordings(path: Path) -> list[Path]:
    """Return every table at or below a path, in zips too; for an app's export the folder or zip itself.

    Raises DataError if there is nothing there.
    """
    files = list_tables(path, TABLES)
    exported = [folder for folder in {each for file in files for each in file.parents} if _is_export(folder, files)]
    inside = {folder for folder in exported if folder == path or path in folder.parents}
    alone = [file for file in files if not inside.intersection(file.parents)]
    outermost = [folder for folder in inside if not inside.intersection(folder.parents)]
    return sorted([*alone, *outermost])


def look_at_recording(file: Path, wanted: Sequence[str] = (), names: Sequence[str] = ()) -> Dialect:
    """Find a dialect as `find_dialect` does, of a table, or a folder or zip of `list_recordings`. Raises as it does."""
    is_folder = file.is_dir() or file.suffix.lower() == ".zip" or (on_disk(file) != file and not file.suffix)
    if not is_folder:
        return find_dialect(file, wanted, names)
    files = [each for each in list_tables(file, TABLES) if each.parent == file]
    looked = [(each, _look(each, wanted)) for each in files]
    known = [(each, dialect) for each, dialect in looked if dialect and dialect.app]
    known = known or [(each, dialect) for each, dialect in looked if dialect]
    if not known or (len(known) > 1 and not known[0][1].app) or len(known) > _MOST_PARTS:
        told = ", ".join(each.name for each in files[:_MOST_PARTS])
        raise DataError(f"{file}: which of its files is the recording? Name one of {told}")
    left_out = tuple(each.name for each in files if each not in [one for one, _ in known])
    if len(known) == 1:
        [(part, dialect)] = known
        return name_all(replace(dialect, parts=(_whole(part, dialect),), left_out=left_out), names)
    return name_all(_merge(known, left_out), names)


def choose_base(dialect: Dialect, columns: Columns) -> Dialect:
    """Return the dialect with the fastest sensor among the channels as its base."""
    places = {place for _, place in columns.channels}
    used = [number for number, part in enumerate(dialect.parts) if places & set(part.places.values())]
    return replace(dialect, base=used[0]) if used else dialect


def _is_export(folder: Path, files: Sequence[Path]) -> bool:
    """Return True if the app's own files are there, and one of a sensor."""
    inside = {str(file.relative_to(folder)).casefold() for file in files if folder in file.parents}
    return any(
        app.exports and inside.issuperset(app.exports) and any(has_sensor(app, name) for name in inside) for app in APPS
    )


def _look(file: Path, wanted: Sequence[str]) -> Dialect | None:
    """Return the dialect of a possible part; None if it is no table."""
    try:
        return find_dialect(file, wanted)
    except MdlError:
        return None


def _whole(file: Path, dialect: Dialect) -> SensorFile:
    """Return the part for a file that is the whole recording."""
    return SensorFile(file, dialect, 0, {place: place for place in range(len(dialect.header))}, 0.0)


def _merge(known: Sequence[tuple[Path, Dialect]], left_out: tuple[str, ...]) -> Dialect:
    """Make one header of several sensors' files: a time, then each channel that an app's rules name, once."""
    rated = []
    for file, dialect in known:
        times = [place for place, name in enumerate(dialect.header) if is_time_name(name)]
        if times:
            rated.append((measure_rate(file, dialect, times[0]), file, dialect, times[0]))
    rated = sorted((each for each in rated if each[0]), key=lambda each: (-each[0], each[1]))
    if not rated:
        raise DataError(f"{known[0][0].parent}: none of its files has times, by which they could be merged")
    header, units, parts = [rated[0][2].header[rated[0][3]]], [rated[0][2].units[rated[0][3]]], list[SensorFile]()
    for rate, file, dialect, time in rated:
        places = {}
        for place, alias in enumerate(dialect.aliases):
            if alias and alias not in header:
                places[place] = len(header)
                header.append(alias)
                units.append(dialect.units[place])
        if places:
            parts.append(SensorFile(file, dialect, time, places, rate))
    return Dialect(
        "utf-8-sig", ",", tuple(header), tuple(units), 0, ("", *header[1:]), app=known[0][1].app,
        parts=tuple(parts), left_out=left_out,
    )  # fmt: skip


def read_table(
    file: Path,
    dialect: Dialect,
    wanted: Sequence[int],
    tally: Tally | None = None,
    *,
    numbers: Collection[int] = (),
    cut_before: int | None = None,
) -> Iterator[TableRows]:
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
            yield TableRows(kept + 1, tuple(cells[place] for place in wanted))
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

    def __init__(self, part: SensorFile, wanted: Sequence[int]) -> None:
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

    def _take(self, rows: TableRows) -> None:
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


def _times(part: SensorFile, rows: TableRows) -> Floats64:
    dialect = part.dialect
    return to_numbers(rows.columns[0], part.file, rows.first, dialect.header[part.time], dialect, as_times=True)


# The rows of 3 GB of tables; others are read twice.
_LARGEST_BYTES = 2 << 30


class KeptRows:
    """The rows of all tables of a data set, in one file without a name."""

    def __init__(self, folder: Path | None) -> None:
        """Begin. folder: on a disk; None keeps nothing."""
        self._folder = folder
        self._file: IO[bytes] | None = None
        # The place of the rows of a table, by the table and the column of its times.
        self._begins: dict[tuple[Path, int], int] = {}

    def __enter__(self) -> KeptRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def read_times(
        self, file: Path, dialect: Dialect, time: int, wanted: Sequence[int], numbers: Collection[int]
    ) -> Generator[TableRows, None, None]:
        """Yield the times as `read_table` does, and keep these rows. wanted: the columns, the times last.

        numbers: those of the columns that `to_numbers` will read. Raises DataError as `read_table` does.
        """
        if self._folder is None or dialect.parts:
            yield from read_table(file, dialect, [time], numbers=[time])
            return
        tally = Tally()
        with _Writer(self._open()) as writer:
            for rows in read_table(file, dialect, wanted, tally, numbers=numbers, cut_before=time):
                writer.add(rows)
                yield TableRows(rows.first, rows.columns[-1:])
            if tally.samples():
                writer.stop()  # the tally of the rows has to know of one that was cut off
        if writer.is_whole:
            self._begins[file, time] = writer.begin

    def read(self, file: Path, dialect: Dialect, time: int, wanted: Sequence[int]) -> Iterator[TableRows] | None:
        """Return the rows that `read_times` kept by these times; None if it kept them not, or not all."""
        begin = self._begins.get((file, time))
        return None if begin is None else self._read(begin, file, dialect, wanted)

    def _read(self, begin: int, file: Path, dialect: Dialect, wanted: Sequence[int]) -> Iterator[TableRows]:
        kept = self._open()
        kept.seek(begin)
        first = 1
        # The stream reads its batches in their order, each when it is asked for.
        with pa.ipc.open_stream(pa.PythonFile(kept, "r")) as stream:
            for batch in stream:
                columns = zip(wanted, batch.columns, strict=True)
                yield TableRows(
                    first,
                    tuple(
                        _restore(column, partial(_read_again, file, dialect, place, first)) for place, column in columns
                    ),
                )
                first += len(batch)

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        return self._file


class _Writer:
    """Writes the rows of a table behind those of others, up to the first ones that cannot be kept."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.begin = file, file.seek(0, os.SEEK_END)
        self._is_keeping, self.is_whole = True, False
        self._stream: Any = None
        self._schema: Any = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and self._is_keeping and self._stream is not None:
            with self._or_stop():
                self._stream.close()
                self.is_whole = True
        if not self.is_whole:
            with self._or_stop():
                self._file.seek(self.begin)
                self._file.truncate()

    def stop(self) -> None:
        """Keep none of the table's rows."""
        self._is_keeping = False

    def add(self, rows: TableRows) -> None:
        """Write rows, unless earlier ones could not be kept."""
        columns = [_to_keep(cells) for cells in rows.columns] if self._is_keeping else [None]
        if any(column is None for column in columns) or self._file.tell() > _LARGEST_BYTES:
            self.stop()
            return
        batch = pa.record_batch(columns, names=[str(place) for place in range(len(columns))])
        with self._or_stop():
            if self._stream is None:
                self._schema = batch.schema
                self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema)
            if batch.schema == self._schema:
                self._stream.write_batch(batch)
            else:
                self.stop()

    @contextmanager
    def _or_stop(self) -> Iterator[None]:
        """Keep no more if the disk is full."""
        try:
            yield
        except OSError:
            self.stop()
            self.is_whole = False


def _to_keep(cells: Sequence[str]) -> Any:
    """Return a column for the file; None if its cells are needed as they were written."""
    if not isinstance(cells, Cells):
        return None
    if cells.values is None:
        return None if cells.strings is None else cells.strings.combine_chunks()
    return None if (np.abs(cells.values) > LARGEST_NUMBER).any() else pa.array(cells.values)


def _restore(column: Any, read: Callable[[], Sequence[str]]) -> Cells:
    """Return the cells of a column. read: reads their texts anew, for an error that tells one."""
    if column.type != pa.float64():
        strings = pa.chunked_array([column])
        return Cells(len(column), lambda: to_texts(strings), strings=strings)
    return Cells(len(column), read, column.to_numpy())


def _read_again(file: Path, dialect: Dialect, place: int, first: int) -> Sequence[str]:
    return next(rows.columns[0] for rows in read_table(file, dialect, [place]) if rows.first == first)
