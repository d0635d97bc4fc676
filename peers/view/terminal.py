"""The mesh on a terminal: activities, transfers, and the curve of the score. Draws a status, keeps none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mdl.protocol.counts import MEASURES, show_score, show_value
from mdl.protocol.status_messages import HopSummary, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import Activity
from mdl.task import Targets

_COLOURS = {
    Activity.WAITING: "dim",
    Activity.TRAINING: "yellow",
    Activity.HOLDING: "cyan",
    Activity.RECEIVING: "magenta",
    Activity.SENT: "blue",
    Activity.STAGED: "green",
    Activity.LEFT: "dim",
}
_SHOWN_ROUNDS = 12
_SHOWN_HOPS = 6
_SHOWN_FITS = 3
_SHOWN_BARS = 40
_BARS = "▁▂▃▄▅▆▇█"


def draw_mesh(
    status: MeshStatus | None, rounds: Sequence[RoundSummary], note: str = "", height: int = 40
) -> RenderableType:
    """Draw one frame of at most `height` lines, if the members fit. rounds: all finished ones, oldest first."""
    if status is None:
        return Text(note or "looking for the mesh ...", style="dim")
    goal = f" of {status.rounds}" if status.rounds else ""
    head = Text.assemble(
        ("mdl ", "bold"), f"round {status.round_id}{goal}, ", (status.phase, "bold"), f", policy {status.policy}"
    )
    parts: list[RenderableType] = [_cut(head), _draw_members(status.members, status.shares)]
    room = height - len(status.members) - 4 - bool(note) - bool(_notices(status)) - bool(status.shares)
    if rounds:
        parts += [_draw_rounds(rounds, max(1, min(_SHOWN_ROUNDS, room)))]
        room -= min(len(rounds), _SHOWN_ROUNDS)
    if status.hops and room > 1:
        parts.insert(2, _draw_hops(status.hops[-min(_SHOWN_HOPS, room - 1) :]))
    if status.shares:
        parts.insert(2, _cut(Text(_describe_exchange(status), style="bold blue")))
    if notices := _notices(status):
        parts.insert(2, _cut(Text("; ".join(notices), style="yellow")))
    if note:
        parts.append(_cut(Text(note, style="yellow")))
    return Group(*parts)


def _notices(status: MeshStatus) -> tuple[str, ...]:
    return (*status.cuts, *status.doubts, *status.unlike)


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
    notices = (*summary.cuts, *summary.doubts)
    cuts = f" ({'; '.join(notices)})" if notices else ""
    return f"round {summary.round:>3} {summary.total_s:6.2f} s{loss}{accuracy}  {hops}{lost}{cuts}"


def draw_curve(values: Sequence[float]) -> str:
    """Return a row of bars between the smallest and the largest value."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in values)


def _describe_exchange(status: MeshStatus) -> str:
    """Return the progress of a round in segments: the mean share of the result that is here, and the plan."""
    parts = [_share_here(member) for member in status.members if member.peer_id in status.shares]
    here = sum(parts) / len(parts) if parts else 0.0
    return f"segments: {here:.0%} are there after {status.exchanging_s:.1f} s; {status.plan}"


def _share_here(member: MemberStatus) -> float:
    """Return the share of the result that is here, while it comes in segments."""
    if member.activity is Activity.STAGED:
        return 1.0
    transfer = member.transfer
    return transfer.received_bytes / transfer.size_bytes if transfer and transfer.size_bytes else 0.0


def _draw_members(members: Sequence[MemberStatus], shares: Mapping[str, int]) -> Table:
    table = Table(box=None, pad_edge=False)
    # Fixed widths, so that nothing jumps from frame to frame; together they fit 80 columns.
    table.add_column("peer", no_wrap=True, overflow="ellipsis", min_width=8)
    table.add_column("doing", no_wrap=True, overflow="ellipsis", min_width=22)
    for column, width in (("round", 5), ("theta", 5), ("loss", 5), ("cpu", 5), ("free", 8), ("battery", 7)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    for member in members:
        resources = member.resources
        battery = resources.battery_percent if resources else None
        table.add_row(
            member.peer_id,
            _describe_activity(member, shares),
            str(member.round_id),
            f"{member.theta:g}" if member.theta else "",
            "" if member.loss is None else f"{member.loss:.3f}",
            f"{resources.cpu_percent:.0f} %" if resources else "",
            f"{resources.free_memory_bytes / 1e9:.1f} GB" if resources else "",
            "mains" if battery is None else f"{battery:.0f} %",
        )
    return table


def _describe_activity(member: MemberStatus, shares: Mapping[str, int]) -> Text:
    """Describe a member's activity. shares: of a round in segments; its devices hold their own deltas meanwhile."""
    if member.problem:
        told = member.problem if member.problem.startswith("quarantined: ") else f"refused: {member.problem}"
        return Text(told, style="red")
    if not member.alive:
        return Text(f"silent for {member.heard_s_ago:.0f} s", style="red")
    if member.activity is Activity.HOLDING and member.peer_id in shares:
        text = f"segments {_share_here(member):.0%}, owns {shares[member.peer_id]}"
        return Text(text, style=_COLOURS[Activity.RECEIVING])
    text = member.activity.value
    if member.transfer and member.transfer.size_bytes:
        share = member.transfer.received_bytes / member.transfer.size_bytes
        text += f" {share:.0%} from {member.transfer.sender}"
    return Text(text, style=_COLOURS[member.activity])


def _draw_hops(hops: Sequence[HopSummary]) -> RenderableType:
    """Draw the hops of the open round, each with the reason of the schedule."""
    lines = [Text("hops of this round", style="bold")]
    for hop in hops:
        took = "" if hop.decided_s is None else f" {hop.decided_s - hop.ordered_s:.2f} s"
        lines.append(_cut(Text(f"{hop.sender} → {hop.receiver}  {hop.outcome}{took}  {hop.reason}")))
    return Group(*lines)


def _draw_rounds(rounds: Sequence[RoundSummary], shown: int) -> RenderableType:
    lines = [_cut(Text(describe_summary(summary))) for summary in rounds[-shown:]]
    scores = [summary.score for summary in rounds if summary.score is not None]
    if len(scores) > 1:
        curve = draw_scores(next(each.targets for each in reversed(rounds) if each.score is not None), scores)
        lines.append(_cut(Text(curve, style="green")))
    return Group(*lines)


def draw_scores(targets: Targets, scores: Sequence[float]) -> str:
    """Return a curve of the last scores, with the first and the last score of all."""
    first, last = (show_value(targets, each) for each in (scores[0], scores[-1]))
    return f"{MEASURES[targets]} {draw_curve(scores[-_SHOWN_BARS:])} {first} → {last}"


def _cut(text: Text) -> Text:
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
