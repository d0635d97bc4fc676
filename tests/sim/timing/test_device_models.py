"""Device models: draws follow the stated laws, what a policy may know is true, constants fit the recordings."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device_fit import fit
from mdl.devices import usage
from mdl.devices.usage import UsageKind
from mdl.sim.timing import scenario as devices

RECURRING = (UsageKind.SYNC, UsageKind.INTERACTIVE, UsageKind.CALL, UsageKind.BIMODAL)
HORIZON_S = 60.0


def _many(kind: UsageKind, count: int, seed: int = 0) -> list[usage.Periods]:
    rng = np.random.default_rng(seed)
    return [usage.draw_busy_periods(kind, HORIZON_S, rng) for _ in range(count)]


def _lengths(kind: UsageKind, count: int = 4000) -> np.ndarray:
    """Lengths of periods that began within the horizon: none is favoured for being long."""
    drawn = [end - start for periods in _many(kind, count) for start, end in periods if start > 0.0]
    return np.asarray(drawn)


def _busy_at(periods: usage.Periods, at_s: float) -> bool:
    return any(start <= at_s < end for start, end in periods)


@pytest.mark.parametrize("kind", list(UsageKind))
def test_periods_are_sorted_disjoint_and_touch_the_horizon(kind: UsageKind) -> None:
    for periods in _many(kind, 300):
        flat = [at for period in periods for at in period]
        assert flat == sorted(flat)
        assert all(end > max(start, 0.0) and start < HORIZON_S for start, end in periods)


@pytest.mark.parametrize("kind", list(UsageKind))
def test_the_same_seed_draws_the_same_periods(kind: UsageKind) -> None:
    assert _many(kind, 20, seed=7) == _many(kind, 20, seed=7)


def test_an_idle_device_is_never_busy_and_once_is_busy_from_the_start_alone() -> None:
    assert all(periods == () for periods in _many(UsageKind.IDLE, 50))
    rng = np.random.default_rng(1)
    once = [usage.draw_busy_periods(UsageKind.ONCE, 1.0, rng, transfer_s=3.0) for _ in range(500)]
    assert all(len(periods) == 1 and periods[0][0] == 0.0 for periods in once)
    ends = [periods[0][1] for periods in once]
    assert 1.5 <= min(ends) < 2.0 < 11.0 < max(ends) <= 12.0
    assert usage.expected_busy_s(UsageKind.ONCE, transfer_s=3.0) == pytest.approx(np.mean(ends), rel=0.05)


@pytest.mark.parametrize(
    ("kind", "low", "median", "high"),
    [(UsageKind.SYNC, 0.2, 0.5, 0.8), (UsageKind.CALL, 6.0, 10.0, 14.0), (UsageKind.INTERACTIVE, 0.0, 2.0, math.inf)],
)
def test_lengths_are_those_the_study_gives(kind: UsageKind, low: float, median: float, high: float) -> None:
    lengths = _lengths(kind)
    assert low <= lengths.min()
    assert lengths.max() <= high
    assert np.median(lengths) == pytest.approx(median, rel=0.06)


def test_a_bimodal_period_is_short_or_long_and_nothing_between() -> None:
    lengths = _lengths(UsageKind.BIMODAL)
    short = np.isclose(lengths, 0.3)
    assert np.mean(short) == pytest.approx(0.5, abs=0.03)
    assert lengths[~short].min() >= 8.0
    assert lengths[~short].max() <= 12.0


@pytest.mark.parametrize("kind", RECURRING)
def test_mean_length_and_mean_gap_are_what_is_promised(kind: UsageKind) -> None:
    rng = np.random.default_rng(3)
    periods = usage.draw_busy_periods(kind, 4000 * usage.mean_gap_s(kind), rng)
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(periods)]
    assert np.mean([end - start for start, end in periods]) == pytest.approx(usage.expected_busy_s(kind), rel=0.06)
    assert np.mean(gaps) == pytest.approx(usage.mean_gap_s(kind), rel=0.06)


@pytest.mark.parametrize("kind", RECURRING)
@pytest.mark.parametrize("at_s", [0.0, 1.0, 7.0, 40.0])
def test_at_any_time_the_same_share_of_devices_is_busy(kind: UsageKind, at_s: float) -> None:
    drawn = _many(kind, 4000, seed=5)
    rate = usage.busy_rate(kind)
    tolerance = 4.0 * math.sqrt(rate * (1.0 - rate) / len(drawn))
    assert np.mean([_busy_at(periods, at_s) for periods in drawn]) == pytest.approx(rate, abs=tolerance)


@pytest.mark.parametrize("kind", RECURRING)
def test_a_period_under_way_at_the_start_has_the_age_and_rest_of_one_met_later(kind: UsageKind) -> None:
    # Busier than the recordings, so that enough periods are met; the law of a met period does not depend on the gap.
    rng = np.random.default_rng(11)
    drawn = [usage.draw_busy_periods(kind, 41.0, rng, gap_scale=0.1) for _ in range(4000)]

    def met(at_s: float) -> np.ndarray:
        pairs = [(at_s - start, end - at_s) for periods in drawn for start, end in periods if start <= at_s < end]
        return np.asarray(pairs)

    at_start, later = met(0.0), met(40.0)
    error = at_start.std(axis=0) / math.sqrt(len(at_start)) + later.std(axis=0) / math.sqrt(len(later))
    assert np.all(np.abs(at_start.mean(axis=0) - later.mean(axis=0)) < 3.5 * error)


def test_a_smaller_gap_scale_makes_devices_busier() -> None:
    assert usage.busy_rate(UsageKind.CALL, gap_scale=0.5) == pytest.approx(0.24 / (0.24 + 0.76 / 2))


@pytest.mark.parametrize("kind", RECURRING)
@pytest.mark.parametrize("age_s", [0.0, 0.1, 0.31, 0.5, 2.0, 5.0, 9.0, 11.0])
def test_expected_rest_is_the_mean_of_what_is_left_in_the_draws(kind: UsageKind, age_s: float) -> None:
    lengths = _draws(kind)
    left = lengths[lengths > age_s] - age_s
    expected = usage.expected_rest_s(kind, age_s)
    if len(left) < 50:
        assert expected == 0.0
    else:
        assert expected == pytest.approx(left.mean(), abs=4.0 * left.std() / math.sqrt(len(left)) + 1e-9)


def _draws(kind: UsageKind, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(2)
    if kind is UsageKind.INTERACTIVE:
        return rng.lognormal(math.log(usage.INTERACTIVE_MEDIAN_S), usage.INTERACTIVE_SIGMA, count)
    if kind is UsageKind.BIMODAL:
        return np.where(rng.random(count) < 0.5, 0.3, rng.uniform(8.0, 12.0, count))
    return rng.uniform(*(usage.SYNC_RANGE_S if kind is UsageKind.SYNC else usage.CALL_RANGE_S), count)


def test_the_longer_an_interactive_period_lasts_the_longer_it_will() -> None:
    rests = [usage.expected_rest_s(UsageKind.INTERACTIVE, age) for age in (2.0, 10.0, 100.0, 1e4, 1e9)]
    assert rests == sorted(rests)
    assert all(map(math.isfinite, rests))


def test_classes_come_in_their_shares_and_speeds_in_the_ranges_of_the_class() -> None:
    rng = np.random.default_rng(4)
    classes = [devices.draw_class(rng) for _ in range(10_000)]
    assert np.bincount(classes) / 10_000 == pytest.approx(np.asarray(devices.CLASS_SHARES), abs=0.02)
    for found in range(4):
        for draw, ranges in (
            (devices.draw_link_mb_s, devices.LINK_RANGES_MB_S),
            (devices.draw_merge_mb_s, devices.MERGE_RANGES_MB_S),
        ):
            speeds = np.asarray([draw(found, rng) for _ in range(500)])
            low, high = ranges[found]
            assert low <= speeds.min()
            assert speeds.max() <= high
            assert speeds.mean() == pytest.approx((low + high) / 2.0, rel=0.05)


def test_a_watt_hour_is_a_share_of_the_battery() -> None:
    assert devices.energy_percent(devices.BATTERY_J) == pytest.approx(100.0)
    assert devices.energy_percent(3600.0) == pytest.approx(6.49, abs=0.01)


def test_constants_are_those_that_the_recordings_give(data_dir: Path) -> None:
    if not (data_dir / "phone_traces" / "phone_traces.csv.gz").is_file():
        pytest.skip("no phone_traces among the data sets")
    found = fit(data_dir)
    for name, row in found["constants"].items():
        if name == "drain_cpu_percent_an_hour":  # a given power: the recordings only have to be near it
            assert row["fitted"] == pytest.approx(row["code"], rel=0.5)
        else:
            assert row["fitted"] == pytest.approx(row["code"], rel=0.05), name
    assert found["constants"]["drain_in_use_percent_an_hour"]["r2_held_out"] > 0.25
    assert found["classes"]["cpu_float_benchmark"]["distance"] < 0.1


def test_the_smallest_age_that_a_float_can_hold_is_one() -> None:
    assert usage.expected_rest_s(UsageKind.INTERACTIVE, 5e-324) == usage.expected_rest_s(UsageKind.INTERACTIVE, 0.0)
