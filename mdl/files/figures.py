"""The figures of a run: the rounds that nodes have written, one JSON line each (metrics.jsonl), and tables as CSV.

A table has one head and one line per row, for spreadsheets and plotting programs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from mdl.protocol.status_messages import RoundSummary
from mdl.reading import decode_json, open_regular
from mdl.writing import write_bytes


def read_run(out: Path) -> list[RoundSummary]:
    """Return the rounds of all nodes, each once: every device that was in the mesh then has a line for it."""
    rounds = {summary.round: summary for path in sorted(out.glob("*/metrics.jsonl")) for summary in read_rounds(path)}
    return [rounds[number] for number in sorted(rounds)]


def read_rounds(path: Path) -> list[RoundSummary]:
    """Return the completely written rounds; [] if there is no such file. Raises DataError for a malformed line."""
    if not path.exists():
        return []
    with open_regular(path) as file:
        lines = file.read().split(b"\n")[:-1]  # the last piece is empty, or not written to its end
    return [decode_json(line, RoundSummary, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


# Rounds that a view keeps: more than fit on any screen.
ROUNDS_KEPT = 500


def write_table(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV in UTF-8, with newline line ends. None is an empty cell.

    The first row gives the columns, which all rows must have. Raises MdlError if the disk refuses.
    """
    told = list(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(told[0]) if told else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    write_bytes(path, text.getvalue().encode())
