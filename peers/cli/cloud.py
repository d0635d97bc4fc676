"""`mdl cloud`, `mdl learn`, `mdl recommend`: learning between a cloud and devices that dial it (Colla, DCCL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mdl.config import MANY
from mdl.peers.colla import commands as colla
from mdl.peers.command.options import (
    MESH,
    PERSONAL,
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
    Quiet,
    Seed,
    Shard,
    Split,
    When,
    find_mesh,
    load_settings,
    log_at,
    mesh_overrides,
)
from mdl.peers.command.web import MetricsPort, Web, WebLan, web_overrides
from mdl.peers.dccl import commands as dccl

if TYPE_CHECKING:
    from mdl.config import Config

Small = Annotated[
    str | None,
    typer.Option("--model", help="Teach pupils of this model: lenet, ..., or EMBEDDING-HIDDEN for places and items."),
]
Port = Annotated[int | None, typer.Option(help="Listen on this TCP port; 7777 by default.")]
Task = Annotated[
    Literal["teach", "recommend"] | None,
    typer.Option(help="Choose teach (Colla) or recommend (DCCL, --data csv:PATH of user,item,time or movielens:PATH)."),
]


def cloud(
    mesh: MeshName = None,
    code: Code = None,
    data: DataSpec = None,
    task: Task = None,
    model: Small = None,
    large: Annotated[
        str | None, typer.Option(help="Use this model in the cloud; alexnet by default, 32-128 for places.")
    ] = None,
    synchronous: Annotated[
        bool | None, typer.Option("--synchronous", help="Let each cycle wait for all pupils.")
    ] = None,
    updates: Annotated[int | None, typer.Option(help="Start a cycle at updates of so many pupils.")] = None,
    patience: Annotated[
        float | None, typer.Option(help="Start a cycle with fewer updates after so many seconds.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Keep vectors of --task recommend in postgresql://USER@HOST/DB (or @FILE), not in SQLite."),
    ] = None,
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
    """Teach meshes and devices that dial in, from public data.

    Donated data will do, too (Colla). The devices' own data never comes here.
    """
    log_at(log_level, quiet)
    overrides: dict[str, object] = {
        "data.spec": data,
        "model.name": model,
        "cloud.large": large,
        "cloud.synchronous": synchronous,
        "cloud.updates": updates,
        "cloud.patience_s": patience,
        "cloud.store": store,
        "seed": seed,
    }
    overrides |= mesh_overrides(None, listen, port, None, loopback, insecure)
    overrides |= web_overrides(web, web_lan, metrics_port)
    settings = load_settings(config, overrides, assign)
    found = find_mesh(mesh, code, settings)
    run = dccl.collect if task == "recommend" else colla.teach
    run(settings, found, out, fresh, as_json)


def learn(
    cloud: Annotated[str | None, typer.Option("--cloud", help="Learn from the cloud at HOST:PORT.")] = None,
    mesh: MeshName = None,
    code: Code = None,
    data: DataSpec = None,
    task: Task = None,
    user: Annotated[
        str | None, typer.Option(help="Name the user of this device for --task recommend, if the data has others.")
    ] = None,
    model: Small = None,
    cycles: Annotated[
        int, typer.Option(help="Learn from so many lessons; 0 goes on until Ctrl-C.", min=0, max=MANY)
    ] = 1,
    name: Name = None,
    shard: Shard = None,
    split: Split = None,
    patience: Annotated[float | None, typer.Option(help="Wait so many seconds for a newer lesson.")] = None,
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
    """Train this device's own model, taught by a cloud.

    It learns from its own data; only what changed in the model goes up.
    """
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
    # Without encryption it works on this machine only; this node listens nowhere.
    overrides |= mesh_overrides(None, None, None, None, insecure, insecure)
    settings = load_settings(config, overrides, assign)
    _check_learner(settings)
    found = find_mesh(mesh, code, settings)
    if task == "recommend":
        dccl.learn(settings, found, (name, out), user or "", cycles, fresh, as_json)
    else:
        colla.learn(settings, found, (name, out), cycles, fresh, as_json)


def _check_learner(settings: Config) -> None:
    from mdl.errors import ConfigError

    if not settings.cloud.address:
        raise ConfigError("no cloud is named: give --cloud HOST:PORT; `mdl cloud` shows its port")


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=MESH)(cloud)
    app.command(rich_help_panel=PERSONAL)(learn)
    app.command(rich_help_panel=PERSONAL)(dccl.recommend)
