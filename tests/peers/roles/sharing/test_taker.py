"""A device takes windows from the one that its user has named, keeps them whole, and deletes them when told."""

from __future__ import annotations

import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.sharing import ASK_S, WindowTaker
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    DeleteShared,
    Effect,
    Finish,
    PartStored,
    PeerFound,
    PeerRevoked,
    Received,
    Send,
    SharedDeleted,
    StopRequested,
    StorePart,
    Tick,
)
from mdl.protocol.messages import Said
from mdl.protocol.sharing_messages import (
    PART_BYTES,
    Offer,
    PartMessage,
    PartWanted,
    WindowsOffered,
    WindowsRecalled,
    WindowsSought,
)
from mdl.protocol.statements import Enrolled, Proof
from mdl.protocol.vocabulary import Packed, PeerInfo, Role

ME = Contributor("watch", 1)
PHONE, EVE = b"p" * 32, b"e" * 32
OFFER = Offer(10.0)
PARCEL = WindowsOffered(b"1" * 16, PART_BYTES + 5, b"d" * 32, 40, 10)
ID = PARCEL.sharing_id
FIRST, SECOND = Packed(bytes(PART_BYTES)), Packed(bytes(5))


def found(name: str, device: bytes) -> PeerFound:
    proof = Proof(Enrolled(device, name, b"k" * 32), 1, ("10.0.0.2",), 1)
    return PeerFound(PeerInfo(name, 1, Role.TRAINER, "10.0.0.2", 1, proof=proof))


def said(name: str, message: Said, values: Packed | None = None) -> Received:
    return Received(Contributor(name, 1), message, values)


def taker(held: bytes = b"", is_once: bool = False) -> WindowTaker:
    machine = WindowTaker(ME, lambda device: device == PHONE, OFFER, 1 << 30, held, is_once)
    assert machine.deadline() is None
    machine.handle(found("eve", EVE), 0.0)
    assert machine.handle(found("phone", PHONE), 0.0) == [Send("phone", WindowsSought(OFFER, held, bool(held)))]
    return machine


def fetch(machine: WindowTaker) -> list[Effect]:
    assert machine.handle(said("phone", PARCEL), 1.0) == [Send("phone", PartWanted(ID, 0))]
    assert machine.handle(said("phone", PartMessage(ID, 0), FIRST), 1.0) == [StorePart(PARCEL, 0, FIRST)]
    assert machine.handle(PartStored(ID, 0, False), 1.0) == [Send("phone", PartWanted(ID, 1))]
    assert machine.handle(said("phone", PartMessage(ID, 1), SECOND), 1.0) == [StorePart(PARCEL, 1, SECOND)]
    return machine.handle(PartStored(ID, 1, True), 1.0)


def test_it_fetches_part_after_part_and_says_what_it_has() -> None:
    machine = taker()
    assert fetch(machine) == [Send("phone", WindowsSought(OFFER, ID, True))]
    assert machine.held == ID
    assert machine.handle(Tick(), 1.0 + ASK_S) == [Send("phone", WindowsSought(OFFER, ID, True))]
    assert fetch(taker(is_once=True))[-1] == Finish()


def test_nobody_else_can_give_it_windows_or_have_them_deleted() -> None:
    machine = taker(held=ID)
    for message in (PARCEL, PartMessage(ID, 0), WindowsRecalled(ID)):
        for name in ("eve", "nobody"):
            with pytest.raises(RemoteProtocolError, match="accepted from another device"):
                machine.handle(said(name, message, FIRST), 1.0)
    assert machine.held == ID


def test_who_takes_the_name_of_its_source_is_not_its_source() -> None:
    machine = taker(held=ID)
    machine.handle(found("phone", EVE), 1.0)
    with pytest.raises(RemoteProtocolError):
        machine.handle(said("phone", WindowsRecalled(ID)), 1.0)
    assert machine.deadline() is None, "nobody is asked"


def test_a_part_that_comes_twice_late_or_short_does_no_harm() -> None:
    machine = taker()
    assert machine.handle(said("phone", PartMessage(ID, 0), FIRST), 1.0) == [], "not asked for"
    machine.handle(said("phone", PARCEL), 1.0)
    assert machine.handle(said("phone", PARCEL), 1.0) == [], "it is on its way"
    assert machine.handle(said("phone", PartMessage(ID, 1), SECOND), 1.0) == []
    with pytest.raises(RemoteProtocolError, match="has not its"):
        machine.handle(said("phone", PartMessage(ID, 0), SECOND), 1.0)
    assert machine.handle(said("phone", PartMessage(ID, 0), FIRST), 1.0) == [StorePart(PARCEL, 0, FIRST)]
    assert machine.handle(said("phone", PartMessage(ID, 0), FIRST), 1.0) == []
    assert machine.handle(PartStored(b"9" * 16, 0, False), 1.0) == []


def test_what_does_not_come_is_asked_for_again() -> None:
    machine = taker()
    machine.handle(said("phone", PARCEL), 1.0)
    asked = WindowsSought(OFFER, ID, False)
    assert machine.handle(Tick(), 3.0) == [Send("phone", asked)]
    assert machine.handle(Tick(), 7.0) == [Send("phone", asked), Send("phone", PartWanted(ID, 0))]


def test_more_than_it_has_room_for_is_refused() -> None:
    huge = WindowsOffered(ID, (1 << 30) + 1, b"d" * 32, 40, 10)
    with pytest.raises(RemoteProtocolError, match="at most 1073741824 are taken"):
        taker().handle(said("phone", huge), 1.0)


def test_it_deletes_what_is_recalled_also_on_its_way_and_says_so() -> None:
    on_its_way = taker()
    on_its_way.handle(said("phone", PARCEL), 1.0)
    for machine in (taker(held=ID), on_its_way):
        (deleting,) = machine.handle(said("phone", WindowsRecalled(ID)), 1.0)
        assert isinstance(deleting, DeleteShared)
        assert machine.handle(SharedDeleted(), 1.0) == [Send("phone", WindowsSought(OFFER))]
    other = taker(held=ID).handle(said("phone", WindowsRecalled(b"9" * 16)), 1.0)
    assert other == [Send("phone", WindowsSought(OFFER, ID, True))], "what it does not have is deleted already"


def test_a_device_that_is_revoked_deletes_what_it_was_given() -> None:
    assert taker(held=ID).handle(PeerRevoked("watch", "sold"), 1.0) == [DeleteShared("sold"), Finish("sold", 2)]
    machine = taker()
    assert machine.handle(PeerRevoked("phone", "lost"), 1.0) == []
    assert machine.deadline() is None


@pytest.mark.parametrize(("held", "code"), [(b"", 130), (ID, 0)])
def test_an_interrupt_ends_it(held: bytes, code: int) -> None:
    assert taker(held).handle(StopRequested(), 1.0) == [Finish("", code)]
