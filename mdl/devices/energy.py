"""Power of a device at work, in watts, on top of its owner's use."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mdl.bounds import MAX_JOULES, printable
from mdl.errors import DataError
from mdl.reading import read_system_line

logger = logging.getLogger(__name__)

# Given: power of a device while it sends, receives and merges (on top of its owner's use).
SEND_W, RECEIVE_W, MERGE_W = 1.0, 0.8, 1.5
# Assumed: the power of a phone's processor at work, on top of the rest. A laptop's takes several times as much.
TRAINING_W = 1.5


BATTERY, BOARD, PROCESSOR, MODELLED, MIXED = "battery", "board", "processor", "modelled", "mixed"
# Source of a figure -> how it was obtained, and what it counts.
HOW = {
    BATTERY: "measured by its battery, whole device",
    BOARD: "measured by its board, whole device without USB",
    PROCESSOR: "measured by its processor, all programs",
    MODELLED: "modelled, this process",
    MIXED: "partly measured, partly modelled",
}
# No computer that trains draws more: a server with eight graphics cards has supplies of 10 kW.
MOST_W = 10_000.0
# Between two readings of power that are further apart anything may have happened.
_LONGEST_GAP_S = 30.0
# A counter may tell at once what it gathered before a reading.
_SLACK_S = 1.0
# Batteries and processors of one device: no device has as many.
_MOST_ENTRIES = 64
_MICRO = 1e-6
_MICROJOULES_A_MICROWATT_HOUR = 3600

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_PACKAGE = re.compile(r"intel-rapl:[0-9]{1,4}")
_RAIL = re.compile(r"\s*(\w{1,32})_([AV]) (?:current|volt)\([0-9]{1,4}\)=(\S{1,32})\s*")
_VALUE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,12})?)[AV]")


@dataclass(frozen=True)
class Counter:
    """A counter of energy. range_micro_j: it begins anew at 0 above this; 0: it never does."""

    name: str
    micro_j: int
    range_micro_j: int = 0


@dataclass(frozen=True)
class MeterReading:
    """One reading of a meter at one moment: power in watts, or counters; neither: it has not answered yet."""

    source: str
    at_s: float
    watts: float | None = None
    counters: tuple[Counter, ...] = ()


class EnergyCount:
    """Adds up the joules since its first count, and those of the last round.

    root: of sysfs. board: returns the last reading of the board; None: it has no meter. It may raise DataError.
    """

    def __init__(self, root: Path, board: Callable[[], MeterReading | None] = lambda: None) -> None:
        self._root, self._board = root, board
        self._last: MeterReading | None = None
        # Processor time that is accounted for; None before the first count.
        self._processor_s: float | None = None
        self._waits = False
        self._round_began_j = 0.0
        self._sources: set[str] = set()
        self._told_of_nonsense = False
        self.joules = 0.0
        self.round_joules: float | None = None

    @property
    def source(self) -> str:
        """The key in HOW for these joules."""
        return MODELLED if not self._sources else MIXED if len(self._sources) > 1 else next(iter(self._sources))

    def tell(self) -> str:
        """Return the joules in words, with how they were obtained."""
        return f"{self.joules:.1f} J ({HOW[self.source]})"

    def count(self, now: float, processor_s: float) -> None:
        """Add the energy since the last count. processor_s: processor time that this process has taken so far."""
        reading, last = self._read(now), self._last
        if reading and reading.watts is None and not reading.counters:
            # The board is asked for the first time; without an answer, this time is modelled.
            self._processor_s = processor_s if self._processor_s is None else self._processor_s
            self._waits = True
            return
        if reading and last and (reading.source, reading.at_s) == (last.source, last.at_s):
            return  # no news from the board
        joules = energy_between(last, reading) if last and reading else None
        if joules is not None and reading:
            self._add(joules, reading.source)
        elif self._processor_s is not None and not (reading and self._waits):
            self._add(TRAINING_W * max(0.0, processor_s - self._processor_s), MODELLED)
        self._last, self._processor_s, self._waits = reading, processor_s, False

    def close_round(self, now: float, processor_s: float) -> None:
        """Count, and begin the next round: `round_joules` is the energy of the one that ends."""
        self.count(now, processor_s)
        self.round_joules = self.joules - self._round_began_j
        self._round_began_j = self.joules

    def _add(self, joules: float, source: str) -> None:
        self.joules = min(self.joules + joules, MAX_JOULES)
        if joules:
            self._sources.add(source)

    def _read(self, now: float) -> MeterReading | None:
        """Return the reading of the meter that sees most of the device; None without a meter that tells."""
        meters: tuple[Callable[[], MeterReading | None], ...]
        meters = (lambda: read_battery(self._root, now), self._board, lambda: read_processor(self._root, now))
        for read in meters:
            try:
                found = read()
            except DataError as error:
                if not self._told_of_nonsense:
                    self._told_of_nonsense = True
                    logger.warning("a meter of energy tells nonsense and does not count: %s", error)
                continue
            if found and (found.watts is None or now - found.at_s <= _LONGEST_GAP_S):
                return found
        return None


def energy_between(before: MeterReading, after: MeterReading) -> float | None:
    """Return the joules between two readings: the trapezoid of power, or the steps of counters.

    None if they do not tell: of two meters, too far apart, or more than any device takes.
    """
    gap_s = after.at_s - before.at_s
    if before.source != after.source or gap_s < 0.0:
        return None
    if before.watts is not None and after.watts is not None:
        return 0.5 * (before.watts + after.watts) * gap_s if gap_s <= _LONGEST_GAP_S else None
    if not after.counters or [each.name for each in before.counters] != [each.name for each in after.counters]:
        return None
    steps = [_step(*pair) for pair in zip(before.counters, after.counters, strict=True)]
    joules = sum(steps) * _MICRO
    return joules if min(steps) >= 0 and joules <= MOST_W * (gap_s + _SLACK_S) else None


def _step(before: Counter, after: Counter) -> int:
    step = after.micro_j - before.micro_j
    return step + after.range_micro_j if step < 0 else step


def read_battery(root: Path, now: float) -> MeterReading | None:
    """Read the batteries in /sys/class/power_supply while they alone feed the device; None if they do not.

    power_now (µW), or current_now (µA) times voltage_now (µV), else the steps of energy_now (µWh). Drivers differ in
    the sign of a current. Raises DataError for content that is no number, and for more than any device takes.
    """
    supplies = [path for path in _list(root / "class/power_supply") if read_system_line(path / "scope") != "Device"]
    batteries = [path for path in supplies if read_system_line(path / "type") == "Battery"]
    if any(read_system_line(path / "online") == "1" for path in supplies if path not in batteries):
        return None
    states = {path: read_system_line(path / "status") for path in batteries}
    draining = [path for path in batteries if states[path] == "Discharging"]
    if not draining or "Charging" in states.values():
        return None
    powers = [_battery_w(path) for path in draining]
    if all(powers):
        watts = sum(power or 0.0 for power in powers)
        if watts > MOST_W:
            raise DataError(f"{draining[0]}: {watts:g} W; expected at most {MOST_W:g} W")
        return MeterReading(BATTERY, now, watts)
    charges = [_micro(path / "energy_now") for path in draining]
    if None in charges:
        return None
    left = zip(draining, charges, strict=True)
    counters = tuple(Counter(path.name, -_MICROJOULES_A_MICROWATT_HOUR * (charge or 0)) for path, charge in left)
    return MeterReading(BATTERY, now, counters=counters)


def _battery_w(path: Path) -> float | None:
    """Return a battery's power in watts; None, or 0 by a driver that does not measure it, if it does not tell."""
    if (power := _micro(path / "power_now")) is not None:
        return abs(power) * _MICRO
    current, voltage = _micro(path / "current_now"), _micro(path / "voltage_now")
    return None if current is None or voltage is None else abs(current) * _MICRO * abs(voltage) * _MICRO


