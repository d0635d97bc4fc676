"""Logs of interactions: csv:PATH with columns user, item and time, or movielens:PATH, as it is distributed.

csv:log.csv?user=customer&item=product&time=when&least=8      without a time column the order of the rows counts
csv:log.csv?profiles=customers.csv                            beside it what is known of users
movielens:ml-1m          ratings.dat and users.dat of the folder
movielens:ml-latest-small.zip          ratings.csv of the folder or zip
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from mdl.data.readers.archive import Members, load_arrays, open_members, open_text
from mdl.data.readers.csv_streams import find_csv_files
from mdl.data.sources import split_options
from mdl.data.spec import Spec, describe_choices, read_options
from mdl.errors import ConfigError, DataError
from mdl.recommend.interactions import LONGEST_NAME, Interactions, group_by_user, keep_active
from mdl.recommend.profiles import number_profiles

# A row as Python objects takes some 300 bytes while it is read.
_MOST_ROWS = 30_000_000
_SOURCES = ("csv:PATH", "movielens:PATH")


class LogOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """least: interactions that each user and item must have, or is left out (the paper: 8, 20, 50)."""

    least: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 5


class CsvLogOptions(LogOptions, frozen=True, forbid_unknown_fields=True):
    """user, item, time: names of the columns; without a column `time` the order of the rows counts.

    profiles: another CSV, with a row a user: the column `user`, and one for each feature.
    """

    user: str = "user"
    item: str = "item"
    time: str = "time"
    profiles: str = ""


def parse_log(text: str) -> tuple[Spec, LogOptions]:
    """Take a spec of a log apart. Raises ConfigError naming the source or the option, and what would be valid."""
    if not text:
        raise ConfigError(f"which interactions? give --data {' or '.join(_SOURCES)}")
    body, options = split_options(text)
    source, _, path = body.partition(":")
    if source not in ("csv", "movielens") or not path:
        raise ConfigError(f"data {text!r}: no log of interactions; {describe_choices(source, _SOURCES)}")
    spec = Spec(text, source, path, options)
    return spec, read_options(spec, CsvLogOptions if source == "csv" else LogOptions)


def read_interactions(text: str) -> Interactions:
    """What a spec names. Raises ConfigError or DataError naming the option, or the file and line."""
    spec, options = parse_log(text)
    if isinstance(options, CsvLogOptions):
        log = _read_csv(spec.path, options)
        if options.profiles:
            told = _read_profiles(Path(options.profiles).expanduser(), options.user, frozenset(log.users))
            log = number_profiles(log, told)
        return keep_active(log, options.least)
    return keep_active(_read_movielens(Path(spec.path).expanduser()), options.least)


def _read_csv(path: str, options: CsvLogOptions) -> Interactions:
    rows: list[tuple[str, str, float | None]] = []
    for file in find_csv_files(str(Path(path).expanduser())):
        with open_text(file) as lines:
            rows += _rows_of(str(file), lines, (options.user, options.item, options.time), len(rows))
    return _group(path, rows)


def _rows_of(
    where: str, lines: Iterable[str], columns: tuple[str, str, str], before: int
) -> Iterator[tuple[str, str, float | None]]:
    header, rows = _table(where, lines, columns[:2])
    user, item = header.index(columns[0]), header.index(columns[1])
    time = header.index(columns[2]) if columns[2] in header else None
    for number, row in rows:
        _check_names(where, number, row[user], row[item])
        if before + number > _MOST_ROWS:
            raise DataError(f"{where}: more than {_MOST_ROWS} rows")
        yield row[user], row[item], None if time is None else _read_time(where, number, row[time])


def _table(
    where: str, lines: Iterable[str], needed: Iterable[str]
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, which has the columns that are needed, and the rows below it."""
    table = csv.reader(lines)
    header = [name.strip() for name in next(table, [])]
    for name in needed:
        if name not in header:
            raise DataError(f"{where}: line 1: no column {name!r}; {describe_choices(name, header)}")
    return header, _whole_rows(where, table, len(header))


def _whole_rows(where: str, table: Iterable[list[str]], width: int) -> Iterator[tuple[int, list[str]]]:
    """The rows below a header, with their lines."""
    for number, row in enumerate(table, 2):
        if row and len(row) != width:
            raise DataError(f"{where}: line {number}: {len(row)} fields; its header has {width}")
        if row:
            yield number, row


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
        return _with_profiles(_read_sequences(found[0]), _lines_of_folder(path, "users.dat"))
    with open_members(path) as members:
        by_name = {name.rpartition("/")[2]: name for name in members.names()}
        if "ratings.csv" in by_name:
            where, lines = f"{path}: ratings.csv", _lines(members, by_name["ratings.csv"])
            return _group(where, list(_rows_of(where, lines, ("userId", "movieId", "timestamp"), 0)))
        if "ratings.dat" not in by_name:
            raise DataError(f"{path}: neither ratings.dat nor ratings.csv; expected MovieLens as it is distributed")
        fields = _fields(f"{path}: ratings.dat", _lines(members, by_name["ratings.dat"]), 4)
        rows = [(user, film, _read_time(f"{path}: ratings.dat", number, at)) for number, (user, film, _, at) in fields]
        users = _lines(members, by_name["users.dat"]) if "users.dat" in by_name else []
        return _with_profiles(_group(str(path), list(rows)), users)


def _read_sequences(path: Path) -> Interactions:
    """Arrays user (U,), offset (U + 1,) and movie (N,): the same log without times, each user's films in order."""
    arrays = load_arrays(path, ("user", "offset", "movie"))
    user, offset, movie = (arrays[name].astype(np.int64) for name in ("user", "offset", "movie"))
    lengths = np.diff(offset)
    if len(lengths) != len(user) or (lengths < 0).any() or lengths.sum() != len(movie):
        raise DataError(f"{path}: offset has {len(offset)} entries for {len(user)} users and {len(movie)} films")
    return group_by_user(np.repeat(user, lengths), movie, None)


def _with_profiles(data: Interactions, lines: Iterable[str]) -> Interactions:
    """Gender, age and occupation of each user."""
    told = {
        fields[0]: dict(zip(("gender", "age", "occupation"), fields[1:4], strict=True))
        for _, fields in _fields("users.dat", lines, 5)
    }
    return number_profiles(data, told)


def _read_profiles(file: Path, user: str, wanted: frozenset[str]) -> dict[str, dict[str, str]]:
    """Of a CSV with a row for each user, of those that are wanted; an empty field is not known."""
    told: dict[str, dict[str, str]] = {}
    with open_text(file) as lines:
        header, rows = _table(str(file), lines, [user])
        place = header.index(user)
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


def _fields(where: str, lines: Iterable[str], count: int) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\r\n").split("::")
        if len(fields) != count:
            raise DataError(f"{where}: line {number}: {len(fields)} fields between ::; expected {count}")
        yield number, fields


def _lines(members: Members, name: str) -> Iterator[str]:
    return io.TextIOWrapper(io.BytesIO(members.read(name)), encoding="latin-1")


def _lines_of_folder(path: Path, name: str) -> Iterable[str]:
    if not (path / name).exists():
        return []
    with open_members(path) as members:
        return list(itertools.islice(_lines(members, name), _MOST_ROWS))
