"""A process that ends with the one that started it: its standard input is its lifeline."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mdl.peers.interrupts import handled
from mdl.transport.runtime import Runtime

# A node that another one started ends with it (`mdl up`): it reads its standard input until that closes.
LIFELINE_VARIABLE = "MDL_LIFELINE"


def wait_for_parent() -> None:
    """Wait until the parent is gone; this process's standard input must be its lifeline."""
    while os.read(sys.stdin.fileno(), 4096):
        pass


@contextmanager
def stopped_by_signals(runtime: Runtime[Any]) -> Iterator[None]:
    """Finish cleanly at the first interrupt, end at once at the second; the end of the parent counts as one.

    Save results inside the context: the first interrupt does not break that off, the second one does.
    """
    wishes: list[int] = []

    def wish(number: int, _: object) -> None:
        wishes.append(number)
        if len(wishes) > 1 and runtime.is_over:
            raise KeyboardInterrupt
        runtime.stop()

    if os.environ.get(LIFELINE_VARIABLE):
        threading.Thread(target=_follow_parent, args=(runtime,), name="mdl-lifeline", daemon=True).start()
    with handled(wish):
        yield


def _follow_parent(runtime: Runtime[Any]) -> None:
    wait_for_parent()
    runtime.stop()
