"""5.1: layers by SVD, for any torch model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mdl.peers.deeptype.model.compression import (
    FactoredLinear,
    LayerUse,
    count_bytes,
    factor_embedding,
    factor_linear,
)


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
    seen = LayerUse(x.T @ x / len(x), uses)

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
