"""Figures as CSV: one head, one row each, for spreadsheets and whatever else draws them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from mdl.writing import write_bytes


def write_table(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Columns are those of the first row, which all must have; None is an empty cell. UTF-8, lines end in a newline.

    Raises MdlError if the disk refuses.
    """
    told = list(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(told[0]) if told else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    write_bytes(path, text.getvalue().encode())
