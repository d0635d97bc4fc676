"""The rows of a table, some thousands at a time, and their cells as numbers, in bounded memory for any file.

Cells that hold nothing, or a word for it, are NaN. A number may have a decimal comma if commas do not part columns.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import TextBlocks, open_blocks
from mdl.data.tables.blocks import Block, Cells, join_strings, take_apart
from mdl.data.tables.dialect import Dialect, is_nothing
from mdl.errors import DataError
from mdl.reading import Tally, shorten

# Rows parsed together: with 10 cells of 60 bytes as Python's texts they take some 10 MB.
ROWS_AT_ONCE = 16_384
# After so many blocks of no numbers, one after the other, a column is taken as texts: dates, for example.
_MOST_REFUSED = 3
Floats64 = NDArray[np.float64]

# The valid forms of a time, and the largest number.
TIME_EXAMPLES = "a number, 2026-05-04T12:00:00.020 or 12:00:00.020"
LARGEST_NUMBER = float(np.finfo(np.float32).max)
_LIKE_A_TIME = re.compile(r"\d:\d\d|\d{2,4}[-/]\d\d?[-/]\d|\d\.\d\d?\.\d{2}")


@dataclass(frozen=True)
class TableRows:
    """first: the number of its first row below the header, from 1. columns: the wanted cells, in order."""

    first: int
    columns: tuple[Sequence[str], ...]

    def __len__(self) -> int:
        return len(self.columns[0])


# Rows of a file: as a block, or each by itself; and the first and the last but one of these that are meant.
_Piece: TypeAlias = Block | list[list[str]]
_Part: TypeAlias = tuple[_Piece, int, int]


def read_rows(
    file: Path,
    dialect: Dialect,
    wanted: Sequence[int],
    tally: Tally | None = None,
    *,
    numbers: Collection[int] = (),
    cut_before: int | None = None,
) -> Iterator[TableRows]:
    """Yield the wanted columns of all rows. tally: counts a last row that is cut off, which is left out.

    numbers: those of the columns that `to_numbers` will read; it is quicker for these. cut_before: a last row is cut
    off if it ends before this column; by default, before any that is wanted. Raises DataError if there are no rows, or
    one has more cells than the header.
    """
    shift = bool(dialect.clock)
    width, done = len(dialect.header) - shift, 0
    with open_blocks(file, dialect.encoding) as lines:
        for _ in itertools.islice(lines, dialect.skipped):
            pass
        # One row is kept back, since a short row may be the last one.
        held: _Part | None = None
        own = {place - shift for place in wanted if place >= shift}
        read = {place - shift for place in numbers} & own
        for taken in _by_count(_read_pieces(file, lines, width, dialect, read, own - read)):
            parts = taken if held is None else [held, *taken]
            piece, first, last = parts.pop()
            held = (piece, last - 1, last)
            if first < last - 1:
                parts.append((piece, first, last - 1))
            if parts:
                yield _make_rows(parts, wanted, dialect, done)
                done += sum(last - first for _, first, last in parts)
        if held is not None and _is_cut_off(held, width, (max(wanted) if cut_before is None else cut_before) - shift):
            held = None
            if tally is not None:
                tally.see()
                tally.leave("cut off at the end of a file", sample=f"{file}: the last row")
        if held is not None:
            yield _make_rows([held], wanted, dialect, done)
            done += 1
    if not done:
        raise DataError(f"{file}: no rows below the header")


def to_numbers(
    cells: Sequence[str], file: Path, first: int, column: str, dialect: Dialect, *, as_times: bool = False
) -> Floats64:
    """Return float64, NaN for an empty cell. as_times: the column is read as the time.

    Raises DataError naming the row, the column and the cell.
    """
    if isinstance(cells, Cells) and cells.values is not None:
        is_usual = cells.is_plain and np.isfinite(cells.values).all()
        if is_usual or not (np.abs(cells.values) > LARGEST_NUMBER).any():
            return cells.values
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
        if np.isfinite(values).all() and "_" not in "".join(cells):
            return values
    except ValueError:
        pass
    return np.array([_to_number(cell, file, first + row, column, dialect, as_times) for row, cell in enumerate(cells)])


def _to_number(cell: str, file: Path, row: int, column: str, dialect: Dialect, as_times: bool) -> float:
    if is_nothing(cell):
        return np.nan
    text = cell.strip().replace("\N{MINUS SIGN}", "-")
    hint = ""
    if "," in text and dialect.delimiter != "," and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    elif "," in text and ("." in text or text.count(",") > 1):
        hint = "without marks between thousands; "
    if _LIKE_A_TIME.search(text):
        hint = f"if these are times, say ?time={column}; "
    try:
        if "_" in text:
            raise ValueError
        value = float(text)
    except ValueError:
        expected = f"a time: {TIME_EXAMPLES}" if as_times else f"a number ({hint}choose channels with ?columns=)"
        raise DataError(
            f"{file}: data row {row}: column {column!r} is {shorten(repr(cell.strip()))}; expected {expected}"
        ) from None
    if not abs(value) <= LARGEST_NUMBER:
        raise DataError(f"{file}: data row {row}: column {column!r} is {cell.strip()[:40]}; expected a finite number")
    return value


def _is_cut_off(last: _Part, width: int, wanted: int) -> bool:
    """Return True if a file's last row ends before a column that is wanted."""
    piece = last[0]
    return isinstance(piece, list) and len(piece[-1]) < width and wanted >= len(piece[-1])


