"""Quantities that channels measure, and their units.

mdl keeps one unit for each quantity: the SI unit, with the prefix that sensors use where one is usual (µT, hPa, mV). A
unit that is not in the table is not known, and nothing is converted to or from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdl.errors import ConfigError

G_MS2 = 9.80665


@dataclass(frozen=True)
class Quantity:
    """unit: the one that mdl keeps. others: of each other unit (factor, offset): kept = factor * value + offset.

    spellings: other forms of a unit, beyond those that `find_unit` evens out.
    """

    name: str
    unit: str
    others: Mapping[str, tuple[float, float]]
    spellings: Mapping[str, str]


QUANTITIES = (
    Quantity(
        "acceleration",
        "m/s2",
        {"g": (G_MS2, 0.0), "mg": (G_MS2 / 1000, 0.0), "g/64": (G_MS2 / 64, 0.0), "cm/s2": (0.01, 0.0)},
        {"m/s/s": "m/s2", "ms-2": "m/s2", "m/sec2": "m/s2", "m/ss": "m/s2", "gs": "g"},
    ),
    Quantity(
        "angular rate",
        "rad/s",
        {"deg/s": (math.pi / 180, 0.0), "mdeg/s": (math.pi / 180_000, 0.0), "rpm": (math.pi / 30, 0.0)},
        {
            **{
                "dps": "deg/s",
                "mdps": "mdeg/s",
                "d/s": "deg/s",
                "degs-1": "deg/s",
                "deg/sec": "deg/s",
                "degrees/s": "deg/s",
            },
            **{"degree/s": "deg/s", "degrees/sec": "deg/s", "rads-1": "rad/s", "rad/sec": "rad/s", "radian/s": "rad/s"},
            "radians/s": "rad/s",
        },
    ),
    Quantity(
        "magnetic field",
        "uT",
        {"T": (1e6, 0.0), "mT": (1e3, 0.0), "nT": (1e-3, 0.0), "gauss": (100.0, 0.0), "mgauss": (0.1, 0.0)},
        {"tesla": "T", "microtesla": "uT"},
    ),
    Quantity(
        "temperature",
        "degC",
        {"K": (1.0, -273.15), "degF": (5 / 9, -160 / 9)},
        {"c": "degC", "celsius": "degC", "kelvin": "K", "f": "degF", "fahrenheit": "degF"},
    ),
    Quantity(
        "pressure",
        "hPa",
        {"Pa": (0.01, 0.0), "kPa": (10.0, 0.0), "bar": (1000.0, 0.0), "mmHg": (1.333224, 0.0), "inHg": (33.86389, 0.0)},
        {"mbar": "hPa", "millibar": "hPa"},
    ),
    Quantity(
        "voltage",
        "mV",
        {"V": (1000.0, 0.0), "uV": (1e-3, 0.0), "nV": (1e-6, 0.0)},
        {"volt": "V", "volts": "V", "millivolt": "mV", "microvolt": "uV"},
    ),
    Quantity(
        "angle",
        "rad",
        {"deg": (math.pi / 180, 0.0)},
        {"degree": "deg", "degrees": "deg", "radian": "rad", "radians": "rad"},
    ),
)
# By unit in mdl's spelling. No unit belongs to two quantities.
_QUANTITY = {unit: each for each in QUANTITIES for unit in (each.unit, *each.others)}
# By spelling, evened out: first mdl's own, then any case.
_SPELLED = {
    **{unit.casefold(): unit for unit in _QUANTITY},
    **{spelling: unit for each in QUANTITIES for spelling, unit in each.spellings.items()},
}
_EVEN = str.maketrans(
    {"²": "2", "^": "", "*": "", "·": "", "⋅": "", " ": "", "(": "", ")": "", "[": "", "]": "", "µ": "u", "μ": "u"}
)
_LONGEST = 32


def find_unit(text: str) -> str:
    """Return the unit of a header's spelling, as mdl writes it ("m/s^2" -> "m/s2"); empty if it is not known."""
    if len(text) > _LONGEST:
        return ""
    even = text.translate(_EVEN).replace("−", "-").replace("°", "deg")
    # Case tells a millitesla from a megatesla, but hardly any file has the latter.
    return even if even in _QUANTITY else _SPELLED.get(even.casefold(), "")


def quantity_of(unit: str) -> str:
    """Return the name of the quantity that a unit of `find_unit` measures; empty for the empty unit."""
    return _QUANTITY[unit].name if unit else ""


def kept_unit(unit: str) -> str:
    """Return the unit that mdl brings values in `unit` to; empty for the empty unit."""
    return _QUANTITY[unit].unit if unit else ""


def conversion(here: str, there: str) -> tuple[float, float] | None:
    """Return (factor, offset) with there = factor * here + offset; None if they measure different things.

    here, there: units of `find_unit`. The empty unit converts to itself alone.
    """
    if here == there:
        return 1.0, 0.0
    if not here or not there or _QUANTITY[here] is not _QUANTITY[there]:
        return None
    quantity = _QUANTITY[here]
    (factor, offset), (back, shift) = (quantity.others.get(unit, (1.0, 0.0)) for unit in (here, there))
    return factor / back, (offset - shift) / back


def convert_channels(x: NDArray[np.float32], here: Sequence[str], there: Sequence[str]) -> NDArray[np.float32] | None:
    """Return windows (n, channels, time) in other units, the same array if nothing changes; None if impossible.

    here, there: a unit for each channel; () if none is known.
    """
    if tuple(here) == tuple(there):
        return x
    if len(here) != len(there):
        return None
    pairs = [conversion(one, other) for one, other in zip(here, there, strict=True)]
    if None in pairs:
        return None
    factor, offset = (part.reshape(-1, *(1,) * (x.ndim - 2)) for part in np.array(pairs, np.float64).T)
    return np.asarray(x * factor + offset, np.float32)


def read_units(said: Sequence[str], channels: int, where: object) -> tuple[str, ...]:
    """Return the unit of each channel from a user or a file, "" for "-"; () if none is given.

    said: one for all channels, or one for each. Raises ConfigError for another number, or a unit that is not known.
    """
    if len(said) not in (0, 1, channels):
        raise ConfigError(f"{where}: units= names {len(said)} units; expected 1, or {channels} for the channels")
    units = tuple(find_unit(each) for each in said)
    for unit, each in zip(units, said, strict=True):
        if not unit and each != "-":
            raise ConfigError(
                f"{where}: units= has {each[:40]!r}, which is not known; expected m/s2, g, deg/s, ... or -"
            )
    return units * channels if len(units) == 1 else units


def describe_units(
    channels: Sequence[str], units: Sequence[str], written: Callable[[int], Iterable[str]] = lambda place: ()
) -> str:
    """Return "ax, ay, az in m/s2; temperature in degC": neighbours of one unit together; empty if no unit is known.

    written: returns the other units that values of a channel's place were written in, for the text.
    """
    told = []
    runs = itertools.groupby(range(len(units)), lambda place: (units[place], sorted(set(written(place)))))
    for (unit, others), run in runs:
        if unit:
            names = ", ".join(channels[place] for place in run)
            told.append(f"{names} in {unit}" + (f" (converted from {' and '.join(others)})" if others else ""))
    return "; ".join(told)
