"""A schedule on a terminal: a Gantt chart, the hops with their reasons, the delays. Draws a chart, keeps none.

Every kind of span has its own sign, so that a chart without colours, or in a file, can be read as well.

The same as a picture: SVG, written here, or PNG by matplotlib if it is installed.

The devices of a shown schedule, as policies see them: links, merges, use, battery. `close_round` tells which of them a
mesh's round would not wait for, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from math import inf
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mdl.devices.scenario import Scenario
from mdl.devices.usage import UsageKind, periods_begun
from mdl.errors import ConfigError
from mdl.scheduler.explain.chart import Chart, ChartHop, Row, Span, SpanKind, Waited
from mdl.scheduler.explain.recorded_round import RealRound
from mdl.scheduler.rounds.participation import Close, DeviceSeen, ParticipationRule, RoundSeen

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


def _clip(text: str, length: int, end: str = "~") -> str:
    return text if len(text) <= length else text[: length - 1] + end


_COLOURS = {
    SpanKind.TRAINING: "#f2c14e",
    SpanKind.WAITING: "#e6e6e6",
    SpanKind.BUSY: "#d1495b",
    SpanKind.SEND: "#2e5eaa",
    SpanKind.RECEIVE: "#5fa8d3",
    SpanKind.SEGMENTS: "#3b7dd8",
    SpanKind.STALLED: "#8d5a97",
    SpanKind.MERGE: "#4f9d69",
    SpanKind.LOST: "#444444",
}
_PICTURE_MEANS = {
    SpanKind.TRAINING: "training",
    SpanKind.WAITING: "free, waiting",
    SpanKind.BUSY: "busy",
    SpanKind.SEND: "sends",
    SpanKind.RECEIVE: "receives",
    SpanKind.SEGMENTS: "gives and gets segments",
    SpanKind.STALLED: "hop stands still",
    SpanKind.MERGE: "merges",
    SpanKind.LOST: "lost",
}
_WIDTH, _LEFT, _TOP, _ROW, _BAR, _RIGHT = 1000, 110, 56, 30, 20, 24
_PICTURE_TICKS = 8
_LABEL_PX = 7.0
_MOST_LETTERS, _LABEL_LETTERS = 140, 14
_DPI = 120
_INCH_PX = 100.0


def write_picture(chart: Chart, path: Path) -> None:
    """Write SVG or PNG by the file's ending. Raises ConfigError for another one, or for a PNG without matplotlib."""
    match path.suffix.lower():
        case ".svg":
            _write(path, draw_svg(chart).encode())
        case ".png":
            _write_png(chart, path)
        case _:
            raise ConfigError(f"--out {path}: expected a name that ends in .svg or .png")


def draw_svg(chart: Chart) -> str:
    """Draw the whole picture; a hop's reason appears under the pointer."""
    height = _TOP + _ROW * len(chart.rows) + 70
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
    )
    parts = [head, f'<rect width="{_WIDTH}" height="{height}" fill="white"/>']
    parts.append(f'<text x="{_LEFT}" y="24" font-size="15" font-weight="bold">{escape(chart.title)}</text>')
    if chart.exchange:
        told = f"{chart.exchange.plan}; {chart.exchange.tell()}"
        parts.append(f'<text x="{_LEFT}" y="42">{escape(_clip(told, _MOST_LETTERS, "…"))}</text>')
    parts += [*_axis(chart), *_bars(chart), *_arrows(chart), *_legend(chart, height), "</svg>"]
    return "\n".join(parts) + "\n"


def _write(path: Path, picture: bytes) -> None:
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from None


def _x(chart: Chart, at_s: float) -> float:
    length_s = chart.end_s - chart.start_s
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (max(0.0, at_s - chart.start_s) / length_s if length_s > 0 else 0.0)


def _y(chart: Chart, device: str) -> float:
    """Return the middle of the device's bar."""
    return _TOP + _ROW * next(index for index, row in enumerate(chart.rows) if row.device == device) + _ROW / 2


def _axis(chart: Chart) -> Iterator[str]:
    bottom = _TOP + _ROW * len(chart.rows)
    decimals = choose_decimals(chart.end_s - chart.start_s)
    for tick in range(_PICTURE_TICKS + 1):
        at_s = chart.start_s + (chart.end_s - chart.start_s) * tick / _PICTURE_TICKS
        x = _x(chart, at_s)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{at_s:.{decimals}f}</text>'
    yield f'<text x="{_LEFT - 26}" y="{bottom + 16}" text-anchor="end">seconds</text>'


def _bars(chart: Chart) -> Iterator[str]:
    for row in chart.rows:
        middle, name = _y(chart, row.device), _clip(row.device, _LABEL_LETTERS, "…")
        yield f'<text x="{_LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        for span in row.spans:
            if span.kind is SpanKind.DONE:
                continue
            begin, end = _x(chart, span.start_s), _x(chart, span.end_s)
            thin = span.kind is SpanKind.WAITING
            height = _BAR / 4 if thin else _BAR
            yield (
                f'<rect x="{begin:.1f}" y="{middle - height / 2:.1f}" width="{max(0.5, end - begin):.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS[span.kind]}"><title>{escape(_describe(row.device, span))}'
                "</title></rect>"
            )


