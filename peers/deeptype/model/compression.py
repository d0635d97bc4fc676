"""Layer compression (DeepType 5.1), and the fit of a model's entries (words, places, apps) to one person (4, 5.2).

W ~ U' S' V' is a product of two thinner matrices, of embedding and last layer alike. With t of min(m, n) singular
values kept, m n parameters become t m + t n. The paper names the last layer alone; only with the embedding too are its
17.0 MB reached (74.5 before). It is an approximation: train the model again afterwards. If a layer's use is known
(`LayerUse`, ours), the most used directions are kept first, in place of the largest.

Dynamic vocabulary: names that a person uses and the model lacks take the place of names they never used.
Vocabulary compression: names they never used go, with their rows of the embedding and of the last layer. Used names
alone would lack the next ones, so the rest up to `size` is filled with the most frequent of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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


# 5.2: 94.5 % of the paper's users have fewer words than this.
PERSONAL_WORDS = 10_000
# "more than a threshold" (4), which the paper does not give: a word written once may be a slip, and gains nothing.
LEAST_USES = 2


@dataclass(frozen=True, eq=False)
class VocabularyChange:
    """names: of all entries afterwards. rows: int64 (n,), the former entry that gives each one its first parameters.

    new: the number of names that were not there before.
    """

    names: tuple[str, ...]
    rows: NDArray[np.int64]
    new: int = 0

    def then(self, other: VocabularyChange) -> VocabularyChange:
        """Return this change, followed by another one of its result."""
        return VocabularyChange(other.names, self.rows[other.rows], self.new + other.new)


def keep_all(names: Sequence[str]) -> VocabularyChange:
    return VocabularyChange(tuple(names), np.arange(len(names)))


def swap_unused(names: Sequence[str], uses: Mapping[str, int], least: int = LEAST_USES) -> VocabularyChange:
    """Return the change by dynamic vocabulary (4). names: the most frequent first. uses: of each name by the person.

    Names used at least `least` times replace unused ones, the most used the least frequent; a new name keeps the row.
    """
    known = set(names)
    wanted = sorted((name for name in uses if uses[name] >= least and name not in known), key=lambda n: (-uses[n], n))
    free = [place for place in range(len(names) - 1, -1, -1) if not uses.get(names[place])]
    changed = list(names)
    for name, place in zip(wanted, free, strict=False):
        changed[place] = name
    return VocabularyChange(tuple(changed), np.arange(len(names)), min(len(wanted), len(free)))


def keep_used(names: Sequence[str], uses: Mapping[str, int], size: int = PERSONAL_WORDS) -> VocabularyChange:
    """Return the change by vocabulary compression (5.2): most used, then frequent entries up to `size`; order stays."""
    places = sorted(range(len(names)), key=lambda place: (-uses.get(names[place], 0), place))[:size]
    rows = np.sort(np.array(places, np.int64))
    return VocabularyChange(tuple(names[row] for row in rows.tolist()), rows)


def take_rows(layer: nn.Module, rows: NDArray[np.int64]) -> nn.Module:
    """Return a layer with these rows of a linear or embedding layer (outputs, entries), factored or not."""
    index = torch.from_numpy(np.ascontiguousarray(rows))
    match layer:
        case FactoredLinear():
            return FactoredLinear(layer.narrow, _take_linear(layer.widen, index))
        case FactoredEmbedding():
            return FactoredEmbedding(_take_embedding(layer.table, index), layer.widen)
        case nn.Embedding():
            return _take_embedding(layer, index)
        case nn.Linear():
            return _take_linear(layer, index)
    raise TypeError(f"{type(layer).__name__} has no rows")


@torch.no_grad()
def begin_rows(layer: nn.Module, source: nn.Module, groups: Mapping[int, Sequence[int] | NDArray[np.int64]]) -> None:
    """Set rows of a layer, in place: each becomes the mean of these rows of `source`, a layer of its kind and width.

    groups: row -> rows of the source. (The paper is silent: there a new entry has the parameters of the one that it
    replaces.)
    """
    into, origin = _rows_of(layer), _rows_of(source)
    for row, group in groups.items():
        index = torch.as_tensor(group)
        for values, of in zip(into, origin, strict=True):
            values[row] = of[index].mean(dim=0)


def _rows_of(layer: nn.Module) -> list[nn.Parameter]:
    last = layer.widen if isinstance(layer, FactoredLinear) else layer
    table = layer.table if isinstance(layer, FactoredEmbedding) else last
    return list(table.parameters())


def _take_linear(layer: nn.Linear, index: Tensor) -> nn.Linear:
    return make_linear(layer.weight[index], None if layer.bias is None else layer.bias[index])


def _take_embedding(layer: nn.Embedding, index: Tensor) -> nn.Embedding:
    return make_embedding(layer.weight[index])
