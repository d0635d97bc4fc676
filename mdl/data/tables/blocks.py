"""A block of a table's lines taken apart by pyarrow's reader of CSV: cells, numbers and texts, a column at a time.

A block is regular if each line has the same cells and each quote encloses a whole cell. pyarrow reads no number that
Python does not, and rounds each as Python does (`tests/mdl/data/tables/test_blocks.py`). All else is None here, and is
read row by row: `mdl.data.tables.rows`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from mdl.data.readers.archive import LONGEST_LINE
from mdl.data.tables.dialect import WORDS_FOR_NOTHING, Dialect, parse_line

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
