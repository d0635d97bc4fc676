"""Next places counted, without a network (Colla Fig. 5): a Markov chain, a decision tree, and the counted prior.

The prior is no part of Colla: it is the extension that mixes what a device's network says with what the device counted.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.colla_record import Examples
from mdl.data.readers.visits import last_steps

_HOURS_A_BUCKET = 4
# So many observations weigh as much as what is known without them: of the place one is at, and of the hour besides.
_PLACE_STRENGTH, _HOUR_STRENGTH = 1.0, 2.0


def count_prior(seen: Examples, asked: Tensor, classes: Tensor) -> Tensor:
    """P(next | place, hour) of each asked sequence for these classes, float32 (n, K).

    Counts of (place, four hours) back off to those of the place, and these to those of all stays.
    """
    size = int(max(seen[1].max(), classes.max())) + 1
    here, bucket = _context(seen[0])
    following = seen[1].numpy()
    alone = np.bincount(following, minlength=size) + 1e-3
    alone = alone / alone.sum()
    asked_here, asked_bucket = _context(asked)
    rows = np.empty((len(asked), size))
    for row, (place, hour) in enumerate(zip(asked_here, asked_bucket, strict=True)):
        at = here == place
        rows[row] = _back_off(following[at & (bucket == hour)], _back_off(following[at], alone, _PLACE_STRENGTH),
                              _HOUR_STRENGTH)  # fmt: skip
    picked = torch.from_numpy(rows[:, classes.numpy()]).float()
    return picked / picked.sum(dim=1, keepdim=True)


def mix(probabilities: Tensor, prior: Tensor, share: float) -> Tensor:
    """The network's and the counted ones, renormalised product with the prior to the power of `share`: (n, K)."""
    mixed = (1 - share) * probabilities.clamp_min(1e-9).log() + share * prior.clamp_min(1e-9).log()
    return torch.softmax(mixed, dim=1)


def guess_markov(seen: Examples, asked: Tensor) -> Tensor:
    """First order: the place that most often followed this one; the most frequent one after an unknown place."""
    here, _ = _context(seen[0])
    following = seen[1].numpy()
    anywhere = np.bincount(following).argmax()
    known = {int(place): np.bincount(following[here == place]).argmax() for place in np.unique(here)}
    return torch.tensor([int(known.get(int(place), anywhere)) for place in _context(asked)[0]])


def guess_tree(seen: Examples, asked: Tensor, seed: int) -> Tensor:
    """A decision tree on the six features of the last step; leaves of at least five."""
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=seed).fit(last_steps(seen[0].numpy()), seen[1])
    return torch.from_numpy(tree.predict(last_steps(asked.numpy())))


def _back_off(following: NDArray[np.int64], known: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    counts: NDArray[np.float64] = np.bincount(following, minlength=len(known)) + strength * known
    total: float = counts.sum()
    shares: NDArray[np.float64] = counts / total
    return shares


def _context(x: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    steps = last_steps(x.numpy())
    return steps[:, 0], steps[:, 1] // _HOURS_A_BUCKET
