"""The end of a run by itself (`mdl peer --until`), and the limits at which one device leaves. Pure.

A run ends by the figures of its rounds. Counting goes on under another agent: each round's opening tells the course up
to then. `RunKnowledge` is a device's knowledge of the run when it takes office.

`RoundLimit` holds `mdl peer --rounds N`, and `--max-battery-share`. A leader with a limit names the goal to all, and
sends everybody home there (`peers/roles/agent/agent.py`). This is for a device in a mesh that goes on without end, or
for longer than this device wants to.
"""

from __future__ import annotations

import logging
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from mdl.bounds import MAX_MEMBERS, MAX_SECONDS, first_few
from mdl.config import EndSection
from mdl.protocol.counts import FIGURES, Course, Judgements, is_better, show_score
from mdl.protocol.status_messages import RoundSummary

logger = logging.getLogger(__name__)


class RoundLimit:
    """See the module. rounds: 0 is no limit. round_id: of the device at its start. is_over: it has left."""

    def __init__(self, rounds: int, round_id: int) -> None:
        self._left = rounds
        self._round_id = round_id
        self._has_limit = rounds > 0
        self.is_over = False

    def stays_for(self, round_id: int) -> bool:
        """Return True if the device is there for that round, if it takes part in all rounds until then."""
        return not self._has_limit or round_id <= self._round_id + self._left

    def is_reached(self, round_id: int, goal: int) -> bool:
        """Return True once, if the device, at round_id now, is to leave. goal: the mesh's last round, 0 if open.

        Several rounds at once were caught up with: others have done them, so they do not count.
        """
        if not self._has_limit or self.is_over or round_id == self._round_id:
            return False
        self._left -= round_id == self._round_id + 1
        self._round_id = round_id
        if self._left > 0 or round_id == goal:
            return False
        self.is_over = True
        return True


class Leaving:
    """Both limits of one device. rounds, round_id: as of RoundLimit. is_over: it leaves, or has left."""

    def __init__(self, rounds: int, round_id: int) -> None:
        self._rounds = rounds
        self._limit = RoundLimit(rounds, round_id)
        self._spent_at: int | None = None
        self.is_over = False

    def stays_for(self, round_id: int) -> bool:
        """Return True if the device is there for that round, as far as is known: it trains nothing for a later one."""
        return self._limit.stays_for(round_id) and (self._spent_at is None or round_id <= self._spent_at + 1)

    def why(self, round_id: int, goal: int, is_in_round: bool, is_spent: bool, gone: str = "") -> str:
        """Return why it is to leave now, once; else "". is_spent: it has used the charge that its owner offers.

        gone: why it may not train with its windows any more: then at once.
        With its charge spent, it first finishes an open round: its load reaches another device, and it receives none
        any more.
        """
        if self.is_over:
            return ""
        if gone:
            self.is_over = True
            return gone
        if self._limit.is_reached(round_id, goal):
            self.is_over = True
            return f"{self._rounds} rounds are done"
        if is_spent and self._spent_at is None:
            self._spent_at = round_id
        if self._spent_at is None or (is_in_round and round_id == self._spent_at):
            return ""
        self.is_over = True
        return "the battery that was offered is used (--max-battery-share): this device leaves the mesh"


class RunKnowledge(Struct, frozen=True):
    """The knowledge that a device has of the run when it takes office.

    goal: the last round, 0: open. course: None if the run does not end by itself. opened_at: time at which the last
    round was opened, by this device's clock. ended_by: why it has ended by itself, in words; "": it has not.
    """

    goal: int = 0
    course: Course | None = None
    opened_at: float = -inf
    ended_by: str = ""


UNKNOWN = RunKnowledge()


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
