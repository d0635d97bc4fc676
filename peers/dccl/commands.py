"""`mdl cloud` and `mdl learn` with `--task recommend`, and `mdl recommend` (DCCL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.peers.command.options import AsJson, MeshName, end, identified, print_json

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.transport.trust.keys import Mesh


def collect(settings: Config, mesh: Mesh, out: Path | None, fresh: bool, as_json: bool) -> None:
    from mdl.errors import ConfigError
    from mdl.peers.dccl.edge import run_recommend_cloud

    if settings.web.port or settings.web.metrics_port:
        raise ConfigError("--web: a cloud that recommends has no page yet; leave it out")
    with identified(mesh.name, "cloud", out) as (me, directory):
        ended = run_recommend_cloud(settings, me, mesh.keys, directory, fresh)
    told = f"version {ended.version}, and the vectors of its devices, are in {directory}"
    end(ended, {"cloud": mesh.name, "run_dir": str(directory)}, as_json, told)


def learn(
    settings: Config,
    mesh: Mesh,
    place: tuple[str | None, Path | None],
    user: str,
    cycles: int,
    fresh: bool,
    as_json: bool,
) -> None:
    from mdl.peers.dccl.edge import run_recommend_device
    from mdl.peers.edge.identity import cloud_keys

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

    from mdl.peers.dccl.edge import recommend as find

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
