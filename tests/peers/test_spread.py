"""A device's place in the broadcast of a round: which order it follows, and what it has promised to whom."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mdl.delta import Contributor, ModelDelta, Vector, digest_of
from mdl.errors import RemoteProtocolError
from mdl.messages import BroadcastOrdered, GlobalMessage
from peers.spread import Spread

ME, ANN, BOB, CAT = (Contributor(name, 1) for name in ("me", "ann", "bob", "cat"))
ORDER = BroadcastOrdered(7, 1, b"w0", 1, (ANN, ME, BOB, CAT), 2.0, (ANN, ME))


def _order(**changes: object) -> BroadcastOrdered:
    return msgspec.structs.replace(ORDER, **changes)


def _result(value: float = 1.0, *who: Contributor) -> ModelDelta:
    contributors = who or (ANN, ME)
    return ModelDelta(np.full(2, value, np.float32), float(len(contributors)), frozenset(contributors))


def _digest(value: float = 1.0) -> bytes:
    return digest_of(_result(value).values)


def _staged(order: BroadcastOrdered = ORDER, value: float = 1.0) -> Spread:
    spread = Spread()
    assert spread.follow(order, ME, None)
    spread.stage(_result(value))
    return spread


def _values(spread: Spread) -> Vector | None:
    return spread.staged.values if spread.staged else None


def test_3_2_3_the_parent_in_the_tree_is_asked_and_not_again_for_the_same_order() -> None:
    spread = Spread()
    assert spread.follow(ORDER, ME, None)
    assert spread.parent == ANN
    assert not spread.follow(ORDER, ME, None)


def test_the_root_has_no_parent_and_stages_what_it_holds() -> None:
    spread = Spread()
    assert not spread.follow(_order(order=(ME, ANN)), ME, _result())
    assert (spread.parent, _values(spread) is not None, spread.digest) == (None, True, _digest())


def test_what_it_holds_is_not_the_result_if_others_contributed_to_that() -> None:
    spread = Spread()
    assert spread.follow(ORDER, ME, _result(1.0, ME))
    assert spread.staged is None


def test_a_later_order_replaces_an_earlier_one_and_never_the_other_way_round() -> None:
    spread = Spread()
    spread.follow(_order(term=7, version=2), ME, None)
    assert spread.is_outdated(_order(term=7, version=1))
    assert spread.is_outdated(_order(term=6, version=9))
    assert not spread.is_outdated(_order(term=7, version=2))
    assert not spread.is_outdated(_order(term=8, version=1))


def test_a_staged_result_is_promised_again_to_whoever_orders_it_again() -> None:
    """A new agent must not count a promise that was given to the one before."""
    spread = _staged()
    assert not spread.follow(_order(term=9, version=3, digest=_digest()), ME, None)
    staged = spread.report()
    assert staged is not None
    assert (staged.term, staged.version, staged.digest) == (9, 3, _digest())


def test_what_was_staged_under_an_order_stays_promised_to_that_one_until_another_comes() -> None:
    staged = _staged().report()
    assert staged is not None
    assert (staged.term, staged.version, staged.theta, staged.contributors) == (7, 1, 2.0, (ANN, ME))


def test_a_result_of_other_contributors_is_dropped_for_the_order_that_replaces_it() -> None:
    spread = _staged()
    assert spread.follow(_order(version=2, order=(BOB, ME), contributors=(BOB, ME)), ME, None)
    assert (spread.staged, spread.digest, spread.report(), spread.parent) == (None, b"", None, BOB)


def test_a_result_with_another_digest_than_the_orders_is_fetched_again() -> None:
    """Two roots have merged the same deltas in another order: the last bits differ, and one of them must be it."""
    spread = _staged(value=1.0)
    assert spread.follow(_order(version=2, order=(BOB, ME), digest=_digest(2.0)), ME, None)
    assert spread.staged is None
    spread.stage(_result(2.0))
    assert spread.digest == _digest(2.0)


def test_a_held_partial_mean_with_another_digest_than_the_orders_is_not_the_result() -> None:
    spread = Spread()
    assert spread.follow(_order(digest=_digest(2.0)), ME, _result(1.0))
    assert spread.staged is None


def test_a_result_that_does_not_match_the_digest_of_its_order_is_refused() -> None:
    spread = Spread()
    spread.follow(_order(digest=_digest(2.0)), ME, None)
    with pytest.raises(RemoteProtocolError, match="does not match the digest"):
        spread.stage(_result(1.0))
    assert spread.staged is None


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (GlobalMessage(1, 2.0, (ANN, ME)), True),
        (GlobalMessage(1, 2.0, (ME, ANN)), True),
        (GlobalMessage(1, 2.0, (ANN, BOB)), False),
        (GlobalMessage(1, 3.0, (ANN, BOB, ME)), False),
    ],
)
def test_only_the_result_of_the_order_that_is_followed_is_taken(message: GlobalMessage, wanted: bool) -> None:
    spread = Spread()
    assert not spread.check(message)
    spread.follow(ORDER, ME, None)
    assert spread.check(message) is wanted


def test_a_result_that_lies_about_its_theta_is_its_senders_fault() -> None:
    spread = Spread()
    spread.follow(ORDER, ME, None)
    with pytest.raises(RemoteProtocolError, match=r"theta 5\.0, not 2\.0"):
        spread.check(GlobalMessage(1, 5.0, (ANN, ME)))


def test_a_second_copy_of_the_result_is_not_wanted() -> None:
    assert not _staged().check(GlobalMessage(1, 2.0, (ANN, ME)))


def test_children_are_served_when_the_result_has_come_and_whenever_they_ask_again() -> None:
    spread = Spread()
    spread.follow(ORDER, ME, None)
    assert spread.serve(1, CAT) == []
    assert spread.serve(1, BOB) == []
    assert spread.serve_waiting(1) == []
    spread.stage(_result())
    assert [send.receiver for send in spread.serve_waiting(1)] == ["bob", "cat"]
    assert spread.serve_waiting(1) == []
    (send,) = spread.serve(1, CAT)
    assert (send.message, send.values is _values(spread)) == (GlobalMessage(1, 2.0, (ANN, ME)), True)
