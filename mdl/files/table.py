"""Figures as CSV: one head, one line per row, for spreadsheets and plotting programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from mdl.writing import write_bytes


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
