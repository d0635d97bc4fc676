"""A runtime that is built and then not run leaves nothing behind: no thread, no socket of its own."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import psutil

from mdl.protocol.machine import Event, Finish, SaveModel, StopRequested, Tick
from mdl.transport.links.sockets import LinkCounts
from mdl.transport.runtime import Runtime
from mdl.transport.worker import Worker


class _Links:
    """An endpoint that nobody is at."""

    is_closed = False

    def __init__(self) -> None:
        self.counts = LinkCounts()

    def pollable(self) -> list[Any]:
        return []

    def receive(self, now: float) -> list[Event]:
        return []

    def deadline(self) -> float | None:
        return None

    def is_sending(self) -> bool:
        return False

    def close(self, linger_ms: int = 0) -> None:
        self.is_closed = True


class _Stops:
    """Ends with the first StopRequested."""

    def handle(self, event: Event, now: float) -> list[Any]:
        return [Finish()] if isinstance(event, StopRequested) else []

    def deadline(self) -> float | None:
        return None


def _runtime() -> Runtime[Any]:
    links: Any = _Links()
    return Runtime(_Stops(), links, {SaveModel: lambda effect: None})


def test_a_runtime_that_is_never_run_has_no_thread_and_no_socket() -> None:
    threads, descriptors = threading.enumerate(), psutil.Process().num_fds()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        kept = [_runtime() for _ in range(3)]
        assert threading.enumerate() == threads
        assert psutil.Process().num_fds() == descriptors
        del kept
        gc.collect()


def test_what_was_posted_before_a_runtime_runs_reaches_its_machine() -> None:
    runtime = _runtime()
    runtime.post(Tick())
    runtime.stop()
    assert runtime.run() == Finish()
    assert runtime.links.is_closed


def test_a_worker_that_is_never_asked_ends_at_once() -> None:
    for end in (lambda worker: worker.finish(0.0), lambda worker: worker.abandon()):
        worker = Worker({}, lambda event: None, lambda error: None)
        end(worker)
        assert not any(thread.name == "mdl-worker" for thread in threading.enumerate())
