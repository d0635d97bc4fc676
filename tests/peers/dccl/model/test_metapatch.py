"""Eq. 1 to 3: patches by hand, the gate, and many devices in one pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.learning.models import build_model
from mdl.peers.dccl.model.device_step import Basis, Junction, patch, patched


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def _basis(size: int = 8) -> Basis:
    torch.manual_seed(1)
    return Basis([Junction("1", 32), Junction("3", 32)], size)


def test_table_5s_patch_has_1072_parameters() -> None:
    assert _basis().counts == [1072, 1072]
    assert _basis(64).theta.shape == (2144, 64)


def test_eq_2_generates_all_parameters_by_the_basis() -> None:
    basis, vector = _basis(), torch.randn(8)
    generated = torch.cat(basis.generate(vector))
    assert torch.allclose(generated, basis.theta @ vector)
    assert not torch.cat(basis.generate(torch.zeros(8))).any()


def test_eq_1_is_a_bottleneck_behind_the_layer_and_added_to_it() -> None:
    outputs, parameters = torch.randn(2, 3, 4), torch.randn(2, 2 * 4 * 2 + 2 + 4)
    found = patch(outputs, parameters, 2)
    for row in range(2):
        down, down_bias, up, up_bias = torch.split(parameters[row], [8, 2, 8, 4])
        by_hand = torch.relu(outputs[row] @ down.view(4, 2) + down_bias) @ up.view(2, 4) + up_bias
        assert torch.allclose(found[row], by_hand, atol=1e-5)


def test_with_the_gate_shut_the_model_is_exactly_what_it_was() -> None:
    model, inputs = _model(), torch.randn(7, 5)
    before = model(inputs)
    with patched(model, _basis(), torch.randn(7, 8)):
        assert not torch.equal(model(inputs), before)
    with patched(model, _basis(), None):
        assert torch.equal(model(inputs), before)
    with patched(model, _basis(), torch.zeros(7, 8)):
        assert torch.equal(model(inputs), before)  # a zero vector generates no patch
    assert torch.equal(model(inputs), before)  # and nothing of it stays


def test_an_error_within_leaves_no_patch_behind() -> None:
    model, inputs = _model(), torch.randn(7, 5)
    before = model(inputs)
    with pytest.raises(RuntimeError), patched(model, _basis(), torch.randn(7, 8)):
        model(torch.randn(7, 6))
    assert torch.equal(model(inputs), before)


def test_many_devices_in_one_pass_answer_as_each_by_itself() -> None:
    model, basis, inputs, vectors = _model(), _basis(), torch.randn(9, 4, 5), torch.randn(9, 8)
    with patched(model, basis, vectors):
        together = model(inputs)
    for row in range(9):
        with patched(model, basis, vectors[row]):
            assert torch.allclose(model(inputs[row]), together[row], atol=1e-6)


def test_the_vector_alone_learns() -> None:
    model, basis, vectors = _model(), _basis(), torch.randn(7, 8, requires_grad=True)
    with patched(model, basis, vectors):
        model(torch.randn(7, 5)).sum().backward(inputs=[vectors])
    assert vectors.grad is not None
    assert vectors.grad.abs().sum(dim=1).min() > 0
    assert all(parameter.grad is None for parameter in [*model.parameters(), *basis.parameters()])


def test_from_a_zero_vector_only_the_up_bias_learns() -> None:
    """So that devices start from U(0, u): the gradient sees no other part of the basis from there."""
    model, vectors = _model(), torch.zeros(7, 8, requires_grad=True)
    basis = _basis()  # its biases are zero
    with patched(model, basis, vectors):
        model(torch.randn(7, 5)).sum().backward(inputs=[vectors])
    assert vectors.grad is not None
    assert not vectors.grad.any()


def test_a_model_of_windows_is_patched_along_its_channels() -> None:
    model = build_model("lenet", 6, 32, 5, seed=0).eval()
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv1d)]
    basis, inputs = Basis([Junction(names[0], 32, dim=1)], 8), torch.randn(3, 6, 32)
    before, vectors = model(inputs), torch.randn(3, 8)
    with patched(model, basis, vectors):
        together = model(inputs)
    assert not torch.allclose(together, before)
    with patched(model, basis, vectors[1]):
        assert torch.allclose(model(inputs[1:2])[0], together[1], atol=1e-5)


def test_a_junction_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(ConfigError, match="no layer 'tenth' to patch; it has 0, 1, 2, 3, 4"),
        patched(_model(), Basis([Junction("tenth", 32)], 8), torch.zeros(8)),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="junction '0' has 32 outputs, not 16"),
        patched(model := _model(), Basis([Junction("0", 16)], 8), torch.zeros(8)),
    ):
        model(torch.randn(2, 5))
