"""`mdl mesh`: makes meshes and lists those that are known here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mdl.peers.cli.headings import App
from mdl.peers.cli.options import AsJson, print_json, tell
from mdl.peers.cli.setup.invite import AsQr, draw_qr

app = App("Make, join and list meshes, and manage their members.")


@app.command("new")
def new_mesh(
    name: Annotated[str, typer.Argument(help="Name the mesh by a-z, 0-9 and '-', for example home.")],
    as_json: AsJson = False,
) -> None:
    """Make a mesh and print its join code.

    Every other device needs the code once.
    """
    from mdl.errors import ConfigError
    from mdl.peers.edge.identity import known_meshes
    from mdl.peers.edge.membership import device_key, found_mesh
    from mdl.transport.trust.keys import RUN_MARK, founder_mark, new_join_code

    if RUN_MARK in name:
        raise ConfigError(f"mesh name {name!r}: {RUN_MARK!r} separates a mesh from its run; --run makes a run")
    if name in known_meshes():
        raise ConfigError(f"mesh {name!r} exists already; `mdl mesh show {name}` shows its code")
    code = new_join_code(name, mark=founder_mark(device_key().public))
    path = found_mesh(code)
    if as_json:
        print_json({"mesh": name, "code": code, "file": str(path)})
        return
    print(code)
    tell(f"remembered in {path}; this device owns the mesh. On the others: mdl peer --mesh {name}, which asks for it")


@app.command("list")
def list_meshes(
    codes: Annotated[
        bool, typer.Option("--codes", help="Show their join codes, too: anybody that reads one can join.")
    ] = False,
    qr: AsQr = False,
    as_json: AsJson = False,
) -> None:
    """List the meshes that this user has codes of."""
    from mdl.peers.edge.identity import known_meshes

    known = known_meshes()
    if as_json:
        print_json({"meshes": [{"mesh": name} | ({"code": code} if codes else {}) for name, code in known.items()]})
        return
    for name, code in known.items():
        print(f"{draw_qr(code) if qr else ''}{name:<16} {code}" if codes or qr else name)
    if not known:
        tell("no meshes yet; `mdl mesh new NAME` makes one")


@app.command("runs")
def list_runs(as_json: AsJson = False) -> None:
    """List the runs on this machine, and their rounds."""
    from mdl.peers.edge.identity import kept_runs

    found = kept_runs()
    if as_json:
        rows = [{"mesh": each.mesh, "run": each.run, "device": each.device, "round": each.round_id,
                 "model": each.model, "directory": str(each.directory)} for each in found]  # fmt: skip
        print_json({"runs": rows})
        return
    for each in found:
        name = f"{each.mesh}/{each.run}" if each.run else each.mesh
        print(f"{name:<24} {each.device:<16} round {each.round_id:<6} {each.model}")
    if not found:
        tell("nothing is kept yet; mdl peer --mesh NAME begins a run")


@app.command("forget")
def forget(
    name: Annotated[str, typer.Argument(help="Forget NAME, or NAME/RUN; `mdl mesh runs` lists them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a run's models and metrics from this machine.

    The mesh's join code stays.
    """
    from mdl.errors import ConfigError
    from mdl.peers.edge.identity import forget_run

    mesh, _, run = name.partition("/")
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"forgetting {name} removes its models for good, and nobody can be asked here: add --yes")
        if not typer.confirm(f"remove all that this machine keeps of {name}?", err=True):
            raise ConfigError(f"{name} stays")
    count = forget_run(mesh, run)
    if as_json:
        print_json({"mesh": mesh, "run": run, "devices": count})
        return
    tell(f"{name} is forgotten: {count} device{'s' if count > 1 else ''} of this machine")
