"""FedBN on real people: a device a person, batch norms of all together or each its own, tested on that person.

    python -m benchmarks own_batch_norm --data 'semg:PATH?split=series' --rounds 40 --seeds 0 1 2
    python -m benchmarks own_batch_norm --data uci-har:PATH --rounds 20 --seeds 0 1 2

A person's test windows are the data set's own where it has some of the same people, else the last fifth in time of each
activity. Every arm begins with the same parameters and draws the same batches; "alone" never merges. Told are the mean
over people, and the worst of them, after the last round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.tool.options import Namespace, Parser, add_recipe, training_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.config import TrainingSettings
from mdl.data import DataSet, Windows, default_cache_dir, load_data, take_windows
from mdl.data.windows import hold_out_time
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel, own_names
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta
from mdl.own import own_data, own_model
from mdl.peers.edge.device import device_seed

ARMS = ("shared", "own", "alone")
# Windows left out before a stretch's test windows: no more overlap one window in any of these sources.
_GAP = 3

Person = tuple[Windows, Windows]


def add_options(parser: Parser) -> None:
    add_recipe(parser)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each arm with each seed, on one thread. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    rows = []
    for arm in ARMS:
        same = [run for run in sheet.figures["runs"] if run["arm"] == arm]
        by_seed = ", ".join(f"{100 * run['mean']:.1f}" for run in same)
        rows.append((arm, by_seed, *(f"{100 * fmean(run[name] for run in same):.1f}" for name in ("mean", "worst"))))
    show(("batch norms", "accuracy by seed, %", "mean", "worst person"), rows)


def measure(options: Namespace) -> dict[str, Any]:
    data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    people = part_people(data)
    runs = [_run(data, people, options, arm, seed) for seed in options.seeds for arm in ARMS]
    return {
        "data": data.name,
        "options": options.data.partition("?")[2],
        "people": len(people),
        "windows": {"train": sum(len(one) for one, _ in people), "test": sum(len(other) for _, other in people)},
        "model": options.model,
        "rounds": options.rounds,
        "set": options.set or "",
        "runs": runs,
    }


def part_people(data: DataSet) -> list[Person]:
    """Of each person the windows to train on and those to test with; who has none of either is left out."""
    found = []
    for person in np.unique(data.train.subject):
        own = take_windows(data.train, data.train.subject == person)
        test = take_windows(data.test, data.test.subject == person)
        if not len(test):
            late, dropped = hold_out_time(own.y, own.group, _GAP)
            own, test = take_windows(own, ~late & ~dropped), take_windows(own, late)
        if len(own) and len(test):
            found.append((own, test))
    return found


def _run(data: DataSet, people: Sequence[Person], options: Namespace, arm: str, seed: int) -> dict[str, Any]:
    settings = training_of(options, TrainingSettings(planned_rounds=options.rounds))
    trainers = [
        _trainer(data, train, options.model, settings, arm, seed, index)
        for index, (train, _) in enumerate(people, start=1)
    ]
    start = trainers[0].model.values().copy()
    parameters = [start] * len(trainers)
    for round_id in range(1, options.rounds + 1):
        deltas = [
            model_delta(now, trainer.train_round(now, round_id).values)
            for now, trainer in zip(parameters, trainers, strict=True)
        ]
        if arm == "alone":
            parameters = [now - delta for now, delta in zip(parameters, deltas, strict=True)]
        else:
            parameters = [parameters[0] - np.mean(deltas, axis=0, dtype=np.float32)] * len(trainers)
    accuracies = []
    for now, trainer, (_, test) in zip(parameters, trainers, people, strict=True):
        trainer.model.load(now)
        accuracies.append(evaluate(trainer.model.module, test.x, test.y, len(data.classes)).accuracy)
    told = {"arm": arm, "seed": seed, "mean": fmean(accuracies), "worst": min(accuracies), "people": accuracies}
    print(json.dumps({key: told[key] for key in ("arm", "seed", "mean", "worst")}), file=sys.stderr, flush=True)
    return told


def _trainer(
    data: DataSet, train: Windows, model: str, settings: TrainingSettings, arm: str, seed: int, index: int
) -> LocalTrainer:
    module = build_model(own_model(model), data.shape[0], data.shape[1], len(data.classes), seed)
    own = own_names(module, "own" if arm == "own" else "shared")
    return LocalTrainer(
        FlatModel(module, own=own), train.x, train.y, msgspec.structs.replace(settings, seed=device_seed(seed, index))
    )
