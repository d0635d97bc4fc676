"""Composition root of a cloud of recommenders (`mdl cloud --task recommend`) and of a device that learns with it.

The cloud's slow work is here, too: keeping vectors, and learning rounds from them and its own log. Its files:

    vectors.sqlite     the devices' vectors, users' profiles, and the newest lesson; or on a PostgreSQL server
    lessons/00002.safetensors   the lesson of each version, the last of them
    devices.txt        the owners of names

A lesson's file is whole before the database names it. A file that no lesson names is of a round that did not end, and
is written again. The log is read from the user's own file at every start and never written here.

A device that gets recommendations: its log stays here, one vector goes up (DCCL's MetaPatch).

lesson.safetensors    the cloud's last lesson
device.json           the user, the vector, and the version it was learned with
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch
from torch import Tensor

from mdl.bounds import Count, HexDigest
from mdl.config import MANY, Config, ModelSection
from mdl.errors import ConfigError, DamagedError, DataError, RemoteProtocolError, TrainingCancelledError
from mdl.files.checkpoint import read_packed, write_packed
from mdl.files.kept import damaged, read_kept, read_sealed, tell_previous, with_previous, write_kept
from mdl.peers.cloud.edge import NOBODY_S, attend, open_hub, open_spoke, serve
from mdl.peers.cloud.machine import CloudSettings, Learner, LearnerSettings
from mdl.peers.cloud.names import NAME_FILES
from mdl.peers.dccl.databases import PostgresDatabase, ProfileStore, SqliteDatabase, VectorStore, read_url
from mdl.peers.dccl.machine import TASK, Collector
from mdl.peers.dccl.model.device_step import VectorSettings
from mdl.peers.dccl.model.din import DinSettings
from mdl.peers.dccl.model.interactions import Interactions, keep_users, number_profiles, tell_profiles
from mdl.peers.dccl.model.lesson import (
    LARGEST_ENTRY,
    LARGEST_LESSON_BYTES,
    OtherBasisError,
    RecommenderLesson,
    Suggestion,
    in_numbers_of,
    learn_vector,
    name_basis,
    pack_lesson,
    pack_vector,
    read_lesson,
    suggest,
)
from mdl.peers.dccl.model.momodistill import RecommenderSettings, next_round, pretrain
from mdl.peers.dccl.model.momodistill import RecommenderSettings as Sizes
from mdl.peers.dccl.model.readers import read_interactions, read_titles
from mdl.peers.edge.gatekeeper import Gatekeeper, make_gatekeeper
from mdl.peers.edge.membership import key_for_cloud
from mdl.peers.edge.resume import set_aside
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Event,
    KeepVectors,
    StudyLesson,
    TeachCycle,
    UpdateReady,
    VectorJudged,
    VectorsKept,
)
from mdl.protocol.vocabulary import Packed
from mdl.reading import decode_json
from mdl.transport.links.hub import Spoke
from mdl.transport.trust.keys import DeviceKey, MeshKeys

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


logger = logging.getLogger("mdl")

_DATABASE = "vectors.sqlite"
_FILES = (_DATABASE, f"{_DATABASE}-wal", f"{_DATABASE}-shm", "lessons", *NAME_FILES)
KEPT_LESSONS = 4


class RecommendFiles:
    """The files of such a cloud; see the module. Raises ConfigError if they are another log's.

    keep and teach are called by worker threads, each by one.
    task: the log and the sizes, in one line; a directory of another one is refused. fresh: it is set aside.
    store: URL of a PostgreSQL server; "": SQLite.
    """

    def __init__(
        self,
        directory: Path,
        data: Interactions,
        settings: RecommenderSettings,
        seed: int,
        task: str,
        fresh: bool,
        store: str = "",
    ) -> None:
        if fresh:
            set_aside(directory, _FILES)
        self._directory, self._data, self._settings, self._seed, self._task = directory, data, settings, seed, task
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # guards the database: a round is closed while vectors come
        database = PostgresDatabase(store, fresh) if store else SqliteDatabase(directory / _DATABASE)
        self._store = VectorStore(database)
        self._lesson: RecommenderLesson | None = None
        self._packed, self._version = b"", 0
        if newest := self._store.newest():
            version, file, _, made_of = newest
            if made_of != task:
                raise ConfigError(
                    f"{directory} has version {version} of a cloud of {made_of}, and this is {task}: "
                    "--fresh sets that aside and starts anew, another --out keeps both"
                )
            self._go_on(version, file)
            logger.info("continuing at version %d (%s); --fresh would start anew", self._version, directory)
        self._data = self._with_profiles(ProfileStore(database))

    @property
    def version(self) -> int:
        return self._version

    def counts(self) -> dict[int, int]:
        """Return the number of vectors that counted in each version."""
        with self._lock:
            return self._store.counts()

    def fresh(self) -> int:
        with self._lock:
            return self._store.fresh(self._version)

    def stop(self) -> None:
        """End a round at its next batch; the next process does it again."""
        self._stopped.set()

    def close(self) -> None:
        with self._lock:
            self._store.close()

    def taught(self) -> CycleTaught | None:
        """Return the newest lesson, from which the machine starts; None without one."""
        return CycleTaught(self._version, {"-1": Packed(self._packed)}, {}, {}) if self._version else None

    def keep(self, effect: KeepVectors) -> VectorsKept:
        """Check all vectors, and keep those of this version."""
        assert self._lesson is not None  # the machine takes vectors only for a lesson that was handed out
        basis = self._lesson.cloud.basis
        messages = [received.message for received in effect.vectors]
        with self._lock:
            problems = self._store.keep(messages, self._version, name_basis(basis), basis.size)
            fresh = self._store.fresh(self._version)
        judged = [
            VectorJudged(received, str(problem or ""), isinstance(problem, OtherBasisError))
            for received, problem in zip(effect.vectors, problems, strict=True)
        ]
        return VectorsKept(tuple(judged), fresh)

    def teach(self, effect: TeachCycle) -> CycleTaught:
        """Run Algorithm 1: the first lesson from the log alone, each later one from the vectors too.

        Write all of it.
        """
        started, version, data = time.perf_counter(), effect.version, self._data
        with self._lock:
            newest = self._store.newest()
        if newest and newest[0] >= version:  # it was written, but the server's answer was lost
            self._read(newest[0], newest[1])
            return self._told()
        if self._lesson is None:
            cloud = pretrain(data, self._settings, self._seed, self._stopped.is_set)
        else:
            vectors = self._vectors()
            cloud = next_round(
                self._lesson.cloud, vectors, data, self._settings, self._seed + version, self._stopped.is_set
            )
        packed, file = pack_lesson(RecommenderLesson(cloud, data.titles)), f"{version:05d}.safetensors"
        write_packed(self._directory / "lessons" / file, packed)
        with self._lock:
            counted = self._store.close_round(version, file, name_basis(cloud.basis), self._task)
        self._take(version, packed)
        (self._directory / "lessons" / f"{version - KEPT_LESSONS:05d}.safetensors").unlink(missing_ok=True)
        told = "version %d is ready after %.1f s: %.0f KB, %d vectors counted"
        logger.info(told, version, time.perf_counter() - started, len(packed) / 1e3, counted)
        return self._told()

    def _with_profiles(self, store: ProfileStore) -> Interactions:
        """Return the log with the profiles of its users, from the log or the database.

        It has as many categories as the newest lesson knows.
        """
        if self._data.features:
            store.keep(self._data.users, tell_profiles(self._data))
        known = None if self._lesson is None else self._lesson.cloud.encoder.features
        return number_profiles(self._data, store.read(self._data.users), known)

    def _told(self) -> CycleTaught:
        found = self.taught()
        assert found is not None
        return found

    def _vectors(self) -> torch.Tensor:
        """Return (U, size) by the users of the log, NaN for users without a vector.

        Devices of users without a log here teach nothing.
        """
        assert self._lesson is not None
        rows = {user: row for row, user in enumerate(self._data.users)}
        table = np.full((len(rows), self._lesson.cloud.basis.size), np.nan, np.float32)
        with self._lock:
            for device, vector in self._store.read(self._version):
                if device in rows:
                    table[rows[device]] = vector
        return torch.from_numpy(table)

    def _go_on(self, version: int, file: str) -> None:
        """Take the newest whole lesson.

        An older one is handed out under a new number: devices know another lesson by the old one.
        """
        try:
            self._read(version, file)
            return
        except DataError as error:
            problem = str(error)
        for older, name in self._store.older(version):
            try:
                self._read(older, name)
            except DataError:
                continue
            assert self._lesson is not None
            lost = f"it is handed out as version {version + 1}, and vectors of version {version} are asked for again"
            tell_previous(problem, self._directory / "lessons" / name, lost)
            self._store.hand_out_again(version + 1, name, name_basis(self._lesson.cloud.basis), self._task)
            self._version = version + 1
            return
        path = self._directory / "lessons" / file
        raise damaged(path, f"{problem}, and the database names it", "give --fresh, which sets all of it aside")

    def _read(self, version: int, file: str) -> None:
        """Read a lesson. Raises DataError if it is not whole."""
        path = self._directory / "lessons" / file
        packed = read_packed(path, LARGEST_LESSON_BYTES)
        try:
            self._take(version, packed)
        except RemoteProtocolError as error:
            raise DataError(f"{path}: {error}") from None

    def _take(self, version: int, packed: bytes) -> None:
        self._lesson = read_lesson(packed)
        self._packed, self._version = packed, version


# A device sends little beside its vector; the bound keeps the cloud from holding more.
_LARGEST_UPLOAD_BYTES = 4096


@dataclass(frozen=True)
class RecommenderEnded:
    """The end of a cloud. version: of its lesson; counted: by version, vectors in it; taken: by this process."""

    problem: str
    exit_code: int
    version: int
    counted: dict[int, int]
    taken: int
    refused: dict[str, str]
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class DeviceEnded:
    """The end of a device. studies: vectors that the cloud has taken; version: of its lesson."""

    problem: str
    exit_code: int
    studies: int
    version: int
    upload_bytes: int
    update_s: tuple[float, ...]


def run_recommend_cloud(
    config: Config, me: Contributor, keys: MeshKeys | None, out: Path, fresh: bool
) -> RecommenderEnded:
    """Run the cloud until it is stopped. Raises ConfigError or DataError for settings that do not fit."""
    data = read_interactions(config.data.spec)
    sizes = _sizes(config)
    task = f"{len(data.users)} users, {len(data.titles)} items, sizes {sizes.din.embedding}-{sizes.din.hidden}"
    files = RecommendFiles(out, data, sizes, config.seed, task, fresh, read_url(config.cloud.store))
    settings = CloudSettings(config.cloud.updates, config.cloud.patience_s, config.cloud.synchronous)
    machine = Collector(settings, files.taught(), files.fresh(), time.monotonic())

    def begin_again() -> Collector:
        nonlocal machine
        before, machine = machine, Collector(settings, files.taught(), files.fresh(), time.monotonic())
        machine.taken, machine.is_teaching = before.taken, before.is_teaching
        return machine

    hub = open_hub(config, me, keys, _LARGEST_UPLOAD_BYTES, out, owns_pupils=True)
    logger.info("%s, %d interactions of %s", task, len(data.items), config.data.spec)
    logger.info("listening on port %d; on a device: mdl learn --task recommend --cloud HOST:%d ...", hub.port, hub.port)

    def keep(effect: KeepVectors) -> VectorsKept:
        kept = files.keep(effect)
        for judged in kept.judged:
            if not judged.problem:
                hub.note_worked(judged.received.sender.peer_id, judged.received.message.pupil)
        return kept

    finish = serve(machine, hub, {KeepVectors: keep}, files.teach, files.stop, begin_again)
    counts, counted = hub.counts, files.counts()
    files.close()
    return RecommenderEnded(
        finish.problem,
        finish.exit_code,
        files.version,
        counted,
        machine.taken,
        dict(machine.refusals),
        counts.sent_bytes,
        counts.received_bytes,
    )


@dataclass(frozen=True)
class RecommenderDevice:
    """A device before it runs: its learner, its machine, its connection, and its gatekeeper."""

    recommendee: Recommendee
    machine: Learner
    spoke: Spoke
    gate: Gatekeeper


def run_recommend_device(
    config: Config, me: Contributor, keys: MeshKeys | None, out: Path, user: str, studies: int, fresh: bool
) -> DeviceEnded:
    """Run `mdl learn --task recommend` for so many vectors. Raises ConfigError or DataError."""
    device = make_device(config, me, keys, out, user, studies, fresh, key_for_cloud(config.mesh.insecure))
    mine, machine = device.recommendee, device.machine
    logger.info("user %s: %d interactions, cloud %s", mine.user, len(mine.own.items), config.cloud.address)
    finish = attend(machine, device.spoke, mine.study, device.gate)
    problem = finish.problem
    if finish.exit_code == 3:
        problem += f" at {config.cloud.address}; does `mdl cloud --task recommend` run there, with the same code?"
    return DeviceEnded(
        problem, finish.exit_code, machine.taken, machine.version, mine.upload_bytes, tuple(mine.update_s)
    )


def make_device(
    config: Config,
    me: Contributor,
    keys: MeshKeys | None,
    out: Path,
    user: str,
    studies: int,
    fresh: bool,
    key: DeviceKey | None,
) -> RecommenderDevice:
    """Return a device with an open connection. studies: vectors to learn, 0 without an end. key: shown to the cloud.

    Raises ConfigError or DataError.
    """
    gate = make_gatekeeper(config.device.when, config)
    mine = Recommendee(config.data.spec, user, out, config.seed, fresh, gate.hold)
    settings = LearnerSettings(
        studies or MANY, patience_s=config.cloud.patience_s, gives_up_s=NOBODY_S, sends_vectors=True
    )
    # Numbers begin at the start of this process: later than all that an earlier one sent, even if its files are lost.
    machine = Learner(mine.user, TASK, "", settings, time.monotonic(), me.incarnation)
    spoke = open_spoke(config, me, keys, LARGEST_LESSON_BYTES, key)
    return RecommenderDevice(mine, machine, spoke, gate)


def _sizes(config: Config) -> Sizes:
    """Return the sizes of --model EMBEDDING-HIDDEN, 32-32 by default."""
    name = config.model.name
    if name == ModelSection().name:
        return Sizes()
    embedding, _, hidden = name.partition("-")
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part[:6]) <= 1024 for part in (embedding, hidden)):
        raise ConfigError(f"--model {name[:40]!r}: for recommendations expected EMBEDDING-HIDDEN, as 32-32")
    return Sizes(DinSettings(int(embedding), int(hidden), has_user=False))
