"""A module that computes with other values while the one that trains goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mdl.config import TrainingSettings
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.tensors import own_names
from mdl.learning.training import LocalTrainer

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(80, 3, 32)).astype(np.float32), RNG.integers(0, 4, 80)


def flat(name: str = "lenet", batch_norm: str = "shared", **more: object) -> FlatModel:
    module = build_model(name, 3, 32, 4, 0, **more)  # type: ignore[arg-type]
    return FlatModel(module, own=own_names(module, batch_norm))


@pytest.mark.parametrize("name", ["lenet", "fcn", "alexnet", "cnn-lstm"])
def test_it_tests_as_the_loaded_model_does_and_leaves_that_alone(name: str) -> None:
    model, other = flat(name), flat(name)
    values = RNG.normal(scale=0.1, size=model.size).astype(np.float32)
    before = model.values().copy()
    there = evaluate(model.beside(values, {}), X, Y, 4)
    assert np.array_equal(model.values(), before)
    other.load(values)  # variances below 0 count as 0 in both
    assert there == evaluate(other.module, X, Y, 4)
    assert model.module.training


def test_numbers_are_scaled_by_the_scale_of_the_values() -> None:
    model, y = flat(targets="numbers"), RNG.normal(60.0, 5.0, size=(80, 4)).astype(np.float32)
    trained = LocalTrainer(model, X, y, TrainingSettings()).train_round(model.values().copy(), 1).values.copy()
    model.load(np.zeros_like(trained))
    there = evaluate(model.beside(trained, {}), X, y, 4)
    model.load(trained)
    assert there == evaluate(model.module, X, y, 4)
    assert there.errors


def test_training_that_runs_meanwhile_gives_the_same_bits() -> None:
    def learned(tests: bool) -> bytes:
        model = flat()
        start, asked = model.values().copy(), []
        seen = model.beside(start, {})

        def look() -> bool:  # before each batch
            asked.append(evaluate(seen, X, Y, 4)) if tests else None
            return False

        trained = LocalTrainer(model, X, Y, TrainingSettings(batch_size=8)).train_round(start, 1, look)
        assert len(set(map(str, asked))) == int(tests), "what is tested is w(t), however far training is"
        return trained.values.tobytes()

    assert learned(tests=True) == learned(tests=False)


def test_what_is_a_devices_own_is_given_with_the_values() -> None:
    model = flat(batch_norm="own")
    own = {name: torch.full_like(tensor, 2.0) for name, tensor in model.own_state().items()}
    there = model.beside(model.values(), own)
    assert all(torch.equal(there.state_dict()[name], tensor) for name, tensor in own.items())
    assert not torch.equal(model.own_state()["0.running_mean"], own["0.running_mean"])


def test_a_part_with_two_names_is_one_and_values_that_may_not_be_written_will_do() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x))
            return out

    model = FlatModel(Twice())
    values = np.ones(model.size, np.float32)
    values.flags.writeable = False
    there = model.beside(values, {})
    assert there.first is there.second
    assert torch.equal(there(torch.ones(1, 3)), torch.full((1, 3), 13.0))
