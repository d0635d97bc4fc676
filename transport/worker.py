"""The threads for slow work, so that the loop with the heartbeats never waits.

One thread trains, one tests, one works on whole vectors and one writes files. Each works in order, beside the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from mdl.errors import LocalProtocolError, MdlError
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Event,
    KeepDelta,
    LocalDeltaReady,
    RecallDelta,
    RecordRound,
    SaveModel,
    StudyLesson,
    TeachCycle,
    TrainLocally,
    WorkFailed,
    hold_recalled,
    hold_trained,
)
from mdl.protocol.vector_work import VECTOR_WORK, MergeDeltas, VectorWork, where_it_begins
from mdl.transport.limits import LogLimit

logger = logging.getLogger(__name__)

# Takes the exception that a bug raised, and the peer that asked for the work; "" if none did.
Crashed: TypeAlias = Callable[[BaseException, str], None]
Work: TypeAlias = Mapping[type[Effect], Callable[[Any], Event | None]]

# Vectors up to this size are processed in the loop: that takes a millisecond, and waking a thread takes as long.
_SMALL_VECTOR_BYTES = 1 << 20
_FILES = (SaveModel, KeepDelta, RecordRound)
# A round asks for five things at most; with this many waiting the machine asks without end, or the disk hangs.
MAX_WAITING = 64
# A stop waits this long for a model being written, even on a slow disk; a longer write hangs.
_WRITE_S = 10.0
# Between two rounds all devices wait for messages, and a test would delay those of its device and of others on the same
# machine. It waits for the next training to begin, but no longer than this.
_HELD_S = 1.0
# A stop need not wait for these: their results would come too late.
_IDLE_AFTER_STOP = (TrainLocally, Evaluate, StudyLesson, TeachCycle)


class NodeWorkers:
    """The four workers of a node; post and crashed are those of each `Worker`.

    A local delta is posted only once the model that training began at is written and tested. So a device that is killed
    has this model on its disk, however slow the disk is. The result of a test is posted in the following round, before
    the delta. No model under test takes memory that work after the delta needs.
    """

    def __init__(self, work: Work, post: Callable[[Event], None], crashed: Crashed) -> None:
        self._work = {**VECTOR_WORK, **work}
        self._post = post
        self._files = Worker(self._work, post, crashed)
        self._vectors = Worker(self._work, post, crashed)
        self._tests = Worker(self._work, post, crashed, _HELD_S)
        trains: Work = {**self._work, TrainLocally: self._train, RecallDelta: self._recall}
        self._trains = Worker(trains, post, crashed, prepare=_begun)

    def put(self, effect: Effect, cause: str = "") -> None:
        """Queue an effect for its worker. Raises LocalProtocolError as `Worker.put` does.

        cause: the peer that sent the message which asks for it; "" if none does.
        """
        if type(effect) not in self._work:
            raise LocalProtocolError(f"nothing here can carry out {type(effect).__name__}")
        if isinstance(effect, VectorWork):
            self._work_on(effect, cause)
        else:
            # Only the newest counts of the models that wait for a slow disk or for a test, and each is a whole vector.
            self._worker_of(effect).put(effect, isinstance(effect, SaveModel | Evaluate), cause)
            if isinstance(effect, Evaluate) and effect.is_awaited:
                self._tests.release()

    def finish(self, timeout_s: float) -> None:
        """Stop all workers. Queued files are still written; results of computation would come too late."""
        self._vectors.abandon()
        self._tests.abandon()
        self._files.finish(timeout_s)
        self._trains.finish(timeout_s)

    def begin_again(self, most_s: float) -> None:
        """Forget all that the former machine asked for, but first finish its writes, as far as time allows.

        The results of training and merging under way are dropped.
        """
        for worker in (self._vectors, self._tests, self._trains):
            worker.forget()
        self._files.settle(most_s)

    def abandon(self) -> None:
        for worker in (self._vectors, self._tests, self._trains, self._files):
            worker.abandon()

    def _worker_of(self, effect: Effect) -> Worker:
        if isinstance(effect, _FILES):
            return self._files
        return self._tests if isinstance(effect, Evaluate) else self._trains

    def _work_on(self, effect: VectorWork, cause: str) -> None:
        if effect.size_bytes > _SMALL_VECTOR_BYTES or (isinstance(effect, MergeDeltas) and effect.is_tested):
            self._vectors.put(effect, cause=cause)
            return
        done = self._work[type(effect)](effect)
        assert done is not None
        self._post(done)

    def _train(self, effect: TrainLocally) -> Event | None:
        self._tests.release()
        done = self._work[TrainLocally](replace(effect, earlier=()))
        self._files.settle()
        self._tests.settle()
        if effect.room is not None and isinstance(done, LocalDeltaReady):  # needs another vector, so not before
            done = replace(done, held=hold_trained(effect, done.delta))
        return done

    def _recall(self, effect: RecallDelta) -> Event | None:
        done = self._work[RecallDelta](effect)
        return hold_recalled(effect, done) if isinstance(done, DeltaRecalled) else done


def _begun(effect: Effect) -> Effect:
    """Return the effect with only the vector that training begins at, so that its parts can be freed meanwhile."""
    if not isinstance(effect, TrainLocally):
        return effect
    return replace(effect, parameters=where_it_begins(effect.parameters, effect.ahead), ahead=None)


class Worker:
    """Carries out effects through `work`, one after the other.

    post: takes the resulting events, from the worker's thread.
    crashed: takes an exception that is no MdlError, or a LocalProtocolError: a bug, which must stop the node. Any other
    MdlError, and any OSError, becomes a WorkFailed event.
    held_s: queued effects begin this much later, or as soon as they are released (`release`).
    prepare: turns an effect into the one that is carried out, in the worker's thread; the original is kept no longer.
    """

    def __init__(
        self,
        work: Work,
        post: Callable[[Event], None],
        crashed: Crashed,
        held_s: float = 0.0,
        prepare: Callable[[Effect], Effect] = lambda effect: effect,
    ) -> None:
        self._work, self._prepare = work, prepare
        self._held_s, self._held_until = held_s, 0.0
        self._post = post
        self._crashed = crashed
        self._waiting: deque[tuple[Effect, str]] = deque()
        self._is_for_nobody = False  # the result of the effect under way
        self._changed = threading.Condition()
        self._running: type[Effect] | None = None
        self._closed = False
        self._lines = LogLimit(logger, 1)
        self._thread: threading.Thread | None = None  # starts with the first effect: an unused worker leaves no thread

    def put(self, effect: Effect, replaces: bool = False, cause: str = "") -> None:
        """Queue an effect; replaces: drop waiting effects of its kind. Raises LocalProtocolError if too many wait.

        Raises it also if `work` has nothing to carry it out. The oldest waiting RecordRound makes room: no metrics are
        worth the process.
        """
        if type(effect) not in self._work:
            raise LocalProtocolError(f"nothing here can carry out {type(effect).__name__}")
        with self._changed:
            if replaces:
                self._waiting = deque(each for each in self._waiting if type(each[0]) is not type(effect))
            if len(self._waiting) >= MAX_WAITING and not self._drop_record():
                raise LocalProtocolError(f"{MAX_WAITING} effects wait for the worker: it cannot keep up")
            if self._held_s and not self._waiting:
                self._held_until = time.monotonic() + self._held_s
            self._waiting.append((effect, cause))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="mdl-worker", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _drop_record(self) -> bool:
        oldest = next((place for place, each in enumerate(self._waiting) if isinstance(each[0], RecordRound)), None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        text = "the disk cannot keep up with %d things to write: the oldest record of a round is lost"
        self._lines.warning(time.monotonic(), "", text, MAX_WAITING)
        return True

    def release(self) -> None:
        """Let queued effects begin as soon as they can."""
        with self._changed:
            self._held_until = 0.0
            self._changed.notify_all()

    def settle(self, most_s: float | None = None) -> None:
        """Wait until nothing is left to do or this worker is closed; most_s: no longer than this."""
        self.release()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._waiting or self._running), most_s)

    def forget(self) -> None:
        """Drop waiting effects, and the result of the one under way."""
        with self._changed:
            self._waiting.clear()
            self._is_for_nobody = self._running is not None
            self._changed.notify_all()

    def finish(self, timeout_s: float) -> None:
        """Drop queued training and do the rest within `timeout_s`; this thread does what a long training blocks.

        Training that has begun cannot be interrupted: its thread is a daemon and ends with the process. A write under
        way may finish.
        """
        with self._changed:
            self._closed = True
            kept = [each for each in self._waiting if not isinstance(each[0], _IDLE_AFTER_STOP)]
            self._waiting = deque(kept)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and self._running is None, timeout_s)
            left, self._waiting = list(self._waiting), deque()
            self._changed.wait_for(
                lambda: self._running is None or issubclass(self._running, _IDLE_AFTER_STOP), _WRITE_S
            )
        for effect, cause in left:
            self._carry_out(effect, cause)

    def abandon(self) -> None:
        """Drop all queued effects of a node that has crashed; the effect under way is the thread's last."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running, self._is_for_nobody = None, False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                while not self._closed and (held_s := self._held_until - time.monotonic()) > 0:
                    self._changed.wait(held_s)
                if not self._waiting:
                    if self._closed:
                        return
                    continue  # it was forgotten meanwhile
                effect, cause = self._waiting.popleft()
                self._running = type(effect)
            try:
                effect = self._prepare(effect)
            except BaseException as error:  # noqa: BLE001 (as in `_carry_out`: else the thread would end in silence)
                self._crash(error, cause)
            else:
                self._carry_out(effect, cause)
            del effect  # or its parameters would stay in memory until the next one

    def _carry_out(self, effect: Effect, cause: str) -> None:
        try:
            event = self._work[type(effect)](effect)
        except LocalProtocolError as error:
            self._crash(error, cause)
        except (MdlError, OSError) as error:
            self._tell(WorkFailed(type(effect).__name__, str(error)))
        except BaseException as error:  # noqa: BLE001 (the outermost loop of this thread: run() raises it again)
            self._crash(error, cause)
        else:
            if event is not None:
                self._tell(event)

    def _tell(self, event: Event) -> None:
        """Post an event under the lock: once `forget` has returned, no earlier event is posted."""
        with self._changed:
            if not self._is_for_nobody:
                self._post(event)

    def _crash(self, error: BaseException, cause: str) -> None:
        with self._changed:
            if not self._is_for_nobody:
                self._crashed(error, cause)
