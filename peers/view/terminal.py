"""The mesh on a terminal: devices, transfers, rounds and the curve of the score. Draws a snapshot, keeps none.

On its console strings are plain text: no markup, no emoji codes, no escape sequences from others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from zeroconf import Error

from mdl.config import MeshSection
from mdl.devices.energy import HOW
from mdl.errors import MeshNotFoundError
from mdl.peers.edge.identity import other_runs
from mdl.peers.view.plain import plain_lines
from mdl.peers.view.snapshot import (
    SHOWN,
    ChartPart,
    DevicePart,
    ExchangePart,
    FieldForm,
    RoundPart,
    Snapshot,
    SnapshotTaker,
)
from mdl.peers.view.watch import Watcher
from mdl.protocol.counts import MEASURES, show_score, show_value
from mdl.protocol.status_messages import RoundSummary
from mdl.task import Targets
from mdl.transport.discovery.interfaces import usable_interfaces
from mdl.transport.discovery.mdns import Survey
from mdl.transport.trust.keys import Mesh, show_name

# A file or another program takes lines of any length, and nothing of a table is cut.
_PIPE_COLUMNS = 10_000


class PlainConsole(Console):
    """A plain console; see the module. Coloured output is a `Text`, or has a style.

    If the output is no terminal, nothing is cut or broken into lines, unless COLUMNS sets the width.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _PIPE_COLUMNS

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(plain_lines(text), **settings)


_COLOURS = {"paused": "yellow", "training": "yellow", "receiving": "magenta", "holding": "cyan", "sent": "blue"}
_COLOURS |= {"staged": "green", "waiting": "dim", "left": "dim"}
_COLOURS |= dict.fromkeys(("silent", "refused", "revoked", "quarantined"), "red")
_SHOWN_ROUNDS = 12
_SHOWN_HOPS = 8
_SHOWN_CHANGES = 3
_SHOWN_FITS = 3
_SHOWN_BARS = 40
_BARS = "▁▂▃▄▅▆▇█"
# The text of a value by its form (`FieldForm`). Columns are wide enough that nothing jumps from frame to frame, and all
# fit 80 characters.
_FORMS: dict[str, Callable[[float], str]] = {
    "whole": str,
    "number": lambda value: f"{value:g}",
    "nats": lambda value: f"{value:.3f}",
    "percent": lambda value: f"{value:.0f} %",
    "bytes": lambda value: f"{value / 1e9:.1f} GB",
    "rate": lambda value: f"{value:.3g}",
}
_WIDTH, _WIDER, _WIDE = 5, 7, ("free", "battery")
_COLUMNS = {name: how for name, how in SHOWN.items() if how.column}
# The height of a view that nothing bounds.
_ANY_HEIGHT = 1_000


def draw_mesh(
    snapshot: Snapshot, rounds: Sequence[RoundSummary] = (), note: str = "", height: int = _ANY_HEIGHT
) -> RenderableType:
    """Draw one frame of at most `height` lines, if the devices fit. rounds: all finished ones, oldest first."""
    mesh, round_ = snapshot.mesh, snapshot.round
    exchange = round_.chart.exchange if round_ and round_.chart else None
    parts: list[RenderableType] = [_line(tell_doing(snapshot, f" by {mesh.policy}" if mesh.policy else ""))]
    parts.append(_draw_devices(mesh.devices, exchange))
    parts += [_line(Text(cut, style="yellow")) for cut in mesh.cuts]
    if round_ and exchange:
        parts.append(_line(Text(_tell_exchange(exchange, round_, mesh.devices), style="bold blue")))
    changes = [(number, point.changed) for number, point in snapshot.learning.rounds.items() if point.changed]
    scores = [summary.score for summary in rounds if summary.score is not None]
    rest = (len(scores) > 1, bool(changes), bool(snapshot.cloud), bool(note))
    room = height - len(mesh.devices) - len(parts) - sum(rest)
    shown = rounds[-max(1, min(_SHOWN_ROUNDS, room)) :]
    room -= len(shown)
    if round_ and round_.chart and round_.chart.hops and room > 1:
        parts.append(_draw_hops(round_.chart, round_.is_open, min(_SHOWN_HOPS, room - 1)))
    parts += [_line(Text(describe_summary(summary))) for summary in shown]
    if len(scores) > 1:
        parts.append(_line(Text(draw_scores(snapshot.learning.targets, scores), style="green")))
    if changes:  # later scores are those of other devices
        parts.append(_line(Text("; ".join(f"from round {each} {who}" for each, who in changes[-_SHOWN_CHANGES:]))))
    if snapshot.cloud:
        parts.append(_line(Text(f"cloud: version {snapshot.cloud.version}")))
    if note:
        parts.append(_line(Text(note, style="yellow")))
    return Group(*parts)


