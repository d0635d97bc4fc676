"""Incremental training (DeepType 4): go on from a global model, a batch at a time, pausable after any of them.

A study is a model, its learning parameters, and a task, which gives an epoch's batches and the loss of each. Batches
follow from the seed and the epoch, so a saved study goes on at its next batch, and ends with the same parameters bit
for bit. It knows no clock: the caller decides before each batch whether it may run.

The learning parameters are all, or in fine-tuning (5.4) those of the last layer only: the layers before it are a fixed
feature extractor.

On disk a study is its learned parameters, the optimizer's state, and the next batch: one safetensors file, written
whole or not at all, with a checksum. It holds the learning parameters alone: the other layers are the global model's.
`origin` names the study's model, text and settings; another one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.bounds import Count
from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.learning.training import Kind, Optimizer
from mdl.reading import decode_json

Ids: TypeAlias = NDArray[np.int64]


class StudySettings(msgspec.Struct, frozen=True):
    """epochs: 5 converge (3.2). batch: samples of a step, 128 globally and 16 personally. decay: of the rate an epoch.

    learning_rate: of a step along the mean over all target words of a batch. clip: the longest gradient, 0 for any.
    bfloat16: layers are computed in it; learning parameters and their optimizer stay as they are.
    """

    epochs: int = 5
    batch: int = 16
    optimizer: Kind = "sgd"
    learning_rate: float = 1.0
    decay: float = 0.8
    clip: float = 1.0
    seed: int = 0
    bfloat16: bool = False


class Task(Protocol):
    """The data of a study. draw: the batches of an epoch. loss: of one of them, in nats."""

    def draw(self, generator: np.random.Generator) -> Sequence[Any]: ...

    def loss(self, batch: Any) -> Tensor: ...


class StudyProgress(msgspec.Struct, frozen=True):
    """The progress of a study: batch of epoch is the next one. total: of the losses of this epoch, in nats."""

    epoch: Count = 0
    batch: Count = 0
    steps: Count = 0
    total: float = 0.0


class Study:
    """See the module. parameters: those that learn, by name; they are changed in place."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], task: Task, settings: StudySettings) -> None:
        self.settings, self.progress = settings, StudyProgress()
        self._task = task
        self._optimizer = Optimizer(parameters, settings.optimizer, settings.clip)
        self._batches: Sequence[Any] = []
        self._draw()

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        return len(self._batches)

    @property
    def is_done(self) -> bool:
        return self.progress.epoch >= self.settings.epochs or not self._batches

    def step(self) -> float:
        """Learn from the next batch; return its loss. Raises DataError if that is not finite."""
        at, settings = self.progress, self.settings
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.bfloat16):
            loss = self._task.loss(self._batches[at.batch])
        value = check_loss(loss, f"epoch {at.epoch + 1}, batch {at.batch + 1}", settings.learning_rate)
        self._optimizer.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step(settings.learning_rate * settings.decay**at.epoch)
        self.progress = StudyProgress(at.epoch, at.batch + 1, at.steps + 1, at.total + value)
        if self.progress.batch == len(self._batches):
            self.progress = StudyProgress(at.epoch + 1, 0, at.steps + 1)
            self._draw()
        return value

    def run(self, must_stop: Callable[[], bool] = lambda: False) -> bool:
        """Learn to the end; return False if must_stop, which is asked before each batch, ended it."""
        while not self.is_done:
            if must_stop():
                return False
            self.step()
        return True

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that the rest of the study needs, besides `progress`: live ones, not copies."""
        learned = {f"learned.{name}": parameter.detach() for name, parameter in self._optimizer.parameters.items()}
        return learned | self._optimizer.state()

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor], progress: StudyProgress) -> None:
        """Go on from the state of a study of the same model, task and settings. Raises DataError for another one's."""
        own = self.state()
        if {name: tensor.shape for name, tensor in own.items()} != {name: t.shape for name, t in state.items()}:
            raise DataError("the saved study is of another model, or other layers of it learned")
        for name, parameter in self._optimizer.parameters.items():
            parameter.copy_(state[f"learned.{name}"])
        self._optimizer.restore(state, progress.steps)
        self.progress = progress
        self._draw()
        if progress.batch > len(self._batches):
            raise DataError("the saved study is of another text")

    def _draw(self) -> None:
        if self.progress.epoch < self.settings.epochs:
            self._batches = self._task.draw(np.random.default_rng([self.settings.seed, self.progress.epoch]))


