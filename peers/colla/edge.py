"""The composition root of a cloud and of its learners, alone or in a mesh: builds the machine, and drives it.

`CloudSide` is a mesh member's own line to a cloud, in a thread beside the round: the mesh's model goes up, lessons come
down. The chain, theta and the broadcast know nothing of it. A lesson is the cloud model's answers for this device's
windows. A round trains with it if it is there, and without it if it is not: no round ever waits for a cloud.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from mdl.bounds import Count, Round, Share
from mdl.config import MANY, Config, ModelSection
from mdl.data import DataSet, Windows, default_cache_dir, donated_part, load_data, shard_test, take_windows
from mdl.errors import ConfigError, MdlError, TrainingCancelledError
from mdl.files.kept import previous_of, read_kept, read_sealed, with_previous, write_kept
from mdl.learning.flat import FlatModel
from mdl.learning.training import Teacher
from mdl.own import own_data, own_model
from mdl.peers.cloud.edge import NOBODY_S, attend, open_hub, open_spoke, serve
from mdl.peers.cloud.machine import CLOUD, CloudSettings, Learner, LearnerSettings
from mdl.peers.colla.files import (
    OWN,
    PERSONAL,
    CloudFiles,
    CloudProgress,
    read_progress,
    write_personal,
    write_progress,
)
from mdl.peers.colla.machine import Cloud
from mdl.peers.colla.model.classroom import Classroom, accuracy_of, suggest, update_client
from mdl.peers.colla.model.distillation import predict_probabilities
from mdl.peers.colla.model.model_kinds import ModelKind, WindowKind, find_mode, kind_of
from mdl.peers.colla.model.update_codec import LARGEST_LESSON_BYTES, unpack_parts
from mdl.peers.edge.device import Device, device_seed
from mdl.peers.edge.gatekeeper import make_gatekeeper
from mdl.peers.edge.identity import cloud_keys
from mdl.peers.edge.membership import key_for_cloud
from mdl.peers.edge.resume import Origin, refuse_to_overwrite, set_aside
from mdl.peers.edge.share import load_share
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    Effect,
    Event,
    PauseChanged,
    SaveModel,
    StopRequested,
    StoreUpdate,
    StudyLesson,
    Tick,
    UpdateReady,
    UpdateStored,
)
from mdl.protocol.vocabulary import Packed
from mdl.reading import decode_json
from mdl.transport.limits import LogLimit
from mdl.transport.runtime import Renewed, Runtime
from mdl.transport.trust.keys import Mesh, MeshKeys
from mdl.transport.worker import Work

logger = logging.getLogger("mdl")

_LARGEST_RECORD_BYTES = 4096
_RECORD = "learner.json"
_CURE = f"remove {_RECORD} and {previous_of(Path(_RECORD))} to begin anew"


@dataclass(frozen=True)
class CloudEnded:
    """The end of a cloud. version: the last one that it teaches; cycles: version less the base model."""

    problem: str
    exit_code: int
    version: int
    pupils: int
    refused: dict[str, str]
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class LearnerEnded:
    """The end of a lone learner. accuracy: of its model, on its own test windows."""

    problem: str
    exit_code: int
    studies: int
    version: int
    accuracy: float | None
    upload_bytes: tuple[int, ...]
    update_s: tuple[float, ...]


def run_cloud(config: Config, me: Contributor, keys: MeshKeys | None, out: Path, fresh: bool = False) -> CloudEnded:
    """Run `mdl cloud`: teach until it is stopped. Raises ConfigError or DataError for settings that do not fit.

    fresh: sets the files in `out` aside instead of going on from them.
    """
    data = load_data(own_data(config.data.spec), default_cache_dir(), config.seed)
    data = donated_part(data, config.cloud.people, config.seed)
    kind = make_kind(config, data)
    preset = suggest(kind, config.cloud.preset)
    teaching = msgspec.structs.replace(preset.teaching, keep=config.cloud.keep, groups=config.cloud.groups)
    classroom = Classroom(kind, *_tensors(data.train), teaching, config.seed)
    files = CloudFiles(out, kind, classroom, config.seed, fresh)
    settings = CloudSettings(config.cloud.updates, config.cloud.patience_s, config.cloud.synchronous)
    machine = Cloud(kind.schema_hash, kind.summary, settings, files.state(), time.monotonic())

    def begin_again() -> Cloud:
        nonlocal machine
        before, machine = machine, Cloud(kind.schema_hash, kind.summary, settings, files.state(), time.monotonic())
        machine.is_teaching = before.is_teaching  # that goes on, beside this
        return machine

    hub = open_hub(config, me, keys, kind.largest_bytes, out)
    logger.info("%s: %d examples of %s", kind.summary, len(data.train), config.data.spec)
    if classroom.without_groups:
        logger.info("%s", classroom.without_groups)
    logger.info(
        "listening on port %d; on a device: mdl learn --cloud HOST:%d, or mdl peer --cloud ...", hub.port, hub.port
    )

    def store(effect: StoreUpdate) -> UpdateStored:
        stored = files.store(effect)
        if not stored.problem:
            hub.note_worked(effect.sender.peer_id)
        return stored

    finish = serve(machine, hub, {StoreUpdate: store}, files.teach, files.stop, begin_again)
    counts = hub.counts
    return CloudEnded(
        finish.problem,
        finish.exit_code,
        files.catalogue.version,  # the machine may not have heard of the last cycle any more
        len(machine.stored),
        dict(machine.refusals),
        counts.sent_bytes,
        counts.received_bytes,
    )


def run_learner(
    config: Config, me: Contributor, keys: MeshKeys | None, out: Path, studies: int, fresh: bool = False
) -> LearnerEnded:
    """Run `mdl learn`: study lessons and send updates of this device's own model.

    studies: how many; 0: without end. fresh: sets the files in `out` aside instead of going on from them. Raises
    ConfigError or DataError.
    """
    gate = make_gatekeeper(config.device.when, config)
    student = Student(config, out, fresh, gate.hold)
    settings = LearnerSettings(studies or MANY, patience_s=config.cloud.patience_s, gives_up_s=NOBODY_S)
    kind = student.kind
    machine = Learner(me.peer_id, kind.schema_hash, kind.summary, settings, time.monotonic(), student.record.number)

    def begin_again() -> Learner:
        nonlocal machine
        before, number = machine, student.record.number
        machine = Learner(me.peer_id, kind.schema_hash, kind.summary, settings, time.monotonic(), number)
        machine.taken = before.taken
        return machine

    spoke = open_spoke(config, me, keys, LARGEST_LESSON_BYTES, key_for_cloud(config.mesh.insecure))
    logger.info(
        "%s: %d examples of %s, cloud %s", kind.summary, len(student.train), config.data.spec, config.cloud.address
    )
    finish = attend(machine, spoke, student.study, gate, student.stop, begin_again)
    problem = finish.problem
    if finish.exit_code == 3:
        problem += f" at {config.cloud.address}; is `mdl cloud` running there, with the same join code?"
    return LearnerEnded(
        problem,
        finish.exit_code,
        machine.taken,
        machine.version,
        student.record.accuracy,
        tuple(student.upload_bytes),
        tuple(student.update_s),
    )


class LearnerRecord(msgspec.Struct, frozen=True):
    """learner.json: this device's progress. number: of its last study; version: of the lesson it learned from.

    schema_hash, model, seed: of what it trains; empty in the files of older versions.
    """

    number: Round = 0
    version: Count = 0
    accuracy: Share | None = None
    schema_hash: str = ""
    model: str = ""
    seed: int | None = None


class Student:
    """A device's own examples and model, and stage 3 on them. Raises ConfigError or DataError for what does not fit.

    held: asked before each batch; waits while the device may not train; returns True if it is to stop instead.
    """

    def __init__(
        self, config: Config, out: Path, fresh: bool = False, held: Callable[[], bool] = lambda: False
    ) -> None:
        data, self.train, shard = load_share(config)
        self.kind = make_kind(config, data)
        known = np.isin(data.test.subject, self.train.subject)
        # Test rows: the last days of its own people if data is cut in time, else its share of the held-out people.
        test_rows = np.flatnonzero(known) if known.any() else shard_test(len(data.test), shard)
        self.test = take_windows(data.test, test_rows)
        self.upload_bytes: list[int] = []
        self.update_s: list[float] = []
        self._out = out
        preset = suggest(self.kind, config.cloud.preset)
        self._settings, self._mode = preset.client, find_mode(config.cloud.update or preset.update)
        self._seed = device_seed(config.seed, shard.index)
        self._stopped = False
        self._held = held
        kind = self.kind
        self._origin = Origin("", kind.schema_hash, kind.summary, config.seed, kind.older_hashes)
        self.record = self._load_record(fresh)
        self._progress = read_progress(out, kind)

    def stop(self) -> None:
        """End a study at its next batch. May be called from any thread."""
        self._stopped = True

    def study(self, effect: StudyLesson) -> Event:
        """Train this device's own model on, taught by its group's large one; keep it, and return its update."""
        self._held()
        started, lesson, kind = time.process_time(), effect.lesson, self.kind
        before, teacher = self._read_lesson(effect)
        generator = torch.Generator().manual_seed(device_seed(self._seed, effect.number))
        model = update_client(
            kind, before.own, teacher, *_tensors(self.train), self._settings, self._mode, generator, self._must_end
        ).model
        update = kind.encode_update(model, before.origin)
        self._progress = msgspec.structs.replace(before, own=model)
        self.update_s.append(round(time.process_time() - started, 3))
        self.upload_bytes.append(len(update))
        accuracy = accuracy_of(kind, model, *_tensors(self.test), self._wait) if len(self.test) else None
        origin = self._origin
        self.record = LearnerRecord(
            effect.number, lesson.version, accuracy, origin.schema_hash, origin.model, origin.seed
        )
        write_progress(self._out, kind, self._progress)
        write_personal(self._out, model, {"summary": kind.summary, "group": str(lesson.group)})
        write_kept(self._out / _RECORD, msgspec.json.encode(self.record))
        told = "" if accuracy is None else f", accuracy {accuracy:.1%}"
        group = "the base model" if lesson.group < 0 else f"group {lesson.group}"
        logger.info(
            "lesson %d (%s): learned from %d examples in %.2f s%s; update of %.1f KB",
            *(lesson.version, group, len(self.train), self.update_s[-1], told, len(update) / 1e3),
        )
        return UpdateReady(effect.number, Packed(update), before.version, before.group)

    def _read_lesson(self, effect: StudyLesson) -> tuple[CloudProgress, nn.Module]:
        """Return the start of this study, and its teacher. The first study begins with the small model, the origin."""
        lesson, kind = effect.lesson, self.kind
        small, large, name = unpack_parts(effect.model, 3)
        progress = self._progress
        if progress is None or not progress.fits(lesson, self.record.version):
            pulled = kind.unpack(small)
            progress = CloudProgress(progress.own if progress else pulled, pulled, lesson.version, lesson.group)
        return progress, kind.unpack_large(large, name.decode(errors="replace"))

    def _must_end(self) -> bool:
        return self._stopped or self._held()

    def _wait(self) -> bool:
        """Wait while the device may not train, before the test of what is learned.

        The test is short enough to be made at the end too, so it never stops.
        """
        self._held()
        return False

    def _load_record(self, fresh: bool) -> LearnerRecord:
        lost = "the lesson after it is studied again"
        found = read_kept(self._out / _RECORD, _read_record, lost, _CURE) or LearnerRecord()
        if fresh:
            set_aside(self._out, with_previous(PERSONAL, OWN, _RECORD))
            return LearnerRecord(found.number)  # the cloud tells its updates apart by the number
        if conflict := self._origin.conflict("", found.schema_hash, found.model, found.seed):
            raise refuse_to_overwrite(self._out, f"lesson {found.version}", conflict)
        if found.number:
            logger.info("continuing after lesson %d (%s); --fresh would start anew", found.version, self._out)
        return found


def _read_record(path: Path) -> LearnerRecord:
    return decode_json(read_sealed(path, _LARGEST_RECORD_BYTES), LearnerRecord, str(path))


def make_kind(config: Config, data: DataSet) -> ModelKind:
    """Return the configured kind of models. model.name "" or the default stands for the data's usual one."""
    is_default = config.model.name == ModelSection().name
    return kind_of(data, own_model("" if is_default else config.model.name), own_model(config.cloud.large), config.seed)


