"""A module lives in one vector; another one computes with other values while the one that trains goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mdl.config import TrainingSettings
from mdl.errors import ConfigError, LocalProtocolError
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel, own_names
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(80, 3, 32)).astype(np.float32), RNG.integers(0, 4, 80)


def _normed() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 2))


def test_flattening_changes_no_output() -> None:
    module = build_model("lenet", 3, 32, 4, seed=1).eval()
    x = torch.ones(2, 3, 32)
    before = module(x)
    FlatModel(module)
    assert torch.equal(module(x), before)


def test_parameters_and_float_buffers_are_views_of_one_vector() -> None:
    flat = FlatModel(_normed())
    flat.load(np.arange(flat.size, dtype=np.float32))
    state = [*flat.module.parameters(), *(b for b in flat.module.buffers() if b.is_floating_point())]
    assert np.concatenate([tensor.detach().numpy().ravel() for tensor in state]).tolist() == list(range(flat.size))
    assert all(np.shares_memory(tensor.detach().numpy(), flat.values()) for tensor in state)


def test_training_moves_the_vector_and_batch_norm_statistics_stay_views() -> None:
    flat = FlatModel(_normed())
    before = flat.values().copy()
    optimizer = torch.optim.SGD(flat.module.parameters(), 0.1)
    flat.module(torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(0)) + 5).sum().backward()
    optimizer.step()
    mean = flat.module[0].running_mean.numpy()
    assert np.shares_memory(mean, flat.values())
    assert mean.min() > 0.3
    assert (flat.values() != before).sum() > 12


def test_integer_buffers_are_left_alone() -> None:
    flat = FlatModel(_normed())
    flat.module(torch.ones(2, 3, 4))
    flat.load(np.zeros(flat.size, np.float32))
    assert flat.module[0].num_batches_tracked.item() == 1


@pytest.mark.parametrize("apart", [False, True])
def test_a_variance_below_0_is_0_in_the_module_and_nothing_else_changes(apart: bool) -> None:
    """Carried work of several rounds takes a variance there, and its root is no number."""
    flat = FlatModel(_normed(), apart)
    vector = np.full(flat.size, -0.5, np.float32)
    vector[-1] = -0.0  # the third variance: as it is, digests are of bytes
    flat.load(vector)
    after = flat.values()
    changed = np.flatnonzero(after.view(np.int32) != vector.view(np.int32))
    assert changed.tolist() == [flat.size - 3, flat.size - 2]
    assert flat.module[0].running_var.tolist() == [0.0, 0.0, 0.0]
    assert torch.isfinite(flat.module.eval()(torch.ones(2, 3, 4))).all()


def test_buffers_that_are_no_state_are_left_alone() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("table", torch.ones(5, dtype=torch.float64), persistent=False)
    assert FlatModel(module).size == 6


def test_tied_parameters_count_once_and_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    flat = FlatModel(module)
    assert flat.size == 16
    flat.load(np.full(16, 2, np.float32))
    assert module[1].weight is module[0].weight
    assert module[1].weight.sum().item() == 32


def test_two_tensors_in_the_same_memory_are_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight.data = module[0].weight.data
    with pytest.raises(ConfigError, match=r"0\.weight and 1\.weight share memory"):
        FlatModel(module)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_other_floats_are_refused_by_name(dtype: torch.dtype) -> None:
    module = _normed()
    module[2].bias = nn.Parameter(torch.zeros(2, dtype=dtype))
    with pytest.raises(ConfigError, match=r"tensor 2\.bias is torch\..*: use float32"):
        FlatModel(module)


def test_an_uninitialised_model_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"weight is not initialised"):
        FlatModel(nn.LazyLinear(3))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        FlatModel(nn.ReLU())


@pytest.mark.parametrize("vector", [np.zeros(3, np.float32), np.zeros(6, np.float64)])
def test_a_vector_that_does_not_fit_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(LocalProtocolError, match="does not fit"):
        FlatModel(nn.Linear(2, 2)).load(vector)


def test_a_second_flattening_keeps_values() -> None:
    module = _normed()
    first = FlatModel(module).values().copy()
    assert np.array_equal(FlatModel(module).values(), first)


def test_an_lstm_computes_with_the_loaded_values() -> None:
    flat = FlatModel(nn.LSTM(3, 5, num_layers=2, batch_first=True))
    flat.load(np.zeros(flat.size, np.float32))
    output, _ = flat.module(torch.ones(1, 4, 3))
    assert output.abs().max().item() == 0
    output.sum().backward()
    torch.optim.SGD(flat.module.parameters(), 1.0).step()
    assert np.abs(flat.values()).max() > 0


def test_the_schema_hash_tells_models_apart_and_seeds_not() -> None:
    one, same, other = (FlatModel(build_model("lenet", 3, 32, c, s)) for c, s in ((4, 0), (4, 1), (5, 0)))
    assert one.schema_hash == same.schema_hash != other.schema_hash
    assert len(one.schema_hash) == 16
    assert int(one.schema_hash, 16) >= 0


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
