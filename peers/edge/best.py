"""The best model of a run that ends by itself (`--until`), kept beside the last one.

Which round's it is, the agent tells when that round is tested: a round or two later. By then its model is still one of
the two states in the file cache, where it is taken from; so this keeps no copy of any model in memory.
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
from mdl.peers.roles.run_end import UNKNOWN, Taken, tell_best
from mdl.protocol.counts import Course, is_better

if TYPE_CHECKING:
    from mdl.peers.roles.peer import Peer

logger = logging.getLogger(__name__)

BEST = "best.safetensors"
_KEY = "best"


class BestModel:
    """See the module. course: of the run, as far as it is known now. write: a model, with what its metadata are to say.

    Both are called in the thread that writes files. round_id: of the model that is kept; 0: none is.
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
        self._has_written = False  # what lies there was kept by an earlier start

    @property
    def round_id(self) -> int:
        kept = read_best(self._path)
        return kept.best_round if kept else 0

    def look(self) -> None:
        """Before the file cache changes, and at the end: whether another model is the best by now."""
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
    """What the file says of the model in it; None if there is none."""
    try:
        return msgspec.json.decode(read_metadata(path).get(_KEY, ""), type=Course)
    except UNREADABLE:
        return None


def _is_better(course: Course, known: Course) -> bool:
    """Return True if the run's best model replaces one that an earlier start has kept.

    That one stays only if all devices that judged the new one had judged it, and found it as good or better.
    """
    if course.score is None and known.score is not None:
        return False
    figure = course.figure
    tried = {each.peer_id for each in known.best if each.figure(figure) is not None}
    return not {each.peer_id for each in course.best} <= tried or is_better(course.best, known.best, figure)


def known_by(machine: Peer) -> Taken:
    """What a node knows of the run: by itself if it leads. From any thread: it may step down meanwhile."""
    if agent := machine.agent:
        return Taken(course=agent.ending.course, ended_by=agent.ending.reason)
    return machine.trainer.taken if machine.trainer else UNKNOWN
