"""Composition root of a cloud of recommenders (`mdl cloud --task recommend`) and of a device that learns with it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from mdl.config import MANY, Config, ModelSection
from mdl.errors import ConfigError
from mdl.peers.edge.cloud.node import NOBODY_S, attend, open_hub, serve
from mdl.peers.edge.gatekeeper import Gatekeeper, make_gatekeeper
from mdl.peers.edge.membership import key_for_cloud
from mdl.peers.recommend.cloud_files import RecommendFiles
from mdl.peers.recommend.databases import read_url
from mdl.peers.recommend.device import Recommendee
from mdl.peers.roles.cloud import TASK, CloudSettings, Collector
from mdl.peers.roles.learner import Learner, LearnerSettings
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import KeepVectors, VectorsKept
from mdl.recommend.din import DinSettings
from mdl.recommend.lesson import LARGEST_LESSON_BYTES
from mdl.recommend.momodistill import RecommenderSettings as Sizes
from mdl.recommend.readers import read_interactions
from mdl.transport.links.hub import Spoke
from mdl.transport.trust.keys import DeviceKey, MeshKeys

logger = logging.getLogger("mdl")

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
    spoke = Spoke(
        me,
        keys,
        config.cloud.address,
        max_bytes=LARGEST_LESSON_BYTES,
        insecure=config.mesh.insecure,
        device=key,
    )
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
