"""Pictures of a run: learning curves, the confusion of classes, and the transfers of the last round.

    python -m mdl.peers.view.pictures RUN_DIRECTORY

It is a process of its own (`peers/view/report.py` starts it): a peer has no hundred megabytes to spare for matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mdl.errors import MdlError
from mdl.files.figures import read_rounds
from mdl.peers.view.report import model_in, read_described
from mdl.protocol.status_messages import RoundSummary
from mdl.scheduler.explain.draw_chart import write_picture
from mdl.scheduler.explain.recorded_round import chart_real, finished_round
from mdl.writing import make_private_folder

FOLDER = "pictures"
_DPI = 120
# The most devices with a line of their own; more lines cannot be told apart.
_MOST_LINES = 12


def draw_run(out: Path) -> list[Path]:
    """Draw the run directory's metrics; return the pictures. Raises MdlError; ImportError without matplotlib."""
    rounds, folder = read_rounds(out / "metrics.jsonl"), out / FOLDER
    if not rounds:
        return []
    figures = import_module("matplotlib.figure")
    make_private_folder(folder)
    done = [_draw_learning(figures, rounds, folder / "learning.png")]
    last = next((each for each in reversed(rounds) if each.confusion), None)
    if last:
        names = read_described(model_in(out)).class_names
        done.append(_draw_confusion(figures, last, names, folder / "confusion.png"))
    write_picture(chart_real(finished_round(rounds[-1], "finished")), folder / "round.svg")
    return [*done, folder / "round.svg"]


def _draw_learning(figures: Any, rounds: Sequence[RoundSummary], path: Path) -> Path:
    """Draw accuracy above, loss below; thin lines are single devices."""
    figure = figures.Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, name in ((upper, "accuracy"), (lower, "loss")):
        for device in sorted({each.peer_id for one in rounds for each in one.devices})[:_MOST_LINES]:
            own = [(one.round, getattr(d, name)) for one in rounds for d in one.devices if d.peer_id == device]
            _line(axes, own, device, linewidth=0.8, alpha=0.6)
        _line(axes, [(one.round, getattr(one, name)) for one in rounds], "mesh", linewidth=2.2, color="black")
        axes.set_ylabel({"accuracy": "accuracy on test windows", "loss": "training loss, nats"}[name])
        axes.grid(alpha=0.3)
    lower.set_xlabel("round")
    lower.xaxis.get_major_locator().set_params(integer=True)
    if upper.get_lines():
        upper.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=_DPI)
    return path


def _line(axes: Any, points: Sequence[tuple[int, float | None]], label: str, **style: Any) -> None:
    known = [(x, y) for x, y in points if y is not None]
    if known:
        axes.plot(*zip(*known, strict=True), label=label, **style)


def _draw_confusion(figures: Any, last: RoundSummary, names: Sequence[str], path: Path) -> Path:
    """Draw the confusion: rows are true classes; a cell is coloured by its share of the row, and shows the count."""
    count = len(last.confusion)
    shown = list(names) if len(names) == count else [str(index) for index in range(count)]
    shares = [[cell / max(1, sum(row)) for cell in row] for row in last.confusion]
    figure = figures.Figure(figsize=(2 + 0.6 * count, 1.6 + 0.6 * count), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, vmin=0.0, vmax=1.0, cmap="Blues")
    for row, column in ((row, column) for row in range(count) for column in range(count)):
        if cell := last.confusion[row][column]:
            colour = "white" if shares[row][column] > 0.6 else "black"
            axes.text(column, row, str(cell), ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(count), shown, rotation=45, ha="right")
    axes.set_yticks(range(count), shown)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(f"round {last.round}")
    figure.savefig(path, dpi=_DPI)
    return path


def main() -> int:
    try:
        draw_run(Path(sys.argv[1]))
    except (MdlError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 (whoever started this process reads it)
        return 4
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
