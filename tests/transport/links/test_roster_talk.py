"""Two devices tell each other their rosters: from when on words count, and the checks that others can ask for.

Checks are bounded for each, for all together, and at the door.
"""

from __future__ import annotations

import msgspec

from mdl.bounds import MAX_MEMBERS
from mdl.transport.links.introducer import COMPARE_S, Checks, RosterTalk
from mdl.transport.trust.keys import DeviceKey, MeshKeys, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import Roster
from mdl.transport.wire.codec import RosterTold

KEYS = MeshKeys.from_code(new_join_code("home", bytes(19)))
DEVICES = [DeviceKey.of(at.to_bytes(32, "big")) for at in range(100)]
ENROLLED = [Membership(KEYS, device).enrol(f"p{at}") for at, device in enumerate(DEVICES)]


def talk(*members: int) -> RosterTalk:
    return RosterTalk(Roster(KEYS, [ENROLLED[at] for at in members]), 0.0)


def exchange(one: RosterTalk, other: RosterTalk, now: float = 0.0) -> int:
    """Both open a link and answer until all is said; how many messages that took."""
    pending = [("other", told) for told in one.open("other")] + [("one", told) for told in other.open("one")]
    many = 0
    while pending:
        to, told = pending.pop(0)
        many += 1
        assert many < 100
        hearer, speaker = (other, "one") if to == "other" else (one, "other")
        pending += [(speaker, answer) for answer in hearer.hear(speaker, told, now)[1]]
    return many


def test_a_small_roster_is_told_at_once_and_settles_without_a_question() -> None:
    one, other = talk(0, 1), talk(2)
    assert not one.is_settled("other")
    first = one.open("other")
    assert len(first) == 1
    assert first[0].is_all
    new, _ = other.hear("one", first[0], 0.0)
    assert new == ENROLLED[:2]
    assert other.is_settled("one")


def test_both_know_the_same_afterwards_however_much_each_knew() -> None:
    for mine, theirs in ((range(100), range(0)), (range(50), range(50, 100)), (range(3), range(1, 5))):
        one, other = talk(*mine), talk(*theirs)
        exchange(one, other)
        assert one.is_settled("other")
        assert other.is_settled("one")
        assert one.agreeing() == {"other"} or other.agreeing() == {"one"}
        assert one._roster.digest == other._roster.digest


def test_a_large_roster_is_told_in_pages_only_to_who_has_another() -> None:
    one, same, other = talk(*range(100)), talk(*range(100)), talk()
    assert one.open("same") == [RosterTold(one._roster.digest)]
    new, answer = same.hear("one", one.open("same")[0], 0.0)
    assert (new, answer, same.is_settled("one")) == ([], [], True)
    _, pages = one.hear("other", other.open("one")[0], 0.0)
    assert [(len(page.statements), page.is_all) for page in pages] == [(64, False), (36, True)]
    other.hear("one", pages[0], 0.0)
    assert not other.is_settled("one"), "the one that is out may be on the next page"
    other.hear("one", pages[1], 0.0)
    assert other.is_settled("one")


def test_who_has_told_all_hears_at_once_that_the_other_knows_no_more() -> None:
    """Digests are compared with eight peers a second, in turn: with fifty, most of them gone, that took six seconds."""
    one, other = talk(*range(40)), talk(*range(41))
    _, pages = other.hear("one", one.open("other")[0], 0.0)
    answers = [answer for page in pages for answer in one.hear("other", page, 0.0)[1]]
    assert answers == [RosterTold(other._roster.digest)]
    assert not other.is_settled("one")
    assert other.hear("one", answers[0], 0.0) == ([], [])
    assert other.is_settled("one")


def test_a_part_of_what_somebody_knows_settles_nothing() -> None:
    one, news = talk(0), talk(1, 2).tell([ENROLLED[1]])
    one.hear("x", news[0], 0.0)
    assert not one.is_settled("x")
    assert [len(told.statements) for told in one.tell(ENROLLED)] == [64, 36]


def test_what_cannot_stand_is_dropped_and_the_rest_is_taken() -> None:
    one = talk(0)
    unadmitted = msgspec.structs.replace(ENROLLED[5], admitted=bytes(64))
    new, _ = one.hear("x", RosterTold(bytes(16), (unadmitted, ENROLLED[3]), True), 0.0)
    assert new == [ENROLLED[3]]


