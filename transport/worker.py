"""The one thread that trains, evaluates and writes, in order, so that the loop with the heartbeats never waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mdl.errors import LocalProtocolError, MdlError
from mdl.protocol.cloud_work import StudyLesson, TeachCycle
from mdl.protocol.machine import Effect, Evaluate, Event, TrainLocally, WorkFailed

Work: TypeAlias = Mapping[type[Effect], Callable[[Any], Event | None]]

# A round asks for five things at most; whoever has this many waiting asks without end.
MAX_WAITING = 64
# A model being written is waited for, even on a slow disk; longer than this it hangs.
_WRITE_S = 10.0
# What a stop need not wait for: its result would come too late for anyone.
_IDLE_AFTER_STOP = (TrainLocally, Evaluate, StudyLesson, TeachCycle)


class Worker:
    """Carries out effects through `work`, one after the other.

    post: takes the resulting events, from the worker's thread. crashed: takes an exception that is no MdlError, or a
    LocalProtocolError: a bug, which must stop the node. Any other MdlError becomes a WorkFailed event, and what the
    system refuses does.
    """

    def __init__(self, work: Work, post: Callable[[Event], None], crashed: Callable[[BaseException], None]) -> None:
        self._work = work
        self._post = post
        self._crashed = crashed
        self._waiting: deque[Effect] = deque()
        self._changed = threading.Condition()
        self._running: Effect | None = None
        self._closed = False
        self._thread: threading.Thread | None = None  # from the first effect on: who is never asked leaves nothing

    def put(self, effect: Effect) -> None:
        """Queue an effect. Raises LocalProtocolError if nothing is there to carry it out, or too much waits."""
        if type(effect) not in self._work:
            raise LocalProtocolError(f"nothing here can carry out {type(effect).__name__}")
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                raise LocalProtocolError(f"{MAX_WAITING} effects wait for the worker: it cannot keep up")
            self._waiting.append(effect)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="mdl-worker", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, timeout_s: float) -> None:
        """Forget queued training, do the rest, at most `timeout_s` long; what a long training blocks is done here.

        Training that has begun cannot be interrupted: its thread is a daemon and ends with the process. What is being
        written is let finish.
        """
        with self._changed:
            self._closed = True
            kept = [effect for effect in self._waiting if not isinstance(effect, _IDLE_AFTER_STOP)]
            self._waiting = deque(kept)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and self._running is None, timeout_s)
            left, self._waiting = list(self._waiting), deque()
            self._changed.wait_for(
                lambda: self._running is None or isinstance(self._running, _IDLE_AFTER_STOP), _WRITE_S
            )
        for effect in left:
            self._carry_out(effect)

    def abandon(self) -> None:
        """Forget all that is queued, of a node that has crashed: what is under way is the thread's last."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                effect = self._waiting.popleft()
                self._running = effect
            self._carry_out(effect)
            del effect  # or its parameters would stay in memory until the next one

    def _carry_out(self, effect: Effect) -> None:
        try:
            event = self._work[type(effect)](effect)
        except LocalProtocolError as error:
            self._crashed(error)
        except (MdlError, OSError) as error:
            self._post(WorkFailed(type(effect).__name__, str(error)))
        except BaseException as error:  # noqa: BLE001 (the outermost loop of this thread: run() raises it again)
            self._crashed(error)
        else:
            if event is not None:
                self._post(event)
