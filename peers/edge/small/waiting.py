"""A lone peer waits without its model: 60 MB instead of 280, until another peer of the mesh is there.

It waits so only after all errors that can be reported now are excluded: the data is read, and a built-in model is known
to fit it. A device that has trained before does not wait so; alone it trains on (`faults.on_partition`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import msgspec

from mdl.config import Config
from mdl.data import DataSet
from mdl.files.checkpoint import ModelCache
from mdl.learning.built_in import MODELS, SHORTEST_TIME
from mdl.peers.edge.identity import claim_again
from mdl.peers.edge.lifeline import LIFELINE_VARIABLE, stopped_by_signals
from mdl.peers.edge.narrate import PATIENCE_S, PEER_COMMAND, describe_loneliness
from mdl.peers.edge.node import drive, start_runtime
from mdl.peers.edge.small.memory import Spare
from mdl.peers.edge.small.share import load_share
from mdl.peers.roles.outsiders import FirstMeeting
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, PeerFound, Tick
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import Address
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Renewed
from mdl.transport.trust.keys import Mesh

logger = logging.getLogger(__name__)


def wait_for_others(
    config: Config, me: Contributor, mesh: Mesh, out: Path, begins: bool
) -> tuple[Config, Contributor] | None:
    """Return configuration and identity to train with once a peer is there; None if the user stops waiting.

    begins: with parameters of the user's, or after setting aside what is in `out`. Raises ConfigError or DataError for
    data that cannot be trained on.
    """
    if not _may_wait(config, out, begins) or not _fits(load_share(config)[0]):
        return config, me
    Spare(0.0).give_back()
    machine = FirstMeeting(me, config.round.policy, time.monotonic() + PATIENCE_S)

    def begin_again(links: Links) -> Renewed:
        nonlocal machine
        machine = FirstMeeting(me, config.round.policy, time.monotonic() + PATIENCE_S)
        return Renewed(machine, [PeerFound(known) for known in links.directory.everyone()])

    info = PeerInfo(me.peer_id, me.incarnation, Role.TRAINER, "", config.mesh.port)

    def observe(now: float, event: Event, effects: list[Effect]) -> None:
        match event:
            case PeerFound(info=info) if info is machine.met:
                logger.info("found %s (%s) at %s:%d", info.peer_id, info.role.value, info.host, info.port)
            case Tick():
                logger.info("%s", describe_loneliness(mesh.shown, PEER_COMMAND))

    runtime = start_runtime(machine, info, mesh, config.mesh, observe=observe, renew=begin_again)
    logger.info("%s waits for others of mesh %s; the model is loaded when somebody is there", me.peer_id, mesh.shown)
    with stopped_by_signals(runtime):
        finish = drive(runtime, mesh, config.mesh)
    if finish.exit_code:
        return None
    # A peer that has met this device sees another start of it.
    return _introduced(config, machine.met), claim_again(out, me)


def _may_wait(config: Config, out: Path, begins: bool) -> bool:
    """Return True if it may wait: not below another process (`mdl up`), nor where torch is loaded in any case."""
    is_plain = config.model.name in MODELS and config.training.device == "cpu" and not config.cloud.address
    is_new = not begins and not ModelCache(out).path.exists()
    is_free = not os.environ.get(LIFELINE_VARIABLE) and "torch" not in sys.modules
    return is_plain and is_new and is_free and config.round.min_peers > 1 and not config.device.max_memory_mb


def _fits(data: DataSet) -> bool:
    is_plain = not data.is_of_images and data.shape[1] >= SHORTEST_TIME
    return is_plain and (len(data.classes) > 1 or data.targets != "classes") and "torch" not in sys.modules


def _introduced(config: Config, met: PeerInfo | None) -> Config:
    """Add the address of the peer that was met; one that waited too listens elsewhere later, and greets by itself."""
    if met is None or (met.role is Role.TRAINER and not met.schema_hash):
        return config
    where = Address(met.host, met.port).endpoint().removeprefix("tcp://")
    return msgspec.structs.replace(config, mesh=msgspec.structs.replace(config.mesh, join=(*config.mesh.join, where)))
