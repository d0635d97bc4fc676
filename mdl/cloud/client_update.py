"""A device's update (Colla 3.3, stage 3; 5.4): its own model goes on learning, taught by its group's large model.

An `UpdateMode` says the classes of its last layer, and how much of it learns; the paper's three modes have its names.
Pure: all draws come from the generator.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor, nn

from mdl.cloud.distillation import (
    DistillSettings,
    Examples,
    StudentTraining,
    locate_classes,
    pick_classes,
    predict_probabilities,
    train_student,
)
from mdl.cloud.model_kinds import ModelKind, UpdateMode
from mdl.errors import DataError

# One in so many examples decides when to stop (4.2: training and validation 16 : 4); with fewer examples than
# _FEWEST_TO_HOLD that tells nothing.
_HELD_SHARE, _FEWEST_TO_HOLD = 5, 20


class ClientUpdate(msgspec.Struct, frozen=True):
    """model: the device's new one. training: its number of epochs, and the one that was kept."""

    model: nn.Module
    training: StudentTraining


def update_client(
    kind: ModelKind,
    start: nn.Module,
    teacher: nn.Module | None,
    x: Tensor,
    y: Tensor,
    settings: DistillSettings,
    mode: UpdateMode,
    generator: torch.Generator,
    stopped: Callable[[], bool] = lambda: False,
) -> ClientUpdate:
    """Run stage 3 (Eq. 3). start: this device's model, or the small one it pulled first; teacher: pulled, or None.

    x, y: this period's examples, y class numbers (n,). A drawn fifth of them stops the training early if
    `settings.patience` is not 0. stopped: asked before each batch of all passes here, may wait. Raises DataError
    without examples, or if the loss is not finite; TrainingCancelledError.
    """
    if not len(y):
        raise DataError("a device without examples has nothing to learn from")
    student = kind.customize(start, sorted(set(y.tolist())), mode, generator)
    classes = kind.class_ids(student)
    soft = None
    if teacher is not None and settings.label_weight < 1:
        soft = teacher_probabilities(kind, teacher, x, classes, settings.temperature, stopped)
    learner, seen = (student, x) if mode.whole else kind.split_last_layer(student, x, stopped)
    examples = Examples(seen, locate_classes(y, classes), soft)
    train, validation = hold_examples(examples, settings, draw_held(len(y), generator))
    return ClientUpdate(student, train_student(learner, train, validation, settings, generator, stopped))


def accuracy_of(
    kind: ModelKind, model: nn.Module, x: Tensor, y: Tensor, stopped: Callable[[], bool] = lambda: False
) -> float:
    """Return the share of examples with the right predicted class; a class the model lacks is always wrong.

    stopped: as in `run_in_batches`.
    """
    predicted = kind.class_ids(model)[predict_probabilities(model, x, stopped=stopped).argmax(dim=1)]
    return float((predicted == y).float().mean())


def teacher_probabilities(
    kind: ModelKind,
    teacher: nn.Module,
    x: Tensor,
    student_class_ids: Tensor,
    temperature: float = 1.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Return the teacher's probabilities for the student's classes, renormalised: float32 (n, K).

    stopped: as in `run_in_batches`.
    """
    told = predict_probabilities(teacher, x, temperature, stopped)
    return pick_classes(told, kind.class_ids(teacher), student_class_ids)


def draw_held(count: int, generator: torch.Generator) -> Tensor:
    """Draw the fifth of `count` examples that decides when to stop: bool (n,); none if there are too few."""
    held = torch.zeros(count, dtype=torch.bool)
    if count >= _FEWEST_TO_HOLD:
        held[torch.randperm(count, generator=generator)[: count // _HELD_SHARE]] = True
    return held


def hold_examples(examples: Examples, settings: DistillSettings, held: Tensor) -> tuple[Examples, Examples | None]:
    """Return examples to train on, and those that stop the training; all and None if nothing stops it.

    held: as `draw_held` gives it. Training a model again on known examples must hold back the same ones: otherwise the
    start is judged by its own training examples, and every step away from it looks like a loss.
    """
    if not settings.patience or not held.any():
        return examples, None
    return _take(examples, ~held), _take(examples, held)


def _take(examples: Examples, rows: Tensor) -> Examples:
    teacher = None if examples.teacher is None else examples.teacher[rows]
    return Examples(examples.x[rows], examples.y[rows], teacher)
