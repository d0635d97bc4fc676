"""Coded values: how many bytes, how far off, the same on all who decode them, and nothing that would poison a mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.errors import RemoteProtocolError
from mdl.protocol.coding import BLOCK, CODINGS, Coding, coded_size, decode, encode
from mdl.protocol.delta import Vector

SIZES = st.integers(1, 3 * BLOCK + 5)


def _values(size: int, seed: int, scale: float = 1.0) -> Vector:
    return (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)


@given(SIZES, st.integers(0, 99), st.sampled_from(CODINGS), st.sampled_from([1e-30, 1e-4, 1.0, 1e4]))
def test_what_is_decoded_is_as_near_as_the_coding_says(size: int, seed: int, coding: Coding, scale: float) -> None:
    values = _values(size, seed, scale)
    coded = encode(values, coding)
    assert coded.shape == (coded_size(size, coding),)
    assert coded.dtype == np.float32
    back = decode(coded, size, coding)
    if coding == "none":
        np.testing.assert_array_equal(back, values)
    elif coding == "int8":
        for start in range(0, size, BLOCK):
            block = slice(start, start + BLOCK)
            assert np.abs(back[block] - values[block]).max() <= np.abs(values[block]).max() * (0.5 / 127 + 1e-5)
    else:
        np.testing.assert_allclose(back, values, rtol=2**-11, atol=2**-24)


def test_codings_take_as_many_bytes_as_they_say() -> None:
    size = 8192
    assert coded_size(size, "float16") * 2 == size
    assert size / coded_size(size, "int8") == pytest.approx(3.94, abs=0.01)


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_zeros_stay_zeros_and_large_values_stay_finite(coding: Coding) -> None:
    assert not decode(encode(np.zeros(300, np.float32), coding), 300, coding).any()
    large = decode(encode(np.full(5, 9e5, np.float32), coding), 5, coding)
    assert np.isfinite(large).all()
    assert large.min() > 6e4


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_another_length_is_refused(coding: Coding) -> None:
    with pytest.raises(RemoteProtocolError, match="coded values"):
        decode(np.zeros(coded_size(300, coding) + 1, np.float32), 300, coding)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 1e6])
def test_scales_that_would_poison_a_mean_are_refused(scale: float) -> None:
    coded = encode(_values(300, 1), "int8").copy()
    coded[1] = scale
    with pytest.raises(RemoteProtocolError, match="scales"):
        decode(coded, 300, "int8")
