"""The grid on which deltas are integers: exact sums, bounded rounding, shares that never overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.errors import RemoteProtocolError
from mdl.protocol.coding import CODINGS
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.grid import (
    BLOCK,
    WIDE,
    change_room,
    check_sums,
    coding_in,
    grid_of,
    room_for,
    scale_sums,
    share_of,
    weights_in,
)
from mdl.protocol.vector_work import hold_own

SIZE = 3 * BLOCK + 17


def _parameters(seed: int) -> np.ndarray:
    """Draw parameters over six decades, block by block, as layers differ."""
    rng = np.random.default_rng(seed)
    scale = np.repeat(10.0 ** rng.uniform(-3, 3, SIZE // BLOCK + 1), BLOCK)[:SIZE]
    return (rng.standard_normal(SIZE) * scale).astype(np.float32)


@given(seed=st.integers(0, 2**32 - 1), theta=st.sampled_from([1.0, 7.0, 1234.0]), start=st.integers(0, SIZE - 1))
def test_any_part_is_rounded_as_in_the_whole_and_by_half_a_unit_at_most(seed: int, theta: float, start: int) -> None:
    parameters = _parameters(seed)
    grid = grid_of(parameters, room_for(2 * theta))
    values = (parameters * np.float32(0.01)).astype(np.float32)
    sums = grid.to_sums(values, theta)
    np.testing.assert_array_equal(grid.to_sums(values[start:], theta, start), sums[start:])
    mean = grid.to_mean(sums, theta)
    np.testing.assert_array_equal(grid.to_mean(sums[start:], theta, start), mean[start:])
    blocks = np.repeat(np.maximum(grid.exponents, 0).astype(float), BLOCK)[:SIZE]
    unit = 2.0 ** (blocks - 28 + grid.room) / theta
    assert (np.abs(mean - values) <= 0.5 * unit + np.abs(values) * 2.0**-22).all()
    # float32's own spacing at the largest parameter of a block is four units of the whole mean or more.
    largest = np.repeat([np.abs(parameters[at : at + BLOCK]).max() for at in range(0, SIZE, BLOCK)], BLOCK)[:SIZE]
    assert (unit <= 4 * np.spacing(np.maximum(largest, 1.0).astype(np.float32))).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_no_sum_overflows_whatever_the_values_are(count: int) -> None:
    rng = np.random.default_rng(count)
    thetas = [float(theta) for theta in rng.integers(1, 1000, count)]
    grid = grid_of(np.zeros(4, np.float32), room_for(sum(thetas)))
    total = np.zeros(4, np.int64)
    for theta in thetas:  # each weight may have doubled
        own = grid.to_sums(np.array([1e6, -1e6, 3e38, 1.0], np.float32), 2 * theta)
        check_sums(own, 2 * theta, grid.room)
        total += own
    assert np.abs(total).max() < 2**31
    check_sums(total.astype(np.int32), 2 * sum(thetas), grid.room)


def test_a_sum_beyond_its_share_is_refused() -> None:
    limit = share_of(2.0, 3)
    check_sums(np.array([limit, -limit], np.int32), 2.0, 3)
    for value in (limit + 2, -limit - 2):
        with pytest.raises(RemoteProtocolError, match="beyond the share of a weight of 2"):
            check_sums(np.array([0, value], np.int32), 2.0, 3)


def test_what_a_share_cuts_off_is_own_work_and_nothing_is_lost() -> None:
    parameters = np.full(6, 0.5, np.float32)
    values = np.array([0.25, -20.0, 3.0, 1e5, -7.5, 0.0], np.float32)
    held = hold_own(parameters, ModelDelta(values, 1.0, frozenset([Contributor("a", 1)])), 2)
    assert held.rest is not None
    given_now = held.grid.to_mean(held.sum.values, 1.0)
    np.testing.assert_allclose(given_now + held.rest, values, rtol=1e-6)
    assert held.clipped_values == 2
    assert held.rest[[0, 2, 4, 5]].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert hold_own(parameters, ModelDelta(values * 0, 1.0, frozenset()), 2).rest is None


def test_earlier_work_is_in_the_integers() -> None:
    delta = ModelDelta(np.array([1.0, 2.0], np.float32), 2.0, frozenset([Contributor("a", 1)]))
    held = hold_own(np.zeros(2, np.float32), delta, 3, (np.array([0.5, 0.0], np.float32),))
    assert held.grid.to_mean(held.sum.values, held.sum.theta).tolist() == [1.5, 2.0]


def test_the_room_is_for_weights_that_double() -> None:
    assert [room_for(theta) for theta in (1.0, 2.0, 3.0, 4.0, 5.0, 1000.0)] == [1, 2, 3, 3, 4, 11]
    assert room_for(0.0) == 0
    assert room_for(1e30) == 63
    assert room_for(3.0, is_first=True) == WIDE + 3
    rooms = [room_for(3.0, is_first, coding) for is_first in (False, True) for coding in CODINGS]
    assert [coding_in(room) for room in rooms] == 2 * [*CODINGS]
    assert {weights_in(room) for room in rooms} == {8.0}


def test_in_a_first_round_statistics_may_jump_from_zero_to_thousands() -> None:
    zeros, values = np.zeros(3, np.float32), np.array([5000.0, -30000.0, 0.01], np.float32)
    delta = ModelDelta(values, 1.0, frozenset())
    first, later = (hold_own(zeros, delta, room_for(4.0, is_first)) for is_first in (True, False))
    assert (first.rest, later.clipped_values) == (None, 2)
    np.testing.assert_allclose(first.grid.to_mean(first.sum.values, 1.0), values, atol=2.0**-13)
    assert share_of(1.0, first.sum.room) == share_of(1.0, later.sum.room)


def test_a_finer_grid_keeps_values_and_a_coarser_one_rounds_them() -> None:
    sums = np.array([6, -5, 3], np.int32)
    assert change_room(sums, 2, 2) is sums
    assert change_room(sums, 3, 1).tolist() == [24, -20, 12]
    assert change_room(sums, 1, 2).tolist() == [3, -2, 2]
    assert np.abs(change_room(np.array([2**30, -(2**30)], np.int32), 9, 1)).tolist() == [share_of(2.0, 1)] * 2
    scale_sums(sums, 0.5)
    assert sums.tolist() == [3, -2, 2]


def test_places_and_lengths_are_those_of_the_mean() -> None:
    parameters = _parameters(3)
    grid = grid_of(parameters, 4)
    values = (parameters * np.float32(0.1)).astype(np.float32)
    sums = grid.to_sums(values, 3.0)
    places = np.array([0, 5, BLOCK, SIZE - 1])
    np.testing.assert_array_equal(grid.mean_at(sums, 3.0, places), grid.to_mean(sums, 3.0)[places])
    np.testing.assert_array_equal(grid.mean_at(sums, 3.0, None), grid.to_mean(sums, 3.0))
    assert grid.length(sums, 3.0) == pytest.approx(float(np.linalg.norm(values)), rel=1e-5)


def test_the_mean_may_take_the_memory_of_the_sum() -> None:
    grid = grid_of(np.zeros(SIZE, np.float32), 1)
    sums = grid.to_sums(np.linspace(-1, 1, SIZE, dtype=np.float32), 1.0)
    apart = grid.to_mean(sums, 1.0)
    in_place = grid.to_mean(sums, 1.0, out=sums.view(np.float32))
    np.testing.assert_array_equal(in_place, apart)
    assert np.shares_memory(in_place, sums)
