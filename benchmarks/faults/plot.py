"""The figure of `python -m benchmarks chaos` as SVG: rounds over time, every fault, and waits."""

from __future__ import annotations

from typing import Any

from benchmarks.tool.svg import axes, picture, text

_WIDTH, _HEIGHT = 960, 560
_LEFT, _RIGHT = 70, 930
_TOP, _MIDDLE, _BOTTOM = 50, 300, 510
_COLOURS = {"trainer": "#c0392b", "agent": "#8e44ad", "stop": "#e67e22"}


def draw_chaos(result: dict[str, Any]) -> str:
    parts = [text(_LEFT, 24, _title(result), size=15), *_draw_rounds(result), *_draw_waits(result)]
    return picture(_WIDTH, _HEIGHT, parts)


def _title(result: dict[str, Any]) -> str:
    kills, stops = len(result["kills"]), len(result["stops"])
    return (
        f"{result['peers']} peers, {kills} SIGKILL ({result['kills_of_agents']} of the agent), {stops} SIGSTOP: "
        f"{result['rounds_closed']} rounds, {result['hangs']} hangs, {result['double_counts']} double counts"
    )


def _draw_rounds(result: dict[str, Any]) -> list[str]:
    """Closed rounds over seconds; a tick below for each fault."""
    rounds = [(at, number) for at, number in result["rounds"] if at >= 0]
    span_s = max(at for at, _ in rounds) or 1.0
    top = max(number for _, number in rounds)
    across = (_RIGHT - _LEFT) / span_s
    down = (_MIDDLE - 60 - _TOP) / top
    points = " ".join(f"{_LEFT + at * across:.1f},{_MIDDLE - 60 - number * down:.1f}" for at, number in rounds)
    parts = [f'<polyline points="{points}" fill="none" stroke="#2471a3" stroke-width="1.6"/>']
    parts += [axes(_LEFT, _TOP, _RIGHT, _MIDDLE - 60)]
    parts += [text(_LEFT - 8, _MIDDLE - 60, "0", "end"), text(_LEFT - 8, _TOP + 10, str(top), "end")]
    parts += [text(_LEFT + 8, _TOP + 12, "rounds closed"), text(_RIGHT, _MIDDLE - 44, f"{span_s:.0f} s", "end")]
    rows = {"trainer": _MIDDLE - 40, "agent": _MIDDLE - 30, "stop": _MIDDLE - 20}
    for fault in [*result["kills"], *result["stops"]]:
        kind = "stop" if fault["kind"] == "stop" else "agent" if fault["agent"] else "trainer"
        x = _LEFT + fault["at_s"] * across
        parts.append(f'<path d="M{x:.1f} {rows[kind]} v8" stroke="{_COLOURS[kind]}" stroke-width="1.5"/>')
    for kind, name in (("trainer", "kill of a trainer"), ("agent", "kill of the agent"), ("stop", "suspended")):
        x = {"trainer": _LEFT, "agent": _LEFT + 160, "stop": _LEFT + 320}[kind]
        parts.append(f'<rect x="{x}" y="{_MIDDLE - 6}" width="10" height="10" fill="{_COLOURS[kind]}"/>')
        parts.append(text(x + 16, _MIDDLE + 4, name))
    return parts


def _draw_waits(result: dict[str, Any]) -> list[str]:
    """Share of faults that took at most so long; the targets as dashed lines."""
    lines = (
        ("a trainer's kill noticed", "#c0392b", [each["notice_s"] for each in result["kills"]], 5.0),
        ("another agent leads", "#8e44ad", [each["takeover_s"] for each in result["kills"]], 5.0),
        ("the open round is closed", "#2471a3", [each["round_s"] for each in result["kills"]], 10.0),
    )
    top, bottom = _MIDDLE + 40, _BOTTOM
    longest = max([10.5, *(value for _, _, values, _ in lines for value in values if value is not None)])
    across = (_RIGHT - _LEFT) / longest
    parts = [axes(_LEFT, top, _RIGHT, bottom)]
    for second in range(0, int(longest) + 1, 1 if longest < 20 else 5):
        parts.append(text(_LEFT + second * across, bottom + 16, str(second), "middle"))
    parts.append(text(_RIGHT, bottom + 34, "seconds after a SIGKILL; dashed: targets", "end"))
    for target in (5.0, 10.0):
        x = _LEFT + target * across
        parts.append(f'<path d="M{x:.1f} {top} V{bottom}" stroke="#888" stroke-dasharray="4 4"/>')
    parts += [text(_LEFT - 8, top + 8, "100 %", "end"), text(_LEFT - 8, bottom, "0 %", "end")]
    for row, (name, colour, values, _) in enumerate(lines):
        known = sorted(value for value in values if value is not None)
        if not known:
            continue
        steps = [f"M{_LEFT} {bottom}"]
        for number, value in enumerate(known, 1):
            steps.append(f"H{_LEFT + value * across:.1f} V{bottom - (bottom - top) * number / len(known):.1f}")
        parts.append(f'<path d="{" ".join(steps)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(text(_RIGHT - 8, bottom - 60 + 18 * row, f"{name} ({len(known)})", "end", colour))
    return parts
