"""What a device takes another one's word for."""

from __future__ import annotations

import msgspec
import pytest

from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code, own_names
from mdl.transport.trust.membership import MAX_VISITORS, Membership
from mdl.transport.trust.roster import MAX_NAMES

FOUNDER, ANN, BOB = (DeviceKey.of(bytes([at]) * 32) for at in range(3))
KEYS = MeshKeys.from_code(new_join_code("home", bytes(19), founder_mark(FOUNDER.public)))
OTHER = MeshKeys.from_code(new_join_code("home", bytes(range(19)), founder_mark(FOUNDER.public)))
INFO = PeerInfo("ann", 1, Role.TRAINER, "10.0.0.1", 5, "abc")


def introduced(info: PeerInfo = INFO, device: DeviceKey = ANN, serial: int = 10, keys: MeshKeys = KEYS) -> PeerInfo:
    return Membership(keys, device).introduce(info, 6, [info.host, "10.0.0.9"], serial)


@pytest.fixture
def owner() -> Membership:
    membership = Membership(KEYS, FOUNDER)
    membership.roster.add(membership.found())
    return membership


def test_who_introduces_itself_is_in_and_may_speak_for_itself_alone(owner: Membership) -> None:
    assert owner.admit(introduced())
    assert owner.device_of(ANN.link_key) == ANN.public
    assert owner.may_speak(ANN.link_key, "ann")
    assert not owner.may_speak(BOB.link_key, "ann")
    assert not owner.may_speak(ANN.link_key, "bob")
    assert not owner.is_out(introduced())


def test_what_was_said_earlier_counts_no_more(owner: Membership) -> None:
    assert owner.admit(introduced(serial=10))
    assert owner.admit(introduced(serial=10)), "said again"
    assert not owner.admit(introduced(serial=9))
    assert owner.admit(introduced(serial=11))
    later = msgspec.structs.replace(INFO, incarnation=2)
    assert owner.admit(introduced(later, serial=3)), "another start, whose clock was set back"


@pytest.mark.parametrize(
    "change",
    [
        {"host": "10.6.6.6"},
        {"port": 7},
        {"incarnation": 2},
        {"role": Role.OBSERVER},
        {"schema_hash": "abd"},
        {"peer_id": "bob"},
        {"proof": None},
    ],
)
def test_what_somebody_else_changes_is_refused_and_changes_nothing(
    owner: Membership, change: dict[str, object]
) -> None:
    digest = owner.roster.digest
    with pytest.raises(RemoteProtocolError):
        owner.admit(msgspec.structs.replace(introduced(), **change))
    assert owner.roster.digest == digest
    assert owner.admit(msgspec.structs.replace(introduced(), host="10.0.0.9")), "one of the addresses it has signed"


@pytest.mark.parametrize("field", ["link_port", "hosts", "serial", "enrolled", "signature"])
def test_no_part_of_a_proof_can_be_exchanged(owner: Membership, field: str) -> None:
    proof = introduced().proof
    assert proof is not None
    other = {
        "link_port": 7,
        "hosts": ("10.0.0.1",),
        "serial": 11,
        "enrolled": Membership(KEYS, BOB).enrol("ann"),
        "signature": bytes(64),
    }
    with pytest.raises(RemoteProtocolError):
        owner.admit(msgspec.structs.replace(INFO, proof=msgspec.structs.replace(proof, **{field: other[field]})))


def test_another_devices_name_is_refused(owner: Membership) -> None:
    owner.admit(introduced())
    with pytest.raises(RemoteProtocolError, match="name of another device: start the new one with --name"):
        owner.admit(introduced(device=BOB, serial=99))
    assert owner.may_speak(ANN.link_key, "ann")


def test_a_name_that_its_device_has_given_up_is_the_next_ones(owner: Membership) -> None:
    """A first start of a device, which took a name of its own at once, may be announced for a while."""
    owner.admit(introduced())
    owner.roster.add(Membership(KEYS, ANN).enrol(own_names("ann", ANN.public)[0]))
    assert owner.may_speak(ANN.link_key, "ann"), "nobody else has come with it"
    assert owner.admit(introduced(device=BOB, serial=99))
    assert owner.may_speak(BOB.link_key, "ann")
    assert not owner.may_speak(ANN.link_key, "ann")
    with pytest.raises(RemoteProtocolError, match="name of another device"):
        owner.admit(introduced(serial=100))


