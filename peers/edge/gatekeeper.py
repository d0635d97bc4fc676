"""Keeps a device to its owner's conditions (`--when`) and its battery to a floor (`busy.battery_percent`).

A gatekeeper looks at the sensors every few seconds, and holds training up.

Training asks `hold` before each batch and waits there while the device may not train. So it stops within one batch of a
look and goes on where it was. A caller that must not wait reads `forbidden_by`. A thread of its own looks, since a
sensor may take seconds to answer.

`Sensors` reads use, power and network of this device (`mdl/devices/gate.py`). Battery: Termux if its command is there,
else sysfs, else psutil. Use: logind, else the terminals. Network: the default route's interface in sysfs, in Termux its
own command. A file that a script writes goes before all of them. Commands may take some seconds.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

from mdl.bounds import printable
from mdl.config import Config
from mdl.devices.gate import PauseConditions, SensorReading, parse_when
from mdl.errors import ConfigError, DataError, did_you_mean
from mdl.peers.edge.sampler import is_in_use, read_battery
from mdl.reading import decode_json, read_system_line, read_text

# Termux waits for Android to tell, on some phones 7 s; without its app for ever.
_COMMAND_S = 15.0
# A file of sensors has 100 bytes, one of sysfs less, a route 128 a line.
_LARGEST_BYTES = 64 << 10
_LONGEST_REASON = 160
# Android lets a job run every 15 minutes at most often: a script that has not written for twice that time is gone.
_STALE_S = 1800.0
# Fields of a Reading, and their names in conditions.
_FIELDS = {"idle": "idle", "charging": "charging", "battery_percent": "battery", "wifi": "wifi"}
_TELLS = {"_idle": {"idle"}, "_power": {"charging", "battery"}, "_wifi": {"wifi"}}
_FORM = 'like {"idle": true, "charging": false, "battery_percent": 80, "wifi": true}; what it leaves out is read here'
# Interfaces of mobile networks, by the names that Linux and Android give them.
_MOBILE = ("wwan", "ppp", "rmnet", "ccmni", "usb")
_UP = 0x1

Run = Callable[[Sequence[str]], str]


class Sensors:
    """Reads only what a gate's conditions depend on. root: of the file system; run: returns a command's output.

    in_use_file: the device counts as in use while it exists, "" for none. run raises OSError or SubprocessError.
    clock: time of day, as file times have it. Raises ConfigError if the gate's file is invalid.
    """

    def __init__(
        self,
        gate: PauseConditions,
        in_use_file: str = "",
        root: Path = Path("/"),
        run: Run | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._wanted = gate.asks()
        self._file = Path(gate.file).expanduser() if gate.file else None
        self._in_use_file = Path(in_use_file) if in_use_file else None
        self._root = root
        self._run = run or _run
        self._clock = clock
        self._missing: set[str] = set()
        try:
            self._read_file()
        except DataError as error:
            raise ConfigError(f"--when file: {error}") from None

    def __call__(self) -> SensorReading:
        try:
            told, stale = self._read_file(), self._find_stale()
        except (DataError, OSError) as error:
            return SensorReading(failed=dict.fromkeys(sorted(self._wanted), _reason(error)))
        found = {name: value for field, name in _FIELDS.items() if (value := getattr(told, field)) is not None}
        failed: dict[str, str] = {}
        if stale:
            failed = dict.fromkeys(sorted(self._wanted & found.keys()), stale)
            found = {}
        for read in (self._idle, self._power, self._wifi):
            wanted = self._wanted & _TELLS[read.__name__] - found.keys() - failed.keys()
            try:
                found |= {name: value for name, value in (read() if wanted else {}).items() if name in wanted}
            except (OSError, LookupError, ValueError, TypeError, psutil.Error, subprocess.SubprocessError) as error:
                failed |= dict.fromkeys(sorted(wanted), _reason(error))
        return SensorReading(**{field: found.get(name) for field, name in _FIELDS.items()}, failed=failed)

    def _read_file(self) -> SensorReading:
        return read_sensors_file(self._file) if self._file else SensorReading()

    def _find_stale(self) -> str:
        """Return why the file does not count any more, as nothing has written it for long; "" if it counts."""
        if self._file is None:
            return ""
        age_s = self._clock() - self._file.stat().st_mtime
        if abs(age_s) <= _STALE_S:  # after a clock was set back, a new file is of the future
            return ""
        limit = f"{_STALE_S / 60:g} minutes"
        since = f"for {age_s / 60:.0f} minutes, {limit} at most" if age_s > 0 else f"within {limit} of this clock"
        return printable(f"{self._file} was not written {since}", _LONGEST_REASON)

    def _idle(self) -> dict[str, Any]:
        """Return logind's view of all sessions; without logind, if a terminal was used lately."""
        if self._in_use_file:
            return {"idle": not self._in_use_file.exists()}
        if (self._root / "run/systemd/seats").is_dir():
            told = self._ask("loginctl", "show-session", "--property=IdleHint")
            if told and "IdleHint=" in told:
                return {"idle": told.partition("IdleHint=")[2].strip() == "yes"}
        in_use = is_in_use()
        return {"idle": None if in_use is None else not in_use}

    def _power(self) -> dict[str, Any]:
        """Return the percentage, and True if it charges or is full on a charger; empty without a battery."""
        if answer := self._ask("termux-battery-status"):
            told = json.loads(answer)
            plugged = told["plugged"] != "UNPLUGGED" or told["status"] == "CHARGING"
            return {"charging": plugged, "battery": float(told["percentage"])}
        supplies = self._root / "sys/class/power_supply"
        if supplies.is_dir():
            return _read_supplies([path for path in supplies.iterdir() if read_system_line(path / "scope") != "Device"])
        percent, charging = read_battery()
        return {} if percent is None else {"charging": charging, "battery": percent}

    def _wifi(self) -> dict[str, Any]:
        """Return True if the default route goes over Wi-Fi or cable, which costs as little; empty if unknown."""
        if answer := self._ask("termux-wifi-connectioninfo"):
            return {"wifi": json.loads(answer)["supplicant_state"] == "COMPLETED"}
        networks, routes = self._root / "sys/class/net", self._root / "proc/net/route"
        if not networks.is_dir() or not routes.exists():
            return {}
        # The size of /proc files is 0 until they are read.
        ways = _default_interfaces(routes.read_text()[:_LARGEST_BYTES])
        ways += [path.name for path in sorted(networks.iterdir()) if (path / "wireless").is_dir()]  # IPv6 alone
        up = [name for name in ways if read_system_line(networks / name / "operstate") in ("up", "unknown")]
        return {"wifi": bool(up) and not up[0].startswith(_MOBILE)}

    def _ask(self, *command: str) -> str | None:
        """Return a command's output; None if there is no such command."""
        if command[0] in self._missing:
            return None
        try:
            return self._run(command)
        except FileNotFoundError:
            self._missing.add(command[0])
            return None