def tell_doing(snapshot: Snapshot, policy: str = "") -> Text:
    """Return the round, its leader, and what the mesh is doing, in one line. policy: said behind the leader."""
    mesh, round_ = snapshot.mesh, snapshot.round
    led = f", led by {mesh.agent}{policy}" if mesh.agent else ""
    number = f", round {round_.number}" + (f" of {round_.goal}" if round_.goal else "") if round_ else ""
    return Text.assemble((mesh.name, "bold"), f"{number}{led}: ", (mesh.told, "bold"))


def draw_addresses(snapshot: Snapshot) -> RenderableType:
    """Draw the address and the words of the key of each device that has been introduced."""
    table = Table.grid(padding=(0, 2))
    for name, device in snapshot.mesh.devices.items():
        if device.port:
            table.add_row(name, device.role, f"{device.host}:{device.port}", device.fingerprint)
    return table


def draw_energy(snapshot: Snapshot) -> RenderableType:
    """Draw the energy of each device that tells it: of its last round, since its start, and how it was obtained."""
    table = Table.grid(padding=(0, 2))
    for name, device in snapshot.mesh.devices.items():
        if device.energy_j is not None:
            of_round = "" if device.round_energy_j is None else f"{_joules(device.round_energy_j)} in its last round"
            table.add_row(
                name,
                of_round,
                f"{_joules(device.energy_j)} since it started",
                HOW.get(device.energy_from, device.energy_from),
            )
    return table


def _joules(value: float) -> str:
    return f"{value:.1f} J" if value < 1e4 else f"{value / 1e3:.1f} kJ"


def describe_summary(summary: RoundSummary) -> str:
    """Return a round in one line, for logs and where no live view can be drawn."""
    hops = ", ".join(f"{sender}→{receiver}" for sender, receiver in summary.hops)
    if summary.shares:
        hops = f"{summary.plan}, took {summary.exchange_s:.3g} s"
    accuracy = "" if summary.accuracy is None else f" accuracy {summary.accuracy:6.1%}"
    if summary.accuracy is None and summary.score is not None:
        accuracy = f" {show_score(summary.targets, summary.score)}"
    loss = "" if summary.loss is None else f" loss {summary.loss:.3f}"
    lost = f" without: {', '.join(summary.tell_lost())}" if summary.lost else ""
    notices = f" ({'; '.join(summary.notices)})" if summary.notices else ""
    return f"round {summary.round:>3} {summary.total_s:6.2f} s{loss}{accuracy}  {hops}{lost}{notices}"


def draw_curve(values: Sequence[float]) -> str:
    """Return a row of bars between the smallest and the largest value."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in values)


def _tell_exchange(exchange: ExchangePart, round_: RoundPart, devices: dict[str, DevicePart]) -> str:
    """Return the progress of a round in segments: the mean share of the result that is here, and the plan."""
    if exchange.end_s is not None or not round_.chart:
        return f"in segments: {exchange.plan}"
    here = [_share_here(devices[name]) for name in exchange.owns if name in devices]
    share = sum(here) / len(here) if here else 0.0
    return f"segments: {share:.0%} are there after {round_.chart.end_s - exchange.start_s:.1f} s; {exchange.plan}"


def _share_here(device: DevicePart) -> float:
    """Return the share of the result that is here, while it comes in segments."""
    return 1.0 if device.state == "staged" else device.arrived or 0.0


def _draw_devices(devices: dict[str, DevicePart], exchange: ExchangePart | None) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("device", no_wrap=True, overflow="ellipsis", min_width=8)
    table.add_column("doing", min_width=18)  # the one that a narrow terminal cuts
    for title in (*(how.column for how in _COLUMNS.values()), "gave", "battery"):
        table.add_column(title, justify="right", no_wrap=True, min_width=_WIDER if title in _WIDE else _WIDTH)
    owns = exchange.owns if exchange and exchange.end_s is None else {}
    for name, device in devices.items():
        table.add_row(
            name,
            _line(_tell_device(device, owns.get(name))),
            *(_tell_value(getattr(device, field), how) for field, how in _COLUMNS.items()),
            f"{device.took_part}/{device.of_rounds}" if device.of_rounds else "",
            _tell_power(device),
        )
    return table


def _tell_device(device: DevicePart, owns: int | None) -> Text:
    """Describe a device's activity. owns: its segments of a round that goes in segments; None: it does not."""
    if owns is not None and device.state == "holding":  # it holds its own delta meanwhile
        return Text(f"segments {_share_here(device):.0%}, owns {owns}", style=_COLOURS["receiving"])
    doing = device.doing + (f" for {device.silent_s} s" if device.silent_s else "")
    if device.arrived is not None:
        doing = f"{device.state} {device.arrived:.0%} from {device.arrives_from}"
    leads = "leads, " if device.leads and device.doing != "leads" else ""
    return Text(f"{leads}{doing}", style=_COLOURS.get(device.state, ""))


