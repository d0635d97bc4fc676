"""What is frozen, or stays as it is in training, must be the same on all devices, and is not merged."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.learning.flat import FlatModel
from mdl.learning.models import Numbers
from mdl.protocol.grid import Vector


def _model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    return model


def test_only_what_is_trained_is_in_the_vector() -> None:
    flat = FlatModel(_model())
    assert flat.schema == [("2.weight", (2, 5)), ("2.bias", (2,))]
    assert (flat.size, flat.frozen.size) == (12, 35)


def test_loading_the_meshs_values_leaves_frozen_ones_alone() -> None:
    module = _model()
    before = copy.deepcopy(module[0].state_dict())
    flat = FlatModel(module)
    flat.load(np.ones(flat.size, np.float32))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module[0].state_dict().items())
    assert module[2].weight.eq(1).all()


def test_the_same_frozen_values_make_the_same_task_and_others_another_one() -> None:
    assert FlatModel(_model(0)).schema_hash == FlatModel(_model(0)).schema_hash
    assert FlatModel(_model(0)).schema_hash != FlatModel(_model(1)).schema_hash
    one, other = FlatModel(_model(0)), FlatModel(_model(1))
    assert one.schema == other.schema
    assert str(one.frozen) != str(other.frozen)


def test_a_model_without_frozen_parameters_has_the_hash_that_it_had() -> None:
    flat = FlatModel(_model().requires_grad_(True))
    assert flat.task_schema == flat.schema
    assert str(flat.frozen) == ""


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_frozen_values_may_be_of_any_type(kind: torch.dtype) -> None:
    module = _model()
    module[0].weight = nn.Parameter(module[0].weight.detach().to(kind), requires_grad=False)
    flat = FlatModel(module)
    flat.load(np.zeros(flat.size, np.float32))
    assert flat.module[0].weight.dtype is kind  # type: ignore[index]


def test_what_was_frozen_and_is_trained_now_is_named() -> None:
    flat = FlatModel(_model())
    flat.module.requires_grad_(True)
    with pytest.raises(ConfigError, match=r"model tensor 0\.weight was frozen when the model was handed over"):
        flat.gather()
    with pytest.raises(ConfigError, match=r"0\.weight was frozen"):
        flat.trainable()


def test_frozen_values_that_change_are_noticed() -> None:
    flat = FlatModel(_model())
    with torch.no_grad():
        flat.module[0].bias.add_(1)  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"frozen parameters of the model have other values .*0\.bias was written to"):
        flat.gather()


def test_frozen_values_that_move_are_the_same_values() -> None:
    flat = FlatModel(_model())
    for parameter in flat.module[0].parameters():  # type: ignore[index]
        parameter.data = parameter.data.clone()
    flat.gather()
    flat.load(np.zeros(flat.size, np.float32))


def test_what_is_frozen_later_stays_in_the_vector() -> None:
    flat = FlatModel(_model().requires_grad_(True))
    flat.module[0].requires_grad_(False)  # type: ignore[index]
    assert flat.gather().size == 47


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="every parameter of the model is frozen"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).requires_grad_(False))


def test_frozen_values_must_be_there() -> None:
    module = _model()
    module[0] = nn.Linear(6, 5, device="meta").requires_grad_(False)
    with pytest.raises(ConfigError, match=r"0\.weight is on the meta device: it has no values"):
        FlatModel(module)


class _Scaled(nn.Module):
    """A linear layer of inputs that are divided by a buffer; seen: the sum of its batches, which training changes."""

    def __init__(self, deviation: float, is_own: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("deviation", torch.full((2,), deviation), persistent=not is_own)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        return self.layer(x / self.deviation)  # type: ignore[no-any-return]


def _train(flat: FlatModel, parameters: Vector) -> Vector:
    flat.load(parameters)
    optimizer = torch.optim.SGD(flat.module.parameters(), 0.1)
    flat.module(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    return parameters - flat.gather()


def test_a_buffer_with_infinite_values_is_left_out_and_compared() -> None:
    def masked(size: float) -> FlatModel:
        module = nn.Linear(2, 2)
        module.register_buffer("mask", torch.tensor([0.0, -size]))
        return FlatModel(module)

    flat = masked(torch.inf)
    assert [name for name, _ in flat.schema] == ["weight", "bias"]
    assert str(flat.frozen).startswith("2 frozen, ")
    flat.load(np.ones(flat.size, np.float32))
    assert flat.module.mask.tolist() == [0.0, -torch.inf]
    assert masked(torch.inf).schema_hash == flat.schema_hash != masked(-torch.inf).schema_hash
    assert [name for name, _ in masked(1e9).schema] == ["weight", "bias", "mask"]


def test_a_buffer_that_was_infinite_and_is_written_to_is_named() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("least", torch.tensor([torch.inf]))
    flat = FlatModel(module)
    module.least.fill_(1.0)  # type: ignore[operator,union-attr]
    with pytest.raises(ConfigError, match=r"buffers that were not finite .* \(least was written to\)"):
        flat.gather()


def test_a_buffer_that_training_leaves_at_other_values_than_were_brought_is_named() -> None:
    mesh = FlatModel(_Scaled(1.0)).values().copy()
    flat = FlatModel(_Scaled(2.0))
    with pytest.raises(ConfigError, match="buffer deviation of the model has other values here than in the mesh"):
        flat.check_constants(_train(flat, mesh))


def test_a_buffer_of_the_same_values_or_that_training_changes_is_no_difference() -> None:
    mesh = FlatModel(_Scaled(1.0)).values().copy()
    late = mesh + np.float32(0)
    flat = FlatModel(_Scaled(1.0))
    late[flat.buffers()[0].stop - 1] = 7.0  # others have trained
    flat.check_constants(_train(flat, late))


def test_what_is_compared_is_the_first_round_that_was_trained_in() -> None:
    mesh = FlatModel(_Scaled(1.0)).values().copy()
    flat = FlatModel(_Scaled(2.0))
    flat.check_constants(np.zeros_like(mesh))
    with pytest.raises(ConfigError, match="buffer deviation"):
        flat.check_constants(_train(flat, mesh))
    flat.check_constants(_train(flat, mesh))


def test_a_buffer_that_the_state_dict_leaves_out_is_each_devices_own() -> None:
    mesh = FlatModel(_Scaled(1.0, is_own=True)).values().copy()
    flat = FlatModel(_Scaled(2.0, is_own=True))
    flat.check_constants(_train(flat, mesh))
    assert flat.module.deviation.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2)), Numbers(nn.Identity(), 2)])
def test_statistics_that_are_learned_are_the_meshs_also_where_a_round_leaves_them(norm: nn.Module) -> None:
    flat = FlatModel(nn.Sequential(nn.Linear(2, 2), norm).eval())
    flat.check_constants(_train(flat, np.full(flat.size, 2, np.float32)))
