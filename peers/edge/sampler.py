"""A device's reports about itself (3.3.1): memory, others' share of its processor, battery, energy, use, merging.

The power meter of a Raspberry Pi 5's board is told by its firmware, through a command (`mdl.devices.energy`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import randbits
from typing import TypeVar

import psutil

from mdl.bounds import MAX_RATE_MB_S, within
from mdl.config import DeviceSection
from mdl.devices.energy import BOARD, EnergyCount, MeterReading, parse_rails
from mdl.errors import ConfigError, DataError
from mdl.peers.roles.trainer.guard import Defence
from mdl.processes import APART
from mdl.protocol.delta import PartialSum, pair_aggregate
from mdl.protocol.grid import Sums
from mdl.protocol.machine import ResourcesSampled
from mdl.protocol.vector_work import DeltasMerged, Losses, MergeDeltas, merge_deltas
from mdl.protocol.vocabulary import ResourceState
from mdl.transport.links.sockets import LinkCounts

# A process is started for each reading: often enough for a round, and little work.
_EVERY_S = 2.0
# The firmware answers within milliseconds.
_COMMAND_S = 5.0
# The output has 1.2 KB.
_LARGEST_BYTES = 16 << 10
# A board that has told nothing so often has no such meter: a Pi before the fifth.
_TRIES = 3
_NOT_YET = MeterReading(BOARD, 0.0)


class BoardMeter:
    """Asks the board in a thread of its own, at most every two seconds; a call returns at once, with the last answer.

    command: its path and arguments. Raises DataError while the board tells nonsense.
    """

    def __init__(self, command: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._command, self._clock = command, clock
        self._last: MeterReading | None = _NOT_YET
        self._problem = ""
        self._asked_at: float | None = None
        self._failures, self._has_answered = 0, False
        self._asking: threading.Thread | None = None

    def __call__(self) -> MeterReading | None:
        """Return the last reading, without watts before the first answer; None if the board has no meter."""
        now = self._clock()
        is_due = self._asked_at is None or now - self._asked_at >= _EVERY_S
        is_idle = self._asking is None or not self._asking.is_alive()
        if is_due and is_idle and (self._has_answered or self._failures < _TRIES):
            self._asked_at = now
            self._asking = threading.Thread(target=self._ask, name="mdl-board-meter", daemon=True)
            try:
                self._asking.start()
            except RuntimeError:  # a container allows no more threads
                self._note(None)
        if self._problem:
            raise DataError(self._problem)
        return self._last

    def _ask(self) -> None:
        watts, problem = None, ""
        try:
            watts = parse_rails(run_bounded(self._command))
        except DataError as error:
            problem = str(error)
        except OSError:
            pass
        self._problem = problem
        self._note(watts)

    def _note(self, watts: float | None) -> None:
        if watts is not None:
            self._last, self._has_answered = MeterReading(BOARD, self._clock(), watts), True
        else:
            self._failures += 1
            self._last = None if self._last is _NOT_YET else self._last


def find_board() -> Callable[[], MeterReading | None]:
    """Return the meter of this board; one that tells nothing where the command is not there."""
    command = shutil.which("vcgencmd")
    return BoardMeter((command, "pmic_read_adc")) if command else lambda: None


def run_bounded(command: Sequence[str]) -> str:
    """Return the first output of a command, which has a few seconds and no shell. Raises OSError if it cannot start."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **APART
    ) as process:
        end = threading.Timer(_COMMAND_S, _end_group, (process,))
        end.start()
        try:
            assert process.stdout
            output: bytes = process.stdout.read(_LARGEST_BYTES)
            return output.decode("ascii", "replace")
        finally:
            end.cancel()
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the command with everything that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (OSError, AttributeError):  # it has ended, or this is Windows
        process.kill()


_Told = TypeVar("_Told")

