"""Windows follow what devices offer: shares are whole numbers, disjoint by construction, and together all there are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.protocol.sharing_messages import LEAST_BATTERY_PERCENT, Offer, apportion, share_out

OFFERS = st.builds(
    Offer,
    st.floats(0, 1e9),
    st.one_of(st.just(0), st.integers(0, 1 << 40)),
    st.one_of(st.none(), st.floats(0, 100)),
    st.sampled_from([None, True, False]),
)


@given(st.integers(0, 1 << 30), st.integers(1, 1 << 20), OFFERS, st.lists(OFFERS, max_size=8))
def test_shares_are_the_whole_and_nobody_has_more_than_it_has_room_for(
    total: int, window_bytes: int, own: Offer, others: list[Offer]
) -> None:
    shares = share_out(total, window_bytes, own, others)
    assert sum(shares) == total
    assert min(shares) >= 0
    for share, offer in zip(shares[1:], others, strict=True):
        assert share <= offer.most_windows(window_bytes)
        assert share == 0 or offer.weight() > 0


@given(st.integers(0, 10_000), st.lists(st.floats(1, 1000), min_size=2, max_size=8))
def test_shares_are_within_one_window_of_the_speeds(total: int, speeds: list[float]) -> None:
    own, *others = [Offer(speed) for speed in speeds]
    for share, speed in zip(share_out(total, 1, own, others), speeds, strict=True):
        assert abs(share - total * speed / sum(speeds)) < 1 + 1e-6


def test_all_train_equally_long() -> None:
    assert share_out(100, 1, Offer(60.0), [Offer(30.0), Offer(10.0)]) == [60, 30, 10]


def test_what_one_has_no_room_for_goes_to_the_others() -> None:
    assert share_out(100, 10, Offer(10.0), [Offer(10.0, memory_bytes=55), Offer(10.0)]) == [48, 5, 47]


def test_who_charges_takes_more_and_who_is_nearly_empty_nothing() -> None:
    charging, full, half = Offer(10.0, 0, 5.0, True), Offer(10.0, 0, 100.0, False), Offer(10.0, 0, 50.0, False)
    assert [offer.weight() for offer in (charging, full, half)] == [10.0, 5.0, 2.5]
    assert Offer(10.0, 0, LEAST_BATTERY_PERCENT - 1, False).weight() == 0.0
    assert share_out(70, 1, half, [charging, Offer(10.0, 0, 10.0, False)]) == [14, 56, 0]


def test_where_nobody_can_train_all_stay_where_they_are() -> None:
    assert share_out(7, 1, Offer(0.0), [Offer(0.0), Offer(5.0, battery_percent=3.0)]) == [7, 0, 0]


def test_an_owner_that_cannot_train_keeps_what_the_others_have_no_room_for() -> None:
    assert share_out(9, 1, Offer(0.0), [Offer(5.0, memory_bytes=4)]) == [5, 4]


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 100), min_size=1, max_size=9))
def test_equal_remainders_go_to_the_first(total: int, weights: list[float]) -> None:
    shares = apportion(total, weights)
    assert sum(shares) == total
    equal = apportion(total, [1.0] * len(weights))
    assert all(one >= other for one, other in pairwise(equal))


@pytest.mark.parametrize(("total", "shares"), [(5, [2, 2, 1]), (1, [1, 0, 0]), (0, [0, 0, 0])])
def test_rounding_is_the_same_every_time(total: int, shares: list[int]) -> None:
    assert apportion(total, [1.0, 1.0, 1.0]) == shares
