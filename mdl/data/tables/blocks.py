"""A block of a table's lines taken apart as a whole, by numpy, and its numbers read by msgspec's parser of JSON.

A block is regular if each line has the same cells and each quote encloses a whole cell. A number that JSON has is the
number that Python reads. All else is None here, and is read row by row: `mdl.data.tables.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.tables.dialect import Dialect, is_nothing

Floats64 = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

# Names of classes and stamps of time are shorter; a column of longer cells costs a pass for each of their bytes.
_LONGEST_CELL = 64
# Words for nothing, such as #div/0!; and how many different ones, with other texts, a block is searched for.
_LONGEST_WORD, _MOST_WORDS = 8, 64
_NEWLINE, _QUOTE, _SPACE, _TAB, _COMMA, _MINUS, _POINT, _ZERO, _NINE = b'\n" \t,-.09'
_decode = msgspec.json.Decoder(list[float]).decode


class Cells(Sequence[str]):
    """The cells of one column. Their texts are made when somebody asks for them.

    values: their numbers, NaN for an empty cell; None if they were not read as numbers. is_plain: False if some of the
    numbers have a decimal comma.
    """

    def __init__(
        self, count: int, read: Callable[[], Sequence[str]], values: Floats64 | None = None, is_plain: bool = True
    ) -> None:
        self.values, self.is_plain = values, is_plain
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


class Block:
    """Rows of as many cells each. is_plain: as of `Cells`."""

    def __init__(self, raw: bytes, starts: Places, ends: Places, delimiter: int) -> None:
        """Begin. starts, ends: of the cells in raw, without their quotes, int64 (rows, cells)."""
        self._raw, self._starts, self._ends = raw, starts, ends
        self._data: Bytes = np.frombuffer(raw, np.uint8)
        self.is_plain = delimiter == _COMMA or b"," not in raw
        self._texts: dict[int, list[str]] = {}
        self._values: dict[int, Floats64] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def texts(self, column: int) -> list[str]:
        """Return the cells of a column."""
        if column not in self._texts:
            self._texts[column] = self._read_texts(column)
        return self._texts[column]

    def values(self, column: int) -> Floats64 | None:
        """Return the numbers of a column that `read_numbers` read; None if it could not."""
        return self._values.get(column)

    def read_numbers(self, columns: Collection[int]) -> None:
        """Read these columns as numbers, as far as JSON and the words for nothing have them."""
        if 2 * len(columns) >= self._starts.shape[1] and self._read_together(sorted(columns)):
            return
        for column in columns:
            self._read_alone(column)

    def _read_texts(self, column: int) -> list[str]:
        starts, ends = self._starts[:, column], self._ends[:, column]
        if (width := int((ends - starts).max(initial=0))) > _LONGEST_CELL:
            return [self._text(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        # A label stays for many rows: each run of cells that are alike is decoded once.
        picked, length = _pick(self._data, starts, ends, width), ends - starts
        is_new = np.ones(len(starts), np.bool_)
        is_new[1:] = (picked[1:] != picked[:-1]).any(axis=1) | (length[1:] != length[:-1])
        firsts = np.flatnonzero(is_new)
        texts: list[str] = []
        for first, count in zip(firsts.tolist(), np.diff(firsts, append=len(starts)).tolist(), strict=True):
            texts += [self._text(int(starts[first]), int(ends[first]))] * count
        return texts

    def _text(self, start: int, end: int) -> str:
        return self._raw[start:end].decode("utf-8")

    def _read_together(self, columns: list[int]) -> bool:
        """Read the whole block as one list of numbers, with 0 for the cells of other columns."""
        starts, ends = self._starts, self._ends
        others = [column for column in range(starts.shape[1]) if column not in columns]
        if (ends[:, others] - starts[:, others]).max(initial=0) > _LONGEST_CELL:
            return False
        data = self._data.copy()
        if not self.is_plain:
            data[data == _COMMA] = _POINT
        # What ends a cell is behind its quote.
        is_closed = self._data[ends] == _QUOTE
        if is_closed.any():
            data[data == _QUOTE] = _SPACE
            data[ends[is_closed & (starts == ends)]] = _ZERO
        data[ends + is_closed] = _COMMA
        for column in others:
            _blank(data, starts[:, column], ends[:, column])
        own = starts[:, columns], ends[:, columns]
        nothing: NDArray[np.bool_] | None = None
        # Most blocks lack no value.
        values = None if is_closed.any() else _to_numbers(data.tobytes(), starts.size)
        if values is None:
            nothing = self._find_nothing(*own)
            _blank(data, own[0][nothing], own[1][nothing])
            filled = b"," + data.tobytes()
            for _ in range(2):
                filled = filled.replace(b",,", b",0,")
            values = _to_numbers(filled[1:], starts.size)
        if values is None:
            return False
        chosen = values.reshape(starts.shape)[:, columns]
        self._finish(chosen, *own, nothing)
        self._values.update({column: chosen[:, place] for place, column in enumerate(columns)})
        return True

    def _read_alone(self, column: int) -> None:
        starts, ends = self._starts[:, column], self._ends[:, column]
        if (width := int((ends - starts).max(initial=0))) > _LONGEST_CELL:
            return
        nothing = self._find_nothing(starts, ends)
        picked = np.full((len(starts), width + 2), _SPACE, np.uint8)
        picked[:, 1:-1] = _pick(self._data, starts, ends, width)
        if not self.is_plain:
            picked[picked == _COMMA] = _POINT
        picked[nothing] = _SPACE
        picked[nothing, 0] = _ZERO
        picked[:, -1] = _COMMA
        if (values := _to_numbers(picked.tobytes(), len(starts))) is not None:
            self._finish(values, starts, ends, nothing)
            self._values[column] = values

    def _find_nothing(self, starts: Places, ends: Places) -> NDArray[np.bool_]:
        """Return True for each cell that holds no value, or a word for that, as far as these are few and short."""
        length, first = ends - starts, self._data[starts]
        nothing: NDArray[np.bool_] = length == 0
        is_odd = (first < _ZERO) | (first > _NINE)
        is_odd &= ((first != _MINUS) | (length == 1)) & (first != _SPACE) & (length <= _LONGEST_WORD) & ~nothing
        rows = np.nonzero(is_odd)
        if not len(rows[0]):
            return nothing
        picked = _pick(self._data, starts[rows], ends[rows], _LONGEST_WORD)
        words, which = np.unique(picked.view(np.uint64).reshape(-1), return_inverse=True)
        if len(words) <= _MOST_WORDS:
            holds = np.array([is_nothing(word.tobytes().decode("utf-8", "replace")) for word in words])
            nothing[rows] = holds[which.reshape(-1)]
        return nothing

    def _finish(self, values: Floats64, starts: Places, ends: Places, nothing: NDArray[np.bool_] | None) -> None:
        """Give -0 its sign, which JSON's whole numbers lack, and cells without a value theirs."""
        zeros = np.nonzero(values == 0)
        at, end = starts[zeros], ends[zeros]
        while (is_blank := (at < end) & ((self._data[at] == _SPACE) | (self._data[at] == _TAB))).any():
            at = at + is_blank
        is_negative = (at < end) & (self._data[at] == _MINUS)
        values[tuple(axis[is_negative] for axis in zeros)] = -0.0
        if nothing is not None:
            values[nothing] = np.nan


