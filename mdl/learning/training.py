"""Local training: one device's work between two rounds, the optimizers of it, and the delta it brings to the mesh.

The windows of a round follow from (seed, round) alone, so a device that restarts trains the same batches again.
Only the optimizer's momentum lives between rounds. Knows nothing of peers, messages or files.

Windows may be turned, as another person would have recorded them, with the device at another angle, redrawn each
time. Axes of one sensor are channels with names that differ in a last x, y, z. All sensors of a window are in one
device, so they turn together (Um et al. 2017, arXiv 1706.00527, of wearables).

The optimizers are the steps of torch.optim without it: SGD and AdamW over a flat model, and SGD and Adam over some of a
model's layers. torch.optim imports torch's compiler at its first step: 800 modules, 1.3 s of processor time here and
many seconds on a Raspberry Pi, in every peer at every start. tests/mdl/learning/test_optimizer.py holds `FlatOptimizer`
and it equal. `Optimizer` has a state that can be saved. It clips the gradient by its norm over all parameters, as in
the tutorial that DeepType's model follows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.config import TrainingSettings
from mdl.data.windows import targets_of, to_input
from mdl.errors import ConfigError, DataError, MdlError, RemoteProtocolError, TrainingCancelledError
from mdl.learning.flat import FlatModel
from mdl.learning.models import Loss, TargetScale, loss_of, soft_cross_entropy, to_tensor
from mdl.protocol.delta import check_values
from mdl.protocol.grid import Vector

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


# The cosine's last value: above 0, so that rounds beyond the planned ones still teach something.
_LAST_SHARE = 0.01
_AXIS = re.compile(r"(.*?)([xyz])", re.IGNORECASE)


class Teacher(msgspec.Struct, frozen=True):
    """A cloud model's answers for this device's windows (Colla, Eq. 3), row by row.

    probabilities: float32 (n, classes), softened with `temperature`. label_weight: lambda, the hard label's part of the
    loss; the teacher has the rest.
    """

    probabilities: Vector
    label_weight: float
    temperature: float


class LocalTraining(msgspec.Struct, frozen=True):
    """One round on one device. values: w_i, the model's live vector, valid until the module is loaded or trained.

    loss: mean over the round's windows, in nats (`loss_of`). samples: windows seen. steps: optimizer steps taken.
    """

    values: Vector
    loss: float
    samples: int
    steps: int


class LocalTrainer:
    """Trains one device's shard, 1/rounds_per_epoch of an epoch a round (Algorithm 1, lines of the trainer).

    x: as in `Windows`, may be memory-mapped; y: likewise. loss: mean over a batch; None: the usual one for y.
    augment: changes a batch's windows before they are trained on; draws from torch's random state.
    Raises DataError for a shard that does not fit.
    """

    def __init__(
        self,
        model: FlatModel,
        x: NDArray[Any],
        y: NDArray[Any],
        settings: TrainingSettings,
        loss: Loss | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        _check_shard(x, y, settings)
        self.model = model
        self.settings = settings
        self._x, self._y, self._augment = x, y, augment
        self._checks_labels = loss is None and targets_of(y) == "classes"
        self._loss = loss or loss_of(model.module, y, settings.label_smoothing)
        self._scale = TargetScale(model.module, y)
        self.optimizer = FlatOptimizer(model, settings.optimizer, settings.momentum, settings.weight_decay)

    def replace_windows(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Replace the shard from the next round on. Raises DataError if it does not fit."""
        _check_shard(x, y, self.settings)
        self._x, self._y = x, y
        self._scale = TargetScale(self.model.module, y)

    def train_round(
        self,
        parameters: Vector,
        round_id: int,
        is_cancelled: Callable[[], bool] = lambda: False,
        teacher: Teacher | None = None,
    ) -> LocalTraining:
        """Load w(round_id - 1), train, and return w_i. Rounds count from 1. is_cancelled: asked before each step.

        teacher: adds a distillation term to this round's loss.

        Raises DataError if the loss is not finite, or a label lies beyond the model's classes; ConfigError if the
        module moves its parameters while it computes; TrainingCancelledError.
        """
        self.model.load(parameters)
        self._scale.begin()
        self.model.module.train()
        self.optimizer.attach()
        drawn, several = draw_batches(len(self._y), self.settings, round_id), self.settings.accumulate
        anchor = self._anchor(parameters) if self.settings.proximal else None
        batches = [drawn[start : start + several] for start in range(0, len(drawn), several)]
        total = 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_derive_seed(self.settings.seed, round_id))
            for step, part in enumerate(batches):
                if is_cancelled():
                    raise TrainingCancelledError(f"round {round_id}: stopped at step {step} of {len(batches)}")
                rate = schedule_rate(self.settings, round_id - 1 + step / len(batches))
                total += self._take_step(part, round_id, rate, teacher, anchor)
        self.optimizer.check()
        self._scale.end()
        samples = sum(map(len, drawn))
        return LocalTraining(self.model.gather(), total / samples, samples, len(batches))

    def _anchor(self, parameters: Vector) -> Tensor:
        """Return w on the module's device; on the processor copy it only if torch would warn of read-only memory."""
        writable = parameters if parameters.flags.writeable else parameters.copy()
        return torch.from_numpy(writable).to(self.model.live().device)

    def _take_step(
        self,
        batches: list[NDArray[np.int64]],
        round_id: int,
        rate: float,
        teacher: Teacher | None,
        anchor: Tensor | None,
    ) -> float:
        """Take one step along the mean gradient of these batches; return their loss, summed over windows.

        anchor: w(round_id - 1), near which FedProx keeps the step; the returned loss leaves out its term.
        """
        self.optimizer.clear()
        total = 0.0
        for batch in batches:
            value, loss = self._measure(batch, round_id, teacher)
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            total += value * len(batch)
        if anchor is not None:
            self.optimizer.pull_towards(anchor, self.settings.proximal)
        self.optimizer.step(rate)
        return total

    def _measure(self, batch: NDArray[np.int64], round_id: int, teacher: Teacher | None) -> tuple[float, Tensor]:
        """Return the mean loss of a batch by its labels, and the loss to step along."""
        # Sorted reads are kinder to a memory-mapped file, and the order within a batch means nothing.
        rows, device = np.sort(batch), self.model.live().device
        x, y = torch.from_numpy(to_input(self._x[rows])), to_tensor(self._y[rows])
        x = self._augment(x) if self._augment else x
        with torch.autocast(device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            logits = self.model.module(x.to(device))
        if self._checks_labels and int(y.max()) >= logits.shape[-1]:
            raise DataError(f"label {int(y.max())} in the shard, but the model has classes 0..{logits.shape[-1] - 1}")
        logits = logits.float()
        loss = self._loss(logits, y.to(device))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DataError(_explain(value, x.numpy(), rows, round_id, self.settings.learning_rate))
        if teacher is not None:
            taught = torch.from_numpy(teacher.probabilities[rows]).to(device)
            soft = soft_cross_entropy(logits, taught, teacher.temperature)
            loss = teacher.label_weight * loss + (1 - teacher.label_weight) * soft
        return value, loss


def find_device(name: str) -> torch.device:
    """Return the device of `training.device`; "auto": a GPU if one is here. Raises ConfigError if it is not here."""
    here: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, is_here in here.items() if is_here()))
    if not here[name]():
        raise ConfigError(f"training.device is {name}: torch finds none here; cpu, or auto for what is here")
    return torch.device(name)


