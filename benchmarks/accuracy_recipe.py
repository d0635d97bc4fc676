"""Accuracy of the mesh against central training and against each device alone, with the same budget, in one process.

Every peer trains its share from w(t), the deltas are merged pair by pair (Eq. 3) and applied, round after round: the
mathematics of a mesh without its network, so that a recipe can be judged in minutes.

    python -m benchmarks accuracy_recipe --data uci-har:PATH --peers 6 --rounds 20 --seeds 0 1 2
    python -m benchmarks accuracy_recipe --data "semg:PATH?split=series" --peers 6 --rounds 20 --seeds 0 1 2
    python -m benchmarks accuracy_recipe --data uci-har:PATH --folds 3 --seeds 0

Told is every figure of every seed, the medians, and the means over all test windows. --folds chooses among settings
without a look at the test people: each third of the training people tests what the others have trained.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.tool.options import Namespace, Parser, add_recipe, training_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.training.together import train_together
from mdl.config import TrainingSettings
from mdl.data import DataSet, Windows, default_cache_dir, load_data, split_windows, take_windows
from mdl.errors import ConfigError
from mdl.learning.evaluation import evaluate
from mdl.learning.training import make_turn
from mdl.own import own_data
from mdl.protocol.counts import Evaluation

# Optimizer, rate and smoothing were chosen on held-out training subjects (uci-har) and holds (semg), one seed each.
# The number of rounds is the caller's: say so where it was chosen with test figures in sight.
RECIPE = TrainingSettings(optimizer="sgd", learning_rate=0.05, label_smoothing=0.1)


def add_options(parser: Parser) -> None:
    add_recipe(parser)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--split", default="subject")
    parser.add_argument("--theta", choices=("peer", "samples"), default="peer")
    parser.add_argument(
        "--folds", type=int, default=0, help="test on parts of the training people; 0: on the test people"
    )
    parser.add_argument("--alone", action="store_true", help="also train every device alone")
    parser.add_argument("--cache", type=Path, default=default_cache_dir(), help="where parsed windows are kept")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure all seeds on one thread. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    columns = ("mesh", "macro_f1", "central")
    show(("seed", *columns), [[one["seed"], *(f"{one[key]:.4f}" for key in columns)] for one in sheet.figures["seeds"]])


def measure(options: Namespace) -> dict[str, Any]:
    """All seeds, and their medians."""
    settings = training_of(options, msgspec.structs.replace(RECIPE, planned_rounds=options.rounds))
    data = load_data(own_data(options.data), options.cache, seed=0)
    parts = part_people(data, options.folds) if options.folds else [data]
    seeds = [_measure_seed(part, settings, options, seed) for part in parts for seed in options.seeds]
    tested = [len(part.test) for part in parts for _ in options.seeds]
    spread = {key: [figures[key] for figures in seeds] for key in ("mesh", "macro_f1", "central")}
    return {
        "data": data.name,
        "options": options.data.partition("?")[2],
        "windows": {"train": len(data.train), "test": len(data.test), "shape": data.shape, "held_out": data.held_out},
        "model": options.model,
        "peers": options.peers,
        "rounds": options.rounds,
        "split": options.split,
        "theta": options.theta,
        "folds": options.folds,
        "training": msgspec.to_builtins(settings),
        "seeds": seeds,
        **{f"{key}_median": median(values) for key, values in spread.items()},
        **{f"{key}_mean": fmean(values, tested) for key, values in spread.items()},
        "central_minus_mesh": median(spread["central"]) - median(spread["mesh"]),
    }


def part_people(data: DataSet, folds: int) -> list[DataSet]:
    """Data sets whose test people are each a part of the training people; the data set's own are in none of them."""
    people = np.unique(data.train.subject)
    if not 2 <= folds <= len(people):
        raise ConfigError(f"--folds is {folds}: the data has {len(people)} training people; expected 2 to that many")
    tests = [np.isin(data.train.subject, people[start::folds]) for start in range(folds)]
    return [replace(data, train=take_windows(data.train, ~test), test=take_windows(data.train, test)) for test in tests]


def _measure_seed(data: DataSet, settings: TrainingSettings, options: Namespace, seed: int) -> dict[str, Any]:
    rows = split_windows(data.train, options.split, options.peers, seed)
    shards = [take_windows(data.train, share) for share in rows]
    started = time.perf_counter()
    mesh = _train(data, shards, settings, options, seed)
    mesh_s = time.perf_counter() - started
    central = _train(data, [data.train], settings, options, seed)
    figures: dict[str, Any] = {
        "seed": seed,
        "shares": [len(shard) for shard in shards],
        "mesh": mesh.accuracy,
        "macro_f1": mesh.macro_f1,
        "central": central.accuracy,
        "local_training_s": mesh_s / options.rounds / options.peers,
    }
    if options.alone:
        figures["alone"] = [_train(data, [shard], settings, options, seed).accuracy for shard in shards]
    print(json.dumps(figures), file=sys.stderr, flush=True)
    return figures


def _train(
    data: DataSet, shards: list[Windows], settings: TrainingSettings, options: Namespace, seed: int
) -> Evaluation:
    """All rounds over these shares; one share of everything is central training."""
    augment = make_turn(settings.rotate_deg, data.channels)
    by_samples = options.theta == "samples"
    trainer, parameters = train_together(
        data, shards, options.model, settings, options.rounds, seed, by_samples=by_samples, augment=augment
    )
    trainer.model.load(parameters)
    return evaluate(trainer.model.module, data.test.x, data.test.y, len(data.classes))
