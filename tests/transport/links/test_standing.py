"""Whose words count, who is let in, and what is told on when the roster changes."""

from __future__ import annotations

import msgspec
import pytest
from zmq.utils import z85

from mdl.errors import RemoteProtocolError
from mdl.protocol.round_messages import ModelWanted
from mdl.protocol.statements import AnyStatement
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.doors import ALLOWED, DOOR, LATER, LINKS, REFUSED
from mdl.transport.links.standing import NEW_S, LinkStanding, Stated
from mdl.transport.trust.keys import DeviceKey, MeshKeys, code_hash, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership, NotLetInError
from mdl.transport.wire.codec import CodeTold, FlowOffered, RosterTold

FOUNDER, ANN, BOB, CLEO = (DeviceKey.of(bytes([at]) * 32) for at in range(4))
CODE, NEW_CODE = (new_join_code("home", bytes([at]) * 19, founder_mark(FOUNDER.public)) for at in (1, 2))
KEYS, NEW = MeshKeys.from_code(CODE), MeshKeys.from_code(NEW_CODE)


def introduced(name: str, device: DeviceKey, keys: MeshKeys = KEYS) -> PeerInfo:
    return Membership(keys, device).introduce(PeerInfo(name, 1, Role.TRAINER, "10.0.0.1", 5), 6, ["10.0.0.1"], 1)


class Node:
    """The standing of a device, with links to whom it has let in."""

    def __init__(self, name: str, device: DeviceKey, statements: tuple[AnyStatement, ...] = ()) -> None:
        self.membership = Membership(KEYS, device, statements)
        self.membership.join(name)
        self.kept: list[int] = []
        self.codes: list[str] = []
        self.membership.on_change = lambda: self.kept.append(1)
        self.membership.on_code = self.codes.append
        self.linked: list[str] = []
        self.known: list[PeerInfo] = []
        self.standing = LinkStanding(name, self.membership, lambda: self.linked, lambda: self.known, 0.0)

    def meet(self, name: str, device: DeviceKey, is_linked: bool = True) -> None:
        info = introduced(name, device)
        self.standing.admits(info, "", 0.0)
        self.known.append(info)
        if is_linked:
            self.linked.append(name)


@pytest.fixture
def owner() -> Node:
    node = Node("owner", FOUNDER)
    node.standing.state(Stated((node.membership.found(),)), 0.0)
    node.meet("ann", ANN)
    node.meet("bob", BOB)
    return node


def test_who_only_looks_may_ask_and_report_nothing(owner: Node) -> None:
    watcher = Membership(KEYS, CLEO)
    me = PeerInfo("watcher", 1, Role.OBSERVER, "10.0.0.1", 5)
    owner.standing.admits(watcher.introduce(me, 5, ["10.0.0.1"], 1), "", 0.0)
    owner.standing.check(CLEO.link_key, "watcher")
    owner.standing.check_words("watcher", StatusWanted())
    owner.standing.check_words("watcher", FlowOffered(5, bytes(8), bytes(32)))
    with pytest.raises(RemoteProtocolError, match="which only looks, says ModelWanted"):
        owner.standing.check_words("watcher", ModelWanted(1))
    owner.standing.check_words("ann", ModelWanted(1))


def test_at_the_door_the_code_counts_and_among_links_the_device(owner: Node) -> None:
    door = z85.decode(KEYS.client_public)
    assert owner.standing.gate(DOOR, door) == ALLOWED
    assert owner.standing.gate(DOOR, ANN.link_key) == REFUSED
    assert owner.standing.gate(LINKS, ANN.link_key) == ALLOWED
    assert owner.standing.gate(LINKS, door) == LATER
    assert owner.standing.gate(LINKS, CLEO.link_key) == LATER
    owner.meet("cleo", CLEO)
    assert owner.standing.gate(LINKS, CLEO.link_key) == ALLOWED


def test_a_key_speaks_for_its_own_peer(owner: Node) -> None:
    owner.standing.check(ANN.link_key, "ann")
    for key, peer_id in ((ANN.link_key, "bob"), (CLEO.link_key, "ann"), (b"", "ann"), (ANN.link_key, "nobody")):
        with pytest.raises(RemoteProtocolError, match="speaks for"):
            owner.standing.check(key, peer_id)


