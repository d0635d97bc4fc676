"""Forty files as phones, loggers and spreadsheets write them, in twelve dialects: python tests/strangers/make.py.

All of what can be read is one stream: 400 rows at 50 Hz, two people, three axes of acceleration in g, walking and
sitting in turns. `CASES` says how each is read, and what must come out: all of it, a part, or a line that refuses it.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

G_MS2 = 9.80665
FILES = Path(__file__).parent / "files"
ROWS, RATE_HZ, EVERY = 400, 50, 100
START = datetime(2026, 5, 4, 23, 59, 58, tzinfo=UTC)

Row = tuple[float, float, float, float, str, str]


def stream() -> list[Row]:
    """(seconds, ax, ay, az, who, activity) of each row."""
    rows = []
    for row in range(ROWS):
        seconds, walks = row / RATE_HZ, row // EVERY % 2 == 0
        swing = 0.3 * math.sin(4 * math.pi * seconds) if walks else 0.0
        ax, ay = round(swing + row % 7 / 1000, 3), round(0.1 * math.cos(seconds) + row % 5 / 1000, 3)
        who = "ann" if row < ROWS // 2 else "ben"
        rows.append((seconds, ax, ay, round(1 + swing / 2, 3), who, ["sit", "walk"][walks]))
    return rows


def table(
    header: Sequence[str], row: Callable[[int, Row], Iterable[object]], *, delimiter: str = ",", end: str = "\n",
    above: str = "", rows: Sequence[Row] | None = None,
) -> str:  # fmt: skip
    """Lines of a file. row: the cells of a row, from its number and what was measured."""
    lines = [delimiter.join(header)] if header else []
    lines += [delimiter.join(map(str, row(number, each))) for number, each in enumerate(rows or stream())]
    return above + end.join(lines) + end


def comma(value: float) -> str:
    """3.5 -> "3,5" """
    return f"{value:.3f}".replace(".", ",")


def when(seconds: float, form: str) -> str:
    """A moment of the recording, milliseconds for %f."""
    at = START + timedelta(seconds=seconds)
    return at.strftime(form.replace("%f", f"{at.microsecond // 1000:03}"))


@dataclass(frozen=True)
class Case:
    """One file (or a folder of them). options: behind the path. refused: what the line that refuses it says.

    note: what a note says. lost: rows that do not come out, -1 where some are filled in. scale: m/s² a g, or 1.
    """

    dialect: str
    path: str
    files: dict[str, bytes]
    options: str
    refused: str = ""
    note: str = ""
    lost: int = 0
    scale: float = G_MS2
    subjects: tuple[str, ...] = ()


def one(dialect: str, name: str, text: str | bytes, options: str, encoding: str = "utf-8", **more: object) -> Case:
    """A case of one file."""
    content = text if isinstance(text, bytes) else text.encode(encoding)
    return Case(dialect, name, {name: content}, options, **more)  # type: ignore[arg-type]


NAMES = ("time", "ax", "ay", "az", "who", "activity")
LABEL = "label=activity&columns=ax,ay,az"


def plain() -> list[Case]:
    """What a script writes."""
    text = table(NAMES, lambda _, row: row)
    return [
        one("plain", "plain.csv", text, f"{LABEL}&subject=who", subjects=("ann", "ben"), note="in s, 50 Hz"),
        one("plain", "plain_upper.CSV", table([name.upper() for name in NAMES], lambda _, row: row), LABEL),
        one("plain", "plain.tsv.gz", gzip.compress(text.replace(",", "\t").encode(), 9, mtime=0), LABEL),
        one("plain", "plain_torn.csv", text + "8.0,0.1", LABEL, note="1 cut off at the end of a file"),
        one("plain", "plain_spelt.csv", text.replace("walk", "Walk", 40), LABEL, refused="?classes="),
        one("plain", "plain_more_cells.csv", text.replace("\n", ",x\n").replace("activity,x", "activity"), LABEL,
            refused="has 7 cells, the header 6"),
    ]  # fmt: skip


def spreadsheets() -> list[Case]:
    """Excel in Germany, its Unicode text, its `sep=`; and what it does to times."""
    names = ("Zeit", "ax", "ay", "az", "Tätigkeit")
    label = "label=Tätigkeit&columns=ax,ay,az&time=Zeit"
    german = table(
        names, lambda _, row: (when(row[0], "%d.%m.%Y %H:%M:%S,%f"), *map(comma, row[1:4]), row[5]),
        delimiter=";", end="\r\n",
    )  # fmt: skip
    stuck = table(("time", *NAMES[1:]), lambda _, row: ("1.78E+12", *row[1:]))
    return [
        one("spreadsheet", "german.csv", german, label, "cp1252", note="text in cp1252"),
        one("spreadsheet", "german_utf8.csv", german, label, "utf-8-sig"),
        one("unicode text", "unicode.txt", german.replace(";", "\t"), label, "utf-16", note="text in utf-16"),
        one("unicode text", "unicode_no_mark.txt", german.replace(";", "\t"), label, "utf-16-le"),
        one("spreadsheet", "german_sep.csv", "sep=;\r\n" + german, label, "cp1252"),
        one("spreadsheet", "german_commas.csv", german.replace(";", ","), label, refused="decimal commas need quotes"),
        one("spreadsheet", "rounded_times.csv", stuck, f"{LABEL}&time=time", refused="never advances"),
        one("spreadsheet", "thousands.csv", german.replace(";0,", ";1.000,"), label, refused="marks between thousands"),
    ]


def phones() -> list[Case]:
    """Apps that export nanoseconds, quoted names with units, empty cells where a sensor is silent."""
    names = ("time", "seconds_elapsed", "z", "y", "x", "activity")
    elapsed = table(names, lambda _, row: (int(1.7e18 + row[0] * 1e9), row[0], row[3], row[2], row[1], row[5]))
    quoted = table(
        ('"Time (s)"', '"Acceleration x (m/s^2)"', '"Acceleration y (m/s^2)"', '"Acceleration z (m/s^2)"', '"state"'),
        lambda _, row: (f"{row[0]:.6E}", *(f"{9.80665 * value:.9E}" for value in row[1:4]), row[5]),
    )
    axes = "columns=acceleration x,acceleration y,acceleration z&label=state"
    holes = table(NAMES, lambda n, row: row if n % 10 else (row[0], "", *row[2:]))
    turns = "\n".join(
        [",".join(NAMES)]
        + [f"{r[0]},{r[1]},{r[2]},,{r[4]},{r[5]}\n{r[0]},,,{r[3]},{r[4]},{r[5]}" for r in stream()]
    )  # fmt: skip
    return [
        one("phone, elapsed", "elapsed.csv", elapsed, "label=activity&columns=x,y,z", scale=1.0, note="50 Hz"),
        one("phone, units", "units.csv", quoted, axes, note="acceleration z in m/s2"),
        one(
            "phone, units",
            "units_in_g.csv",
            quoted,
            f"{axes}&acceleration=g",
            scale=1.0,
            note="in g (converted from m/s2)",
        ),
        one("phone, holes", "holes.csv", holes, LABEL, refused="?missing=interpolate"),
        one("phone, holes", "holes_filled.csv", holes, f"{LABEL}&missing=interpolate", lost=-1, note="39 values"),
        one("phone, holes", "in_turns.csv", turns, f"{LABEL}&missing=drop", refused="no window of 20 samples"),
        one("phone, holes", "nan.csv", holes.replace(",,", ",NaN,"), LABEL, refused="column 'ax' is NaN"),
    ]


def loggers() -> list[Case]:
    """Lines above the header, a row of units below it, no header at all, ISO and clock times."""
    above = "# Logger 4.2\n# Sampling: 50 Hz, range: 4 g\n#\n"
    units = table(NAMES, lambda _, row: (int(1000 * row[0] + 0.5), *row[1:]))
    units = units.replace("activity\n", "activity\nms,g,g,g,-,-\n", 1)
    bare = table((), lambda _, row: row)
    spaced = table(("#", *NAMES), lambda _, row: row, delimiter=" ").replace("# ", "#", 1)
    clock = table(NAMES, lambda _, row: (when(row[0], "%H:%M:%S.%f"), *row[1:]))
    gap = [row if row[0] < 4 else (row[0] + 30, *row[1:]) for row in stream()]
    lost = [row for number, row in enumerate(stream()) if number % 100 not in (41, 42, 43)]
    iso = table(NAMES, lambda _, row: (when(row[0], "%Y-%m-%dT%H:%M:%S.%fZ"), *row[1:]))
    names = f"names={','.join(NAMES)}"
    return [
        one("logger", "above.csv", table(NAMES, lambda _, row: row, above=above), LABEL),
        one("logger, units below", "units_below.csv", units, LABEL, note="in m/s2 (converted from g)"),
        one("no header", "bare.csv", bare, LABEL, refused="?names="),
        one("no header", "bare_named.csv", bare, f"{LABEL}&{names}"),
        one("no header", "bare_misnamed.csv", bare, f"{LABEL}&names=a,b", refused="the file has 6 columns"),
        one("logger", "spaced.dat", spaced, LABEL),
        one("clock times", "midnight.csv", clock, LABEL, note="in s, 50 Hz"),
        one("clock times", "iso.csv", iso, LABEL, note="in s, 50 Hz"),
        one("logger", "gap.csv", table(NAMES, lambda _, row: row, rows=gap), LABEL),
        one("logger", "lost_rows.csv", table(NAMES, lambda _, row: row, rows=lost),
            f"{LABEL}&gaps=interpolate:0.2", lost=-1, note="resampled to 50"),
        one("logger", "shuffled.csv", table(NAMES, lambda _, row: row, rows=stream()[::-1]), LABEL,
            refused="sort the rows by time"),
    ]  # fmt: skip


def frames() -> list[Case]:
    """What data frames leave: a column without a name, 1.0 for a class, rows without a label."""
    numbered = table(("", *NAMES), lambda n, row: (n, *row[:5], "1.0" if row[5] == "walk" else "0"))
    some = table(NAMES, lambda n, row: (*row[:5], row[5] if n >= EVERY else ""))
    single = table(NAMES, lambda _, row: row, rows=stream()[:EVERY])
    return [
        one("data frame", "numbered.csv", numbered, LABEL),
        one("data frame", "unlabelled.csv", some, LABEL, lost=EVERY, note="100 without a label"),
        one("data frame", "one_class.csv", single, f"{LABEL}&classes=sit,walk", lost=ROWS - EVERY),
        one("data frame", "unknown_class.csv", table(NAMES, lambda _, row: row), f"{LABEL}&classes=sit,run",
            refused="is 'walk', none of classes=sit, run"),
    ]  # fmt: skip


def folders() -> list[Case]:
    """A folder for each person, a file for each activity."""
    files = {}
    for who in ("ann", "ben"):
        for activity in ("walk", "sit"):
            rows = [row for row in stream() if row[4:] == (who, activity)]
            text = table(NAMES[:4], lambda _, row: row[:4], rows=rows)
            files[f"people/{who}/{activity}.csv"] = text.encode()
    sitting = [row for row in stream() if row[4:] == ("ben", "sit")]
    metres = table(NAMES[:4], lambda _, row: (row[0], *(round(G_MS2 * v, 6) for v in row[1:4])), rows=sitting)
    both = {"mixed/walk.csv": files["people/ann/walk.csv"], "mixed/sit.csv": metres.encode()}
    return [
        Case("folders", "people", files, "label=file&subject=path", subjects=("ann", "ben")),
        Case("folders", "mixed", both, "label=file", lost=ROWS // 2, note="ax, ay, az in m/s2 (converted from g)"),
    ]


def others() -> list[Case]:
    """What only looks like a table."""
    return [
        one("other files", "book.csv", b"PK\x03\x04" + bytes(60), LABEL, refused="a spreadsheet or a zip file"),
        one("other files", "rows.csv", json.dumps([{"ax": 1}]), LABEL, refused="JSON; export it as CSV"),
        one("other files", "page.csv", "<!doctype html><title>Sign in</title>\n", LABEL, refused="a web page"),
        one("other files", "empty.csv", "", LABEL, refused="it is empty"),
    ]


CASES = [*plain(), *spreadsheets(), *phones(), *loggers(), *frames(), *folders(), *others()]


def main() -> None:
    """Write them all."""
    for case in CASES:
        for name, content in case.files.items():
            (FILES / name).parent.mkdir(parents=True, exist_ok=True)
            (FILES / name).write_bytes(content)


if __name__ == "__main__":
    main()
