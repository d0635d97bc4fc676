"""Several labels of a row: columns of 0 and 1, or one column with their names in its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdl.data.spec import describe_choices
from mdl.data.tables.dialect import is_nothing
from mdl.data.tables.rows import Floats64
from mdl.errors import DataError
from mdl.reading import shorten

_FLAGS = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def read_flags(cells: Sequence[str], file: Path, first: int, column: str) -> Floats64:
    """Return float64, 1 if the label holds, NaN for an empty cell. Raises DataError naming the row and the column."""
    return np.array([_read_flag(cell, file, first + row, column) for row, cell in enumerate(cells)])


def part_labels(
    cells: Sequence[str], names: Sequence[str], separator: str, file: Path, first: int, column: str
) -> list[Floats64]:
    """Return for each name float64, 1 in rows with it in their cell, 0 for "none" or "-", NaN for an empty cell.

    Raises DataError naming the row of a label that is none of `names`.
    """
    places = {name.casefold(): place for place, name in enumerate(names)}
    known: dict[str, Floats64] = {}
    for row, cell in enumerate(cells):
        if cell not in known:
            known[cell] = _part(cell, places, names, separator, f"{file}: data row {first + row}: column {column!r}")
    return list(np.stack([known[cell] for cell in cells], axis=1))


def _read_flag(cell: str, file: Path, row: int, column: str) -> float:
    value = np.nan if is_nothing(cell) else _FLAGS.get(cell.strip().casefold())
    if value is None:
        told = shorten(repr(cell.strip()))
        raise DataError(
            f"{file}: data row {row}: column {column!r} is {told}; expected 0 or 1 (?target= takes numbers)"
        )
    return value


def _part(cell: str, places: dict[str, int], names: Sequence[str], separator: str, where: str) -> Floats64:
    if not cell.strip():
        return np.full(len(names), np.nan)
    flags = np.zeros(len(names))
    for part in () if is_nothing(cell) else cell.split(separator):
        if not part.strip():
            continue
        if (place := places.get(part.strip().casefold())) is None:
            choices = describe_choices(part.strip()[:40], names)
            raise DataError(f"{where} has the label {shorten(repr(part.strip()))}, none of classes=; {choices}")
        flags[place] = 1.0
    return flags
