"""Logs of interactions: csv:PATH, a table of users, items and times, or movielens:PATH, as it is distributed.

csv:log.csv?user=customer&item=product&time=when&least=8      without a time column the order of the rows counts.
csv:log.inter, csv:log.tsv, csv:log.jsonl                     RecBole's typed header, other separators, JSON lines.
csv:log.txt?names=user,item,rating,time&sep=tab               without a header.
csv:log.csv?profiles=customers.csv&titles=products.csv        with tables of users' features, and of items' titles.
movielens:ml-100k, movielens:ml-1m, movielens:ml-latest-small.zip          the folder, its zip, or the file of ratings.

Unlike a table of sensor values, a log may hold numbers alone, so that no reader can tell a header from a row. Either
the user gives the columns (`names=`), or a header is there.
"""

from __future__ import annotations

import csv
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from mdl.data.readers.archive import ArchiveFiles, decode_lines, find_encoding, load_arrays, open_members, open_text
from mdl.data.sources import split_options
from mdl.data.spec import Spec, describe_choices, read_options, split_names
from mdl.data.tables.dialect import MOST_COLUMNS, is_number
from mdl.data.tables.recordings import find_csv_files
from mdl.errors import ConfigError, DataError
from mdl.peers.dccl.model.interactions import LONGEST_NAME, Interactions, group_by_user, keep_active, number_profiles
from mdl.reading import decode_json, open_regular, shorten

logger = logging.getLogger(__name__)

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


# A row as Python objects takes some 300 bytes during the reading.
_MOST_ROWS = 30_000_000
_SOURCES = ("csv:PATH", "movielens:PATH")


# The names of MovieLens' files, the same for twenty years: the columns of each that has no header.
_RATINGS = {
    "ratings.csv": "",
    "ratings.dat": "user,item,rating,time",
    "u.data": "user,item,rating,time",
}
_USERS = {
    "users.dat": "user,gender,age,occupation,zip",
    "u.user": "user,age,gender,occupation,zip",
}
_FILMS = {
    "movies.csv": "",
    "movies.dat": "item,title,genres",
    "u.item": "item,title,date,video,url," + ",".join(f"genre{number}" for number in range(19)),
}
_KNOWN_OF_USERS = ("gender", "age", "occupation")


class LogOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """least: the fewest interactions of a user or item that is not left out (the paper: 8, 20, 50)."""

    least: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 5


class CsvLogOptions(LogOptions, frozen=True, forbid_unknown_fields=True):
    """user, item, time: names of the columns, found by their usual names too (`user_id`, `movieId`, `timestamp`);
    without a column for the time the order of the rows counts.

    names: of all columns, for files without a header. sep: separates the cells (tab, ; or the like), found if it is not
    given. profiles: another table, with a row a user: the column `user`, and one for each feature. titles: another one,
    with a row an item: the column `item`, and its title.
    """

    user: str = "user"
    item: str = "item"
    time: str = "time"
    names: str = ""
    sep: Annotated[str, msgspec.Meta(max_length=16)] = ""
    profiles: str = ""
    titles: str = ""


def parse_log(text: str) -> tuple[Spec, LogOptions]:
    """Take a spec of a log apart. Raises ConfigError naming the source or the option, and what would be valid."""
    if not text:
        raise ConfigError(f"no interactions are named: give --data {' or '.join(_SOURCES)}")
    body, options = split_options(text)
    source, _, path = body.partition(":")
    if source not in ("csv", "movielens") or not path:
        raise ConfigError(f"data {text!r}: no log of interactions; {describe_choices(source, _SOURCES)}")
    spec = Spec(text, source, path, options)
    return spec, read_options(spec, CsvLogOptions if source == "csv" else LogOptions)


def read_interactions(text: str) -> Interactions:
    """Read the log that a spec names; report the number of rows read in our log.

    Raises ConfigError or DataError naming the option, or the file and line.
    """
    log, told = preview_interactions(text)
    logger.info("%s: %s", text, told)
    return log


