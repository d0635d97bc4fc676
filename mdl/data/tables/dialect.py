"""The form of a file's table, found in its first lines: encoding, delimiter, header, a row of units below it.

Lines above the header (sep=;, comments, the name of a device) are passed over. A file that begins with values has no
header: then it is of a known app (`mdl.data.tables.apps`), or `names` must give its columns.

A user's choices for tables of sensor values: the options of csv:PATH.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mdl.channels import find_unit, quantity_of
from mdl.data.readers.archive import LONGEST_LINE, find_encoding, open_raw, open_text
from mdl.data.spec import split_names
from mdl.data.tables.apps import APPS, AppFormat
from mdl.data.windows import FASTEST_HZ
from mdl.errors import ConfigError, DataError, MdlError
from mdl.task import Targets

# A suit of motion sensors has 300.
MOST_COLUMNS = 4096
# Enough for a page of remarks above the header, and rows below it.
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 200, 1 << 20
# The share of lines below a header with its number of cells; the last may be torn, a note may stand among them.
_LEAST_LIKE = 0.8
_DELIMITERS = (",", ";", "\t", "|", " ")
_NUMBER = re.compile(r"[+\-−]?(\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?|nan|inf(inity)?", re.IGNORECASE)
_UNIT = re.compile(r"\s*(?:\[([^\]]*)\]|\(((?:[^()]|\([^()]*\))*)\))\s*$")
_LONGEST_MARK = 64
_NOTHING = frozenset(
    ("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?", "missing", "#value!", "#div/0!")
)
# Their usual forms, for a reader that knows cells by their bytes; `is_nothing` takes all forms.
WORDS_FOR_NOTHING = sorted(
    {form for word in _NOTHING for form in (word, word.upper(), word.capitalize())} | {"NaN", "#N/A", "#n/a"}
)
# The name of the column of times that a rate stands for.
CLOCK = "time"
_TIME_WORDS = frozenset(
    (
        *("time", "timestamp", "datetime", "date", "epoch", "epoc", "elapsed", "clock"),
        # Names in other languages' spreadsheets and loggers.
        *("zeit", "uhrzeit", "zeitstempel", "datum", "temps", "heure", "tiempo", "hora", "tempo", "tijd", "czas"),
        *("čas", "время", "χρόνος", "zaman", "時間", "时间"),
    )
)
_NO_TABLES = (
    (b"PK\3\4", "a spreadsheet or a zip file; save it as CSV, or unpack it"),
    (b"\x1f\x8b", "packed by gzip; give it a name that ends in .csv.gz"),
    (b"{", "JSON; export it as CSV"),
    (b"[", "JSON; export it as CSV"),
    (b"<", "a web page or XML; export it as CSV"),
    (b"\x89HDF", "an HDF5 file; export it as CSV"),
    (b"SQLite format 3", "a database; export its table as CSV"),
)


@dataclass(frozen=True)
class SensorFile:
    """One file of a recording that has a file for each sensor.

    time: place of its times. places: of its columns in the recording's header, by their place in the file's.
    rate_hz: its rows a second.
    """

    file: Path
    dialect: Dialect
    time: int
    places: dict[int, int]
    rate_hz: float


@dataclass(frozen=True)
class Dialect:
    """header: the columns' names. units: by column, empty if none is given. skipped: lines above the first values.

    encoding: as Python calls it. aliases: other names of the columns, by the user or for a known app; "" if there is
    none. named: names that the user gave, other than one for each column. app: the known app that writes such files; ""
    for none. clock: (start in seconds, rate in Hz) that stand for a first column of times which the file does not have.
    row_end: ends a row besides the end of its line; rows that it cuts short are left out. parts: the files of a
    recording that has one for each sensor, the fastest first; else empty. base: the part that gives the rows to which
    the others are brought. left_out: files of the recording that are no part.
    """

    encoding: str
    delimiter: str
    header: tuple[str, ...]
    units: tuple[str, ...]
    skipped: int
    aliases: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    app: str = ""
    clock: tuple[float, float] | None = None
    row_end: str = ""
    parts: tuple[SensorFile, ...] = ()
    base: int = 0
    left_out: tuple[str, ...] = ()

    def alias(self, place: int) -> str:
        """Return a column's other name in place of the header's; "" if it has none."""
        return self.aliases[place] if self.aliases else ""

    def describe(self) -> str:
        """Return its unusual features for a note; empty if there are none."""
        said = [] if self.encoding == "utf-8-sig" else [f"text in {self.encoding}"]
        if self.delimiter not in ",;\t":
            said.append(f"columns parted by {self.delimiter!r}")
        return ", ".join(said)


def find_dialect(file: Path, wanted: Sequence[str] = (), names: Sequence[str] = ()) -> Dialect:
    """Find a file's dialect. wanted: the user's columns, which mark a header. names: for a file without a header.

    Raises DataError for a file without a table, ConfigError if it has neither header nor names, or another number of
    columns.
    """
    _refuse_other_kinds(file)
    encoding = find_encoding(file)
    with open_text(file, encoding=encoding, errors="replace") as lines:
        sample = list(_take_sample(lines))
    dialect = dialect_of(file, sample, encoding, wanted, names)
    if dialect.clock is None:
        return dialect
    first = (CLOCK, *dialect.header), ("s", *dialect.units), ("", *(dialect.aliases or ("",) * len(dialect.header)))
    return replace(dialect, header=first[0], units=first[1], aliases=first[2])


def dialect_of(
    file: Path, sample: Sequence[str], encoding: str, wanted: Sequence[str] = (), names: Sequence[str] = ()
) -> Dialect:
    """Find the dialect likewise from the first lines of a stream."""
    if not any(line.strip() for line in sample):
        raise DataError(f"{file}: it is empty; expected a header and rows of values")
    if (found := _find_header(sample, {plain_name(name) for name in wanted})) is None:
        return _without_header(file, sample, encoding, list(names))
    delimiter, at = found
    rows = [parse_line(line, delimiter) for line in sample[at : at + 3]]
    header = [name.strip().strip('"').strip() for name in rows[0]]
    header[0] = header[0].lstrip("#%").strip()
    if len(header) > 1 and not header[-1] and all(len(row) < len(header) or not row[-1].strip() for row in rows[1:]):
        header.pop()  # each line ends with a delimiter
    if len(header) > MOST_COLUMNS:
        raise DataError(f"{file}: {len(header)} columns; at most {MOST_COLUMNS} are read")
    units = [_bracketed(match) if (match := _UNIT.search(name)) else "" for name in header]
    below = 1
    if len(rows) == 3 and _are_units(rows[1], rows[2]):
        units = [cell.strip(" []()") or unit for cell, unit in itertools.zip_longest(rows[1], units, fillvalue="")]
        below = 2
    units, skipped = units[: len(header)], at + below
    dialect = Dialect(encoding, delimiter, tuple(header), tuple(units), skipped)
    return name_all(_as_of_an_app(file, dialect, sample[:at], find_app(sample[:at], header)), names)


def _as_of_an_app(file: Path, dialect: Dialect, above: Sequence[str], app: AppFormat | None) -> Dialect:
    """Name the columns by the rules of a known app, if one writes such files."""
    if app is None:
        return dialect
    aliases, units = name_columns(app, file, [plain_name(name) for name in dialect.header], dialect.units)
    if not any(aliases):
        return dialect
    clock = None if any(map(is_time_name, dialect.header)) else read_clock(app, above)
    return replace(dialect, units=tuple(units), aliases=tuple(aliases), app=app.name, clock=clock, row_end=app.row_end)


def find_app(above: Sequence[str], header: Sequence[str]) -> AppFormat | None:
    """Return the app that writes such files. above: lines before the header; header: "" where there is none."""
    text = "\n".join(each.strip().casefold() for each in (*above, *header)) + "\n"
    return next((app for app in APPS if bool(app.names) >= (not header) and re.search(app.mark, text)), None)


def name_columns(
    app: AppFormat, file: Path, header: Sequence[str], units: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return our (names, units) of the columns: "" for a column without a rule.

    header: the names without their units. units: as in the header; the app's rule fills in missing ones.
    """
    names, known = [""] * len(header), list(units)
    stem = file.name.partition(".")[0].casefold()
    for rule in app.rules:
        if not re.search(rule.file, stem):
            continue
        for place, column in enumerate(header):
            match = re.fullmatch(rule.column, column)
            unit = find_unit(units[place])
            if not match or names[place] or (rule.quantity and quantity_of(unit) != rule.quantity):
                continue
            name = rule.name.format(*match.groups())
            if name not in names:
                names[place], known[place] = name, units[place] if unit else rule.unit
    return names, known


