"""The cloud: hands out lessons, takes updates, and decides when to learn from them (Colla 3.1, stages 1 to 4).

Learners ask, the cloud answers; it never has to reach anybody. An update counts once it is on the disk, and only then
does its learner hear so; a cycle counts once all it made is on the disk. So whatever ends this process, nothing of a
pupil is lost, and a cycle that was under way is done again. Knows nothing of files, models and sockets.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict, deque
from dataclasses import dataclass
from math import inf

import msgspec

from mdl.bounds import printable
from mdl.peers.roles.cloud.presence import PRESENT_S, Presence
from mdl.protocol.bulk import Bulk, Packed
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateMessage,
    UpdateOffered,
    UpdateTaken,
    UpdateWanted,
)
from mdl.protocol.cloud_work import CycleTaught, StoreUpdate, TeachCycle, UpdateStored
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, Received, Send, StopRequested, TransferProgressed, WorkFailed
from mdl.task import task_difference
from mdl.transport.loglimit import LogLimit
from mdl.transport.wire.places import Places

logger = logging.getLogger(__name__)

# Updates that are on their way at the same time: as many as a node takes in at once (transport/wire/bulk.py).
_MOST_COMING = 2
# An update of which no new byte came for so long is not coming any more; another learner may send its own.
_STUCK_S = 15.0
# Pause after a cycle that failed.
_PAUSE_S = 60.0
MAX_PUPILS = 256
# Digests of taken updates that are remembered for each pupil. A member of its mesh that is late offers an update that
# another one has sent.
_REMEMBERED = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class CloudSettings(msgspec.Struct, frozen=True):
    """updates: number, from different pupils, that makes a cycle worth it; patience_s: or so long after the first.

    synchronous: a cycle waits for all pupils that are there, and they wait for it.
    """

    updates: int = 2
    patience_s: float = 30.0
    synchronous: bool = False


class CloudState(msgspec.Struct, frozen=True):
    """The state on the disk: the last cycle, if there was one, and the digest of each pupil's update."""

    taught: CycleTaught | None = None
    stored: dict[str, bytes] = {}


@dataclass
class _Coming:
    """An update that one learner was asked to send. received_bytes: so many bytes of its message have come.

    is_storing: it is here; it waits for the disk, and the learner for the answer.
    """

    sender: Contributor
    pupil: str
    digest: bytes
    moved_at: float
    received_bytes: int = 0
    is_storing: bool = False


