"""The rows of a table, some thousands at a time, and their cells as numbers, in bounded memory for any file.

Cells that hold nothing, or a word for it, are NaN. A number may have a decimal comma if commas do not part columns.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import open_text
from mdl.data.tables.dialect import Dialect
from mdl.data.tally import Tally
from mdl.errors import DataError
from mdl.reading import shorten

# Rows parsed together: with 10 cells of 60 bytes as Python's texts they take some 10 MB.
ROWS_AT_ONCE = 16_384
_NOTHING = frozenset(
    ("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?", "missing", "#value!", "#div/0!")
)

# The valid forms of a time.
TIME_EXAMPLES = "a number, 2026-05-04T12:00:00.020 or 12:00:00.020"
_LIKE_A_TIME = re.compile(r"\d:\d\d|\d{2,4}[-/]\d\d?[-/]\d|\d\.\d\d?\.\d{2}")

Floats64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """first: the number of its first row below the header, from 1. columns: the wanted cells, a tuple for each."""

    first: int
    columns: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.columns[0])


def read_rows(file: Path, dialect: Dialect, wanted: Sequence[int], tally: Tally | None = None) -> Iterator[Rows]:
    """Yield the wanted columns of all rows. tally: counts a last row that is cut off, which is left out.

    Raises DataError if there are no rows, or one has more cells than the header.
    """
    width, done = len(dialect.header) - bool(dialect.clock), 0
    with open_text(file, encoding=dialect.encoding, errors="replace") as lines:
        reader = csv.reader(
            _end_rows(itertools.islice(lines, dialect.skipped, None), dialect),
            delimiter=dialect.delimiter,
            skipinitialspace=dialect.delimiter == " ",
        )
        rows = _full_rows(file, reader, width, dialect)
        held: list[str] | None = None
        while True:
            # One row is kept back, since a short row may be the last one.
            taken = list(itertools.islice(rows, ROWS_AT_ONCE))
            block = ([] if held is None else [held]) + taken
            held = block.pop() if taken else None
            if not taken and block and len(block[-1]) < width and max(wanted) - bool(dialect.clock) >= len(block[-1]):
                block.pop()
                if tally is not None:
                    tally.see()
                    tally.leave("cut off at the end of a file", sample=f"{file}: the last row")
            if block:
                padded = [row if len(row) >= width else row + [""] * (width - len(row)) for row in block]
                columns = list(zip(*padded, strict=False))
                if dialect.clock:
                    start_s, rate_hz = dialect.clock
                    columns.insert(0, tuple(f"{start_s + row / rate_hz:.6f}" for row in range(done, done + len(block))))
                yield Rows(done + 1, tuple(columns[place] for place in wanted))
                done += len(block)
            if not taken:
                break
    if not done:
        raise DataError(f"{file}: no rows below the header")


def to_numbers(
    cells: Sequence[str], file: Path, first: int, column: str, dialect: Dialect, *, as_times: bool = False
) -> Floats64:
    """Return float64, NaN for an empty cell. as_times: the column is read as the time.

    Raises DataError naming the row, the column and the cell.
    """
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
        if np.isfinite(values).all() and "_" not in "".join(cells):
            return values
    except ValueError:
        pass
    return np.array([_to_number(cell, file, first + row, column, dialect, as_times) for row, cell in enumerate(cells)])


def is_nothing(cell: str) -> bool:
    """Return True if a cell holds no value, or a word for that."""
    return cell.strip().casefold() in _NOTHING


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
    if not abs(value) <= np.finfo(np.float32).max:
        raise DataError(f"{file}: data row {row}: column {column!r} is {cell.strip()[:40]}; expected a finite number")
    return value


def _end_rows(lines: Iterator[str], dialect: Dialect) -> Iterator[str]:
    """Return the lines without the mark that ends a row; a line of several rows gives each."""
    if not dialect.row_end:
        return lines
    return (row.strip().rstrip(dialect.delimiter) for line in lines for row in line.split(dialect.row_end))


def _full_rows(file: Path, reader: Iterator[list[str]], width: int, dialect: Dialect) -> Iterator[list[str]]:
    """Yield rows without empty lines. An empty cell behind the last column is a delimiter at the end of the line."""
    number = 0
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
