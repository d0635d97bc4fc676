"""The rows of a table, some thousands at a time, and their cells as numbers, in bounded memory for any file.

Cells that hold nothing, or a word for it, are NaN. A number may have a decimal comma if commas do not part columns.

A block of lines is taken apart by pyarrow's reader of CSV, a column at a time, if it is regular: each line has the same
cells, and each quote encloses a whole cell. pyarrow reads no number that Python does not, and rounds each as Python
does (`tests/mdl/data/tables/test_blocks.py`). All else is read row by row.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from mdl.data.readers.archive import LONGEST_LINE, TextBlocks, open_blocks
from mdl.data.tables.dialect import WORDS_FOR_NOTHING, Dialect, is_nothing, parse_line
from mdl.errors import DataError
from mdl.reading import Tally, shorten

Floats64 = NDArray[np.float64]
# The cells of a column in pyarrow's memory: a pyarrow.ChunkedArray.
Strings: TypeAlias = Any

_NEWLINE, _QUOTE = b'\n"'
# The reader drops this mark where it begins a text; a block may begin with it, too.
_MARK = "\N{BYTE ORDER MARK}"
# A refusal names a column so. pyarrow does not promise it: with other words a block is read row by row.
_REFUSED = re.compile(r"In CSV column #(\d+)")
# Tries to read a block's numbers, with a refused column as texts in each; then all are texts.
_MOST_TRIES = 4
# More than a block has: it is one piece for the reader.
_LARGEST_BYTES = 1 << 30
# Options of the reader that are kept: of the files that are open at a time.
_MOST_OPTIONS = 64
# Microseconds are exact in float64 up to this number of them: in the years 1684 to 2255.
_LAST_US = 1 << 53
# A block takes milliseconds: an interrupt can wait for Python.
pa.enable_signal_handlers(False)


class Cells(Sequence[str]):
    """The cells of one column. Their texts are made when somebody asks for them.

    values: their numbers, NaN for an empty cell; None if they were not read as numbers. is_plain: False if some of the
    numbers may have a decimal comma. strings: the texts in pyarrow's memory; None if they are not there.
    """

    def __init__(
        self,
        count: int,
        read: Callable[[], Sequence[str]],
        values: Floats64 | None = None,
        is_plain: bool = True,
        strings: Strings | None = None,
    ) -> None:
        self.values, self.is_plain, self.strings = values, is_plain, strings
        self._count, self._read = count, read
        self._texts: Sequence[str] | None = None

    @property
    def texts(self) -> Sequence[str]:
        """The cells as the file has them."""
        if self._texts is None:
            self._texts = self._read()
        return self._texts

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self.texts[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def take(self, rows: Sequence[int]) -> Cells:
        """Return the cells of these rows."""
        values = None if self.values is None else self.values[np.asarray(rows, np.int64)]
        return Cells(len(rows), lambda: [self.texts[row] for row in rows], values, self.is_plain)


class _Form(NamedTuple):
    """delimiter, is_quoted: of the rows. cells: in each, with an empty one behind a last delimiter."""

    delimiter: str
    is_quoted: bool
    cells: int


class Block:
    """Rows of as many cells each. lines: of the file. is_plain: as of `Cells`."""

    def __init__(self, raw: bytes, form: _Form, count: int, lines: int, is_plain: bool) -> None:
        """Begin. raw: the rows, each with the end of a line. count: of them."""
        self.lines, self.is_plain = lines, is_plain
        self._raw, self._form, self._count = raw, form, count
        self._texts: dict[int, list[str]] = {}
        self._strings: dict[int, Strings] = {}
        self._values: dict[int, Floats64] = {}
        self._tried: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def texts(self, column: int) -> list[str]:
        """Return the cells of a column."""
        if column not in self._texts:
            if column not in self._strings:
                self._strings |= _parse(self._raw, self._form, (), (column,))
            self._texts[column] = to_texts(self._strings[column])
        return self._texts[column]

    def strings(self, column: int) -> Strings | None:
        """Return the cells of a column that was read as texts; None if it was not."""
        return self._strings.get(column)

    def values(self, column: int) -> Floats64 | None:
        """Return the numbers of a column that was read as numbers; None if it could not be."""
        return self._values.get(column)

    def read(self, numbers: Collection[int], texts: Collection[int]) -> bool:
        """Read these columns, the numbers as far as they are. Return False if some row has other cells."""
        if self.is_plain or not numbers:
            return self._take(self._raw, {*numbers}, {*texts})
        # No comma parts the columns: in a number it is a point.
        pointed = self._raw.replace(b",", b".")
        return self._take(pointed, {*numbers}, set()) and self._take(self._raw, set(), {*texts, *self._refused})

    @property
    def _refused(self) -> set[int]:
        """The columns that are no numbers."""
        return self._tried - self._values.keys()

    def _take(self, raw: bytes, numbers: set[int], texts: set[int]) -> bool:
        self._tried |= numbers
        for left in range(_MOST_TRIES, -1, -1):
            try:
                found = _parse(raw, self._form, tuple(sorted(numbers)), tuple(sorted(texts)))
                break
            except pa.ArrowInvalid as error:
                match = _REFUSED.search(str(error))
                if match is None or not numbers:
                    return False
                refused = {int(match[1])} if left > 1 else numbers
                numbers, texts = numbers - refused, texts | refused
        if any(len(column) != self._count for column in found.values()):
            return False
        for column in numbers:
            if (values := _to_floats(found[column])) is not None:
                self._values[column] = values
        if raw is self._raw:
            self._strings |= {column: found[column] for column in texts}
        return True


def take_apart(
    text: str, dialect: Dialect, width: int, numbers: Collection[int] = (), texts: Collection[int] = ()
) -> Block | None:
    """Return whole lines as a block of rows with `width` cells; None if they are not regular.

    numbers, texts: columns that will be asked for, as numbers and as texts.
    """
    lines = None
    if dialect.row_end:
        parts = text.split("\n")
        if '"' in text or max(map(len, parts)) >= LONGEST_LINE:
            return None
        lines = len(parts) - text.endswith("\n")
        rows = [row.strip().rstrip(dialect.delimiter) for line in parts for row in line.split(dialect.row_end)]
        text = "\n".join(filter(None, rows))
    is_quoted = '"' in text
    if dialect.delimiter == " ":
        if is_quoted:
            return None
        while "  " in text:
            text = text.replace("  ", " ")
        text = text.replace("\n ", "\n").lstrip(" ")
    text += "" if text.endswith("\n") else "\n"
    cells = len(parse_line(text[: text.index("\n")], dialect.delimiter))
    if cells not in (width, width + 1) or text.startswith(_MARK):
        return None
    raw = text.encode("utf-8")
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    length = np.diff(ends, prepend=-1)
    # An empty line is no row, also in a table of one column.
    if length.min() == 1 or length.max() > LONGEST_LINE:
        return None
    if is_quoted and not _enclose(data, np.flatnonzero(data == _QUOTE), ord(dialect.delimiter)):
        return None
    is_plain = dialect.delimiter == "," or "," not in text
    block = Block(raw, _Form(dialect.delimiter, is_quoted, cells), len(ends), lines or len(ends), is_plain)
    beyond = range(width, cells)
    if not block.read(numbers, {*texts, *beyond}) or any(any(block.texts(column)) for column in beyond):
        return None
    return block


def to_texts(strings: Strings) -> list[str]:
    """Return the texts; one that comes again is made once."""
    words, places = _encode(strings)
    return [words[place] for place in places.tolist()]


def distinct(cells: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the different texts in the order in which they come, and each cell's place among them."""
    if isinstance(cells, Cells) and cells.strings is not None:
        return _encode(cells.strings)
    places: dict[str, int] = {}
    found = np.array([places.setdefault(cell, len(places)) for cell in cells], np.int64)
    return list(places), found