def has_sensor(app: AppFormat, name: str) -> bool:
    """Return True if a file of this name, in lower case, may hold columns of one of the app's rules."""
    return name.endswith(".csv") and any(re.search(rule.file, name.partition(".")[0]) for rule in app.rules)


def read_clock(app: AppFormat, above: Sequence[str]) -> tuple[float, float] | None:
    """Return (start in seconds, rate in Hz) from the lines above the values; None if they have none."""
    match = re.search(app.clock, "".join(above).casefold()) if app.clock else None
    if match is None:
        return None
    start, rate = float(match.groupdict().get("start") or 0), float(match["rate"])
    return (start, rate) if rate > 0 else None


def name_all(dialect: Dialect, names: Sequence[str]) -> Dialect:
    """Give all columns the user's names, if there is one for each; else they may be names of the channels."""
    if len(names) == len(dialect.header):
        return replace(dialect, header=tuple(names), aliases=(), app="")
    return replace(dialect, named=tuple(names))


def plain_name(name: str) -> str:
    """Return a name without case and unit: "Acc X (m/s^2)" -> "acc x"."""
    return _UNIT.sub("", name).strip().casefold()


def without_unit(name: str) -> str:
    """Take a known unit in brackets off a name: "Acc X (m/s^2)" -> "Acc X"; "acc (left)" stays."""
    match = _UNIT.search(name)
    return name[: match.start()].strip() or name if match and find_unit(_bracketed(match)) else name


