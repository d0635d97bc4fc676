"""The signals that end a process: Ctrl-C, a service manager's or a script's request, a terminal that closes.

`peers/interrupts.py` defines their effect on a command; this module is for code that starts processes. It imports next
to nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

# SIGBREAK: Windows, where `mdl.processes.ask_to_end` sends it.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_HAS_MASKS = hasattr(signal, "pthread_sigmask")


@contextmanager
def blocked() -> Iterator[None]:
    """Block the signals within: a process started here gets none until it calls `unblock`, this one gets them after."""
    if not _HAS_MASKS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(*numbers: int) -> None:
    """Let these signals reach this process from now on, also those that came before."""
    if _HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