def test_another_code_admits_nobody(owner: Membership) -> None:
    with pytest.raises(RemoteProtocolError, match="another join code"):
        owner.admit(introduced(keys=OTHER))


def test_an_observer_is_let_in_without_being_of_the_mesh_and_forgotten_at_last(owner: Membership) -> None:
    def look(name: str, device: DeviceKey) -> None:
        owner.admit(introduced(PeerInfo(name, 1, Role.OBSERVER, "10.0.0.1", 5), device))

    digest = owner.roster.digest
    look("page", ANN)
    assert owner.device_of(ANN.link_key) == ANN.public
    assert owner.may_speak(ANN.link_key, "page")
    assert owner.roster.digest == digest
    for number in range(MAX_VISITORS):
        look(f"page-{number}", BOB)
    assert owner.device_of(ANN.link_key) is None
    assert not owner.may_speak(ANN.link_key, "page")


def test_who_is_revoked_is_out_as_member_and_as_observer(owner: Membership) -> None:
    owner.admit(introduced())
    owner.admit(introduced(PeerInfo("page", 1, Role.OBSERVER, "10.0.0.1", 5)))
    for statement in owner.revoke(ANN.public, 20, "lost"):
        owner.roster.add(statement)
    assert owner.device_of(ANN.link_key) is None
    assert not owner.may_speak(ANN.link_key, "ann")
    assert not owner.may_speak(ANN.link_key, "page")
    assert owner.is_out(introduced())
    for again in (introduced(serial=99), introduced(msgspec.structs.replace(INFO, peer_id="new"), serial=99)):
        with pytest.raises(RemoteProtocolError, match="was revoked"):
            owner.admit(again)
    assert owner.admit(introduced(device=BOB)), "its name is free"
    assert owner.is_out(introduced()), "who had it is out all the same"
    assert not owner.is_out(introduced(device=BOB))


def test_a_device_that_is_locked_out_is_told_so_when_it_joins(owner: Membership) -> None:
    ann = Membership(KEYS, ANN, [*owner.roster.statements(), *owner.revoke(ANN.public, 20, "sold")])
    with pytest.raises(ConfigError, match="has revoked this device: sold"):
        ann.join("ann")
    bob = Membership(KEYS, BOB)
    for number in range(MAX_NAMES):
        bob.join(f"bob-{number}")
    with pytest.raises(ConfigError, match="names already"):
        bob.join("one-more")


def test_a_changed_code_keeps_who_has_worked(owner: Membership) -> None:
    owner.join("founder")
    owner.admit(introduced())
    owner.note_worked(["ann"])
    ann = Membership(KEYS, ANN, owner.roster.statements())
    changed = owner.change_code(OTHER.code_hash)
    bob = Membership(KEYS, BOB, [*owner.roster.statements(), Membership(KEYS, BOB).enrol("bob")])
    for membership in (owner, ann, bob):
        membership.roster.add(changed)
    assert (owner.is_kept(), ann.is_kept(), bob.is_kept()) == (True, True, False)
    assert bob.roster.enrolled("bob") is None


def test_an_observer_takes_no_name_and_is_told_from_a_member(owner: Membership) -> None:
    looks = msgspec.structs.replace(INFO, role=Role.OBSERVER)
    assert owner.admit(introduced(looks))
    assert owner.is_visitor("ann")
    with pytest.raises(RemoteProtocolError, match="name of another device"):
        owner.admit(introduced(looks, BOB))
    assert owner.admit(introduced(serial=11))
    assert not owner.is_visitor("ann")


def test_starts_without_end_of_one_name_push_out_what_no_other_has_said(owner: Membership) -> None:
    """An older word of the other one would count again."""
    assert owner.admit(introduced(serial=10))
    for number in range(50):
        owner.admit(introduced(PeerInfo("bob", number, Role.TRAINER, "10.0.0.1", 5), BOB, number))
    assert not owner.admit(introduced(serial=9))
    assert owner.knows(introduced(serial=10))
