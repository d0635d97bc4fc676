"""The signals by which somebody ends a process: Ctrl-C, a service manager's or a script's word, a terminal that closes.

What they do to a command is `peers/interrupts.py`'s; this is for whoever starts processes. Imports next to nothing.
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
    """A process started meanwhile hears of no signal until it calls `unblock`; this one hears of it afterwards."""
    if not _HAS_MASKS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(*numbers: int) -> None:
    """This process hears of them from here on, also of those that came before."""
    if _HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
