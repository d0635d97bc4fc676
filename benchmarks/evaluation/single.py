"""One device by itself: time and battery of its training (Fig. 1a), and where the time of a batch goes (Fig. 11d)."""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.evaluation.accuracy import Get, load
from benchmarks.evaluation.modelled import TRAIN_W, battery_percent
from benchmarks.tool.table import show
from mdl.data import DataSet, load_data
from mdl.learning.models import build_model

MODELS = ("lenet", "alexnet")
# 3,500 mAh in the paper, where HAR with AlexNet does not get through; its models and its library are other ones.
_EPOCHS, _BATCH = 20, 32
_MEASURE_S = 1.5
# Windows of the file that is read: enough that opening it does not count.
_WINDOWS = 320


def figure_1a(given: argparse.Namespace, get: Get) -> None:
    """What 20 epochs take on one phone that is `--slower` times as slow as a thread of this machine."""
    data = load(given)
    rows = []
    for model in MODELS:
        key = f"{data.name} {model} slower={given.slower:g}"
        one = get(key, partial(_train_alone, data, model, given.slower))
        rows.append((model, *(one[name] for name in ("windows_s", "seconds", "joules", "battery_percent"))))
    where = (
        f"{data.name}, {len(data.train)} windows, {_EPOCHS} epochs, a phone {given.slower:g}x slower than a thread here"
    )
    show(("", "windows/s", "s", "J", "% of 3,500 mAh"), rows, where)


def windows_a_second(data: DataSet, model: str) -> float:
    """Trained by one thread of this machine."""
    steps = _parts_of_a_step(data, model)
    return _BATCH / sum(steps[name] for name in ("convert", "forward", "backward", "step"))


def _train_alone(data: DataSet, model: str, slower: float) -> dict[str, Any]:
    speed = windows_a_second(data, model) / slower
    seconds = _EPOCHS * len(data.train) / speed
    joules = TRAIN_W * seconds
    return {"windows_s": round(speed, 1), "seconds": round(seconds, 1), "joules": round(joules, 1),
            "battery_percent": round(battery_percent(joules), 2)}  # fmt: skip


def figure_11d(given: argparse.Namespace, get: Get) -> None:
    """Milliseconds of one batch: read from a CSV file or from the cache, made a tensor, forward, backward, one step."""
    data = load(given)
    found = {model: get(f"{data.name} {model}", partial(_one_batch, data, model)) for model in MODELS}
    head = ("ms", *next(iter(found.values())))
    rows = [(model, *(f"{ms:.2f}" for ms in one.values())) for model, one in found.items()]
    show(head, rows, f"{data.name}, a batch of {_BATCH} windows, one thread")


def _one_batch(data: DataSet, model: str) -> dict[str, Any]:
    taken = {**_read_parts(data), **_parts_of_a_step(data, model)}
    return {name: round(1e3 * seconds, 3) for name, seconds in taken.items()}


def _read_parts(data: DataSet) -> dict[str, float]:
    """Seconds for a batch's windows: out of a CSV file as a logger writes it, and out of the cache."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batch.csv"
        windows = _write_csv(data, path)
        spec, cache = f"csv:{path}?label=activity&window={data.shape[1]}&step={data.shape[1]}", Path(folder) / "cache"
        share = _BATCH / windows
        first = share * _seconds(lambda: load_data(spec, cache, seed=0))
        loaded = load_data(spec, cache, seed=0)
        rows = np.random.default_rng(0).permutation(len(loaded.train))[:_BATCH]
        again = _repeat(lambda: np.array(loaded.train.x[np.sort(rows)]))
    return {"from CSV": first, "from the cache": again}


def _write_csv(data: DataSet, path: Path) -> int:
    """Windows one behind the other, by class, as rows; returns how many."""
    chosen = np.argsort(data.train.y[:_WINDOWS], kind="stable")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", *(f"c{number}" for number in range(data.shape[0])), "activity"])
        clock = count()
        for index in chosen:
            label = data.classes[int(data.train.y[index])]
            for values in data.train.x[index].T:
                rows.writerow([f"{next(clock) / 50.0:.2f}", *(f"{value:.6f}" for value in values), label])
    return len(chosen)


def _parts_of_a_step(data: DataSet, model: str) -> dict[str, float]:
    """Seconds of each part of one step of a batch."""
    torch.set_num_threads(1)
    net = build_model(model, data.shape[0], data.shape[1], len(data.classes), seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = np.array(data.train.x[:_BATCH]), np.array(data.train.y[:_BATCH], np.int64)
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    forward = _repeat(lambda: nn.functional.cross_entropy(net(tensors[0]), tensors[1]))

    def both() -> None:
        loss: Any = nn.functional.cross_entropy(net(tensors[0]), tensors[1])
        loss.backward()

    backward = _repeat(both) - forward
    return {
        "convert": _repeat(lambda: torch.from_numpy(x.copy())),
        "forward": forward,
        "backward": backward,
        "step": _repeat(optimizer.step),
    }


def _repeat(work: Callable[[], Any]) -> float:
    """Mean processor seconds, over a while."""
    work()
    started = time.process_time()
    for done in count(1):
        work()
        if (passed := time.process_time() - started) > _MEASURE_S:
            return passed / done
    raise AssertionError


def _seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
