"""A device that gets recommendations: its log stays here, one vector goes up (DCCL's MetaPatch).

lesson.safetensors    the cloud's last lesson
device.json           the user, the vector, and the version it was learned with
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch
from torch import Tensor

from mdl.bounds import Count, HexDigest
from mdl.errors import ConfigError, DamagedError, DataError, RemoteProtocolError, TrainingCancelledError
from mdl.files.checkpoint import read_packed, write_packed
from mdl.files.kept import read_kept, read_sealed, with_previous, write_kept
from mdl.peers.edge.resume import set_aside
from mdl.protocol.machine import Event, StudyLesson, UpdateReady
from mdl.protocol.vocabulary import Packed
from mdl.reading import decode_json
from mdl.recommend.device_step import VectorSettings
from mdl.recommend.interactions import Interactions, keep_users
from mdl.recommend.lesson import (
    LARGEST_ENTRY,
    LARGEST_LESSON_BYTES,
    RecommenderLesson,
    Suggestion,
    in_numbers_of,
    learn_vector,
    name_basis,
    pack_vector,
    read_lesson,
    suggest,
)
from mdl.recommend.readers import read_interactions, read_titles

logger = logging.getLogger("mdl")

LESSON, RECORD = "lesson.safetensors", "device.json"
_LARGEST_RECORD_BYTES = 64 << 10
# A user's name goes into messages, log lines and file names (mdl/bounds.py).
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_Entry = Annotated[float, msgspec.Meta(ge=-LARGEST_ENTRY, le=LARGEST_ENTRY)]


class RecommenderRecord(msgspec.Struct, frozen=True):
    """device.json. vector: as it was learned last; version: of the lesson that it was learned with, 0 before any.

    basis: of that lesson; "" in files of older versions.
    """

    user: str
    data: str
    version: Count = 0
    vector: Annotated[tuple[_Entry, ...], msgspec.Meta(max_length=160)] = ()
    basis: HexDigest = ""


class Recommendee:
    """Learns a user's vector; see the module. held: asked before a study, waits as long as the device may not work.

    Raises ConfigError or DataError. own: this user's log, in its own numbers. update_s: of the processor, by study.
    """

    def __init__(
        self, spec: str, user: str, out: Path, seed: int, fresh: bool = False, held: Callable[[], bool] = lambda: False
    ) -> None:
        if fresh:
            set_aside(out, with_previous(LESSON, RECORD))
        self.user, self.own = read_own(spec, user)
        self.upload_bytes = 0
        self.update_s: list[float] = []
        self._out, self._seed, self._held = out, seed, held
        self.record = _find_record(out) or RecommenderRecord(self.user, spec)
        if self.record.user != self.user:
            raise ConfigError(f"{out} is the directory of user {self.record.user!r}; give another --out, or --fresh")
        self.record = msgspec.structs.replace(self.record, data=spec)

    def study(self, effect: StudyLesson) -> Event:
        """Learn a vector with this lesson, keep both, and return the vector for the cloud."""
        if self._held():
            raise TrainingCancelledError("stopped")
        started = time.process_time()
        try:
            lesson = read_lesson(effect.model)
        except RemoteProtocolError as error:
            raise DataError(f"the cloud's lesson {effect.lesson.version} cannot be used: {error}") from None
        own = in_numbers_of(lesson, self.own)
        former = np.array(self.record.vector, np.float32) if self.record.vector else None
        vector = learn_vector(lesson, own, former, VectorSettings(), self._seed)
        write_packed(self._out / LESSON, effect.model)
        told, basis = tuple(float(entry) for entry in vector), name_basis(lesson.cloud.basis)
        self.record = msgspec.structs.replace(
            self.record, version=effect.lesson.version, vector=told, basis=basis.hex()
        )
        write_kept(self._out / RECORD, msgspec.json.encode(self.record))
        packed = pack_vector(vector, basis)
        self.update_s.append(round(time.process_time() - started, 3))
        self.upload_bytes = len(packed)
        message = "lesson %d: learned from %d interactions in %.2f s; a vector of %d bytes"
        logger.info(message, effect.lesson.version, len(own.items), self.update_s[-1], len(packed))
        return UpdateReady(effect.number, Packed(packed), effect.lesson.version)


class Recommendations(msgspec.Struct, frozen=True):
    """Recommendations for a user. with_vector, without: the first items, by this device's model and by the cloud's.

    titles: of these items, if the log has them.
    """

    user: str
    version: int
    with_vector: list[Suggestion]
    without: list[Suggestion]
    seconds: float
    titles: dict[str, str] = {}

    def title(self, item: str) -> str:
        return self.titles.get(item) or item


def recommend(out: Path, spec: str | None, top: int) -> Recommendations:
    """Run `mdl recommend` from this device's files alone. Raises DataError if it has learned nothing yet."""
    record = read_record(out)
    lesson = _read_lesson(out)
    own = in_numbers_of(lesson, read_own(spec or record.data, record.user)[1])
    titles = read_titles(spec or record.data)
    vector: Tensor = torch.tensor(record.vector, dtype=torch.float32)
    if record.basis and record.basis != name_basis(lesson.cloud.basis).hex():
        raise DataError(f"{out}: its vector is of another lesson than the one that is here; run mdl learn again")
    if len(vector) != lesson.cloud.basis.size:
        raise DataError(f"{out}: a vector of {len(vector)} entries for lesson {record.version}; run mdl learn again")
    started = time.perf_counter()
    mine = suggest(lesson, own, vector, top)
    seconds = time.perf_counter() - started
    plain = suggest(lesson, own, None, top)
    called = {each.item: titles[each.item] for each in (*mine, *plain) if each.item in titles}
    return Recommendations(record.user, record.version, mine, plain, round(seconds, 4), called)


def read_own(spec: str, user: str) -> tuple[str, Interactions]:
    """Return the name and the log of one user. user: "" if the log has only one. Raises ConfigError, DataError."""
    log = read_interactions(spec if "least=" in spec else f"{spec}{'&' if '?' in spec else '?'}least=1")
    if not user and len(log.users) > 1:
        some = ", ".join(log.users[:5])
        raise ConfigError(f"the data has {len(log.users)} users ({some} ...): name the user of this device with --user")
    name = user or log.users[0]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"user {name[:40]!r}: a device's user has 1 to 64 letters, digits, '.', '-' and '_'")
    return name, keep_users(log, np.array([log.find(name)]))


def read_record(out: Path) -> RecommenderRecord:
    found = _find_record(out)
    if found is None:
        raise DataError(f"{out}: this device has learned nothing yet; mdl learn --task recommend does")
    return found


def _find_record(out: Path) -> RecommenderRecord | None:
    """Read the kept record, or the one before it; None if the device has learned nothing. Raises DamagedError."""

    def read(path: Path) -> RecommenderRecord:
        return decode_json(read_sealed(path, _LARGEST_RECORD_BYTES), RecommenderRecord, str(path))

    return read_kept(out / RECORD, read, "the vector is that of the lesson before, until mdl learn has another")


def _read_lesson(out: Path) -> RecommenderLesson:
    path = out / LESSON
    try:
        return read_lesson(read_packed(path, LARGEST_LESSON_BYTES))
    except (DataError, RemoteProtocolError) as error:
        raise DamagedError(f"{path}: {error}: remove it, and mdl learn fetches the lesson again") from None
