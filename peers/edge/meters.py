"""The power meter of a Raspberry Pi 5's board, which its firmware tells by a command (`mdl.devices.energy`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from mdl.devices.energy import BOARD, MeterReading, parse_rails
from mdl.errors import DataError
from mdl.processes import APART

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
