"""The figure of `python -m benchmarks colla` as SVG: devices by their accuracy, a line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.tool.svg import axes, picture, text

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 690, 50, 370
_COLOURS = ("#7f8c8d", "#c0392b", "#e67e22", "#2471a3", "#27ae60", "#8e44ad", "#111")


def draw_cdf(title: str, accuracies: Mapping[str, Sequence[float]]) -> str:
    """accuracies: 0..1, of every device by method."""
    highest = max(max(values) for values in accuracies.values())
    limit = min(1.0, (int(highest * 10) + 1) / 10)
    parts = [
        text(_LEFT, 24, title, size=15),
        axes(_LEFT, _TOP, _RIGHT, _BOTTOM),
        *(text(_across(share, limit), _BOTTOM + 18, f"{share:.0%}", "middle") for share in _ticks(limit)),
        text(_RIGHT, _BOTTOM + 38, "accuracy on the last fifth of a person's days", "end"),
        *(text(_LEFT - 8, _down(share) + 4, f"{share:.0%}", "end") for share in (0.0, 0.5, 1.0)),
        f'<path d="M{_LEFT} {_down(0.5):.1f} H{_RIGHT}" stroke="#bbb" stroke-dasharray="4 4"/>',
    ]
    for number, (name, values) in enumerate(accuracies.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path d="{_steps(values, limit)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(text(_RIGHT - 8, _BOTTOM - 20 - 18 * (len(accuracies) - 1 - number), name, "end", colour))
    return picture(_WIDTH, _HEIGHT, parts)


def _steps(values: Sequence[float], limit: float) -> str:
    steps = [f"M{_LEFT} {_BOTTOM}"]
    for number, value in enumerate(sorted(values), 1):
        steps.append(f"H{_across(value, limit):.1f} V{_down(number / len(values)):.1f}")
    return " ".join(steps)


def _across(value: float, limit: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value / limit


def _down(share: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * share


def _ticks(limit: float) -> list[float]:
    return [tick / 10 for tick in range(round(limit * 10) + 1)]
