"""A schedule as a picture: SVG, written here, or PNG by matplotlib if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path

from mdl.errors import ConfigError
from mdl.scheduler.explain.chart import Chart, ChartHop, Span, SpanKind
from mdl.scheduler.explain.chart_text import choose_decimals

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
_MEANS = {
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
_TICKS = 8
_LABEL_PX = 7.0
_MOST_LETTERS = 140
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
        parts.append(f'<text x="{_LEFT}" y="42">{escape(_clip(told, _MOST_LETTERS))}</text>')
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
    for tick in range(_TICKS + 1):
        at_s = chart.start_s + (chart.end_s - chart.start_s) * tick / _TICKS
        x = _x(chart, at_s)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{at_s:.{decimals}f}</text>'
    yield f'<text x="{_LEFT - 26}" y="{bottom + 16}" text-anchor="end">seconds</text>'


def _bars(chart: Chart) -> Iterator[str]:
    for row in chart.rows:
        middle = _y(chart, row.device)
        yield f'<text x="{_LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(_clip(row.device))}</text>'
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
    for kind, meaning in _MEANS.items():
        if kind in kinds:
            yield f'<rect x="{x:.1f}" y="{height - 28}" width="12" height="12" fill="{_COLOURS[kind]}"/>'
            yield f'<text x="{x + 17:.1f}" y="{height - 18}">{meaning}</text>'
            x += 34 + len(meaning) * _LABEL_PX


def _describe(device: str, span: Span) -> str:
    partner = f" ({span.partner})" if span.partner else ""
    return f"{device}: {span.kind.value}{partner}, {span.start_s:.2f} to {span.end_s:.2f} s"


def _describe_hop(hop: ChartHop) -> str:
    return f"hop {hop.number}: {hop.sender} → {hop.receiver} at {hop.start_s:.2f} s, {hop.outcome}: {hop.reason}"


def _clip(text: str, length: int = 14) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


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
    handles = [patches.Patch(color=_COLOURS[kind], label=meaning) for kind, meaning in _MEANS.items() if kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from None
