"""A schedule on a terminal: a Gantt chart, the hops with their reasons, who waited for whom. Draws a chart, keeps none.

Every kind of span has a sign of its own, so that a chart without colours, or in a file, can be read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scheduler.gantt import Chart, ChartHop, Row, Span, SpanKind, Waited

# Kind -> sign, sign where only ASCII can be printed, style.
_SIGNS = {
    SpanKind.TRAINING: ("░", "~", "yellow"),
    SpanKind.WAITING: ("·", ".", "dim"),
    SpanKind.BUSY: ("▒", "#", "red"),
    SpanKind.SEND: ("━", ">", "bold blue"),
    SpanKind.RECEIVE: ("─", "<", "cyan"),
    SpanKind.STALLED: ("╳", "!", "bold red"),
    SpanKind.MERGE: ("◆", "+", "green"),
    SpanKind.DONE: (" ", " ", "dim"),
    SpanKind.LOST: ("✕", "x", "red"),
}
_MEANS = {
    SpanKind.TRAINING: "training",
    SpanKind.WAITING: "free, waiting",
    SpanKind.BUSY: "busy",
    SpanKind.SEND: "sends (→ to whom)",
    SpanKind.RECEIVE: "receives (← from whom)",
    SpanKind.STALLED: "its hop stands still",
    SpanKind.MERGE: "merges",
    SpanKind.LOST: "lost",
}
_IN_HOP = (SpanKind.SEND, SpanKind.RECEIVE, SpanKind.STALLED, SpanKind.MERGE)
_LONGEST_NAME = 16
_FEWEST_CELLS = 20
_TICKS = 6
_MOST_DELAYS = 40


def show_chart(chart: Chart, console: Console) -> None:
    console.print(draw_chart(chart, console.width, _is_plain(console)))


def draw_chart(chart: Chart, width: int = 80, plain: bool = False) -> RenderableType:
    """plain: only ASCII signs."""
    parts: list[RenderableType] = [Text(chart.title, style="bold"), _draw_rows(chart, width, plain), Text()]
    parts += [_draw_decisions(chart, plain)]
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
    cells = max(_FEWEST_CELLS, width - margin - 1)
    lines = [_draw_row(row, chart.end_s, margin, cells, plain) for row in chart.rows]
    lines.append(Text(" " * margin + _draw_axis(chart.end_s, cells), style="dim"))
    kinds = {span.kind for row in chart.rows for span in row.spans}
    lines.append(_draw_legend(kinds, margin, width, plain))
    return Group(*lines)


def _draw_row(row: Row, end_s: float, margin: int, cells: int, plain: bool) -> Text:
    line = Text(_clip(row.device, margin - 1).ljust(margin), no_wrap=True, overflow="crop")
    kinds = _fill(row.spans, end_s, cells)
    signs = [_SIGNS[kind][plain] for kind in kinds]
    for begin, end, span in _hop_runs(row.spans, end_s, cells):
        mark = ("->" if plain else "→") if span.kind is SpanKind.SEND else ("<-" if plain else "←")
        label = f"{mark}{span.partner}"
        if len(label) <= end - begin:
            signs[begin : begin + len(label)] = label
    for sign, kind in zip(signs, kinds, strict=True):
        line.append(sign, _SIGNS[kind][2])
    return line


def _fill(spans: Sequence[Span], end_s: float, cells: int) -> list[SpanKind]:
    """The kind of each cell: whatever takes most of it."""
    kinds = [SpanKind.DONE] * cells
    most = [0.0] * cells
    per_cell_s = end_s / cells
    for span in spans if per_cell_s > 0 else ():
        first, last = int(span.start_s / per_cell_s), min(cells - 1, int(span.end_s / per_cell_s))
        for cell in range(first, last + 1):
            part_s = min(span.end_s, (cell + 1) * per_cell_s) - max(span.start_s, cell * per_cell_s)
            if part_s > most[cell]:
                kinds[cell], most[cell] = span.kind, part_s
    return kinds


def _hop_runs(spans: Sequence[Span], end_s: float, cells: int) -> list[tuple[int, int, Span]]:
    """First and last cell of each hop of a row, with the span that says which direction it goes."""
    runs: list[tuple[float, float, Span]] = []
    for span in spans:
        if span.kind not in _IN_HOP:
            continue
        if runs and (runs[-1][1], runs[-1][2].partner) == (span.start_s, span.partner):
            told = span if runs[-1][2].kind is SpanKind.STALLED and span.kind is SpanKind.SEND else runs[-1][2]
            runs[-1] = (runs[-1][0], span.end_s, told)
        else:
            runs.append((span.start_s, span.end_s, span))
    scale = cells / end_s if end_s > 0 else 0.0
    return [(round(begin * scale), min(cells, round(end * scale)), span) for begin, end, span in runs]


def _draw_axis(end_s: float, cells: int) -> str:
    axis = [" "] * (cells + 1)
    for tick in range(_TICKS + 1):
        place = round(tick * cells / _TICKS)
        label = f"{end_s * tick / _TICKS:.{_decimals(end_s)}f}" + (" s" if tick == _TICKS else "")
        begin = min(max(0, place - len(label) // 2), cells + 1 - len(label))
        axis[begin : begin + len(label)] = label
    return "".join(axis)


def _decimals(end_s: float) -> int:
    return 1 if end_s >= 10 else 2 if end_s >= 1 else 3


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
    """Hops and waits in the order in which they were decided."""
    table = Table(box=None, pad_edge=False, title="decisions", title_justify="left", title_style="bold")
    table.add_column("#", justify="right", no_wrap=True)
    for column in ("at s", "took s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("hop", no_wrap=True)
    table.add_column("why", overflow="fold")
    decisions: list[ChartHop | Waited] = sorted([*chart.waits, *chart.hops], key=_decided_at)
    for each in decisions:
        why = Text(each.reason)
        if isinstance(each, ChartHop) and each.outcome != "merged":
            why = Text(f"{each.outcome}; ", style="red") + why
        if each.q:
            why.append(f"\nQ: {_tell_q(each.q, plain)}", style="dim")
        if isinstance(each, ChartHop):
            took = "" if each.end_s is None else f"{each.end_s - each.start_s:.2f}"
            hop = tell_hop(each.sender, each.receiver, plain)
            table.add_row(str(each.number), f"{each.start_s:.2f}", took, hop, why)
        else:
            times = f" ({each.times} times, until {each.until_s:.2f} s)" if each.times > 1 else ""
            table.add_row("", f"{each.time_s:.2f}", "", "wait", why + Text(times), style="dim")
    return table


def _decided_at(each: ChartHop | Waited) -> tuple[float, int]:
    if isinstance(each, ChartHop):
        return each.start_s, 0
    return each.time_s, 1


def _tell_q(q: Sequence[tuple[str, float]], plain: bool) -> str:
    told = ", ".join(f"{action} {value:.3f}" for action, value in q)
    return told.replace("→", "->") if plain else told


# -- delays -----------------------------------------------------------------------------------------------------------


def _draw_delays(chart: Chart, plain: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, title="who waited for whom", title_justify="left", title_style="bold")
    table.add_column("who", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("until its hop with", no_wrap=True)
    table.add_column("because", overflow="fold")
    for delay in chart.delays[:_MOST_DELAYS]:
        table.add_row(delay.device, f"{delay.waited_s:.2f}", delay.partner, delay.why)
    if len(chart.delays) > _MOST_DELAYS:
        table.add_row("...", "", "", f"{len(chart.delays) - _MOST_DELAYS} more; all are in --json")
    return table


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "~"
