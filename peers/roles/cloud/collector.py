"""The cloud of recommenders: hands out its lesson, takes devices' vectors, and decides when to learn from them (DCCL).

A vector is its own offer: it comes whole, and again until it is answered. It is answered once it is on the disk, with
all others that came meanwhile in one write. While a round is learned none is answered, so that each vector that a
device has heard to be taken is in exactly one round, wherever this process ends. Knows nothing of files, models and
sockets.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from math import inf

from mdl.bounds import printable
from mdl.peers.roles.cloud.cloud import CloudSettings
from mdl.peers.roles.cloud.presence import Presence
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateTaken,
    VectorMessage,
)
from mdl.protocol.cloud_work import CycleTaught, KeepVectors, TeachCycle, VectorJudged, VectorReceived, VectorsKept
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, Received, Send, StopRequested, WorkFailed
from mdl.transport.loglimit import LogLimit

logger = logging.getLogger(__name__)

# A device and its cloud compare this before anything else; another form of lessons or vectors gets another number.
TASK = "recommend-1"
# Vectors, 1 KB each, that wait for the write under way; a device that finds no room says its own again.
_MOST_WAITING = 4096
# Refusals that are remembered for the end's summary.
_MOST_REFUSALS = 256
_PAUSE_S = 60.0
_LESSON = "-1"


class Collector:
    """See the module. taught: the lesson on the disk, if there is one; fresh: vectors that no round has learned from.

    refusals: device -> why its vector was refused the last time. taken: vectors that were kept by this process.
    """

    def __init__(self, settings: CloudSettings, taught: CycleTaught | None, fresh: int, now: float) -> None:
        self.refusals: OrderedDict[str, str] = OrderedDict()
        self.taken = 0
        self._settings = settings
        self._taught, self._fresh = taught, fresh
        self._waiting: OrderedDict[str, VectorReceived] = OrderedDict()
        self._heard = Presence()
        self._keeping = self.is_teaching = False
        self._teach_after = self._waiting_since = now
        self._lines = LogLimit(logger)

    @property
    def version(self) -> int:
        return self._taught.version if self._taught else 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._lines.on_time(now)
        match event:
            case Received(sender=sender, message=message):
                effects = self._hear(sender, message, now)
            case VectorsKept():
                effects = self._on_kept(event, now)
            case CycleTaught():
                effects = self._on_taught(event, now)
            case WorkFailed(effect=effect, problem=problem):
                effects = self._on_failed(effect, problem, now)
            case StopRequested():
                return [Finish()]
            case _:
                effects = []
        return effects + self._work(now)

    def deadline(self) -> float | None:
        due_at = max(self._due_at(), self._teach_after)
        return None if self.is_teaching or self._keeping or due_at == inf else due_at

    def _hear(self, sender: Contributor, message: object, now: float) -> list[Effect]:
        if not isinstance(message, LessonWanted | VectorMessage):
            return []
        if message.schema_hash != TASK:
            return self._refuse(sender, message, "another task: this cloud is for mdl learn --task recommend", now)
        self._heard.hear(sender.peer_id, message.pupil, now)
        if isinstance(message, LessonWanted):
            return [self._answer(sender, message)]
        if self._taught is None or message.version > self.version:
            return self._refuse(sender, message, "", now, pull_again=True)
        if message.pupil in self._waiting or len(self._waiting) < _MOST_WAITING:
            self._waiting[message.pupil] = VectorReceived(sender, message)
        return []

    def _answer(self, sender: Contributor, wanted: LessonWanted) -> Effect:
        if self._taught is None or wanted.version == self.version:
            return Send(sender.peer_id, LessonCurrent(wanted.pupil, self.version, self._settings.synchronous))
        lesson = LessonMessage(wanted.pupil, self.version, synchronous=self._settings.synchronous)
        return Send(sender.peer_id, lesson, self._taught.lessons[_LESSON])

    def _on_kept(self, event: VectorsKept, now: float) -> list[Effect]:
        self._keeping = False
        if not self._fresh and event.fresh:
            self._waiting_since = now
        self._fresh = event.fresh
        effects: list[Effect] = []
        for judged in event.judged:
            effects += self._tell(judged, now)
        return effects

    def _tell(self, judged: VectorJudged, now: float) -> list[Effect]:
        sender, message = judged.received.sender, judged.received.message
        if judged.problem:
            return self._refuse(sender, message, judged.problem, now, judged.pull_again)
        self.taken += 1
        self.refusals.pop(message.pupil, None)
        return [Send(sender.peer_id, UpdateTaken(message.pupil, message.digest))]

    def _refuse(
        self,
        sender: Contributor,
        message: LessonWanted | VectorMessage,
        reason: str,
        now: float,
        pull_again: bool = False,
    ) -> list[Effect]:
        digest = message.digest if isinstance(message, VectorMessage) else b""
        if not pull_again:
            self._lines.warning(
                now, message.pupil, "refused %s (from %s): %s", message.pupil, sender.peer_id, printable(reason)
            )
            self.refusals[message.pupil] = reason
            while len(self.refusals) > _MOST_REFUSALS:
                self.refusals.popitem(last=False)
        return [Send(sender.peer_id, PupilRefused(message.pupil, printable(reason), digest, pull_again))]

    def _on_taught(self, event: CycleTaught, now: float) -> list[Effect]:
        self._taught, self.is_teaching, self._fresh = event, False, 0
        self._teach_after = self._waiting_since = now
        return self._heard.tell(event.version, self._settings.synchronous, now)

    def _on_failed(self, effect: str, problem: str, now: float) -> list[Effect]:
        if effect == KeepVectors.__name__:
            # Nobody was answered: they say it again.
            self._keeping = False
            self._lines.log(logging.ERROR, now, "", "%s: %s", effect, problem)
            return []
        if self._taught is None:
            return [Finish(problem, 4)]
        logger.error("round %d failed, again in %.0f s: %s", self.version, _PAUSE_S, problem)
        self.is_teaching, self._teach_after = False, now + _PAUSE_S
        return []

    def _work(self, now: float) -> list[Effect]:
        """Begin what is due: one write or one round at a time."""
        if self._keeping or self.is_teaching:
            return []
        if self._waiting and now < max(self._due_at(), self._teach_after):
            self._keeping = True
            vectors, self._waiting = tuple(self._waiting.values()), OrderedDict()
            return [KeepVectors(vectors)]
        if now < self._teach_after or now < self._due_at():
            return []
        self.is_teaching = True
        return [TeachCycle(self.version + 1)]

    def _due_at(self) -> float:
        """Return when the next round should begin; at once for the first lesson, which needs no vectors."""
        if self._taught is None:
            return -inf
        if not self._fresh:
            return inf
        return -inf if self._fresh >= self._settings.updates else self._waiting_since + self._settings.patience_s
