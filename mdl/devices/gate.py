"""Conditions under which a device trains by itself: its owner gives them (`--when`), its sensors check them. Pure.

    idle,charging,wifi,battery>50,hours=22-6      all of them must hold
    charging,file:/run/sensors.json               the file's values count instead of the system's own sensors

A sensor that a device does not have is None in a `SensorReading`, and `ASSUMED` says what counts then. A sensor that
exists but does not answer forbids training under its condition, since its value is unknown.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mdl.bounds import Percent
from mdl.errors import ConfigError, did_you_mean

GRAMMAR = "idle, charging, wifi, battery>N, hours=A-B and file:PATH, with commas between them"
# The value that counts where a device has no such sensor.
ASSUMED = {
    "idle": "it counts as idle",
    "charging": "it counts as charging",
    "wifi": "it counts as on Wi-Fi",
    "battery": "it counts as full",
}
_DAY = 24 * 60
_EXAMPLE = {"battery": "battery>50", "hours": "hours=22-6", "file": "file:/run/sensors.json"}
_WORDS = ("idle", "charging", "wifi", "battery", "hours", "file")


class SensorReading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sensors' values at one moment; None: the device has no such sensor.

    idle: nobody uses it. wifi: on a network that costs nothing. failed: why an existing sensor did not answer, by the
    names in ASSUMED.
    """

    idle: bool | None = None
    charging: bool | None = None
    battery_percent: Percent | None = None
    wifi: bool | None = None
    failed: dict[str, Annotated[str, Meta(max_length=200)]] = {}


class Hours(msgspec.Struct, frozen=True):
    """From one minute of the day to another, the second excluded; over midnight if that is the earlier one."""

    start: int
    end: int

    def holds(self, minute: float) -> bool:
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return "-".join(f"{minute // 60}:{minute % 60:02}" for minute in (self.start, self.end))


class PauseConditions(msgspec.Struct, frozen=True):
    """Conditions that must hold while a device trains.

    file: a script's file with a `SensorReading`, "" for none. floor_percent: least charge of a battery that nothing
    charges (Eq. 4 of MDLdroid has it as a constraint); 0: none. Without a known battery, there is no floor.
    """

    idle: bool = False
    charging: bool = False
    wifi: bool = False
    battery_above: float | None = None
    hours: Hours | None = None
    file: str = ""
    floor_percent: float = 0.0

    def asks(self) -> frozenset[str]:
        """Return the sensors to read, by the names in ASSUMED: those of conditions, and those of the floor."""
        return self.wants() | ({"charging", "battery"} if self.floor_percent else set())

    def wants(self) -> frozenset[str]:
        """Return the sensors that any condition depends on, by the names in ASSUMED."""
        asked = {"idle": self.idle, "charging": self.charging, "wifi": self.wifi}
        asked["battery"] = self.battery_above is not None
        return frozenset(name for name, is_asked in asked.items() if is_asked)

    def forbids(self, reading: SensorReading, minute: float) -> str:
        """Return the failing conditions in words; "" if the device may train. minute: of the local day, 0..1440."""
        told = [f"{name} is not known: {why}" for name, why in reading.failed.items() if name in self.wants()]
        if self.idle and reading.idle is False:
            told.append("in use")
        if power := self._power(reading):
            told.append(power)
        if self.wifi and reading.wifi is False:
            told.append("not on Wi-Fi")
        if self.hours and not self.hours.holds(minute):
            told.append(f"outside {self.hours}")
        return ", ".join(told)

    def _power(self, reading: SensorReading) -> str:
        level, limit = reading.battery_percent, self.battery_above
        is_low = limit is not None and level is not None and level <= limit
        compared = f"{level:g} % {'<' if level != limit else 'is not above'} {limit:g} %" if is_low else ""
        if self.charging and reading.charging is False:
            return f"on battery ({compared or f'{level:g} %'})" if level is not None else "on battery"
        if not is_low and not reading.charging and level is not None and level < self.floor_percent:
            return f"on battery ({level:g} % < {self.floor_percent:g} %)"
        return f"{'charging' if reading.charging else 'on battery'} ({compared})" if is_low else ""

    def lacks(self, reading: SensorReading) -> list[str]:
        """Return a line for each missing sensor that a condition depends on: the value that counts instead."""
        values: dict[str, object] = {"idle": reading.idle, "charging": reading.charging, "wifi": reading.wifi}
        values["battery"] = reading.battery_percent
        missing = (name for name, value in values.items() if value is None and name not in reading.failed)
        return [f"nothing here tells {_TELLS[name]}: {ASSUMED[name]}" for name in missing if name in self.wants()]


_TELLS = {
    "idle": "whether somebody uses this device",
    "charging": "of a battery",
    "wifi": "of a network",
    "battery": "how full a battery is",
}


def parse_when(text: str, where: str = "--when") -> PauseConditions:
    """Parse the conditions of a `--when`. Raises ConfigError in one line: the wrong part, and what would be valid."""
    found: dict[str, Any] = {}
    for part in (piece.strip() for piece in text.split(",")):
        field, value = _parse_part(part, where)
        if field in found:
            raise ConfigError(f"{where}: {part[:60]!r}: {field.partition('_')[0]} is given twice")
        found[field] = value
    return PauseConditions(**found)


def _parse_part(part: str, where: str) -> tuple[str, object]:
    """Return the field of a Gate that a part sets, and its value."""
    if part in ("idle", "charging", "wifi"):
        return part, True
    if part.startswith("file:") and part != "file:":
        return "file", part.removeprefix("file:")
    if part.startswith("battery>"):
        return "battery_above", _percent(part, where)
    if part.startswith("hours="):
        return "hours", _hours(part, where)
    word = "".join(letter for letter in part if letter.isalpha())
    if word in _EXAMPLE:
        raise ConfigError(f"{where}: {part[:60]!r} is no condition: write it like {_EXAMPLE[word]}")
    hint = did_you_mean(word, _WORDS)
    raise ConfigError(f"{where}: {part[:60]!r} is no condition{hint}; expected {GRAMMAR}")


def _percent(part: str, where: str) -> float:
    text = part.removeprefix("battery>").strip().removesuffix("%").strip()
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise ConfigError(f"{where}: {part[:60]!r}: expected a number of percent from 0 to 99, like battery>50")
    return value


def _hours(part: str, where: str) -> Hours:
    start, dash, end = part.removeprefix("hours=").partition("-")
    minutes = [_minute(clock) for clock in (start, end)]
    if not dash or None in minutes:
        raise ConfigError(f"{where}: {part[:60]!r}: expected two times of day, like hours=22-6 or hours=22:30-6:15")
    first, last = (minute or 0 for minute in minutes)
    if first % _DAY == last % _DAY:
        raise ConfigError(f"{where}: {part!r}: it begins and ends at the same time: leave it out for all day")
    return Hours(first % _DAY, last % _DAY or _DAY)


def _minute(clock: str) -> int | None:
    """Return minutes since midnight of H or H:MM, 0 to 24 o'clock; None if it is no time of day."""
    hour, colon, minute = clock.strip().partition(":")
    if not (hour.isascii() and hour.isdigit() and len(hour) <= 2) or (colon and not _is_minute(minute)):
        return None
    total = int(hour) * 60 + (int(minute) if colon else 0)
    return total if total <= _DAY else None


def _is_minute(text: str) -> bool:
    return len(text) == 2 and text.isascii() and text.isdigit() and int(text) < 60
