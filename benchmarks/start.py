"""Seconds from `mdl up` to its first finished round, beside those of `import torch` alone, in turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.tool.options import Namespace, Parser, add_runs
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.files.figures import RoundReader

# Longer than any start takes; then the run has failed.
_PATIENCE_S = 120.0


def add_options(parser: Parser) -> None:
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4], help="sizes of the mesh")
    add_runs(parser, 3)


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure the import and each size, in turns. Raises Failed."""
    starts: dict[str, Callable[[], float]] = {"import torch": _import_torch}
    starts |= {f"mdl up -n {peers}": partial(_start, peers) for peers in given.peers}
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    for _, (name, start) in in_turns(given.runs, starts.items()):
        seconds[name].append(start())
    torch_s = median(seconds["import torch"])
    rows = [(name, f"{median(each):.2f}", f"{min(each):.2f} to {max(each):.2f}", f"{median(each) / torch_s:.1f}")
            for name, each in seconds.items()]  # fmt: skip
    show(("s", "median", "all", "times that of torch"), rows)
    sheet.tell({"seconds": seconds})


def _import_torch() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def _start(peers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "run", time.monotonic()
        words = [sys.executable, "-m", "mdl", "up", "-n", str(peers), "--epochs", "1", "--out", str(out)]
        reader = RoundReader(out)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not reader.new():
                if process.poll() is not None or time.monotonic() - began > _PATIENCE_S:
                    raise Failed(f"{' '.join(words)} closed no round")
                try:
                    process.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
            seconds = time.monotonic() - began
            process.terminate()
    return seconds
