"""The cloud: hands out lessons, takes updates, and decides when to learn from them (Colla 3.1, stages 1 to 4).

Learners ask, the cloud answers; it never has to reach anybody. An update counts once it is on the disk, and only then
does its learner hear so; a cycle counts once all it made is on the disk. So whatever ends this process, nothing of a
pupil is lost, and a cycle that was under way is done again. Knows nothing of files, models and sockets.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import dataclass

import msgspec

from mdl.peers.cloud.machine import MAX_PUPILS, PRESENT_S, CloudSettings, Teaching
from mdl.protocol.cloud_messages import (
    LessonWanted,
    UpdateMessage,
    UpdateOffered,
    UpdateTaken,
    UpdateWanted,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Received,
    Send,
    StoreUpdate,
    TransferProgressed,
    UpdateStored,
)
from mdl.protocol.vocabulary import Bulk, Packed
from mdl.task import task_difference
from mdl.transport.wire.places import PlacesInLine

logger = logging.getLogger(__name__)


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


class Cloud(Teaching):
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
