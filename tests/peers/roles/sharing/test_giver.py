"""The device that shares gives windows to devices that are named, and to nobody else."""

from __future__ import annotations

import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.sharing import Giver
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CutWindows,
    Effect,
    Finish,
    ForgetShare,
    PartRead,
    PeerFound,
    PeerRevoked,
    ReadPart,
    Received,
    Send,
    StopRequested,
    Tick,
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
from mdl.protocol.statements import Enrolled, Proof
from mdl.protocol.vocabulary import Packed, PeerInfo, Role

ME = Contributor("phone", 1)
WATCH, TABLET, EVE = b"w" * 32, b"t" * 32, b"e" * 32
NAMES = {WATCH: "watch", TABLET: "tablet"}
OFFER = Offer(10.0)
PARCEL = WindowsOffered(b"1" * 16, PART_BYTES + 5, b"d" * 32, 40, 10)
OTHER = WindowsOffered(b"2" * 16, 7, b"d" * 32, 20, 5)


def found(name: str, device: bytes) -> PeerFound:
    proof = Proof(Enrolled(device, name, b"k" * 32), 1, ("10.0.0.2",), 1)
    return PeerFound(PeerInfo(name, 1, Role.TRAINER, "10.0.0.2", 1, proof=proof))


def said(name: str, message: WindowsSought | PartWanted) -> Received:
    return Received(Contributor(name, 1), message)


def giver(names: tuple[str, ...] = ("watch", "tablet"), recalled: dict[bytes, bytes] | None = None) -> Giver:
    machine = Giver(ME, frozenset(names), lambda key: NAMES.get(key, ""), recalled or {}, 60.0, 0.0)
    for name, device in (("watch", WATCH), ("tablet", TABLET), ("eve", EVE)):
        assert machine.handle(found(name, device), 0.0) == []
    return machine


def cut() -> Giver:
    machine = giver()
    machine.handle(said("watch", WindowsSought(OFFER)), 1.0)
    machine.handle(said("tablet", WindowsSought(OFFER)), 1.0)
    machine.handle(WindowsCut(((WATCH, PARCEL), (TABLET, OTHER))), 2.0)
    return machine


def test_it_divides_when_all_that_are_named_have_asked() -> None:
    machine = giver()
    assert machine.handle(said("watch", WindowsSought(OFFER)), 1.0) == []
    assert machine.missing() == {"tablet"}
    assert machine.handle(said("tablet", WindowsSought(Offer(5.0))), 1.0) == [
        CutWindows(((TABLET, Offer(5.0)), (WATCH, OFFER)))
    ]
    assert machine.handle(said("watch", WindowsSought(OFFER)), 1.5) == [], "once"
    sent = machine.handle(WindowsCut(((WATCH, PARCEL), (TABLET, OTHER))), 2.0)
    assert sent == [Send("watch", PARCEL), Send("tablet", OTHER)]


def test_it_waits_no_longer_than_its_user_allows() -> None:
    machine = giver()
    assert machine.deadline() == 60.0
    machine.handle(said("watch", WindowsSought(OFFER)), 1.0)
    assert machine.handle(Tick(), 60.0) == [CutWindows(((WATCH, OFFER),))]
    (end,) = giver().handle(Tick(), 60.0)
    assert isinstance(end, Finish)
    assert end.exit_code == 3


def test_parts_go_to_the_device_that_they_are_for_alone() -> None:
    machine = cut()
    wanted = PartWanted(PARCEL.sharing_id, 1)
    assert machine.handle(said("watch", wanted), 3.0) == [ReadPart("watch", PARCEL.sharing_id, 1)]
    read = PartRead("watch", PARCEL.sharing_id, 1, Packed(b"12345"))
    assert machine.handle(read, 3.0) == [Send("watch", PartMessage(PARCEL.sharing_id, 1), Packed(b"12345"))]
    for thief in ("tablet", "eve", "nobody"):
        with pytest.raises(RemoteProtocolError, match="not offered to its device"):
            machine.handle(said(thief, wanted), 3.0)
    with pytest.raises(RemoteProtocolError, match="wants part 2"):
        machine.handle(said("watch", PartWanted(PARCEL.sharing_id, 2)), 3.0)


def test_one_part_is_read_at_a_time_and_one_that_was_lost_on_its_way_once_more() -> None:
    """70 questions for one part once ended the giver: as many reads waited for its disk."""
    machine, wanted = cut(), said("watch", PartWanted(PARCEL.sharing_id, 0))
    assert len(machine.handle(wanted, 3.0)) == 1
    for _ in range(100):
        assert machine.handle(wanted, 3.1) == []
    assert machine.handle(said("tablet", PartWanted(OTHER.sharing_id, 0)), 3.1) == [
        ReadPart("tablet", OTHER.sharing_id, 0)
    ]
    machine.handle(PartRead("watch", PARCEL.sharing_id, 0, Packed(b"1")), 3.2)
    assert machine.handle(wanted, 9.0) == [ReadPart("watch", PARCEL.sharing_id, 0)]


