"""Tables of logs in the forms of recommenders' data sets: separators, headers or none, typed headers, JSON lines.

Unlike a table of sensor values, a log may hold numbers alone, so that no reader can tell a header from a row. Either
the user gives the columns (`names=`), or a header is there.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from mdl.data.spec import describe_choices, split_names
from mdl.data.tables.dialect import MOST_COLUMNS, is_number
from mdl.errors import ConfigError, DataError
from mdl.reading import decode_json, shorten

Rows: TypeAlias = Iterator[tuple[int, list[str]]]

# In order of preference: "::" parts MovieLens' .dat, and stands in no name.
_SEPARATORS = ("::", "\t", ";", "|", ",")
_SPOKEN = {"tab": "\t", "comma": ",", "semicolon": ";", "bar": "|", "space": " "}
# RecBole's headers give each column's type.
_TYPES = (":token", ":float", ":token_seq", ":float_seq")
# Usual names of columns, for a user that gives none.
COLUMNS = {
    "user": ("user", "user_id", "userid", "uid", "reviewerid", "customer_id", "visitorid"),
    "item": ("item", "item_id", "itemid", "iid", "movieid", "movie_id", "product_id", "asin", "parent_asin"),
    "time": ("time", "timestamp", "ts", "date", "datetime", "unixreviewtime"),
    "title": ("title", "movie_title", "name", "item_name", "product_name"),
}


def open_table(where: str, lines: Iterable[str], names: str = "", sep: str = "") -> tuple[list[str], Rows]:
    """Return the columns' names, and the rows with their lines. names: for a file without a header, comma-separated.

    sep: separates the cells; found in the first line if it is not given. Raises DataError naming the line, ConfigError
    if a header is missing or names are of another number.
    """
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1))
    filled: Iterator[tuple[int, str]] = ((number, line) for number, line in numbered if line.strip())
    number, first = next(filled, (0, ""))
    if not number:
        return split_names(names), iter(())
    filled = itertools.chain([(number, first)], filled)
    if first.lstrip().startswith("{"):
        return _open_objects(where, filled)
    separator = _SPOKEN.get(sep, sep) or max(_SEPARATORS, key=first.count)
    rows = _split(where, _narrow(where, filled, separator), separator)
    at, cells = next(rows)
    header = split_names(names) or [_plain(cell) for cell in cells]
    if names:
        if len(header) != len(cells):
            raise ConfigError(f"{where}: names= says {len(header)} columns, line {at} has {len(cells)}")
        rows = itertools.chain([(at, cells)], rows)
    elif all(map(is_number, cells)):
        said = ",".join(["user", "item", "rating", "time", "..."][: len(cells)])
        raise ConfigError(
            f"{where}: no header, line {at} holds values; say what its {len(cells)} columns are, as in ?names={said}"
        )
    return header, _whole(where, rows, len(header))


def find_column(where: str, header: Sequence[str], kind: str, said: str) -> int | None:
    """Return the place of the column `said`; if that is only the kind's own name, also by the column's usual names.

    kind: of COLUMNS. None if there is none.
    """
    plain = [name.casefold() for name in header]
    for name in COLUMNS[kind] if said == kind else (said.casefold(),):
        if name in plain:
            if plain.count(name) > 1:
                raise DataError(f"{where}: column {name!r} comes twice")
            return plain.index(name)
    return None


def need_column(where: str, header: Sequence[str], kind: str, said: str) -> int:
    """Return the place likewise. Raises DataError with the columns if there is none."""
    place = find_column(where, header, kind, said)
    if place is None:
        raise DataError(f"{where}: line 1: no column {said!r}; {describe_choices(said, header)}")
    return place


def _open_objects(where: str, lines: Iterator[tuple[int, str]]) -> tuple[list[str], Rows]:
    """Open JSON lines: the names are those of the first object; a line that lacks one has an empty cell there."""
    number, first = next(lines)
    header = list(_object(where, number, first))

    def rows() -> Rows:
        for number, line in itertools.chain([(number_of_first, first)], lines):
            found = _object(where, number, line)
            yield number, [_cell(found.get(name)) for name in header]

    number_of_first = number
    return header, rows()


def _object(where: str, number: int, line: str) -> dict[str, object]:
    return decode_json(line, dict[str, object], f"{where}: line {number}", "an object a line")


def _cell(value: object) -> str:
    """Return a value as a table would write it; a nested value is an empty cell."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _plain(name: str) -> str:
    """Strip a type: "user_id:token" -> "user_id"."""
    name = name.strip().lstrip("#\ufeff").strip()
    stem, colon, kind = name.rpartition(":")
    return stem if colon + kind in _TYPES else name


def _narrow(where: str, lines: Iterator[tuple[int, str]], separator: str) -> Iterator[tuple[int, str]]:
    """Check the number of columns before a line becomes a list of millions of cells. Raises DataError."""
    for number, line in lines:
        if (count := line.count(separator)) >= MOST_COLUMNS:
            raise DataError(f"{where}: line {number}: {count + 1} columns; at most {MOST_COLUMNS} are read")
        yield number, line


def _split(where: str, lines: Iterator[tuple[int, str]], separator: str) -> Rows:
    """Split lines into cells. Quotes count only if commas or semicolons part the cells; else they belong to a title."""
    if separator not in (",", ";"):
        yield from ((number, [cell.strip() for cell in line.split(separator)]) for number, line in lines)
        return
    numbers: list[int] = []

    def noted() -> Iterator[str]:
        for number, line in lines:
            numbers[:] = [number]
            yield line

    try:
        for row in csv.reader(noted(), delimiter=separator):
            yield numbers[0], row
    except csv.Error as error:
        raise DataError(f"{where}: line {numbers[0]}: {shorten(error)}") from None


def _whole(where: str, rows: Rows, width: int) -> Rows:
    for number, row in rows:
        if len(row) != width:
            raise DataError(f"{where}: line {number}: {len(row)} fields; its header has {width}")
        yield number, row
