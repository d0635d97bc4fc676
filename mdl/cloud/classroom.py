"""The cloud's learning (Colla 3.1 to 3.3): it boots on its own data, learns from its pupils' models, and teaches them.

A pupil is a client's model as the cloud decoded it. In a cycle the pupils are scored on the cloud's data, those below
the share that teaches are left out (Fig. 14), the others are grouped (3.2), and each group's teacher learns from its
pupils (stage 4, Eq. 4) and is compressed to the size they pull. `update_client` is stage 3, on a device.
Pure: what is drawn follows from the seed and the cycle's number alone, so that a cycle can be done again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.cloud.distillation import (
    DistillSettings,
    Examples,
    keep_best,
    locate_classes,
    pad_classes,
    pick_classes,
    predict_probabilities,
    train_student,
)
from mdl.cloud.grouping import can_group, group_models, model_distances
from mdl.cloud.model_kinds import ModelKind
from mdl.cloud.settings import TeachingSettings, suggest_client, suggest_teaching
from mdl.errors import DataError

__all__ = [
    "BASE", "Classroom", "Cycle", "Pupil", "Teacher", "TeachingSettings", "accuracy_of", "suggest_client",
    "suggest_teaching", "teacher_probabilities", "update_client",
]  # fmt: skip

# The teacher of whoever belongs to no group: a new device.
BASE = -1
# A tenth of the examples tells when to stop; with fewer examples than this a tenth tells nothing.
_HELD_SHARE, _FEWEST_TO_HOLD = 10, 20


class Teacher(NamedTuple):
    """large: learns from the pupils. small: what they pull, the large one compressed."""

    large: nn.Module
    small: nn.Module


class Pupil(msgspec.Struct, frozen=True):
    """A client's model as the cloud decoded it. group: whose teacher it pulled, BASE for none."""

    name: str
    group: int
    model: nn.Module


class Cycle(msgspec.Struct, frozen=True):
    """What came of a cycle. teachers: by group, BASE among them. groups: whose teacher each pupil pulls next.

    silhouettes: by K, empty where the pupils are one group. scores: share of the cloud's examples that each pupil gets
    right. left_out: names of those that did not teach, for their score, or because their outputs are not finite.
    """

    teachers: dict[int, Teacher]
    groups: dict[str, int]
    silhouettes: dict[int, float]
    scores: dict[str, float]
    left_out: tuple[str, ...]


class _Heard(NamedTuple):
    """What a pupil says of the cloud's examples. compared: probabilities, float32 (compared rows, C)."""

    compared: NDArray[np.float32]
    score: float
    is_finite: bool


