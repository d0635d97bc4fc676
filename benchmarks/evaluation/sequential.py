"""What a master's mean costs when not all copies fit into its memory: Fig. 1c, and with a step beyond the paper's.

`master`: all N are in memory. `sequential`: each is loaded from its file when it is merged (memory O(2)), the paper's
way out. `as it comes`: each is merged when it arrives and never becomes a file, which is what a mesh's device does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.accuracy import Get
from benchmarks.tool.table import show
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.protocol.delta import Contributor, PartialSum, pair_aggregate
from mdl.protocol.grid import Grid, Vector, grid_of, room_for

VALUES = 11_610_000  # 46.4 MB, the paper's CNN-LSTM
PAPER = {8: (160, 47307)}


def figure_1c(given: argparse.Namespace, get: Get) -> None:
    """Milliseconds of processor until the mean of N models of 46.4 MB is made."""
    rows = []
    for size in given.devices:
        one = get(f"N={size}", partial(measure, size, VALUES))
        beside = "{} and {}".format(*PAPER[size]) if size in PAPER else None
        rows.append((size, *(f"{one[name]:.0f}" for name in ("master", "sequential", "comes")), beside))
    show(("ms, by N", "master", "sequential", "as it comes", "paper: master and sequential"), rows)


def measure(size: int, values: int) -> dict[str, Any]:
    """Milliseconds of processor for `size` models. Files are those of a device's cache, fresh in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        caches = [ModelCache(Path(folder) / str(number)) for number in range(size)]
        for number, cache in enumerate(caches):
            cache.save(CachedModel(_draw(number, values), 1, "schema", "sequential", {}))
        sequential, _ = merge([partial(_load, cache) for cache in caches], is_timed=True)
    held = [_draw(number, values) for number in range(size)]
    started = time.process_time()
    add_up(held)
    master = time.process_time() - started
    comes, _ = merge([partial(_take, held, number) for number in range(size)], is_timed=False)
    return {name: round(1e3 * each) for name, each in
            (("master", master), ("sequential", sequential), ("comes", comes))}  # fmt: skip


def add_up(held: Sequence[Vector]) -> Vector:
    """The mean of all, with room for itself alone."""
    total = held[0].copy()
    for each in held[1:]:
        total += each
    total /= len(held)
    return total


def merge(sources: Sequence[Callable[[], Vector]], is_timed: bool) -> tuple[float, Vector]:
    """(processor seconds of all merges, with those of the sources if these are timed; the mean)."""
    merged: PartialSum | None = None
    grid: Grid | None = None
    total = 0.0
    for number, source in enumerate(sources):
        started = time.process_time()
        values = source()
        if not is_timed:
            started = time.process_time()
        grid = grid or grid_of(np.zeros_like(values), room_for(float(len(sources))))
        own = PartialSum(grid.to_sums(values, 1.0), 1.0, frozenset([Contributor(str(number), 1)]), grid.room)
        merged = own if merged is None else pair_aggregate(merged, own, out=own.values)
        total += time.process_time() - started
    assert merged is not None
    assert grid is not None
    return total, grid.to_mean(merged.values, merged.theta)


def _draw(number: int, values: int) -> Vector:
    return np.random.default_rng(number).standard_normal(values, dtype=np.float32)


def _take(held: list[Vector], number: int) -> Vector:
    return held[number]


def _load(cache: ModelCache) -> Vector:
    loaded = cache.load()
    assert loaded is not None
    return loaded.values
