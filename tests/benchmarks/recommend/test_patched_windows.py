"""Patches in a classifier of windows: what somebody new learns in one vector, and what stays as it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.recommend.windows import WindowSettings, find_junctions, learn_basis, learn_vector, predict
from mdl.errors import ConfigError
from mdl.learning.models import build_model
from mdl.peers.dccl.model.device_step import Basis
from mdl.peers.dccl.model.interactions import Integers

PEOPLE, CLASSES = 4, 3


def _windows(people: int, each: int, seed: int) -> tuple[Tensor, Tensor, Integers]:
    """A class is a level of a channel; everybody's sensor has an offset of its own, as large as a class."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.arange(people).repeat_interleave(each)
    y = torch.randint(CLASSES, (len(owners),), generator=generator)
    x = 0.1 * torch.randn(len(owners), 2, 16, generator=generator)
    x[:, 0] += (y + owners % 2)[:, None]
    x[:, 1] += y[:, None] * (owners % 2)[:, None] * 0.2
    return x, y, owners.numpy()


def _accuracy(module: nn.Module, basis: Basis, vector: Tensor | None, x: Tensor, y: Tensor) -> float:
    return float((predict(module, basis, vector, x).argmax(dim=1) == y).float().mean())


@pytest.fixture
def shared() -> nn.Module:
    """Trained on people without an offset alone."""
    module = build_model("lenet", 2, 16, CLASSES, seed=0)
    x, y, _ = _windows(1, 120, seed=1)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.eval()


def test_each_layer_has_a_junction_along_its_own_units() -> None:
    found = [(each.width, each.dim) for each in find_junctions(build_model("lenet", 6, 32, 5, seed=0))]
    assert found == [(32, 1), (64, 1), (64, -1), (5, -1)]
    with pytest.raises(ConfigError, match="no convolution over time and no linear layer"):
        find_junctions(nn.ReLU())


def test_somebody_new_is_learned_in_one_vector_and_the_model_stays(shared: nn.Module) -> None:
    before = copy.deepcopy(shared.state_dict())
    torch.manual_seed(0)
    basis = Basis(find_junctions(shared), 8)
    x, y, people = _windows(PEOPLE, 40, seed=2)
    vectors = learn_basis(shared, basis, x, y, people, WindowSettings(epochs=8, basis_rate=0.005), seed=0)
    assert vectors.shape == (PEOPLE, 8)
    theta, start = basis.theta.detach().clone(), vectors.mean(dim=0)
    mine_x, mine_y, _ = (each[60:] for each in _windows(2, 60, seed=3))  # of one with an offset
    later_x, later_y, _ = (each[60:] for each in _windows(2, 60, seed=4))
    vector = learn_vector(shared, basis, start, mine_x, mine_y, WindowSettings(epochs=20), seed=0)
    alone = _accuracy(shared, basis, None, later_x, later_y)
    assert _accuracy(shared, basis, vector, later_x, later_y) > alone + 0.2
    assert torch.equal(basis.theta, theta)
    assert all(torch.equal(value, before[name]) for name, value in shared.state_dict().items())
    assert torch.equal(predict(shared, basis, None, later_x), shared(later_x))


def test_what_is_learned_follows_from_the_seed(shared: nn.Module) -> None:
    x, y, _ = _windows(1, 20, seed=5)
    torch.manual_seed(0)
    basis, start = Basis(find_junctions(shared), 8), torch.ones(8)
    first, again, other = (
        learn_vector(shared, basis, start, x, y, WindowSettings(epochs=1, batch=4), seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not np.array_equal(first.numpy(), start.numpy())
