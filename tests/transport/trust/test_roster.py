"""Whatever order statements come in, and however often, the same follows; and nothing brings back who is out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.errors import RemoteProtocolError
from mdl.protocol.statements import AnyStatement, CodeChanged, DeviceRevoked, Enrolled, OwnerNamed, claim_of
from mdl.transport.trust.keys import DeviceKey, MeshKeys, code_hash, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import MAX_NAMES, Roster

FOUNDER, ANN, BOB, CLEO, DAN = DEVICES = [DeviceKey.of(bytes([at]) * 32) for at in range(5)]
MARK = founder_mark(FOUNDER.public)
CODE, OTHER_CODE = (new_join_code("home", bytes([at]) * 19, MARK) for at in (1, 2))
KEYS, OTHER = MeshKeys.from_code(CODE), MeshKeys.from_code(OTHER_CODE)
UNOWNED = MeshKeys.from_code(new_join_code("home", bytes(19)))


def enrol(device: DeviceKey, name: str, keys: MeshKeys = KEYS) -> Enrolled:
    return Membership(keys, device).enrol(name)


def sign(device: DeviceKey, bare: AnyStatement) -> AnyStatement:
    return msgspec.structs.replace(bare, signature=device.signing.sign(claim_of(KEYS.mesh_id, bare)))


def own(device: DeviceKey, by: DeviceKey = FOUNDER) -> AnyStatement:
    return sign(by, OwnerNamed(device.public, by.public))


def revoke(device: DeviceKey, by: DeviceKey = FOUNDER, at: int = 7) -> AnyStatement:
    return sign(by, DeviceRevoked(device.public, by.public, at))


def change(kept: list[DeviceKey], by: DeviceKey = FOUNDER, number: int = 1, keys: MeshKeys = OTHER) -> AnyStatement:
    return sign(by, CodeChanged(number, keys.code_hash, tuple(sorted(each.public for each in kept)), by.public))


def names(roster: Roster) -> list[str]:
    return [each.peer_id for each in roster.members()]


def meet(rosters: list[Roster]) -> None:
    """Each tells all it knows to each, until nothing is new."""
    is_new = True
    while is_new:
        is_new = False
        for teller in rosters:
            for hearer in rosters:
                for statement in teller.statements():
                    try:
                        is_new |= hearer.add(statement)
                    except RemoteProtocolError:
                        continue


ENROLMENTS = [enrol(device, f"p{at}") for at, device in enumerate(DEVICES)]
OWNERS = [own(FOUNDER), own(ANN), own(BOB, ANN), own(CLEO, BOB), own(ANN, BOB)]
REVOCATIONS = [revoke(DAN, ANN), revoke(BOB, ANN), revoke(ANN, BOB), revoke(CLEO, BOB), revoke(ANN), revoke(DAN, CLEO)]
CHANGES = [change([FOUNDER, ANN, BOB]), change([FOUNDER, BOB, DAN], ANN, 2, KEYS)]
ALL: list[AnyStatement] = [*ENROLMENTS, *OWNERS, *REVOCATIONS, *CHANGES]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_in_any_order_and_however_often_the_same_follows(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(ALL), unique_by=repr))
    rosters = []
    for _ in range(2):
        roster = Roster(KEYS)
        order = data.draw(st.permutations(chosen + data.draw(st.lists(st.sampled_from(chosen or ALL[:1]), max_size=4))))
        for statement in order:
            try:
                roster.add(statement)
            except RemoteProtocolError:
                continue  # what it stands on has not come yet: it is told again
        rosters.append(roster)
    meet(rosters)
    meet([*rosters, again := Roster(KEYS, rosters[0].statements())])
    for roster in (rosters[1], again):
        assert roster.digest == rosters[0].digest
        assert roster.members() == rosters[0].members()
        assert roster.owners() == rosters[0].owners()
        assert {each.device for each in roster.revocations()} == {each.device for each in rosters[0].revocations()}
        assert roster.is_code_old == rosters[0].is_code_old


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(ALL), max_size=20))
def test_who_is_revoked_by_the_founder_never_comes_back(later: list[AnyStatement]) -> None:
    roster = Roster(KEYS, [own(FOUNDER), own(ANN), *ENROLMENTS, revoke(ANN)])
    told = [*later, own(ANN), enrol(ANN, "another-name"), revoke(FOUNDER, ANN), own(DAN, ANN), change([ANN], ANN)]
    for statement in told:
        try:
            roster.add(statement)
        except RemoteProtocolError:
            continue
    assert roster.is_revoked(ANN.public)
    assert ANN.public not in roster.owners()
    assert roster.device_of(ANN.link_key) is None
    assert not {"p1", "another-name"} & {*names(roster)}
    assert Roster(KEYS, roster.statements()).is_revoked(ANN.public), "not even after a restart"


def test_the_founder_alone_names_itself_and_nobody_revokes_it() -> None:
    roster = Roster(KEYS, [own(FOUNDER), own(ANN)])
    assert roster.owners() == {FOUNDER.public, ANN.public}
    with pytest.raises(RemoteProtocolError, match="named by a device that is none"):
        roster.add(own(BOB, BOB))
    for by in (ANN, FOUNDER):
        with pytest.raises(RemoteProtocolError, match="or it is the founder's"):
            roster.add(revoke(FOUNDER, by))
    with pytest.raises(RemoteProtocolError, match="does not own the mesh"):
        roster.add(revoke(ANN, BOB))
    with pytest.raises(RemoteProtocolError, match="does not own the mesh"):
        roster.add(change([BOB], BOB))


def test_a_mesh_without_a_founder_has_no_owners() -> None:
    roster = Roster(UNOWNED)
    for device in DEVICES:
        with pytest.raises(RemoteProtocolError, match="that is none"):
            roster.add(own(device, device))


def test_who_stands_lower_is_revoked_with_all_that_it_named_and_stated() -> None:
    """ANN names BOB, who names CLEO, who revokes DAN; then ANN revokes BOB."""
    roster = Roster(KEYS, [own(FOUNDER), own(ANN), own(BOB, ANN), own(CLEO, BOB), *ENROLMENTS, revoke(DAN, CLEO)])
    assert roster.is_revoked(DAN.public)
    with_all = Roster(KEYS, roster.statements())
    assert not with_all.add(revoke(ANN, BOB)), "or it would be told on for ever"
    assert not with_all.is_revoked(ANN.public), "a lower one revokes no higher one"
    roster.add(revoke(BOB, ANN))
    assert roster.owners() == {FOUNDER.public, ANN.public}
    assert not roster.is_revoked(DAN.public), "what it stated is void"
    assert not any(each in roster.statements() for each in (own(CLEO, BOB), revoke(DAN, CLEO))), "and not told on"
    with pytest.raises(RemoteProtocolError):
        roster.add(revoke(ANN, BOB))


def test_equals_revoke_each_other() -> None:
    roster = Roster(KEYS, [own(FOUNDER), own(ANN), own(BOB), revoke(ANN, BOB)])
    assert roster.is_revoked(ANN.public)
    both = Roster(KEYS, [own(FOUNDER), own(ANN), own(BOB)])
    other = Roster(KEYS, [own(FOUNDER), own(ANN), own(BOB)])
    both.add(revoke(ANN, BOB))
    other.add(revoke(BOB, ANN))
    meet([both, other])
    assert both.digest == other.digest
    assert {each.device for each in both.revocations()} == {ANN.public, BOB.public}
    assert both.owners() == other.owners() == {FOUNDER.public}


def test_what_a_revoked_owner_has_stated_stands_if_its_revoker_states_it_again() -> None:
    owner = Membership(KEYS, FOUNDER, [own(FOUNDER), own(ANN), *ENROLMENTS, revoke(BOB, ANN)])
    for statement in owner.revoke(ANN.public, 9, "lost"):
        owner.roster.add(statement)
    assert owner.roster.is_revoked(ANN.public)
    assert owner.roster.is_revoked(BOB.public)


def test_a_changed_code_keeps_exactly_those_that_it_names() -> None:
    roster = Roster(KEYS, [own(FOUNDER), *ENROLMENTS])
    roster.add(change([FOUNDER, BOB]))
    assert names(roster) == ["p0", "p2"]
    assert roster.is_code_old
    assert roster.wanted_code() == code_hash(OTHER_CODE)
    with pytest.raises(RemoteProtocolError, match="that an owner has changed"):
        roster.add(enrol(CLEO, "p3"))
    with pytest.raises(RemoteProtocolError, match="another join code"):
        roster.add(enrol(CLEO, "p3", OTHER))
    roster.adopt(OTHER)
    assert not roster.is_code_old
    assert roster.add(enrol(CLEO, "p3", OTHER)), "the new code lets in whom it is given"
    with pytest.raises(RemoteProtocolError, match="another join code"):
        roster.add(enrol(DAN, "p4"))
    assert roster.add(enrol(BOB, "second")), "who was kept needs no code"
    assert names(roster) == ["p0", "p2", "p3", "second"]


def test_the_later_of_two_changes_counts_whichever_comes_first() -> None:
    first, second = change([FOUNDER, ANN]), change([FOUNDER, BOB], number=2, keys=KEYS)
    rosters = [Roster(KEYS, [own(FOUNDER), *ENROLMENTS, *each]) for each in ([first, second], [second, first])]
    for roster in rosters:
        assert not roster.is_code_old
        assert roster.is_kept(BOB.public)
        assert not roster.is_kept(ANN.public)
        assert roster.next_change() == 3


def test_a_name_belongs_to_the_device_that_had_it_first_until_that_one_is_out() -> None:
    roster = Roster(KEYS, [own(FOUNDER), enrol(ANN, "desk"), enrol(BOB, "desk")])
    assert roster.enrolled("desk") == enrol(ANN, "desk")
    roster.add(revoke(ANN))
    assert roster.enrolled("desk") == enrol(BOB, "desk")


def test_a_device_has_so_many_names() -> None:
    roster = Roster(KEYS, [enrol(ANN, f"n{at}") for at in range(MAX_NAMES)])
    assert len(names(roster)) == MAX_NAMES
    with pytest.raises(RemoteProtocolError, match=f"has {MAX_NAMES} names"):
        roster.add(enrol(ANN, "one-more"))


def test_who_claims_anothers_link_key_keeps_nobody_out() -> None:
    """Whoever hears of a device first could have it refused elsewhere otherwise."""
    taken = Enrolled(BOB.public, "bob", ANN.link_key)
    claim = claim_of(KEYS.mesh_id, taken)
    signed = msgspec.structs.replace(taken, admitted=KEYS.admitting.sign(claim), signature=BOB.signing.sign(claim))
    roster = Roster(KEYS, [own(FOUNDER), signed])
    assert roster.add(enrol(ANN, "ann"))
    assert roster.add(revoke(BOB))
    assert roster.device_of(ANN.link_key) == ANN.public


@pytest.mark.parametrize("statement", ALL, ids=lambda each: type(each).__name__)
def test_what_the_one_it_names_has_not_signed_is_refused(statement: AnyStatement) -> None:
    base = [each for each in [own(FOUNDER), own(ANN), own(BOB, ANN), own(CLEO, BOB)] if each != statement]
    thief = DeviceKey.of(b"t" * 32)
    forged = thief.signing.sign(claim_of(KEYS.mesh_id, statement))
    for signature in (forged, b"", statement.signature[:-1] + bytes([statement.signature[-1] ^ 1])):
        roster = Roster(KEYS, base)
        before = roster.digest
        with pytest.raises(RemoteProtocolError):
            roster.add(msgspec.structs.replace(statement, signature=signature))
        assert roster.digest == before
    other_mesh = msgspec.structs.replace(statement, signature=ANN.signing.sign(claim_of("lab:x", statement)))
    with pytest.raises(RemoteProtocolError):
        Roster(KEYS, base).add(other_mesh)


def test_who_lacks_the_code_admits_nobody() -> None:
    for keys in (OTHER, UNOWNED):
        with pytest.raises(RemoteProtocolError):
            Roster(KEYS).add(enrol(ANN, "ann", keys))
    with pytest.raises(RemoteProtocolError, match="another join code"):
        Roster(KEYS).add(msgspec.structs.replace(enrol(ANN, "ann"), admitted=b""))


def test_the_same_said_again_is_not_news_and_of_two_revocations_one_stays() -> None:
    roster = Roster(KEYS, [own(FOUNDER), *ENROLMENTS])
    assert roster.add(revoke(ANN, at=7))
    digest = roster.digest
    assert not roster.add(revoke(ANN, at=7))
    later, earlier = Roster(KEYS, roster.statements()), Roster(KEYS, [own(FOUNDER), *ENROLMENTS, revoke(ANN, at=3)])
    meet([later, earlier])
    assert later.digest == earlier.digest != digest
    assert len(later.revocations()) == 1


def test_an_owner_that_stands_by_what_was_heard_later_is_kept_over_a_restart() -> None:
    """Cleo was named by Bob, he by Ann; Ann is out, and the founder has named Bob himself."""
    roster = Roster(KEYS, [own(FOUNDER), own(ANN), own(BOB, ANN), own(CLEO, BOB)])
    for later in (own(BOB), revoke(ANN)):
        assert roster.add(later)
    assert CLEO.public in roster.owners()
    assert Roster(KEYS, roster.statements()).owners() == roster.owners()
