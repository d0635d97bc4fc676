"""Dual distillation (Colla 3.3): a device learns from the cloud's model, and the cloud's from its devices' models.

Only outputs are compared, so teacher and student may differ in size, and in their classes, which the label space of the
mesh numbers. Eq. 2: `soft_cross_entropy`; Eq. 3: `client_loss`; Eq. 4: `Classroom.teach`. docs/colla-notes.md
explains our reading of each. Fits any model; knows nothing of peers, rounds or messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch
from torch import Tensor, nn

from mdl.config import Section
from mdl.errors import ConfigError, DataError, TrainingCancelledError
from mdl.learning.models import soft_cross_entropy

# Examples that a model only reads at once: bounds the memory of activations; more would not be quicker.
_RUN_AT_ONCE = 512


class DistillSettings(Section, frozen=True):
    """The settings of a student's training. Raises ConfigError that names the first value out of range.

    label_weight: lambda of Eq. 2 to 4, the hard label's part of the loss; the teacher has the rest.
    temperature: above 1 softens teacher and student alike.
    patience: epochs without a better validation loss until the student stops; 0 trains all `epochs`.
    """

    label_weight: float = 0.5
    temperature: float = 1.0
    learning_rate: float = 0.005
    weight_decay: float = 0.0
    batch_size: int = 32
    epochs: int = 30
    patience: int = 5

    def __post_init__(self) -> None:
        _require(0 <= self.label_weight <= 1, "distill.label_weight", self.label_weight, "from 0 to 1")
        _require(0 < self.temperature < math.inf, "distill.temperature", self.temperature, "above 0")
        _require(0 < self.learning_rate < math.inf, "distill.learning_rate", self.learning_rate, "above 0")
        _require(0 <= self.weight_decay < math.inf, "distill.weight_decay", self.weight_decay, "at least 0")
        _require(self.batch_size >= 1, "distill.batch_size", self.batch_size, "at least 1")
        _require(self.epochs >= 1, "distill.epochs", self.epochs, "at least 1")
        _require(self.patience >= 0, "distill.patience", self.patience, "0 (no early stopping) or more")


class Examples(msgspec.Struct, frozen=True):
    """x: the model's inputs, (n, ...). y: int64 (n,), positions in the student's last layer.

    teacher: float32 (n, K), the teacher's probabilities for the student's classes, or None without a teacher.
    """

    x: Tensor
    y: Tensor
    teacher: Tensor | None = None


class StudentTraining(msgspec.Struct, frozen=True):
    """epochs: trained; best_epoch: the one that the student kept, from 1; losses: validation loss of each epoch."""

    epochs: int
    best_epoch: int
    losses: tuple[float, ...]


def soften(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the probabilities softmax(z / T), the same shape as the logits (n, K)."""
    return torch.softmax(logits / temperature, dim=-1)


def pick_classes(probabilities: Tensor, teacher_classes: Tensor, student_classes: Tensor) -> Tensor:
    """Return the teacher's probabilities (n, C) for the student's classes, renormalised: (n, K).

    teacher_classes, student_classes: distinct class numbers, int64 (C,) and (K,). A class the teacher does not know
    gets 0. A row in which the teacher gives all of the student's classes nothing stays 0: it teaches nothing there.
    """
    picked = _place(probabilities, teacher_classes, student_classes)
    total = picked.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, picked / total.clamp_min(torch.finfo(picked.dtype).tiny), torch.zeros_like(picked))


def locate_classes(y: Tensor, classes: Tensor) -> Tensor:
    """Return class numbers (n,) as positions in a last layer with `classes` (K,); -1 for a class it lacks."""
    equal = y[:, None] == classes[None, :]
    position: Tensor = torch.where(equal.any(dim=1), equal.int().argmax(dim=1), -1)
    return position


def pad_classes(probabilities: Tensor, client_classes: Tensor, cloud_classes: Tensor) -> Tensor:
    """Return a client's probabilities (n, K) among the cloud's classes, zero for those it lacks: (n, C).

    The client's share for classes that the cloud does not know is left out, and not renormalised.
    """
    return _place(probabilities, client_classes, cloud_classes)


def keep_best(scores: Sequence[float], keep: int | float) -> list[int]:
    """Return the client models that may teach (Colla Fig. 14): the best by score, in their order; ties: the earlier.

    keep: an int is a number of models ("Top-70"), a float a share of them, at least one model.
    """
    if keep <= 0 or (isinstance(keep, float) and keep > 1):
        raise ConfigError(f"keep is {keep}: it must be a number of models, or a share above 0 and at most 1.0")
    count = min(len(scores), keep if isinstance(keep, int) else max(1, round(keep * len(scores))))
    ranked = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return sorted(ranked[:count])


