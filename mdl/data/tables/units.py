"""Units: of acceleration, said in the header or seen in how long the vector is while the earth pulls; and of numbers.

One phone that logs g and one that logs m/s² differ by a factor of 9.81, and nothing else about the data looks wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdl.data.tables.rows import Floats64
from mdl.errors import DataError

G_MS2 = 9.80665
# A device at rest measures 1 g. In motion the middle of many is still near it; a sensor without gravity shows none.
_IN_G, _IN_MS2 = (0.85, 1.2), (8.3, 11.8)
_AXIS = re.compile(r"(?:.*acc.*|a)[^a-z]*([xyz])|(?:x)?([xyz])[^a-z]*acc.*", re.IGNORECASE)


def acceleration_columns(names: Sequence[str]) -> list[int]:
    """Positions of the x, y and z of an accelerometer among the channels' names; empty unless there is one of each."""
    plain = [re.sub(r"\s*[\[(].*", "", name).strip() for name in names]
    found = [(place, _AXIS.fullmatch(name)) for place, name in enumerate(plain)]
    axes = {(match[1] or match[2]).lower(): place for place, match in found if match}
    count = sum(1 for _, match in found if match)
    return [axes[axis] for axis in "xyz"] if count == 3 and len(axes) == 3 else []


def find_acceleration_unit(values: Floats64, units: Sequence[str]) -> str | None:
    """ "g" or "m/s2". values: (rows, 3). units: as the header says them. None if neither tells."""
    said = {unit.casefold().replace("²", "2").replace("^", "").replace(" ", "") for unit in units if unit}
    if said and said <= {"g"}:
        return "g"
    if said and said <= {"m/s2", "m/s/s", "ms-2", "m*s-2"}:
        return "m/s2"
    lengths = np.sqrt(np.square(values[np.isfinite(values).all(axis=1)]).sum(axis=1))
    if not len(lengths):
        return None
    middle = float(np.median(lengths))
    if _IN_G[0] <= middle <= _IN_G[1]:
        return "g"
    return "m/s2" if _IN_MS2[0] <= middle <= _IN_MS2[1] else None


def factor(found: str, wanted: str) -> float:
    """What values in `found` are multiplied by to be in `wanted`."""
    if found == wanted:
        return 1.0
    return 1 / G_MS2 if wanted == "g" else G_MS2


def agree_on_units(found: Sequence[tuple[Path, tuple[str, ...]]]) -> tuple[str, ...]:
    """Of the numbers to be learned, by file, as their headers say; empty where none says any. Raises DataError."""
    first, units = found[0]
    for file, other in found:
        if other != units:
            here, there = (", ".join(filter(None, each)) or "no unit" for each in (other, units))
            raise DataError(f"{file}: the target is in {here}, but {first} has {there}; bring them to one unit")
    return units if any(units) else ()