def read_sensors_file(path: Path) -> SensorReading:
    """Read a script's file. Raises DataError in one line: what is wrong, and what would be valid."""
    content = read_text(path, _LARGEST_BYTES, f"JSON {_FORM}")
    table = decode_json(content, dict[str, msgspec.Raw], str(path), f"JSON {_FORM}")
    for key in table:
        if key not in _FIELDS:
            hint = did_you_mean(key, _FIELDS)
            raise DataError(f"{path}: unknown sensor {printable(key, 60)!r}{hint}; valid: {', '.join(_FIELDS)}")
    return decode_json(content, SensorReading, str(path), f"JSON {_FORM}")


def _read_supplies(supplies: Sequence[Path]) -> dict[str, Any]:
    batteries = [
        path
        for path in supplies
        if read_system_line(path / "type") == "Battery" and read_system_line(path / "present") != "0"
    ]
    if not batteries:
        return {}
    levels = [float(level) for path in batteries if (level := read_system_line(path / "capacity"))]
    plugged = any(read_system_line(path / "online") == "1" for path in supplies if path not in batteries)
    charging = any(read_system_line(path / "status") in ("Charging", "Full") for path in batteries)
    return {"charging": plugged or charging, "battery": sum(levels) / len(levels) if levels else None}


def _default_interfaces(routes: str) -> list[str]:
    """Return the interfaces of default routes in /proc/net/route, the preferred one first."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    ways = [row for row in rows if len(row) >= 8 and row[1] == row[7] == "00000000" and int(row[3], 16) & _UP]
    return [row[0] for row in sorted(ways, key=lambda row: int(row[6]))]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=True)
    return done.stdout[:_LARGEST_BYTES].decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{error.cmd[0]} did not answer within {_COMMAND_S:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} failed with code {error.returncode}"
    return printable(str(error) or type(error).__name__, _LONGEST_REASON)


logger = logging.getLogger("mdl")

# Soon enough for a user that takes the phone up; a look at sysfs takes a millisecond.
LOOK_EVERY_S = 2.0
# A battery near its floor loses some tenths of a percent in that time.
_LOOK_FOR_FLOOR_S = 30.0
# A command of a phone may take seconds and wakes it up: the thread rests this many times as long as a look took.
_RESTS = 10.0
# The thread may be in the middle of a look at the end; it is a daemon.
_END_S = 0.5


class Gatekeeper:
    """Holds training up; see the module.

    forbidden_by: the conditions that did not hold at the last look, in words; "" if it may train.
    minute: minute of the local day, 0..1440. wait: replaces the wait for the thread's next look.
    The first look logs the sensors that are missing. With conditions the constructor takes it; for the battery's floor
    alone the thread does, so that a device starts while a slow sensor answers.
    """

    def __init__(
        self,
        gate: PauseConditions,
        sensors: Callable[[], SensorReading],
        minute: Callable[[], float] | None = None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        self.forbidden_by = ""
        self._gate = gate
        self._sensors = sensors
        self._minute = minute or _minute_of_day
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._wait = wait or self._await_change
        self._is_floor_alone = gate == PauseConditions(floor_percent=gate.floor_percent)
        if not self._is_floor_alone:
            self._look_first()

    def look(self) -> bool:
        """Ask the sensors. Return True if the answer to "may it train" has changed."""
        return self._take(self._sensors())

    def _look_first(self) -> bool:
        reading = self._sensors()
        for line in self._gate.lacks(reading):
            logger.info("--when: %s", line)
        if reading.battery_percent is None and "battery" not in reading.failed:
            self._gate = msgspec.structs.replace(self._gate, floor_percent=0.0)  # nothing will ever be below it
        return self._take(reading)

    def hold(self) -> bool:
        """Wait as long as the device may not train. Return True if it is to stop instead."""
        while self.forbidden_by and not self._stopped.is_set():
            self._wait()
        return self._stopped.is_set()

    def stop(self) -> None:
        """Wake up every caller of `hold` to stop. May be called from any thread."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def looking(self, told: Callable[[str], None]) -> Iterator[None]:
        """Look repeatedly in a thread meanwhile. told: is given `forbidden_by` each time a pause begins or ends."""
        if self._gate == PauseConditions():
            yield  # there is nothing that could change
            return
        if self.forbidden_by:
            told(self.forbidden_by)
        thread = threading.Thread(target=self._look_on, args=(told,), name="mdl-gate", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join(_END_S)

    def _look_on(self, told: Callable[[str], None]) -> None:
        if self._is_floor_alone and self._look_first():
            told(self.forbidden_by)
        if self._gate == PauseConditions():
            return
        rest_s, every_s = 0.0, _LOOK_FOR_FLOOR_S if self._is_floor_alone else LOOK_EVERY_S
        while not self._stopped.wait(max(rest_s, every_s)):
            began_s = time.monotonic()
            if self.look():
                told(self.forbidden_by)
            rest_s = _RESTS * (time.monotonic() - began_s)

    def _take(self, reading: SensorReading) -> bool:
        before, now = self.forbidden_by, self._gate.forbids(reading, self._minute())
        with self._changed:
            self.forbidden_by = now
            self._changed.notify_all()
        if now and _kind(now) != _kind(before):
            logger.info("paused: %s", now)
        elif before and not now:
            logger.info("going on: all conditions hold")
        return bool(now) is not bool(before)

    def _await_change(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self.forbidden_by or self._stopped.is_set())


def make_gatekeeper(when: str, config: Config | None = None) -> Gatekeeper:
    """Return the gatekeeper of the conditions `when` and of the battery's floor. Raises ConfigError."""
    config = config or Config()
    gate = parse_when(when) if when else PauseConditions()
    gate = msgspec.structs.replace(gate, floor_percent=config.busy.battery_percent)
    return Gatekeeper(gate, Sensors(gate, config.device.in_use_file))


def _minute_of_day() -> float:
    now = datetime.now()
    return now.hour * 60 + now.minute + now.second / 60


def _kind(reason: str) -> str:
    """Return a reason without its figures: a battery that falls by a percent is no news."""
    return "".join(letter for letter in reason if not letter.isdigit())
