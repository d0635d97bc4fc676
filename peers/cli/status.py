"""`mdl status`: a look at a live mesh. `mdl peers` is its other name."""

from __future__ import annotations

from typing import Annotated

import typer

from mdl.config import LONGEST_S
from mdl.peers.cli.options import (
    LOOK,
    AsJson,
    Code,
    Interface,
    Join,
    Loopback,
    MeshName,
    find_mesh,
    finite,
    load_settings,
    mesh_overrides,
    print_json,
)


def status(
    mesh: MeshName = None,
    code: Code = None,
    wait: Annotated[
        float, typer.Option(help="Look around for so many seconds.", min=0.1, max=LONGEST_S, callback=finite)
    ] = 3.0,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Show devices, the open round, and what was learned.

    mdl peers is the same command. docs/api.md has all fields of --json.
    """
    settings = load_settings(None, mesh_overrides(join, None, None, interface, loopback, None), None)
    from mdl.peers.view.status import show_status

    found = find_mesh(mesh, code, settings)
    told = show_status(found, settings.mesh, wait, watch=watch, quiet=as_json)
    if as_json:
        print_json(told)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=LOOK)(status)
    app.command("peers", hidden=True)(status)  # its other name
