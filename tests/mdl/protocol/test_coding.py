"""Coded values: how many bytes, how far off, the same on all who decode them, and nothing that would poison a mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.errors import RemoteProtocolError
from mdl.protocol.coding import BLOCKS, CODINGS, Coding, coded_size, decode, encode
from mdl.protocol.delta import LARGEST_VALUE
from mdl.protocol.grid import Vector

SIZES = st.integers(1, 3 * BLOCKS["int8"] + 5)
IN_STEPS = {"int8": 127, "int4": 7}  # from zero up to the largest of those that share a scale
ROUNDED: list[Coding] = ["float16", "int8", "int4", "ternary"]


def _values(size: int, seed: int, scale: float = 1.0) -> Vector:
    return (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)


def _least_off(values: Vector) -> float:
    """The least that may be rounded off of a block where each value kept becomes one size: tried one by one."""
    sizes = np.sort(np.abs(values.astype(np.float64)))[::-1]
    return float(min(np.linalg.norm([*(sizes[:k] - sizes[:k].mean()), *sizes[k:]]) for k in range(1, sizes.size + 1)))


@given(SIZES, st.integers(0, 99), st.sampled_from(CODINGS), st.sampled_from([1e-30, 1e-4, 1.0, 1e4]))
def test_what_is_decoded_is_as_near_as_the_coding_says(size: int, seed: int, coding: Coding, scale: float) -> None:
    values = _values(size, seed, scale)
    coded = encode(values, coding)
    assert coded.shape == (coded_size(size, coding),)
    assert coded.dtype == np.float32
    back = decode(coded, size, coding)
    if coding == "none":
        np.testing.assert_array_equal(back, values)
    elif coding in BLOCKS:
        for start in range(0, size, BLOCKS[coding]):
            block = slice(start, start + BLOCKS[coding])
            if coding == "ternary":
                assert np.linalg.norm(back[block] - values[block]) <= _least_off(values[block]) * (1 + 1e-4)
            else:
                largest = np.abs(values[block]).max()
                assert np.abs(back[block] - values[block]).max() <= largest * (0.5 / IN_STEPS[coding] + 1e-5)
    else:
        np.testing.assert_allclose(back, values, rtol=2**-11, atol=2**-24)


def test_codings_take_as_many_bytes_as_they_say() -> None:
    size = 8192
    assert coded_size(size, "float16") * 2 == size
    assert size / coded_size(size, "int8") == pytest.approx(3.94, abs=0.01)
    assert size / coded_size(size, "int4") == pytest.approx(7.11, abs=0.01)
    assert size / coded_size(size, "ternary") == pytest.approx(32 / 1.85, abs=0.05)


@given(SIZES, st.integers(0, 99), st.sampled_from(ROUNDED), st.sampled_from([1e-45, 1e-43, 1e-38]))
def test_values_that_no_scale_tells_apart_keep_their_sign(size: int, seed: int, coding: Coding, scale: float) -> None:
    """Of 200 times the least float32 a scale is the least one: a code of 200 would come back as -56."""
    values = (np.random.default_rng(seed).integers(-300, 300, size) * np.float32(scale)).astype(np.float32)
    back = decode(encode(values, coding), size, coding)
    assert np.isfinite(back).all()
    assert (back * values >= 0).all()


@given(st.integers(0, 99), st.sampled_from(["int8", "int4", "ternary"]), st.integers(1, 300))
def test_what_was_decoded_is_coded_without_further_loss(seed: int, coding: Coding, size: int) -> None:
    once = decode(encode(_values(size, seed), coding), size, coding)
    np.testing.assert_allclose(decode(encode(once, coding), size, coding), once, rtol=1e-6)


@given(st.binary(min_size=4, max_size=2048), st.integers(1, 1024), st.sampled_from(ROUNDED))
def test_any_bytes_are_finite_values_of_this_many_or_refused(data: bytes, size: int, coding: Coding) -> None:
    """float16 has infinities of its own: `check_values` refuses those, as it does uncoded ones."""
    coded = np.frombuffer(data[: len(data) // 4 * 4], np.float32)
    coded = np.resize(coded, coded_size(size, coding)) if size % 3 else coded  # mostly of a length that is right
    try:
        back = decode(coded, size, coding)
    except RemoteProtocolError:
        return
    assert back.shape == (size,)
    assert back.dtype == np.float32
    assert coding == "float16" or np.abs(back).max() <= LARGEST_VALUE * 8 / 7 * 1.001


@pytest.mark.parametrize("coding", ROUNDED)
def test_zeros_stay_zeros_and_large_values_stay_finite(coding: Coding) -> None:
    assert not decode(encode(np.zeros(300, np.float32), coding), 300, coding).any()
    large = decode(encode(np.full(5, 9e5, np.float32), coding), 5, coding)
    assert np.isfinite(large).all()
    assert large.min() > 6e4


@pytest.mark.parametrize("coding", ROUNDED)
@pytest.mark.parametrize("more", [-1, 1, 1 << 16])
def test_another_length_is_refused(coding: Coding, more: int) -> None:
    with pytest.raises(RemoteProtocolError, match="coded values"):
        decode(np.zeros(coded_size(300, coding) + more, np.float32), 300, coding)


@pytest.mark.parametrize("coding", ["int8", "int4", "ternary"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, 2e6])
def test_scales_that_would_poison_a_mean_are_refused(coding: Coding, scale: float) -> None:
    coded = encode(_values(300, 1), coding).copy()
    coded[1] = scale
    with pytest.raises(RemoteProtocolError, match="scales"):
        decode(coded, 300, coding)
