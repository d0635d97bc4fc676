"""One training device: its model, its share of the data and its files, and the slow work that a trainer asks for."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from torch import Tensor

from mdl.bounds import in_utf8
from mdl.channels import tell_channels
from mdl.config import Config
from mdl.data import DataSet, Shard, shard_test, take_windows
from mdl.data.watch import WatchedFolder, watched_folder
from mdl.defence.judge import length
from mdl.errors import ConfigError, TrainingCancelledError
from mdl.files.ballot import BALLOT, BallotFile
from mdl.files.checkpoint import CachedModel, ModelCache, write_safetensors
from mdl.files.export import ModelDescription, export_state
from mdl.learning.evaluation import LARGEST_TESTED, OwnLoss, evaluate
from mdl.learning.flat import FlatModel, OwnState, hash_task, older_hashes, own_names, units_meaning
from mdl.learning.models import build_model
from mdl.learning.networks import plain_sizes
from mdl.learning.training import LocalTrainer, Teacher, check_trained, find_device, make_turn, model_delta
from mdl.own import own_model
from mdl.peers.edge.best import BestModel
from mdl.peers.edge.resume import (
    DEVICE_FILES,
    LoopState,
    Origin,
    ResumeState,
    initial_values,
    keep_state,
    refuse_begun,
    restore_state,
    set_aside,
)
from mdl.peers.edge.share import load_share
from mdl.peers.edge.small import Spare, forget_loading
from mdl.peers.roles.build import TrainerStart, outer_of
from mdl.protocol.counts import Course
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    KeepDelta,
    LocalDeltaReady,
    RecallDelta,
    SaveBallot,
    SaveModel,
    TrainingPaused,
    TrainLocally,
)
from mdl.protocol.vocabulary import TrainingReport
from mdl.task import describe_task
from mdl.writing import save_or_rescue

logger = logging.getLogger(__name__)

# The longest wait for a device's current training step when it begins again.
_NEXT_STEP_S = 5.0
Work = dict[type[Effect], Callable[[Any], Event | None]]


class Device:
    """The model and the windows of one device. Raises ConfigError or DataError for settings that do not fit.

    theta: weight of its deltas (3.2.2). out: folder for results and the file cache. teacher: the cloud's answers for
    this device's windows, once they are there; every `lesson_every` rounds it takes part in the loss. Another thread
    may set it.
    course: returns the course of the run, as far as it is known. best: keeps the model that is the best by it.
    is_paused: returns True while the device may not work; asked before each batch. hold: waits until the device may
    work; returns True if it is to stop.
    stays_for: returns True if the device will be there for a round, False if it leaves the mesh before.
    """

    def __init__(self, config: Config, me: Contributor, mesh: str, out: Path) -> None:
        forget_loading()  # torch's memory, before the data takes its place
        data, self.train, shard = load_share(config)
        config.end.check(data.targets, data.name)
        self.test = take_windows(data.test, shard_test(len(data.test), shard))
        self.model = build_flat_model(config, data)
        self._has_own = config.training.batch_norm == "own"
        self._own_after: tuple[tuple[int, dict[str, Tensor]], ...] = ((0, self._keep_own()),)  # by round, the last two
        if self._has_own and config.cloud.address:
            raise ConfigError("training.batch_norm = own: a cloud learns from whole models; leave one of them out")
        self.description = describe_model(config, data, mesh)
        self.schema_hash = hash_model(self.model, self.description)
        self.theta = float(len(self.train)) if config.round.theta == "samples" else 1.0
        # A model of values in the former unit does not go on with converted ones: then no older hash fits.
        older: tuple[str, ...] = ()
        if not data.is_converted:
            without_units = msgspec.structs.replace(self.description, channel_units=())
            older = older_hashes(self.model.task_schema, data.classes, data.channels)
            older += (hash_model(self.model, without_units),)
        self._origin = Origin(mesh, self.schema_hash, self.summary, config.seed, older)
        self._outer = outer_of(config.round, self.model.buffers())
        self._me = me
        self._out = out
        self._settings = msgspec.structs.replace(config.training, seed=device_seed(config.seed, _place(shard, me)))
        turn = make_turn(self._settings.rotate_deg, data.channels)
        self._trainer = LocalTrainer(self.model, self.train.x, self.train.y, self._settings, augment=turn)
        self._cache = ModelCache(out)
        kept: dict[str, Any] = {"optimizer": self._trainer.optimizer}
        if self._has_own:
            kept["batch norm"] = OwnState(self.model.own_state)
        self._state = LoopState(out, self.schema_hash, kept)
        self.course: Callable[[], Course | None] = lambda: None
        self.best = BestModel(out, self._cache, lambda: self.course(), self._export_best)
        self.ballots = BallotFile(out / BALLOT)
        self._spare = Spare()
        self._config = config
        self._watched = self._watch(config, data, shard)
        self._stopped = self._is_of_former = False
        self._training = threading.Lock()
        self._trained_from: Callable[[], Vector | None] = lambda: None
        self._lesson_every = config.cloud.lesson_every
        self.teacher: Teacher | None = None
        self.is_paused: Callable[[], bool] = lambda: False
        self.hold: Callable[[], bool] = lambda: False
        self.stays_for: Callable[[int], bool] = lambda round_id: True

    @property
    def summary(self) -> str:
        """The model in one line, for people and for the message that names a different model."""
        return tell_model(self.model, self.description)

    def restore(self, fresh: bool = False, init: Path | None = None) -> ResumeState:
        """Return the state in the file cache, or the model at `init`, or the untrained model.

        fresh: sets aside the files of an earlier run. Raises ConfigError if the state is of another origin, or if
        `init` is given and a run has begun.
        """
        first = None if init is None else initial_values(init, self.model)
        if fresh:
            set_aside(self._out, DEVICE_FILES)
        state = restore_state(self._cache, self._origin) or ResumeState(self.model.values().copy())
        if first is not None:
            refuse_begun(self._out, state.round_id)
            state = ResumeState(first)
        self._state.restore(state.round_id)
        self._own_after = ((0, self._keep_own()),)
        return state

    def start(self, state: ResumeState) -> TrainerStart:
        """Return what a trainer needs to go on from this state."""
        start = state.start(self.schema_hash, self.summary, self.ballots.begin(), self._outer, self.theta)
        told = tell_channels(self.train.x) if self._config.data.tell_values else ()
        return msgspec.structs.replace(start, channels=told)

    def losses(self, count: int) -> OwnLoss | None:
        """Return the loss on `count` of its own windows, to judge others' deltas by.

        Return None if count is 0, if the model is too large, or if batch norms are the device's own: they belong to the
        module that trains.
        """
        if not count or self.model.size > LARGEST_TESTED or self._has_own:
            return None
        train, classes, seed = self.train, self.description.classes, self._settings.seed
        return OwnLoss(self._build, train.x, train.y, classes, count, seed)

    def work(self) -> Work:
        """Return the functions that the driver's worker thread calls, one for each slow effect."""
        return {
            TrainLocally: self._train,
            RecallDelta: self._recall,
            Evaluate: self._evaluate,
            SaveModel: self._save,
            SaveBallot: lambda effect: self.ballots.save(effect.ballot),
            KeepDelta: lambda effect: keep_delta(self._out, self._me, effect),
        }

    def _watch(self, config: Config, data: DataSet, shard: Shard) -> WatchedFolder | None:
        watched = watched_folder(config.data.spec, data, self.train, self.test, self._settings.seed)
        if watched and (shard.count > 1 or config.cloud.address):
            raise ConfigError(f"data {config.data.spec!r}: watch= goes with neither --shard nor a cloud")
        if watched:
            self._take(watched)
        return watched

    def _take(self, watched: WatchedFolder) -> None:
        self.train, self.test = watched.train, watched.test
        self._trainer.replace_windows(self.train.x, self.train.y)
        if self._config.round.theta == "samples":
            self.theta = float(len(self.train))

    def begin_again(self, me: Contributor) -> ResumeState:
        """Return the state for another start of this process: from the disk, or else the untrained model.

        Wait for the training of the former start to end at its next step.
        """
        self._is_of_former, self._me = True, me
        if self._training.acquire(timeout=_NEXT_STEP_S):
            self._training.release()
        state = restore_state(self._cache, self._origin) or ResumeState(self._build().values().copy())
        self._state.restore(state.round_id)
        return state

    def stop(self) -> None:
        """End local training at its next step. May be called from any thread."""
        self._stopped = True

    def export(self, path: Path, round_id: int, parameters: Vector) -> None:
        """Write w(round_id) as named tensors, and update the best model beside it.

        Raises MdlError if the disk refuses; the message names the place where the model is instead.
        """
        self.best.look()
        described = msgspec.structs.replace(self.description, round_id=round_id)
        state = self.model.named(parameters)  # not the module: a step that has begun may still change it
        save_or_rescue(path, lambda place: export_state(place, state, described))

    def _export_best(self, path: Path, model: CachedModel, told: dict[str, str]) -> None:
        described = msgspec.structs.replace(self.description, round_id=model.round_id)
        export_state(path, self.model.named(model.values), described, told)

    def _train(self, effect: TrainLocally) -> Event:
        with self._training:
            self._is_of_former = False
            return self._train_round(effect)

    def _train_round(self, effect: TrainLocally) -> Event:
        started = time.perf_counter()
        if self.is_paused() or not self.stays_for(effect.round_id):
            return TrainingPaused(effect.round_id)
        if self._watched and self._watched.look(time.time()):
            self._take(self._watched)
        if effect.planned_rounds:
            self._trainer.settings = msgspec.structs.replace(self._settings, planned_rounds=effect.planned_rounds)
        teacher = self.teacher if (effect.round_id - 1) % self._lesson_every == 0 else None
        self._trained_from = lambda: None  # if a pause cuts training off, the model is no w_i
        try:
            result = self._trainer.train_round(effect.parameters, effect.round_id, self._must_end, teacher)
        except TrainingCancelledError:
            if self._stopped:
                raise
            return TrainingPaused(effect.round_id)
        self._trained_from = weakref.ref(effect.parameters)
        self._own_after = (*self._own_after[-1:], (effect.round_id, self._keep_own()))
        self._state.keep(effect.round_id)
        delta = ModelDelta(model_delta(effect.parameters, result.values), self.theta, frozenset([self._me]))
        self.model.check_constants(delta.values)
        check_trained(delta.values, effect.round_id)
        seconds = time.perf_counter() - started
        report = TrainingReport(result.loss, result.samples, seconds, length=length(delta.values))
        return LocalDeltaReady(effect.round_id, delta, report)

    def _must_end(self) -> bool:
        return self._stopped or self._is_of_former or self.is_paused()

    def _recall(self, effect: RecallDelta) -> Event:
        """Return this round's delta again; the model still holds w_i unless something else was loaded into it."""
        if self._trained_from() is not effect.parameters:
            return DeltaRecalled(effect.round_id, None)
        if effect.in_place:
            self._trained_from = lambda: None
        return DeltaRecalled(effect.round_id, model_delta(effect.parameters, self.model.values(), effect.in_place))

    def _keep_own(self) -> dict[str, Tensor]:
        """Return a copy of this device's own state as it is now."""
        return {name: tensor.clone() for name, tensor in self.model.own_state().items()} if self._has_own else {}

    def _evaluate(self, effect: Evaluate) -> Event | None:
        """Test the model beside the next training. Return None if a pause cuts the test off."""
        own = [kept for round_id, kept in self._own_after if round_id <= effect.round_id] or [self._own_after[0][1]]
        module = self.model.beside(effect.parameters, own[-1])
        test, classes = self.test, self.description.classes
        try:
            counts = evaluate(module, test.x, test.y, classes, self.is_paused)
        except TrainingCancelledError:
            return None
        self._spare.give_back()
        return Evaluated(effect.round_id, counts)

    def _build(self) -> FlatModel:
        """Build another model of the same kind on the processor; the module that trains keeps its values."""
        told = self.description
        name, seed = own_model(self._config.model.name), self._config.seed
        module = build_model(name, told.channels, told.time, told.classes, seed, told.height, told.targets)
        return FlatModel(module)

    def _save(self, effect: SaveModel) -> None:
        self.best.look()
        keep_state(self._cache, effect, self._origin)