def read_processor(root: Path, now: float) -> MeterReading | None:
    """Read the energy counters of all processor packages (RAPL); None without any, or without permission.

    Since Linux 5.10 only root may read them. Raises DataError for content that is no such counter.
    """
    counters = []
    for path in _list(root / "class/powercap"):
        if not _PACKAGE.fullmatch(path.name) or not read_system_line(path / "name").startswith("package-"):
            continue
        micro_j, range_micro_j = _micro(path / "energy_uj"), _micro(path / "max_energy_range_uj")
        if not micro_j or not range_micro_j:
            return None  # not readable; a virtual machine's counter stands at 0
        if not 0 < micro_j <= range_micro_j:
            raise DataError(f"{path}: energy {micro_j} µJ; expected up to {range_micro_j}")
        counters.append(Counter(path.name, micro_j, range_micro_j))
    return MeterReading(PROCESSOR, now, counters=tuple(counters)) if counters else None


def parse_rails(text: str) -> float | None:
    """Return the watts of all rails in the output of `vcgencmd pmic_read_adc`; None if it names no rail.

    Each rail has a line of its current ("VDD_CORE_A current(7)=1.08053000A") and one of its voltage
    ("VDD_CORE_V volt(15)=0.72178200V"), in any order, with numbers of their own. One with a voltage alone, such as the
    input, does not count. Raises DataError for values that are no power of a small board.
    """
    found: dict[str, dict[str, str]] = {"A": {}, "V": {}}
    for line in text.splitlines():
        if match := _RAIL.fullmatch(line):
            found[match[2]][match[1]] = match[3]
    rails = sorted(found["A"].keys() & found["V"].keys())
    watts = sum(_value(found["A"][rail]) * _value(found["V"][rail]) for rail in rails)
    if watts > MOST_W or (rails and not watts):
        raise DataError(f"vcgencmd pmic_read_adc: {watts:g} W; expected above 0 and at most {MOST_W:g} W")
    return watts if rails else None


def _value(text: str) -> float:
    if not (match := _VALUE.fullmatch(text)):
        raise DataError(f"vcgencmd pmic_read_adc: {printable(text)!r} is no current or voltage, like 0.7500A")
    return float(match[1])


def _list(folder: Path) -> list[Path]:
    try:
        return sorted(islice(folder.iterdir(), _MOST_ENTRIES))
    except OSError:
        return []


def _micro(path: Path) -> int | None:
    """Return the whole number in a file; None without a file. Raises DataError for anything else."""
    text = read_system_line(path)
    if not text:
        return None
    if not _WHOLE.fullmatch(text):
        raise DataError(f"{path}: {printable(text, 60)!r} is no whole number")
    return int(text)
