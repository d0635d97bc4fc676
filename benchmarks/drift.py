"""One person's sensor turns round in the middle of a run: what that does to the model of all others.

    python -m benchmarks drift --data hapt.npz --seeds 0 1 2

Each device has one person's first recording (HAPT, 50 Hz, windows of 128 by 64), which comes in as it was made, a piece
a round; the second one is for tests. From --at of the way on, the first device is worn the other way round: all axes
change places and signs. Devices train on the newest windows alone, or on what a reservoir keeps of all so far. Told is
the accuracy of the mesh's model on the other people's second recordings, as the mean of the last five rounds, and how
far it fell at most below its best.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.tool.options import Namespace, Parser, add_rounds, add_seeds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.config import TrainingSettings
from mdl.data.watch import Reservoir
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta

_WINDOW, _STEP, _CLASSES = 128, 64, 6
# Windows that a device trains on in a round: four steps of 32.
_ROUND = 128
# The sensor on its back and a quarter turned: x, y, z of both sensors become these, with these signs.
_TURN, _SIGNS = np.array([1, 0, 2, 4, 3, 5]), np.array([-1, 1, -1, -1, 1, -1], np.float32)[:, None]

Part = tuple[NDArray[np.float32], NDArray[np.int64]]


def add_options(parser: Parser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="hapt.npz")
    parser.add_argument("--devices", type=int, default=8)
    add_rounds(parser, 40)
    parser.add_argument("--at", type=float, default=0.5, help="share of the recording before the turn")
    parser.add_argument("--newest", type=int, default=32, help="windows that are trained on without a reservoir")
    parser.add_argument("--capacity", type=int, default=200, help="of the reservoir, in windows")
    parser.add_argument("--rate", type=float, default=0.002)
    add_seeds(parser)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure both ways to keep windows, with and without the turn, for each seed."""
    torch.set_num_threads(1)
    people = read_people(options.data, options.devices)
    runs = [
        measure(people, options, kept, drifts, seed)
        for kept in ("newest", "replay")
        for drifts in (False, True)
        for seed in options.seeds
    ]
    rows = []
    for kept, drifts in dict.fromkeys((run["kept"], run["drifts"]) for run in runs):
        same = [run for run in runs if (run["kept"], run["drifts"]) == (kept, drifts)]
        accuracy, fell = (100 * fmean(run[name] for run in same) for name in ("accuracy", "fell"))
        rows.append((kept, "drifts" if drifts else "stays", f"{accuracy:.1f}", f"{fell:.1f}"))
    show(("trains on", "one person", "others' accuracy, %", "fell by at most, points"), rows)
    sheet.tell({"runs": runs})


def read_people(path: Path, devices: int) -> list[tuple[Part, Part]]:
    """Of each person the windows of the first recording, in time, and those of the second."""
    with np.load(path, allow_pickle=False) as stored:
        x = (stored["codes"] * stored["scale"]).astype(np.float32)
        label, subject, recording = (stored[name].astype(int) for name in ("label", "subject", "recording"))
    found = []
    for person in np.unique(subject):
        parts = [
            _cut(x[rows], label[rows]) for each in (1, 2) if (rows := (subject == person) & (recording == each)).any()
        ]
        if len(parts) == 2:
            found.append((parts[0], parts[1]))
    return found[:devices]


def measure(people: list[tuple[Part, Part]], options: Namespace, kept: str, drifts: bool, seed: int) -> dict[str, Any]:
    settings = TrainingSettings(schedule="constant", learning_rate=options.rate, seed=seed)
    random = np.random.default_rng(seed)
    streams = [train for train, _ in people]
    if drifts:
        streams[0] = _turn(streams[0], options.at)
    trainers = [_trainer(settings, seed, index) for index in range(len(people))]
    kept_by = [Reservoir(options.capacity, seed * 100 + index) for index in range(len(people))]
    parameters, curve = trainers[0].model.values().copy(), list[float]()
    for round_id in range(1, options.rounds + 1):
        deltas = []
        for trainer, stream, reservoir in zip(trainers, streams, kept_by, strict=True):
            start, stop = (len(stream[1]) * edge // options.rounds for edge in (round_id - 1, round_id))
            reservoir.add(stream[0][start:stop], stream[1][start:stop])
            begin = max(0, stop - options.newest)
            x, y = (reservoir.x, reservoir.y) if kept == "replay" else (stream[0][begin:stop], stream[1][begin:stop])
            rows = random.integers(0, len(y), _ROUND)
            trainer.replace_windows(x[rows], y[rows])
            deltas.append(model_delta(parameters, trainer.train_round(parameters, round_id).values))
        parameters = parameters - np.mean(deltas, axis=0, dtype=np.float32)
        trainers[0].model.load(parameters)
        others = [evaluate(trainers[0].model.module, *test, _CLASSES) for _, test in people[1:]]
        curve.append(sum(each.accuracy * each.n for each in others) / sum(each.n for each in others))
    best = np.maximum.accumulate(curve)
    told = {"kept": kept, "drifts": drifts, "seed": seed, "accuracy": fmean(curve[-5:])}
    told |= {"fell": float((best - curve)[len(curve) // 2 :].max()), "curve": [round(value, 4) for value in curve]}
    print(json.dumps(told), file=sys.stderr, flush=True)
    return told


def _trainer(settings: TrainingSettings, seed: int, index: int) -> LocalTrainer:
    model = FlatModel(build_model("lenet", 6, _WINDOW, _CLASSES, seed))
    own = msgspec.structs.replace(settings, seed=seed * 1000 + index)
    return LocalTrainer(model, np.zeros((1, 6, _WINDOW), np.float32), np.zeros(1, np.int64), own)


def _cut(x: NDArray[np.float32], label: NDArray[np.int64]) -> Part:
    starts = np.arange(0, len(label) - _WINDOW, _STEP)
    whole = [
        start
        for start in starts
        if 1 <= label[start] <= _CLASSES and (label[start : start + _WINDOW] == label[start]).all()
    ]
    windows = np.stack([x[start : start + _WINDOW].T for start in whole])
    return np.ascontiguousarray(windows), label[whole].astype(np.int64) - 1


def _turn(stream: Part, share: float) -> Part:
    x, y = stream[0].copy(), stream[1]
    start = int(share * len(y))
    x[start:] = x[start:][:, _TURN] * _SIGNS
    return x, y
