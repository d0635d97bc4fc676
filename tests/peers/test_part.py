"""A trainer's part in one round: what may be given, received and released."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.delta import Contributor, ModelDelta
from mdl.errors import RemoteProtocolError
from mdl.messages import Activity, HopOrdered
from peers.part import Part

ME, ANN, EVE = (Contributor(name, 1) for name in ("me", "ann", "eve"))
ORDER = HopOrdered(1, 1, 0, 5, ANN)


def _delta(*who: Contributor, theta: float = 1.0) -> ModelDelta:
    return ModelDelta(np.zeros(2, np.float32), theta, frozenset(who))


def _part() -> Part:
    return Part(1, 1, frozenset([ME, ANN]), heard_at=0.0, holds={0: _delta(ME)})


def test_the_activity_follows_from_the_state() -> None:
    part = Part(1, 1, frozenset([ME]), heard_at=0.0)
    seen = [part.activity()]
    part.holds = {0: _delta(ME)}
    seen.append(part.activity())
    part.incoming = ORDER
    seen.append(part.activity())
    part.incoming = None
    part.give(0, 5)
    seen.append(part.activity())
    part.staged = _delta(ME)
    seen.append(part.activity())
    expected = [Activity.TRAINING, Activity.HOLDING, Activity.RECEIVING, Activity.SENT, Activity.STAGED]
    assert seen == expected


def test_a_partial_mean_is_given_to_one_hop_until_that_is_released() -> None:
    part = _part()
    assert part.give(0, 5)
    assert part.give(0, 5)
    assert not part.give(0, 6)
    assert part.free_holds() == {}
    part.release(0, 5)
    part.release(0, 5)
    assert not part.give(0, 5)
    assert part.give(0, 6)
    part.release(0, 5)
    assert part.report_holdings()[0].sent_hop == 6


def test_a_hop_released_before_it_was_served_is_never_served() -> None:
    part = _part()
    part.release(0, 5)
    assert not part.give(0, 5)
    assert set(part.free_holds()) == {0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"members": frozenset([ME])}, "the sender is no member of this round"),
        ({"staged": _delta(ME)}, "it has the round's result already"),
        ({"holds": {}}, "nothing to merge with yet"),
        ({"given": {0: 4}}, "its partial mean has been given away"),
        ({"incoming": HopOrdered(1, 1, 0, 4, ANN)}, "one partner at a time"),
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
def test_an_incoming_delta_that_breaks_an_invariant_is_refused(theirs: ModelDelta, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        _part().check_incoming(_delta(ME), theirs)


def test_a_restarted_peer_is_no_member_any_more() -> None:
    assert _part().is_member(ANN, 1)
    assert not _part().is_member(ANN, 2)
    assert not _part().is_member(Contributor("ann", 2), 1)