def client_loss(logits: Tensor, y: Tensor, teacher: Tensor | None, settings: DistillSettings) -> Tensor:
    """Return Eq. 3: lambda CE(y, p) + (1 - lambda) CE(q, p); plain cross-entropy without a teacher. Scalar.

    logits (n, K), y int64 (n,), teacher (n, K) as `pick_classes` gives it.
    """
    hard = nn.functional.cross_entropy(logits, y)
    if teacher is None:
        return hard
    soft = soft_cross_entropy(logits, teacher, settings.temperature)
    return settings.label_weight * hard + (1 - settings.label_weight) * soft


def train_student(
    student: nn.Module,
    train: Examples,
    validation: Examples | None,
    settings: DistillSettings,
    generator: torch.Generator,
    stopped: Callable[[], bool] = lambda: False,
) -> StudentTraining:
    """Train with Adam on Eq. 3 (or 4: the teacher is then the clients' mean), stop early, keep the best epoch.

    The same loss on the validation examples judges the epochs. They are compared with one another alone: the start is
    not among them, so that an update always stands. Without validation examples, or with patience 0, all epochs are
    trained and the last is kept. Only parameters that require a gradient move. generator draws the batches and the
    dropout. stopped: asked before each batch, also in validation, may wait. Raises DataError if the loss is not finite,
    TrainingCancelledError.
    """
    trainable = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, settings.learning_rate, weight_decay=settings.weight_decay)
    best, best_epoch, losses = _copy(student), 0, list[float]()
    for epoch in range(1, settings.epochs + 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            if not _train_epoch(student, optimizer, train, settings, generator, stopped):
                raise TrainingCancelledError(f"stopped in epoch {epoch} of {settings.epochs}")
        if validation is None or not len(validation.y) or not settings.patience:
            continue
        losses.append(_validate(student, validation, settings, stopped))
        if epoch == 1 or losses[-1] < losses[best_epoch - 1]:
            best, best_epoch = _copy(student), epoch
        elif epoch - best_epoch >= settings.patience:
            break
    if losses:
        student.load_state_dict(best)
        return StudentTraining(len(losses), best_epoch, tuple(losses))
    return StudentTraining(settings.epochs, settings.epochs, ())


def predict_probabilities(
    model: nn.Module, x: Tensor, temperature: float = 1.0, stopped: Callable[[], bool] = lambda: False
) -> Tensor:
    """Return softmax(z / T), float32 (n, K), without gradients; leave every submodule's training mode as it was.

    stopped: as in `run_in_batches`.
    """
    return soften(_predict_logits(model, x, stopped), temperature)


def run_in_batches(run: Callable[[Tensor], Tensor], x: Tensor, stopped: Callable[[], bool] = lambda: False) -> Tensor:
    """Return the results of `run` for x (n, ...), without gradients.

    stopped: asked before each batch, may wait. Raises TrainingCancelledError.
    """
    made: list[Tensor] = []
    with torch.no_grad():
        for batch in _batches(x, _RUN_AT_ONCE):
            if stopped():
                raise TrainingCancelledError(f"stopped with {len(made) * _RUN_AT_ONCE} of {len(x)} examples seen")
            made.append(run(batch))
    return torch.cat(made)


def _predict_logits(model: nn.Module, x: Tensor, stopped: Callable[[], bool]) -> Tensor:
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        return run_in_batches(model, x, stopped)
    finally:
        for part, training in modes:
            part.training = training


def _require(holds: bool, key: str, value: float, valid: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}: it must be {valid}")


def _place(probabilities: Tensor, here: Tensor, there: Tensor) -> Tensor:
    """Move the columns for the classes `here` to the places of the same classes in `there`; 0 for other classes."""
    equal = there[:, None] == here[None, :]
    known = equal.any(dim=1)
    placed = probabilities.new_zeros((len(probabilities), len(there)))
    placed[:, known] = probabilities[:, equal.int().argmax(dim=1)[known]]
    return placed


def _train_epoch(
    student: nn.Module, optimizer: torch.optim.Optimizer, train: Examples, settings: DistillSettings,
    generator: torch.Generator, stopped: Callable[[], bool],
) -> bool:  # fmt: skip
    """Train one epoch; return False if it was stopped."""
    student.train()
    for rows in _batches(torch.randperm(len(train.y), generator=generator), settings.batch_size):
        if stopped():
            return False
        teacher = None if train.teacher is None else train.teacher[rows]
        loss = client_loss(student(train.x[rows]), train.y[rows], teacher, settings)
        if not math.isfinite(float(loss.detach())):
            raise DataError(
                f"the loss is {float(loss.detach())}: lower distill.learning_rate ({settings.learning_rate:g})"
            )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return True


def _validate(
    student: nn.Module, validation: Examples, settings: DistillSettings, stopped: Callable[[], bool]
) -> float:
    """Return the training loss on the validation examples (4.2).

    The labels' part alone would ignore the teacher's knowledge, and rise with it.
    """
    logits = _predict_logits(student, validation.x, stopped)
    return float(client_loss(logits, validation.y, validation.teacher, settings))


def _batches(rows: Tensor, size: int) -> Iterator[Tensor]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _copy(student: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}