def keep_delta(out: Path, me: Contributor, effect: KeepDelta) -> None:
    """Write one sum with its theta and room, its contributors and those of single segments, for `--verify`."""
    names = ",".join(sorted(contributor.peer_id for contributor in effect.delta.contributors))
    metadata = {"theta": repr(effect.delta.theta), "contributors": names, "peer": me.peer_id}
    metadata["room"] = str(effect.delta.room)
    metadata["partial"] = msgspec.json.encode(effect.delta.partial).decode()
    path = out / "deltas" / f"{effect.round_id:05d}-{effect.name}.safetensors"
    write_safetensors(path, {"values": effect.delta.values}, metadata)


def build_flat_model(config: Config, data: DataSet) -> FlatModel:
    """Build the configured model for these windows; the same seed gives the same parameters on every device."""
    channels, *height, length = data.shape
    name, count = own_model(config.model.name), len(data.classes)
    model = build_model(name, channels, length, count, config.seed, height[0] if height else None, data.targets)
    own = own_names(model, config.training.batch_norm)
    return FlatModel(model.to(find_device(config.training.device)), own=own)


def describe_model(config: Config, data: DataSet, mesh: str) -> ModelDescription:
    channels, *height, length = data.shape
    return ModelDescription(
        config.model.name, channels, length, data.classes, in_utf8(config.data.spec), mesh, seed=config.seed,
        channel_names=data.channels,
        rate_hz=data.rate_hz, height=height[0] if height else None, targets=data.targets, units=data.units,
        channel_units=data.channel_units,
        own_batch_norm=config.training.batch_norm == "own",
    )  # fmt: skip


