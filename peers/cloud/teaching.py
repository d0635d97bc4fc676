"""When a cloud learns from what came, what it answers, and which learners are there (Colla 3.1; DCCL, Algorithm 1).

`Presence` counts the learners that speak to a cloud, and those still there when it has something new to teach. Both
clouds, Colla's and DCCL's, decide by one rule when to learn (`Teaching`). Pure.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

import msgspec

from mdl.bounds import MAX_MEMBERS, printable
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Finish,
    Send,
    StopRequested,
    TeachCycle,
    WorkFailed,
)
from mdl.transport.limits import LogLimit

logger = logging.getLogger(__name__)


# A learner heard within this time is told of something new, and counted on in a synchronous cycle.
PRESENT_S = 60.0


@dataclass
class Presence:
    """Learners and pupils that speak, the one silent for longest first."""

    learners: OrderedDict[str, tuple[float, str]] = field(default_factory=OrderedDict)
    pupils: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def hear(self, learner: str, pupil: str, now: float) -> None:
        self.learners[learner] = now, pupil
        self.pupils[pupil] = now
        for heard, key in ((self.learners, learner), (self.pupils, pupil)):
            heard.move_to_end(key)
            while len(heard) > MAX_MEMBERS:
                heard.popitem(last=False)

    def tell(self, version: int, synchronous: bool, now: float) -> list[Effect]:
        """Tell everybody that is there: this version is taught now."""
        return [
            Send(learner, LessonCurrent(pupil, version, synchronous))
            for learner, (heard_at, pupil) in self.learners.items()
            if now - heard_at < PRESENT_S
        ]


# Pause after a cycle that failed.
_PAUSE_S = 60.0
# Refusals that are remembered for the end's summary; and pupils of one cloud.
MAX_PUPILS = 256


class CloudSettings(msgspec.Struct, frozen=True):
    """updates: number, from different pupils, that makes a cycle worth it; patience_s: or so long after the first.

    synchronous: a cycle waits for all pupils that are there, and they wait for it.
    """

    updates: int = 2
    patience_s: float = 30.0
    synchronous: bool = False


class Teaching(ABC):
    """The part that both clouds share: refusals, and cycles that begin once enough is there to learn from.

    version: of the present lesson, 0 before there is one. refusals: pupil -> why it was refused the last time.
    """

    def __init__(self, settings: CloudSettings, taught: CycleTaught | None, now: float) -> None:
        self.refusals: OrderedDict[str, str] = OrderedDict()
        self.is_teaching = False
        self._settings = settings
        self._taught = taught
        self._heard = Presence()
        self._lines = LogLimit(logger)
        self._teach_after = self._waiting_since = now

    @property
    def version(self) -> int:
        return self._taught.version if self._taught else 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._lines.on_time(now)
        match event:
            case CycleTaught():
                effects = self._on_taught(event, now)
            case WorkFailed(effect=effect, problem=problem):
                effects = self._on_failed(effect, problem, now)
            case StopRequested():
                return [Finish()]
            case _:
                effects = self._act(event, now)
        return effects + self._work(now)

    def deadline(self) -> float | None:
        due_at = max(self._due_at(), self._teach_after)
        return None if self._is_at_work() or due_at == inf else due_at

    @abstractmethod
    def _act(self, event: Event, now: float) -> list[Effect]:
        """Handle all other events."""

    @abstractmethod
    def _note_failed(self) -> None:
        """Note that something could not be kept: its senders say it again."""

    @abstractmethod
    def _count_pending(self) -> int:
        """Return how much is there that no cycle has learned from."""

    def _is_enough(self, pending: int) -> bool:
        """Return True if a cycle with so much is worth it without further waiting."""
        return pending >= self._settings.updates

    def _is_at_work(self) -> bool:
        return self.is_teaching

    def _refuse(
        self, sender: Contributor, pupil: str, reason: str, now: float, digest: bytes = b"", pull_again: bool = False
    ) -> list[Effect]:
        reason = printable(reason)
        if not pull_again:
            if self.refusals.get(pupil) != reason:
                self._lines.warning(now, sender.peer_id, "refused %s (from %s): %s", pupil[:64], sender.peer_id, reason)
            self.refusals[pupil] = reason
            while len(self.refusals) > MAX_PUPILS:
                self.refusals.popitem(last=False)
        return [Send(sender.peer_id, PupilRefused(pupil, reason, digest, pull_again))]

    def _answer(self, sender: Contributor, wanted: LessonWanted) -> Effect:
        pupil, synchronous = wanted.pupil, self._settings.synchronous
        if self._taught is None or wanted.version == self.version:
            return Send(sender.peer_id, LessonCurrent(pupil, self.version, synchronous))
        group = self._taught.groups.get(pupil, -1)
        models = (wanted.with_teacher and self._taught.pairs) or self._taught.lessons
        return Send(sender.peer_id, LessonMessage(pupil, self.version, group, synchronous), models[str(group)])

    def _on_taught(self, event: CycleTaught, now: float) -> list[Effect]:
        self._taught, self.is_teaching = event, False
        self._teach_after = self._waiting_since = now
        return self._heard.tell(event.version, self._settings.synchronous, now)

    def _on_failed(self, effect: str, problem: str, now: float) -> list[Effect]:
        if effect != TeachCycle.__name__:
            self._lines.log(logging.ERROR, now, "", "%s: %s", effect, problem)
            self._note_failed()
            return []
        if self._taught is None:
            return [Finish(problem, 4)]
        logger.error("cycle %d failed, again in %.0f s: %s", self.version + 1, _PAUSE_S, problem)
        self.is_teaching, self._teach_after = False, now + _PAUSE_S
        return []

    def _work(self, now: float) -> list[Effect]:
        if self._is_at_work() or now < self._teach_after or now < self._due_at():
            return []
        self.is_teaching = True
        return [TeachCycle(self.version + 1)]

    def _due_at(self) -> float:
        """Return when the next cycle should begin; at once for the first, which needs no pupils."""
        if self._taught is None:
            return -inf
        pending = self._count_pending()
        if not pending:
            return inf
        return -inf if self._is_enough(pending) else self._waiting_since + self._settings.patience_s