def _arrows(chart: Chart) -> Iterator[str]:
    """Draw an arrow from sender to receiver at the beginning of each hop, with its number."""
    for hop in chart.hops:
        x, upper, lower = _x(chart, hop.start_s), _y(chart, hop.sender), _y(chart, hop.receiver)
        down = lower > upper
        upper, lower = upper + (_BAR / 2 if down else -_BAR / 2), lower - (_BAR / 2 if down else -_BAR / 2)
        side = -5 if down else 5
        yield f'<g stroke="#222222" fill="#222222"><title>{escape(_describe_hop(hop))}</title>'
        yield f'<line x1="{x:.1f}" y1="{upper:.1f}" x2="{x:.1f}" y2="{lower:.1f}"/>'
        yield (
            f'<path d="M {x:.1f} {lower:.1f} L {x - 3:.1f} {lower + side:.1f} L {x + 3:.1f} {lower + side:.1f} Z" '
            'stroke="none"/></g>'
        )
        end_s = hop.end_s if hop.end_s is not None else chart.end_s
        label = f"#{hop.number} → {hop.receiver}"
        if _x(chart, end_s) - x > len(label) * _LABEL_PX + 4:
            yield (
                f'<text x="{x + 4:.1f}" y="{_y(chart, hop.sender) + 4:.1f}" fill="white" pointer-events="none">'
                f"{escape(label)}</text>"
            )


def _legend(chart: Chart, height: int) -> Iterator[str]:
    x = float(_LEFT)
    kinds = {span.kind for row in chart.rows for span in row.spans}
    for kind, meaning in _PICTURE_MEANS.items():
        if kind in kinds:
            yield f'<rect x="{x:.1f}" y="{height - 28}" width="12" height="12" fill="{_COLOURS[kind]}"/>'
            yield f'<text x="{x + 17:.1f}" y="{height - 18}">{meaning}</text>'
            x += 34 + len(meaning) * _LABEL_PX


def _describe(device: str, span: Span) -> str:
    partner = f" ({span.partner})" if span.partner else ""
    return f"{device}: {span.kind.value}{partner}, {span.start_s:.2f} to {span.end_s:.2f} s"


def _describe_hop(hop: ChartHop) -> str:
    return f"hop {hop.number}: {hop.sender} → {hop.receiver} at {hop.start_s:.2f} s, {hop.outcome}: {hop.reason}"


