"""SGD and Adam over the learning parameters of a model, with a state that can be saved.

It avoids torch.optim for the reason in `mdl.learning.optimizer`. The gradient is clipped by its norm over all
parameters, as in the tutorial that the paper's model follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Kind: TypeAlias = Literal["sgd", "adam"]

_FIRST_MOMENT, _SECOND_MOMENT, _EPSILON = 0.9, 0.999, 1e-8


class Optimizer:
    """parameters: by name. clip: the largest norm of a gradient, 0 for any."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], kind: Kind, clip: float) -> None:
        self.parameters = dict(parameters)
        self.steps = 0
        self._kind, self._clip = kind, clip
        names = self.parameters if kind == "adam" else {}
        self._first = {name: torch.zeros_like(self.parameters[name]) for name in names}
        self._second = {name: torch.zeros_like(self.parameters[name]) for name in names}

    def clear(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one step in place; a parameter without a gradient stays."""
        self.steps += 1
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        if self._clip:
            norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
            for gradient in gradients.values():
                gradient.mul_(min(1.0, self._clip / (norm + _EPSILON)))
        for name, gradient in gradients.items():
            if self._kind == "sgd":
                self.parameters[name].add_(gradient, alpha=-learning_rate)
            else:
                self._step_adam(name, gradient, learning_rate)

    def state(self) -> dict[str, Tensor]:
        """Return the state that later steps need, besides `steps`."""
        first = {f"first.{name}": moment for name, moment in self._first.items()}
        return first | {f"second.{name}": moment for name, moment in self._second.items()}

    def restore(self, state: Mapping[str, Tensor], steps: int) -> None:
        self.steps = steps
        for name, moment in self.state().items():
            moment.copy_(state[name])

    def _step_adam(self, name: str, gradient: Tensor, learning_rate: float) -> None:
        first, second = self._first[name], self._second[name]
        first.lerp_(gradient, 1 - _FIRST_MOMENT)
        second.mul_(_SECOND_MOMENT).addcmul_(gradient, gradient, value=1 - _SECOND_MOMENT)
        scale = (1 - _SECOND_MOMENT**self.steps) ** 0.5
        denominator = torch.sqrt(second).div_(scale).add_(_EPSILON)
        self.parameters[name].addcdiv_(first, denominator, value=-learning_rate / (1 - _FIRST_MOMENT**self.steps))