def test_who_tells_what_is_forged_is_not_heard_about_others_for_a_while() -> None:
    """Nobody can have believed it and passed it on."""
    one = talk(0)
    forged = msgspec.structs.replace(ENROLLED[5], signature=bytes(64))
    new, _ = one.hear("x", RosterTold(bytes(16), (ENROLLED[3], forged, ENROLLED[4]), True), 0.0)
    assert new == [ENROLLED[3]]
    assert one.hear("x", RosterTold(bytes(16), (ENROLLED[6],)), 59.0)[0] == []
    assert one.hear("y", RosterTold(bytes(16), (ENROLLED[6],)), 59.0)[0] == [ENROLLED[6]]
    assert one.hear("x", RosterTold(bytes(16), (ENROLLED[7],)), 60.0)[0] == [ENROLLED[7]]


def test_who_names_ever_new_digests_is_told_seldom() -> None:
    one = talk(*range(40))
    answers = [one.hear("x", RosterTold(number.to_bytes(16, "big")), number / 100)[1] for number in range(1000)]
    assert sum(map(bool, answers)) <= 4 + 2


def test_who_differs_for_ever_is_told_seldom() -> None:
    one, stubborn = talk(0), RosterTold(bytes(16))
    assert one.hear("x", stubborn, 0.0)[1]
    assert not one.hear("x", stubborn, 1.0)[1]
    assert one.hear("y", stubborn, 1.0)[1]
    assert one.hear("x", stubborn, 3.0)[1]  # it may have been lost, then
    assert not one.hear("x", stubborn, 6.0)[1]
    told = [at for at in range(7, 200) if one.hear("x", stubborn, float(at))[1]]
    assert told[0] <= 8
    assert len(told) <= 8


def test_digests_are_compared_in_turn() -> None:
    one, peers = talk(0), [f"p{at:02}" for at in range(20)]
    assert one.due(peers, 0.5) == []
    told = [[peer_id for peer_id, _ in one.due(peers, turn * COMPARE_S)] for turn in (1, 2, 3)]
    assert [len(each) for each in told] == [8, 8, 8]
    assert {peer_id for each in told for peer_id in each} == set(peers)
    assert one.deadline() == 4 * COMPARE_S
    assert one.due([], 10.0) == []


def test_who_begins_anew_is_heard_out_first() -> None:
    one, other = talk(0), talk(1)
    exchange(one, other)
    one.forget("other")
    assert not one.is_settled("other")
    assert one.agreeing() == set()


def test_names_that_somebody_invents_are_not_remembered_for_ever() -> None:
    one = talk(0)
    for number in range(10_000):
        one.hear(f"x{number}", RosterTold(one._roster.digest), 0.0)
    assert len(one._heard) <= 4096
    assert len(one._settled) <= 4096
    assert one.is_settled("x9999")


def allowed(checks, source, now, asked=5_000):
    return sum(checks.may(source, now) for _ in range(asked))


def test_one_member_has_enough_for_the_largest_mesh_and_then_a_few_a_second():
    checks = Checks()
    assert MAX_MEMBERS <= allowed(checks, "ann", 0.0) < 1.1 * MAX_MEMBERS
    assert allowed(checks, "ann", 1.0) == 20
    assert allowed(checks, "bob", 1.0) >= MAX_MEMBERS, "another one has its own"


def test_all_together_have_a_bound_however_many_names_they_use():
    checks = Checks()
    allowed_at_once = sum(allowed(checks, f"x{number}", 0.0, 100) for number in range(1000))
    assert allowed_at_once == 4 * MAX_MEMBERS
    assert sum(allowed(checks, f"x{number}", 1.0, 100) for number in range(1000)) == 400


def test_the_door_has_a_bound_that_takes_nothing_from_members():
    checks = Checks()
    assert allowed(checks, "", 0.0) == 512
    assert allowed(checks, "", 1.0) == 50
    assert checks.may("ann", 1.0)


def test_who_said_something_forged_is_not_heard_for_a_while_and_the_door_stays_open():
    checks = Checks()
    checks.note_forged("ann", 0.0)
    checks.note_forged("", 0.0)
    assert (checks.may("ann", 59.0), checks.may("ann", 60.0), checks.may("", 0.0)) == (False, True, True)