def model_delta(parameters: Vector, trained: Vector, in_place: bool = False) -> Vector:
    """Return w(t) - w_i (Eq. 1), float32, shape (P,), in memory of its own, or in that of w(t)."""
    return np.subtract(parameters, trained, out=parameters if in_place else None)


def check_trained(delta: Vector, round_id: int) -> None:
    """Raise MdlError for an own delta that would poison a mean: NaN, infinity, |value| > 1e6."""
    try:
        check_values(delta, delta.size)
    except RemoteProtocolError as error:
        raise MdlError(f"training diverged in round {round_id}: {error}; try a lower learning rate") from None


def draw_batches(count: int, settings: TrainingSettings, round_id: int) -> list[NDArray[np.int64]]:
    """Return the rows of each of a round's batches: its part of the epoch's permutation, drawn from (seed, epoch).

    Batches differ by at most one row, so that none is a leftover too small for a batch norm.
    """
    epoch, part = divmod(round_id - 1, settings.rounds_per_epoch)
    order = np.random.default_rng([settings.seed, epoch]).permutation(count)
    start, stop = (count * edge // settings.rounds_per_epoch for edge in (part, part + 1))
    return np.array_split(order[start:stop], math.ceil((stop - start) / settings.batch_size))


def schedule_rate(settings: TrainingSettings, rounds_done: float) -> float:
    """Return the learning rate after so many rounds: its last value past the planned ones, its first if none are."""
    if settings.schedule == "constant" or not settings.planned_rounds:
        return settings.learning_rate
    progress = min(1.0, rounds_done / settings.planned_rounds)
    return settings.learning_rate * max(_LAST_SHARE, (1 + math.cos(math.pi * progress)) / 2)


def _check_shard(x: NDArray[Any], y: NDArray[Any], settings: TrainingSettings) -> None:
    if len(x) != len(y):
        raise DataError(f"the shard has {len(x)} windows but {len(y)} labels")
    if len(y) < settings.rounds_per_epoch:
        raise DataError(
            f"the shard has {len(y)} windows: too few for {settings.rounds_per_epoch} rounds per epoch, give it at "
            "least one window a round"
        )
    if targets_of(y) == "classes" and int(y.min()) < 0:
        raise DataError(f"label {int(y.min())} in the shard: labels count from 0")


def _explain(loss: float, rows_x: Vector, rows: NDArray[np.int64], round_id: int, rate: float) -> str:
    what = f"round {round_id}: the training loss is {loss}"
    broken = rows[~np.isfinite(rows_x).reshape(len(rows), -1).all(axis=1)]
    if broken.size:
        return f"{what}, because window {broken[0]} of the shard holds a value that is not finite"
    return f"{what}: training diverged, lower training.learning_rate (it is {rate:g})"


def _derive_seed(seed: int, round_id: int) -> int:
    return int(np.random.SeedSequence([seed, round_id]).generate_state(1, np.uint64)[0]) >> 1


def make_turn(degrees: float, channels: Sequence[str]) -> Callable[[Tensor], Tensor] | None:
    """Return a function that turns a batch (n, channels, time), each window about its own axis; None for 0 degrees.

    degrees: standard deviation of the angle. Raises ConfigError if no channels are a sensor's three axes.
    """
    if not degrees:
        return None
    sensors = find_axes(channels)
    if not sensors:
        shown = ", ".join(channels)[:80] or "none"
        raise ConfigError(
            f"training.rotate_deg is {degrees:g}: no three channels are named as one sensor's axes, like acc_x, acc_y, "
            f"acc_z; named are {shown}"
        )
    places = torch.tensor(sensors)

    def turn(x: Tensor) -> Tensor:
        turned = x.clone()
        # (n, 3, 3) times (n, sensors, 3, time).
        turned[:, places] = draw_rotations(len(x), math.radians(degrees)).unsqueeze(1) @ x[:, places]
        return turned

    return turn


def find_axes(channels: Sequence[str]) -> list[list[int]]:
    """Return the places of x, y, z of each sensor that has all three, in the order of the channels."""
    found: dict[str, dict[str, int]] = {}
    for place, name in enumerate(channels):
        if match := _AXIS.fullmatch(name.strip()):
            found.setdefault(match[1].lower(), {})[match[2].lower()] = place
    return [[axes[axis] for axis in "xyz"] for axes in found.values() if len(axes) == len("xyz")]


def draw_rotations(count: int, spread: float) -> Tensor:
    """Draw matrices (count, 3, 3) about axes of any direction, by angles of this spread in radians (Rodrigues)."""
    x, y, z = torch.nn.functional.normalize(torch.randn(count, 3), dim=1).T
    angle, none = (spread * torch.randn(count))[:, None, None], torch.zeros(count)
    cross = torch.stack([none, -z, y, z, none, -x, -y, x, none], dim=1).view(count, 3, 3)
    return torch.eye(3) + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)
