"""A model's entries (words, places, apps) fitted to one person (DeepType 4, 5.2).

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

from mdl.personal.compression import (
    FactoredEmbedding,
    FactoredLinear,
    make_embedding,
    make_linear,
)

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
