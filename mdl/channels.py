"""Tells what a device's channels hold, and names a device with channels unlike all others'.

A channel without a known unit may be in another unit than elsewhere, or turned; only its values show that. Each device
reports mean, deviation and range of each channel to one significant digit. `unlike_channels` names a device where one
simple cause brings its values to those of all others: a factor between known units, another order of axes, another
sign. A merely different device has no such cause, for example one with a sitting person beside runners. Pure.

Quantities that channels measure, and their units.

mdl keeps one unit for each quantity: the SI unit, with the prefix that sensors use where one is usual (µT, hPa, mV). A
unit that is not in the table is not known, and nothing is converted to or from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mdl.bounds import first_few, printable
from mdl.errors import ConfigError

# Decades of values that a device can report: from 1e-9 (nanovolts in V) to 9e12 (milliseconds since 1970).
_LEAST, _DECADES = -9, 22
_MOST = 9 * _DECADES
_LEAST_VALUE = 10.0**_LEAST
# Added to both sides of a ratio: so small that a channel of zeros is no unit away from any other.
_NONE = 1e-60
# Channels that a report has room for, at 9 bytes each. A recording of more has several sensors of one kind.
MOST_TOLD = 32
# Windows that are examined, evenly spread: enough for one digit.
_MOST_WINDOWS = 4096
# Devices that are compared, the first by name: each comparison costs milliseconds.
_MOST_DEVICES = 64

# The code of one significant digit: 0, or sign * (1 + 9 * decade + digit - 1). It has no room for more.
Digit: TypeAlias = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
_Floats: TypeAlias = NDArray[np.float64]


class ChannelValues(msgspec.Struct, frozen=True, array_like=True):
    """One channel of a device's training windows, each number to one significant digit (`to_digit`).

    mean: over all samples.
    deviation: likewise.
    low: the smallest.
    high: the largest.
    """

    mean: Digit
    deviation: Digit
    low: Digit
    high: Digit


Told: TypeAlias = Annotated[tuple[ChannelValues, ...], Meta(max_length=MOST_TOLD)]


class Cause(NamedTuple):
    """A factor between two units. smaller, larger: the unit of the device with the smaller, or larger, values."""

    factor: float
    smaller: str
    larger: str


_CAUSES = (
    Cause(9.80665, "g", "m/s2"),
    Cause(180 / math.pi, "rad", "degrees"),
    Cause(1000.0, "a unit 1,000 times as large", "a unit 1,000 times as small"),
    Cause(9806.65, "g", "mm/s2"),
    Cause(1e6, "a unit 1e6 times as large", "a unit 1e6 times as small"),
)
# Values of people in the same activity are within a factor of 5 of one another, and one digit may be a third off.
_SCALED, _NEAR = 4.0, 2.2
# Distances summed over three axes, in deviations between means. Measured over people: docs/data-mismatch.md.
_TURNED, _SAME, _BETTER = 3.0, 1.8, 3.0
# The share of the other devices that must be alike.
_MANY = 0.8


# Stands in a line for the device's name: no channel's name contains it.
_DEVICE = "\0"


def to_digit(value: float) -> int:
    """Return the code of a value to one significant digit; 0 if it is below 5e-10 or not finite."""
    if not math.isfinite(value) or abs(value) < 0.5 * _LEAST_VALUE:
        return 0
    digit, _, decade = f"{abs(value):.0e}".partition("e")
    code = min(1 + 9 * (int(decade) - _LEAST) + int(digit) - 1, _MOST)
    return max(code, 1) if value > 0 else -max(code, 1)


def from_digit(code: int) -> float:
    """Return the value of a code of `to_digit`."""
    decade, digit = divmod(abs(code) - 1, 9)
    return math.copysign((digit + 1) * 10.0 ** (decade + _LEAST), code) if code else 0.0


def tell_channels(x: NDArray[Any]) -> tuple[ChannelValues, ...]:
    """Return the report on windows (n, channels, time), at most MOST_TOLD channels of them; () for images."""
    if x.ndim != 3 or not x.size:
        return ()
    some = np.asarray(x[:: math.ceil(len(x) / _MOST_WINDOWS), :MOST_TOLD], np.float64)
    axes = (0, 2)
    told = (some.mean(axes), some.std(axes), some.min(axes), some.max(axes))
    return tuple(ChannelValues(*map(to_digit, each)) for each in np.stack(told, axis=1).tolist())


def unlike_channels(told: Mapping[str, Sequence[ChannelValues]], names: Sequence[str] = ()) -> dict[str, str]:
    """Return, by device, a line for people on how its channels differ from all others'; {} for a single device.

    told: by device. A device is left out if it reports nothing, or another number of channels than most.
    names: names of the channels, as far as they are known.
    """
    counts = [len(each) for each in told.values() if each]
    count = max(sorted(set(counts)), key=counts.count, default=0)
    devices = sorted(device for device, each in told.items() if count and len(each) == count)[:_MOST_DEVICES]
    if len(devices) < 2:
        return {}
    channels = [names[place] if place < len(names) else f"channel {place + 1}" for place in range(count)]
    values = np.array(
        [[(from_digit(each.mean), from_digit(each.deviation)) for each in told[name]] for name in devices]
    )
    found: dict[str, str] = {}
    for place, device in enumerate(devices):
        others = np.delete(values, place, axis=0)
        what = _scaled(values[place], others, channels) or _turned(values[place], others, channels)
        if what:
            found[device] = printable(what.replace(_DEVICE, device))
    if len(devices) == 2 and len(found) == 2:  # each is unlike the other, and one line says it
        del found[max(found, key=lambda device: ("smaller" not in found[device], device))]
    return found


def _scaled(mine: _Floats, others: _Floats, channels: Sequence[str]) -> str:
    """Return a line on channels larger or smaller than all others' by a factor between units; "" for none."""
    size, sizes = np.hypot(mine[:, 0], mine[:, 1]), np.hypot(others[..., 0], others[..., 1])
    ratios = np.log(np.stack([(sizes + _NONE) / (size + _NONE), (others[..., 1] + _NONE) / (mine[:, 1] + _NONE)]))
    for cause, sign in itertools.product(_CAUSES, (1, -1)):
        times = sign * ratios
        is_beyond = (times > math.log(_SCALED)).all(axis=(0, 1))
        is_near = (abs(np.median(times, axis=1) - math.log(cause.factor)) < math.log(_NEAR)).all(axis=0)
        places = [int(place) for place in np.flatnonzero(is_beyond & is_near)]
        if len(places) >= min(2, len(channels)):
            which = first_few([channels[place] for place in places], 4)
            how, unit = ("smaller", cause.smaller) if sign > 0 else ("larger", cause.larger)
            times_told = f"{cause.factor:,.0f}" if cause.factor >= 100 else f"{cause.factor:.2g}"
            return f"{which} of device {_DEVICE}: {times_told} times {how} than all others': in {unit}?"
    return ""


