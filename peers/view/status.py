"""`mdl status`: the snapshot of a live mesh, once or repeatedly, drawn or as JSON.

A user that looked for a run that is not there is told the other active runs of the mesh (`tell_active`).
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from rich.live import Live
from zeroconf import Error

from mdl.config import MeshSection
from mdl.errors import MeshNotFoundError
from mdl.peers.edge.identity import other_runs
from mdl.peers.view.snapshot import SnapshotTaker
from mdl.peers.view.terminal import PlainConsole, draw_addresses, draw_energy, draw_mesh, tell_doing
from mdl.peers.view.watch import Watcher
from mdl.transport.discovery.interfaces import usable_interfaces
from mdl.transport.discovery.mdns import Survey
from mdl.transport.trust.keys import Mesh, show_name

# The first announcement brings most of them.
_LOOK_S = 1.5


def tell_active(mesh: Mesh, section: MeshSection) -> str:
    """Return "; home/walk is active: --mesh home/walk" for each active run that this machine has been in."""
    others = other_runs(mesh.name)
    if not others or section.loopback:
        return ""
    try:
        survey = Survey(mesh.name, mesh.keys, usable_interfaces(section.interfaces or None), others)
    except (OSError, Error):
        return ""
    try:
        threading.Event().wait(_LOOK_S)
        found = sorted({show_name(each.mesh) for each in survey.found() if each.mesh in others})
    finally:
        survey.close()
    return "".join(f"; {each} is active: --mesh {each}" for each in found)


_FRAME_S = 0.25
_END = "Ctrl-C ends"
_NOBODY_LEADS = "one of them leads a few seconds after they have met; look again, or --watch"


def show_status(mesh: Mesh, section: MeshSection, wait_s: float, *, watch: bool, quiet: bool) -> dict[str, Any]:
    """Take a snapshot and show it, once or until Ctrl-C. Raises MeshNotFoundError if no peer answers in `wait_s`.

    watch: without a terminal, a line each time the words for the mesh's state have changed. quiet: instead, each
    changed snapshot as JSON on a line.
    """
    taker = SnapshotTaker()
    with Watcher(mesh, section, "status") as watcher:
        watcher.heard.wait(wait_s)
        if watcher.problem:
            raise watcher.problem
        told = watcher.told()
        snapshot = taker.take(told)
        if not snapshot.mesh.devices:
            raise MeshNotFoundError(
                f"nobody of mesh {mesh.shown!r} answered within {wait_s:g} s; on its devices: mdl peer --mesh ... "
                f"(mdl mesh show NAME shows the code); if they run already, mdl status --join HOST:PORT"
                f"{tell_active(mesh, section)}"
            )
        console = PlainConsole()
        if watch and (quiet or not console.is_terminal):
            _tell_changes(watcher, taker, console, quiet)
        if watch:
            with Live(console=console, auto_refresh=False) as live:
                while not watcher.problem:
                    watcher.heard.clear()
                    told = watcher.told()
                    live.update(draw_mesh(taker.take(told), told.rounds, _END, console.height), refresh=True)
                    watcher.heard.wait(_FRAME_S)
                raise watcher.problem
        if not quiet:
            console.print(draw_mesh(snapshot, told.rounds))
            console.print(draw_addresses(snapshot))
            console.print(draw_energy(snapshot))
            if told.status is None:
                console.print(_NOBODY_LEADS)
    built: dict[str, Any] = msgspec.to_builtins(snapshot)
    return built


def _tell_changes(watcher: Watcher, taker: SnapshotTaker, console: PlainConsole, as_json: bool) -> None:
    """Print changes until Ctrl-C; raise the problem that keeps the watcher from hearing anything."""
    before = ""
    while not watcher.problem:
        watcher.heard.clear()
        snapshot = taker.take(watcher.told())
        line = msgspec.json.encode(snapshot).decode() if as_json else tell_doing(snapshot).plain
        if line != before:
            console.file.write(f"{line}\n")  # unchanged: the console would break an object into lines
            console.file.flush()
        before = line
        watcher.heard.wait(_FRAME_S)
    raise watcher.problem