def _tensors(windows: Windows) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(windows.x)), torch.from_numpy(np.array(windows.y))


# A cloud that is silent for so long is away: it answers every question, and is asked every few seconds.
_AWAY_S = 15.0


class CloudSide:
    """The line to a cloud; see the module. Opens its connection at once; `close` ends it.

    mesh: its name is the pupil's; a cloud with a code of its own is reached with MDL_CLOUD_CODE.
    Raises ConfigError for an invalid address.
    """

    def __init__(self, config: Config, me: Contributor, mesh: Mesh, device: Device) -> None:
        settings, description, model = config.cloud, device.description, own_model(config.model.name)
        if description.meaning:
            raise ConfigError("--cloud: a cloud teaches classes of sensor windows; this data holds something else")
        self._settings = settings
        self._device = device
        self._kind = WindowKind(
            model,
            model,
            description.channels,
            description.time,
            description.class_names,
            description.seed,
            description.channel_names,
            description.rate_hz,
            description.channel_units,
        )
        now, self._mesh = time.monotonic(), mesh.name
        self._learner = Learner(mesh.name, device.schema_hash, device.summary, LearnerSettings(), now)
        self._said_away = self._said_refused = ""
        self._first: Vector | None = None
        self._has_first = threading.Event()
        self._started = now
        self._lines = LogLimit(logger)
        keys, key = cloud_keys(mesh.keys), key_for_cloud(config.mesh.insecure)
        self._runtime = Runtime(
            self._learner,
            open_spoke(config, me, keys, self._kind.largest_bytes, key),
            {StudyLesson: self._study},
            observe=self._look,
            renew=lambda links: Renewed(self._begin_again()),
        )
        self._thread = threading.Thread(target=self._run, name="mdl-cloud-side", daemon=True)
        self._thread.start()

    def warm_start(self) -> Vector | None:
        """Return the cloud's model for a device that has none yet, float32 (P,); None if it does not come in time.

        All fresh devices of a mesh get the same one; devices with and without it catch up with each other.
        """
        self._has_first.wait(self._settings.warm_start_s)
        if self._first is None and self._settings.warm_start_s:
            logger.warning("no lesson within %g s: this device starts from its own model", self._settings.warm_start_s)
        return self._first

    def join(self, work: Work) -> Work:
        """Return the device's work; after every `upload_every` closed rounds the mesh's model goes up."""
        save = work[SaveModel]

        def save_and_offer(effect: SaveModel) -> Event | None:
            if effect.round_id and effect.round_id % self._settings.upload_every == 0:
                self._runtime.post(UpdateReady(effect.round_id, Packed(self._kind.encode_values(effect.parameters))))
            return save(effect)

        return {**work, SaveModel: save_and_offer}

    def pause(self, paused: PauseChanged) -> None:
        """Pause the line while the device may not work, or resume it."""
        self._runtime.post(paused)

    def close(self) -> None:
        self._runtime.stop()
        self._thread.join(3.0)

    def sent_bytes(self) -> int:
        return self._runtime.links.counts.sent_bytes

    def _begin_again(self) -> Learner:
        device = self._device
        self._learner = Learner(self._mesh, device.schema_hash, device.summary, LearnerSettings(), time.monotonic())
        return self._learner

    def _run(self) -> None:
        try:
            self._runtime.run()
        except Exception:  # the outermost loop of this thread: a bug in it is no reason to stop the mesh
            logger.exception("the line to the cloud has ended; the mesh goes on without it")

    def _study(self, effect: StudyLesson) -> None:
        """Predict on this device's windows with the cloud's model; training needs nothing else of it."""
        try:
            teacher = self._kind.unpack(effect.model)
        except MdlError as error:
            text = "the cloud's lesson %d cannot be used: %s"
            self._lines.warning(time.monotonic(), "", text, effect.lesson.version, error)
            return
        if self._first is None:
            self._first = FlatModel(teacher).values().copy()
            self._has_first.set()
        windows = torch.from_numpy(self._device.train.x)
        try:
            probabilities = predict_probabilities(teacher, windows, self._settings.temperature, self._device.hold)
        except TrainingCancelledError:
            return  # this device ends
        self._device.teacher = Teacher(probabilities.numpy(), self._settings.label_weight, self._settings.temperature)
        logger.info("lesson %d of the cloud is here", effect.lesson.version)

    def _look(self, now: float, event: Event, effects: Iterable[Effect]) -> None:
        if isinstance(event, PauseChanged) and not event.reason:
            self._started = now  # no answer was possible meanwhile
        if isinstance(event, StopRequested) or self._learner.is_paused:
            return
        heard_at = max(self._learner.heard_at or self._started, self._started)
        away = f"the cloud at {self._settings.address} does not answer; the mesh goes on without it"
        if isinstance(event, Tick) and now - heard_at > _AWAY_S and not self._said_away:
            self._said_away = away
            logger.warning(away)
        elif self._said_away and now - heard_at < _AWAY_S:
            self._said_away = ""
            logger.info("the %s answers again", CLOUD)
        if self._learner.refused != self._said_refused:
            self._said_refused = self._learner.refused
            if self._said_refused:
                self._lines.warning(now, "", "the cloud refused: %s", self._said_refused)
