"""The cloud of recommenders: takes vectors, and decides when to learn a round from them (DCCL, Algorithm 1).

A vector is its own offer: it comes whole, and again until it is answered. It is answered once it is on the disk, with
all others that came meanwhile in one write. While a round is learned none is answered, so that each vector that a
device has heard to be taken is in exactly one round, wherever this process ends. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from mdl.peers.cloud.machine import CloudSettings, Teaching
from mdl.protocol.cloud_messages import (
    LessonWanted,
    UpdateTaken,
    VectorMessage,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    KeepVectors,
    Received,
    Send,
    VectorJudged,
    VectorReceived,
    VectorsKept,
)

# A device and its cloud compare this before anything else; another form of lessons or vectors gets another number.
TASK = "recommend-1"
# Vectors, 1 KB each, that wait for the write under way; a device that finds no room says its own again.
_MOST_WAITING = 4096


class Collector(Teaching):
    """See the module. taught: the lesson on the disk, if there is one; fresh: vectors that no round has learned from.

    taken: vectors that were kept by this process.
    """

    def __init__(self, settings: CloudSettings, taught: CycleTaught | None, fresh: int, now: float) -> None:
        super().__init__(settings, taught, now)
        self.taken = 0
        self._fresh = fresh
        self._waiting: OrderedDict[str, VectorReceived] = OrderedDict()
        self._keeping = False

    def _act(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(sender=sender, message=message):
                return self._hear(sender, message, now)
            case VectorsKept():
                return self._on_kept(event, now)
        return []

    def _count_pending(self) -> int:
        return self._fresh

    def _is_at_work(self) -> bool:
        return self.is_teaching or self._keeping

    def _note_failed(self) -> None:
        self._keeping = False

    def _hear(self, sender: Contributor, message: object, now: float) -> list[Effect]:
        if not isinstance(message, LessonWanted | VectorMessage):
            return []
        digest = message.digest if isinstance(message, VectorMessage) else b""
        if message.schema_hash != TASK:
            problem = "another task: this cloud is for mdl learn --task recommend"
            return self._refuse(sender, message.pupil, problem, now, digest)
        self._heard.hear(sender.peer_id, message.pupil, now)
        if isinstance(message, LessonWanted):
            return [self._answer(sender, message)]
        if self._taught is None or message.version > self.version:
            return self._refuse(sender, message.pupil, "", now, digest, pull_again=True)
        if message.pupil in self._waiting or len(self._waiting) < _MOST_WAITING:
            self._waiting[message.pupil] = VectorReceived(sender, message)
        return []

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
            return self._refuse(sender, message.pupil, judged.problem, now, message.digest, judged.pull_again)
        self.taken += 1
        self.refusals.pop(message.pupil, None)
        return [Send(sender.peer_id, UpdateTaken(message.pupil, message.digest))]

    def _on_taught(self, event: CycleTaught, now: float) -> list[Effect]:
        self._fresh = 0
        return super()._on_taught(event, now)

    def _work(self, now: float) -> list[Effect]:
        """Begin what is due: one write or one round at a time."""
        if self._waiting and not self._is_at_work() and now < max(self._due_at(), self._teach_after):
            self._keeping = True
            vectors, self._waiting = tuple(self._waiting.values()), OrderedDict()
            return [KeepVectors(vectors)]
        return super()._work(now)
