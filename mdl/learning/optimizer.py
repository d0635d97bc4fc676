"""The steps of torch.optim without it: SGD and AdamW over a flat model, and SGD and Adam over some of a model's layers.

torch.optim imports torch's compiler at its first step: 800 modules, 1.3 s of processor time here and many seconds on a
Raspberry Pi, in every peer at every start. tests/mdl/learning/test_optimizer.py holds `FlatOptimizer` and it equal.
`Optimizer` has a state that can be saved. It clips the gradient by its norm over all parameters, as in the tutorial
that DeepType's model follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from mdl.learning.flat import FlatModel

_EPSILON = 1e-8
_SECOND_MOMENT = 0.999
Kind: TypeAlias = Literal["sgd", "adam"]

_FIRST_MOMENT = 0.9


class FlatOptimizer:
    """Steps along the gradients of a flat model's trainable parameters; frozen ones and buffers stay as they are.

    momentum: of SGD (not Nesterov), or beta1 of AdamW (arXiv 1711.05101; beta2 is 0.999). weight_decay: added to the
    gradient by SGD, decoupled in AdamW, as in torch.optim.
    """

    def __init__(self, model: FlatModel, kind: Literal["sgd", "adam"], momentum: float, weight_decay: float) -> None:
        self._kind = kind
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._stretches = model.trainable()
        vector = model.live()
        self._parameters = [vector[part.start : part.stop] for part in self._stretches]
        self._gradients = [torch.zeros_like(part) for part in self._parameters]
        self._first = [torch.zeros_like(part) for part in self._parameters]
        self._second = [torch.zeros_like(part) for part in self._parameters] if kind == "adam" else []
        self._steps = 0
        self._model = model

    def attach(self) -> None:
        """Send the model's gradients here: needed before a round, as optimizers of several devices may share the model.

        Raises ConfigError if other parameters are trainable than at the start.
        """
        self._model.attach_gradients(self._stretches, self._gradients)

    def check(self) -> None:
        """Raise ConfigError if the module has come loose from the stepped vector: it was not trained then."""
        self._model.check_attached(self._stretches, self._gradients)

    def state_dict(self) -> dict[str, Tensor | int]:
        """Return the state that lives between rounds; copy it before the next step to keep it."""
        moments = {f"{name}.{index}": part for name, parts in self._moments() for index, part in enumerate(parts)}
        return {"steps": self._steps, **moments}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a `state_dict`. Raises ValueError, and changes nothing, if it is of other parameters."""
        mine, steps = self.state_dict(), state.get("steps")
        if state.keys() != mine.keys() or not isinstance(steps, int) or steps < 0:
            raise ValueError("it has other parts")
        moments = [(part, state[name], name) for name, part in mine.items() if isinstance(part, Tensor)]
        for part, found, name in moments:
            if not isinstance(found, Tensor) or (found.shape, found.dtype) != (part.shape, part.dtype):
                raise ValueError(f"{name} is of other parameters")
        for part, found, _ in moments:
            assert isinstance(found, Tensor)
            part.copy_(found)
        self._steps = steps

    def _moments(self) -> list[tuple[str, list[Tensor]]]:
        keeps_first = self._kind == "adam" or self._momentum > 0
        return [("first", self._first if keeps_first else []), ("second", self._second)]

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for gradient in self._gradients:
            gradient.zero_()

    @torch.no_grad()
    def pull_towards(self, anchor: Tensor, strength: float) -> None:
        """Add the gradient of strength/2 ||w - anchor||^2 (FedProx, arXiv 1812.06127, Eq. 2) before a step.

        anchor: float32, of the vector's shape and on its device. The device's own tensors behind it are left alone.
        """
        for part, parameters, gradient in zip(self._stretches, self._parameters, self._gradients, strict=True):
            if part.start >= len(anchor):
                break
            gradient.add_(parameters, alpha=strength).sub_(anchor[part.start : part.stop], alpha=strength)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one step in place."""
        self._steps += 1
        for index in range(len(self._parameters)):
            if self._kind == "sgd":
                self._step_sgd(index, learning_rate)
            else:
                self._step_adam(index, learning_rate)

    def _step_sgd(self, index: int, learning_rate: float) -> None:
        parameters, gradient, velocity = self._parameters[index], self._gradients[index], self._first[index]
        if self._weight_decay:
            gradient.add_(parameters, alpha=self._weight_decay)
        if self._momentum:
            gradient = velocity.mul_(self._momentum).add_(gradient)
        parameters.add_(gradient, alpha=-learning_rate)

    def _step_adam(self, index: int, learning_rate: float) -> None:
        parameters, gradient = self._parameters[index], self._gradients[index]
        first, second = self._first[index], self._second[index]
        parameters.mul_(1 - learning_rate * self._weight_decay)
        first.lerp_(gradient, 1 - self._momentum)
        second.mul_(_SECOND_MOMENT).addcmul_(gradient, gradient, value=1 - _SECOND_MOMENT)
        scale = (1 - _SECOND_MOMENT**self._steps) ** 0.5
        # The gradient is used up: it becomes the denominator, so that a step needs no further memory.
        denominator = torch.sqrt(second, out=gradient).div_(scale).add_(_EPSILON)
        parameters.addcdiv_(first, denominator, value=-learning_rate / (1 - self._momentum**self._steps))


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