def preview_interactions(text: str) -> tuple[Interactions, str]:
    """Read likewise; return also one line on the rows read and left out."""
    spec, options = parse_log(text)
    if isinstance(options, CsvLogOptions):
        log = _read_csv(spec.path, options)
        if options.profiles:
            told = _read_profiles(Path(options.profiles).expanduser(), options, frozenset(log.users))
            log = number_profiles(log, told)
    else:
        log = _read_movielens(Path(spec.path).expanduser())
    kept = keep_active(log, options.least)
    return kept, _describe_kept(log, kept, options.least)


def _describe_kept(log: Interactions, kept: Interactions, least: int) -> str:
    """Return one line on the interactions that stay, and the reason for leaving out the rest."""
    lost = len(log.items) - len(kept.items)
    why = f": users and items with fewer than {least} (?least=1 keeps all)" if lost else ""
    order = "in the order of the rows" if kept.times is None else "by their times"
    return (
        f"read {len(kept.items)} interactions of {len(kept.users)} users with {len(kept.titles)} items {order}, "
        f"left out {lost}{why}"
    )


def read_titles(text: str) -> dict[str, str]:
    """Return the items' titles, by their names in the log; empty if there are none. Raises as `read_interactions`."""
    spec, options = parse_log(text)
    if not isinstance(options, CsvLogOptions):
        with _open_movielens(Path(spec.path).expanduser()) as (where, members, by_name):
            for name, columns in _FILMS.items():
                if name in by_name:
                    lines = _lines(members, by_name[name])
                    return dict(_pairs(f"{where}: {name}", lines, columns, "", "item"))
        return {}
    if not options.titles:
        return {}
    file = Path(options.titles).expanduser()
    with open_text(file, encoding=find_encoding(file), errors="replace") as lines:
        return dict(_pairs(str(file), lines, "", "", options.item))


def _pairs(where: str, lines: Iterable[str], names: str, sep: str, item: str) -> Iterator[tuple[str, str]]:
    header, rows = open_table(where, lines, names, sep)
    if not header:
        return
    place = need_column(where, header, "item", item)
    title = need_column(where, header, "title", "title")
    for _, row in itertools.islice(rows, _MOST_ROWS):
        yield row[place], row[title][:LONGEST_NAME]


def _read_csv(path: str, options: CsvLogOptions) -> Interactions:
    rows: list[tuple[str, str, float | None]] = []
    for file in find_csv_files(str(Path(path).expanduser())):
        names = options.names or (_RATINGS.get(file.name, ""))
        with open_text(file, encoding=find_encoding(file)) as lines:
            table = open_table(str(file), lines, names, options.sep)
            rows += _rows_of(str(file), table, (options.user, options.item, options.time), len(rows))
    return _group(path, rows)


def _rows_of(
    where: str, table: tuple[list[str], Iterator[tuple[int, list[str]]]], columns: tuple[str, str, str], before: int
) -> Iterator[tuple[str, str, float | None]]:
    header, rows = table
    if not header:
        return
    user, item = (
        need_column(where, header, kind, said) for kind, said in zip(("user", "item"), columns[:2], strict=True)
    )
    time = find_column(where, header, "time", columns[2])
    for number, row in rows:
        _check_names(where, number, row[user], row[item])
        if before + number > _MOST_ROWS:
            raise DataError(f"{where}: more than {_MOST_ROWS} rows")
        yield row[user], row[item], None if time is None else _read_time(where, number, row[time])


def _check_names(where: str, number: int, *names: str) -> None:
    for name in names:
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise DataError(
                f"{where}: line {number}: {name[:20]!r} is no name: expected 1 to {LONGEST_NAME} printable characters"
            )


def _read_time(where: str, number: int, text: str) -> float:
    try:
        time = float(text)
    except ValueError:
        try:
            time = float(np.datetime64(text.strip().removesuffix("Z"), "ms").astype(np.int64)) / 1e3
        except ValueError:
            time = float("nan")
    if not np.isfinite(time):
        raise DataError(f"{where}: line {number}: time {text[:40]!r} is no number and no date like 2026-01-31 17:00")
    return time


