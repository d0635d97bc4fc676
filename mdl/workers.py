"""A pool of worker processes. This process handles Ctrl-C, and the workers end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import ParamSpec, TypeVar

from mdl.errors import MdlError
from mdl.signals import blocked, unblock

P = ParamSpec("P")
T = TypeVar("T")


class ProcessPool(ProcessPoolExecutor):
    """A pool of spawned processes. prepare: called once in each of them."""

    def __init__(self, processes: int, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(processes, mp_context=context, initializer=_prepare, initargs=(prepare,))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with blocked():  # submit starts processes, and a signal would end each one's imports with a traceback
            return super().submit(fn, *args, **kwargs)


def result_of(future: Future[T]) -> T:
    """Return a worker's result. Raises MdlError if a worker is gone, and with it all work in progress."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise MdlError("a worker process was ended from outside (out of memory?)") from None


def _prepare(prepare: Callable[[], None] | None) -> None:
    """Ignore Ctrl-C and follow the parent. SIGTERM stays: a pool ends the other workers by it when one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unblock(signal.SIGTERM)
    threading.Thread(target=_follow_parent, name="mdl-lifeline", daemon=True).start()
    if prepare:
        prepare()


def _follow_parent() -> None:
    """End this worker with its parent: a killed parent says nothing, and its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
