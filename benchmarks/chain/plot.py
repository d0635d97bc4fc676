"""The figures of `python -m benchmarks chain_scheduler` as one SVG: latency and energy by N, epochs to convergence."""

from __future__ import annotations

from typing import Any

_WIDTH, _HEIGHT = 1000, 760
_COLOURS = {
    "tree": "#7f8c8d",
    "ring": "#bdc3c7",
    "fifo": "#16a085",
    "greedy": "#2471a3",
    "dp": "#8e44ad",
    "dqn": "#c0392b",
    "paper: DQN (MLP, TDGE)": "#e67e22",
    "paper: optimum of Eq. 7": "#f5b041",
    "optimum": "#000000",
}


def draw_scheduler(result: dict[str, Any]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#222">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    if "fig10" in result:
        by_n = result["fig10"]["by_n"]
        names = [name for name in _COLOURS if name in by_n["9"]]
        parts += _draw_lines(by_n, names, "mean_s", 60, "Fig. 10a made again: latency of a round, s, over N")
        energies = [name for name in names if name != "optimum"]
        parts += _draw_lines(
            by_n, energies, "energy_of_tree", 540, "Fig. 10b: energy variance of a round, Tree = 1, over N"
        )
        parts += _draw_legend(names)
    if "fig6" in result:
        found = result["fig6"]
        slow_and_fast = {str(found["n"]): {name: bar["reward"] for name, bar in found["dge"].items()}}
        parts += _draw_bars(slow_and_fast, 60, "Fig. 6 made again: epochs until rewards converge, DGE")
    if "fig8" in result:
        strategies = {
            n: {name: row[name]["reward"] for name in ("tdge", "dge", "tge")}
            for n, row in result["fig8"]["by_n"].items()
        }
        parts += _draw_bars(strategies, 540, "Fig. 8 made again: epochs until rewards converge")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_lines(by_n: dict[str, Any], names: list[str], key: str, left: int, title: str) -> list[str]:
    """A line for each policy; it ends where the policy has no round left (one that quits)."""
    top, bottom, width = 50, 330, 400
    sizes = sorted(int(n) for n in by_n)
    values = {name: {n: by_n[str(n)][name][key] for n in sizes if key in by_n[str(n)][name]} for name in names}
    most = max(value for row in values.values() for value in row.values())
    across, down = width / (sizes[-1] - sizes[0]), (bottom - top) / most
    parts = [_text(left, 30, title, size=15), *_draw_axes(left, top, left + width, bottom)]
    parts += [_text(left + (n - sizes[0]) * across, bottom + 18, str(n), "middle") for n in sizes]
    parts += [_text(left - 6, top + 8, f"{most:.1f}", "end"), _text(left - 6, bottom, "0", "end")]
    for name in names:
        points = [f"{left + (n - sizes[0]) * across:.1f},{bottom - y * down:.1f}" for n, y in values[name].items()]
        dashed = ' stroke-dasharray="5 4"' if name == "optimum" else ""
        line = " ".join(points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2"{dashed}/>')
    return parts


def _draw_legend(names: list[str]) -> list[str]:
    parts = []
    for place, name in enumerate(names):
        x, y = 60 + 220 * (place % 4), 372 + 18 * (place // 4)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="4" fill="{_COLOURS[name]}"/>')
        parts.append(_text(x + 18, y + 7, name))
    return parts


def _draw_bars(groups: dict[str, Any], left: int, title: str) -> list[str]:
    """A bar for each training: mean episodes, its 95 % interval as a line, and how many runs converged."""
    top, bottom, width = 460, 680, 400
    bars = [(group, name, bar) for group, row in groups.items() for name, bar in row.items()]
    most = max([1.0, *(bar["mean"] + bar["interval95"] for _, _, bar in bars if bar["mean"] is not None)])
    down, step = (bottom - top) / most, width / len(bars)
    parts = [_text(left, top - 16, title, size=15), *_draw_axes(left, top, left + width, bottom)]
    parts.append(_text(left - 6, top + 8, f"{most:.0f}", "end"))
    for place, (group, name, bar) in enumerate(bars):
        x = left + (place + 0.2) * step
        if bar["mean"] is not None:
            high = bar["mean"] * down
            box = f'x="{x:.1f}" y="{bottom - high:.1f}" width="{0.6 * step:.1f}" height="{high:.1f}"'
            parts.append(f'<rect {box} fill="#5dade2"/>')
            low, up = ((bar["mean"] + sign * bar["interval95"]) * down for sign in (-1.0, 1.0))
            parts.append(f'<path d="M{x + 0.3 * step:.1f} {bottom - low:.1f} V{bottom - up:.1f}" stroke="#222"/>')
        parts.append(_text(x + 0.3 * step, bottom + 16, f"{name} {bar['converged']}/{bar['of']}", "middle", 10))
        if place == 0 or bars[place - 1][0] != group:
            label = f"N = {group}" if group.isdigit() else group
            parts.append(_text(x, bottom + 34 + 14 * (place % 4 == 2), label, size=11))
    return parts


def _draw_axes(left: float, top: float, right: float, bottom: float) -> list[str]:
    return [f'<path d="M{left} {top} V{bottom} H{right}" fill="none" stroke="#888"/>']


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{text}</text>'