def _by_count(pieces: Iterator[_Piece]) -> Iterator[list[_Part]]:
    """Yield the parts of ROWS_AT_ONCE rows, in the end those of the others."""
    taken: list[_Part] = []
    count = 0
    for piece in pieces:
        first = 0
        while first < len(piece):
            more = min(len(piece) - first, ROWS_AT_ONCE - count)
            taken.append((piece, first, first + more))
            first, count = first + more, count + more
            if count == ROWS_AT_ONCE:
                yield taken
                taken, count = [], 0
    if taken:
        yield taken


def _make_rows(parts: Sequence[_Part], wanted: Sequence[int], dialect: Dialect, done: int) -> TableRows:
    shift, count = bool(dialect.clock), sum(last - first for _, first, last in parts)
    columns = [_join(parts, place - shift, count) if place >= shift else () for place in wanted]
    if dialect.clock and 0 in wanted:
        start_s, rate_hz = dialect.clock
        times = tuple(f"{start_s + row / rate_hz:.6f}" for row in range(done, done + count))
        columns = [column if place else times for place, column in zip(wanted, columns, strict=True)]
    return TableRows(done + 1, tuple(columns))


def _join(parts: Sequence[_Part], column: int, count: int) -> Sequence[str]:
    """Return the cells of a column; its numbers if all parts have them."""

    def read() -> list[str]:
        cells: list[str] = []
        for piece, first, last in parts:
            cells += _texts(piece, column)[first:last]
        return cells

    blocks = [(piece, slice(first, last)) for piece, first, last in parts if isinstance(piece, Block)]
    if len(blocks) < len(parts):
        return tuple(read())
    values = [made[rows] for block, rows in blocks if (made := block.values(column)) is not None]
    if len(values) == len(parts):
        return Cells(count, read, np.concatenate(values), all(block.is_plain for block, _ in blocks))
    strings = [made[rows] for block, rows in blocks if (made := block.strings(column)) is not None]
    return Cells(count, read, strings=join_strings(strings)) if len(strings) == len(parts) else tuple(read())


def _texts(piece: _Piece, column: int) -> list[str]:
    if isinstance(piece, Block):
        return piece.texts(column)
    return [row[column] if column < len(row) else "" for row in piece]


def _read_pieces(
    file: Path, lines: TextBlocks, width: int, dialect: Dialect, numbers: Collection[int], texts: Collection[int]
) -> Iterator[_Piece]:
    """Yield the rows of each block of lines: as a whole if it is regular, else one by one, in pieces of some size."""
    done, refused = 0, Counter[int]()
    while lines.fill():
        text = lines.look()
        likely = [column for column in numbers if refused[column] < _MOST_REFUSED]
        others = [*texts, *(column for column in numbers if column not in likely)]
        if text and (block := take_apart(text, dialect, width, likely, others)) is not None:
            lines.skip(block.lines)
            for column in likely:
                refused[column] = 0 if block.values(column) is not None else refused[column] + 1
            done += len(block)
            yield block
            continue
        if text and lines.narrow():
            continue
        rows: list[list[str]] = []
        try:
            for row in _full_rows(file, _parse_rows(lines, dialect), width, dialect, done):
                rows.append(row)
                if len(rows) == ROWS_AT_ONCE:
                    done += len(rows)
                    yield rows
                    rows = []
        except DataError:
            # Rows before the mistake come before it.
            if rows:
                yield rows
            raise
        done += len(rows)
        if rows:
            yield rows


def _parse_rows(lines: TextBlocks, dialect: Dialect) -> Iterator[list[str]]:
    """Yield rows, parsed one by one, to the next one that begins a block."""
    ended = _EndedRows(lines, dialect)
    reader = csv.reader(ended, delimiter=dialect.delimiter, skipinitialspace=dialect.delimiter == " ")
    for row in reader:
        yield row
        if ended.is_between:
            return


class _EndedRows:
    """The lines without the mark that ends a row; a line of several rows gives each."""

    def __init__(self, lines: TextBlocks, dialect: Dialect) -> None:
        self._lines, self._mark, self._delimiter = lines, dialect.row_end, dialect.delimiter
        self._rows: deque[str] = deque()

    @property
    def is_between(self) -> bool:
        """True if a block of lines has been given to its end."""
        return self._lines.is_between and not self._rows

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._mark:
            return next(self._lines)
        while not self._rows:
            self._rows.extend(row.strip().rstrip(self._delimiter) for row in next(self._lines).split(self._mark))
        return self._rows.popleft()


def _full_rows(
    file: Path, reader: Iterator[list[str]], width: int, dialect: Dialect, number: int
) -> Iterator[list[str]]:
    """Yield rows without empty lines. An empty cell behind the last column is a delimiter at the end of the line.

    number: of rows before these.
    """
    try:
        for row in reader:
            if not row or (len(row) < width and not any(row)):
                continue
            number += 1
            if len(row) > width and any(cell.strip() for cell in row[width:]):
                commas = "; numbers with decimal commas need quotes, or ; between columns"
                raise DataError(
                    f"{file}: data row {number} has {len(row)} cells, the header {width}"
                    f"{commas if dialect.delimiter == ',' else ''}"
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{file}: data row {number + 1}: damaged ({shorten(error)})") from None