def test_a_revocation_goes_to_everybody_and_takes_effect_at_once(owner: Node) -> None:
    kept = len(owner.kept)
    news = owner.standing.state(Stated(owner.membership.revoke(BOB.public, 7, "lost")), 1.0)
    assert news.gone == ["bob"]
    assert {outgoing.receiver for outgoing in news.told} == {"ann", "bob"}, "who is out is told, too"
    assert len(owner.kept) == kept + 1
    assert owner.standing.gate(LINKS, BOB.link_key) == LATER
    with pytest.raises(RemoteProtocolError, match="was revoked"):
        owner.standing.admits(introduced("bob", BOB), "", 1.0)


def test_who_is_out_is_gone_even_if_there_is_no_link_or_it_said_so_itself() -> None:
    founder = Membership(KEYS, FOUNDER)
    founder.roster.add(founder.found())
    stated = (founder.found(), *founder.revoke(BOB.public, 7, ""))
    node = Node("ann", ANN)
    node.meet("bob", BOB)
    news = node.standing.hear("bob", RosterTold(bytes(16), stated, True), 1.0)
    assert news.gone == ["bob"]
    away = Node("ann", ANN)
    away.meet("bob", BOB, is_linked=False)
    assert away.standing.hear("x", RosterTold(bytes(16), stated, True), 1.0).gone == ["bob"]


def test_what_is_heard_is_told_on_but_not_back_and_only_once(owner: Node) -> None:
    told = RosterTold(bytes(16), (Membership(KEYS, CLEO).enrol("cleo"),))
    news = owner.standing.hear("ann", told, 1.0)
    passed_on = [each for each in news.told if isinstance(each.body, RosterTold) and each.body.statements]
    assert {each.receiver for each in passed_on if not each.body.is_all} == {"bob"}
    again = owner.standing.hear("bob", told, 2.0)
    assert {each.receiver for each in again.told} <= {"bob"}, "the question whether it knows the rest"


def test_a_new_code_is_told_to_members_who_learn_it_only_if_an_owner_says_so(owner: Node) -> None:
    owner.standing.note_worked(["ann", "bob"], 0.5)
    change = owner.membership.change_code(code_hash(NEW_CODE))
    news = owner.standing.state(Stated((change,), NEW_CODE, NEW), 1.0)
    assert {each.receiver for each in news.told if each.body == CodeTold(NEW_CODE)} == {"ann", "bob"}
    ann = Node("ann", ANN, owner.membership.roster.statements()[:1])
    assert ann.standing.learn_code(NEW_CODE) is None, "no owner has said so"
    ann.standing.hear("owner", RosterTold(bytes(16), (change,)), 1.0)
    for wrong in (CODE, new_join_code("home", bytes(19))):
        assert ann.standing.learn_code(wrong) is None
    with pytest.raises(RemoteProtocolError, match="never in a code"):
        ann.standing.learn_code("home:nonsense")
    assert ann.standing.learn_code(NEW_CODE) == NEW
    assert ann.codes == [NEW_CODE]
    assert ann.membership.keys == NEW
    assert ann.standing.learn_code(NEW_CODE) is None, "it is known by now"


def test_who_was_not_kept_is_told_to_ask_for_the_new_code(owner: Node) -> None:
    cleo = Node("cleo", CLEO, owner.membership.roster.statements()[:1])
    assert cleo.standing.why_out() == ""
    cleo.standing.hear("x", RosterTold(bytes(16), (owner.membership.change_code(NEW.code_hash),)), 1.0)
    assert "ask for the new code" in cleo.standing.why_out()
    owner.standing.state(Stated(owner.membership.revoke(ANN.public, 7, "sold")), 1.0)
    ann = Node("ann", ANN)
    ann.standing.hear("owner", RosterTold(bytes(16), owner.membership.roster.statements()), 1.0)
    assert "has revoked this device: sold" in ann.standing.why_out()


def test_words_count_once_the_roster_is_told() -> None:
    node = Node("ann", ANN)
    node.meet("bob", BOB)
    assert not node.standing.is_settled("bob", 1.0)
    node.standing.hear("bob", RosterTold(bytes(16), (), True), 1.0)
    assert node.standing.is_settled("bob", 1.0)
    node.standing.forget("bob")
    assert not node.standing.is_settled("bob", 2.0)


def test_without_encryption_everybody_counts() -> None:
    standing = LinkStanding("me", None, list, list, 0.0)
    info = PeerInfo("x", 1, Role.TRAINER, "127.0.0.1", 5)
    assert standing.admits(info, "", 0.0)
    assert standing.is_in(b"")
    assert standing.is_settled("x", 0.0)
    standing.check(b"", "x")
    assert standing.hear("x", RosterTold(bytes(16)), 0.0).told == []
    assert (standing.deadline(), standing.due(1.0), standing.why_out()) == (None, [], "")


