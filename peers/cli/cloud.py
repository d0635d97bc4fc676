"""`mdl cloud`, `mdl learn`, `mdl recommend`: learning between a cloud and devices that dial it (Colla, DCCL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mdl.config import MANY
from mdl.peers.cli.options import (
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
    end,
    find_mesh,
    identified,
    load_settings,
    log_at,
    mesh_overrides,
    need_data,
    print_json,
)
from mdl.peers.cli.web import MetricsPort, Web, WebLan, page_beside, web_overrides

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.transport.trust.keys import Mesh

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
    run = _run_recommend_cloud if task == "recommend" else _run_cloud
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
        _run_recommend_device(settings, found, (name, out), user or "", cycles, fresh, as_json)
    else:
        _run_learner(settings, found, (name, out), cycles, fresh, as_json)


def _run_cloud(settings: Config, mesh: Mesh, out: Path | None, fresh: bool, as_json: bool) -> None:
    from mdl.errors import ConfigError
    from mdl.peers.edge.cloud import run_cloud

    need_data(settings)
    if settings.cloud.store:
        raise ConfigError("--store: only a cloud that recommends keeps vectors (--task recommend); leave it out")
    with identified(mesh.name, "cloud", out) as (me, directory), page_beside(settings, mesh, "cloud", directory):
        ended = run_cloud(settings, me, mesh.keys, directory, fresh)
    told = f"version {ended.version} of {ended.pupils} pupils is in {directory}"
    end(ended, {"cloud": mesh.name, "run_dir": str(directory)}, as_json, told)


def _run_learner(
    settings: Config, mesh: Mesh, place: tuple[str | None, Path | None], cycles: int, fresh: bool, as_json: bool
) -> None:
    from mdl.cloud.progress import PERSONAL
    from mdl.peers.edge.cloud import run_learner
    from mdl.peers.edge.identity import cloud_keys

    need_data(settings)
    with identified(mesh.name, *place) as (me, directory):
        ended = run_learner(settings, me, cloud_keys(mesh.keys), directory, cycles, fresh)
    told = f"this device's model is in {directory / PERSONAL}" if ended.studies else "no lesson was learned from"
    end(ended, {"peer": me.peer_id, "run_dir": str(directory)}, as_json, told)


def _run_recommend_cloud(settings: Config, mesh: Mesh, out: Path | None, fresh: bool, as_json: bool) -> None:
    from mdl.errors import ConfigError
    from mdl.peers.recommend.node import run_recommend_cloud

    if settings.web.port or settings.web.metrics_port:
        raise ConfigError("--web: a cloud that recommends has no page yet; leave it out")
    with identified(mesh.name, "cloud", out) as (me, directory):
        ended = run_recommend_cloud(settings, me, mesh.keys, directory, fresh)
    told = f"version {ended.version}, and the vectors of its devices, are in {directory}"
    end(ended, {"cloud": mesh.name, "run_dir": str(directory)}, as_json, told)


def _run_recommend_device(
    settings: Config,
    mesh: Mesh,
    place: tuple[str | None, Path | None],
    user: str,
    cycles: int,
    fresh: bool,
    as_json: bool,
) -> None:
    from mdl.peers.edge.identity import cloud_keys
    from mdl.peers.recommend.node import run_recommend_device

    name, out = place
    own_name = name or (_device_name(user) if user else None)
    with identified(mesh.name, own_name, out) as (me, directory):
        ended = run_recommend_device(settings, me, cloud_keys(mesh.keys), directory, user, cycles, fresh)
    told = f"this device's vector is in {directory}; mdl recommend shows what it changes"
    if not ended.studies:
        told = "no lesson was learned from"
    end(ended, {"peer": me.peer_id, "run_dir": str(directory)}, as_json, told)


def recommend(
    user: Annotated[str, typer.Argument(help="Name the user of the device, as in the data that it learned from.")],
    top: Annotated[int, typer.Option(help="Show so many items.", min=1, max=1000)] = 10,
    data: Annotated[
        str | None, typer.Option(help="Read csv:PATH or movielens:PATH; by default the data that it learned from.")
    ] = None,
    mesh: MeshName = None,
    out: Annotated[Path | None, typer.Option(help="Read the device's directory, as given to mdl learn.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a user's top items on their device.

    It ranks them once with the device's patches, and once by the cloud's model alone.
    """
    import msgspec

    from mdl.peers.recommend.node import recommend as find

    shown = find(out or _device_home(user, mesh), data, top)
    if as_json:
        print_json(msgspec.to_builtins(shown))
        return
    print(f"{'':>4}  {'with this device’s patches':<40}  by the cloud's model (version {shown.version})")
    for place, (mine, plain) in enumerate(zip(shown.with_vector, shown.without, strict=True), 1):
        print(f"{place:>4}  {shown.title(mine.item)[:40]:<40}  {shown.title(plain.item)[:40]}")
    print(f"in {1000 * shown.seconds:.1f} ms")


def _device_home(user: str, mesh: str | None) -> Path:
    """Return the directory of a user's device in `mdl learn --task recommend`.

    Raises ConfigError if the mesh is unclear.
    """
    from mdl.errors import ConfigError
    from mdl.peers.edge.identity import known_meshes, state_home

    known = list(known_meshes())
    if mesh is None and len(known) != 1:
        raise ConfigError(f"no device is named: give --out DIR, or --mesh NAME, one of: {', '.join(known) or 'none'}")
    return state_home(mesh or known[0]) / _device_name(user)


def _device_name(user: str) -> str:
    """Return the peer id of a user's device, if no --name is given."""
    from mdl.errors import ConfigError

    name = f"user-{user}".replace(".", "_")
    if len(name) > 40 or not all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in name):
        raise ConfigError(f"user {user[:40]!r}: give its device a --name")
    return name


def _check_learner(settings: Config) -> None:
    from mdl.errors import ConfigError

    if not settings.cloud.address:
        raise ConfigError("no cloud is named: give --cloud HOST:PORT; `mdl cloud` shows its port")


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=MESH)(cloud)
    app.command(rich_help_panel=PERSONAL)(learn)
    app.command(rich_help_panel=PERSONAL)(recommend)
