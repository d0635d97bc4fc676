"""The best model of a run that ends by itself (`--until`), kept beside the last one.

The agent names the best round once it is tested, a round or two later. By then its model is still one of the two states
in the file cache, and is taken from there: this module keeps no copy of a model in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mdl.bounds import UNREADABLE
from mdl.errors import MdlError
from mdl.files.checkpoint import CachedModel, ModelCache, read_metadata
from mdl.peers.roles.run_end import UNKNOWN, RunKnowledge, tell_best
from mdl.protocol.counts import Course, is_better

if TYPE_CHECKING:
    from mdl.peers.roles.peer import Peer

logger = logging.getLogger(__name__)

BEST = "best.safetensors"
_KEY = "best"


class BestModel:
    """Keeps the best model; see the module. course: returns the course of the run as far as it is known now.

    write: writes a model with the given metadata. The thread that writes files calls both. round_id: round of the kept
    model, 0 if there is none.
    """

    def __init__(
        self,
        directory: Path,
        cache: ModelCache,
        course: Callable[[], Course | None],
        write: Callable[[Path, CachedModel, dict[str, str]], None],
    ) -> None:
        self._path, self._cache, self._course, self._write = directory / BEST, cache, course, write
        self._seen = ""
        self._has_written = False  # an earlier start may have kept a best model

    @property
    def round_id(self) -> int:
        kept = read_best(self._path)
        return kept.best_round if kept else 0

    def look(self) -> None:
        """Keep another model if it is the best by now. Call this before the file cache changes, and at the end."""
        course = self._course()
        if course is None or not course.digest or course.digest == self._seen:
            return
        self._seen = course.digest
        if not self._has_written and (known := read_best(self._path)) and not _is_better(course, known):
            return
        if (model := self._cache.find(course.digest)) is None:
            return
        try:
            self._write(self._path, model, {_KEY: msgspec.json.encode(course).decode()})
        except (MdlError, OSError) as error:
            logger.warning("the best model, of round %d, is not kept: %s", course.best_round, error)
            return
        self._has_written = True
        logger.info("round %d is the best so far: %s", course.best_round, tell_best(course))


def read_best(path: Path) -> Course | None:
    """Return what the file says of the model in it; None if there is none."""
    try:
        return msgspec.json.decode(read_metadata(path).get(_KEY, ""), type=Course)
    except UNREADABLE:
        return None


def _is_better(course: Course, known: Course) -> bool:
    """Return True if the run's best model replaces the one that an earlier start has kept.

    The kept one stays only if every device that judged the new one had judged it too, and it was as good or better.
    """
    if course.score is None and known.score is not None:
        return False
    figure = course.figure
    tried = {each.peer_id for each in known.best if each.figure(figure) is not None}
    return not {each.peer_id for each in course.best} <= tried or is_better(course.best, known.best, figure)


def known_by(machine: Peer) -> RunKnowledge:
    """Return what a node knows of the run; the agent's knowledge if it leads.

    May be called from any thread: the node may step down meanwhile.
    """
    if agent := machine.agent:
        return RunKnowledge(course=agent.ending.course, ended_by=agent.ending.reason)
    return machine.trainer.taken if machine.trainer else UNKNOWN
