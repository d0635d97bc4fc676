"""One picture at a time with matplotlib (`pip install 'mdl[plot]'`); its form follows from the name of the file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def draw(path: Path, width: float = 7.0, height: float = 4.0) -> tuple[Any, Callable[[], None]]:
    """Axes to draw on, and what writes the file. Ends the process if matplotlib is not there."""
    try:
        figures = import_module("matplotlib.figure")
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install 'mdl[plot]'")
    figure = figures.Figure(figsize=(width, height), layout="constrained")

    def save() -> None:
        figure.savefig(path)
        print(f"{path} is written")

    return figure.subplots(), save
