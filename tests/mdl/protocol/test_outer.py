"""The outer optimizer: the steps of torch's Nesterov, the same on all who have the same results; none by default."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl.protocol.delta import apply_delta
from mdl.protocol.grid import Vector
from mdl.protocol.vector_work import Outer

W = np.arange(6, dtype=np.float32)


def _deltas(count: int) -> list[Vector]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=W.size).astype(np.float32) for _ in range(count)]


def test_without_momentum_a_result_is_applied_as_algorithm_1_says() -> None:
    outer = Outer(0.5)
    assert outer.begin(W) is W
    assert (outer.state_size(6), outer.split(W)) == (6, (W, None))
    np.testing.assert_array_equal(outer.step(W, _deltas(1)[0]), apply_delta(W, _deltas(1)[0], 0.5))


@pytest.mark.parametrize(("eta", "momentum"), [(0.7, 0.9), (1.0, 0.5)])
def test_with_momentum_the_steps_are_those_of_torch(eta: float, momentum: float) -> None:
    outer, parameter = Outer(eta, momentum), torch.nn.Parameter(torch.from_numpy(W.copy()))
    theirs = torch.optim.SGD([parameter], lr=eta, momentum=momentum, nesterov=True)
    state = outer.begin(W)
    assert state.size == outer.state_size(W.size) == 12
    for delta in _deltas(20):
        parameter.grad = torch.from_numpy(delta.copy())
        theirs.step()
        before, kept = state, state.copy()
        state = outer.step(state, delta)
        np.testing.assert_array_equal(before, kept)  # others may be reading it
    w, v = outer.split(state)
    np.testing.assert_allclose(w, parameter.detach().numpy(), rtol=1e-4, atol=1e-4)
    assert v is not None
    np.testing.assert_array_equal(outer.begin(w, v), state)


def test_what_is_averaged_has_no_momentum() -> None:
    """A variance that falls for two rounds would fall below 0 in the third."""
    outer, state = Outer(1.0, 0.9, ((2, 4),)), Outer(1.0, 0.9).begin(W)
    plain = W
    for delta in _deltas(5):
        state, plain = outer.step(state, delta), apply_delta(plain, delta, 1.0)
    w, v = outer.split(state)
    assert v is not None
    np.testing.assert_allclose(w[2:4], plain[2:4], rtol=1e-6)
    assert not v[2:4].any()
    assert np.abs(w[:2] - plain[:2]).min() > 0.1
