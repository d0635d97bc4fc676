"""`mdl mesh`: makes meshes and lists those that are known here."""

from __future__ import annotations

from typing import Annotated

import typer

from peers.cli.options import AsJson, print_json, tell

app = typer.Typer(help="Make and list meshes: a mesh is a name and a join code.", no_args_is_help=True)


@app.command("new")
def new_mesh(
    name: Annotated[str, typer.Argument(help="a-z, 0-9 and '-', for example home.")], as_json: AsJson = False
) -> None:
    """Make a mesh: prints its join code, which every other device needs once."""
    from peers.edge.identity import known_meshes, remember_code
    from transport.trust.keys import new_join_code

    if name in known_meshes():
        from mdl.errors import ConfigError

        raise ConfigError(f"mesh {name!r} exists already; `mdl mesh list` shows its code")
    code = new_join_code(name)
    path = remember_code(code)
    if as_json:
        print_json({"mesh": name, "code": code, "file": str(path)})
        return
    print(code)
    tell(f"remembered in {path}; on the other devices: mdl peer --mesh {name}, which asks for it")


@app.command("list")
def list_meshes(as_json: AsJson = False) -> None:
    """Show the meshes whose codes are known to this user."""
    from peers.edge.identity import known_meshes

    known = known_meshes()
    if as_json:
        print_json({"meshes": [{"mesh": name, "code": code} for name, code in known.items()]})
        return
    for name, code in known.items():
        print(f"{name:<16} {code}")
    if not known:
        tell("no meshes yet; `mdl mesh new NAME` makes one")