class Classroom:
    """The cloud's examples and settings; it keeps no model.

    x: what the models take, (n, ...); y: class numbers, int64 (n,). seed: all that it draws follows from it.
    without_groups: why pupils are not grouped, for people; "" if they are. Raises DataError without examples.
    """

    def __init__(self, kind: ModelKind, x: Tensor, y: Tensor, settings: TeachingSettings, seed: int) -> None:
        if not len(y) or len(x) != len(y):
            raise DataError(f"the cloud has {len(x)} examples with {len(y)} labels: it needs at least one, and as many")
        self.without_groups = ""
        if not settings.groups:
            self.without_groups = "groups are switched off"
        elif not can_group():
            self.without_groups = "all pupils are one group: grouping needs scikit-learn, pip install 'mdl[cloud]'"
        self._kind, self._settings, self._seed = kind, settings, seed
        rows = torch.randperm(len(y), generator=_draw(seed, 0))[: settings.rows]
        self._x, self._y = x[rows], y[rows]
        self._update_x, self._update_y = self._x[: settings.update_rows], self._y[: settings.update_rows]

    def bootstrap(self, stopped: Callable[[], bool] = lambda: False) -> Teacher:
        """Stages 1 and 2's model: the large one trained on the cloud's examples, and the small one made from it.

        Raises TrainingCancelledError if `stopped`, which is asked before each epoch.
        """
        kind, settings, generator = self._kind, self._settings, _draw(self._seed, 1)
        large = kind.build_large(self._seed)
        train, validation = _hold(self._x, self._y, None, settings.bootstrap, generator)
        kind.pretrain(large, train.x, train.y, settings.pretrain_epochs, generator)
        train_student(large, train, validation, settings.bootstrap, generator, stopped)
        small = kind.start_small(large, self._seed)
        self._compress(large, small, (self._x, self._y), settings.compress, generator, stopped)
        return Teacher(large, small)

    def teach(
        self,
        number: int,
        teachers: Mapping[int, Teacher],
        pupils: Sequence[Pupil],
        stopped: Callable[[], bool] = lambda: False,
    ) -> Cycle:
        """Stage 4 of cycle `number`: the teachers that came of the ones the pupils pulled, and of the pupils.

        teachers: by group; BASE must be there, stays what it is, and stands in for one that is missing. A group's
        teacher goes on from the teacher most of its pupils had. Pupils' names must differ.
        Raises TrainingCancelledError if `stopped`, which is asked before each epoch; nothing is half done then.
        """
        made = {BASE: teachers[BASE]}
        every = self._kind.class_ids(teachers[BASE].large)
        heard = [self._hear(pupil.model, every) for pupil in pupils]
        least = self._settings.least_score * self._hear(teachers[BASE].small, every).score
        teaching = self._choose(heard, least)
        groups, silhouettes = self._group(heard, teaching)
        for group in sorted({groups[index] for index in teaching}):
            members = [pupils[index] for index in teaching if groups[index] == group]
            before = teachers.get(_most_common([pupil.group for pupil in members]), teachers[BASE])
            generator = _draw(self._seed, 2, number, group)
            made[group] = self._learn(before, members, every, generator, stopped)
        names = [pupil.name for pupil in pupils]
        return Cycle(
            made,
            dict(zip(names, groups, strict=True)),
            silhouettes,
            {name: one.score for name, one in zip(names, heard, strict=True)},
            tuple(name for index, name in enumerate(names) if index not in teaching),
        )

    def _answer(self, model: nn.Module, every: Tensor) -> Tensor:
        """A pupil's probabilities for the cloud's classes (C,) on the rows it teaches with, (n, C)."""
        probabilities = predict_probabilities(model, self._update_x, self._settings.cloud_update.temperature)
        return pad_classes(probabilities, self._kind.class_ids(model), every)

    def _hear(self, model: nn.Module, every: Tensor) -> _Heard:
        answer = self._answer(model, every)
        # A copy: what all pupils say of all rows would be too much to keep.
        compared = answer[: self._settings.compared_rows].nan_to_num().numpy().copy()
        score = float((answer.argmax(1) == self._update_y).float().mean())
        return _Heard(compared, score, bool(torch.isfinite(answer).all()))

    def _choose(self, heard: Sequence[_Heard], least: float) -> list[int]:
        """Who teaches (Fig. 14), out of those whose outputs are finite and who know enough to be listened to."""
        able = [index for index, one in enumerate(heard) if one.is_finite and one.score >= least]
        if not able:
            return []
        return [able[at] for at in keep_best([heard[index].score for index in able], float(self._settings.keep))]

    def _group(self, heard: Sequence[_Heard], teaching: Sequence[int]) -> tuple[list[int], dict[int, float]]:
        """Each pupil's group. Those left out shape none: they go to the group whose exemplar answers most alike."""
        if not teaching:
            return [BASE] * len(heard), {}
        if self.without_groups or len(teaching) < 2:
            return [0] * len(heard), {}
        distances = model_distances(np.stack([one.compared for one in heard]))
        grouping = group_models(distances[np.ix_(teaching, teaching)], self._settings.group_counts, self._seed)
        exemplars = [teaching[at] for at in grouping.exemplars]
        groups = [int(distances[index, exemplars].argmin()) for index in range(len(heard))]
        for at, index in enumerate(teaching):
            groups[index] = grouping.groups[at]
        return groups, grouping.silhouettes

    def _learn(
        self,
        before: Teacher,
        members: Sequence[Pupil],
        every: Tensor,
        generator: torch.Generator,
        stopped: Callable[[], bool],
    ) -> Teacher:
        """Eq. 4 with the mean of the members' outputs, and compression."""
        kind, settings = self._kind, self._settings
        large = kind.customize(before.large, kind.class_ids(before.large).tolist(), generator)
        small = kind.customize(before.small, kind.class_ids(before.small).tolist(), generator)
        train = Examples(self._update_x, self._update_y, self._average(members, every))
        train_student(large, train, None, settings.cloud_update, generator, stopped)
        again = msgspec.structs.replace(settings.compress, epochs=settings.compress_update_epochs)
        self._compress(large, small, (self._update_x, self._update_y), again, generator, stopped)
        return Teacher(large, small)

    def _average(self, members: Sequence[Pupil], every: Tensor) -> Tensor:
        """`average_teachers`, one pupil at a time: only what each says of a few rows was kept."""
        mean = torch.zeros(len(self._update_y), len(every))
        for pupil in members:
            mean += self._answer(pupil.model, every) * (1 / len(members))
        return mean

    def _compress(
        self,
        large: nn.Module,
        small: nn.Module,
        examples: tuple[Tensor, Tensor],
        settings: DistillSettings,
        generator: torch.Generator,
        stopped: Callable[[], bool],
    ) -> None:
        """Compression (3.2): the small model learns the large one's probabilities on the cloud's examples."""
        x, y = examples
        soft = teacher_probabilities(self._kind, large, x, self._kind.class_ids(small), settings.temperature)
        train_student(small, Examples(x, y, soft), None, settings, generator, stopped)


