"""Coded own deltas: how far off, the same in any order of merging; and packed integers: which lose nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mdl.errors import RemoteProtocolError
from mdl.protocol.coding import BLOCKS, CODINGS, Coding, coarsen, pack, part_of_bytes, unpack
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.grid import coding_in, room_for, share_of
from mdl.protocol.vector_work import Held, hold_own

SIZES = st.integers(1, 3 * BLOCKS["int8"] + 5)
IN_STEPS = {"int8": 127, "int4": 7}  # from zero up to the largest of those that share a unit
ROUNDED: list[Coding] = ["int8", "int4"]
Integers = NDArray[np.int32]


def _integers(size: int, seed: int, scale: float = 1e5) -> Integers:
    return np.clip(np.random.default_rng(seed).normal(size=size) * scale, -(2**30), 2**30).astype(np.int32)


def _coarse(sums: Integers, coding: Coding, limit: int = 2**30) -> Integers:
    coarse = sums.copy()
    coarsen(coarse, coding, limit)
    return coarse


@given(SIZES, st.integers(0, 99), st.sampled_from(CODINGS), st.sampled_from([0.0, 1.0, 300.0, 1e5, 1e9]))
def test_what_is_rounded_is_as_near_as_the_coding_says(size: int, seed: int, coding: Coding, scale: float) -> None:
    sums = _integers(size, seed, scale)
    coarse = _coarse(sums, coding)
    if coding == "none":
        np.testing.assert_array_equal(coarse, sums)
        return
    for start in range(0, size, BLOCKS[coding]):
        block = slice(start, start + BLOCKS[coding])
        before, after = sums[block].astype(np.int64), coarse[block].astype(np.int64)
        assert np.abs(after - before).max() <= np.abs(before).max() / IN_STEPS[coding]
        step = int(np.gcd.reduce(np.abs(after)))
        assert step == 0 or np.abs(after).max() <= IN_STEPS[coding] * (step & -step)


@pytest.mark.parametrize(("coding", "off"), [("int8", 0.012), ("int4", 0.17)])
def test_so_much_of_normally_distributed_values_is_rounded_off(coding: Coding, off: float) -> None:
    sums = _integers(1 << 16, 5)
    rest = np.linalg.norm(sums - _coarse(sums, coding).astype(np.float64)) / np.linalg.norm(sums.astype(np.float64))
    assert off / 2 < rest < off


@given(SIZES, st.integers(0, 99), st.sampled_from(ROUNDED))
def test_rounding_twice_changes_nothing_more(size: int, seed: int, coding: Coding) -> None:
    once = _coarse(_integers(size, seed), coding)
    np.testing.assert_array_equal(_coarse(once, coding), once)


@pytest.mark.parametrize("coding", ROUNDED)
def test_none_is_rounded_beyond_its_share(coding: Coding) -> None:
    limit = share_of(1.0, 3)
    sums = np.full(300, limit, np.int32)
    sums[::2] *= -1
    assert np.abs(_coarse(sums, coding, limit).astype(np.int64)).max() <= limit


def _held(values: NDArray[np.float32], coding: Coding) -> Held:
    delta = ModelDelta(values, 1.0, frozenset([Contributor("a", 1)]))
    return hold_own(np.zeros(values.size, np.float32), delta, room_for(3.0, coding=coding))


@pytest.mark.parametrize("coding", ROUNDED)
def test_an_own_delta_and_its_rest_are_what_was_trained(coding: Coding) -> None:
    values = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    values[7] = 1e3
    held = _held(values, coding)
    assert coding_in(held.sum.room) == coding
    assert held.rest is not None
    assert held.clipped_values == 1
    np.testing.assert_allclose(held.grid.to_mean(held.sum.values, 1.0) + held.rest, values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("coding", ROUNDED)
def test_what_coding_rounds_off_comes_in_with_the_next_delta(coding: Coding) -> None:
    """Error feedback: over many rounds the sum of what was given is as near to all that was trained as one round is."""
    step = np.random.default_rng(3).normal(size=100).astype(np.float32)
    total, rest, errors = np.zeros(100), np.zeros(100, np.float32), []
    for number in range(1, 31):
        held = _held(step + rest, coding)
        assert held.rest is not None
        total, rest = total + held.grid.to_mean(held.sum.values, 1.0), held.rest
        errors.append(np.abs(total - number * step).max())
    assert errors[0] > 0
    assert max(errors) < 4 * errors[0]


@given(
    st.integers(1, 400),
    st.integers(0, 99),
    st.sampled_from(CODINGS),
    st.sampled_from([0.0, 1.0, 1e4, 1e9]),
    st.integers(1, 4),
)
def test_packed_integers_come_back_whole(size: int, seed: int, coding: Coding, scale: float, devices: int) -> None:
    sums = np.zeros(size, np.int32)
    for device in range(devices):
        sums += _coarse(_integers(size, seed + device, scale / devices), coding, 2**29)
    packed = pack(sums)
    np.testing.assert_array_equal(unpack(memoryview(packed), size), sums)


def test_the_largest_and_the_smallest_integers_come_back() -> None:
    for ends in ([-(2**31)], [2**31 - 1], [-(2**31), 2**31 - 1], [-1], [1], [0]):
        sums = np.resize(np.array(ends, np.int64), 130).astype(np.int32)
        np.testing.assert_array_equal(unpack(memoryview(pack(sums)), 130), sums)


def test_they_take_about_as_many_bytes_as_they_say() -> None:
    size = 8192
    for coding in ROUNDED:
        own = [_coarse(_integers(size, seed), coding) for seed in range(8)]
        for devices in (1, 2, 4, 8):
            sums = np.sum(own[:devices], axis=0, dtype=np.int32)
            assert len(pack(sums)) / 4 / size == pytest.approx(part_of_bytes(coding, devices), rel=0.15)


@given(st.binary(max_size=600), st.integers(1, 300))
def test_any_bytes_are_integers_of_at_most_so_many_or_refused(data: bytes, size: int) -> None:
    whole = size.to_bytes(4, "little") + data if len(data) % 2 else data
    try:
        sums = unpack(memoryview(whole), 300)
    except RemoteProtocolError:
        return
    assert 0 < sums.size <= 300


def test_bytes_that_are_cut_off_longer_or_of_too_many_are_refused() -> None:
    packed = pack(_coarse(_integers(300, 1), "int8"))
    for other in (b"", packed[:3], packed[:-1], packed + b"\0", packed[:4]):
        with pytest.raises(RemoteProtocolError, match="packed values"):
            unpack(memoryview(other), 300)
    with pytest.raises(RemoteProtocolError, match="at most 299"):
        unpack(memoryview(packed), 299)
