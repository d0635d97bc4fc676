"""Tables as loggers and spreadsheets write them, polluted as those of the Pollock benchmark are, drawn by a seed."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ODD_NUMBERS = (
    *("-0", "-0.0", "0", "00", "007", "+1.5", ".5", "-.5", "1.", "1e3", "1E-3", "1e+2", "1e39", "-3.5e38", "1e400"),
    *("1e-400", "4.9e-324", "2.2250738585072011e-308", "9007199254740993", "0.1000000000000000055511151231257827"),
    *("123456789012345678901234567890", "1_0", " 1.5", "1.5 ", "\t2", "−3.25", "0x10", "1,5", "1.234,5", "1,234.5"),
    *("inf", "-Infinity", "nan", "٣", "1 2", "[1]", "1]", "true", "1.5f", "--1", "- 1", "1e", "\x00", "\x0b1"),
    *("12:00:01", "2026-05-04", "1.2.3", "text", "1\x001", "é"),
)
NOTHING = ("", "NaN", "nan", "NA", "n/a", "null", "None", "-", "--", "?", "missing", "#DIV/0!", " ", "  NaN ")
LABELS = ("walk", "run", "stairs up", "sitting_down", "läuft", "a", "x" * 90)


@dataclass
class Drawn:
    """content: of the file. options: of csv:. kinds: of pollution."""

    content: bytes
    name: str
    options: dict[str, object]
    kinds: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        file = folder / self.name
        file.write_bytes(gzip.compress(self.content, 1, mtime=0) if self.name.endswith(".gz") else self.content)
        return file


def draw_file(seed: int) -> Drawn:
    """Draw a table; two in three are polluted."""
    rng = random.Random(seed)
    delimiter = rng.choice(",,,;;\t| ")
    comma = delimiter != "," and rng.random() < 0.4
    width, count = rng.randint(1, 6), rng.choice((3, 60, 150, 400))
    options: dict[str, object] = {"label": "activity", "window": 2, "split": "time"}
    header = [f"c{place}" for place in range(width)]
    number = _number_format(rng, comma)
    missing = rng.choice((0.004, 0.1)) if rng.random() < 0.3 else 0.0
    words = rng.sample(NOTHING, 2) if rng.random() < 0.6 else [""]
    times = rng.choice((None, _seconds, _millis, _iso, _clock, _dots))
    labels = rng.sample(LABELS, 2)
    holds = rng.choice((7, 11, 30))
    rows = []
    for row in range(count):
        cells = [rng.choice(words) if rng.random() < missing else number() for _ in range(width)]
        rows.append(cells)
        if times is not None:
            cells.insert(0, times(row).replace(".", "," if comma and times is _seconds else "."))
        cells.append(labels[row // holds % 2])
    if times is not None:
        header.insert(0, "timestamp_ms" if times is _millis else "time")
    header.append("activity")
    if rng.random() < 0.3:
        place = rng.randrange(len(header))
        for cells in (header, *rows):
            cells.insert(place, cells.pop())
    if missing or rng.random() < 0.4:
        options["missing"] = rng.choice(("refuse", "drop", "drop", "interpolate", "interpolate"))
    if times is not None and rng.random() < 0.3:
        options["rate"] = 25.0
    if rng.random() < 0.1:
        options |= {"label": "", "target": "activity" if rng.random() < 0.2 else header[-2], "columns": header[0]}
    kinds = rng.sample(sorted(POLLUTIONS), rng.choice((0, 1, 1, 2)))
    quoting = rng.choice(("none", "none", "texts", "all", "some"))
    quoted = [[_quote(rng, cell, quoting, delimiter) for cell in cells] for cells in (header, *rows)]
    lines = [delimiter.join(cells) for cells in quoted]
    for kind in kinds:
        lines = POLLUTIONS[kind](rng, lines, delimiter)
    newline = rng.choice(("\n", "\n", "\r\n", "\r"))
    text = newline.join(lines) + (newline if rng.random() < 0.8 else "")
    encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "cp1252", "utf-16"))
    content = text.encode(encoding, "replace")
    return Drawn(content, "t.csv.gz" if rng.random() < 0.1 else "t.csv", options, [*kinds, quoting, repr(delimiter)])


def _number_format(rng: random.Random, comma: bool) -> Callable[[], str]:
    form = rng.choice(("%.6f", "%r", "%.2e", "%d", "%5.1f", "odd"))

    def number() -> str:
        value = rng.gauss(0, 10) * 10 ** rng.choice((0, 0, 0, -9, 6))
        if form == "odd" and rng.random() < 0.001:
            return rng.choice(ODD_NUMBERS)
        text = (form if form != "odd" else "%.3f") % value
        return text.replace(".", ",") if comma else text

    return number


def _seconds(row: int) -> str:
    return f"{row * 0.02:.2f}"


def _millis(row: int) -> str:
    return str(1_700_000_000_000 + 20 * row + (row % 3))


def _iso(row: int) -> str:
    return datetime.fromtimestamp(1_700_000_000 + row * 0.02, UTC).isoformat()


def _clock(row: int) -> str:
    return f"23:59:{58 + row * 0.01:06.3f}" if row < 150 else f"00:00:{(row - 150) * 0.01:06.3f}"


def _dots(row: int) -> str:
    return datetime.fromtimestamp(1_700_000_000 + row * 0.02, UTC).strftime("%d.%m.%Y %H:%M:%S.%f")


def _quote(rng: random.Random, cell: str, quoting: str, delimiter: str) -> str:
    if quoting == "all" or (quoting == "some" and rng.random() < 0.05):
        return f'"{cell}"'
    if quoting == "texts" and any(letter.isalpha() for letter in cell):
        return f'"{cell}"'
    return cell


def _pollute_a_row(
    change: Callable[[random.Random, str, str], str],
) -> Callable[[random.Random, list[str], str], list[str]]:
    def pollute(rng: random.Random, lines: list[str], delimiter: str) -> list[str]:
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(1, len(lines))
            lines[at : at + 1] = change(rng, lines[at], delimiter).split("\0\0")
        return lines

    return pollute


def _swap_cell(rng: random.Random, line: str, delimiter: str, cell: str) -> str:
    cells = line.split(delimiter)
    cells[rng.randrange(len(cells))] = cell
    return delimiter.join(cells)


def _break_cell(rng: random.Random, line: str, delimiter: str, what: str) -> str:
    at = rng.randrange(len(line) + 1)
    return line[:at] + what + line[at:]


# Two NULs part lines.
POLLUTIONS: dict[str, Callable[[random.Random, list[str], str], list[str]]] = {
    "a row too short": _pollute_a_row(lambda rng, line, mark: line.rpartition(mark)[0]),
    "a row too long": _pollute_a_row(lambda rng, line, mark: f"{line}{mark}1"),
    "a delimiter at a row's end": _pollute_a_row(lambda rng, line, mark: line + mark),
    "a delimiter at each row's end": lambda rng, lines, mark: [line + mark for line in lines],
    "an empty line": _pollute_a_row(lambda rng, line, mark: f"{line}\0\0"),
    "a line of spaces": _pollute_a_row(lambda rng, line, mark: f"{line}\0\0  "),
    "a row of delimiters": _pollute_a_row(lambda rng, line, mark: f"{line}\0\0{mark * line.count(mark)}"),
    "a few delimiters": _pollute_a_row(lambda rng, line, mark: f"{line}\0\0{mark}"),
    "remarks above": lambda rng, lines, mark: ["# recorded by a phone", "Device: X", *lines],
    "a remark below": lambda rng, lines, mark: [*lines, "# end"],
    "a remark within": _pollute_a_row(lambda rng, line, mark: f"# paused\0\0{line}"),
    "units below the header": lambda rng, lines, mark: [
        lines[0],
        mark.join(["m/s2"] * len(lines[0].split(mark))),
        *lines[1:],
    ],
    "the header again": lambda rng, lines, mark: [*lines, *lines],
    "no header": lambda rng, lines, mark: lines[1:],
    "cut off": lambda rng, lines, mark: [*lines[:-1], lines[-1][: rng.randrange(len(lines[-1]) + 1)]],
    "a quote in a cell": _pollute_a_row(lambda rng, line, mark: _break_cell(rng, line, mark, '"')),
    "two quotes in a cell": _pollute_a_row(lambda rng, line, mark: _break_cell(rng, line, mark, '""')),
    "a quoted delimiter": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, f'"a{mark}b"')),
    "a quoted line end": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, '"a\0\0b"')),
    "quotes in quotes": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, '"a""b"')),
    "a quoted number": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, '"1.5"')),
    "a quoted nothing": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, '""')),
    "a space beside a quote": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, ' "1.5" ')),
    "an odd number": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, rng.choice(ODD_NUMBERS))),
    "nothing": _pollute_a_row(lambda rng, line, mark: _swap_cell(rng, line, mark, rng.choice(NOTHING))),
    "another delimiter": _pollute_a_row(lambda rng, line, mark: line.replace(mark, rng.choice(",;\t|"))),
    "a NUL": _pollute_a_row(lambda rng, line, mark: _break_cell(rng, line, mark, "\0")),
    "a return": _pollute_a_row(lambda rng, line, mark: _break_cell(rng, line, mark, "\r")),
    "a mark of byte order within": _pollute_a_row(lambda rng, line, mark: "\ufeff" + line),
    "bytes of no text": _pollute_a_row(lambda rng, line, mark: _break_cell(rng, line, mark, "\x85\u2028")),
    "spaces around cells": lambda rng, lines, mark: [lines[0], *(line.replace(mark, f"{mark} ") for line in lines[1:])],
}
