"""Child processes on every system: kept from Ctrl-C, asked to end, set to the lowest priority."""

from __future__ import annotations

import signal
import subprocess
from typing import Any, Final, Protocol

import psutil

# For Popen: Ctrl-C in the terminal reaches the parent alone, which ends its processes in order. Windows has groups.
APART: Final[dict[str, Any]] = {
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
_LOWEST = getattr(psutil, "IDLE_PRIORITY_CLASS", 19)


class Signalled(Protocol):
    """A process that can receive a signal, like subprocess.Popen."""

    def send_signal(self, sig: int, /) -> None:
        """Send the signal if the process still runs."""


def ask_to_end(process: Signalled) -> None:
    """Ask a process that was started with APART to finish and save. SIGTERM would end it at once on Windows."""
    process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))


def let_others_first() -> None:
    """Give this process the lowest priority that the system has."""
    psutil.Process().nice(_LOWEST)