def check_loss(loss: Tensor, where: str, rate: float) -> float:
    """Return its value. Raises DataError if that is not finite."""
    value = float(loss.detach())
    if not math.isfinite(value):
        raise DataError(f"{where}: the loss is {value}: training diverged, take a lower learning rate (it is {rate:g})")
    return value


class FeatureTask:
    """Rows of cached features: only the last layer is computed. features: (n, F); targets: (n,) classes.

    weights: (n,), of the rows. owner: (n,), the sample of each row, in any order from 0 up.
    """

    def __init__(self, layer: nn.Module, features: Tensor, targets: Tensor, weights: Tensor, owner: Ids, size: int):
        self._layer, self._size = layer, size
        self._features, self._targets, self._weights = features, targets, weights
        self._by_owner = np.argsort(owner, kind="stable")
        self._starts = np.searchsorted(owner[self._by_owner], np.arange(int(owner.max(initial=-1)) + 2))

    def draw(self, generator: np.random.Generator) -> Sequence[Ids]:
        order = generator.permutation(len(self._starts) - 1)
        return [order[at : at + self._size] for at in range(0, len(order), self._size)]

    def loss(self, batch: Ids) -> Tensor:
        rows = np.concatenate([self._by_owner[self._starts[each] : self._starts[each + 1]] for each in batch])
        index = torch.from_numpy(rows)
        logits = self._layer(self._features[index].float())
        losses = nn.functional.cross_entropy(logits, self._targets[index], reduction="none")
        weights = self._weights[index]
        return (losses * weights).sum() / weights.sum()


def tune_only(module: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Freeze all but one layer; return the parameters that still learn, by name."""
    layer = {id(parameter) for parameter in module.get_submodule(name).parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in layer)
    return trainable(module)


def tune_all(module: nn.Module) -> dict[str, nn.Parameter]:
    """Let every parameter learn (again); return them by name."""
    module.requires_grad_(True)
    return trainable(module)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


class _Description(msgspec.Struct, frozen=True):
    """progress: of the study. origin: its model, text and settings. checksum: of all tensors, hexadecimal."""

    progress: StudyProgress
    origin: str
    checksum: str


def save_study(path: Path, study: Study, origin: str) -> None:
    """Write the study. Raises MdlError if the disk refuses; the former file is then still there."""
    arrays: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in study.state().items()}
    description = _Description(study.progress, origin, _checksum(arrays))
    write_safetensors(path, arrays, {"study": msgspec.json.encode(description).decode()})


def load_study(path: Path, study: Study, origin: str) -> bool:
    """Bring a new study to its saved state; return False if there was none.

    Raises DataError that names the file if it is damaged, ConfigError if it is of another origin.
    """
    if not path.exists():
        return False
    arrays, metadata = read_safetensors(path)
    description = decode_json(metadata.get("study", ""), _Description, f"{path} is no saved study")
    if description.checksum != _checksum(arrays):
        raise DataError(f"{path} has changed since it was written: its checksum is wrong")
    if description.origin != origin:
        raise ConfigError(f"{path} is of another model, text or settings: --fresh begins anew")
    study.restore({name: torch.from_numpy(array) for name, array in arrays.items()}, description.progress)
    return True


def _checksum(arrays: dict[str, NDArray[Any]]) -> str:
    found = blake3()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()
