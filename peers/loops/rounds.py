"""A line a round for the user of a loop (`mdl.join`): looks at a node, changes nothing."""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mdl.peers.view.plain import OwnStream, PlainFormatter
from mdl.protocol.machine import Effect, Event, LocalDeltaReady, SaveModel, TrainLocally
from mdl.protocol.vocabulary import TrainingReport

T = TypeVar("T")

logger = logging.getLogger("mdl")

# The most rounds that a callback may be behind: it is asked once in each round of its own loop.
_MOST_WAITING = 1_000


@dataclass(frozen=True)
class RoundDone:
    """A round with its result. planned_rounds: the run's last round; 0: open.

    devices: number of contributors. loss, samples: of this device's own training, None and 0 if it did not train in it.
    seconds: since this device began to train for it. sent_bytes, received_bytes: over its links since the last one.
    """

    round_id: int
    planned_rounds: int
    devices: int
    loss: float | None
    samples: int
    seconds: float
    sent_bytes: int
    received_bytes: int

    def __str__(self) -> str:
        of = f" of {self.planned_rounds}" if self.planned_rounds else ""
        own = "" if self.loss is None else f"loss {self.loss:.4g} on {self.samples:,} samples, "
        bytes_told = f"{_megabytes(self.sent_bytes)} MB sent, {_megabytes(self.received_bytes)} MB received"
        many = "" if self.devices == 1 else "s"
        return f"round {self.round_id}{of}: {own}{self.devices} device{many}, {self.seconds:.1f} s, {bytes_told}"


class RoundLines:
    """Logs a line a round; part of `observe` of a runtime. counts: (sent, received) bytes so far. quiet: no lines."""

    def __init__(self, counts: Callable[[], tuple[int, int]], quiet: bool = False) -> None:
        self._counts, self._quiet = counts, quiet
        # By round: of the open one, and with `overlap` of the next.
        self._began: dict[int, float] = {}
        self._trained: dict[int, TrainingReport] = {}
        self._planned = 0
        self._told = (0, 0)
        self._done: queue.SimpleQueue[RoundDone] = queue.SimpleQueue()

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, LocalDeltaReady):
            self._trained[event.round_id] = event.training
        for effect in effects:
            if isinstance(effect, TrainLocally):
                self._began[effect.round_id], self._planned = now, effect.planned_rounds
            elif isinstance(effect, SaveModel):
                self._end(effect, now)

    def report(self, progress: Callable[[RoundDone], object] | None) -> None:
        """Hand over the rounds that are done since the last call, in the caller's thread."""
        while not self._done.empty():
            done = self._done.get()
            if progress is not None:
                progress(done)

    def _end(self, effect: SaveModel, now: float) -> None:
        sent, received = self._counts()
        own, began = self._trained.get(effect.round_id), self._began.get(effect.round_id, now)
        done = RoundDone(
            effect.round_id,
            self._planned,
            len(effect.history.base),
            own.loss if own else None,
            own.samples if own else 0,
            now - began,
            sent - self._told[0],
            received - self._told[1],
        )
        self._told = sent, received
        self._began, self._trained = _after(effect.round_id, self._began), _after(effect.round_id, self._trained)
        if not self._quiet:
            logger.info("%s", done)
        while self._done.qsize() >= _MOST_WAITING:
            self._done.get()
        self._done.put(done)


def _after(round_id: int, of: dict[int, T]) -> dict[int, T]:
    return {later: told for later, told in of.items() if later > round_id}


class _Unless(logging.Filter):
    """Passes lines only if no logging is set up, and none about steps within a round."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.root.handlers and not getattr(record, "is_step", False)


def tell_on_stderr() -> None:
    """Log to stderr in a program without logging of its own; once it sets up logging, our lines go there."""
    if logger.hasHandlers():
        return
    handler = OwnStream(sys.stderr)
    handler.setFormatter(PlainFormatter("mdl: %(message)s"))
    handler.addFilter(_Unless())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}" if count >= 1_000_000 else f"{count / 1e6:.3f}"
