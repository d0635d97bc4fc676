"""The softmax over a part of the classes: less work while a global model is far from its end.

The most frequent classes are all computed; some of the others are drawn, and each stands for as many as it was drawn
from. So the sum of the softmax is right in the mean. (The paper computes all. Such training ranks rare words less well:
finish with an epoch over all classes.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from mdl.personal.compression import FactoredLinear
from mdl.personal.words.prefix import Rows, widen
from mdl.personal.words.text import Ids

# The share of frequent classes in those computed: they have nine tenths of all running words.
_FREQUENT_SHARE = 2 / 3


def draw_classes(classes: int, count: int, generator: np.random.Generator) -> tuple[int, Ids]:
    """Draw (F, drawn): the most frequent classes 0 to F - 1, and these (count - F,) of the others, are computed."""
    frequent = min(classes, round(count * _FREQUENT_SHARE))
    drawn = generator.choice(classes - frequent, min(count, classes) - frequent, replace=False)
    return frequent, frequent + np.sort(drawn)


def sampled_loss(output: nn.Module, rows: Rows, frequent: int, drawn: Ids) -> Tensor:
    """Return the `mean_loss` with the sum of the softmax over these classes; equal to it if they are all classes."""
    assert isinstance(output, nn.Linear | FactoredLinear)
    features = output.narrow(rows.features) if isinstance(output, FactoredLinear) else rows.features
    last = output.widen if isinstance(output, FactoredLinear) else output
    others = torch.from_numpy(drawn)
    chosen = torch.cat([torch.arange(frequent), others])
    logits = widen(nn.functional.linear(features, last.weight[chosen], last.bias[chosen]))
    own = (features * last.weight[rows.targets]).sum(dim=1) + last.bias[rows.targets]
    rare = rows.targets >= frequent
    # In a row with a rare target, the target counts by itself, and the drawn ones stand for the rest without it.
    apart = (others != rows.targets[:, None]) | ~rare[:, None]
    stands_for = (last.out_features - frequent - rare.to(logits.dtype)) / apart.sum(dim=1).clamp(min=1)
    shares = torch.where(apart, stands_for[:, None].log(), -math.inf)
    terms = [logits[:, :frequent], logits[:, frequent:] + shares, torch.where(rare, own, -math.inf)[:, None]]
    losses = torch.logsumexp(torch.cat(terms, dim=1), dim=1) - own
    return (losses * rows.weights).sum() / rows.weights.sum()