# A user that has typed within this time is using the device.
_IN_USE_S = 60.0
# A sensor outside this range is broken or not connected: some boards report 0 K, or 65,261.
_COLDEST_C, _HOTTEST_C = -60.0, 200.0
# The temperature is read at every so many looks: some sensors take milliseconds, and the loop waits for them.
_LOOKS_A_TEMPERATURE = 10
_SYSFS = Path("/sys")


class MergeTimer:
    """Times `pair_aggregate`: the machine hears its rate with the resources.

    losses: of this device's windows, to judge others' partial sums by; None: they are not judged.
    """

    def __init__(self, losses: Losses | None = None) -> None:
        self._losses = losses
        self._last_mb_s: float | None = None
        self._bytes = 0
        self._seconds = 0.0

    def defence(self) -> Defence:
        """Return how this device judges others; the seed, which places its looks at their deltas, stays secret."""
        return Defence(tests=self._losses is not None, seed=randbits(63))

    def __call__(self, mine: PartialSum, theirs: PartialSum, out: Sums | None = None) -> PartialSum:
        began_s = time.perf_counter()
        merged = pair_aggregate(mine, theirs, out)
        self._seconds += time.perf_counter() - began_s
        self._bytes += merged.values.nbytes
        return merged

    def work(self, effect: MergeDeltas) -> DeltasMerged:
        """Merge the deltas of a hop, as the driver's work."""
        return merge_deltas(effect, self, self._losses)

    def rate_mb_s(self) -> float | None:
        """Return the rate of all merges since the last call; without any the last rate, None if there never was one."""
        if self._seconds > 0.0:
            self._last_mb_s = within(self._bytes / 1e6 / self._seconds, 0.0, MAX_RATE_MB_S)
            self._bytes, self._seconds = 0, 0.0
        return self._last_mb_s


class BatteryBudget:
    """The offered part of the battery (B_max of Eq. 4), in percent of a full charge; 100: no limit.

    Counts from this start of mdl on, not over its restarts: a device that trains every night offers so much each night.
    Counts only while the device discharges. The use by other programs counts too: a battery does not tell them apart.
    """

    def __init__(self, share_percent: float) -> None:
        self._left = share_percent
        self._has_limit = share_percent < 100.0
        self._last: float | None = None

    def count(self, percent: float | None, charging: bool) -> float | None:
        """Count the charge now; return the rest of the budget, None without a limit or without a battery."""
        if percent is None or not self._has_limit:
            return None
        if not charging and self._last is not None:
            self._left = max(0.0, self._left - max(0.0, self._last - percent))
        self._last = percent
        return self._left


