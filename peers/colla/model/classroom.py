"""The cloud's learning (Colla 3.1 to 3.3): it boots on its own data, learns from its pupils' models, and teaches them.

A pupil is a client's model as the cloud decoded it. In a cycle the pupils are scored on the cloud's data, and those
below the teaching share are left out (Fig. 14). The base model learns from all others (stage 4, Eq. 4), so that a new
device gains from the crowd. The pupils are also grouped (3.2): the base model taught by a group's pupils alone is that
group's teacher. Each teacher is compressed to the size that devices pull. Stage 3 is below. Pure:
all draws follow from the seed and the cycle's number alone, so that a cycle can be done again after a crash.

All models answer the same rows of the cloud's data; models with similar answers belong to one group, found by affinity
propagation. It takes no K: a preference decides how many exemplars arise, and it is searched for each K of the paper's
{2, 3, 5, 10}. Needs scikit-learn, which only a cloud has (the extra `cloud`).

Its settings and its clients' are the paper's, and those measured for each kind of models. docs/colla-notes.md explains
the choice.

A device's update (Colla 3.3, stage 3; 5.4): its own model goes on learning, taught by its group's large model.

An `UpdateMode` says the classes of its last layer, and how much of it learns; the paper's three modes have its names.
Pure: all draws come from the generator.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.config import Section
from mdl.errors import ConfigError, DataError
from mdl.peers.colla.model.distillation import (
    DistillSettings,
    Examples,
    StudentTraining,
    keep_best,
    locate_classes,
    pad_classes,
    pick_classes,
    predict_probabilities,
    train_student,
)
from mdl.peers.colla.model.model_kinds import ModelKind, RecurrentKind, UpdateMode

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


Matrix = NDArray[np.float64]

GROUP_COUNTS = (2, 3, 5, 10)
# A client gives missing classes exactly 0, and the logarithm of 0 would outweigh all else: 1 in 1,000 is "never".
_LEAST_PROBABILITY = 1e-3
# Halvings of the preference's range: the last step is a millionth of it.
_HALVINGS = 20


class Grouping(msgspec.Struct, frozen=True):
    """groups: each model's group, 0..k-1. exemplars: the model at the centre of each. silhouettes: by every K that
    affinity propagation could be brought to; empty if there were too few models or no K was reached: one group.
    """

    groups: tuple[int, ...]
    exemplars: tuple[int, ...]
    silhouettes: dict[int, float]

    @property
    def count(self) -> int:
        return len(self.exemplars)


def can_group() -> bool:
    """Return True if scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def model_distances(outputs: NDArray[np.floating]) -> Matrix:
    """Return distances (M, M) of M models from their probabilities (M, N, C) for the same N rows; classes padded alike.

    A distance is the mean over the rows of the cross-entropy H(p_i, p_j), made symmetric, less the mean of the two
    models' own entropies: a model is at 0 from itself. Without this, the vaguest model would be the furthest from all
    others. Raises DataError if a probability is negative or not finite.
    """
    if outputs.ndim != 3 or not outputs.size:
        raise DataError(f"outputs of shape {outputs.shape}: expected (models, rows, classes), none of them 0")
    if not np.isfinite(outputs).all() or outputs.min() < 0:
        raise DataError("outputs hold a negative probability, NaN or infinity")
    p = np.maximum(outputs, _LEAST_PROBABILITY).astype(np.float64)
    p /= p.sum(axis=2, keepdims=True)
    flat = p.reshape(len(p), -1)
    cross = -(flat @ np.log(flat).T) / outputs.shape[1]
    own = np.diag(cross)
    distances = (cross + cross.T) / 2 - (own[:, None] + own[None, :]) / 2
    np.fill_diagonal(distances, 0.0)
    return np.asarray(np.maximum(distances, 0.0))


def group_models(distances: Matrix, counts: Iterable[int] = GROUP_COUNTS, seed: int = 0) -> Grouping:
    """Return the grouping with the highest silhouette among those of K groups for a K in `counts`; ties: fewer groups.

    A K that no preference yields is left out, as is one that is not below the number of models.
    Raises ConfigError if scikit-learn is missing, DataError if `distances` is not a matrix of distances (M, M).
    """
    _check_distances(distances)
    (_, metrics), found = _import_cluster(), {}
    for count in sorted(set(counts)):
        if 2 <= count < len(distances) and (grouping := propagate_affinity(distances, count, seed)) is not None:
            score = metrics.silhouette_score(distances, grouping[0], metric="precomputed")
            found[count] = (float(score), *grouping)
    if not found:
        return Grouping((0,) * len(distances), (_medoid(distances),), {})
    best = max(found, key=lambda count: (found[count][0], -count))
    _, groups, exemplars = found[best]
    silhouettes = {count: round(score, 6) for count, (score, _, _) in found.items()}
    return Grouping(tuple(groups), tuple(exemplars), silhouettes)