def _group(where: str, rows: list[tuple[str, str, float | None]]) -> Interactions:
    if not rows:
        raise DataError(f"{where}: no interactions; expected rows of user, item and time")
    users, items, times = zip(*rows, strict=True)
    timed = None if None in times else np.array(times, np.float64)
    return group_by_user(np.array(users), np.array(items), timed)


def _read_movielens(path: Path) -> Interactions:
    if path.is_dir() and (found := sorted(path.glob("*sequences.npz"))):
        log = _read_sequences(found[0])
        if not any((path / name).exists() for name in _USERS):
            return log
    else:
        log = None
    with _open_movielens(path) as (where, members, by_name):
        if log is None:
            name = next((name for name in _RATINGS if name in by_name), None)
            if name is None:
                raise DataError(f"{path}: none of {', '.join(_RATINGS)} in it; expected MovieLens as it is distributed")
            ratings = f"{where}: {name}"
            table = open_table(ratings, _lines(members, by_name[name]), _RATINGS[name])
            log = _group(where, list(_rows_of(ratings, table, ("user", "item", "time"), 0)))
        for name, columns in _USERS.items():
            if name in by_name:
                header, rows = open_table(f"{where}: {name}", _lines(members, by_name[name]), columns)
                told = (dict(zip(header, row, strict=True)) for _, row in itertools.islice(rows, _MOST_ROWS))
                return number_profiles(log, {row["user"]: {key: row[key] for key in _KNOWN_OF_USERS} for row in told})
    return log


@contextmanager
def _open_movielens(path: Path) -> Iterator[tuple[str, ArchiveFiles, Mapping[str, str]]]:
    """Yield a name for errors, the members, and their names by last part. path: a folder, a zip, or a ratings file."""
    if path.name in _RATINGS and not path.is_dir():
        open_regular(path).close()
        beside = [name for name in (path.name, *_USERS, *_FILMS) if (path.parent / name).is_file()]
        with open_members(path.parent) as members:
            yield str(path.parent), members, {name: name for name in beside}
        return
    with open_members(path) as members:
        yield str(path), members, {name.rpartition("/")[2]: name for name in members.names()}


def _read_sequences(path: Path) -> Interactions:
    """Read arrays user (U,), offset (U + 1,) and movie (N,): the same log without times, each user's films in order."""
    arrays = load_arrays(path, ("user", "offset", "movie"))
    user, offset, movie = (arrays[name].astype(np.int64) for name in ("user", "offset", "movie"))
    lengths = np.diff(offset)
    if len(lengths) != len(user) or (lengths < 0).any() or lengths.sum() != len(movie):
        raise DataError(f"{path}: offset has {len(offset)} entries for {len(user)} users and {len(movie)} films")
    return group_by_user(np.repeat(user, lengths), movie, None)


def _read_profiles(file: Path, options: CsvLogOptions, wanted: frozenset[str]) -> dict[str, dict[str, str]]:
    """Read a table with a row for each user; return the wanted ones. An empty field is not known."""
    told: dict[str, dict[str, str]] = {}
    with open_text(file, encoding=find_encoding(file)) as lines:
        header, rows = open_table(str(file), lines)
        place = need_column(str(file), header, "user", options.user)
        user = header[place]
        _check_names(str(file), 1, *header)
        if twice := [name for name in header if header.count(name) > 1]:
            raise DataError(f"{file}: line 1: column {twice[0]!r} comes twice")
        for number, row in rows:
            known = {name: field.strip() for name, field in zip(header, row, strict=True) if field.strip()}
            _check_names(str(file), number, row[place], *known.values())
            del known[user]
            if row[place] in wanted and told.setdefault(row[place], known) is not known:
                raise DataError(f"{file}: line {number}: user {row[place][:20]!r} has a row already")
    return told


def _lines(members: ArchiveFiles, name: str) -> Iterator[str]:
    return decode_lines(members.read(name))