class Sampler:
    """Reads the device's resources; takes well under a millisecond.

    device: the owner's settings: a file that means it is in use, and the offered limits. merges: of its trainer, if it
    has one.
    """

    def __init__(self, device: DeviceSection | None = None, merges: MergeTimer | None = None) -> None:
        device = device or DeviceSection()
        self._in_use_file = device.in_use_file
        self._most_bytes = int(device.max_memory_mb * 1e6)
        self._budget = BatteryBudget(device.max_battery_share)
        self._merges = merges
        self._process = psutil.Process()
        self._energy = EnergyCount(_SYSFS, find_board())
        self._last: ResourceState | None = None
        self._warmth: float | None = None
        self._looks = 0

    def __call__(self, counts: LinkCounts) -> ResourcesSampled:
        self._last = self._look()
        return ResourcesSampled(self._last, counts.sent_bytes, counts.ways_s, counts.bugs, counts.unheard)

    def _look(self) -> ResourceState:
        """Read each figure; one that fails keeps its last value.

        A read fails if no descriptor is left, or a phone forbids it.
        """
        last = self._last or ResourceState(0, 0.0)
        self._energy.count(time.monotonic(), time.process_time())
        percent, charging = _ask(read_battery, (last.battery_percent, last.charging))
        return ResourceState(
            free_memory_bytes=_ask(lambda: psutil.virtual_memory().available, last.free_memory_bytes),
            cpu_percent=_ask(self._others_percent, last.cpu_percent),
            battery_percent=percent,
            charging=charging,
            in_use=_ask(lambda: os.path.exists(self._in_use_file) if self._in_use_file else is_in_use(), last.in_use),
            merge_mb_s=self._merges.rate_mb_s() if self._merges else None,
            memory_left_bytes=_ask(self._left_bytes, last.memory_left_bytes),
            battery_left_percent=self._budget.count(percent, bool(charging)),
            temperature_c=_ask(self._feel, last.temperature_c),
            energy_j=round(self._energy.joules, 3),
            round_energy_j=None if (of_round := self._energy.round_joules) is None else round(of_round, 3),
            energy_from=self._energy.source,
        )

    def close_round(self) -> None:
        """End the count of a round's energy, and begin the next one."""
        self._energy.close_round(time.monotonic(), time.process_time())

    def tell_energy(self) -> str:
        """Return the energy since the start in words, with how it was obtained."""
        return self._energy.tell()

    def _others_percent(self) -> float:
        """Return others' share of the processor: the own training does not make a device busy."""
        own_percent = self._process.cpu_percent(None) / (psutil.cpu_count() or 1)
        return within(psutil.cpu_percent(None) - own_percent, 0.0, 100.0)

    def _left_bytes(self) -> int | None:
        return max(0, self._most_bytes - self._taken_bytes()) if self._most_bytes else None

    def check_offer(self, delta_bytes: int) -> None:
        """Raise ConfigError if the offered memory is taken before a round: its result alone needs a delta's size."""
        taken = self._taken_bytes()
        if self._most_bytes and self._most_bytes < taken + delta_bytes:
            raise ConfigError(
                f"--max-memory {self._most_bytes / 1e6:g}: mdl takes {taken / 1e6:.0f} MB with this model and data, "
                f"and a round's result {delta_bytes / 1e6:.1f} MB; offer at least {(taken + delta_bytes) / 1e6 + 1:.0f}"
            )

    def is_spent(self) -> bool:
        """Return True if this device has used the charge that its owner offers, as of the last sample."""
        return self._last is not None and self._last.is_spent()

    def _feel(self) -> float | None:
        if self._looks % _LOOKS_A_TEMPERATURE == 0:
            self._warmth = _read_temperature()
        self._looks += 1
        return self._warmth

    def _taken_bytes(self) -> int:
        """Return the memory that this process takes."""
        return int(self._process.memory_info().rss)

    def last(self) -> ResourceState:
        """Return the last sample, or take a first one.

        The processor is measured between calls, so others do not call.
        """
        return self._last or self(LinkCounts()).resources


def _ask(read: Callable[[], _Told], before: _Told) -> _Told:
    """Return what the system tells, or what it told before."""
    try:
        return read()
    except (OSError, psutil.Error):
        return before


def read_battery() -> tuple[float | None, bool | None]:
    """Return the charge in percent, and True if it charges; None for both without a battery."""
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if not battery:
        return None, None
    return within(float(battery.percent), 0.0, 100.0), bool(battery.power_plugged)


def _read_temperature() -> float | None:
    """Return degrees Celsius of the warmest sensor; None without a sensor, or without a way to ask."""
    found = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    sane = [each.current for sensors in found.values() for each in sensors if _COLDEST_C < each.current < _HOTTEST_C]
    return round(max(sane), 1) if sane else None


def is_in_use() -> bool | None:
    """Return True if a logged-in user's terminal has had input lately; None if no terminal tells."""
    terminals = {user.terminal for user in psutil.users() if user.terminal}
    idle_s = []
    for terminal in terminals:
        try:
            idle_s.append(time.time() - os.stat(f"/dev/{terminal}").st_atime)
        except OSError:
            continue  # a graphical session, or a terminal that has gone
    return min(idle_s) < _IN_USE_S if idle_s else None
