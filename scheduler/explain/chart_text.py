"""A schedule on a terminal: a Gantt chart, the hops with their reasons, the delays. Draws a chart, keeps none.

Every kind of span has its own sign, so that a chart without colours, or in a file, can be read as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mdl.scheduler.explain.chart import Chart, ChartHop, Row, Span, SpanKind, Waited

# Kind -> sign, sign if only ASCII can be printed, style.
_SIGNS = {
    SpanKind.TRAINING: ("░", "~", "yellow"),
    SpanKind.WAITING: ("·", ".", "dim"),
    SpanKind.BUSY: ("▒", "#", "red"),
    SpanKind.SEND: ("━", ">", "bold blue"),
    SpanKind.RECEIVE: ("─", "<", "cyan"),
    SpanKind.SEGMENTS: ("═", "=", "bold blue"),
    SpanKind.STALLED: ("╳", "!", "bold red"),
    SpanKind.MERGE: ("◆", "+", "green"),
    SpanKind.DONE: (" ", " ", "dim"),
    SpanKind.LOST: ("✕", "x", "red"),
}
_MEANS = {
    SpanKind.TRAINING: "training",
    SpanKind.WAITING: "free, waiting",
    SpanKind.BUSY: "busy",
    SpanKind.SEND: "sends (→ receiver)",
    SpanKind.RECEIVE: "receives (← sender)",
    SpanKind.SEGMENTS: "gives and gets segments",
    SpanKind.STALLED: "its hop stands still",
    SpanKind.MERGE: "merges",
    SpanKind.LOST: "lost",
}
_IN_HOP = (SpanKind.SEND, SpanKind.RECEIVE, SpanKind.STALLED, SpanKind.MERGE)
_LONGEST_NAME = 16
_FEWEST_CELLS = 20
_TICKS = 6
_MOST_DELAYS = 40
# Values of each half of a decision that are shown; all are in --json.
_SHOWN_VALUES = 4


def show_chart(chart: Chart, console: Console) -> None:
    console.print(draw_chart(chart, console.width, _is_plain(console)))


def draw_chart(chart: Chart, width: int = 80, plain: bool = False) -> RenderableType:
    """Draw the chart. plain: only ASCII signs."""
    parts: list[RenderableType] = [Text(chart.title, style="bold"), _draw_rows(chart, width, plain)]
    if chart.exchange:
        parts += [Text(), Text("segments", style="bold"), Text(chart.exchange.plan), Text(chart.exchange.tell())]
    if chart.why_hops:
        parts += [Text(), Text(f"by hops: {chart.why_hops}")]
    if chart.hops or chart.waits:
        parts += [Text(), _draw_decisions(chart, plain)]
    if chart.delays:
        parts += [Text(), _draw_delays(chart, plain)]
    return Group(*parts)


def tell_hop(sender: str, receiver: str, plain: bool = False) -> str:
    return f"{sender} {'->' if plain else '→'} {receiver}"


def _is_plain(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


# -- rows -------------------------------------------------------------------------------------------------------------


def _draw_rows(chart: Chart, width: int, plain: bool) -> RenderableType:
    margin = min(_LONGEST_NAME, max([len(row.device) for row in chart.rows], default=1)) + 1
    scale = _Scale(chart.start_s, chart.end_s, max(_FEWEST_CELLS, width - margin - 1))
    lines = [_draw_row(row, scale, margin, plain) for row in chart.rows]
    lines.append(Text(" " * margin + _draw_axis(scale), style="dim"))
    kinds = {span.kind for row in chart.rows for span in row.spans}
    lines.append(_draw_legend(kinds, margin, width, plain))
    return Group(*lines)


@dataclass(frozen=True)
class _Scale:
    """Maps a moment to its cell. A chart without any length has everything in the first."""

    start_s: float
    end_s: float
    cells: int

    def place(self, at_s: float) -> float:
        """Return a position in cells, from 0 to `cells`; moments before the start are at 0."""
        length_s = self.end_s - self.start_s
        return self.cells * min(1.0, max(0.0, (at_s - self.start_s) / length_s)) if length_s > 0 else 0.0


def _draw_row(row: Row, scale: _Scale, margin: int, plain: bool) -> Text:
    line = Text(_clip(row.device, margin - 1).ljust(margin), no_wrap=True, overflow="crop")
    kinds = _fill(row.spans, scale)
    signs = [_SIGNS[kind][plain] for kind in kinds]
    for begin, end, span in _hop_runs(row.spans, scale):
        mark = ("->" if plain else "→") if span.kind is SpanKind.SEND else ("<-" if plain else "←")
        label = f"{mark}{span.partner}"
        if len(label) <= end - begin:
            signs[begin : begin + len(label)] = label
    for sign, kind in zip(signs, kinds, strict=True):
        line.append(sign, _SIGNS[kind][2])
    return line


def _fill(spans: Sequence[Span], scale: _Scale) -> list[SpanKind]:
    """Return the kind of each cell: the one that takes most of it."""
    kinds = [SpanKind.DONE] * scale.cells
    most = [0.0] * scale.cells
    for span in spans:
        begin, end = scale.place(span.start_s), scale.place(span.end_s)
        for cell in range(int(begin), min(scale.cells - 1, int(end)) + 1):
            part = min(end, cell + 1) - max(begin, cell)
            if part > most[cell]:
                kinds[cell], most[cell] = span.kind, part
    return kinds


def _hop_runs(spans: Sequence[Span], scale: _Scale) -> list[tuple[int, int, Span]]:
    """Return first and last cell of each hop of a row, with the span that shows its direction."""
    runs: list[tuple[float, float, Span]] = []
    for span in spans:
        if span.kind not in _IN_HOP:
            continue
        if runs and (runs[-1][1], runs[-1][2].partner) == (span.start_s, span.partner):
            told = span if runs[-1][2].kind is SpanKind.STALLED and span.kind is SpanKind.SEND else runs[-1][2]
            runs[-1] = (runs[-1][0], span.end_s, told)
        else:
            runs.append((span.start_s, span.end_s, span))
    return [(round(scale.place(begin)), round(scale.place(end)), span) for begin, end, span in runs]


def _draw_axis(scale: _Scale) -> str:
    cells, length_s = scale.cells, scale.end_s - scale.start_s
    axis = [" "] * (cells + 1)
    for tick in range(_TICKS + 1):
        at_s = scale.start_s + length_s * tick / _TICKS
        label = f"{at_s:.{choose_decimals(length_s)}f}" + (" s" if tick == _TICKS else "")
        begin = min(max(0, round(tick * cells / _TICKS) - len(label) // 2), cells + 1 - len(label))
        axis[begin : begin + len(label)] = label
    return "".join(axis)


def choose_decimals(length_s: float) -> int:
    """Return the decimals of seconds on an axis of this length."""
    return 1 if length_s >= 10 else 2 if length_s >= 1 else 3


def _draw_legend(kinds: set[SpanKind], margin: int, width: int, plain: bool) -> Text:
    legend = Text()
    used = len(" " * margin)
    legend.append(" " * margin)
    for kind, meaning in _MEANS.items():
        if kind not in kinds:
            continue
        entry = f"{_SIGNS[kind][plain]} {meaning.replace('→', '->').replace('←', '<-') if plain else meaning}   "
        if used + len(entry.rstrip()) > width:
            legend.append("\n" + " " * margin)
            used = margin
        legend.append(entry[0], _SIGNS[kind][2])
        legend.append(entry[1:], "dim")
        used += len(entry)
    return legend


# -- decisions --------------------------------------------------------------------------------------------------------


def _draw_decisions(chart: Chart, plain: bool) -> RenderableType:
    """Draw hops and waits in the order of their decisions."""
    table = Table(box=None, pad_edge=False, title="decisions", title_justify="left", title_style="bold")
    table.add_column("#", justify="right", no_wrap=True)
    for column in ("at s", "took s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("hop", no_wrap=True)
    table.add_column("why", overflow="fold")
    decimals = max(2, choose_decimals(chart.end_s - chart.start_s))
    decisions: list[ChartHop | Waited] = sorted([*chart.waits, *chart.hops], key=_decided_at)
    for each in decisions:
        why = Text(each.reason)
        if isinstance(each, ChartHop) and each.outcome != "merged":
            why = Text(f"{each.outcome}; ", style="red") + why
        if isinstance(each, ChartHop) and each.stalled_s > 0.0:
            by = " and ".join(each.stalled_by)
            were = "was" if len(each.stalled_by) == 1 else "were"
            why.append(f"; {each.stalled_s:.{decimals}f} s of it stood still: {by} {were} busy", style="red")
        if each.q:
            why.append(f"\nQ: {_tell_q(each.q)}", style="dim")
        if isinstance(each, ChartHop):
            took = "" if each.end_s is None else f"{each.end_s - each.start_s:.{decimals}f}"
            hop = tell_hop(each.sender, each.receiver, plain)
            table.add_row(str(each.number), f"{each.start_s:.{decimals}f}", took, hop, why)
        else:
            times = f" ({each.times} times, until {each.until_s:.{decimals}f} s)" if each.times > 1 else ""
            table.add_row("", f"{each.time_s:.{decimals}f}", "", "wait", why + Text(times), style="dim")
    return table


def _decided_at(each: ChartHop | Waited) -> tuple[float, int]:
    if isinstance(each, ChartHop):
        return each.start_s, 0
    return each.time_s, 1


def _tell_q(q: Sequence[tuple[str, float]]) -> str:
    """Tell the best alternatives: first for the sender, then for the receiver."""
    first = [each for each in q if "->" not in each[0]]
    told = [first[:_SHOWN_VALUES], [each for each in q if each not in first][:_SHOWN_VALUES]]
    return "; ".join(", ".join(f"{action} {value:.2f}" for action, value in part) for part in told if part)


# -- delays -----------------------------------------------------------------------------------------------------------


def _draw_delays(chart: Chart, plain: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, title="waits, and why", title_justify="left", title_style="bold")
    table.add_column("device", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("until its hop with", no_wrap=True)
    table.add_column("because", overflow="fold")
    decimals = max(2, choose_decimals(chart.end_s - chart.start_s))
    for delay in chart.delays[:_MOST_DELAYS]:
        table.add_row(delay.device, f"{delay.waited_s:.{decimals}f}", delay.partner, delay.why)
    if len(chart.delays) > _MOST_DELAYS:
        table.add_row("...", "", "", f"{len(chart.delays) - _MOST_DELAYS} more; all are in --json")
    return table


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "~"
