"""The quality of a model on test windows, as counts and sums that add up over devices."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import (
    MAX_CLASSES,
    MAX_CONFUSED,
    MAX_LOSS,
    MAX_MEMBERS,
    MAX_NUMBERS,
    Count,
    HexDigest,
    Loss,
    PeerId,
    Round,
    Seconds,
    Share,
    within,
)
from mdl.errors import RemoteProtocolError
from mdl.task import Targets

Counts: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=MAX_CLASSES)]
# Windows by true class (rows) and predicted class (columns); () where there are more than MAX_CONFUSED classes.
_Row: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=MAX_CONFUSED)]
Confusion: TypeAlias = Annotated[tuple[_Row, ...], Meta(max_length=MAX_CONFUSED)]
# Largest sum of errors or of numbers, over all windows of a device; beyond, a model has diverged.
MAX_SUM = 1e24
_Sum: TypeAlias = Annotated[float, Meta(ge=0.0, le=MAX_SUM)]
# R-squared is 1 at best, and without an end below.
Score: TypeAlias = Annotated[float, Meta(ge=-MAX_LOSS, le=1.0)]
# The largest mean loss that is told, of a million windows.
_LOSSES = 1e6 * MAX_LOSS


# Measures by which models are compared. For numbers: the mean over them of the explained share of their variance.
MEASURES: dict[Targets, str] = {"classes": "accuracy", "numbers": "R²", "labels": "micro F1"}
# The same measures, as `--until` and `ModelJudgement` name them.
FIGURES: dict[Targets, str] = {"classes": "accuracy", "numbers": "r2", "labels": "f1"}


class Errors(msgspec.Struct, frozen=True):
    """The errors of one number over all windows; adding two gives those of both.

    squared, absolute: summed errors. total, squares: summed numbers, and their squares.
    """

    squared: _Sum
    absolute: _Sum
    total: Annotated[float, Meta(ge=-MAX_SUM, le=MAX_SUM)]
    squares: _Sum

    def __add__(self, other: Errors) -> Errors:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Errors(*(within(mine + theirs, -MAX_SUM, MAX_SUM) for mine, theirs in pairs))


class Fit(msgspec.Struct, frozen=True):
    """The fit of one predicted number. rmse, mae: root of the mean squared, and mean absolute error, in its unit.

    r2: the share of its variance that is explained; None if it is constant.
    """

    rmse: Annotated[float, Meta(ge=0.0, le=MAX_SUM)]
    mae: Annotated[float, Meta(ge=0.0, le=MAX_SUM)]
    r2: Score | None


class Labelling(msgspec.Struct, frozen=True):
    """The quality of found labels. micro_f1: over all labels and windows; exact: share of windows with all right."""

    micro_f1: Share
    exact: Share


class Evaluation(msgspec.Struct, frozen=True):
    """Per-class counts over n windows; adding two evaluations gives the evaluation of both devices' windows.

    confusion: () if it is not told: by an older version, or with too many classes; what is told adds up all the same.
    targets: the kind that is counted. Labels are counted as classes, and in `exact` the windows with all labels right;
        numbers have `errors`.

    Adding raises RemoteProtocolError if the other counts other classes, or something else.
    """

    true_positive: Counts
    false_positive: Counts
    false_negative: Counts
    loss_sum: Annotated[float, Meta(ge=-_LOSSES, le=_LOSSES)]
    n: Count
    confusion: Confusion = ()
    targets: Targets = "classes"
    exact: Count = 0
    errors: Annotated[tuple[Errors, ...], Meta(max_length=MAX_NUMBERS)] = ()

    def __add__(self, other: Evaluation) -> Evaluation:
        if (self.targets, len(self.errors)) != (other.targets, len(other.errors)):
            raise RemoteProtocolError(f"evaluations of {self.targets} and {other.targets} cannot be added up")
        return Evaluation(
            _add(self.true_positive, other.true_positive),
            _add(self.false_positive, other.false_positive),
            _add(self.false_negative, other.false_negative),
            self.loss_sum + other.loss_sum,
            self.n + other.n,
            add_confusions(self.confusion, other.confusion),
            self.targets,
            self.exact + other.exact,
            tuple(mine + theirs for mine, theirs in zip(self.errors, other.errors, strict=True)),
        )

    @property
    def score(self) -> float | None:
        """The measure that `MEASURES` names, 1 at best; None if it is not known."""
        if self.targets == "classes":
            return self.accuracy if self.n else None
        if self.targets == "labels":
            return self.labelling.micro_f1 if self.n else None
        known = [fit.r2 for fit in self.fits if fit.r2 is not None]
        return sum(known) / len(known) if known else None

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The fit of each number; none without windows."""
        return tuple(_fit(errors, self.n) for errors in self.errors) if self.n else ()

    @property
    def labelling(self) -> Labelling:
        """The quality of found labels; 0 without windows."""
        hits = sum(self.true_positive)
        wrong = sum(self.false_positive) + sum(self.false_negative)
        return Labelling(2 * hits / (2 * hits + wrong) if hits else 0.0, min(1.0, self.exact / max(self.n, 1)))

    @property
    def accuracy(self) -> float:
        """Share of windows in which the right class was found; 0 without windows."""
        return sum(self.true_positive) / self.n if self.n else 0.0

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that occur as truth or as prediction; 0 without windows."""
        scores = [
            2 * hit / (2 * hit + wrong + missed)
            for hit, wrong, missed in zip(self.true_positive, self.false_positive, self.false_negative, strict=True)
            if hit + wrong + missed
        ]
        return sum(scores) / len(scores) if scores else 0.0

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats, of numbers the mean squared error by their spread; 0 without windows."""
        return self.loss_sum / self.n if self.n else 0.0