def propagate_affinity(distances: Matrix, count: int, seed: int = 0) -> tuple[list[int], list[int]] | None:
    """Return (group of each model, exemplars) with exactly `count` groups, or None if no preference tried yields them.

    A higher preference makes more exemplars, roughly: the range is halved towards `count`, from "one group for all" to
    "each its own". If the count jumps over `count`, an even scan of the range decides.
    """
    low, high = preference_range(distances)
    ends = low, high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        result = _run(distances, middle, seed)
        if len(result[1]) == count:
            return result
        if 0 < len(result[1]) < count:
            low = middle
        else:
            # Too many, or no convergence: the higher the preference the likelier the second.
            high = middle
    for preference in np.linspace(*ends, 2 * _HALVINGS):
        result = _run(distances, float(preference), seed)
        if len(result[1]) == count:
            return result
    return None


def preference_range(distances: Matrix) -> tuple[float, float]:
    """Return the range from one exemplar for all to every model its own (similarities are -distances)."""
    off_diagonal = distances[~np.eye(len(distances), dtype=bool)]
    # One exemplar costs the smallest column sum; two save at most that.
    return -float(distances.sum(axis=0).min()) - 1e-9, -float(off_diagonal.min()) + 1e-9


def _run(distances: Matrix, preference: float, seed: int) -> tuple[list[int], list[int]]:
    """Run affinity propagation; return ([], []) if its messages do not converge."""
    cluster, _ = _import_cluster()
    with warnings.catch_warnings():
        # Its warning only repeats the labels of -1.
        warnings.simplefilter("ignore")
        fitted = cluster.AffinityPropagation(
            damping=0.8, max_iter=500, preference=preference, affinity="precomputed", random_state=seed
        ).fit(-distances)
    exemplars = [int(index) for index in fitted.cluster_centers_indices_]
    groups = [int(label) for label in fitted.labels_]
    return (groups, exemplars) if groups and min(groups) >= 0 else ([], [])


def _check_distances(distances: Matrix) -> None:
    square = distances.ndim == 2 and distances.shape[0] == distances.shape[1] and len(distances) > 0
    if not square or not np.isfinite(distances).all() or not np.allclose(distances, distances.T):
        raise DataError(f"distances of shape {distances.shape}: expected a symmetric, finite (models, models)")
    if distances.min() < 0 or not math.isclose(float(np.abs(np.diag(distances)).max()), 0.0):
        raise DataError("distances hold a negative one, or a model that is not at 0 from itself")


def _medoid(distances: Matrix) -> int:
    return int(distances.sum(axis=0).argmin())


def _import_cluster() -> tuple[ModuleType, ModuleType]:
    """Import sklearn.cluster and sklearn.metrics. Raises ConfigError if scikit-learn is missing."""
    try:
        return importlib.import_module("sklearn.cluster"), importlib.import_module("sklearn.metrics")
    except ImportError:
        raise ConfigError("grouping models needs scikit-learn: pip install 'mdl[cloud]'") from None


# The teacher of a device without a group, such as a new one.
BASE = -1


class TeacherPair(NamedTuple):
    """large: learns from the pupils, and teaches them. small: the large one compressed; a new device starts from it."""

    large: nn.Module
    small: nn.Module


class Pupil(msgspec.Struct, frozen=True):
    """A client's model as the cloud decoded it."""

    name: str
    model: nn.Module


class Cycle(msgspec.Struct, frozen=True):
    """The result of a cycle. teachers: by group, BASE among them. groups: by pupil, the group of its next teacher.

    silhouettes: by K, empty where the pupils are one group. scores: share of the cloud's examples that each pupil gets
    right. left_out: names of the pupils that did not teach, for their score, or for outputs that are not finite.
    """

    teachers: dict[int, TeacherPair]
    groups: dict[str, int]
    silhouettes: dict[int, float]
    scores: dict[str, float]
    left_out: tuple[str, ...]


class _Heard(NamedTuple):
    """A pupil's answers for the cloud's examples. compared: probabilities, float32 (compared rows, C)."""

    compared: NDArray[np.float32]
    score: float
    is_finite: bool


