"""The losses of training, and the scale of a model's outputs where they are numbers.

The network gives numbers around 0; its outputs are those times the spread of the targets, plus their mean. Both are
buffers of the module, so the mesh averages them like a batch norm's statistics. Each device brings the mean of its own
targets and their spread around the mesh's mean; nothing else of its targets leaves it. An exported model gives numbers
in their unit. Learning from another model's probabilities has a loss of its own (Colla, Eq. 2). Knows nothing of
rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.data.windows import targets_of
from mdl.learning.tensors import unwrap

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Numbers(nn.Module):
    """A network of numbers with the scale of its targets. forward: (batch, k), in their units.

    target_mean, target_deviation: float32 (k,); a deviation of 0 means that no device has brought one yet.
    """

    target_mean: Tensor
    target_deviation: Tensor

    def __init__(self, network: nn.Module, count: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("target_mean", torch.zeros(count))
        self.register_buffer("target_deviation", torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        numbers: Tensor = self.network(x)
        return numbers * self.scale() + self.target_mean

    def scale(self) -> Tensor:
        """Return the spread, (k,); 1 where it is not known."""
        return torch.where(self.target_deviation > 0, self.target_deviation, 1.0)

    def take(self, mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        """Set mean and deviation in place, on any device."""
        self.target_mean.copy_(torch.from_numpy(mean.astype(np.float32)))
        self.target_deviation.copy_(torch.from_numpy(deviation.astype(np.float32)))


class TargetScale:
    """One device's part in the scale of numbers, before and after it trains; for other targets it does nothing.

    y: its targets, as in `Windows`.
    """

    def __init__(self, module: nn.Module, y: NDArray[Any]) -> None:
        inner = unwrap(module)
        self._numbers = inner if isinstance(inner, Numbers) else None
        self._y = y

    def begin(self) -> None:
        """Keep the mesh's scale; in the first round, where there is none, take the device's own."""
        if self._numbers is not None and not bool(self._numbers.target_deviation.any()):
            self._numbers.take(self._y.mean(axis=0, dtype=np.float64), self._y.std(axis=0, dtype=np.float64))

    def end(self) -> None:
        """Set the device's own mean, and the spread of its targets around the mean it trained by.

        So the mesh's spread includes the differences between devices.
        """
        if self._numbers is not None:
            around = self._numbers.target_mean.detach().to("cpu", torch.float64).numpy()
            spread = np.sqrt(np.square(self._y - around).mean(axis=0, dtype=np.float64))
            self._numbers.take(self._y.mean(axis=0, dtype=np.float64), spread)


def loss_of(module: nn.Module, y: NDArray[Any], label_smoothing: float = 0.0) -> Loss:
    """Return the loss to minimise: cross-entropy of classes; for labels binary cross-entropy, in nats a label.

    For numbers it is the squared error in units of their spread, by the module's scale if it is `Numbers`.
    """
    targets = targets_of(y)
    if targets == "classes":
        return nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    if targets == "labels":
        return nn.BCEWithLogitsLoss()
    inner = unwrap(module)
    scale = inner.scale if isinstance(inner, Numbers) else lambda: 1.0
    return lambda numbers, wanted: ((numbers - wanted) / scale()).square().mean()


def to_tensor(y: NDArray[Any]) -> Tensor:
    """Return a batch's targets in their loss's type: int64 classes, else float32."""
    return torch.from_numpy(np.array(y, np.int64 if targets_of(y) == "classes" else np.float32))


def soft_cross_entropy(logits: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return Eq. 2: -T^2 mean_n sum_k q_nk log softmax(z_n / T)_k, a scalar. No gradient reaches the teacher.

    logits: (n, K) of the student; teacher: q, (n, K), softened with the same T. T^2 keeps the gradient's size.
    """
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    return -(temperature**2) * (teacher.detach() * log_p).sum(dim=-1).mean()
