"""The agent's table of trainers: the newest report of the newest incarnation counts."""

from __future__ import annotations

import msgspec
import pytest

from mdl.bounds import MAX_MEMBERS
from mdl.peers.roles.membership.members import Members, newest_position
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Activity, Fork
from mdl.task import describe_task

ANN, BOB = Contributor("ann", 1), Contributor("bob", 1)
REPORT = PeerReport(1, 0, 0, b"w0", "schema", "lenet", 10, Activity.WAITING, 0)


def _report(**changes: object) -> PeerReport:
    return msgspec.structs.replace(REPORT, **changes)


def test_a_late_report_never_overwrites_a_newer_one() -> None:
    members = Members(4.0)
    assert members.hear(ANN, _report(sequence=5, round_id=3), 1.0)
    assert members.hear(ANN, _report(sequence=4, round_id=2), 2.0) is None
    assert members.hear(ANN, _report(sequence=5, round_id=2), 2.0) is None
    (member,) = members.everyone()
    assert (member.report.round_id, member.heard_at) == (3, 1.0)


def test_rule_4_a_new_incarnation_replaces_the_old_one_and_keeps_the_devices_book() -> None:
    members = Members(4.0)
    first = members.hear(ANN, _report(sequence=50), 1.0)
    assert first is not None
    first.member.device.link_mb_s = 7.0
    again = members.hear(Contributor("ann", 2), _report(sequence=1), 2.0)
    assert again is not None
    assert again.member.device.link_mb_s == 7.0
    assert members.hear(ANN, _report(sequence=51), 3.0) is None
    assert members.get(ANN) is None
    assert members.get(Contributor("ann", 2)) is again.member


def test_an_earlier_start_that_still_reports_is_the_member_again_when_the_later_one_is_gone() -> None:
    """Somebody copied its data directory; the copy has left."""
    members = Members(4.0)
    first, copy = ANN, Contributor("ann", 2)
    members.hear(first, _report(sequence=50), 1.0)
    members.hear(copy, _report(sequence=1), 2.0)
    members.expire(3.9)
    assert members.hear(first, _report(sequence=51), 3.9) is None, "the copy is alive"
    members.expire(4.0)
    assert members.hear(first, _report(sequence=52), 6.9) is None, "a late message of a process that was started anew"
    assert members.get(copy)
    again = members.hear(first, _report(sequence=53), 7.0)
    assert again is not None
    assert (again.member.contributor, again.member.alive) == (first, True)
    assert members.get(copy) is None
    assert members.hear(copy, _report(sequence=2), 7.1), "and the other way round it is as ever"


def test_rule_4_a_copy_that_says_that_it_leaves_is_not_followed_by_a_delayed_report_of_a_dead_process() -> None:
    members = Members(4.0)
    members.hear(Contributor("ann", 2), _report(activity=Activity.LEFT), 2.0)
    assert members.hear(ANN, _report(sequence=51), 6.9) is None


def test_the_silent_are_not_alive_until_they_are_heard_again() -> None:
    members = Members(4.0)
    members.hear(ANN, _report(), 1.0)
    members.expire(2.9)
    assert len(members.alive()) == 1
    members.expire(3.0)  # four reports missed, on a network that has shown no pauses
    assert members.alive() == []
    members.hear(ANN, _report(sequence=2), 5.1)
    assert len(members.alive()) == 1


def test_on_a_network_with_pauses_a_longer_silence_is_borne_but_never_longer_than_the_limit() -> None:
    members = Members(4.0)
    members.hear(ANN, _report(), 1.0)
    members.hear(ANN, _report(sequence=2), 2.9)
    members.expire(6.8)
    assert len(members.alive()) == 1
    members.expire(6.9)
    assert members.alive() == []


def test_a_limit_below_the_usual_patience_is_kept() -> None:
    members = Members(1.0)
    members.hear(ANN, _report(), 1.0)
    members.expire(1.9)
    assert len(members.alive()) == 1
    members.expire(2.0)
    assert members.alive() == []


def test_nobody_was_silent_while_this_process_was_suspended() -> None:
    members = Members(4.0)
    members.hear(ANN, _report(), 1.0)
    members.forgive(60.0)
    members.expire(62.9)
    assert len(members.alive()) == 1
    members.expire(63.0)
    assert members.alive() == []


def test_only_who_obeys_this_agent_since_this_term_follows_it() -> None:
    members = Members(4.0)
    for name, agent, term in [("a", "me", 7), ("b", "me", 8), ("c", "me", 6), ("d", "other", 9), ("e", "", 9)]:
        members.hear(Contributor(name, 1), _report(agent=agent, term=term), 1.0)
    members.hear(Contributor("f", 1), _report(agent="me", term=7, activity=Activity.LEFT), 1.0)
    assert [member.peer_id for member in members.following("me", 7)] == ["a", "b"]


def test_who_left_is_not_alive() -> None:
    members = Members(4.0)
    members.hear(ANN, _report(activity=Activity.LEFT), 1.0)
    members.hear(BOB, _report(), 1.0)
    members.hear(BOB, _report(sequence=2, activity=Activity.LEFT), 1.5)
    assert members.alive() == []


def test_the_model_of_whoever_joined_first_is_the_meshs_and_another_is_refused_naming_both() -> None:
    members = Members(4.0)
    members.hear(BOB, _report(), 1.0)
    members.hear(ANN, _report(schema_hash="other", model="alexnet", size=1_234_567), 2.0)
    members.refuse_other_models()
    assert [member.contributor for member in members.alive()] == [BOB]
    refused = members.get(ANN)
    assert refused is not None
    assert refused.problem == ("your model (alexnet, 1,234,567 values) differs from the mesh's (lenet, 10 values)")