def test_who_is_not_named_gets_no_word() -> None:
    for machine in (giver(), cut()):
        with pytest.raises(RemoteProtocolError, match="eve asks for windows, and is not among the devices"):
            machine.handle(said("eve", WindowsSought(OFFER)), 3.0)
        assert machine.handle(said("unknown", WindowsSought(OFFER)), 3.0) == []
        assert EVE not in machine.offers


def test_who_calls_itself_like_a_named_device_is_still_another_key() -> None:
    machine = cut()
    machine.handle(found("watch", EVE), 3.0)
    with pytest.raises(RemoteProtocolError):
        machine.handle(said("watch", PartWanted(PARCEL.sharing_id, 0)), 3.0)


def test_it_ends_when_all_say_that_they_have_all() -> None:
    machine = cut()
    assert machine.handle(said("watch", WindowsSought(OFFER, PARCEL.sharing_id, False)), 3.0) == [Send("watch", PARCEL)]
    assert machine.handle(said("watch", WindowsSought(OFFER, PARCEL.sharing_id, True)), 3.0) == []
    assert machine.handle(said("tablet", WindowsSought(OFFER, OTHER.sharing_id, True)), 3.0) == [Finish()]


def test_a_device_that_breaks_off_is_named() -> None:
    machine = cut()
    machine.handle(said("tablet", WindowsSought(OFFER, OTHER.sharing_id, True)), 3.0)
    assert machine.deadline() == 62.0
    assert machine.handle(Tick(), 62.0) == [Finish("not given to watch: it broke off", 4)]


def test_a_device_that_gets_no_further_holds_nobody_up() -> None:
    machine = cut()
    machine.handle(said("tablet", WindowsSought(OFFER, OTHER.sharing_id, True)), 3.0)
    for at in range(4, 60, 2):
        machine.handle(said("watch", WindowsSought(OFFER)), at)
        machine.handle(said("watch", PartWanted(PARCEL.sharing_id, 0)), at)
    assert machine.deadline() == 64.0
    machine.handle(said("watch", PartWanted(PARCEL.sharing_id, 1)), 63.0)
    assert machine.deadline() == 123.0


def test_a_revoked_device_is_given_nothing_more() -> None:
    machine = cut()
    machine.handle(PeerRevoked("watch", "sold"), 3.0)
    with pytest.raises(RemoteProtocolError):
        machine.handle(said("watch", PartWanted(PARCEL.sharing_id, 0)), 3.0)
    assert machine.handle(PartRead("watch", PARCEL.sharing_id, 0, Packed(b"1")), 3.0) == []
    assert machine.handle(said("tablet", WindowsSought(OFFER, OTHER.sharing_id, True)), 3.0) == [Finish()]
    early = giver()
    early.handle(said("watch", WindowsSought(OFFER)), 1.0)
    early.handle(PeerRevoked("watch", "sold"), 2.0)
    assert early.offers == {}, "no share is cut for it"
    assert cut().handle(PeerRevoked("phone", "sold"), 3.0) == [Finish("sold", 2)]


def test_what_has_ended_is_recalled_until_the_device_says_that_it_is_gone() -> None:
    machine = giver((), {PARCEL.sharing_id: WATCH})
    held = WindowsSought(OFFER, PARCEL.sharing_id, True)
    for _ in range(2):
        assert machine.handle(said("watch", held), 1.0) == [Send("watch", WindowsRecalled(PARCEL.sharing_id))]
    done: list[Effect] = machine.handle(said("watch", WindowsSought(OFFER)), 1.0)
    assert done == [ForgetShare(PARCEL.sharing_id), Finish()]


def test_a_recall_that_reaches_nobody_ends_in_time_and_stays_to_be_told() -> None:
    machine = giver((), {PARCEL.sharing_id: WATCH})
    with pytest.raises(RemoteProtocolError):  # it does not hold what somebody else was given
        machine.handle(said("eve", WindowsSought(OFFER, PARCEL.sharing_id, True)), 1.0)
    assert machine.handle(Tick(), 60.0) == [Finish()]
    assert machine.recalled == {PARCEL.sharing_id: WATCH}


def test_former_windows_go_before_new_ones_come() -> None:
    machine = giver(("watch",), {OTHER.sharing_id: WATCH})
    held = WindowsSought(OFFER, OTHER.sharing_id, True)
    assert machine.handle(said("watch", held), 1.0) == [Send("watch", WindowsRecalled(OTHER.sharing_id))]
    assert machine.handle(said("watch", WindowsSought(OFFER)), 1.0) == [
        ForgetShare(OTHER.sharing_id), CutWindows(((WATCH, OFFER),))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "end"), [(WorkFailed("CutWindows", "full"), Finish("full", 4)), (StopRequested(), Finish("", 130))]
)
def test_a_full_disk_and_an_interrupt_end_it(event: WorkFailed | StopRequested, end: Finish) -> None:
    assert giver().handle(event, 1.0) == [end]