def _turned(mine: _Floats, others: _Floats, channels: Sequence[str]) -> str:
    """Return a line on axes with another sign, or in another order, than all others'; "" for none."""
    told = []
    for start in range(0, len(channels), 3):
        axes = list(range(start, min(start + 3, len(channels))))
        theirs = others[:, axes]
        middle = np.median(theirs, axis=0)
        as_is, apart = _distance(mine[axes], middle), _distance(middle, theirs)
        if as_is < _TURNED or as_is < apart.max() or np.quantile(apart, _MANY) > _SAME:
            continue  # devices are carried in several ways, or this one is not further from the others than one of them
        best = min(_turns(len(axes)), key=lambda turn: float(_distance(_turn(mine[axes], turn), middle)))
        turned = _distance(_turn(mine[axes], best), middle)
        if turned <= _SAME and turned * _BETTER <= as_is:
            told.append(_tell_turn([channels[axis] for axis in axes], best))
    return "; ".join(told)


_Turn: TypeAlias = tuple[tuple[int, int], ...]


def _turns(count: int) -> Iterable[_Turn]:
    """Yield every order of so many axes with every choice of signs, except the identity."""
    for order in itertools.permutations(range(count)):
        for signs in itertools.product((1, -1), repeat=count):
            turn = tuple(zip(order, signs, strict=True))
            if turn != tuple((axis, 1) for axis in range(count)):
                yield turn


def _turn(axes: _Floats, turn: _Turn) -> _Floats:
    order, signs = (list(part) for part in zip(*turn, strict=True))
    turned: _Floats = axes[order] * np.array([[sign, 1] for sign in signs])
    return turned


def _distance(mine: _Floats, others: _Floats) -> _Floats:
    """Return each other device's distance of axes from mine: means in deviations, deviations in factors of e."""
    spread = np.sqrt((mine[:, 1] ** 2 + others[..., 1] ** 2) / 2) + _LEAST_VALUE
    factors = abs(np.log((mine[:, 1] + _LEAST_VALUE) / (others[..., 1] + _LEAST_VALUE)))
    apart = abs(mine[:, 0] - others[..., 0]) / spread + factors
    distance: _Floats = apart.sum(axis=-1)
    return distance


def _tell_turn(axes: Sequence[str], turn: _Turn) -> str:
    moved = [axes[place] for place, (axis, _) in enumerate(turn) if axis != place]
    turned = [axes[place] for place, (_, sign) in enumerate(turn) if sign < 0]
    parts = [f"{', '.join(moved)} in another order"] * bool(moved)
    parts += [f"{', '.join(turned)} with another sign"] * bool(turned)
    return f"device {_DEVICE} has {' and '.join(parts)}, by its values, than all others"


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