def _bracketed(match: re.Match[str]) -> str:
    return (match[1] or match[2] or "").strip()


def is_time_name(column: str) -> bool:
    """Return True if a column's name is one of times: time, timestamp_ms, Seconds elapsed."""
    return not _TIME_WORDS.isdisjoint(words_of(column))


def words_of(column: str) -> set[str]:
    """Split timeStamp_MS into time, stamp, timestamp, ms."""
    parts = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column))
    return {part.lower() for part in (*parts, *re.split(r"[\W_]+", column))}


def is_number(cell: str) -> bool:
    """Return True if a cell looks like a number, in any country's form; NaN is one."""
    return bool(_NUMBER.fullmatch(cell.strip()))


def is_nothing(cell: str) -> bool:
    """Return True if a cell holds no value, or a word for that."""
    return cell.strip().casefold() in _NOTHING


def parse_line(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line. A quote that does not end is taken to end with the line."""
    line = line.strip("\r\n")
    is_odd = '"' in line or "\r" in line or "\n" in line
    if delimiter != " " and 0 < len(line) < LONGEST_LINE and not is_odd:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=delimiter == " "), [])
    except csv.Error:
        return []


def _take_sample(lines: Iterator[str]) -> Iterator[str]:
    total = 0
    for line in itertools.islice(lines, _SAMPLE_LINES):
        total += len(line)
        yield line
        if total > _SAMPLE_CHARACTERS:
            return


def _refuse_other_kinds(file: Path) -> None:
    if file.name.endswith(".gz"):
        return
    with open_raw(file) as (raw, _):
        start = raw.read(_LONGEST_MARK).removeprefix(codecs.BOM_UTF8).lstrip()
    for mark, kind in _NO_TABLES:
        if start.startswith(mark):
            raise DataError(f"{file}: it is {kind}")


def _without_header(file: Path, sample: Sequence[str], encoding: str, names: list[str]) -> Dialect:
    """Find the dialect without a header. Lines above the first one with values, such as comments, are passed over."""
    if (app := find_app(sample, ())) is not None:
        return _headless(file, sample, encoding, names, app)
    if not names:
        raise _no_table(file, sample)
    widths = []
    for delimiter in _DELIMITERS:
        for at, line in enumerate(sample):
            row = parse_line(line, delimiter)
            if any(is_number(cell) for cell in row):
                widths.append(len(row))
                if len(row) == len(names) or (len(row) == len(names) + 1 and not row[-1].strip()):
                    return Dialect(encoding, delimiter, tuple(names), ("",) * len(names), at)
                break
    found = f"{max(widths)} columns" if widths else "no values"
    raise ConfigError(f"{file}: names= says {len(names)} columns, the file has {found}")


def _headless(file: Path, sample: Sequence[str], encoding: str, names: list[str], app: AppFormat) -> Dialect:
    """Find the dialect of an app's file without a header. names: the user's, of all columns or of the channels."""
    rows = [parse_line(line.strip().rstrip(app.row_end or None), ",") for line in sample]
    values = [at for at, row in enumerate(rows) if at >= app.above and row and is_number(row[-1])]
    if not values:
        raise _no_table(file, sample)
    header = app.names[: len(rows[values[0]])]
    dialect = Dialect(encoding, ",", header, ("",) * len(header), values[0])
    return name_all(_as_of_an_app(file, dialect, sample, app), names)


def _no_table(file: Path, sample: Sequence[str]) -> MdlError:
    """Return the error for a file without a header, if its columns are not known."""
    first = next(line for line in sample if line.strip())
    delimiter = max(_DELIMITERS[:4], key=first.count)
    cells = parse_line(first, delimiter)
    if len(cells) > MOST_COLUMNS:
        return DataError(f"{file}: {len(cells)} columns; at most {MOST_COLUMNS} are read")
    if any(is_number(cell) for cell in cells):
        return ConfigError(
            f"{file}: no header, its first line holds values; say what its {len(cells)} columns are, as in "
            f"?names={','.join(f'c{number}' for number in range(1, min(4, len(cells)) + 1))}"
            f"{',...' if len(cells) > 4 else ''}"
        )
    return DataError(f"{file}: no table found; expected a header and below it rows with as many cells")


def _find_header(sample: Sequence[str], wanted: set[str]) -> tuple[str, int] | None:
    """Return the delimiter and the line of the header: the one that most rows below fit, then the widest; else None."""
    found: list[tuple[tuple[bool, bool, float, int, int], str, int]] = []
    whole = "".join(sample)
    absent = [delimiter for delimiter in _DELIMITERS if delimiter not in whole]
    for delimiter in (*(each for each in _DELIMITERS if each not in absent), *absent[:1]):
        # Those that are nowhere part a line alike: into one cell, which is less than a header of several.
        if delimiter in absent and found and max(found)[0] > (bool(wanted), True):
            break
        rows = [parse_line(line, delimiter) for line in sample]
        has_text = [_has_text(row) for row in rows]
        # Rows below by their number of cells.
        below = Counter(map(len, itertools.compress(rows, has_text)))
        total = sum(has_text)
        for at, row in enumerate(rows):
            if has_text[at]:
                below[len(row)] -= 1
                total -= 1
            like = (below[len(row)] + below[len(row) + 1]) / max(1, total)
            alone = len(row) == 1 and any(other in row[0] for other in _DELIMITERS[:4])
            fits = like >= _LEAST_LIKE and not alone and (len(row) > 1 or total > 0)
            named = _names(row, wanted)
            if named or (fits and _is_of_words(row)):
                found.append(
                    ((named, len(row) > 1, round(like, 1), len(row), -_DELIMITERS.index(delimiter)), delimiter, at)
                )
                break
    if not found:
        return None
    _, delimiter, at = max(found)
    return delimiter, at


def _has_text(row: Sequence[str]) -> bool:
    return bool("".join(row).strip())


def _names(row: Sequence[str], wanted: set[str]) -> bool:
    """Return True if each of these names is one of the cells'; False without names."""
    together = "\n".join(row).casefold() if wanted else ""
    if not wanted or not all(name in together for name in wanted):
        return False
    return wanted <= {plain_name(cell.lstrip("#% ")) for cell in row}


def _is_of_words(row: Sequence[str]) -> bool:
    """Return True if a row has words and no number, by whatever they are parted."""
    parts = [part for cell in row for part in re.split(r"[,;\t|]", cell)]
    return any(part.strip() for part in parts) and not any(map(is_number, parts))


def _are_units(row: Sequence[str], next_row: Sequence[str]) -> bool:
    """Return True if a row below the header holds units: no number in it, above cells that are numbers."""
    if any(is_number(cell) for cell in row):
        return False
    return any(is_number(below) and cell.strip() for cell, below in zip(row, next_row, strict=False))


# No window of sensor data could bridge a longer gap.
_MOST_GAP_S = 1e9


class CsvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: column with the class. target: columns of numbers to predict instead, comma-separated; a window has their
    mean or their last value (target_of). labels: columns of 0 and 1, of which several may hold at once. Likewise a
    column `label` with label_sep, which separates the labels in a cell. A window has the labels that hold in most of
    it.

    columns, or channels: the channels (all others that are no times if empty).

    label and subject may also be `path` or `path:N` (the name of the first, or Nth, folder below PATH), or `file` (the
    file's name). names: of all columns, or of the channels in their order. map: THEIRS:OURS,...: new names of single
    columns. Names match in any case, and without the unit behind them in brackets. classes: all classes in their order,
    so that a device may hold some of them. skip: labels (comma-separated) that mean "not labelled", like an empty one.

    time: numbers, ISO dates, dates with dots or slashes, or clock times; found by its name if not given, `none` leaves
    it out. time_unit: replaces the one that its steps show. rate: Hz; with a time column each stretch is resampled to
    it, otherwise it only describes. A step in time above max_gap (s) ends a stretch; gaps: "split", or "interpolate:S",
    which fills gaps of at most S seconds. missing: treatment of empty cells and NaN. units: of the channels, if the
    header has none or a wrong one: one for all, or one for each; `-` is none. Known ones are brought to the unit that
    mdl keeps (m/s2, rad/s, uT, degC, hPa, mV, rad); acceleration: the unit for accelerations instead.

    window and step count samples; step is half a window if not given. split, seed: the choice of test windows.
    watch: new files of the folder join training between rounds; so many of all windows are kept; 0: it is read once.
    """

    label: str = ""
    target: str = ""
    target_of: Literal["mean", "last"] = "mean"
    labels: str = ""
    label_sep: Annotated[str, msgspec.Meta(max_length=8)] = ""
    columns: str = ""
    channels: str = ""
    names: str = ""
    map: str = ""
    classes: str = ""
    subject: str = ""
    time: str = ""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    rate: Annotated[float, msgspec.Meta(gt=0, le=FASTEST_HZ)] | None = None
    max_gap: Annotated[float, msgspec.Meta(gt=0, le=_MOST_GAP_S)] | None = None
    gaps: Annotated[str, msgspec.Meta(pattern=r"^(split|interpolate:[0-9]{1,9}(\.[0-9]{1,9})?)$")] = "split"
    missing: Literal["refuse", "drop", "interpolate"] = "refuse"
    units: str = ""
    acceleration: Literal["g", "m/s2"] | None = None
    window: Annotated[int, msgspec.Meta(ge=2, le=1 << 20)] = 128
    step: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None
    split: Literal["auto", "subject", "recording", "time"] = "auto"
    skip: str = ""
    watch: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0

    @property
    def targets(self) -> Targets:
        """The kind of a window's targets."""
        return "numbers" if self.target else "labels" if self.labels or self.label_sep else "classes"

    @property
    def is_labelled(self) -> bool:
        """True if the options name a label or target at all."""
        return bool(self.label or self.target or self.labels)

    @property
    def label_names(self) -> list[str]:
        """The labels that a cell of `label_sep` may hold, in their order; else none."""
        return split_names(self.classes) if self.label_sep else []

    @property
    def fill_s(self) -> float | None:
        """The longest gap to fill, in seconds; None if gaps are split."""
        _, _, seconds = self.gaps.partition(":")
        return float(seconds) if seconds else None
