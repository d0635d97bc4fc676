"""`mdl doctor`: finds why devices do not meet, or what would keep them from it.

`mdl status`: a look at a live mesh. `mdl peers` is its other name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mdl.config import LONGEST_S
from mdl.peers.command.options import (
    MACHINE,
    AsJson,
    Assign,
    Code,
    ConfigFile,
    DataSpec,
    Interface,
    Join,
    Listen,
    Loopback,
    MeshName,
    Model,
    Port,
    find_mesh,
    finite,
    load_settings,
    mesh_overrides,
    need_data,
    print_json,
)

if TYPE_CHECKING:
    from mdl.peers.doctor.network import Finding
from mdl.peers.command.options import (
    LOOK,
)


def doctor(
    mesh: MeshName = None,
    code: Code = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Look at the device HOST:PORT, or at HOST while mdl doctor --peer THIS-HOST runs there."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Wait so many seconds for the others.", min=0.1, max=LONGEST_S, callback=finite)
    ] = 4.0,
    data: DataSpec = None,
    model: Model = None,
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    config: ConfigFile = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Find what keeps devices from meeting.

    Looks at this machine, its network and each device; exit code 0 if nothing is wrong.

    With the --data and --model of a peer also whether its model is the others'.
    """
    overrides = mesh_overrides(join, listen, port, interface, loopback, None)
    settings = load_settings(config, overrides | {"data.spec": data, "model.name": model}, assign)
    if model:
        need_data(settings)
    from mdl.errors import UnfinishedError
    from mdl.peers.doctor.device import examine, exit_code
    from mdl.peers.doctor.mesh import with_peers
    from mdl.peers.doctor.network import broken
    from mdl.peers.view.plain import log_from

    log_from("error")  # the findings say what the links would log
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    section = with_peers(settings.mesh, peer or [])
    findings = []
    own = settings if settings.data.spec else None
    for finding in examine(lambda: find_mesh(mesh, code, settings, remember=False), section, wait, own):
        findings.append(finding)
        if not as_json:
            _show(finding)
    result = {"works": exit_code(findings) == 0, "findings": [msgspec.to_builtins(finding) for finding in findings]}
    if failed := exit_code(findings):
        told = f"failed checks: {', '.join(sorted({one.check for one in broken(findings)}))}"
        raise UnfinishedError(told, failed, result, "each failure above says what to do")
    if as_json:
        print_json(result)


def register_doctor(app: typer.Typer) -> None:
    app.command(rich_help_panel=MACHINE)(doctor)


def _show(finding: Finding) -> None:
    from mdl.bounds import printable

    mark = {"ok": "ok  ", "note": "note", "fail": "FAIL"}[finding.verdict.value]
    print(f"{mark}  {finding.check:<12} {printable(finding.told, 400)}", flush=True)
    for word, text in (("do", finding.do), ("or", finding.around)):
        if text:
            print(f"{'':19}{word}: {printable(text, 400)}", flush=True)


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
    from mdl.peers.view.terminal import show_status

    found = find_mesh(mesh, code, settings)
    told = show_status(found, settings.mesh, wait, watch=watch, quiet=as_json)
    if as_json:
        print_json(told)


def register_status(app: typer.Typer) -> None:
    app.command(rich_help_panel=LOOK)(status)
    app.command("peers", hidden=True)(status)  # its other name
