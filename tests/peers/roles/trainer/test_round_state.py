"""A trainer's part in one round: what may be given, received and released."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.round_state import MOST_IN_VAIN, Broadcast, RoundState
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.round_messages import HopOrdered
from mdl.protocol.vocabulary import Activity, Incoming

ME, ANN, EVE = (Contributor(name, 1) for name in ("me", "ann", "eve"))
ORDER = HopOrdered(1, 1, 5, ANN)


def _delta(*who: Contributor, theta: float = 1.0) -> PartialSum:
    return PartialSum(np.zeros(2, np.int32), theta, frozenset(who))


def _part() -> RoundState:
    both = frozenset([ME, ANN])
    return RoundState(1, 1, both, heard_at=0.0, announced_to=both, hold=_delta(ME))


def test_the_activity_follows_from_the_state() -> None:
    part = RoundState(1, 1, frozenset([ME]), heard_at=0.0)
    seen = [part.activity()]
    part.hold = _delta(ME)
    seen.append(part.activity())
    part.incoming = ORDER
    seen.append(part.activity())
    part.incoming = None
    part.give(5, ANN)
    seen.append(part.activity())
    part.broadcast.staged = _delta(ME)
    seen.append(part.activity())
    expected = [Activity.TRAINING, Activity.HOLDING, Activity.RECEIVING, Activity.SENT, Activity.STAGED]
    assert seen == expected


def test_a_partial_mean_is_given_to_one_hop_until_that_is_released() -> None:
    part = _part()
    assert part.give(5, ANN)
    assert part.give(5, ANN)
    assert not part.give(6, ANN)
    assert part.free_hold is None
    part.release(5)
    part.release(5)
    assert not part.give(5, ANN)
    assert part.give(6, ANN)
    part.release(5)
    holding = part.report_holding()
    assert (holding.sent_hop, holding.sent_to) == (6, ANN)


def test_a_hop_is_served_to_one_receiver_only() -> None:
    part = _part()
    assert part.give(5, ANN)
    assert not part.give(5, EVE)


def test_a_hop_released_before_it_was_served_is_never_served() -> None:
    part = _part()
    part.release(5)
    assert not part.give(5, ANN)
    assert part.free_hold is part.hold


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"members": frozenset([ME])}, "the sender is no member of this round"),
        ({"broadcast": Broadcast(staged=_delta(ME))}, "it has the round's result already"),
        ({"hold": None}, "nothing to merge with yet"),
        ({"given": (4, ANN)}, "its partial sum has been given away"),
        ({"incoming": HopOrdered(1, 1, 4, ANN)}, "one partner at a time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_device_says_why_it_cannot_receive(change: dict[str, object], reason: str) -> None:
    part = _part()
    for name, value in change.items():
        setattr(part, name, value)
    assert part.cannot_receive(ORDER) == reason


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (_delta(ANN, theta=0.0), "theta 0.0"),
        (_delta(ANN, theta=-1.0), "theta -1.0"),
        (_delta(ANN, theta=float("inf")), "theta inf"),
        (_delta(), "of 0 contributors"),
        (_delta(EVE), "eve is no member"),
        (_delta(ANN, ME, theta=2.0), "me would count twice"),
    ],
)
def test_an_incoming_delta_that_breaks_an_invariant_is_refused(theirs: PartialSum, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        _part().check_incoming(_delta(ME), theirs)


def test_who_receives_or_has_the_result_gives_nothing_away() -> None:
    part = _part()
    part.incoming = ORDER
    assert not part.give(6, ANN)
    part.incoming = None
    part.broadcast.staged = _delta(ME, ANN)
    assert not part.give(6, ANN)


def test_the_own_delta_is_the_own_one_until_something_is_merged_into_it() -> None:
    part = _part()
    assert part.own_hold(ME) is part.hold
    part.hold = _delta(ME, ANN)
    assert part.own_hold(ME) is None
    part.hold = None
    assert part.own_hold(ME) is None


def test_a_hop_being_received_is_reported_until_it_is_decided() -> None:
    part = _part()
    assert part.report_incoming() is None
    part.incoming = ORDER
    assert part.report_incoming() == Incoming(5, ANN)


def test_a_restarted_peer_is_no_member_any_more() -> None:
    assert _part().is_member(ANN, 1)
    assert not _part().is_member(ANN, 2)
    assert not _part().is_member(Contributor("ann", 2), 1)


def test_a_report_does_not_keep_a_delta_that_the_part_let_go() -> None:
    """Else each device that has sent holds its own delta to the end of the round, beside the result and w(t+1)."""
    part = RoundState(1, 1, frozenset([Contributor("ann", 1)]))
    part.hold = PartialSum(np.ones(4, np.int32), 1.0, frozenset([Contributor("ann", 1)]))
    own = weakref.ref(part.hold.values)
    told = part.report_holding()
    assert part.report_holding() is told
    part.hold = None
    assert own() is None


def test_who_asks_for_hops_that_do_not_count_gets_few_of_them_and_others_get_theirs() -> None:
    part = _part()
    mallory = Contributor("mallory", 1)
    part.hold = _delta(ME)
    for hop_id in range(100):
        if part.give(hop_id, mallory):
            part.release(hop_id)
    assert part.in_vain == {mallory: MOST_IN_VAIN}
    assert part.give(500, Contributor("bob", 1))
