"""5.1: layers by SVD, for any torch model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.learning.models import build_model
from mdl.personal.compression import (
    FactoredEmbedding,
    FactoredLinear,
    Seen,
    compress_layers,
    count_bytes,
    factor_embedding,
    factor_linear,
)
from mdl.personal.output_layer import find_output_layer


def test_at_full_rank_nothing_changes_and_below_it_is_the_best_approximation() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 20), torch.randn(5, 8)
    torch.testing.assert_close(factor_linear(layer, 8)(x), layer(x), rtol=1e-4, atol=1e-5)
    table, rows = nn.Embedding(20, 8), torch.tensor([3, 19, 0])
    torch.testing.assert_close(factor_embedding(table, 8)(rows), table(rows), rtol=1e-4, atol=1e-5)
    factored = factor_linear(layer, 3)
    error = layer.weight - factored.widen.weight @ factored.narrow.weight
    discarded = torch.linalg.svdvals(layer.weight)[3:]
    assert float(error.norm().detach()) == pytest.approx(float(discarded.norm().detach()), rel=1e-4)


def test_what_a_layer_is_used_for_decides_what_is_kept_of_it() -> None:
    generator = torch.Generator().manual_seed(0)
    layer, mix = nn.Linear(8, 20), torch.randn(8, 8, generator=generator) * torch.logspace(0, -2, 8)[:, None]
    x, uses = torch.randn(500, 8, generator=generator) @ mix, torch.rand(20, generator=generator) + 0.01
    seen = Seen(x.T @ x / len(x), uses)

    def error(factored: FactoredLinear) -> float:
        return float((uses * (factored(x) - layer(x)).square().mean(dim=0)).sum().detach())

    weighed = torch.linalg.svdvals(uses.sqrt()[:, None] * layer.weight.detach() @ x.T / len(x) ** 0.5)
    assert error(factor_linear(layer, 3, seen)) == pytest.approx(float(weighed[3:].square().sum()), rel=1e-3)
    assert error(factor_linear(layer, 3, seen)) < 0.8 * error(factor_linear(layer, 3))
    torch.testing.assert_close(factor_linear(layer, 8, seen)(x), layer(x), rtol=1e-3, atol=1e-4)


def test_the_ratio_of_the_paper() -> None:
    """t = 40 of m = n = 400 and 20,000 words: 89.8 % of the layer is gone."""
    with torch.device("meta"):
        whole = nn.Linear(400, 20_000, bias=False)
        thin = FactoredLinear(nn.Linear(400, 40, bias=False), nn.Linear(40, 20_000, bias=False))
    assert 1 - count_bytes(thin) / count_bytes(whole) == pytest.approx(0.898, abs=1e-4)


def test_named_layers_of_any_module_are_replaced_and_train() -> None:
    module = nn.Sequential(nn.Embedding(30, 10), nn.Flatten(), nn.Linear(20, 12))
    before = count_bytes(module)
    compress_layers(module, ["0", "2"], 0.2)
    assert isinstance(module[0], FactoredEmbedding)
    assert isinstance(module[2], FactoredLinear)
    assert module[0].table.weight.shape == (30, 2)
    assert count_bytes(module) < before
    module(torch.tensor([[1, 2]])).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_model_of_mdl_compresses_its_last_layer() -> None:
    module = build_model("alexnet", 9, 128, 6, seed=0)
    name = find_output_layer(module)
    compress_layers(module, [name], 0.5)
    assert module(torch.zeros(2, 9, 128)).shape == (2, 6)
    assert find_output_layer(module) == name


@pytest.mark.parametrize(("names", "share", "told"), [(["1"], 0.1, "Flatten"), (["2"], 0.0, "share")])
def test_what_cannot_be_compressed_is_named_and_nothing_changes(names: list[str], share: float, told: str) -> None:
    module = nn.Sequential(nn.Embedding(30, 10), nn.Flatten(), nn.Linear(20, 12))
    with pytest.raises(ConfigError, match=told):
        compress_layers(module, [*names, "0"], share)
    assert isinstance(module[0], nn.Embedding)
