"""`mdl status`: the snapshot on a terminal, once or repeatedly. Draws what it is given, knows nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mdl.config import MeshSection
from mdl.errors import MeshNotFoundError
from mdl.peers.view.active import tell_active
from mdl.peers.view.console import PlainConsole
from mdl.peers.view.snapshot import DevicePart, Snapshot
from mdl.peers.view.take_snapshot import Taker
from mdl.peers.view.terminal import draw_scores
from mdl.peers.view.watch import Watcher
from mdl.transport.trust.keys import Mesh

_FRAME_S = 0.25
_SHOWN_HOPS = 8
_SHOWN_CHANGES = 3
_COLOURS = {"paused": "yellow", "training": "yellow", "receiving": "magenta"}
_COLOURS |= dict.fromkeys(("silent", "refused", "revoked", "quarantined"), "red")


def show_status(mesh: Mesh, section: MeshSection, wait_s: float, *, watch: bool, quiet: bool) -> dict[str, Any]:
    """Take a snapshot and show it, once or until Ctrl-C. Raises MeshNotFoundError if no peer answers in `wait_s`.

    watch: without a terminal, a line each time the words for the mesh's state have changed. quiet: instead, each
    changed snapshot as JSON on a line.
    """
    taker = Taker()
    with Watcher(mesh, section, "status") as watcher:
        watcher.heard.wait(wait_s)
        if watcher.problem:
            raise watcher.problem
        snapshot = taker.take(watcher.told())
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
                    live.update(draw_status(taker.take(watcher.told())), refresh=True)
                    watcher.heard.wait(_FRAME_S)
                raise watcher.problem
        if not quiet:
            console.print(draw_status(snapshot))
    built: dict[str, Any] = msgspec.to_builtins(snapshot)
    return built


def _tell_changes(watcher: Watcher, taker: Taker, console: PlainConsole, as_json: bool) -> None:
    """Print changes until Ctrl-C; raise the problem that keeps the watcher from hearing anything."""
    before = ""
    while not watcher.problem:
        watcher.heard.clear()
        snapshot = taker.take(watcher.told())
        line = msgspec.json.encode(snapshot).decode() if as_json else _tell_doing(snapshot).plain
        if line != before:
            console.file.write(f"{line}\n")  # unchanged: the console would break an object into lines
            console.file.flush()
        before = line
        watcher.heard.wait(_FRAME_S)
    raise watcher.problem


def draw_status(snapshot: Snapshot) -> RenderableType:
    mesh, round_ = snapshot.mesh, snapshot.round
    parts: list[RenderableType] = [_line(_tell_doing(snapshot)), _draw_devices(mesh.devices)]
    parts += [_line(Text(cut, style="yellow")) for cut in mesh.cuts]
    if round_ and round_.chart:
        hops = list(round_.chart.hops.values())[-_SHOWN_HOPS:]
        parts += [_line(Text(f"{hop.sender} → {hop.receiver}  {hop.outcome}  {hop.reason}")) for hop in hops]
        if exchange := round_.chart.exchange:
            parts.append(_line(Text(f"in segments: {exchange.plan}", style="blue")))
    scores = [point.score for point in snapshot.learning.rounds.values() if point.score is not None]
    if len(scores) > 1:
        parts.append(_line(Text(draw_scores(snapshot.learning.targets, scores), style="green")))
    changes = [(number, point.changed) for number, point in snapshot.learning.rounds.items() if point.changed]
    if changes:  # later scores are those of other devices
        parts.append(_line(Text("; ".join(f"from round {each} {who}" for each, who in changes[-_SHOWN_CHANGES:]))))
    if snapshot.cloud:
        parts.append(_line(Text(f"cloud: version {snapshot.cloud.version}")))
    return Group(*parts)


def _tell_doing(snapshot: Snapshot) -> Text:
    mesh, round_ = snapshot.mesh, snapshot.round
    led = f", led by {mesh.agent}" if mesh.agent else ""
    number = f", round {round_.number}" + (f" of {round_.goal}" if round_.goal else "") if round_ else ""
    return Text.assemble((mesh.name, "bold"), f"{number}{led}: ", (mesh.told, "bold"))


def _draw_devices(devices: dict[str, DevicePart]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("device", no_wrap=True, overflow="ellipsis", min_width=8)
    table.add_column("doing", no_wrap=True, overflow="ellipsis", min_width=16)
    widths = {"round": 5, "gave": 5, "loss": 5, "link": 8, "cpu": 5, "free": 7, "battery": 7}
    for column, width in widths.items():
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    for name, device in devices.items():
        arrived = "" if device.arrived is None else f" {device.arrived:.0%} from {device.arrives_from}"
        silent = f" for {device.silent_s} s" if device.silent_s else ""
        leads = "leads, " if device.leads and device.doing != "leads" else ""
        table.add_row(
            name,
            Text(f"{leads}{device.doing}{silent}{arrived}", style=_COLOURS.get(device.state, "")),
            "" if device.round is None else str(device.round),
            f"{device.took_part}/{device.of_rounds}" if device.of_rounds else "",
            "" if device.loss is None else f"{device.loss:.3f}",
            "" if device.link_mb_s is None else f"{device.link_mb_s:.3g} MB/s",
            "" if device.cpu_percent is None else f"{device.cpu_percent:.0f} %",
            "" if device.free_memory_bytes is None else f"{device.free_memory_bytes / 1e9:.1f} GB",
            _tell_power(device),
        )
    return table


def _tell_power(device: DevicePart) -> str:
    if device.battery_percent is None:
        return "mains" if device.cpu_percent is not None else ""
    return f"{device.battery_percent:.0f} %" + (" charging" if device.charging else "")


def _line(text: Text) -> Text:
    """Cut the text to one line, however narrow the terminal is."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
