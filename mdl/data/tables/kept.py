"""Rows of tables read once: kept in a file while their times are looked for, and given from there afterwards.

Blocks of rows are kept as they were read. A table with rows that had to be read one by one is read again. Memory holds
one block of rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from mdl.data.tables.blocks import Cells, to_texts
from mdl.data.tables.dialect import Dialect
from mdl.data.tables.recordings import read_table
from mdl.data.tables.rows import LARGEST_NUMBER, TableRows
from mdl.data.tally import Tally

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
