"""Devices that share windows, and what anybody may say to them: only who is named gets any, or can take them back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from mdl.peers.roles.sharing import Giver, WindowTaker
from mdl.protocol.machine import (
    CutWindows,
    DeleteShared,
    Effect,
    Event,
    PartRead,
    PartStored,
    PeerFound,
    ReadPart,
    Received,
    Send,
    SharedDeleted,
    StorePart,
    WindowsCut,
    WorkFailed,
)
from mdl.protocol.sharing_messages import PART_BYTES, Offer, PartMessage, WindowsOffered, WindowsRecalled
from mdl.protocol.statements import Enrolled, Proof
from mdl.protocol.vocabulary import Packed, PeerInfo, Role
from tests.fuzz.machines import Checked, Misbehaved, _Alone, _kinds_from

# Peers by the key of their device: ann is named, bob may still have windows of an earlier sharing.
DEVICES: Mapping[str, bytes] = {"ann": b"a" * 32, "bob": b"b" * 32, "carl": b"c" * 32}
ID, FORMER = b"1" * 16, b"2" * 16


def _found(name: str) -> PeerFound:
    proof = Proof(Enrolled(DEVICES[name], name, b"k" * 32), 9, ("127.0.0.1",), 1)
    return PeerFound(PeerInfo(name, 1, Role.TRAINER, "127.0.0.1", 9, proof=proof))


def _meet(checked: Checked, now: float) -> Checked:
    for name in DEVICES:
        checked.handle(_found(name), now)
    return checked


class GiverCase(_Alone):
    """Who has the data, and what takers and others may say."""

    def _start(self) -> Checked:
        names = frozenset(["ann"]) if self.rng.random() < 0.8 else frozenset[str]()
        recalled = {FORMER: DEVICES["bob"]}

        def name_of(device: bytes) -> str:
            return "ann" if device == DEVICES["ann"] and names else ""

        return _meet(Checked(Giver(self.me, names, name_of, recalled, 30.0, self.now), self.me), self.now)

    def _kinds(self) -> tuple[type[Any], ...]:
        self.hostile.seen["sharing_id"] = self.hostile.seen["held"] = deque((ID, FORMER, b"3" * 16))
        return _kinds_from("WindowsSought", "PartWanted", "PartWanted", "WindowsOffered", "PartMessage")

    def _answer(self, effect: Effect) -> Event | None:
        match effect:
            case Send(receiver=receiver, message=WindowsOffered() | PartMessage()) if receiver != "ann":
                raise Misbehaved(f"windows go to {receiver}")
            case Send(receiver=receiver, message=WindowsRecalled()) if receiver != "bob":
                raise Misbehaved(f"{receiver} is told to delete")
            case CutWindows(offers=offers):
                parcel = WindowsOffered(ID, PART_BYTES + self.rng.randrange(1, PART_BYTES), b"d" * 32, 5, 2)
                return WindowsCut(tuple((device, parcel) for device, _ in offers))
            case ReadPart() if self.rng.random() < 0.9:
                return PartRead(effect.receiver, effect.sharing_id, effect.part, Packed(b"1234"))
            case ReadPart():
                return WorkFailed("ReadPart", "no disk")
        return None


class TakerCase(_Alone):
    """Who accepts windows from ann, and what she and others may say."""

    def _start(self) -> Checked:
        held = self.rng.choice((b"", ID))
        machine = WindowTaker(self.me, lambda device: device == DEVICES["ann"], Offer(1.0), 3 * PART_BYTES, held)
        return _meet(Checked(machine, self.me), self.now)

    def _kinds(self) -> tuple[type[Any], ...]:
        self.hostile.seen["sharing_id"] = self.hostile.seen["held"] = deque((ID, FORMER, b"3" * 16))
        return _kinds_from("WindowsOffered", "PartMessage", "WindowsRecalled", "PartWanted", "WindowsSought")

    def _hand(self, event: Event) -> bool:
        self._speaker = event.sender.peer_id if isinstance(event, Received) else "ann"
        return super()._hand(event)

    def _answer(self, effect: Effect) -> Event | None:
        if isinstance(effect, StorePart | DeleteShared) and self._speaker != "ann":
            raise Misbehaved(f"{type(effect).__name__} by a word of {self._speaker}")
        match effect:
            case StorePart(offered=offered, part=part):
                is_whole = (part + 1) * PART_BYTES >= offered.size_bytes
                return PartStored(offered.sharing_id, part, is_whole)
            case DeleteShared():
                return SharedDeleted()
        return None
