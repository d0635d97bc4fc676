"""Keeps a device to its owner's conditions (`--when`) and its battery to a floor (`busy.battery_percent`).

It looks at the sensors every few seconds, and holds training up.

Training asks `hold` before each batch and waits there while the device may not train. So it stops within one batch of a
look and goes on where it was. A caller that must not wait reads `forbidden_by`. A thread of its own looks, since a
sensor may take seconds to answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import msgspec

from mdl.config import Config
from mdl.devices.gate import PauseConditions, SensorReading, parse_when
from mdl.peers.edge.sensors import Sensors

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
    The constructor looks once and logs the sensors that are missing.
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
        reading = self._sensors()
        if reading.battery_percent is None and "battery" not in reading.failed:
            self._gate = msgspec.structs.replace(gate, floor_percent=0.0)  # nothing will ever be below it
        for line in gate.lacks(reading):
            logger.info("--when: %s", line)
        self._take(reading)

    def look(self) -> bool:
        """Ask the sensors. Return True if the answer to "may it train" has changed."""
        return self._take(self._sensors())

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
        rest_s = 0.0
        is_floor_alone = self._gate == PauseConditions(floor_percent=self._gate.floor_percent)
        every_s = _LOOK_FOR_FLOOR_S if is_floor_alone else LOOK_EVERY_S
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
