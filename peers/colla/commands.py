"""`mdl cloud` and `mdl learn` of Colla: a cloud that teaches, and a device that learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mdl.peers.command.options import end, identified, need_data
from mdl.peers.command.web import page_beside

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.transport.trust.keys import Mesh


def teach(settings: Config, mesh: Mesh, out: Path | None, fresh: bool, as_json: bool) -> None:
    """Run `mdl cloud`. Raises ConfigError."""
    from mdl.errors import ConfigError
    from mdl.peers.colla.edge import run_cloud

    need_data(settings)
    if settings.cloud.store:
        raise ConfigError("--store: only a cloud that recommends keeps vectors (--task recommend); leave it out")
    with identified(mesh.name, "cloud", out) as (me, directory), page_beside(settings, mesh, "cloud", directory):
        ended = run_cloud(settings, me, mesh.keys, directory, fresh)
    told = f"version {ended.version} of {ended.pupils} pupils is in {directory}"
    end(ended, {"cloud": mesh.name, "run_dir": str(directory)}, as_json, told)


def learn(
    settings: Config, mesh: Mesh, place: tuple[str | None, Path | None], cycles: int, fresh: bool, as_json: bool
) -> None:
    from mdl.peers.colla.edge import run_learner
    from mdl.peers.colla.files import PERSONAL
    from mdl.peers.edge.identity import cloud_keys

    need_data(settings)
    with identified(mesh.name, *place) as (me, directory):
        ended = run_learner(settings, me, cloud_keys(mesh.keys), directory, cycles, fresh)
    told = f"this device's model is in {directory / PERSONAL}" if ended.studies else "no lesson was learned from"
    end(ended, {"peer": me.peer_id, "run_dir": str(directory)}, as_json, told)
