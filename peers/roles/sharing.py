"""Windows that a device shares with others of the same person: the giver and the taker.

The giver answers the devices that its user has named. A device that asks without being named gets no answer. The giver
waits until all of them have asked, or as long as its user allows; divides the windows by what they offer, and gives
each its share. A device that still has windows of a sharing that was ended is told to delete them whenever it asks.

The taker heeds the one device that its user has named, and nobody else. It asks for its share, keeps it, and deletes it
if told. It asks again and again, and says each time what it offers and what it has, so that nothing is lost with a
message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CutWindows,
    DeleteShared,
    Effect,
    Event,
    Finish,
    ForgetShare,
    PartRead,
    PartStored,
    PeerFound,
    PeerRevoked,
    ReadPart,
    Received,
    Send,
    SharedDeleted,
    StopRequested,
    StorePart,
    TransferProgressed,
    WindowsCut,
    WorkFailed,
)
from mdl.protocol.sharing_messages import (
    PART_BYTES,
    Offer,
    PartMessage,
    PartWanted,
    WindowsOffered,
    WindowsRecalled,
    WindowsSought,
)
from mdl.protocol.sharing_messages import WindowsSought as Sought
from mdl.protocol.vocabulary import Packed


class Giver:
    """name_of: key (32 bytes) of a device -> the name by which its user shares with it; "" if it is not named.

    names: all of these, none if nothing is shared now. recalled: sharings that have ended -> the device that may still
    have their windows. wait_s: for the next step of a device that has not got all. given: the devices that got all.
    """

    def __init__(
        self,
        me: Contributor,
        names: frozenset[str],
        name_of: Callable[[bytes], str],
        recalled: Mapping[bytes, bytes],
        wait_s: float,
        now: float,
    ) -> None:
        self.me = me
        self.names = names
        self.offers: dict[bytes, Offer] = {}
        self.parcels: dict[bytes, WindowsOffered] | None = None
        self.given: set[bytes] = set()
        self.recalled = dict(recalled)
        self._name_of = name_of
        self._devices: dict[str, bytes] = {}
        self._next_parts: dict[bytes, int] = {}
        self._reading: set[bytes] = set()  # sharings of which a part is read now
        self._is_cutting = False
        self._wait_s = wait_s
        self._give_up_at = now + wait_s

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerFound(info=info) if info.proof is not None:
                self._devices[info.peer_id] = info.proof.enrolled.device
            case PeerRevoked(peer_id=peer_id, reason=reason):
                if peer_id == self.me.peer_id:
                    return [Finish(reason, 2)]
                self._part_with(peer_id)
            case Received(sender=sender, message=Sought() as sought):
                return [*self._hear(sender, sought), *self._go_on(now)]
            case Received(sender=sender, message=PartWanted() as wanted):
                return self._serve(sender, wanted, now)
            case WindowsCut(parcels=parcels):
                self._is_cutting, self.parcels = False, dict(parcels)
                self._give_up_at = now + self._wait_s
                return [*self._offer_all(), *self._go_on(now)]
            case PartRead():
                self._reading.discard(event.sharing_id)
                message = PartMessage(event.sharing_id, event.part)
                return [Send(event.receiver, message, event.content)] if event.receiver in self._devices else []
            case WorkFailed(problem=problem):
                return [Finish(problem, 4)]
            case StopRequested():
                return [Finish("", 130)]
        return self._go_on(now)

    def deadline(self) -> float | None:
        return None if self._is_cutting else self._give_up_at

    def missing(self) -> frozenset[str]:
        """Return the named devices that have not asked yet, or not got all."""
        if self.parcels is None:
            return self.names - {self._name_of(device) for device in self.offers}
        return frozenset(self._name_of(device) for device in self.parcels.keys() - self.given)

    def _hear(self, sender: Contributor, sought: Sought) -> list[Effect]:
        device = self._devices.get(sender.peer_id)
        if device is None:
            return []  # its identity comes by another way; it asks again
        effects: list[Effect] = []
        ended = [sharing_id for sharing_id, of in self.recalled.items() if of == device]
        if sought.held in ended:
            return [Send(sender.peer_id, WindowsRecalled(sought.held))]
        for sharing_id in ended:
            del self.recalled[sharing_id]
            effects.append(ForgetShare(sharing_id))
        if self._name_of(device):
            self.offers[device] = sought.offer
            return [*effects, *self._answer(sender.peer_id, device, sought)]
        if ended:
            return effects
        raise RemoteProtocolError(f"{sender.peer_id} asks for windows, and is not among the devices that are named")

    def _answer(self, peer_id: str, device: bytes, sought: Sought) -> list[Effect]:
        parcel = self.parcels.get(device) if self.parcels is not None else None
        if parcel is None:
            return []
        if sought.held == parcel.sharing_id and sought.is_whole:
            self.given.add(device)
            return []
        return [Send(peer_id, parcel)]

    def _serve(self, sender: Contributor, wanted: PartWanted, now: float) -> list[Effect]:
        device = self._devices.get(sender.peer_id)
        parcel = self.parcels.get(device) if self.parcels is not None and device is not None else None
        if parcel is None or parcel.sharing_id != wanted.sharing_id:
            raise RemoteProtocolError(f"{sender.peer_id} wants windows that were not offered to its device")
        if wanted.part * PART_BYTES >= parcel.size_bytes:
            raise RemoteProtocolError(f"{sender.peer_id} wants part {wanted.part} of {parcel.size_bytes} bytes")
        if wanted.part >= self._next_parts.get(wanted.sharing_id, 0):  # asking for the same again gets no further
            self._next_parts[wanted.sharing_id] = wanted.part + 1
            self._give_up_at = now + self._wait_s
        if wanted.sharing_id in self._reading:
            return []  # one part at a time; a taker that has not got it asks again
        self._reading.add(wanted.sharing_id)
        return [ReadPart(sender.peer_id, wanted.sharing_id, wanted.part)]

    def _go_on(self, now: float) -> list[Effect]:
        if self._is_cutting:
            return []
        is_over = now >= self._give_up_at
        if self.names and self.parcels is None:
            if self.offers and (is_over or not self.missing()):
                self._is_cutting = True
                return [CutWindows(tuple(sorted(self.offers.items(), key=lambda item: item[0])))]
            return [Finish("none of the devices that are named has asked", 3)] if is_over else []
        if self.missing() and not is_over:
            return []
        if self.recalled and not self.names and not is_over:
            return []
        missing = ", ".join(sorted(self.missing()))
        return [Finish(f"not given to {missing}: it broke off", 4)] if missing else [Finish()]

    def _offer_all(self) -> list[Effect]:
        """Offer at once to those that wait: they would ask again in a while."""
        parcels = self.parcels or {}
        return [Send(peer_id, parcels[device]) for peer_id, device in self._devices.items() if device in parcels]

    def _part_with(self, peer_id: str) -> None:
        """Give nothing more to a device that was locked out."""
        device = self._devices.pop(peer_id, None)
        if device is not None and device not in self._devices.values():
            self.offers.pop(device, None)
            if self.parcels is not None:
                self.parcels.pop(device, None)


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


class WindowTaker:
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
