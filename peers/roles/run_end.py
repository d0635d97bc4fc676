"""When a run ends by itself (`mdl peer --until`), as the figures of its rounds tell. Pure.

Counting goes on under another agent: each round's opening tells the course up to then, and what a device knows of the
run when it takes office is `Taken`.
"""

from __future__ import annotations

import logging
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from mdl.bounds import MAX_SECONDS
from mdl.ends import EndSection
from mdl.protocol.counts import Course, show_score
from mdl.protocol.status_messages import RoundSummary

logger = logging.getLogger(__name__)


class Taken(Struct, frozen=True):
    """What a device knows of the run when it takes office.

    goal: the last round, 0: open. course: None if the run does not end by itself. opened_at: when the last round was
    opened, by this device's clock. ended_by: why it has ended by itself, in words; "": it has not.
    """

    goal: int = 0
    course: Course | None = None
    opened_at: float = -inf
    ended_by: str = ""


UNKNOWN = Taken()


class Ending:
    """See the module. reason: why the run ends, in words; "": it does not. course: None if it cannot by itself."""

    def __init__(self, settings: EndSection, course: Course | None, now: float) -> None:
        self.reason = ""
        self.course = (course or Course()) if settings else None
        self._settings = settings
        self._began_at = now - course.elapsed_s if course else None
        self._last_round = 0
        self._reached = ""

    @property
    def waits_for_tests(self) -> bool:
        """Whether the next round begins only when it is known how good the model of the last one is."""
        return bool(self._settings.goals or self._settings.no_better)

    def begin(self, now: float) -> None:
        """A round is opened."""
        self._began_at = now if self._began_at is None else self._began_at
        if self.course:
            self.course = replace(self.course, elapsed_s=min(now - self._began_at, MAX_SECONDS))

    def hear(self, summary: RoundSummary) -> None:
        """A round is closed, and tested by all who test."""
        self._last_round = summary.round
        self._reached = _tell_reached(summary, self._settings.goals)
        if self.course and _is_better(summary, self.course):
            found = {"best_round": summary.round, "digest": summary.digest, "targets": summary.targets}
            self.course = replace(self.course, score=summary.score, loss=summary.loss, **found)

    def is_over(self, now: float) -> bool:
        """Between two rounds."""
        if not self.reason and (why := self._why(now)):
            self.reason = why
            logger.info("the run ends: %s", why)
        return bool(self.reason)

    def _why(self, now: float) -> str:
        settings, course = self._settings, self.course
        if course is None:
            return ""
        if self._reached:
            return self._reached
        rounds = self._last_round - course.best_round
        if settings.no_better and course.best_round and rounds >= settings.no_better:
            return f"no better model in {rounds} rounds: round {course.best_round} has {tell_best(course)}"
        if settings.minutes and self._began_at is not None and now - self._began_at >= 60 * settings.minutes:
            return f"{settings.minutes:g} minutes are over"
        return ""


def tell_best(course: Course) -> str:
    """ "accuracy 93.1%", "R² 0.812" or "loss 0.412": by what the best model is the best."""
    return f"loss {course.loss:.4g}" if course.score is None else show_score(course.targets, course.score)


def _tell_reached(summary: RoundSummary, goals: dict[str, float]) -> str:
    """ "round 7 has R² 0.812, at least 0.8 was wanted": the first goal that the round's model reaches; else ""."""
    found = _measures(summary)
    for name, goal in goals.items():
        title, value = found.get(name, ("", None))
        if value is not None and (value <= goal if name == "mae" else value >= goal):
            shown = [f"{each:.1%}" if name in ("accuracy", "f1") else f"{each:.4g}" for each in (value, goal)]
            bound = "at most" if name == "mae" else "at least"
            return f"round {summary.round} has {title} {shown[0]}, {bound} {shown[1]} was wanted"
    return ""


def _measures(summary: RoundSummary) -> dict[str, tuple[str, float | None]]:
    """What they are called and come to, by the names of `GOALS`. mae: the largest of the numbers'."""
    if summary.fits:
        return {"r2": ("R²", summary.score), "mae": ("MAE", max(fit.mae for fit in summary.fits))}
    if summary.labelling:
        return {"f1": ("micro F1", summary.labelling.micro_f1)}
    return {"accuracy": ("accuracy", summary.accuracy), "f1": ("macro F1", summary.macro_f1)}


def _is_better(summary: RoundSummary, course: Course) -> bool:
    """By the measure of what is tested; by the training loss only as long as nobody tests."""
    if summary.score is not None:
        return course.score is None or summary.score > course.score
    if summary.loss is None or course.score is not None:
        return False
    return course.loss is None or summary.loss < course.loss
