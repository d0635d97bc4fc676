"""Next places counted, without a network (Colla Fig. 5): a Markov chain, a decision tree, and the counted prior.

The prior is no part of Colla: it is the extension that mixes what a device's network says with what the device counted.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.next_place.record import Examples
from mdl.data.readers.visits import FEATURES, last_steps
from mdl.data.windows import Integers

_PLACE, _HOUR, _MINUTE, _WEEKDAY, _, _GAP = range(len(FEATURES))
_SATURDAY = 5

# How much less a time counts that is less like the asked one; chosen on the tuning days (docs/colla-notes.md): a factor
# e for so many of the device's stays since (about two periods), for so many hours between the two times of day, and
# for such a difference of the gaps' logarithms; a factor for another place, and for a weekend beside a working day.
_AGE_STAYS, _HOURS, _LOG_GAP = 200.0, 2.0, 0.5
_ELSEWHERE, _OTHER_DAY = 0.1, 0.5
# Of each class, so that none is impossible.
_FLOOR = 1e-6


def count_prior(seen: Examples, asked: Tensor, classes: Tensor) -> Tensor:
    """P(next) of each asked sequence for these classes, float32 (n, K): what followed in all that the device has seen,
    oldest first, each time counted by how like the asked moment it was."""
    here, there = last_steps(seen[0].numpy()), last_steps(asked.numpy())[:, None]
    apart = np.abs(_hour(here) - _hour(there))
    unlike = (
        np.arange(len(here), 0, -1) / _AGE_STAYS
        + np.minimum(apart, 24 - apart) / _HOURS
        + np.abs(np.log1p(here[..., _GAP]) - np.log1p(there[..., _GAP])) / _LOG_GAP
        - np.log(_ELSEWHERE) * (here[..., _PLACE] != there[..., _PLACE])
        - np.log(_OTHER_DAY) * (_is_weekend(here) != _is_weekend(there))
    )
    follows = (seen[1][:, None] == classes).numpy()
    counted = torch.from_numpy(np.exp(-unlike) @ follows + _FLOOR).float()
    return counted / counted.sum(dim=1, keepdim=True)


def guess_counted(seen: Examples, asked: Tensor) -> Tensor:
    """The likeliest of all places that the device has seen, by `count_prior` alone."""
    classes = torch.unique(seen[1])
    likeliest: Tensor = classes[count_prior(seen, asked, classes).argmax(dim=1)]
    return likeliest


def mix(probabilities: Tensor, prior: Tensor, share: float) -> Tensor:
    """The network's and the counted ones, renormalised product with the prior to the power of `share`: (n, K)."""
    mixed = (1 - share) * probabilities.clamp_min(1e-9).log() + share * prior.clamp_min(1e-9).log()
    return torch.softmax(mixed, dim=1)


def guess_markov(seen: Examples, asked: Tensor) -> Tensor:
    """First order: the place that most often followed this one; the most frequent one after an unknown place."""
    here = last_steps(seen[0].numpy())[:, _PLACE]
    following = seen[1].numpy()
    anywhere = np.bincount(following).argmax()
    known = {int(place): np.bincount(following[here == place]).argmax() for place in np.unique(here)}
    return torch.tensor([int(known.get(int(place), anywhere)) for place in last_steps(asked.numpy())[:, _PLACE]])


def guess_tree(seen: Examples, asked: Tensor, seed: int) -> Tensor:
    """A decision tree on the six features of the last step; leaves of at least five."""
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=seed).fit(last_steps(seen[0].numpy()), seen[1])
    return torch.from_numpy(tree.predict(last_steps(asked.numpy())))


def _hour(steps: Integers) -> NDArray[np.float64]:
    hours: NDArray[np.float64] = steps[..., _HOUR] + steps[..., _MINUTE] / 60
    return hours


def _is_weekend(steps: Integers) -> NDArray[np.bool_]:
    weekend: NDArray[np.bool_] = steps[..., _WEEKDAY] >= _SATURDAY
    return weekend
