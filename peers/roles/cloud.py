"""The cloud: hands out lessons, takes updates, and decides when to learn from them (Colla 3.1, stages 1 to 4; DCCL).

Learners ask, the cloud answers; it never has to reach anybody. An update counts once it is on the disk, and only then
does its learner hear so; a cycle counts once all it made is on the disk. So whatever ends this process, nothing of a
pupil is lost, and a cycle that was under way is done again. Knows nothing of files, models and sockets.

`Collector` is the cloud of recommenders. A vector is its own offer: it comes whole, and again until it is answered. It
is answered once it is on the disk, with all others that came meanwhile in one write. While a round is learned none is
answered, so that each vector that a device has heard to be taken is in exactly one round, wherever this process ends.

`Presence` counts the learners that speak to a cloud, and those still there when it has something new to teach. Both
clouds decide by one rule when to learn (`_Teaching`).
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import inf

import msgspec

from mdl.bounds import MAX_MEMBERS, printable
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateMessage,
    UpdateOffered,
    UpdateTaken,
    UpdateWanted,
    VectorMessage,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Finish,
    KeepVectors,
    Received,
    Send,
    StopRequested,
    StoreUpdate,
    TeachCycle,
    TransferProgressed,
    UpdateStored,
    VectorJudged,
    VectorReceived,
    VectorsKept,
    WorkFailed,
)
from mdl.protocol.vocabulary import Bulk, Packed
from mdl.task import task_difference
from mdl.transport.limits import LogLimit
from mdl.transport.wire.places import PlacesInLine

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


class _Teaching(ABC):
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


# Updates that are on their way at the same time: as many as a node takes in at once (transport/wire/bulk.py).
_MOST_COMING = 2
# An update of which no new byte came for so long is not coming any more; another learner may send its own.
_STUCK_S = 15.0
# Digests of taken updates that are remembered for each pupil. A member of its mesh that is late offers an update that
# another one has sent.
_REMEMBERED = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


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


class Cloud(_Teaching):
    """See the module. schema_hash, model: of the pupils' small model. state: from the disk."""

    def __init__(self, schema_hash: str, model: str, settings: CloudSettings, state: CloudState, now: float) -> None:
        super().__init__(settings, state.taught, now)
        self.stored = dict(state.stored)
        self._had = {pupil: deque([digest], _REMEMBERED) for pupil, digest in state.stored.items()}
        self._schema_hash = schema_hash
        self._model = model
        self._coming: dict[str, _Coming] = {}
        self._places = PlacesInLine(_MOST_COMING, _STUCK_S)

    def pending(self) -> list[str]:
        """Return the pupils with a last update that is in no cycle yet."""
        learned = self._taught.learned if self._taught else {}
        return sorted(pupil for pupil, digest in self.stored.items() if digest != learned.get(pupil))

    def _act(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(sender=sender, message=message, values=values):
                return self._hear(sender, message, values, now)
            case TransferProgressed():
                return self._on_progress(event, now)
            case UpdateStored():
                return self._on_stored(event, now)
        return []

    def _count_pending(self) -> int:
        return len(self.pending())

    def _is_enough(self, pending: int) -> bool:
        """Return True if so many are; in a synchronous cycle if all pupils that are there are among them."""
        if pending < self._settings.updates or not self._settings.synchronous:
            return pending >= self._settings.updates
        last = max(self._heard.pupils.values(), default=0.0)
        present = {pupil for pupil, heard_at in self._heard.pupils.items() if last - heard_at < PRESENT_S}
        return present <= set(self.pending())

    def _note_failed(self) -> None:
        if failed := next((coming for coming in self._coming.values() if coming.is_storing), None):
            self._end_coming(failed)

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
            return self._refuse(sender, update.pupil, event.problem, now, update.digest, pull_again=True)
        if event.problem:
            return self._refuse(sender, update.pupil, event.problem, now, update.digest)
        if not self.pending():
            self._waiting_since = now
        self.refusals.pop(update.pupil, None)
        self.stored[update.pupil] = update.digest
        self._had.setdefault(update.pupil, deque(maxlen=_REMEMBERED)).append(update.digest)
        return [Send(sender.peer_id, UpdateTaken(update.pupil, update.digest))]


# A device and its cloud compare this before anything else; another form of lessons or vectors gets another number.
TASK = "recommend-1"
# Vectors, 1 KB each, that wait for the write under way; a device that finds no room says its own again.
_MOST_WAITING = 4096


class Collector(_Teaching):
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
