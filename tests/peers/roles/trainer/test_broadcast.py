"""A device's place in the broadcast of a round: which order it follows, and what it has promised to whom."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.round_state import PATIENCE_S, Broadcast
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Sums
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import BroadcastOrdered, GlobalMessage, GlobalTaken, GlobalWanted
from mdl.protocol.vector_work import hash_delta
from mdl.protocol.vocabulary import Staged
from tests.peers.roles.at_once import name_of, sum_of

ME, ANN, BOB, CAT = (Contributor(name, 1) for name in ("me", "ann", "bob", "cat"))
ORDER = BroadcastOrdered(7, 1, b"w0", 1, (ANN, ME, BOB, CAT), 2.0, (ANN, ME))
WANTED = GlobalWanted(1)


def _order(**changes: object) -> BroadcastOrdered:
    return msgspec.structs.replace(ORDER, **changes)


def _result(value: float = 1.0, *who: Contributor) -> PartialSum:
    return sum_of(np.full(2, value), who or (ANN, ME))


def _digest(value: float = 1.0) -> bytes:
    return name_of(_result(value))


def _staged(order: BroadcastOrdered = ORDER, value: float = 1.0) -> Broadcast:
    broadcast = Broadcast()
    assert broadcast.follow(order, ME, None, 0.0)
    broadcast.stage(_result(value), _digest(value), 0.0)
    return broadcast


def _name(broadcast: Broadcast, now: float = 0.0) -> bool:
    """The digest of what it has itself comes; whether it asks its parent then."""
    (named,) = map(hash_delta, broadcast.name(broadcast.made))
    assert broadcast.name(broadcast.made) == []  # asked once
    return broadcast.take_name(named, now)


def _values(broadcast: Broadcast) -> Sums | None:
    return broadcast.staged.values if broadcast.staged else None


def test_3_2_3_the_parent_in_the_tree_is_asked_and_not_again_for_the_same_order() -> None:
    broadcast = Broadcast()
    assert broadcast.follow(ORDER, ME, None, 0.0)
    assert broadcast.parent == ANN
    assert not broadcast.follow(ORDER, ME, None, 0.0)


def test_the_root_has_no_parent_and_stages_what_it_holds() -> None:
    broadcast = Broadcast()
    assert not broadcast.follow(_order(order=(ME, ANN)), ME, _result(), 0.0)
    assert (broadcast.staged, broadcast.has_result) == (None, True)  # nobody hears of it without its digest
    assert not _name(broadcast)
    assert (broadcast.parent, _values(broadcast) is not None, broadcast.digest) == (None, True, _digest())


def test_what_it_holds_on_another_grid_is_not_the_result() -> None:
    broadcast, other = Broadcast(), sum_of(np.ones(2), (ANN, ME), room=1)
    assert broadcast.follow(_order(order=(ANN, ME)), ME, other, 0.0)
    assert (broadcast.staged, broadcast.made) == (None, None)
    assert not broadcast.follow(_order(version=2, order=(ME, ANN), room=1), ME, other, 0.0)
    assert broadcast.made is other


def test_what_it_holds_is_not_the_result_if_others_contributed_to_that() -> None:
    broadcast = Broadcast()
    assert broadcast.follow(ORDER, ME, _result(1.0, ME), 0.0)
    assert broadcast.staged is None


def test_a_later_order_replaces_an_earlier_one_and_never_the_other_way_round() -> None:
    broadcast = Broadcast()
    broadcast.follow(_order(term=7, version=2), ME, None, 0.0)
    assert broadcast.is_outdated(_order(term=7, version=1))
    assert broadcast.is_outdated(_order(term=6, version=9))
    assert not broadcast.is_outdated(_order(term=7, version=2))
    assert not broadcast.is_outdated(_order(term=8, version=1))


def test_a_staged_result_is_promised_again_to_whoever_orders_it_again() -> None:
    """A new agent must not count a promise that was given to the one before."""
    broadcast = _staged()
    assert not broadcast.follow(_order(term=9, version=3, digest=_digest()), ME, None, 0.0)
    staged = broadcast.report()
    assert staged is not None
    assert (staged.term, staged.version, staged.digest) == (9, 3, _digest())


def test_what_was_staged_under_an_order_stays_promised_to_that_one_until_another_comes() -> None:
    staged = _staged().report()
    assert staged is not None
    assert (staged.term, staged.version, staged.theta, staged.contributors) == (7, 1, 2.0, (ANN, ME))


def test_a_result_of_other_contributors_is_dropped_for_the_order_that_replaces_it() -> None:
    broadcast = _staged()
    assert broadcast.follow(_order(version=2, order=(BOB, ME), contributors=(BOB, ME)), ME, None, 0.0)
    assert (broadcast.staged, broadcast.digest, broadcast.report(), broadcast.parent) == (None, b"", None, BOB)


def test_a_result_with_another_digest_than_the_orders_is_fetched_again() -> None:
    """Two attempts may have two results of the same devices, as where one was coded: one of them must be it."""
    broadcast = _staged(value=1.0)
    assert broadcast.follow(_order(version=2, order=(BOB, ME), digest=_digest(2.0)), ME, None, 0.0)
    assert broadcast.staged is None
    broadcast.stage(_result(2.0), _digest(2.0), 0.0)
    assert broadcast.digest == _digest(2.0)


def test_a_held_partial_mean_with_another_digest_than_the_orders_is_not_the_result() -> None:
    broadcast = Broadcast()
    assert not broadcast.follow(_order(digest=_digest(2.0)), ME, _result(1.0), 0.0)
    assert broadcast.parent is None
    assert _name(broadcast)
    assert (broadcast.staged, broadcast.parent) == (None, ANN)


def test_a_digest_of_what_is_not_wanted_any_more_changes_nothing() -> None:
    broadcast = Broadcast()
    broadcast.follow(_order(order=(ME, ANN)), ME, _result(), 0.0)
    (late,) = broadcast.name(broadcast.made)
    assert broadcast.follow(_order(version=2, order=(ANN, ME), contributors=(BOB, ME)), ME, None, 0.0)
    assert not broadcast.take_name(hash_delta(late), 0.1)
    assert (broadcast.staged, broadcast.made, broadcast.parent) == (None, None, ANN)


def test_what_it_has_itself_is_kept_for_a_new_order_that_names_a_digest() -> None:
    """It has the result and does not know that yet: to fetch it would take a whole transfer."""
    broadcast = Broadcast()
    broadcast.follow(_order(order=(ME, ANN)), ME, _result(), 0.0)
    (asked,) = broadcast.name(broadcast.made)
    assert not broadcast.follow(_order(term=9, order=(ANN, ME), digest=_digest()), ME, None, 0.0)
    assert broadcast.name(broadcast.made) == []
    assert not broadcast.take_name(hash_delta(asked), 0.1)
    assert broadcast.report() == Staged(_digest(), 2.0, (ANN, ME), term=9, version=1)


def test_a_result_that_does_not_match_the_digest_of_its_order_is_refused() -> None:
    broadcast = Broadcast()
    broadcast.follow(_order(digest=_digest(2.0)), ME, None, 0.0)
    with pytest.raises(RemoteProtocolError, match="does not match the digest"):
        broadcast.stage(_result(1.0), _digest(1.0), 0.0)
    assert broadcast.staged is None


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (GlobalMessage(1, 2.0, (ANN, ME), 7, 1), True),
        (GlobalMessage(1, 2.0, (ME, ANN), 7, 1), True),
        (GlobalMessage(1, 2.0, (ANN, BOB), 7, 1), False),
        (GlobalMessage(1, 3.0, (ANN, BOB, ME), 7, 1), False),
    ],
)
def test_only_the_result_of_the_order_that_is_followed_is_taken(message: GlobalMessage, wanted: bool) -> None:
    broadcast = Broadcast()
    assert not broadcast.check(ANN, message)
    broadcast.follow(ORDER, ME, None, 0.0)
    assert broadcast.parent is not None
    assert broadcast.check(broadcast.parent, message) is wanted


def test_an_order_without_a_digest_names_what_its_root_gives_and_no_other_mean_of_the_same_devices() -> None:
    """Another fork or attempt may have another result of the same devices: a late copy of that, or one held here."""
    late = GlobalMessage(1, 2.0, (ANN, ME), 5, 3)
    broadcast = Broadcast()
    assert broadcast.follow(ORDER, ME, _result(2.0), 0.0)
    assert (broadcast.staged, broadcast.check(BOB, late)) == (None, False)
    broadcast.stage(_result(), _digest(), 0.0)
    assert not broadcast.follow(ORDER, ME, None, 0.0)
    assert broadcast.follow(_order(term=9, order=(BOB, ME)), ME, None, 0.0)
    assert broadcast.staged is None
    broadcast.follow(_order(term=9, version=2, digest=_digest()), ME, None, 0.0)
    assert broadcast.check(ANN, late), "its digest tells whether it is the one"


def test_a_result_whose_digest_nobody_has_told_is_taken_from_the_parent_alone() -> None:
    """Any member knows the order, and could say that something else is the mean of these devices."""
    broadcast, message = Broadcast(), GlobalMessage(1, 2.0, (ANN, ME), 7, 1)
    broadcast.follow(ORDER, ME, None, 0.0)
    others = [who for who in (ANN, BOB, Contributor("mallory", 1)) if who != broadcast.parent]
    assert [broadcast.check(who, message) for who in others] == [False] * len(others)
    assert broadcast.parent is not None
    assert broadcast.check(broadcast.parent, message)


def test_an_order_in_segments_names_no_result_that_somebody_has_already() -> None:
    """Its owners make another one, of the same devices: the first of the order would vote for two under one ballot."""
    broadcast = _staged()
    broadcast.follow(
        _order(version=ORDER.version + 1, owns=(1, 1, 1), segment_values=1), ORDER.order[0], _result(), 1.0
    )
    assert broadcast.staged is None


def test_a_result_that_comes_in_segments_is_not_taken_whole_besides() -> None:
    broadcast = Broadcast()
    broadcast.follow(_order(owns=(1, 1, 0, 0), segment_values=1), ME, None, 0.0)
    assert not broadcast.check(ANN, GlobalMessage(1, 2.0, (ANN, ME), 7, 1))


def test_a_result_that_lies_about_its_theta_is_its_senders_fault() -> None:
    broadcast = Broadcast()
    broadcast.follow(ORDER, ME, None, 0.0)
    with pytest.raises(RemoteProtocolError, match=r"theta 5\.0, not 2\.0"):
        broadcast.check(broadcast.parent or ANN, GlobalMessage(1, 5.0, (ANN, ME), 7, 1))


def test_a_second_copy_of_the_result_is_not_wanted() -> None:
    assert not _staged().check(ANN, GlobalMessage(1, 2.0, (ANN, ME), 7, 1))


# -- whom a parent feeds, and when ------------------------------------------------------------------------------------

DAN, EVE, FAY, GUS = (Contributor(name, 1) for name in ("dan", "eve", "fay", "gus"))
EIGHT = (ME, ANN, BOB, CAT, DAN, EVE, FAY, GUS)  # the root feeds ann (with cat, eve, gus), bob (with fay), dan


def _root(*link_mb_s: float, values: int = 2) -> Broadcast:
    """At the root of EIGHT with the result; nobody has asked yet."""
    broadcast = Broadcast()
    hold = sum_of(np.ones(values), (ANN, ME))
    broadcast.follow(_order(order=EIGHT, link_mb_s=link_mb_s), ME, hold, 0.0)
    _name(broadcast)
    assert broadcast.feed(0.0) == []
    return broadcast


def _fed(sends: list[Send]) -> list[str]:
    return [send.receiver for send in sends]


def test_children_are_served_when_the_result_has_come_and_whenever_they_ask_again() -> None:
    broadcast = Broadcast()
    broadcast.follow(ORDER, ME, None, 0.0)
    assert broadcast.serve(CAT, WANTED, 0.1) == []
    assert broadcast.serve(BOB, WANTED, 0.1) == []
    assert broadcast.feed(0.2) == []
    broadcast.stage(_result(), _digest(), 0.3)
    assert _fed(broadcast.feed(0.3)) == ["cat", "bob"]
    assert broadcast.feed(0.3) == []
    (send,) = broadcast.serve(CAT, WANTED, 0.6)
    values = _values(broadcast)
    assert send.message == GlobalMessage(1, 2.0, (ANN, ME), 7, 1)
    assert isinstance(send.values, np.ndarray)
    assert values is not None
    assert send.values.dtype == np.float32
    assert np.shares_memory(send.values, values)
    assert send.values.tobytes() == values.tobytes()


def test_children_with_equal_links_are_fed_one_after_the_other_the_largest_subtree_first() -> None:
    broadcast = _root(*[5.0] * 8)
    assert _fed(broadcast.serve(DAN, WANTED, 0.01)) == []
    assert _fed(broadcast.serve(BOB, WANTED, 0.02)) == []
    assert _fed(broadcast.serve(ANN, WANTED, 0.03)) == ["ann"]
    assert _fed(broadcast.serve(DAN, WANTED, 0.5)) == []
    assert _fed(broadcast.note_taken(ANN, 0.8)) == ["bob"]
    assert _fed(broadcast.note_taken(BOB, 1.6)) == ["dan"]
    assert _fed(broadcast.note_taken(DAN, 2.4)) == []


def test_links_that_nobody_has_measured_are_fed_at_once() -> None:
    for links in ((), (0.0,) * 8, (5.0,) * 7, (float("nan"),) * 8):
        broadcast = _root(*links)
        assert _fed([send for child in (DAN, BOB, ANN) for send in broadcast.serve(child, WANTED, 0.1)]) == [
            "dan",
            "bob",
            "ann",
        ]


def test_a_child_with_a_slow_link_starts_at_once_and_holds_nobody_up() -> None:
    broadcast = _root(5.0, 5.0, 5.0, 5.0, 0.5, 5.0, 5.0, 5.0)
    assert _fed(broadcast.serve(DAN, WANTED, 0.01)) == ["dan"]
    assert _fed(broadcast.serve(BOB, WANTED, 0.02)) == []
    assert _fed(broadcast.serve(ANN, WANTED, 0.03)) == ["ann"]


def test_as_many_are_fed_beside_each_other_as_fill_the_uplink() -> None:
    broadcast = _root(10.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0)
    assert _fed([send for child in (ANN, BOB, DAN) for send in broadcast.serve(child, WANTED, 0.1)]) == ["ann", "bob"]
    assert _fed(broadcast.note_taken(ANN, 0.9)) == ["dan"]


def test_a_child_that_is_dead_or_cannot_reach_its_parent_holds_its_siblings_up_no_longer_than_patience() -> None:
    broadcast = _root(*[5.0] * 8)
    assert _fed(broadcast.serve(BOB, WANTED, 0.1)) == []
    assert _fed(broadcast.serve(BOB, WANTED, PATIENCE_S - 0.1)) == []
    assert _fed(broadcast.serve(BOB, WANTED, PATIENCE_S + 0.1)) == ["bob"]


def test_a_child_that_dies_while_it_is_fed_gives_its_turn_away() -> None:
    broadcast = _root(*[5.0] * 8, values=10_000_000)
    assert _fed(broadcast.serve(ANN, WANTED, 0.1)) == ["ann"]
    assert _fed(broadcast.serve(BOB, WANTED, 0.1 + PATIENCE_S)) == ["bob"]


def test_a_child_that_asks_and_gets_nothing_or_too_slowly_gives_its_turn_away() -> None:
    """5 MB at 5 MB/s take a second: after twice that and the patience the next one is fed beside it."""
    broadcast = _root(*[5.0] * 8, values=1_250_000)
    fed = []
    for step in range(12):
        fed += [(step, receiver) for receiver in _fed(broadcast.serve(ANN, WANTED, 0.1 + step / 2))]
        fed += [(step, receiver) for receiver in _fed(broadcast.serve(BOB, WANTED, 0.2 + step / 2))]
    assert fed[:7] == [(step, "ann") for step in range(7)]  # it is offered again what it lacks
    assert (7, "bob") in fed


def test_who_has_the_result_already_tells_its_new_parent_and_is_not_waited_for() -> None:
    child = Broadcast()
    child.follow(_order(order=EIGHT, link_mb_s=(5.0,) * 8), ANN, None, 0.0)
    assert child.confirm() == []
    child.stage(_result(), _digest(), 0.5)
    assert child.confirm() == [Send("me", GlobalTaken(1))]
    root = _root(*[5.0] * 8)
    root.note_taken(ANN, 0.1)
    assert _fed(root.serve(BOB, WANTED, 0.2)) == ["bob"]


def test_the_root_confirms_to_nobody() -> None:
    assert _root().confirm() == []


def test_a_repeated_order_takes_nobodys_turn_away() -> None:
    broadcast = _root(*[5.0] * 8)
    assert _fed(broadcast.serve(ANN, WANTED, 0.1)) == ["ann"]
    assert broadcast.order is not None
    broadcast.follow(broadcast.order, ME, None, 1.0)
    assert _fed(broadcast.serve(BOB, WANTED, 1.0)) == []