def test_the_same_channels_in_another_order_are_refused_in_these_words() -> None:
    members = Members(4.0)
    members.hear(BOB, _report(model=describe_task("lenet", (3, 128), ("ax", "ay", "az"), ("run", "sit"))), 1.0)
    other = describe_task("lenet", (3, 128), ("az", "ax", "ay"), ("run", "sit"))
    members.hear(ANN, _report(schema_hash="other", model=other), 2.0)
    members.refuse_other_models()
    refused = members.get(ANN)
    assert refused is not None
    assert refused.problem == ("your channels (az, ax, ay) are the mesh's in another order: give them as ax, ay, az")


START, OTHER_START = (Fork(0, 2, "start"),), (Fork(0, 3, "other start"),)


def test_the_model_of_a_running_mesh_stands_also_against_more_devices_of_another_one() -> None:
    """A new agent hears all at once: those it leads, and as many as have come meanwhile."""
    for lineage, refused in [(START, {"x", "y", "z"}), (OTHER_START, {"a", "b"}), ((), {"a", "b"})]:
        members = Members(4.0)
        for name in ("x", "y", "z"):
            report = _report(schema_hash="other", model="alexnet", lineage=OTHER_START, base=("x", "y", "z"))
            members.hear(Contributor(name, 1), report, 1.0)
        for name in ("a", "b"):
            members.hear(Contributor(name, 1), _report(lineage=START, base=("a", "b")), 2.0)
        members.refuse_other_models(lineage)
        assert {member.peer_id for member in members.everyone() if member.problem} == refused


@pytest.mark.parametrize("running", ["alone", "fresh"])
def test_what_several_have_trained_stands_against_what_one_has_or_none(running: str) -> None:
    members = Members(4.0)
    alone = (Fork(0, 1, "alone"),) if running == "alone" else ()
    for name in ("x", "y"):
        base = (name,) if alone else ()
        report = _report(schema_hash="other", model="alexnet", lineage=alone, base=base, round_id=90 if alone else 0)
        members.hear(Contributor(name, 1), report, 1.0)
    members.hear(ANN, _report(lineage=(*START, Fork(7, 1, "cut off")), base=("ann",), round_id=8), 2.0)
    members.refuse_other_models(alone)
    assert [member.contributor for member in members.alive()] == [ANN]


def test_what_most_have_is_the_meshs_model_as_long_as_no_round_has_begun() -> None:
    members = Members(4.0)
    for number, (name, size) in enumerate([("a", 11), ("b", 10), ("c", 10)]):
        members.hear(Contributor(name, 1), _report(size=size), float(number))
    members.refuse_other_models()
    assert [member.peer_id for member in members.alive()] == ["b", "c"]


def test_the_model_of_a_mesh_that_has_begun_stands_against_more_newcomers() -> None:
    members = Members(4.0)
    members.hear(BOB, _report(size=11), 1.0)
    members.hear(Contributor("cat", 1), _report(size=11), 1.0)
    members.hear(ANN, _report(lineage=(Fork(0, 1, "ann"),)), 2.0)
    members.refuse_other_models()
    assert [member.contributor for member in members.alive()] == [ANN]


def test_a_refused_device_that_starts_again_with_the_right_model_is_welcome() -> None:
    members = Members(4.0)
    members.hear(BOB, _report(), 1.0)
    members.hear(ANN, _report(size=11), 2.0)
    members.refuse_other_models()
    members.hear(Contributor("ann", 2), _report(), 3.0)
    members.refuse_other_models()
    assert len(members.alive()) == 2


def test_the_newest_position_is_the_latest_round_and_what_most_have_there() -> None:
    members = Members(4.0)
    for name, round_id, digest in [("a", 2, b"x"), ("b", 3, b"y"), ("c", 3, b"z"), ("d", 3, b"y")]:
        members.hear(Contributor(name, 1), _report(round_id=round_id, digest=digest), 1.0)
    assert newest_position(members.alive()) == ((), 3, b"y")


def test_a_new_device_takes_the_place_of_whoever_has_been_gone_longest() -> None:
    members = Members(4.0)
    for number in range(MAX_MEMBERS):
        members.hear(Contributor(f"p{number}", 1), REPORT, 50.0 - number / MAX_MEMBERS)
    assert members.hear(Contributor("one too many", 1), REPORT, 51.0) is None
    last = f"p{MAX_MEMBERS - 1}"
    members.hear(Contributor(last, 1), _report(sequence=2), 100.0)
    members.expire(101.0)
    for name in ("new", "newer"):
        assert members.hear(Contributor(name, 1), REPORT, 101.0)
    assert [member.peer_id for member in members.alive()] == ["new", "newer", last]
    known = {member.peer_id for member in members.everyone()}
    assert len(known) == MAX_MEMBERS
    assert {f"p{number}" for number in range(MAX_MEMBERS)} - known == {f"p{MAX_MEMBERS - 2}", f"p{MAX_MEMBERS - 3}"}


def test_the_table_is_bounded() -> None:
    members = Members(4.0)
    for number in range(MAX_MEMBERS):
        assert members.hear(Contributor(f"p{number}", 1), REPORT, 1.0)
    assert members.hear(Contributor("one too many", 1), REPORT, 1.0) is None
    assert members.hear(Contributor("p0", 2), REPORT, 1.0)
