"""Checksums add up as the sums do, however those are cut; an altered sum has another one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mdl.bounds import MAX_VALUES
from mdl.protocol import checksum
from mdl.protocol.checksum import add_up, checksum_of, checksums_by_piece, checksums_by_segment, piece_values
from mdl.protocol.grid import Sums

SIZES = (1, 5, 1023, 1024, 1025, 5000, 300_001, 1_200_007)


def _sum(seed: int, size: int) -> Sums:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, size, dtype=np.int32)


@pytest.mark.parametrize("size", SIZES)
def test_a_checksum_is_the_same_however_the_sum_is_cut(size: int) -> None:
    sums, rng = _sum(1, size), np.random.default_rng(2)
    whole, values = checksum_of(sums), 4 * piece_values(size)
    assert add_up(checksums_by_piece(sums)) == whole
    assert checksums_by_segment(checksums_by_piece(sums), size, values) == tuple(
        checksum_of(sums[start : start + values], start) for start in range(0, size, values)
    )
    for at in map(int, rng.integers(0, size + 1, 20)):
        assert add_up((checksum_of(sums[:at]), checksum_of(sums[at:], at))) == whole


def test_the_checksum_of_a_part_takes_no_more_memory_wherever_a_message_says_that_it_begins() -> None:
    ones = np.ones(3000, np.int32)
    tracemalloc.start()
    try:
        found = {checksum_of(ones, start) for start in (0, 7, MAX_VALUES - 3000, MAX_VALUES)}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(found) == 4


def test_it_is_the_sum_of_each_value_times_an_odd_number_of_its_place() -> None:
    sums = _sum(3, 3000)
    factors = [checksum_of(np.array([1], np.int32), place) for place in range(sums.size)]
    assert all(factor % 2 for factor in factors)
    assert len(set(factors)) == sums.size
    assert checksum_of(sums) == sum(int(value) * factor for value, factor in zip(sums, factors, strict=True)) % 2**63


@pytest.mark.parametrize("size", SIZES)
def test_checksums_of_deltas_add_up_to_that_of_their_sum(size: int) -> None:
    deltas = [_sum(seed, size) // 8 for seed in range(5)]
    assert add_up(map(checksum_of, deltas)) == checksum_of(np.sum(deltas, axis=0, dtype=np.int32))


@pytest.mark.parametrize("seed", range(200))
def test_any_alteration_has_another_checksum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sums = _sum(seed, int(rng.integers(2, 5000)))
    altered = sums.copy()
    place, other = (int(each) for each in rng.choice(sums.size, 2, replace=False))
    match seed % 4:
        case 0:
            altered[place] ^= np.int32(1 << int(rng.integers(0, 31)))  # one bit
        case 1:
            altered[[place, other]] = altered[[other, place]]
        case 2:
            altered[:] = np.where(altered > -(2**31), -altered, 0)
        case _:
            altered[place:] //= 2
    assert (altered == sums).all() or checksum_of(altered) != checksum_of(sums)


def test_no_values_have_no_pieces() -> None:
    assert (checksums_by_piece(_sum(1, 0)), checksum_of(_sum(1, 0))) == ((), 0)


def test_segments_are_made_of_whole_pieces() -> None:
    assert piece_values(1 << 20) == 1 << 12
    assert len(checksums_by_segment(range(256), 1 << 20, 1 << 13)) == 128


def test_a_large_sum_has_pieces_of_a_bounded_size() -> None:
    assert piece_values(1 << 33) == 1 << 16
    assert checksum._factors.cache_info().maxsize == 64  # what it keeps is bounded