def hash_model(model: FlatModel, description: ModelDescription) -> str:
    """Return the hash by which devices know that they train the same model and task."""
    about = description.outputs, description.channel_names, description.rate_hz
    more = (*description.meaning, *units_meaning(description.channel_units), *plain_sizes(description.model))
    return hash_task(model.task_schema, *about, more)


def tell_model(model: FlatModel, description: ModelDescription) -> str:
    """Describe the model and its task in one line for people."""
    name = f"{description.model} {model.frozen}".rstrip()
    return describe_task(
        name,
        description.shape,
        description.channel_names,
        description.outputs,
        description.rate_hz,
        description.targets,
        description.channel_units,
    )


def describe_own(config: Config) -> tuple[str, str]:
    """Return `hash_model` and `tell_model` of this configuration. Raises ConfigError or DataError."""
    data, _, _ = load_share(config)
    model, description = build_flat_model(config, data), describe_model(config, data, "")
    return hash_model(model, description), tell_model(model, description)


def _place(shard: Shard, me: Contributor) -> int:
    """Return a number for this device: its share's, or its name's where each device has data of its own."""
    return shard.index if shard.count > 1 else crc32(me.peer_id.encode())


def device_seed(seed: int, index: int) -> int:
    """Return a device's own seed, from the run's seed and its share of the data."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])
