"""Next places guessed without a network: a Markov chain and a decision tree on a person's own data (Fig. 5)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from benchmarks.colla_recipe import Person
from mdl.data.readers.visits import FIRST_PLACE_CODE


def guess_markov(seen: tuple[torch.Tensor, torch.Tensor], person: Person) -> float:
    """First order: the place that most often followed the last one; the most frequent place after an unknown one."""
    x, y = seen
    follows: dict[int, Counter[int]] = {}
    for here, there in zip(_last_places(x), y.tolist(), strict=True):
        follows.setdefault(here, Counter())[there] += 1
    anywhere = Counter(y.tolist())
    x_test, y_test = person.test
    guesses = [follows.get(here, anywhere).most_common(1)[0][0] for here in _last_places(x_test)]
    return float(np.mean(np.array(guesses) == y_test.numpy()))


def guess_tree(seen: tuple[torch.Tensor, torch.Tensor], person: Person, seed: int) -> float:
    """A decision tree on the six features of the last stay; leaves of at least five."""
    from sklearn.tree import DecisionTreeClassifier

    x, y = seen
    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=seed).fit(x[:, :, -1].numpy(), y.numpy())
    return float(tree.score(person.test[0][:, :, -1].numpy(), person.test[1].numpy()))


def unseen_share(seen: tuple[torch.Tensor, torch.Tensor], person: Person) -> float:
    """Test stays at places that the person never went to before: wrong for every model that knows only its own."""
    return float(1 - np.isin(person.test[1].numpy(), seen[1].numpy()).mean())


def _last_places(x: torch.Tensor) -> list[int]:
    return [int(code) - FIRST_PLACE_CODE for code in x[:, 0, -1]]
