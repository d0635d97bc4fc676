"""The parts of a picture (SVG) that the benchmarks' own charts share."""

from __future__ import annotations

from collections.abc import Iterable


def picture(width: int, height: int, parts: Iterable[str]) -> str:
    """Return a whole picture on a white ground."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13" fill="#222">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>"]) + "\n"


def text(x: float, y: float, said: str, anchor: str = "start", colour: str = "#222", size: int = 13) -> str:
    """Return a text. anchor: start, middle or end of it is at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{said}</text>'


def axes(left: float, top: float, right: float, bottom: float) -> str:
    """Return the left and the lower edge of a chart."""
    return f'<path d="M{left} {top} V{bottom} H{right}" fill="none" stroke="#555"/>'
