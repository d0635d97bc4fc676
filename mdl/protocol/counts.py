"""How good a model is on test windows, as counts that add up over devices."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import MAX_CLASSES, MAX_CONFUSED, MAX_LOSS, Count, HexDigest, Loss, Round, Seconds, Share
from mdl.errors import RemoteProtocolError

Counts: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=MAX_CLASSES)]
# Windows by true class (rows) and predicted class (columns); () where there are more than MAX_CONFUSED classes.
_Row: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=MAX_CONFUSED)]
Confusion: TypeAlias = Annotated[tuple[_Row, ...], Meta(max_length=MAX_CONFUSED)]
# The largest mean loss that is told, of a million windows.
_LOSSES = 1e6 * MAX_LOSS


class Evaluation(msgspec.Struct, frozen=True):
    """Per-class counts over n windows; adding two evaluations gives the evaluation of both devices' windows.

    confusion: () is not told: by an older version, or with too many classes; what is told adds up all the same.

    Adding raises RemoteProtocolError when the other counts other classes.
    """

    true_positive: Counts
    false_positive: Counts
    false_negative: Counts
    loss_sum: Annotated[float, Meta(ge=-_LOSSES, le=_LOSSES)]
    n: Count
    confusion: Confusion = ()

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(
            _add(self.true_positive, other.true_positive),
            _add(self.false_positive, other.false_positive),
            _add(self.false_negative, other.false_negative),
            self.loss_sum + other.loss_sum,
            self.n + other.n,
            add_confusions(self.confusion, other.confusion),
        )

    @property
    def accuracy(self) -> float:
        """Share of windows whose class was found; 0 without windows."""
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
        """Mean cross-entropy in nats; 0 without windows."""
        return self.loss_sum / self.n if self.n else 0.0


def no_evaluation(classes: int) -> Evaluation:
    """The neutral element: what to start a sum from."""
    zeros = (0,) * classes
    return Evaluation(zeros, zeros, zeros, 0.0, 0)


def add_confusions(a: Confusion, b: Confusion) -> Confusion:
    """Cell by cell; () changes nothing. Raises RemoteProtocolError over other classes."""
    if not a or not b:
        return a or b
    if len(a) != len(b):
        raise RemoteProtocolError(f"confusions of {len(a)} and {len(b)} classes cannot be added up")
    return tuple(_add(left, right) for left, right in zip(a, b, strict=True))


def is_confusion_of(evaluation: Evaluation) -> bool:
    """Whether its matrix is square, over its classes, and says what its other counts say."""
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


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) != len(b):
        raise RemoteProtocolError(f"evaluations over {len(a)} and {len(b)} classes cannot be added up")
    return tuple(left + right for left, right in zip(a, b, strict=True))


class Course(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a run has come that ends by itself (`mdl peer --until`): another agent goes on counting from it.

    elapsed_s: since its first round was opened.
    best_round: whose model is the best so far; 0: none is.
    accuracy: of that model; None: nobody tests.
    loss: mean training loss of that round, in nats; None: none was told.
    digest: of w(best_round), in hexadecimal.
    """

    elapsed_s: Seconds = 0.0
    best_round: Round = 0
    accuracy: Share | None = None
    loss: Loss | None = None
    digest: HexDigest = ""