class Cloud:
    """See the module. schema_hash, model: of the pupils' small model. state: from the disk.

    version: of its present lesson, 0 before it has one. refusals: pupil -> why it was refused the last time.
    """

    def __init__(self, schema_hash: str, model: str, settings: CloudSettings, state: CloudState, now: float) -> None:
        self.refusals: OrderedDict[str, str] = OrderedDict()
        self.stored = dict(state.stored)
        self._had = {pupil: deque([digest], _REMEMBERED) for pupil, digest in state.stored.items()}
        self._schema_hash = schema_hash
        self._model = model
        self._settings = settings
        self._taught = state.taught
        self._heard = Presence()
        self._coming: dict[str, _Coming] = {}
        self._places = Places(_MOST_COMING, _STUCK_S)
        self._lines = LogLimit(logger)
        self.is_teaching = False
        self._teach_after = now
        self._waiting_since = now

    @property
    def version(self) -> int:
        return self._taught.version if self._taught else 0

    def pending(self) -> list[str]:
        """Return the pupils with a last update that is in no cycle yet."""
        learned = self._taught.learned if self._taught else {}
        return sorted(pupil for pupil, digest in self.stored.items() if digest != learned.get(pupil))

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._lines.on_time(now)
        match event:
            case Received(sender=sender, message=message, values=values):
                effects = self._hear(sender, message, values, now)
            case TransferProgressed():
                effects = self._on_progress(event, now)
            case UpdateStored():
                effects = self._on_stored(event, now)
            case CycleTaught():
                effects = self._on_taught(event, now)
            case WorkFailed(effect=effect, problem=problem):
                effects = self._on_failed(effect, problem, now)
            case StopRequested():
                return [Finish()]
            case _:
                effects = []
        return effects + self._teach(now)

    def deadline(self) -> float | None:
        if self.is_teaching:
            return None
        due_at = max(self._due_at(), self._teach_after)
        return due_at if due_at < inf else None

    def _hear(self, sender: Contributor, message: object, values: Bulk | None, now: float) -> list[Effect]:
        if not isinstance(message, LessonWanted | UpdateOffered | UpdateMessage):
            return []
        if problem := self._find_fault(message):
            return self._refuse(sender, message.pupil, problem, now)
        self._heard.hear(sender.peer_id, message.pupil, now)
        match message:
            case LessonWanted():
                return [self._answer(sender, message)]
            case UpdateOffered():
                return self._on_offered(sender, message, now)
            case _:
                return self._on_update(sender, message, values, now)

    def _find_fault(self, message: LessonWanted | UpdateOffered | UpdateMessage) -> str:
        if not _NAME.fullmatch(message.pupil):
            return f"{message.pupil[:40]!r} is no name: use 1 to 64 letters, digits, '.', '-' and '_'"
        if message.schema_hash != self._schema_hash:
            theirs = getattr(message, "model", "") or f"model {message.schema_hash[:16]}"
            difference = task_difference(theirs, self._model)
            difference = difference.replace("the mesh's", "the cloud's").replace("this mesh", "this cloud")
            return difference or f"another task: {theirs}; this cloud teaches {self._model}"
        if message.pupil not in self.stored and len(self.stored) >= MAX_PUPILS:
            return f"this cloud has {MAX_PUPILS} pupils, which is as many as it takes"
        return ""

    def _refuse(self, sender: Contributor, pupil: str, reason: str, now: float, digest: bytes = b"") -> list[Effect]:
        reason = printable(reason)
        if self.refusals.get(pupil) != reason:
            self._lines.warning(now, sender.peer_id, "refused %s (from %s): %s", pupil[:64], sender.peer_id, reason)
        self.refusals[pupil] = reason
        while len(self.refusals) > MAX_PUPILS:
            self.refusals.popitem(last=False)
        return [Send(sender.peer_id, PupilRefused(pupil, reason, digest))]

    def _answer(self, sender: Contributor, wanted: LessonWanted) -> Effect:
        pupil = wanted.pupil
        if self._taught is None or wanted.version == self.version:
            return Send(sender.peer_id, LessonCurrent(pupil, self.version, self._settings.synchronous))
        group = self._taught.groups.get(pupil, -1)
        lesson = LessonMessage(pupil, self.version, group, self._settings.synchronous)
        models = self._taught.pairs if wanted.with_teacher else self._taught.lessons
        return Send(sender.peer_id, lesson, models[str(group)])

    def _on_offered(self, sender: Contributor, offered: UpdateOffered, now: float) -> list[Effect]:
        pupil = offered.pupil
        if offered.digest in self._had.get(pupil, ()):
            return [Send(sender.peer_id, UpdateTaken(pupil, offered.digest))]
        for stuck in [it for it in self._coming.values() if not it.is_storing and now - it.moved_at >= _STUCK_S]:
            self._end_coming(stuck)
        coming = self._coming.get(sender.peer_id)
        if coming is not None and (coming.is_storing or coming.pupil != pupil):
            return []  # one update a learner
        if not self._places.ask(sender.peer_id, now, topic=pupil):
            return []  # it asks again; another member of its mesh may be quicker, or somebody else's is on its way
        if coming is None:
            coming = self._coming[sender.peer_id] = _Coming(sender, pupil, offered.digest, now)
        coming.sender, coming.digest = sender, offered.digest  # a newer one has the time that the first one had
        return [Send(sender.peer_id, UpdateWanted(pupil, offered.digest))]

    def _on_update(self, sender: Contributor, update: UpdateMessage, values: Bulk | None, now: float) -> list[Effect]:
        coming = self._coming.get(sender.peer_id)
        expected = coming and (coming.sender, coming.pupil, coming.digest)
        if not isinstance(values, Packed) or coming is None or expected != (sender, update.pupil, update.digest):
            return []  # nobody asked for it
        if coming.is_storing:
            return []  # it has come already
        coming.is_storing = True
        self._coming[sender.peer_id] = self._coming.pop(sender.peer_id)  # in the order in which they are stored
        return [StoreUpdate(sender, update, values)]

    def _on_progress(self, event: TransferProgressed, now: float) -> list[Effect]:
        """Note that more of an update is here. A learner that begins it again and again brings nothing more."""
        coming = self._coming.get(event.sender.peer_id)
        if coming and coming.sender == event.sender and event.received_bytes > coming.received_bytes:
            coming.received_bytes, coming.moved_at = event.received_bytes, now
        return []

    def _end_coming(self, coming: _Coming) -> None:
        del self._coming[coming.sender.peer_id]
        self._places.give_back(coming.sender.peer_id)

    def _on_stored(self, event: UpdateStored, now: float) -> list[Effect]:
        sender, update = event.sender, event.update
        if (coming := self._coming.get(sender.peer_id)) and coming.pupil == update.pupil:
            self._end_coming(coming)
        if event.pull_again:
            return [
                Send(
                    sender.peer_id, PupilRefused(update.pupil, printable(event.problem), update.digest, pull_again=True)
                )
            ]
        if event.problem:
            return self._refuse(sender, update.pupil, event.problem, now, update.digest)
        if not self.pending():
            self._waiting_since = now
        self.refusals.pop(update.pupil, None)
        self.stored[update.pupil] = update.digest
        self._had.setdefault(update.pupil, deque(maxlen=_REMEMBERED)).append(update.digest)
        return [Send(sender.peer_id, UpdateTaken(update.pupil, update.digest))]

    def _on_taught(self, event: CycleTaught, now: float) -> list[Effect]:
        self._taught, self.is_teaching = event, False
        self._teach_after = self._waiting_since = now
        return self._heard.tell(event.version, self._settings.synchronous, now)

    def _on_failed(self, effect: str, problem: str, now: float) -> list[Effect]:
        if effect != TeachCycle.__name__:
            self._lines.log(logging.ERROR, now, "", "%s: %s", effect, problem)
            if failed := next((coming for coming in self._coming.values() if coming.is_storing), None):
                self._end_coming(failed)
            return []
        if self._taught is None:
            return [Finish(problem, 4)]
        logger.error("cycle %d failed, again in %.0f s: %s", self.version + 1, _PAUSE_S, problem)
        self.is_teaching, self._teach_after = False, now + _PAUSE_S
        return []

    def _teach(self, now: float) -> list[Effect]:
        if self.is_teaching or now < self._teach_after or now < self._due_at():
            return []
        self.is_teaching = True
        return [TeachCycle(self.version + 1)]

    def _due_at(self) -> float:
        """Return when the next cycle should begin; at once for the first, which needs no pupils."""
        if self._taught is None:
            return -inf
        pending = self.pending()
        if not pending:
            return inf
        enough = len(pending) >= self._settings.updates
        if enough and self._settings.synchronous:
            last = max(self._heard.pupils.values(), default=0.0)
            present = {pupil for pupil, heard_at in self._heard.pupils.items() if last - heard_at < PRESENT_S}
            enough = present <= set(pending)
        return -inf if enough else self._waiting_since + self._settings.patience_s