def _tell_value(value: float | None, how: FieldForm) -> str:
    return "" if value is None else _FORMS[how.form](value)


def _tell_power(device: DevicePart) -> str:
    if device.battery_percent is None:
        return "mains" if device.cpu_percent is not None else ""
    return f"{device.battery_percent:.0f} %" + (" +" if device.charging else "")


def _draw_hops(chart: ChartPart, is_open: bool, most: int) -> RenderableType:
    """Draw the last hops of a round, each with the reason of the schedule."""
    lines = [Text("hops of this round" if is_open else "hops of the last round", style="bold")]
    for hop in list(chart.hops.values())[-most:]:
        took = "" if hop.end_s is None else f" {hop.end_s - hop.start_s:.2f} s"
        lines.append(_line(Text(f"{hop.sender} → {hop.receiver}  {hop.outcome}{took}  {hop.reason}")))
    return Group(*lines)


def draw_scores(targets: Targets, scores: Sequence[float]) -> str:
    """Return a curve of the last scores, with the first and the last score of all."""
    first, last = (show_value(targets, each) for each in (scores[0], scores[-1]))
    return f"{MEASURES[targets]} {draw_curve(scores[-_SHOWN_BARS:])} {first} → {last}"


def _line(text: Text) -> Text:
    """Cut the text to one line, however narrow the terminal is."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _remark(result: dict[str, Any]) -> str:
    if result["targets"] == "numbers":
        fits = list(result["fits"].items())[:_SHOWN_FITS]
        return ", ".join(f"{name}: RMSE {fit['rmse']:.4g}, MAE {fit['mae']:.4g}" for name, fit in fits)
    exact = f", {result['exact']:.1%} of windows all right" if result["targets"] == "labels" else ""
    return f"macro F1 {result['macro_f1'] or 0:.3f}{exact}"


def show_result(result: dict[str, Any], console: Console) -> None:
    """Print the result of a run of `mdl up` for people."""

    targets: Targets = result["targets"]

    def show(value: float | None) -> str:
        return "-" if value is None else show_value(targets, value)

    rows = [("mesh", show(result["score"]), _remark(result))]
    if result["score_alone"] is not None:
        gain = (result["score"] or 0) - result["score_alone"]
        gained = f"{gain:+.3f}" if targets == "numbers" else f"{100 * gain:+.1f} points"
        rows.append(("alone", show(result["score_alone"]), f"median device: the mesh gained {gained}"))
        rows.append(("central", show(result["score_central"]), "all data in one place: what the mesh avoids"))
    table = Table("", MEASURES[targets], "", box=None, pad_edge=False)
    for index, (name, score, remark) in enumerate(rows):
        table.add_row(name, score, remark, style="" if index else "bold")
    lines = [f"{result['rounds']} rounds in {result['seconds']:.1f} s, {result['round_s_median']:.2f} s a round"]
    if result["max_relative_error"] is not None:
        lines.append(f"verified: each round's result within {result['max_relative_error']:.1e} of the central mean")
    if result["ended_by"]:
        lines.append(f"ended: {result['ended_by']}")
    lines.append(f"{result['wire_bytes'] / 1e6:.1f} MB on the wire; everything is in {result['run_dir']}")
    lines.append(f"next: mdl eval {result['run_dir']}   mdl predict {result['run_dir']}")
    console.print()
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


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
