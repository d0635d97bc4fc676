"""A mesh member's own line to a cloud, in a thread beside the round: the mesh's model goes up, lessons come down.

The chain, theta and the broadcast know nothing of it. A lesson is the cloud model's answers for this device's windows.
A round trains with it if it is there, and without it if it is not: no round ever waits for a cloud.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

import torch

from mdl.cloud.distillation import predict_probabilities
from mdl.cloud.model_kinds import WindowKind
from mdl.config import Config
from mdl.errors import ConfigError, MdlError, TrainingCancelledError
from mdl.learning.flat import FlatModel
from mdl.learning.training import Teacher
from mdl.own import own_model
from mdl.peers.edge.device import Device
from mdl.peers.edge.identity import cloud_keys
from mdl.peers.edge.membership import key_for_cloud
from mdl.peers.roles.learner import CLOUD, Learner, LearnerSettings
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Effect, Event, PauseChanged, SaveModel, StopRequested, StudyLesson, Tick, UpdateReady
from mdl.protocol.vocabulary import Packed
from mdl.transport.limits import LogLimit
from mdl.transport.links.hub import Spoke
from mdl.transport.runtime import Renewed, Runtime
from mdl.transport.trust.keys import Mesh
from mdl.transport.worker import Work

logger = logging.getLogger(__name__)

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
        self._runtime = Runtime(
            self._learner,
            Spoke(
                me,
                cloud_keys(mesh.keys),
                settings.address,
                max_bytes=self._kind.largest_bytes,
                insecure=config.mesh.insecure,
                device=key_for_cloud(config.mesh.insecure),
            ),
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
