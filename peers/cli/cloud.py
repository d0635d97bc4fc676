"""`mdl cloud` and `mdl learn`: learning between a cloud and devices that dial it (Colla)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mdl.section import MANY
from peers.cli.options import (
    AsJson,
    Assign,
    Code,
    ConfigFile,
    DataSpec,
    Fresh,
    Insecure,
    Listen,
    LogLevel,
    Loopback,
    MeshName,
    Name,
    Out,
    Port,
    Quiet,
    Seed,
    Shard,
    Split,
    When,
    end,
    find_mesh,
    identified,
    load_settings,
    log_at,
    mesh_overrides,
    need_data,
)
from peers.cli.web import MetricsPort, Web, WebLan, page_beside, web_overrides

if TYPE_CHECKING:
    from mdl.config import Config

Small = Annotated[
    str | None, typer.Option("--model", help="The pupils' model: lenet, ..., or EMBEDDING-HIDDEN for places.")
]


def cloud(
    mesh: MeshName = None,
    code: Code = None,
    data: DataSpec = None,
    model: Small = None,
    large: Annotated[str | None, typer.Option(help="The cloud's own model; alexnet, or 32-128 for places.")] = None,
    synchronous: Annotated[bool | None, typer.Option("--synchronous", help="A cycle waits for all pupils.")] = None,
    updates: Annotated[int | None, typer.Option(help="Updates of different pupils that start a cycle.")] = None,
    patience: Annotated[float | None, typer.Option(help="Seconds after which fewer updates do.")] = None,
    listen: Listen = None,
    port: Port = None,
    loopback: Loopback = None,
    insecure: Insecure = None,
    web: Web = None,
    web_lan: WebLan = None,
    metrics_port: MetricsPort = None,
    seed: Seed = None,
    fresh: Fresh = False,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Teach meshes and devices that dial in, from public or donated data (Colla); their data never comes here."""
    log_at(log_level, quiet)
    overrides: dict[str, object] = {
        "data.spec": data,
        "model.name": model,
        "cloud.large": large,
        "cloud.synchronous": synchronous,
        "cloud.updates": updates,
        "cloud.patience_s": patience,
        "seed": seed,
    }
    overrides |= mesh_overrides(None, listen, port, None, loopback, insecure)
    overrides |= web_overrides(web, web_lan, metrics_port)
    settings = load_settings(config, overrides, assign)
    from peers.edge.cloud_node import run_cloud

    found = find_mesh(mesh, code, settings)
    need_data(settings)
    with identified(found.name, "cloud", out) as (me, directory), page_beside(settings, found, "cloud", directory):
        ended = run_cloud(settings, me, found.keys, directory, fresh)
    told = f"version {ended.version} of {ended.pupils} pupils is in {directory}"
    end(ended, {"cloud": found.name, "run_dir": str(directory)}, as_json, told)


def learn(
    cloud: Annotated[str | None, typer.Option("--cloud", help="HOST:PORT of a cloud.")] = None,
    mesh: MeshName = None,
    code: Code = None,
    data: DataSpec = None,
    model: Small = None,
    cycles: Annotated[int, typer.Option(help="Lessons to learn from; 0 goes on until Ctrl-C.", min=0, max=MANY)] = 1,
    name: Name = None,
    shard: Shard = None,
    split: Split = None,
    patience: Annotated[float | None, typer.Option(help="Seconds to wait for a newer lesson.")] = None,
    when: When = None,
    insecure: Insecure = None,
    seed: Seed = None,
    fresh: Fresh = False,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train this device's own model on its own data, taught by a cloud; only what changed in the model goes up."""
    log_at(log_level, quiet)
    overrides: dict[str, object] = {
        "cloud.address": cloud,
        "data.spec": data,
        "data.shard": shard,
        "data.split": split,
        "model.name": model,
        "cloud.patience_s": patience,
        "device.when": when,
        "seed": seed,
    }
    # Without encryption only on this machine; this node listens nowhere.
    overrides |= mesh_overrides(None, None, None, None, insecure, insecure)
    settings = load_settings(config, overrides, assign)
    _check_learner(settings)
    from mdl.cloud.progress import PERSONAL
    from peers.edge.cloud_node import run_learner
    from peers.edge.identity import cloud_keys

    found = find_mesh(mesh, code, settings)
    need_data(settings)
    with identified(found.name, name, out) as (me, directory):
        ended = run_learner(settings, me, cloud_keys(found.keys), directory, cycles, fresh)
    told = f"this device's model is in {directory / PERSONAL}" if ended.studies else "no lesson was learned from"
    end(ended, {"peer": me.peer_id, "run_dir": str(directory)}, as_json, told)


def _check_learner(settings: Config) -> None:
    from mdl.errors import ConfigError

    if not settings.cloud.address:
        raise ConfigError("which cloud? give --cloud HOST:PORT; `mdl cloud` says on which port it listens")


def register(app: typer.Typer) -> None:
    app.command()(cloud)
    app.command()(learn)
