"""What a round's deltas become by each of MDLdroid's equations."""

import numpy as np
import pytest

from benchmarks.evaluation.merging import central, chain, neighbour, pairs


def _vectors(*numbers):
    return [np.array([number], np.float32) for number in numbers]


def test_the_chain_has_the_mean_of_a_server():
    deltas = _vectors(1, 2, 6, 11)
    assert central(deltas) == chain(deltas) == 5


def test_two_at_a_time_halve_what_came_before():
    assert pairs(_vectors(8, 0, 0, 0)) == 1
    assert pairs(_vectors(0, 0, 0, 8)) == 4


def test_neighbours_are_those_of_equation_2():
    # Receivers 1 and 2 of a line 0 -> 1 -> 2: ((1 + 2) / 2 + (2 + 6) / 2) / 2, so that the ends count half.
    assert neighbour(_vectors(1, 2, 6)) == pytest.approx((1.5 + 4) / 2)


def test_a_hub_with_m_neighbours_has_half_the_weight():
    # Eq. 2 with n = 1, j = 0 and m = 3: (1 + 2 + 3 + 3 * 9) / 6.
    assert neighbour(_vectors(9, 1, 2, 3), {0: (1, 2, 3)}) == pytest.approx(33 / 6)


def test_where_everybody_has_as_many_neighbours_eq_2_is_the_mean():
    ring = {j: ((j - 1) % 4, (j + 1) % 4) for j in range(4)}
    assert neighbour(_vectors(1, 2, 6, 11), ring) == pytest.approx(5)


def test_one_device_keeps_its_own():
    assert [merge(_vectors(7))[0] for merge in (central, chain, neighbour, pairs)] == [7, 7, 7, 7]