class Classroom:
    """The cloud's examples and settings; it keeps no model.

    x: the models' inputs, (n, ...); y: class numbers, int64 (n,). seed: all draws follow from it.
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
        # The same in stage 1 and in every cycle: no model here ever learns from the examples that stop a training.
        self._held = draw_held(len(self._y), _draw(seed, 3))
        self._update_x, self._update_y = self._x[: settings.update_rows], self._y[: settings.update_rows]

    def bootstrap(self, stopped: Callable[[], bool] = lambda: False) -> TeacherPair:
        """Return stages 1 and 2's models: the large one trained on the cloud's examples, the small one made from it.

        Raises TrainingCancelledError if `stopped`, which is asked before each epoch.
        """
        kind, settings, generator = self._kind, self._settings, _draw(self._seed, 1)
        large = kind.build_large(self._seed)
        kind.pretrain(large, self._x, self._y, settings.pretrain_steps)
        train, validation = self._hold(Examples(self._x, self._y), settings.bootstrap)
        train_student(large, train, validation, settings.bootstrap, generator, stopped)
        small = kind.build_small(self._seed)
        kind.pretrain(small, self._x, self._y, settings.pretrain_steps)
        self._compress(large, small, (self._x, self._y), settings.compress, generator, stopped)
        return TeacherPair(large, small)

    def teach(
        self, number: int, base: TeacherPair, pupils: Sequence[Pupil], stopped: Callable[[], bool] = lambda: False
    ) -> Cycle:
        """Run stage 4 of cycle `number` on the base models and the pupils, which must have different names.

        If all pupils are one group, its teacher is the new base. Without pupils that may teach the base stays.
        Raises TrainingCancelledError if `stopped`, which is asked before each epoch; nothing is half done then.
        """
        every = self._kind.class_ids(base.large)
        heard = [self._hear(pupil.model, every) for pupil in pupils]
        teaching = self._choose(heard, self._settings.least_score * self._hear(base.small, every).score)
        groups, silhouettes = self._group(heard, teaching)
        made = {BASE: base}
        if teaching:
            crowd = [pupils[index] for index in teaching]
            made[BASE] = self._learn(base, crowd, every, _draw(self._seed, 2, number, BASE), stopped)
        found = sorted({groups[index] for index in teaching})
        for group in found:
            members = [pupils[index] for index in teaching if groups[index] == group]
            generator = _draw(self._seed, 2, number, group)
            made[group] = made[BASE] if len(found) == 1 else self._learn(base, members, every, generator, stopped)
        names = [pupil.name for pupil in pupils]
        return Cycle(
            made,
            dict(zip(names, groups, strict=True)),
            silhouettes,
            {name: one.score for name, one in zip(names, heard, strict=True)},
            tuple(name for index, name in enumerate(names) if index not in teaching),
        )

    def _hold(self, examples: Examples, settings: DistillSettings) -> tuple[Examples, Examples | None]:
        """Split all examples, or the first ones, by `hold_examples`."""
        return hold_examples(examples, settings, self._held[: len(examples.y)])

    def _answer(self, model: nn.Module, every: Tensor) -> Tensor:
        """Return a pupil's probabilities for the cloud's classes (C,) on the rows it teaches with, (n, C)."""
        probabilities = predict_probabilities(model, self._update_x, self._settings.cloud_update.temperature)
        return pad_classes(probabilities, self._kind.class_ids(model), every)

    def _hear(self, model: nn.Module, every: Tensor) -> _Heard:
        answer = self._answer(model, every)
        # A copy, so that the answers of all pupils for all rows need not stay in memory.
        compared = answer[: self._settings.compared_rows].nan_to_num().numpy().copy()
        score = float((answer.argmax(1) == self._update_y).float().mean())
        return _Heard(compared, score, bool(torch.isfinite(answer).all()))

    def _choose(self, heard: Sequence[_Heard], least: float) -> list[int]:
        """Return the pupils that teach (Fig. 14), out of those with finite outputs and a sufficient score."""
        able = [index for index, one in enumerate(heard) if one.is_finite and one.score >= least]
        if not able:
            return []
        return [able[at] for at in keep_best([heard[index].score for index in able], float(self._settings.keep))]

    def _group(self, heard: Sequence[_Heard], teaching: Sequence[int]) -> tuple[list[int], dict[int, float]]:
        """Return each pupil's group. A pupil left out shapes none: it joins the group of the most similar exemplar."""
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
        before: TeacherPair,
        members: Sequence[Pupil],
        every: Tensor,
        generator: torch.Generator,
        stopped: Callable[[], bool],
    ) -> TeacherPair:
        """Return a teacher trained by Eq. 4 with the mean of the members' outputs, and compressed."""
        settings = self._settings
        large, small = copy.deepcopy(before.large), copy.deepcopy(before.small)
        examples = Examples(self._update_x, self._update_y, self._average(members, every))
        train, validation = self._hold(examples, settings.cloud_update)
        train_student(large, train, validation, settings.cloud_update, generator, stopped)
        again = msgspec.structs.replace(settings.compress, epochs=settings.compress_update_epochs)
        self._compress(large, small, (self._update_x, self._update_y), again, generator, stopped)
        return TeacherPair(large, small)

    def _average(self, members: Sequence[Pupil], every: Tensor) -> Tensor:
        """Return the pupils' weighted mean (Eq. 4), one pupil at a time: only answers for a few rows were kept."""
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
        """Compress (3.2): the small model learns the large one's probabilities on the cloud's examples."""
        x, y = examples
        soft = teacher_probabilities(self._kind, large, x, self._kind.class_ids(small), settings.temperature)
        train, validation = self._hold(Examples(x, y, soft), settings)
        train_student(small, train, validation, settings, generator, stopped)