def show_score(targets: Targets, score: float) -> str:
    """Return "accuracy 93.1%", "micro F1 81.0%" or "R² 0.812"."""
    return f"{MEASURES[targets]} {show_value(targets, score)}"


def show_value(targets: Targets, score: float) -> str:
    """Return the score without its name."""
    return f"{score:.3f}" if targets == "numbers" else f"{score:.1%}"


def is_sound(evaluation: Evaluation) -> bool:
    """Return True if its counts may be those of so many windows: all that is told of them is a share then."""
    hits, n = evaluation.true_positive, evaluation.n
    if len(evaluation.errors) != (len(hits) if evaluation.targets == "numbers" else 0):
        return False
    return sum(hits) <= n if evaluation.targets == "classes" else evaluation.exact <= n


def no_evaluation(classes: int) -> Evaluation:
    """Return the neutral element, to start a sum from."""
    zeros = (0,) * classes
    return Evaluation(zeros, zeros, zeros, 0.0, 0)


def add_confusions(a: Confusion, b: Confusion) -> Confusion:
    """Add cell by cell; () changes nothing. Raises RemoteProtocolError over other classes."""
    if not a or not b:
        return a or b
    if len(a) != len(b):
        raise RemoteProtocolError(f"confusions of {len(a)} and {len(b)} classes cannot be added up")
    return tuple(_add(left, right) for left, right in zip(a, b, strict=True))


def is_confusion_of(evaluation: Evaluation) -> bool:
    """Return True if its matrix is square, over its classes, and agrees with its other counts."""
    confusion, hits = evaluation.confusion, evaluation.true_positive
    if {len(row) for row in confusion} != {len(confusion)} or len(confusion) != len(hits):
        return False
    truths = tuple(sum(row) for row in confusion)
    guesses = tuple(sum(column) for column in zip(*confusion, strict=True))
    return (
        sum(truths) == evaluation.n
        and tuple(row[at] for at, row in enumerate(confusion)) == hits
        and truths == _add(hits, evaluation.false_negative)
        and guesses == _add(hits, evaluation.false_positive)
    )


def _fit(errors: Errors, n: int) -> Fit:
    spread = errors.squares - errors.total**2 / n
    # A constant leaves only rounding here.
    known = spread > 1e-9 * errors.squares
    r2 = max(1 - errors.squared / spread, -MAX_LOSS) if known else None
    return Fit(min(math.sqrt(errors.squared / n), MAX_SUM), errors.absolute / n, r2)


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) != len(b):
        raise RemoteProtocolError(f"evaluations over {len(a)} and {len(b)} classes cannot be added up")
    return tuple(left + right for left, right in zip(a, b, strict=True))


class ModelJudgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device's judgement of a round's model; fields that it does not tell are None.

    peer_id: the device.
    windows: that it tested, which its figures weigh; 1 for a training loss.
    accuracy: of classes.
    f1: macro F1 of classes, micro F1 of labels.
    r2: mean R² of numbers.
    mae: of numbers, the largest of their mean absolute errors.
    loss: of its training, in nats, where nobody tests.
    """

    peer_id: PeerId
    windows: Count
    accuracy: Share | None = None
    f1: Share | None = None
    r2: Score | None = None
    mae: _Sum | None = None
    loss: Loss | None = None

    def figure(self, name: str) -> float | None:
        """Return the field of this name."""
        value: float | None = getattr(self, name)
        return value


Judgements: TypeAlias = Annotated[tuple[ModelJudgement, ...], Meta(max_length=MAX_MEMBERS)]


def judge(peer_id: str, evaluation: Evaluation) -> ModelJudgement:
    """Return one device's judgement of a model by its counts."""
    n, score = evaluation.n, evaluation.score
    if evaluation.targets == "numbers":
        return ModelJudgement(peer_id, n, r2=score, mae=max((fit.mae for fit in evaluation.fits), default=None))
    if evaluation.targets == "labels":
        return ModelJudgement(peer_id, n, f1=score)
    return ModelJudgement(peer_id, n, accuracy=score, f1=evaluation.macro_f1)


def is_better(new: Judgements, old: Judgements, name: str) -> bool:
    """Return True if a model has the better figure of this name, over the windows of the devices that judged both."""
    before = {each.peer_id: value for each in old if (value := each.figure(name)) is not None}
    pairs = [
        (each.windows * value, each.windows * before[each.peer_id])
        for each in new
        if each.peer_id in before and (value := each.figure(name)) is not None
    ]
    mine, other = sum(value for value, _ in pairs), sum(value for _, value in pairs)
    return mine < other if name == "loss" else mine > other


class Course(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a run that ends by itself (`mdl peer --until`): another agent goes on counting from it.

    elapsed_s: since its first round was opened.
    best_round: the round of the best model so far; 0: none.
    score: of that model, by the measure of its targets; None: nobody tests.
    loss: mean training loss of that round, in nats; None: none was told.
    digest: of w(best_round), in hexadecimal.
    targets: the kind of test of that model.
    best: the devices' judgements of that model.
    last: each device's judgement of the last model that it judged.
    """

    elapsed_s: Seconds = 0.0
    best_round: Round = 0
    score: Score | None = None
    loss: Loss | None = None
    digest: HexDigest = ""
    targets: Targets = "classes"
    best: Judgements = ()
    last: Judgements = ()

    @property
    def figure(self) -> str:
        """The field of `ModelJudgement` by which the best model is the best."""
        return "loss" if self.score is None else FIGURES[self.targets]
