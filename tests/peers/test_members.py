"""The agent's table of trainers: the newest report of the newest incarnation counts."""

from __future__ import annotations

import msgspec

from mdl.delta import Contributor
from mdl.messages import MAX_MEMBERS, Activity, PeerReport
from peers.members import Members

ANN, BOB = Contributor("ann", 1), Contributor("bob", 1)
REPORT = PeerReport(1, 0, 0, b"w0", "schema", "lenet", 10, Activity.WAITING, 0)


def _report(**changes: object) -> PeerReport:
    return msgspec.structs.replace(REPORT, **changes)


def test_a_late_report_never_overwrites_a_newer_one() -> None:
    members = Members()
    assert members.hear(ANN, _report(sequence=5, round_id=3), 1.0)
    assert members.hear(ANN, _report(sequence=4, round_id=2), 2.0) is None
    assert members.hear(ANN, _report(sequence=5, round_id=2), 2.0) is None
    (member,) = members.everyone()
    assert (member.report.round_id, member.heard_at) == (3, 1.0)


def test_rule_4_a_new_incarnation_replaces_the_old_one_and_keeps_the_devices_book() -> None:
    members = Members()
    first = members.hear(ANN, _report(sequence=50), 1.0)
    assert first is not None
    first.device.link_mb_s = 7.0
    again = members.hear(Contributor("ann", 2), _report(sequence=1), 2.0)
    assert again is not None
    assert again.device.link_mb_s == 7.0
    assert members.hear(ANN, _report(sequence=51), 3.0) is None
    assert members.get(ANN) is None
    assert members.get(Contributor("ann", 2)) is again


def test_the_silent_are_not_alive_until_they_are_heard_again() -> None:
    members = Members()
    members.hear(ANN, _report(), 1.0)
    members.expire(4.9, 4.0)
    assert len(members.alive()) == 1
    members.expire(5.0, 4.0)
    assert members.alive() == []
    members.hear(ANN, _report(sequence=2), 5.1)
    assert len(members.alive()) == 1


def test_who_left_is_not_alive() -> None:
    members = Members()
    members.hear(ANN, _report(activity=Activity.LEFT), 1.0)
    members.hear(BOB, _report(), 1.0)
    members.hear(BOB, _report(sequence=2, activity=Activity.LEFT), 1.5)
    assert members.alive() == []


def test_the_model_of_whoever_joined_first_is_the_meshs_and_another_is_refused_naming_both() -> None:
    members = Members()
    members.hear(BOB, _report(), 1.0)
    members.hear(ANN, _report(schema_hash="other", model="alexnet", size=1_234_567), 2.0)
    members.refuse_other_models()
    assert [member.contributor for member in members.alive()] == [BOB]
    refused = members.get(ANN)
    assert refused is not None
    assert refused.problem == ("your model (alexnet, 1,234,567 values) differs from the mesh's (lenet, 10 values)")


def test_a_refused_device_that_starts_again_with_the_right_model_is_welcome() -> None:
    members = Members()
    members.hear(BOB, _report(), 1.0)
    members.hear(ANN, _report(size=11), 2.0)
    members.refuse_other_models()
    members.hear(Contributor("ann", 2), _report(), 3.0)
    members.refuse_other_models()
    assert len(members.alive()) == 2


def test_the_newest_model_is_the_latest_round_and_what_most_have_there() -> None:
    members = Members()
    assert members.newest_model() is None
    for name, round_id, digest in [("a", 2, b"x"), ("b", 3, b"y"), ("c", 3, b"z"), ("d", 3, b"y")]:
        members.hear(Contributor(name, 1), _report(round_id=round_id, digest=digest), 1.0)
    assert members.newest_model() == (3, b"y")


def test_the_table_is_bounded() -> None:
    members = Members()
    for number in range(MAX_MEMBERS):
        assert members.hear(Contributor(f"p{number}", 1), REPORT, 1.0)
    assert members.hear(Contributor("one too many", 1), REPORT, 1.0) is None
    assert members.hear(Contributor("p0", 2), REPORT, 1.0)
