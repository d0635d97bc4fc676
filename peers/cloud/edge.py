"""Runs the machine of a cloud, or of a device that dials it, on real links, until it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mdl.config import Config
from mdl.peers.cloud.machine import CLOUD
from mdl.peers.cloud.names import open_names
from mdl.peers.edge.gatekeeper import Gatekeeper
from mdl.peers.interrupts import stopped_by_signals
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Event,
    Finish,
    Machine,
    PauseChanged,
    StopRequested,
    StudyLesson,
    TeachCycle,
    WorkFailed,
)
from mdl.transport.discovery.interfaces import host_to_listen_on
from mdl.transport.links.hub import CloudHub, Spoke
from mdl.transport.runtime import Renewed, Runtime
from mdl.transport.trust.keys import DeviceKey, MeshKeys
from mdl.transport.worker import Work, Worker

logger = logging.getLogger("mdl")

# The default port of a cloud: its devices look for it there after a restart.
PORT = 7777
# `mdl learn` ends with code 3 if no cloud answers for so long.
NOBODY_S = 20.0
# A running cycle ends at its next batch.
_DRAIN_S = 5.0


def open_hub(
    config: Config, me: Contributor, keys: MeshKeys | None, largest_bytes: int, out: Path, owns_pupils: bool = False
) -> CloudHub:
    """Open the hub where a cloud's devices dial in. largest_bytes: the most that one may send.

    owns_pupils: see `CloudHub`. out: the owners of names are kept there. Raises ConfigError, DataError.
    """
    return CloudHub(
        Contributor(CLOUD, me.incarnation),
        keys,
        max_bytes=largest_bytes,
        listen_host="127.0.0.1" if config.mesh.loopback else host_to_listen_on(config.mesh.listen),
        port=config.mesh.port or PORT,
        insecure=config.mesh.insecure,
        names=None if keys is None else open_names(out),
        owns_pupils=owns_pupils,
    )


def open_spoke(
    config: Config, me: Contributor, keys: MeshKeys | None, largest_bytes: int, key: DeviceKey | None
) -> Spoke:
    """Open the line of a device to `cloud.address`. largest_bytes: the most that the cloud may send.

    key: shown to the cloud. Raises ConfigError for an invalid address.
    """
    address, insecure = config.cloud.address, config.mesh.insecure
    return Spoke(me, keys, address, max_bytes=largest_bytes, insecure=insecure, device=key)


def serve(
    machine: Machine,
    hub: CloudHub,
    work: Work,
    teach: Callable[[TeachCycle], Event | None],
    stop: Callable[[], None],
    renew: Callable[[], Machine] | None = None,
) -> Finish:
    """Run a cloud until it is stopped; a cycle may take minutes, and all else goes on meanwhile.

    stop: ends a running cycle at its next batch. renew: builds the machine once more from the disk, after a message has
    met a bug in it.
    """

    def crashed(error: BaseException, cause: str) -> None:
        """Put off a cycle that met a bug, as the pupils' updates are kept. It is tried again later."""
        if not isinstance(error, Exception):
            runtime.crash(error)
            return
        logger.error("a cycle met a bug", exc_info=error)
        runtime.post(WorkFailed(TeachCycle.__name__, f"a bug: {type(error).__name__}: {error}"))

    cycles = Worker({TeachCycle: teach}, lambda event: runtime.post(event), crashed)
    begins = None if renew is None else lambda links: Renewed(renew())
    runtime: Runtime[CloudHub] = Runtime(
        machine, hub, {**work, TeachCycle: cycles.put}, observe=_on_stop(stop), renew=begins
    )
    with stopped_by_signals(runtime):
        finish = runtime.run()
    cycles.finish(_DRAIN_S)
    return finish


def attend(
    machine: Machine,
    spoke: Spoke,
    study: Callable[[StudyLesson], Event | None],
    gate: Gatekeeper,
    stop: Callable[[], None] = lambda: None,
    renew: Callable[[], Machine] | None = None,
) -> Finish:
    """Run a device that learns with a cloud, until it has, or is stopped. stop, renew: as for `serve`."""

    def end() -> None:
        stop()
        gate.stop()

    begins = None if renew is None else lambda links: Renewed(renew())
    runtime: Runtime[Spoke] = Runtime(machine, spoke, {StudyLesson: study}, observe=_on_stop(end), renew=begins)
    with stopped_by_signals(runtime), gate.looking(lambda reason: runtime.post(PauseChanged(reason))):
        return runtime.run()


def _on_stop(stop: Callable[[], None]) -> Callable[[float, Event, object], None]:
    def observe(_: float, event: Event, __: object) -> None:
        if isinstance(event, StopRequested):
            stop()

    return observe