def take_apart(text: str, dialect: Dialect, width: int) -> Block | None:
    """Return whole lines as a block of rows with `width` cells; None if they are not regular."""
    delimiter = ord(dialect.delimiter)
    if dialect.row_end:
        if '"' in text:
            return None
        rows = [
            row.strip().rstrip(dialect.delimiter) for line in text.split("\n") for row in line.split(dialect.row_end)
        ]
        text = "\n".join(filter(None, rows))
    raw = text.encode("utf-8")
    if delimiter == _SPACE:
        if b'"' in raw:
            return None
        while b"  " in raw:
            raw = raw.replace(b"  ", b" ")
        raw = raw.replace(b"\n ", b"\n").lstrip(b" ")
    if not raw.endswith(b"\n"):
        raw += b"\n"
    data = np.frombuffer(raw, np.uint8)
    is_end = data == _NEWLINE
    found = np.flatnonzero(is_end | (data == delimiter))
    quotes = np.flatnonzero(data == _QUOTE) if b'"' in raw else np.zeros(0, np.int64)
    if len(quotes):
        if not _enclose(data, quotes, delimiter):
            return None
        # A delimiter between quotes ends no cell.
        found = found[np.searchsorted(quotes, found) % 2 == 0]
    count = int(np.count_nonzero(is_end))
    cells, rest = divmod(len(found), count)
    if rest or cells not in (width, width + 1):
        return None
    ends = found.reshape(-1, cells)
    if not is_end[ends[:, -1]].all():
        return None
    starts = np.concatenate([[0], found[:-1] + 1]).reshape(-1, cells)
    # An empty line is no row, also in a table of one column.
    if (ends[:, -1] == starts[:, 0]).any():
        return None
    if cells > width and (ends[:, -1] > starts[:, -1]).any():
        return None
    if len(quotes):
        is_quoted = (data[starts] == _QUOTE) & (ends > starts)
        starts, ends = starts + is_quoted, ends - is_quoted
    return Block(raw, starts, ends, delimiter)


def _enclose(data: Bytes, quotes: Places, delimiter: int) -> bool:
    """Return True if each pair of quotes begins and ends a cell. data: ends with the end of a line."""
    if len(quotes) % 2:
        return False
    # The byte before the first one is that end.
    around = np.concatenate([data[quotes[0::2] - 1], data[quotes[1::2] + 1]])
    return bool(((around == delimiter) | (around == _NEWLINE)).all())


def _pick(data: Bytes, starts: Places, ends: Places, width: int) -> Bytes:
    """Return the bytes of cells of at most `width`, filled up with spaces, (cells, width)."""
    picked = np.full((len(starts), width), _SPACE, np.uint8)
    length = ends - starts
    for place in range(width):
        rows = np.flatnonzero(length > place)
        picked[rows, place] = data[starts[rows] + place]
    return picked


def _blank(data: Bytes, starts: Places, ends: Places) -> None:
    """Write 0 into cells that have a byte for it, and spaces behind."""
    length = ends - starts
    for place in range(int(length.max(initial=0))):
        data[starts[length > place] + place] = _SPACE if place else _ZERO


def _to_numbers(text: bytes, count: int) -> Floats64 | None:
    """Return so many numbers of JSON, each with a comma behind; None if they are not."""
    try:
        values = _decode(b"[" + text[:-1] + b"]")
    except (msgspec.MsgspecError, RecursionError):
        return None
    return np.fromiter(values, np.float64, count) if len(values) == count else None
