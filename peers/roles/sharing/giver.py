"""The device that shares its windows: it answers the devices that its user has named, and nobody else.

It waits until all of them have asked, or as long as its user allows; divides the windows by what they offer, and gives
each its share. A device that still has windows of a sharing that was ended is told to delete them whenever it asks.
A device says each time what it has, so that nothing is lost with a message. Nothing is said to anybody else; a device
that asks without being named gets no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mdl.devices.offer import Offer
from mdl.errors import RemoteProtocolError
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
    WorkFailed,
)
from mdl.protocol.sharing.messages import PART_BYTES, PartMessage, PartWanted, WindowsOffered, WindowsRecalled
from mdl.protocol.sharing.messages import WindowsSought as Sought
from mdl.protocol.sharing.work import CutWindows, ForgetShare, PartRead, ReadPart, WindowsCut


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