def _encode(strings: Strings) -> tuple[list[str], NDArray[np.int64]]:
    found = strings.combine_chunks().dictionary_encode()
    return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)


def join_strings(parts: Sequence[Strings]) -> Strings:
    """Return the cells of several blocks, one after the other."""
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())


def _enclose(data: NDArray[np.uint8], quotes: NDArray[np.int64], delimiter: int) -> bool:
    """Return True if each pair of quotes begins and ends a cell. data: ends with the end of a line."""
    if len(quotes) % 2:
        return False
    # The byte before the first one is that end.
    around = np.concatenate([data[quotes[0::2] - 1], data[quotes[1::2] + 1]])
    return bool(((around == delimiter) | (around == _NEWLINE)).all())


def _parse(raw: bytes, form: _Form, numbers: tuple[int, ...], texts: tuple[int, ...]) -> dict[int, Strings]:
    """Return these columns, or the first one if none is wanted. Raises pyarrow.ArrowInvalid."""
    read, parse, convert = _options(form, numbers, texts if texts or numbers else (0,))
    table = pa_csv.read_csv(pa.BufferReader(raw), read, parse, convert)
    return {int(name): column for name, column in zip(table.column_names, table.columns, strict=True)}


@lru_cache(_MOST_OPTIONS)
def _options(form: _Form, numbers: tuple[int, ...], texts: tuple[int, ...]) -> tuple[Any, Any, Any]:
    names = [str(column) for column in range(form.cells)]
    types = {str(column): pa.float64() for column in numbers} | {str(column): pa.string() for column in texts}
    return (
        pa_csv.ReadOptions(use_threads=False, block_size=_LARGEST_BYTES, column_names=names),
        pa_csv.ParseOptions(delimiter=form.delimiter, quote_char='"' if form.is_quoted else False),
        pa_csv.ConvertOptions(
            check_utf8=False,
            column_types=types,
            include_columns=[str(column) for column in sorted({*numbers, *texts})],
            null_values=WORDS_FOR_NOTHING,
        ),
    )


def read_instants(strings: Strings) -> Floats64 | None:
    """Return UNIX seconds of ISO dates and times, NaN for a word for nothing; None if pyarrow does not read them all.

    A time without a zone is UTC. Each is what `datetime.fromisoformat` gives: pyarrow reads none that it does not.
    """
    is_nothing = pa_compute.is_in(strings, pa.array(WORDS_FOR_NOTHING))
    full = pa_compute.if_else(is_nothing, pa.scalar(None, pa.string()), strings)
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            microseconds = full.cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        found = pa_compute.min_max(microseconds).as_py()
        if found["min"] is None or not -_LAST_US <= found["min"] <= found["max"] <= _LAST_US:
            return None
        seconds: Floats64 = microseconds.to_numpy() / 1e6
        return seconds
    return None


def _to_floats(column: Strings) -> Floats64 | None:
    """Return float64, NaN for a word for nothing; None if a cell is infinite, or a NaN by another word."""
    values: Floats64 = column.to_numpy()
    if np.isinf(values).any() or np.count_nonzero(np.isnan(values)) != column.null_count:
        return None
    return values


# Rows parsed together: with 10 cells of 60 bytes as Python's texts they take some 10 MB.
ROWS_AT_ONCE = 16_384
# After so many blocks of no numbers, one after the other, a column is taken as texts: dates, for example.
_MOST_REFUSED = 3

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
