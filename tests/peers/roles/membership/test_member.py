"""What a report changes: said once, by `Members.hear`, for all who act on it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mdl.channels import ChannelValues
from mdl.defence.limits import Accusation
from mdl.peers.roles.membership.members import Members, ReportChange
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import Exchanging, PeerReport
from mdl.protocol.vocabulary import (
    Accepted,
    Activity,
    Fork,
    Holding,
    HopDecision,
    HopOutcome,
    Incoming,
    LineagePoint,
    ResourceState,
    RoundEvaluation,
    Staged,
    TrainingReport,
    Transfer,
)

ANN = Contributor("ann", 1)
REPORT = PeerReport(1, 5, 3, b"w3", "schema", "lenet", 10, Activity.HOLDING, 4, 5, agent="me")
KINDS = [name for name, field in ReportChange.__annotations__.items() if field == "bool"]
# Every field of a report, another value for it, and what that is called.
FIELDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "term": (6, ("agent",)),
    "agent": ("bob", ("agent",)),
    "round_id": (4, ("standing",)),
    "digest": (b"w4", ("standing",)),
    "lineage": ((Fork(0, 2, "x"),), ("standing",)),
    "schema_hash": ("other", ("model",)),
    "size": (11, ("model",)),
    "open_round": (5, ("open_round",)),
    "open_term": (6, ("open_round",)),
    "activity": (Activity.SENT, ("activity",)),
    "holding": (Holding(1.0, (ANN,)), ("holding",)),
    "hops": ((HopDecision(1, ANN, HopOutcome.MERGED),), ("hops",)),
    "staged": (Staged(b"r", 1.0, (ANN,), 5, 1), ("staged",)),
    "transfer": (Transfer("bob", 1, 2), ("transfer",)),
    "votes": (True, ("rest",)),
    "forgotten": ((LineagePoint("x", 3),), ("rest",)),
    "base": (("ann",), ("rest",)),
    "goal": (9, ("rest",)),
    "incoming": (Incoming(1, ANN), ("rest",)),
    "training": (TrainingReport(0.5, 8, 1.0), ("rest",)),
    "evaluation": (RoundEvaluation(3, Evaluation((1,), (0,), (0,), 0.5, 1)), ("rest",)),
    "open_as": (6, ("rest",)),
    "room": (3, ("rest",)),
    "theta": (2.0, ("rest",)),
    "entered": ((5,), ("rest",)),
    "exchange": (Exchanging(5, 1), ("rest",)),
    "model": ("lenet of another text", ("rest",)),
    "away": ("in use", ("rest",)),
    "accused": ((Accusation("bob", 1.0, 3, "long"),), ("rest",)),
    "workers": (3, ("rest",)),
    "channels": ((ChannelValues(1, 2, 3, 4),), ("rest",)),
    "lacking": (("bob",), ("rest",)),
    "accepted": (Accepted("x", 4, b"r", 5, 1), ("rest",)),
    "checksum": (7, ()),
    "link_mb_s": (7.0, ()),
    "bugs": (1, ()),
    "unheard": (("bob",), ()),
    "resources": (ResourceState(1, 1.0), ()),
    "sent_bytes": (7, ()),
    "sequence": (3, ()),
}


def _hear(members: Members, at_s: float, **changes: Any) -> ReportChange:
    change = members.hear(ANN, msgspec.structs.replace(REPORT, **changes), at_s)
    assert change is not None
    return change


def _told(change: ReportChange) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if getattr(change, kind))


def test_no_field_of_a_report_is_forgotten() -> None:
    assert set(FIELDS) == set(PeerReport.__struct_fields__)


@pytest.mark.parametrize("field", FIELDS)
def test_a_change_names_what_differs_and_nothing_else(field: str) -> None:
    value, kinds = FIELDS[field]
    members = Members(4.0)
    _hear(members, 1.0)
    change = _hear(members, 1.1, **{"sequence": 2, field: value})
    assert (_told(change), change.before, change.report.sequence) == (kinds, REPORT, 3 if field == "sequence" else 2)
    assert change.is_news is (bool(kinds) and kinds != ("transfer",))


def test_of_a_new_device_everything_is_news() -> None:
    change = _hear(Members(4.0), 1.0)
    assert (_told(change), change.before, change.stood_at, change.is_news) == (tuple(KINDS), None, None, True)


def test_a_device_that_was_taken_for_lost_is_heard_as_if_it_were_new() -> None:
    members = Members(4.0)
    _hear(members, 1.0)
    (lost,) = members.expire(9.0)
    assert (lost.contributor, members.expire(9.0)) == (ANN, [])
    change = _hear(members, 9.5, sequence=2)
    assert (change.presence, change.before, change.is_news, change.member.alive) == (True, None, True, True)


def test_a_device_that_leaves_changes_what_it_does_and_that_it_is_there() -> None:
    members = Members(4.0)
    _hear(members, 1.0)
    change = _hear(members, 1.1, sequence=2, activity=Activity.LEFT)
    assert (_told(change), change.member.alive) == (("presence", "activity"), False)


def test_a_change_keeps_where_the_device_stood_before() -> None:
    members = Members(4.0)
    _hear(members, 1.0)
    change = _hear(members, 1.1, sequence=2, round_id=4, digest=b"w4")
    assert (change.stood_at, change.member.at) == (((), 3, b"w3"), ((), 4, b"w4"))


@pytest.mark.parametrize("activity", [Activity.HOLDING, Activity.TRAINING])
def test_a_device_that_trains_gets_on_even_if_it_says_the_same(activity: Activity) -> None:
    members = Members(4.0)
    _hear(members, 1.0, activity=activity)
    change = _hear(members, 1.1, sequence=2, activity=activity)
    assert (change.is_news, change.is_progress) == (False, activity is Activity.TRAINING)


def test_values_that_come_in_are_progress_and_no_news() -> None:
    members = Members(4.0)
    _hear(members, 1.0)
    change = _hear(members, 1.1, sequence=2, transfer=Transfer("bob", 1, 2))
    assert (change.is_news, change.is_progress) == (False, True)
    assert not _hear(members, 1.2, sequence=3, transfer=None).is_progress