def update_client(
    kind: ModelKind,
    pulled: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: DistillSettings,
    generator: torch.Generator,
    stopped: Callable[[], bool] = lambda: False,
) -> nn.Module:
    """Stage 3 on a device: the pulled model is where it starts and its teacher (Eq. 3). y: class numbers (n,).

    The last tenth of the examples stops it early if `settings.patience` is not 0. Raises DataError without examples,
    or if the loss is not finite; TrainingCancelledError.
    """
    if not len(y):
        raise DataError("a device without examples has nothing to learn from")
    student = kind.customize(pulled, sorted(set(y.tolist())), generator)
    classes = kind.class_ids(student)
    soft = teacher_probabilities(kind, pulled, x, classes, settings.temperature) if settings.teacher_weight else None
    train, validation = _hold(x, locate_classes(y, classes), soft, settings, None)
    train_student(student, train, validation, settings, generator, stopped)
    return student


def accuracy_of(kind: ModelKind, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of the examples whose class number is predicted; a class the model lacks is always wrong."""
    predicted = kind.class_ids(model)[predict_probabilities(model, x).argmax(dim=1)]
    return float((predicted == y).float().mean())


def teacher_probabilities(
    kind: ModelKind, teacher: nn.Module, x: Tensor, student_class_ids: Tensor, temperature: float = 1.0
) -> Tensor:
    """What the teacher says of the student's classes, renormalised: float32 (n, K)."""
    return pick_classes(predict_probabilities(teacher, x, temperature), kind.class_ids(teacher), student_class_ids)


def _hold(
    x: Tensor, y: Tensor, soft: Tensor | None, settings: DistillSettings, generator: torch.Generator | None
) -> tuple[Examples, Examples | None]:
    """Examples to train on, and the tenth that stops the training: drawn, or the last where there is no generator."""
    if not settings.patience or len(y) < _FEWEST_TO_HOLD:
        return Examples(x, y, soft), None
    order = torch.arange(len(y)) if generator is None else torch.randperm(len(y), generator=generator)
    used, held = order[: -(len(y) // _HELD_SHARE)], order[-(len(y) // _HELD_SHARE) :]
    return Examples(x[used], y[used], None if soft is None else soft[used]), Examples(x[held], y[held])


def _most_common(groups: Sequence[int]) -> int:
    """The earliest of those that tie."""
    return max(groups, key=lambda group: (groups.count(group), -groups.index(group)))


def _draw(*numbers: int) -> torch.Generator:
    seed = np.random.SeedSequence([number + 1 for number in numbers]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed >> np.uint64(1)))
