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

from mdl.data.readers.archive import LONGEST_LINE
from mdl.data.tables.dialect import Dialect, is_nothing

Floats64 = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

# Names of classes and stamps of time are shorter; a column of longer cells costs a pass for each of their bytes.
_LONGEST_CELL = 64
# Words for nothing, such as #div/0!; and how many different ones, with other texts, a block is searched for.
_LONGEST_WORD, _MOST_WORDS = 8, 64
_NEWLINE, _QUOTE, _SPACE, _TAB, _COMMA, _MINUS, _POINT, _ZERO, _NINE, _OPEN, _CLOSE = b'\n" \t,-.09[]'
# Cells are picked as if each had the length of the longest.
_PADDING = b"\n" * (_LONGEST_CELL + 2)
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
    """Rows of as many cells each. lines: of the file. is_plain: as of `Cells`."""

    def __init__(self, data: Bytes, starts: Places, ends: Places, delimiter: int, lines: int, is_quoted: bool) -> None:
        """Begin. data: the lines, and behind them some bytes. starts, ends: of the cells, without their quotes,
        int64 (rows, cells).
        """
        self.lines = lines
        self._data, self._starts, self._ends = data, starts, ends
        self._delimiter, self._is_quoted = delimiter, is_quoted
        self.is_plain = delimiter == _COMMA or not (data == _COMMA).any()
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
        if 2 * len(columns) >= self._starts.shape[1] and self._read_together(columns):
            return
        for column in columns:
            self._read_alone(column)

    def _read_texts(self, column: int) -> list[str]:
        starts, ends = self._starts[:, column], self._ends[:, column]
        if (width := int((ends - starts).max())) > _LONGEST_CELL:
            return [self._text(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        # A label stays for many rows: each run of cells that are alike is decoded once.
        words = _pick(self._data, starts, ends, -(-max(1, width) // 8) * 8).view(np.uint64)
        is_new = np.zeros(len(starts), np.bool_)
        is_new[0] = True
        for each in (ends - starts, *words.T):
            is_new[1:] |= each[1:] != each[:-1]
        firsts = np.flatnonzero(is_new)
        texts: list[str] = []
        for first, count in zip(firsts.tolist(), np.diff(firsts, append=len(starts)).tolist(), strict=True):
            texts += [self._text(int(starts[first]), int(ends[first]))] * count
        return texts

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].tobytes().decode("utf-8")

    def _read_together(self, columns: Collection[int]) -> bool:
        """Read the whole block as one list of numbers, with 0 for the cells of other columns."""
        starts, ends = self._starts, self._ends
        others = [column for column in range(starts.shape[1]) if column not in columns]
        if (ends[:, others] - starts[:, others]).max(initial=0) > _LONGEST_CELL:
            return False
        last = int(ends[-1, -1]) + int(self._data[ends[-1, -1]] == _QUOTE)
        text = np.empty(last + 2, np.uint8)
        text[0] = _OPEN
        data = text[1:]
        data[:] = self._data[: last + 1]
        if not self.is_plain:
            data[data == _COMMA] = _POINT
        if self._is_quoted:
            data[data == _QUOTE] = _SPACE
            is_closed = self._data[ends] == _QUOTE
            data[ends[is_closed & (starts == ends)]] = _ZERO
            data[ends + is_closed] = _COMMA
        else:
            after = ends[:, -1] if self._delimiter == _COMMA else ends
            data[after] = _COMMA
        for column in others:
            _blank(data, starts[:, column], ends[:, column])
        data[last] = _CLOSE
        # Most blocks lack no value.
        values = None if self._is_quoted else _to_numbers(text.tobytes(), starts.size)
        span, nothing = slice(min(columns), max(columns) + 1), None
        if values is None:
            nothing = self._find_nothing(span)
            _blank(data, starts[:, span][nothing], ends[:, span][nothing])
            values = _to_numbers(_fill_holes(text.tobytes()), starts.size)
        if values is None:
            return False
        values = values.reshape(starts.shape)
        self._finish(values[:, span], span, nothing)
        self._values.update({column: values[:, column] for column in columns})
        return True

    def _read_alone(self, column: int) -> None:
        starts, ends = self._starts[:, column], self._ends[:, column]
        if (width := max(1, int((ends - starts).max()))) > _LONGEST_CELL:
            return
        span, nothing = slice(column, column + 1), None
        text = np.full((len(starts), width + 2), _SPACE, np.uint8)
        text[:, 1:-1] = _pick(self._data, starts, ends, width)
        if not self.is_plain:
            text[text == _COMMA] = _POINT
        text[:, 0] = _COMMA
        text[0, 0], text[-1, -1] = _OPEN, _CLOSE
        if (values := _to_numbers(text.tobytes(), len(starts))) is None:
            nothing = self._find_nothing(span)
            text[nothing[:, 0], 1:-1] = _SPACE
            text[nothing[:, 0], 1] = _ZERO
            values = _to_numbers(text.tobytes(), len(starts))
        if values is not None:
            self._finish(values[:, None], span, nothing)
            self._values[column] = values

    def _find_nothing(self, span: slice) -> NDArray[np.bool_]:
        """Return True for each cell that holds no value, or a word for that, as far as these are few and short."""
        starts, ends = self._starts[:, span], self._ends[:, span]
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

    def _finish(self, values: Floats64, span: slice, nothing: NDArray[np.bool_] | None) -> None:
        """Give -0 its sign, which JSON's whole numbers lack, and NaN to cells without a value."""
        zeros = np.nonzero(values == 0)
        if len(zeros[0]):
            at, end = self._starts[:, span][zeros], self._ends[:, span][zeros]
            while (is_blank := (at < end) & ((self._data[at] == _SPACE) | (self._data[at] == _TAB))).any():
                at = at + is_blank
            is_negative = (at < end) & (self._data[at] == _MINUS)
            values[zeros[0][is_negative], zeros[1][is_negative]] = -0.0
        if nothing is not None:
            values[nothing] = np.nan


def take_apart(text: str, dialect: Dialect, width: int) -> Block | None:
    """Return whole lines as a block of rows with `width` cells; None if they are not regular."""
    delimiter, lines = ord(dialect.delimiter), None
    if dialect.row_end:
        parts = text.split("\n")
        if '"' in text or max(map(len, parts)) >= LONGEST_LINE:
            return None
        lines = len(parts) - text.endswith("\n")
        rows = [row.strip().rstrip(dialect.delimiter) for line in parts for row in line.split(dialect.row_end)]
        text = "\n".join(filter(None, rows))
    raw = text.encode("utf-8")
    is_quoted = b'"' in raw
    if delimiter == _SPACE:
        if is_quoted:
            return None
        while b"  " in raw:
            raw = raw.replace(b"  ", b" ")
        raw = raw.replace(b"\n ", b"\n").lstrip(b" ")
    raw += b"" if raw.endswith(b"\n") else b"\n"
    padded = np.frombuffer(raw + _PADDING, np.uint8)
    data = padded[: len(raw)]
    is_end = data == _NEWLINE
    found = np.flatnonzero(is_end | (data == delimiter))
    if is_quoted:
        quotes = np.flatnonzero(data == _QUOTE)
        if not _enclose(data, quotes, delimiter):
            return None
        # A delimiter between quotes ends no cell.
        found = found[np.searchsorted(quotes, found) % 2 == 0]
    count = int(np.count_nonzero(is_end))
    cells, rest = divmod(len(found), count)
    if rest or cells not in (width, width + 1):
        return None
    ends = found.reshape(-1, cells)
    starts = np.concatenate([[0], found[:-1] + 1]).reshape(-1, cells)
    length = ends[:, -1] - starts[:, 0]
    # An empty line is no row, also in a table of one column.
    if not is_end[ends[:, -1]].all() or length.min() == 0 or length.max() >= LONGEST_LINE:
        return None
    if cells > width and (ends[:, -1] > starts[:, -1]).any():
        return None
    if is_quoted:
        has_quote = (data[starts] == _QUOTE) & (ends > starts)
        starts, ends = starts + has_quote, ends - has_quote
    return Block(padded, starts, ends, delimiter, lines or count, is_quoted)


def _enclose(data: Bytes, quotes: Places, delimiter: int) -> bool:
    """Return True if each pair of quotes begins and ends a cell. data: ends with the end of a line."""
    if len(quotes) % 2:
        return False
    # The byte before the first one is that end.
    around = np.concatenate([data[quotes[0::2] - 1], data[quotes[1::2] + 1]])
    return bool(((around == delimiter) | (around == _NEWLINE)).all())


def _pick(data: Bytes, starts: Places, ends: Places, width: int) -> Bytes:
    """Return the bytes of cells of at most `width`, filled up with spaces, (cells, width)."""
    if not width:
        return np.zeros((len(starts), 0), np.uint8)
    picked = np.ndarray((len(data) - width + 1, width), np.uint8, data, strides=(1, 1))[starts]
    length = ends - starts
    if length.min() < width:
        picked[np.arange(width) >= length[:, None]] = _SPACE
    return picked


def _blank(data: Bytes, starts: Places, ends: Places) -> None:
    """Write 0 into cells that have a byte for it, and spaces behind."""
    length = ends - starts
    for place in range(int(length.max(initial=0))):
        data[starts[length > place] + place] = _SPACE if place else _ZERO


def _fill_holes(text: bytes) -> bytes:
    """Return a list of JSON with 0 for what lacks between its commas."""
    text = text.replace(b",,", b",0,").replace(b",,", b",0,")
    text = b"[0" + text[1:] if text.startswith(b"[,") else text
    return text[:-1] + b"0]" if text.endswith(b",]") else text


def _to_numbers(text: bytes, count: int) -> Floats64 | None:
    """Return so many numbers of a list of JSON; None if it has others."""
    try:
        values = _decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return np.fromiter(values, np.float64, count) if len(values) == count else None