def _draw(*numbers: int) -> torch.Generator:
    seed = np.random.SeedSequence([number + 1 for number in numbers]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed >> np.uint64(1)))


class TeachingSettings(Section, frozen=True):
    """The settings of the cloud's learning; a preset has values for a kind. Raises ConfigError.

    bootstrap: stage 1. compress: large to small, with the large model's probabilities. cloud_update: stage 4.
    compress_update_epochs: of compressing an updated teacher, starting from its former small model.
    rows: the most examples that the cloud learns from; update_rows: the most of them with its pupils; compared_rows:
    the most for comparing pupils. keep: the share of the pupils that teach, 1 for all. least_score: the least score of
    a teaching pupil, as a share of the base model's score on the cloud's examples.
    groups: group the pupils; group_counts: the K that are tried. pretrain_steps: of the embedding of places.
    """

    bootstrap: DistillSettings = DistillSettings(epochs=15, learning_rate=0.002, patience=4)
    compress: DistillSettings = DistillSettings(epochs=15, learning_rate=0.002, label_weight=0.2, patience=0)
    cloud_update: DistillSettings = DistillSettings(epochs=3, learning_rate=0.001, patience=0)
    compress_update_epochs: int = 5
    rows: int = 3000
    update_rows: int = 1500
    compared_rows: int = 400
    keep: float = 1.0
    least_score: float = 0.0
    groups: bool = True
    group_counts: tuple[int, ...] = GROUP_COUNTS
    pretrain_steps: int = 100

    def __post_init__(self) -> None:
        for key in ("rows", "update_rows", "compared_rows", "compress_update_epochs"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        _require(0 < self.keep <= 1, "keep", self.keep, "above 0 and at most 1")
        _require(0 <= self.least_score <= 1, "least_score", self.least_score, "from 0 to 1")
        _require(self.pretrain_steps >= 0, "pretrain_steps", self.pretrain_steps, "at least 0")
        _require(min(self.group_counts, default=2) >= 2, "group_counts", list(self.group_counts), "numbers from 2 on")


class Preset(Section, frozen=True):
    """teaching: the cloud. client: a device's update (stage 3), in the mode called `update` (`UPDATE_MODES`)."""

    teaching: TeachingSettings
    client: DistillSettings
    update: str


def suggest(kind: ModelKind, preset: str) -> Preset:
    """Return the settings of this name for this kind. Raises ConfigError that names the valid ones."""
    presets = PLACES_PRESETS if isinstance(kind, RecurrentKind) else WINDOWS_PRESETS
    if preset not in presets:
        raise ConfigError(f"cloud.preset is {preset[:40]!r}: for this data expected one of {', '.join(presets)}")
    return presets[preset]


def _require(holds: bool, key: str, value: object, valid: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}: it must be {valid}")


# The presets stand below the checks that they have to pass.
# 4.2: Adam 0.1, batches of 32, lambda 0.5, an end after 20 epochs without a better validation loss. The cap is ours,
# and so is the use of all of the cloud's data in stage 4.
_PAPER = DistillSettings(label_weight=0.5, learning_rate=0.1, batch_size=32, epochs=500, patience=20)
_EVERYTHING = 1_000_000
PLACES_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "measured": Preset(
            TeachingSettings(
                bootstrap=DistillSettings(epochs=20, batch_size=64, learning_rate=0.005, patience=4),
                compress=DistillSettings(epochs=40, batch_size=64, learning_rate=0.01, patience=8),
                cloud_update=DistillSettings(epochs=5, batch_size=64, learning_rate=0.002, patience=2),
                compress_update_epochs=12,
                update_rows=3000,
            ),
            DistillSettings(epochs=60, batch_size=32, learning_rate=0.02, patience=20),
            "customised-whole",
        ),
        "paper": Preset(
            TeachingSettings(
                bootstrap=_PAPER,
                compress=_PAPER,
                cloud_update=_PAPER,
                compress_update_epochs=_PAPER.epochs,
                rows=_EVERYTHING,
                update_rows=_EVERYTHING,
            ),
            _PAPER,
            "customisation",
        ),
    }
)
WINDOWS_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # In a mesh of devices with few activities each device knows less than the cloud for many rounds.
        "measured": Preset(
            TeachingSettings(least_score=0.8), DistillSettings(epochs=5, learning_rate=0.001, patience=0), "same-whole"
        ),
    }
)
