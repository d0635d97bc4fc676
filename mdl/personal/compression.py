"""Layer compression (DeepType 5.1): W ~ U' S' V', a product of two thinner matrices, of embedding and last layer alike.

With t of min(m, n) singular values kept, m n parameters become t m + t n. The paper names the last layer alone; only
with the embedding too are its 17.0 MB reached (74.5 before). It is an approximation: train the model again afterwards.
If a layer's use is known (`LayerUse`, ours), the most used directions are kept first, in place of the largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

# The least share of the largest eigenvalue: hardly used directions would be divided by nearly nothing.
_LEAST_EIGENVALUE = 1e-6


@dataclass(frozen=True)
class LayerUse:
    """The use of a linear layer. inputs: (n, n), the mean of x x' over its inputs.

    uses: (m,), the number of times that each of its outputs is the answer, all above 0.
    """

    inputs: Tensor
    uses: Tensor


class FactoredLinear(nn.Module):
    """inputs -> rank -> outputs, in place of a linear layer. narrow: without bias; widen: has the outputs as rows."""

    def __init__(self, narrow: nn.Linear, widen: nn.Linear) -> None:
        super().__init__()
        self.narrow, self.widen = narrow, widen

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.widen(self.narrow(x))
        return result


class FactoredEmbedding(nn.Module):
    """rows -> rank -> width, in place of an embedding. table: has the rows; widen: without bias."""

    def __init__(self, table: nn.Embedding, widen: nn.Linear) -> None:
        super().__init__()
        self.table, self.widen = table, widen

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.widen(self.table(rows))
        return result


def factor_linear(layer: nn.Linear, rank: int, seen: LayerUse | None = None) -> FactoredLinear:
    """Return the best approximation of that rank in the least-squares sense; exact at rank min(inputs, outputs).

    Without `seen` it approximates the weights (5.1), with `seen` the outputs: each squared error counts as often as its
    output is the answer.
    """
    tall, wide = _factor(layer.weight, rank) if seen is None else _factor_seen(layer.weight, rank, seen)
    return FactoredLinear(make_linear(wide, None), make_linear(tall, layer.bias))


def factor_embedding(layer: nn.Embedding, rank: int) -> FactoredEmbedding:
    """Factor an embedding likewise."""
    tall, wide = _factor(layer.weight, rank)
    return FactoredEmbedding(make_embedding(tall), make_linear(wide.T, None))


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with copies of these; draw no random numbers."""
    layer: nn.Linear = skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def make_embedding(weight: Tensor) -> nn.Embedding:
    """Return an embedding likewise."""
    layer: nn.Embedding = skip_init(nn.Embedding, *weight.shape)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def replace_layer(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, layer)


def count_bytes(module: nn.Module) -> int:
    """Return the bytes of the module's parameters and buffers, in memory and on disk."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def _factor(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return (m, t) and (t, n) with their product near (m, n); each has the roots of the singular values."""
    left, values, right = torch.linalg.svd(weight.detach(), full_matrices=False)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]


def _factor_seen(weight: Tensor, rank: int, seen: LayerUse) -> tuple[Tensor, Tensor]:
    """Factor D W C^(1/2) and undo that again: the least E ||D (W - W') x||^2, with C the mean of x x'."""
    values, vectors = torch.linalg.eigh(seen.inputs)
    roots = values.clamp_min(_LEAST_EIGENVALUE * float(values[-1])).sqrt()
    heavy = seen.uses.sqrt()[:, None]
    tall, wide = _factor(heavy * weight.detach() @ (vectors * roots), rank)
    return tall / heavy, (wide / roots) @ vectors.T
