"""A device that accepts windows from another one of the same person: asks for its share, keeps it, deletes it if told.

It heeds the one device that its user has named, and nobody else. It asks again and again, and says each time what it
offers and what it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mdl.devices.offer import Offer
from mdl.errors import RemoteProtocolError
from mdl.protocol.bulk import Packed
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Effect,
    Event,
    Finish,
    PeerFound,
    PeerRevoked,
    Received,
    Send,
    StopRequested,
    TransferProgressed,
    WorkFailed,
)
from mdl.protocol.sharing.messages import (
    PART_BYTES,
    PartMessage,
    PartWanted,
    WindowsOffered,
    WindowsRecalled,
    WindowsSought,
)
from mdl.protocol.sharing.work import DeleteShared, PartStored, SharedDeleted, StorePart

# Interval of its questions: a person waits for the answer.
ASK_S = 2.0
# A part that does not come in this time, with no sign of it, is asked for once more.
_PATIENCE_S = 6.0


@dataclass
class _Fetch:
    """A parcel on its way. part: the next one. heard_at: time it last got on. is_storing: the part is here already."""

    offered: WindowsOffered
    heard_at: float
    part: int = 0
    is_storing: bool = False


class Taker:
    """is_source: True for the key (32 bytes) of the device that windows are accepted from. held: the sharing held here.

    most_bytes: of a parcel. is_once: it ends when it has windows, else it goes on and hears when they are recalled.
    """

    def __init__(
        self,
        me: Contributor,
        is_source: Callable[[bytes], bool],
        offer: Offer,
        most_bytes: int,
        held: bytes = b"",
        is_once: bool = False,
    ) -> None:
        self.me = me
        self.held = held
        self._is_source = is_source
        self._offer = offer
        self._most_bytes = most_bytes
        self._is_once = is_once
        self._sources: set[str] = set()
        self._fetch: _Fetch | None = None
        self._ask_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerFound(info=info) if info.proof is not None and self._is_source(info.proof.enrolled.device):
                self._sources.add(info.peer_id)
                return self._ask(now)
            case PeerFound(info=info):
                self._sources.discard(info.peer_id)
            case PeerRevoked(peer_id=peer_id, reason=reason):
                if peer_id == self.me.peer_id:
                    return [DeleteShared(reason), Finish(reason, 2)]
                self._sources.discard(peer_id)
            case Received(sender=sender, message=WindowsOffered() | PartMessage() | WindowsRecalled()):
                return self._hear(sender, event, now)
            case TransferProgressed(sender=sender) if self._fetch and sender.peer_id in self._sources:
                self._fetch.heard_at = now
            case PartStored():
                return self._note_stored(event, now)
            case SharedDeleted():
                self.held, self._fetch = b"", None
                return self._ask(now)
            case WorkFailed(problem=problem):
                return [Finish(problem, 4)]
            case StopRequested():
                return [Finish("", 0 if self.held else 130)]
        return self._ask(now) if now >= self._ask_at else []

    def deadline(self) -> float | None:
        return self._ask_at if self._sources else None

    def _hear(self, sender: Contributor, event: Received, now: float) -> list[Effect]:
        if sender.peer_id not in self._sources:
            raise RemoteProtocolError(f"{sender.peer_id} speaks of windows, which are accepted from another device")
        match event.message:
            case WindowsOffered() as offered:
                return self._take_offer(sender, offered, now)
            case PartMessage() as part:
                return self._take_part(part, event.values, now)
            case WindowsRecalled(sharing_id=sharing_id) if sharing_id in (self.held, self._fetched()):
                return [DeleteShared("the device that shared them has ended it")]
        return self._ask(now)

    def _take_offer(self, sender: Contributor, offered: WindowsOffered, now: float) -> list[Effect]:
        if offered.sharing_id == self.held:
            return self._ask(now)  # it says so
        if offered.size_bytes > self._most_bytes:
            raise RemoteProtocolError(f"{offered.size_bytes} bytes of windows; at most {self._most_bytes} are taken")
        if self._fetched() == offered.sharing_id:
            return []
        self._fetch = _Fetch(offered, now)
        return [Send(sender.peer_id, PartWanted(offered.sharing_id, 0))]

    def _take_part(self, part: PartMessage, content: object, now: float) -> list[Effect]:
        fetch = self._fetch
        if fetch is None or fetch.is_storing or (part.sharing_id, part.part) != (self._fetched(), fetch.part):
            return []  # late, or come twice
        expected = min(PART_BYTES, fetch.offered.size_bytes - part.part * PART_BYTES)
        if not isinstance(content, Packed) or len(content) != expected:
            raise RemoteProtocolError(f"part {part.part} of the windows has not its {expected} bytes")
        fetch.heard_at, fetch.is_storing = now, True
        return [StorePart(fetch.offered, part.part, content)]

    def _note_stored(self, stored: PartStored, now: float) -> list[Effect]:
        fetch = self._fetch
        if fetch is None or stored.sharing_id != self._fetched():
            return []
        fetch.is_storing, fetch.part, fetch.heard_at = False, stored.part + 1, now
        if not stored.is_whole:
            return self._want(fetch)
        self.held, self._fetch = stored.sharing_id, None
        return [*self._ask(now), *([Finish()] if self._is_once else [])]

    def _ask(self, now: float) -> list[Effect]:
        self._ask_at = now + ASK_S
        fetch, again = self._fetch, list[Effect]()
        if fetch and not fetch.is_storing and now - fetch.heard_at >= _PATIENCE_S:
            fetch.heard_at, again = now, self._want(fetch)
        held = self._fetched() or self.held
        sought = WindowsSought(self._offer, held, bool(held) and fetch is None)
        return [*(Send(peer_id, sought) for peer_id in sorted(self._sources)), *again]

    def _want(self, fetch: _Fetch) -> list[Effect]:
        wanted = PartWanted(fetch.offered.sharing_id, fetch.part)
        return [Send(peer_id, wanted) for peer_id in sorted(self._sources)]

    def _fetched(self) -> bytes:
        return self._fetch.offered.sharing_id if self._fetch else b""
