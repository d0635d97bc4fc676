"""Both ends of the line to a cloud: a cloud that teaches, and a device that learns (Colla 3.1; DCCL, Algorithm 1).

`Presence` counts the learners that speak to a cloud, and those still there when it has something new to teach. Both
clouds, Colla's and DCCL's, decide by one rule when to learn (`Teaching`).

A `Learner` asks for lessons, offers updates, and goes on by itself when nobody answers. It speaks for a pupil: for
itself, or for the mesh it is a member of. All members of a mesh have the same model and may all offer it: the cloud
takes it from one of them. It asks again until it has what it wants; an update is kept until the cloud says that it has
it. While its owner does not want it to work it says nothing at all: the network may be one that costs.

Knows nothing of files, models and training.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

import msgspec

from mdl.bounds import MAX_MEMBERS, printable
from mdl.errors import RemoteProtocolError
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
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Finish,
    PauseChanged,
    Received,
    Send,
    StopRequested,
    StudyLesson,
    TeachCycle,
    UpdateReady,
    WorkFailed,
)
from mdl.protocol.messages import Said
from mdl.protocol.vocabulary import Bulk, Packed
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


# The id of the other end of a spoke: there is nobody else.
CLOUD = "cloud"


class LearnerSettings(msgspec.Struct, frozen=True):
    """studies: lessons that a device by itself learns from, each giving an update; 0: updates come from elsewhere.

    retry_s: until something is asked for again; poll_s: between two questions for something newer. patience_s: a device
    by itself goes on with the lesson it has if nothing newer comes for so long, unless the cloud is synchronous.
    gives_up_s: it ends if nobody has answered since its start, 0 never. sends_vectors: an update is short, and its own
    offer.
    """

    studies: int = 0
    retry_s: float = 1.0
    poll_s: float = 5.0
    patience_s: float = 60.0
    gives_up_s: float = 0.0
    sends_vectors: bool = False


@dataclass
class _Offer:
    ready: UpdateReady
    digest: bytes


class Learner:
    """See the module. number: of the last update that this pupil has made in earlier runs.

    heard_at: time of the cloud's last word, None if there was none. refused: why the cloud does not want this pupil.
    is_paused: it says nothing now.
    """

    def __init__(
        self, pupil: str, schema_hash: str, model: str, settings: LearnerSettings, now: float, number: int = 0
    ) -> None:
        self.pupil = pupil
        self.version = 0
        self.heard_at: float | None = None
        self.refused = ""
        self.taken = 0
        self._schema_hash = schema_hash
        self._model = model
        self._settings = settings
        self._number = number
        self._started = now
        self._synchronous = False
        self._studying = False
        self._offer: _Offer | None = None
        self._ask_at = now
        self._offer_at = now
        self._again_at: float | None = None
        self._takes_same = False
        self.is_paused = False

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self._take(event, now)
        return effects if any(isinstance(effect, Finish) for effect in effects) else effects + self._speak(now)

    def deadline(self) -> float | None:
        if self.is_paused:
            return None
        times = [self._offer_at if self._offer else self._ask_at]
        if self._is_idle() and self._again_at is not None and not (self._takes_same or self._synchronous):
            times.append(self._again_at)
        if self.heard_at is None and self._settings.gives_up_s:
            times.append(self._started + self._settings.gives_up_s)
        return min(times)

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(sender=sender, message=message, values=values):
                if sender.peer_id != CLOUD:
                    raise RemoteProtocolError(f"{sender.peer_id} speaks where only a cloud does")
                return self._hear(message, values, now)
            case UpdateReady():
                self._studying = False
                self._offer = _Offer(event, digest_of(event.update))
                self._number = max(self._number, event.number)
                self._offer_at = now
            case PauseChanged(reason=reason):
                if self.is_paused and not reason:
                    self._started, self._ask_at = now, min(self._ask_at, now)  # nobody could answer meanwhile
                self.is_paused = bool(reason)
            case WorkFailed(problem=problem):
                return [Finish(problem, 4)] if self._settings.studies else []
            case StopRequested():  # a device by itself has not had the lessons it was to have
                return [Finish(exit_code=130 if self._settings.studies else 0)]
        return self._give_up(now)

    def _hear(self, message: Said, values: Bulk | None, now: float) -> list[Effect]:
        if getattr(message, "pupil", self.pupil) != self.pupil:
            return []
        self.heard_at = now
        match message:
            case LessonMessage() as lesson if isinstance(values, Packed):
                return self._study(lesson, values, now)
            case LessonCurrent(version=version, synchronous=synchronous):
                self._synchronous = synchronous
                if version < self.version:
                    self.version = 0  # another cloud, or one that has lost its memory
                if version > self.version:
                    self._ask_at = now
            case UpdateWanted(digest=digest) if self._offer and digest == self._offer.digest:
                ready = self._offer.ready
                update = UpdateMessage(self.pupil, self._schema_hash, ready.number, digest, ready.version, ready.group)
                return [Send(CLOUD, update, ready.update)]
            case UpdateTaken(digest=digest) if self._offer and digest == self._offer.digest:
                self._offer = None
                self.taken += 1
                self._again_at = now + self._settings.patience_s
                return [Finish()] if self.taken == self._settings.studies else []
            case PupilRefused():
                return self._on_refused(message, now)
        return []

    def _study(self, lesson: LessonMessage, model: Packed, now: float) -> list[Effect]:
        """Study a lesson: a device by itself takes one at a time; a mesh always has the newest."""
        is_news = lesson.version > self.version or self._takes_same
        if not is_news or not (self._is_idle() or not self._settings.studies):
            return []
        self.refused = ""
        self.version, self._synchronous = lesson.version, lesson.synchronous
        self._ask_at = now + self._settings.poll_s
        self._studying, self._again_at, self._takes_same = self._settings.studies > 0, None, False
        return [StudyLesson(self._number + 1, lesson, model)]

    def _on_refused(self, refused: PupilRefused, now: float) -> list[Effect]:
        if refused.digest and (self._offer is None or refused.digest != self._offer.digest):
            return []
        self._offer = None
        if refused.pull_again:
            self.version, self._ask_at = 0, now
            return []
        self.refused = refused.reason
        self._ask_at = now + self._settings.poll_s
        return [Finish(f"the cloud refused: {refused.reason}", 2)] if self._settings.studies else []

    def _speak(self, now: float) -> list[Effect]:
        """Say what is due: one question at a time."""
        if self.is_paused:
            return []
        if self._offer is not None:
            if now < self._offer_at:
                return []
            self._offer_at = now + self._settings.retry_s
            ready = self._offer.ready
            named = (self.pupil, self._schema_hash, ready.number, self._offer.digest, ready.version, ready.group)
            if self._settings.sends_vectors:
                return [Send(CLOUD, VectorMessage(*named, values=bytes(ready.update)))]
            return [Send(CLOUD, UpdateOffered(*named))]
        if self._studying:
            self._ask_at = now + self._settings.poll_s
            return []
        waited = self._is_idle() and self._again_at is not None and now >= self._again_at
        if waited and not self._takes_same and not self._synchronous:
            self._takes_same, self._ask_at = True, now
        if now < self._ask_at:
            return []
        # Ask often until something comes; then only now and then, in case the cloud's own word was lost.
        is_urgent = self._takes_same or not (self.version or self.refused)
        self._ask_at = now + (self._settings.retry_s if is_urgent else self._settings.poll_s)
        known = 0 if self._takes_same else self.version
        by_itself = self._settings.studies > 0
        return [Send(CLOUD, LessonWanted(self.pupil, self._schema_hash, self._model, known, by_itself))]

    def _is_idle(self) -> bool:
        return bool(self._settings.studies) and not self._studying and self._offer is None

    def _give_up(self, now: float) -> list[Effect]:
        limit_s = self._settings.gives_up_s
        if self.is_paused or self.heard_at is not None or not limit_s or now - self._started < limit_s:
            return []
        return [Finish(f"no cloud answered for {limit_s:g} s", 3)]
