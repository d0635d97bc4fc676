"""Shares by bandwidth: no device is busy for longer than the links allow at best."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView
from mdl.scheduler.policies.segment_plan import (
    apportion,
    bandwidth_shares,
    choose_coding,
    level,
    packed_part,
    plan_segments,
)

RATES = st.lists(st.floats(0.05, 200.0), min_size=2, max_size=9)


def _seconds(rates: list[float], shares: list[float]) -> float:
    """Of the device that is busy longest, for a megabyte: M (1 + (N-2) s) / r each way."""
    if len(rates) == 2:
        return 1.0 / min(rates)
    return max((1.0 + (len(rates) - 2) * share) / rate for rate, share in zip(rates, shares, strict=True))


@given(RATES)
def test_shares_reach_the_bound_of_the_links(rates: list[float]) -> None:
    shares, time = bandwidth_shares(rates, [True] * len(rates))
    count = len(rates)
    bound = max(1.0 / min(rates), 2 * (count - 1) / sum(rates)) if count > 2 else 1.0 / min(rates)
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= 0.0
    assert time == pytest.approx(bound)
    assert _seconds(rates, shares) <= bound * (1 + 1e-6)


@given(RATES, st.data())
def test_who_may_own_nothing_owns_nothing(rates: list[float], data: st.DataObject) -> None:
    may = data.draw(st.lists(st.booleans(), min_size=len(rates), max_size=len(rates)).filter(any))
    shares, time = bandwidth_shares(rates, may)
    assert sum(shares) == pytest.approx(1.0)
    assert all(share == 0.0 for share, allowed in zip(shares, may, strict=True) if not allowed)
    assert _seconds(rates, shares) <= time * (1 + 1e-6) or sum(share > 0 for share in shares) == 1 or len(rates) == 2


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9).filter(lambda parts: sum(parts) > 0.1), st.integers(1, 500)
)
def test_whole_segments_are_all_given_out_and_none_is_a_segment_off(parts: list[float], segments: int) -> None:
    shares = [part / sum(parts) for part in parts]
    whole = apportion(shares, segments)
    assert sum(whole) == segments
    assert all(abs(count - share * segments) < 1.0 for count, share in zip(whole, shares, strict=True))


def _view(*devices: DeviceView) -> ChainView:
    return ChainView(0.0, 5.0, devices)


def _device(name: str, mb_s: float | None = 5.0, **more: object) -> DeviceView:
    return DeviceView(name, DeviceState.FREE, mb_s, **more)  # type: ignore[arg-type]


def test_equal_links_have_equal_shares_and_a_slow_one_none() -> None:
    plan = plan_segments(_view(_device("a"), _device("b"), _device("c"), _device("d", 1.25)), 1_250_000)
    assert plan is not None
    assert plan.owns["d"] == 0
    assert max(plan.owns.values()) - min(plan.owns[name] for name in "abc") <= 1
    assert plan.bound_s == pytest.approx(4.0)
    assert "d" not in plan.reason.split(":")[1].split(";")[0]
    assert "; 1 own none: d (slow link); " in plan.reason
    assert "4 s at best" in plan.reason


def test_a_device_in_use_or_busy_only_gives_and_gets_its_delta() -> None:
    plan = plan_segments(
        _view(_device("a"), _device("b"), _device("c", in_use=True), _device("d", busy_for_s=3.0)), 10_000
    )
    assert plan is not None
    assert [name for name, count in plan.owns.items() if count] == ["a", "b"]
    assert "; 2 own none: c (in use), d (busy); " in plan.reason
    all_used = plan_segments(_view(_device("a", in_use=True), _device("b", in_use=True)), 100_000)
    assert all_used is not None
    assert sum(count > 0 for count in all_used.owns.values()) == 2


def test_a_limit_is_obeyed_and_the_lost_are_no_part_of_a_plan() -> None:
    lost = DeviceView("x", DeviceState.DEAD)
    plan = plan_segments(_view(_device("a", may_receive=False), _device("b"), _device("c"), lost), 100_000)
    assert plan is not None
    assert plan.owns["a"] == 0
    assert "x" not in plan.owns
    assert "; 1 own none: a (its limit); " in plan.reason
    few = plan_segments(_view(*(_device(name) for name in "abc")), 10)
    assert few is not None
    assert "1 segments of 16 KB: a 1; 2 own none: b (too few segments), c (too few segments); " in few.reason
    assert plan_segments(_view(_device("a", may_receive=False), _device("b", may_receive=False)), 100) is None


def test_two_devices_that_do_not_reach_each_other_own_nothing() -> None:
    view = msgspec.structs.replace(_view(*map(_device, "abcd")), apart=frozenset({("b", "c"), ("d", "gone")}))
    plan = plan_segments(view, 1_000_000)
    assert plan is not None
    assert (plan.owns["b"], plan.owns["c"], min(plan.owns["a"], plan.owns["d"]) > 0) == (0, 0, True)
    assert "2 own none: b (does not reach all), c (does not reach all)" in plan.reason
    everybody = frozenset({("a", "b"), ("c", "d")})
    assert plan_segments(msgspec.structs.replace(view, apart=everybody), 1_000_000) is None


def test_links_that_nobody_has_measured_are_taken_to_be_like_the_others() -> None:
    plan = plan_segments(_view(_device("a", None), _device("b", None), _device("c", None)), 1_250_000)
    assert plan is not None
    assert max(plan.owns.values()) - min(plan.owns.values()) <= 1
    assert plan.bound_s == 0.0
    some = plan_segments(_view(_device("a", None), _device("b", 5.0), _device("c", 5.0)), 1_250_000)
    assert some is not None
    assert max(some.owns.values()) - min(some.owns.values()) <= 1


def test_speeds_that_differ_as_measurements_of_one_link_do_are_taken_for_equal() -> None:
    assert level([5.2, 5.9, 1.2, 5.3, 1.25]) == pytest.approx([5.467, 5.467, 1.225, 5.467, 1.225], abs=1e-3)
    assert level([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    assert level([3.0]) == [3.0]


def test_owners_with_time_to_spare_share_evenly_and_keep_away_from_their_limits() -> None:
    shares, time = bandwidth_shares([24.0, 16.0, 12.0, 8.0, 4.0, 2.0], [True] * 6)
    assert time == pytest.approx(0.5)  # of the slowest, which sends a megabyte and owns nothing
    assert shares[5] == 0.0
    assert shares[4] == pytest.approx(0.125)  # half of what it could do by then
    assert shares[:4] == pytest.approx([0.21875] * 4)


@pytest.mark.parametrize(
    ("mb_s", "coding", "why"),
    [
        (None, "none", ": "),
        (5.0, "int8", " in int8 (1.33 s as they are): "),
        (1.0, "int4", " in int4 (6.67 s as they are): "),
        (500.0, "none", ": "),
    ],
)
def test_auto_rounds_only_what_takes_long_and_says_so(mb_s: float | None, coding: str, why: str) -> None:
    chosen = choose_coding([mb_s] * 3, 1_250_000, "auto")
    assert chosen == coding
    plan = plan_segments(_view(*(_device(name, mb_s) for name in "abc")), 1_250_000, coding=chosen)
    assert plan is not None
    assert f"KB{why}" in plan.reason
    if mb_s:  # 5 MB over 5 MB/s take 1.33 s among three; over 1 MB/s 1.8 s in int8
        assert plan.bound_s == pytest.approx(6.667 / mb_s * packed_part(plan.coding, 3), rel=0.01)
