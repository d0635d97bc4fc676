"""Compare weights of devices in the mean: 1 each, or their windows (FedAvg), where they hold 1 to 100 parts of data.

    python -m benchmarks weights --data uci-har:PATH --rounds 20 --seeds 0 1 2
    python -m benchmarks weights --data 'semg:PATH?split=series' --rounds 20 --seeds 0 1 2

A device has one person's windows. Of them it keeps a share between 1/RATIO and all; shares are spaced evenly by their
logarithm, and a seed deals them out. Test windows are all of each person's, as in `own_batch_norm.py`. Both arms begin
with the same parameters and draw the same batches. Told are the accuracy over all test windows, the mean over people,
the worst of them, and that of people who are on no device, where the data has some.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import reduce
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.own_batch_norm import Person, part_people
from benchmarks.tool.options import Namespace, Parser, add_recipe, training_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.training.together import train_together
from mdl.config import TrainingSettings
from mdl.data import DataSet, Windows, default_cache_dir, load_data, take_windows
from mdl.learning.evaluation import evaluate
from mdl.learning.training import LocalTrainer
from mdl.own import own_data

ARMS = ("peer", "samples")
FIGURES = ("all", "mean", "worst", "strangers")


def add_options(parser: Parser) -> None:
    add_recipe(parser)
    parser.add_argument("--ratio", type=float, default=100.0, help="the largest share by the smallest")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure both weights with each seed, on one thread. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    rows = []
    for arm in ARMS:
        same = [run for run in sheet.figures["runs"] if run["arm"] == arm]
        by_seed = ", ".join(f"{100 * run['all']:.1f}" for run in same)
        known = [[run[name] for run in same if run[name] is not None] for name in FIGURES]
        rows.append((arm, by_seed, *(f"{100 * fmean(values):.1f}" if values else "-" for values in known)))
    head = ("round.theta", "all test windows, by seed, %", "all", "mean over people", "worst person", "strangers")
    show(head, rows)


def measure(options: Namespace) -> dict[str, Any]:
    data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    people = part_people(data)
    runs = [_run(data, people, options, arm, seed) for seed in options.seeds for arm in ARMS]
    return {
        "data": data.name,
        "options": options.data.partition("?")[2],
        "people": len(people),
        "ratio": options.ratio,
        "model": options.model,
        "rounds": options.rounds,
        "set": options.set or "",
        "runs": runs,
    }


def share_out(people: Sequence[Person], ratio: float, seed: int) -> list[Windows]:
    """Return what each person's device holds: windows evenly from all of theirs, between 1/ratio and all."""
    shares = np.random.default_rng([seed, len(people)]).permutation(np.geomspace(1 / ratio, 1, len(people)))
    counts = [max(1, round(len(own) * share)) for (own, _), share in zip(people, shares, strict=True)]
    rows = [
        np.linspace(0, len(own) - 1, count).astype(np.int64) for (own, _), count in zip(people, counts, strict=True)
    ]
    return [take_windows(own, kept) for (own, _), kept in zip(people, rows, strict=True)]


def _run(data: DataSet, people: Sequence[Person], options: Namespace, arm: str, seed: int) -> dict[str, Any]:
    settings = training_of(options, TrainingSettings(planned_rounds=options.rounds))
    held = share_out(people, options.ratio, seed)
    trainer, parameters = train_together(
        data, held, options.model, settings, options.rounds, seed, by_samples=arm == "samples"
    )
    told = {
        "arm": arm,
        "seed": seed,
        "held": [len(own) for own in held],
        **_test(data, people, trainer, parameters),
    }
    print(json.dumps({key: told[key] for key in ("arm", "seed", *FIGURES)}), file=sys.stderr, flush=True)
    return told


def _test(data: DataSet, people: Sequence[Person], trainer: LocalTrainer, parameters: Any) -> dict[str, Any]:
    trainer.model.load(parameters)
    done = [evaluate(trainer.model.module, test.x, test.y, len(data.classes)) for _, test in people]
    each = [one.accuracy for one in done]
    others = take_windows(data.test, ~np.isin(data.test.subject, data.train.subject))
    strangers = evaluate(trainer.model.module, others.x, others.y, len(data.classes)).accuracy if len(others) else None
    whole = reduce(lambda a, b: a + b, done).accuracy
    return {"all": whole, "mean": fmean(each), "worst": min(each), "strangers": strangers, "each": each}
