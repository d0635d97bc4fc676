"""The unit of each channel of a table: given by the user or the header, or seen in the pull of the earth.

A phone that logs g and one that logs m/s² differ by a factor of 9.81, and nothing else about the data looks wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdl.data.quantities import conversion, find_unit, quantity_of, read_units
from mdl.data.tables.dialect import Dialect
from mdl.data.tables.rows import Floats64
from mdl.errors import DataError

# A device at rest measures 1 g. In motion the middle of many is still near it; a sensor without gravity shows none.
_IN_G, _IN_MS2 = (0.85, 1.2), (8.3, 11.8)
# Stands for a file's name if a model needs the units.
THE_MODEL = "the model"
_AXIS = re.compile(r"(?:.*acc.*|a)[^a-z]*([xyz])|(?:x)?([xyz])[^a-z]*acc.*", re.IGNORECASE)


def acceleration_columns(names: Sequence[str]) -> list[int]:
    """Return the places of an accelerometer's x, y and z among the channels' names; [] unless each is there once."""
    plain = [re.sub(r"\s*[\[(].*", "", name).strip() for name in names]
    found = [(place, _AXIS.fullmatch(name)) for place, name in enumerate(plain)]
    axes = {(match[1] or match[2]).lower(): place for place, match in found if match}
    count = sum(1 for _, match in found if match)
    return [axes[axis] for axis in "xyz"] if count == 3 and len(axes) == 3 else []


def find_units(
    file: Path, dialect: Dialect, channels: Sequence[tuple[str, int]], values: Floats64, said: Sequence[str]
) -> tuple[str, ...]:
    """Return the unit of each channel as a file has it; "" if it is not known.

    channels: (name, column). values: (rows, channels or more) of the file's beginning. said: the user's units, one for
    all channels or one for each; else empty. Raises ConfigError for another number of them, or an unknown one.
    """
    if said:
        return read_units(said, len(channels), file)
    units = [find_unit(dialect.units[place]) for _, place in channels]
    axes = acceleration_columns([name for name, _ in channels])
    axes = axes or acceleration_columns([dialect.header[place] for _, place in channels])
    if axes and not any(units[axis] for axis in axes):
        seen = _see_acceleration(values[:, axes])
        for axis in axes:
            units[axis] = seen
    return tuple(units)


def scale_to(
    file: Path, channels: Sequence[tuple[str, int]], found: Sequence[str], wanted: Sequence[str], like: str
) -> tuple[Floats64, Floats64]:
    """Return (factor, offset) of each channel, (channels,), which bring values in the units `found` to those `wanted`.

    like: the source of `wanted`: the first file of a set, or THE_MODEL. A model's empty unit is unknown: such a channel
    stays as it is. Raises DataError that names both sides if a channel measures another quantity.
    """
    pairs = []
    for (name, _), here, there in zip(channels, found, wanted, strict=True):
        pair = (1.0, 0.0) if like == THE_MODEL and not there else conversion(here, there)
        if pair is None:
            told = f"is in {here} ({quantity_of(here)})" if here else "has no unit"
            other = f"{like} has it in {there} ({quantity_of(there)})" if there else f"{like} has none"
            hint = f"?units={there}, if that is what it is" if there else f"?units={here} says that all are in it"
            raise DataError(f"{file}: channel {name!r} {told}, but {other}; {hint}")
        pairs.append(pair)
    factor, offset = np.array(pairs, np.float64).T
    return factor, offset


def _see_acceleration(values: Floats64) -> str:
    """Return "g", "m/s2", or "" if the lengths of the vectors, values (rows, 3), tell neither."""
    lengths = np.sqrt(np.square(values[np.isfinite(values).all(axis=1)]).sum(axis=1))
    if not len(lengths):
        return ""
    middle = float(np.median(lengths))
    if _IN_G[0] <= middle <= _IN_G[1]:
        return "g"
    return "m/s2" if _IN_MS2[0] <= middle <= _IN_MS2[1] else ""


def agree_on_units(found: Sequence[tuple[Path, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return the units of the numbers to learn, by the files' headers; () if none has any. Raises DataError."""
    first, units = found[0]
    for file, other in found:
        if other != units:
            here, there = (", ".join(filter(None, each)) or "no unit" for each in (other, units))
            raise DataError(f"{file}: the target is in {here}, but {first} has {there}; bring them to one unit")
    return units if any(units) else ()
