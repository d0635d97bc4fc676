"""The end of a run by itself (`mdl peer --until`), by the figures of its rounds. Pure.

Counting goes on under another agent: each round's opening tells the course up to then. `Taken` is a device's knowledge
of the run when it takes office.
"""

from __future__ import annotations

import logging
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from mdl.bounds import MAX_MEMBERS, MAX_SECONDS, first_few
from mdl.ends import EndSection
from mdl.protocol.counts import FIGURES, Course, Judgements, is_better, show_score
from mdl.protocol.status_messages import RoundSummary

logger = logging.getLogger(__name__)


class Taken(Struct, frozen=True):
    """The knowledge that a device has of the run when it takes office.

    goal: the last round, 0: open. course: None if the run does not end by itself. opened_at: time at which the last
    round was opened, by this device's clock. ended_by: why it has ended by itself, in words; "": it has not.
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
        """True if the next round begins only when it is known how good the model of the last one is."""
        return bool(self._settings.goals or self._settings.no_better)

    def begin(self, now: float) -> None:
        """Note that a round is opened."""
        self._began_at = now if self._began_at is None else self._began_at
        if self.course:
            self.course = replace(self.course, elapsed_s=min(now - self._began_at, MAX_SECONDS))

    def hear(self, summary: RoundSummary, devices: Judgements) -> None:
        """Take in a round that is closed, and tested by all that test. devices: their judgements of its model.

        Its model is the best if it is better than the best one over the devices that have judged both. It also is if a
        device has judged for the first time: the best one so far was never tried there.
        """
        self._last_round = summary.round
        if self.course is None:
            return
        course, figure = self.course, "loss" if summary.score is None else FIGURES[summary.targets]
        away = _without(course.last, devices)
        self._reached = self._tell_reached(summary, devices, away)
        self.course = replace(course, last=(*away, *devices)[-MAX_MEMBERS:])
        if figure == "loss" and course.score is not None:
            return  # the last test stands as long as nobody tests
        known = {each.peer_id for each in course.last if each.figure(figure) is not None}
        is_first = any(each.peer_id not in known and each.figure(figure) is not None for each in devices)
        if is_first or is_better(devices, course.best, figure):
            found = {"best_round": summary.round, "digest": summary.digest, "targets": summary.targets}
            self.course = replace(self.course, score=summary.score, loss=summary.loss, best=devices, **found)

    def is_over(self, now: float) -> bool:
        """Return True if the run is to end; asked between two rounds."""
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

    def _tell_reached(self, summary: RoundSummary, devices: Judgements, away: Judgements) -> str:
        """Return "round 7 has R² 0.812, at least 0.8 was wanted" for the first goal that the model reaches; else "".

        away: devices that are not here count with their last words: a lost device ends no run.
        """
        found = _measures(summary)
        for name, goal in self._settings.goals.items():
            title, here = found.get(name, ("", None))
            if here is None or not _reaches(name, here, goal):
                continue
            value, bound = _over_all(name, here, devices, away), "at most" if name == "mae" else "at least"
            told = f"round {summary.round} has {title} {_show(name, value)}"
            told += f", with what {first_few([each.peer_id for each in away])} told last" * bool(away)
            if _reaches(name, value, goal):
                return f"{told}, {bound} {_show(name, goal)} was wanted"
            logger.info("%s, and %s without: the run goes on", told, _show(name, here))
        return ""


def _without(all_: Judgements, devices: Judgements) -> Judgements:
    """Return the judgements of other devices."""
    names = {each.peer_id for each in devices}
    return tuple(each for each in all_ if each.peer_id not in names)


def _over_all(name: str, here: float, devices: Judgements, away: Judgements) -> float:
    """Return a figure over the windows of all these. here: over those of `devices`."""
    windows = sum(each.windows for each in devices)
    known = [(value, each.windows) for each in away if (value := each.figure(name)) is not None]
    total = here * windows + sum(value * count for value, count in known)
    return total / (windows + sum(count for _, count in known)) if known and windows else here


def tell_best(course: Course) -> str:
    """Return the figure by which the best model is the best: "accuracy 93.1%", "R² 0.812" or "loss 0.412"."""
    return f"loss {course.loss:.4g}" if course.score is None else show_score(course.targets, course.score)


def _reaches(name: str, value: float, goal: float) -> bool:
    return value <= goal if name == "mae" else value >= goal


def _show(name: str, value: float) -> str:
    return f"{value:.1%}" if name in ("accuracy", "f1") else f"{value:.4g}"


def _measures(summary: RoundSummary) -> dict[str, tuple[str, float | None]]:
    """Return title and value of each measure, by the names of `GOALS`. mae: the largest of the numbers'."""
    if summary.fits:
        return {"r2": ("R²", summary.score), "mae": ("MAE", max(fit.mae for fit in summary.fits))}
    if summary.labelling:
        return {"f1": ("micro F1", summary.labelling.micro_f1)}
    return {"accuracy": ("accuracy", summary.accuracy), "f1": ("macro F1", summary.macro_f1)}
