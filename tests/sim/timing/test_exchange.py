"""A round in segments on the timing model: what the links allow, who is busy, and what real meshes took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.scheduler.policies.segment_plan import apportion, bandwidth_shares, level, packed_part
from mdl.sim.timing.iteration import broadcast_end_s, exchange_end_s

# Bytes of frames and TCP's acknowledgements, over those of values: what a shaped link of 40 Mbit/s carries besides.
_ON_THE_WIRE = 1.075


def _scenario(
    rates: list[float], size_mb: float = 10.0, busy: dict[int, tuple[float, float]] | None = None
) -> Scenario:
    given = busy or {}
    devices = (
        ScenarioDevice(0.0, rate, 1e6, busy=(given[index],) if index in given else ())
        for index, rate in enumerate(rates)
    )
    return Scenario("s", "test", size_mb, 0.0, tuple(devices))


def _shares(rates: list[float]) -> list[float]:
    shares, _ = bandwidth_shares(level(rates), [True] * len(rates))
    return [count / 160 for count in apportion(shares, 160)]


def _end_s(scenario: Scenario) -> float:
    rates = [device.link_mb_s for device in scenario.devices]
    return exchange_end_s(scenario, _shares(rates), range(len(rates)), 0.0)


@pytest.mark.parametrize(
    ("mbit_s", "measured_s"),
    [
        ([40.0] * 4, 1.95),
        ([40.0] * 8, 2.4),
        ([40.0, 40.0, 40.0, 10.0], 4.34),
        ([24.0, 16.0, 12.0, 8.0, 4.0, 2.0], 23.5),
    ],
)
def test_it_takes_what_a_shaped_lan_took_within_15_percent(mbit_s: list[float], measured_s: float) -> None:
    """`python -m benchmarks round`, 5 MB, --plans shares: docs/results.md."""
    scenario = _scenario([rate / 8 / _ON_THE_WIRE for rate in mbit_s], 5.0)
    assert _end_s(scenario) == pytest.approx(measured_s, rel=0.15)


@pytest.mark.parametrize(
    ("mbit_s", "measured_s"),
    [
        ([40.0] * 4, 0.50),
        ([40.0, 40.0, 40.0, 10.0], 1.17),
        ([24.0, 16.0, 12.0, 8.0, 4.0, 2.0], 5.78),
    ],
)
def test_in_int8_too(mbit_s: list[float], measured_s: float) -> None:
    """The same with --set round.compress=int8."""
    scenario = _scenario([rate / 8 / _ON_THE_WIRE for rate in mbit_s], 5.0)
    shares = _shares([device.link_mb_s for device in scenario.devices])
    assert exchange_end_s(scenario, shares, range(len(mbit_s)), 0.0, packed_part("int8", len(mbit_s))) == pytest.approx(
        measured_s, rel=0.15
    )


@given(st.lists(st.floats(0.5, 50.0), min_size=3, max_size=9))
def test_no_round_is_faster_than_the_links_allow(rates: list[float]) -> None:
    bound_s = max(10.0 / min(rates), 2 * (len(rates) - 1) * 10.0 / sum(rates))
    assert _end_s(_scenario(rates)) >= bound_s * 0.97  # a share is a whole number of 160 segments


def test_everybody_waits_for_who_is_busy_and_for_nothing_else() -> None:
    rates = [10.0] * 4
    free_s = _end_s(_scenario(rates))
    assert _end_s(_scenario(rates, busy={1: (0.0, 5.0)})) == pytest.approx(free_s + 5.0, rel=0.02)
    assert _end_s(_scenario(rates, busy={1: (9.0, 12.0)})) == free_s


def test_a_device_without_a_share_only_gives_and_gets_its_delta() -> None:
    scenario = _scenario([10.0, 10.0, 10.0, 1.0])
    assert _end_s(scenario) == pytest.approx(10.0, rel=0.05)


def test_a_broadcast_goes_down_the_tree_child_by_child() -> None:
    assert broadcast_end_s(_scenario([10.0] * 4), 0, range(4), 1.0) == pytest.approx(3.0)
    assert broadcast_end_s(_scenario([10.0] * 8), 0, range(8), 0.0) == pytest.approx(3.0)
    assert broadcast_end_s(_scenario([10.0] * 3), 0, [0], 1.0) == 1.0
    assert broadcast_end_s(_scenario([10.0] * 2, busy={1: (0.0, 2.0)}), 0, range(2), 0.0) == pytest.approx(3.0)
