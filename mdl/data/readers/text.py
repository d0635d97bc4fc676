"""Numbers from text, fast, and with the line named when one is wrong."""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError


def parse_table(text: bytes, columns: int, where: str, first_line: int = 1) -> NDArray[np.float64]:
    """Parse whitespace-separated numbers as (rows, columns), float64.

    Raises DataError naming the line that holds something else, another count of values, or NaN.
    """
    with warnings.catch_warnings():
        # numpy says "could not be read to its end" as a warning today and as a ValueError in future versions.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text.decode("ascii"), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            raise _blame(text, columns, where, first_line) from None
    lines = text.count(b"\n") + (not text.endswith(b"\n") and bool(text.strip()))
    if values.size != lines * columns or not np.isfinite(values.sum()):
        raise _blame(text, columns, where, first_line)
    return values.reshape(-1, columns)


def _blame(text: bytes, columns: int, where: str, first_line: int) -> DataError:
    for number, line in enumerate(io.BytesIO(text), start=first_line):
        fields = line.split()
        for field in fields:
            try:
                good = bool(np.isfinite(float(field)))
            except ValueError:
                good = False
            if not good:
                return DataError(f"{where}, line {number}: {field.decode('latin-1')!r}; expected a finite number")
        if len(fields) != columns:
            return DataError(f"{where}, line {number}: {len(fields)} values; expected {columns}")
    return DataError(f"{where}: expected lines of {columns} numbers, without empty lines")
