"""The same patches on windows of a sensor: a person's vector in place of a model of their own (not in the paper).

A classifier that all people share stays as it is. The basis is learned from many people's windows, together with a
vector for each of them, so that its directions are those in which people differ. A new person learns one vector from
their own windows, starting from the mean of all learned ones (Eq. 2 and 3, with a cross-entropy over classes).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdl.errors import ConfigError
from mdl.peers.dccl.model.device_step import Basis, Junction, patched
from mdl.peers.dccl.model.interactions import Integers


class WindowSettings(msgspec.Struct, frozen=True):
    """epochs: passes over the windows; batch: windows of a step.

    learning_rate: of Adam, of vectors; basis_rate: of Theta. With 0.003 a LeNet is worse than without patches.
    """

    epochs: int = 10
    batch: int = 16
    learning_rate: float = 0.05
    basis_rate: float = 0.0003


def find_junctions(module: nn.Module) -> list[Junction]:
    """Find junctions behind each convolution over time and each linear layer, in order. Raises ConfigError if none."""
    found = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv1d):
            found.append(Junction(name, layer.out_channels, dim=1))
        elif isinstance(layer, nn.Linear) and name:
            found.append(Junction(name, layer.out_features))
    if not found:
        raise ConfigError(f"{type(module).__name__} has no convolution over time and no linear layer to patch")
    return found


def learn_basis(
    module: nn.Module, basis: Basis, x: Tensor, y: Tensor, people: Integers, settings: WindowSettings, seed: int
) -> Tensor:
    """Learn Theta, in place, from windows x (n, C, T) with classes y (n,) of these people (n,), 0 to P - 1.

    Returns their vectors (P, size); their mean is a new person's start.
    """
    rng = np.random.default_rng([seed, 0])
    # About 1, as Theta's first values expect it. People begin at one point, or their vectors have no common meaning.
    common = torch.from_numpy(rng.normal(size=basis.size).astype(np.float32))
    vectors = nn.Parameter(common.repeat(int(people.max()) + 1, 1))
    groups = [
        {"params": [vectors], "lr": settings.learning_rate},
        {"params": list(basis.parameters()), "lr": settings.basis_rate},
    ]
    _learn(module, basis, vectors, (x, y, people), torch.optim.Adam(groups), settings, rng)
    return vectors.detach()


def learn_vector(
    module: nn.Module, basis: Basis, start: Tensor, x: Tensor, y: Tensor, settings: WindowSettings, seed: int
) -> Tensor:
    """Learn one person's vector (size,) from start (size,) and windows x (n, C, T) of classes y (n,); Theta stays."""
    vectors = nn.Parameter(start[None].clone())
    optimizer = torch.optim.Adam([vectors], settings.learning_rate)
    mine = np.zeros(len(y), np.int64)
    _learn(module, basis, vectors, (x, y, mine), optimizer, settings, np.random.default_rng([seed, 1]))
    return vectors.detach()[0]


@torch.no_grad()
def predict(module: nn.Module, basis: Basis, vector: Tensor | None, x: Tensor) -> Tensor:
    """Return logits (n, classes) of windows x (n, C, T) with this vector's patches; None: by the module alone."""
    module.eval()
    with patched(module, basis, vector):
        return torch.cat([module(piece) for piece in torch.split(x, 256)])


def _learn(
    module: nn.Module,
    basis: Basis,
    vectors: nn.Parameter,
    windows: tuple[Tensor, Tensor, Integers],
    optimizer: torch.optim.Optimizer,
    settings: WindowSettings,
    rng: np.random.Generator,
) -> None:
    """Train all parameters of the optimizer with the module as it is: batch norms keep the statistics of all people."""
    module.eval()
    x, y, people = windows
    learned: Sequence[Tensor] = [each for group in optimizer.param_groups for each in group["params"]]
    for _ in range(settings.epochs):
        order = rng.permutation(len(y))
        for begin in range(0, len(order), settings.batch):
            rows = torch.from_numpy(order[begin : begin + settings.batch])
            owners = torch.from_numpy(people[rows.numpy()])
            with patched(module, basis, vectors[owners]):
                loss = F.cross_entropy(module(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward(inputs=list(learned))  # type: ignore[no-untyped-call]
            optimizer.step()
