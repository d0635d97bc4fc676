"""A pool of processes that work for this one. Ctrl-C is this process's to answer, and they end when it does."""

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


class Workers(ProcessPoolExecutor):
    """prepare: called once in each process."""

    def __init__(self, processes: int, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(processes, mp_context=context, initializer=_prepare, initargs=(prepare,))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with blocked():  # it starts processes, and each would end its imports with a traceback
            return super().submit(fn, *args, **kwargs)


def result_of(future: Future[T]) -> T:
    """What a worker made of it. Raises MdlError if one is gone, and with it all that was under way."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise MdlError("a worker process was ended from outside (out of memory?)") from None


def _prepare(prepare: Callable[[], None] | None) -> None:
    """SIGTERM stays: it is how a pool ends the others when one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unblock(signal.SIGTERM)
    threading.Thread(target=_follow_parent, name="mdl-lifeline", daemon=True).start()
    if prepare:
        prepare()


def _follow_parent() -> None:
    """A killed parent says nothing: without this its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
