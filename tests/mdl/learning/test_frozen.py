"""What is frozen when a model is handed over is neither sent nor merged, and must be the same on all devices."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.learning.flat import FlatModel


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