def test_who_is_not_let_in_hears_the_statements_by_which_it_is_not(owner: Node) -> None:
    with pytest.raises(NotLetInError, match="name of another device") as taken:
        owner.standing.admits(introduced("ann", CLEO), "", 1.0)
    (told,) = owner.standing.why_refused(taken.value)
    assert told.statements == (Membership(KEYS, ANN).enrol("ann"),)
    owner.standing.state(Stated(owner.membership.revoke(BOB.public, 7, "lost")), 1.0)
    with pytest.raises(NotLetInError, match="was revoked") as revoked:
        owner.standing.admits(introduced("bob", BOB), "", 1.0)
    bob = Node("bob", BOB)
    for each in owner.standing.why_refused(revoked.value):
        bob.standing.hear_at_door("owner", each, 2.0)
    assert "revoked this device: lost" in bob.standing.why_out()


def refused(name: str = "ann", by: DeviceKey = BOB) -> RosterTold:
    return RosterTold(bytes(16), (Membership(KEYS, by).enrol(name),))


def test_a_new_device_gives_up_a_name_of_another_and_keeps_nothing_of_it() -> None:
    ann = Node("ann", ANN)
    assert Membership(KEYS, ANN).enrol("ann") not in ann.membership.statements(), "nobody has let it in yet"
    ann.standing.hear_at_door("bob", refused("other"), 1.0)
    assert ann.standing.refusal is None, "it is about another name"
    ann.standing.hear_at_door("bob", refused(), 1.0)
    assert ann.standing.refusal is not None
    assert "bob does not let this device in: 'ann' is the name of another device" in ann.standing.why_out()
    assert ann.membership.statements() == (), "the other one may be about to give it up, too"
    assert ann.kept
    forged = msgspec.structs.replace(Membership(KEYS, BOB).enrol("ann"), signature=bytes(64))
    with pytest.raises(RemoteProtocolError, match="has not signed"):
        Node("ann", ANN).standing.hear_at_door("bob", RosterTold(bytes(16), (forged,)), 1.0)


def test_a_device_that_others_have_let_in_keeps_its_name() -> None:
    ann = Node("ann", ANN)
    ann.meet("bob", BOB)
    ann.standing.hear("bob", RosterTold(bytes(16)), 1.0)
    ann.standing.due(NEW_S)
    assert Membership(KEYS, ANN).enrol("ann") not in ann.membership.statements(), "for less than that"
    ann.standing.hear_at_door("ann", refused(by=CLEO), 2.0)
    assert ann.standing.refusal is None, "the other one of the name is as new as this one"
    ann.standing.due(1.0 + NEW_S)
    assert Membership(KEYS, ANN).enrol("ann") in ann.membership.statements()
    ann.standing.hear_at_door("owner", refused(by=CLEO), 2.0 + NEW_S)
    assert ann.standing.refusal is None
    again = Node("ann", ANN, ann.membership.statements())
    again.standing.hear_at_door("owner", refused(by=CLEO), 1.0)
    assert again.standing.refusal is None, "it was let in at an earlier start"


def test_two_new_devices_of_one_name_that_different_members_let_in_both_give_it_up() -> None:
    ann = Node("ann", ANN)
    ann.meet("bob", BOB)
    ann.standing.hear("bob", RosterTold(bytes(16)), 1.0)
    ann.standing.hear_at_door("owner", refused(by=CLEO), NEW_S)
    assert ann.standing.refusal is not None


def test_an_owners_name_is_its_own_and_who_only_looks_has_let_nobody_in(owner: Node) -> None:
    kept = Node("owner", FOUNDER, owner.membership.roster.statements())
    kept.standing.hear_at_door("bob", refused("owner"), 1.0)
    assert kept.standing.refusal is None
    ann = Node("ann", ANN)
    looks = PeerInfo("watcher", 1, Role.OBSERVER, "10.0.0.1", 5)
    ann.standing.admits(Membership(KEYS, CLEO).introduce(looks, 5, ["10.0.0.1"], 1), "", 0.0)
    ann.standing.hear("watcher", RosterTold(bytes(16)), 1.0)
    assert not ann.membership.is_known


def test_the_name_of_an_owners_device_is_given_up_by_any_other(owner: Node) -> None:
    ann = Node("ann", ANN, (*owner.membership.roster.statements(), Membership(KEYS, ANN).enrol("ann")))
    assert ann.membership.is_known
    ann.standing.hear_at_door("ann", refused(by=FOUNDER), 1.0)
    assert ann.standing.refusal is not None
