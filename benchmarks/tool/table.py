"""The one way in which benchmarks print tables: aligned, and as a page of docs takes them (Markdown)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def show(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table. The first column is to the left, the others to the right; None is an empty cell."""
    cells = [["" if each is None else str(each) for each in row] for row in rows]
    widths = [max(3, *(len(row[at]) for row in [list(head), *cells])) for at in range(len(head))]
    lines = [_line(head, widths), "|".join(["", *("-" * (width + 2) for width in widths), ""])]
    print("\n".join([*([title] if title else []), *lines, *(_line(row, widths) for row in cells)]), flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return f"| {first[0]:{first[1]}} |" + "".join(f" {cell:>{width}} |" for cell, width in rest)
