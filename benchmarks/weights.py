"""Compare weights of devices in the mean: 1 each, or their windows (FedAvg), where they hold 1 to 100 parts of data.

    python benchmarks/weights.py --data uci-har:PATH --rounds 20 --seeds 0 1 2
    python benchmarks/weights.py --data 'semg:PATH?split=series' --rounds 20 --seeds 0 1 2

A device has one person's windows. Of them it keeps a share between 1/RATIO and all; shares are spaced evenly by their
logarithm, and a seed deals them out. Test windows are all of each person's, as in `own_batch_norm.py`. Both arms begin
with the same parameters and draw the same batches. Told are the accuracy over all test windows, the mean over people,
the worst of them, and that of people who are on no device, where the data has some. Prints a table and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.own_batch_norm import Person, part_people
from benchmarks.told import tell_measured
from benchmarks.training.together import train_together
from mdl.config import TrainingSettings
from mdl.data import DataSet, Windows, default_cache_dir, load_data, take_windows
from mdl.learning.evaluation import evaluate
from mdl.learning.training import LocalTrainer
from mdl.own import own_data

ARMS = ("peer", "samples")
FIGURES = ("all", "mean", "worst", "strangers")


def main() -> int:
    return tell_measured("weights", _parse_options(), measure, table)


def table(told: dict[str, Any]) -> Iterator[str]:
    yield "| round.theta | all test windows, by seed, % | all | mean over people | worst person | strangers |"
    yield "|---|---|---|---|---|---|"
    for arm in ARMS:
        same = [run for run in told["runs"] if run["arm"] == arm]
        by_seed = ", ".join(f"{100 * run['all']:.1f}" for run in same)
        known = [[run[name] for run in same if run[name] is not None] for name in FIGURES]
        means = " | ".join(f"{100 * fmean(values):.1f}" if values else "-" for values in known)
        yield f"| {arm} | {by_seed} | {means} |"


def measure(options: argparse.Namespace) -> dict[str, Any]:
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
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread used, torch {torch.__version__}",
    }


def share_out(people: Sequence[Person], ratio: float, seed: int) -> list[Windows]:
    """Return what each person's device holds: windows evenly from all of theirs, between 1/ratio and all."""
    shares = np.random.default_rng([seed, len(people)]).permutation(np.geomspace(1 / ratio, 1, len(people)))
    counts = [max(1, round(len(own) * share)) for (own, _), share in zip(people, shares, strict=True)]
    rows = [
        np.linspace(0, len(own) - 1, count).astype(np.int64) for (own, _), count in zip(people, counts, strict=True)
    ]
    return [take_windows(own, kept) for (own, _), kept in zip(people, rows, strict=True)]


def _run(data: DataSet, people: Sequence[Person], options: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    given = json.loads(options.set) if options.set else {}
    settings = msgspec.structs.replace(TrainingSettings(planned_rounds=options.rounds), **given)
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


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a data spec, as `mdl data inspect` takes it")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--ratio", type=float, default=100.0, help="the largest share by the smallest")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", help='training settings as JSON, for example {"learning_rate": 0.001}')
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