def _write_png(chart: Chart, path: Path) -> None:
    try:
        figures, patches = import_module("matplotlib.figure"), import_module("matplotlib.patches")
    except ImportError:
        raise ConfigError(f"--out {path}: PNG needs matplotlib (pip install matplotlib); SVG needs nothing") from None
    height_px = _TOP + _ROW * len(chart.rows) + 70
    figure = figures.Figure(figsize=(_WIDTH / _INCH_PX, max(3.0, height_px / _INCH_PX)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(chart.rows):
        for span in row.spans:
            if span.kind is not SpanKind.DONE:
                high = 0.15 if span.kind is SpanKind.WAITING else 0.7
                bar = [(span.start_s, span.end_s - span.start_s)]
                axes.broken_barh(bar, (place - high / 2, high), facecolors=_COLOURS[span.kind])
    places = {row.device: place for place, row in enumerate(chart.rows)}
    for hop in chart.hops:
        ends = {"xy": (hop.start_s, places[hop.receiver]), "xytext": (hop.start_s, places[hop.sender])}
        axes.annotate("", arrowprops={"arrowstyle": "->", "color": "#222222"}, **ends)
        axes.text(hop.start_s, places[hop.sender], f" {hop.number}", color="white", va="center", fontsize=8)
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(len(chart.rows) - 0.4, -0.6)
    axes.set_xlim(chart.start_s, chart.end_s)
    axes.set_xlabel("seconds")
    axes.set_title(chart.title)
    kinds = {span.kind for row in chart.rows for span in row.spans}
    handles = [
        patches.Patch(color=_COLOURS[kind], label=meaning) for kind, meaning in _PICTURE_MEANS.items() if kind in kinds
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from None


_MOST_SHOWN = 64


class ShownDevice(msgspec.Struct, frozen=True):
    """link_mb_s, merge_mb_s: MB/s, None until a hop has shown them. battery_percent: None on mains.
    owns: segments, of a round in segments; else None.
    """

    device: str
    ready_s: float | None
    link_mb_s: float | None
    merge_mb_s: float | None
    kind: str
    battery_percent: float | None
    owns: int | None = None


def real_devices(real: RealRound) -> tuple[ShownDevice, ...]:
    """List the devices as the agent knew them at the end of the round, or knows them now."""
    owns = real.exchange.owns if real.exchange else {}
    return tuple(
        ShownDevice(
            *(each.peer_id, each.ready_s, each.link_mb_s, each.merge_mb_s, _name_kind(each.kind)),
            *(each.battery_percent, owns.get(each.peer_id)),
        )
        for each in real.devices
    )


def scenario_devices(
    scenario: Scenario, names: Sequence[str], owns: Mapping[str, int] | None = None
) -> tuple[ShownDevice, ...]:
    """List the devices of a scenario. owns: device -> segments, if it is played in segments."""
    known = owns or {}
    return tuple(
        ShownDevice(
            *(name, each.ready_s, each.link_mb_s, each.merge_mb_s, _name_kind(each.kind)),
            *(each.battery_percent, known.get(name)),
        )
        for name, each in zip(names, scenario.devices, strict=True)
    )


def draw_devices(devices: Sequence[ShownDevice]) -> Table:
    table = Table(box=None, pad_edge=False, title="devices", title_justify="left", title_style="bold")
    table.add_column("device", no_wrap=True)
    for column in ("ready s", "link MB/s", "merge MB/s", "battery"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("use", no_wrap=True)
    segments = sum(each.owns or 0 for each in devices)
    if segments:
        table.add_column("owns", justify="right", no_wrap=True)
    for each in devices[:_MOST_SHOWN]:
        table.add_row(
            each.device,
            "" if each.ready_s is None else f"{each.ready_s:.3f}",
            _tell_rate(each.link_mb_s),
            _tell_rate(each.merge_mb_s),
            "mains" if each.battery_percent is None else f"{each.battery_percent:.0f} %",
            each.kind,
            *((_tell_share(each.owns, segments),) if segments else ()),
        )
    if len(devices) > _MOST_SHOWN:
        table.add_row("...", "", "", "", "", f"{len(devices) - _MOST_SHOWN} more; all are in --json")
    return table


def _tell_share(owns: int | None, segments: int) -> str:
    return "" if owns is None else f"{owns} ({owns / segments:.0%})"


def _tell_rate(mb_s: float | None) -> str:
    return "not known" if mb_s is None else f"{mb_s:.3g}" if mb_s < 1000.0 else f"{mb_s:.0f}"


def _name_kind(kind: int) -> str:
    return UsageKind(kind).name.lower() if 0 <= kind < len(UsageKind) else "unknown"


@dataclass(frozen=True)
class CloseDecision:
    """The close of a round. at_s: since it opened. left_out: names. told: the rule's reason, in a sentence."""

    at_s: float
    left_out: tuple[str, ...]
    told: str


def close_round(scenario: Scenario, names: Sequence[str], rule: ParticipationRule, number: int = 1) -> CloseDecision:
    """Ask a rule about the scenario's round until it closes. number: of the round.

    No device was left out of a round before. A device that dies before it can give takes no part.
    """
    at_s = 0.0
    while True:
        seen = _see(scenario, names, at_s, number)
        decision = rule.decide(seen)
        if isinstance(decision, Close):
            out = tuple(each.device_id for each in seen.devices if each.device_id not in decision.devices)
            return CloseDecision(at_s, out, decision.reason)
        coming = [each.ready_in_s for each in seen.devices if each.ready_in_s > 0.0]
        later_s = min([decision.until_s, *(at_s + seconds for seconds in coming)])
        if later_s in (inf, at_s) or later_s < at_s:
            return CloseDecision(at_s, (), f"open: {decision.reason}")
        at_s = later_s


def _see(scenario: Scenario, names: Sequence[str], at_s: float, number: int) -> RoundSeen:
    devices = []
    for name, device in zip(names, scenario.devices, strict=True):
        if device.dies_at_s is not None and device.dies_at_s <= device.ready_s:
            continue
        is_ready = device.ready_s <= at_s
        place = periods_begun(device.busy, at_s)
        is_busy = place > 0 and device.busy[place - 1][1] > at_s
        devices.append(
            DeviceSeen(
                device_id=name,
                progress=float(is_ready),
                ready_in_s=0.0 if is_ready else device.ready_s - at_s,
                link_mb_s=device.link_mb_s,
                kind=device.kind,
                busy_for_s=max(1e-6, at_s - device.busy[place - 1][0]) if is_busy else 0.0,
                battery_percent=device.battery_percent,
                charging=device.charging,
                able_at_s=device.ready_s if is_ready else None,
            )
        )
    return RoundSeen(
        number=number,
        open_s=at_s,
        size_mb=scenario.size_mb,
        latency_s=scenario.latency_s,
        devices=tuple(devices),
        members=len(scenario.devices),
    )


def describe_closed(before: CloseDecision, after: CloseDecision) -> dict[str, object]:
    """Return what `--json` prints of the round without and with the changes."""
    return {
        name: {"at_s": round(each.at_s, 6), "left_out": list(each.left_out), "told": each.told}
        for name, each in (("before", before), ("after", after))
    }


def tell_closed(before: CloseDecision, after: CloseDecision) -> list[str]:
    """Tell the round without and with the changes, one line each; a single line if they are the same."""
    if before == after:
        return [f"the round, as before: {_tell(before)}"]
    return [f"the round before: {_tell(before)}", f"the round now: {_tell(after)}"]


def _tell(closed: CloseDecision) -> str:
    out = f" (left out: {', '.join(closed.left_out)})" if len(closed.left_out) > 1 else ""
    return f"{closed.told}{out}"
