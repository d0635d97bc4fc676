"""Accuracy against rounds and bytes, with and without an outer optimizer, for rounds of so many local steps.

    python -m benchmarks outer --data uci-har:PATH --local-steps 50 --total-steps 1000 --seeds 0 1 2
    python -m benchmarks outer --data 'benchmarks.training.characters:read_articles?path=PATH' \
        --model benchmarks.training.characters:NextCharacter --local-steps 100 --total-steps 2000

Each device takes --total-steps steps of its own optimizer, in rounds of --local-steps each. --outer ETA:MOMENTUM, any
number of them; 1:0 is the plain mean. --set '{"overlap": true}': each round is trained under the exchange of the one
before.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import fmean
from typing import Any

import msgspec
import torch

from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_seeds, add_training, training_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.training.in_process import Mesh
from mdl.config import TrainingSettings
from mdl.data import DataSet, default_cache_dir, load_data, split_windows
from mdl.errors import ConfigError
from mdl.own import own_data, own_model


def add_options(parser: Parser) -> None:
    add_data(parser)
    add_model(parser)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--local-steps", type=int, nargs="+", default=[50], help="of a device in a round, about")
    parser.add_argument("--total-steps", type=int, default=1000)
    parser.add_argument("--outer", nargs="+", default=["1:0", "0.7:0.9"], help="ETA:MOMENTUM")
    parser.add_argument("--compress", default="none")
    parser.add_argument("--split", default="subject")
    add_seeds(parser)
    add_training(parser)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each outer step on one thread. Raises ConfigError, DataError."""
    if options.total_steps < max(options.local_steps):
        raise ConfigError(
            f"--total-steps {options.total_steps}: one round has --local-steps {max(options.local_steps)}"
        )
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    show(
        ("local steps", "eta, momentum", "rounds", "MB", "accuracy, %, by quarter", "loss"),
        table(sheet.figures["runs"]),
    )


def measure(options: Namespace) -> dict[str, Any]:
    data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    runs = [
        _run(data, options, steps, outer, seed)
        for steps in options.local_steps
        for outer in options.outer
        for seed in options.seeds
    ]
    return {
        "data": data.name,
        "windows": {"train": len(data.train), "test": len(data.test), "shape": data.shape},
        "model": options.model,
        "peers": options.peers,
        "split": options.split,
        "coding": options.compress,
        "set": options.set or "",
        "runs": runs,
    }


def table(runs: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a row for each number of local steps and outer step; the accuracy after each quarter of the rounds."""
    rows = []
    for steps, outer in dict.fromkeys((run["local_steps"], run["outer"]) for run in runs):
        same = [run for run in runs if (run["local_steps"], run["outer"]) == (steps, outer)]
        quarters = ", ".join(f"{100 * fmean(run['accuracy'][place] for run in same):.2f}" for place in range(4))
        rounds, sent_mb = same[0]["rounds"], fmean(run["sent_mb"] for run in same)
        loss = fmean(run["loss"] for run in same)
        rows.append((steps, outer, rounds, f"{sent_mb:.1f}", quarters, f"{loss:.3f}"))
    return rows


def _run(data: DataSet, options: Namespace, steps: int, outer: str, seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    rounds = options.total_steps // steps
    smallest = min(len(rows) for rows in split_windows(data.train, options.split, options.peers, seed))
    settings = training_of(options, TrainingSettings(planned_rounds=rounds))
    # A device passes over its windows in rounds_per_epoch rounds; the smallest share decides how many steps that is.
    per_epoch = max(1, round(smallest / settings.batch_size / steps))
    settings = msgspec.structs.replace(settings, rounds_per_epoch=per_epoch)
    eta, momentum = (float(part) for part in outer.split(":"))
    mesh = Mesh(
        *(data, own_model(options.model), settings, options.peers, options.split, options.compress, seed),
        eta=eta,
        momentum=momentum,
    )
    accuracy, loss = list[float](), 0.0
    for round_id in range(1, rounds + 1):
        mesh.apply(mesh.train_round(round_id).values)
        if (quarters := round_id * 4 // rounds) > len(accuracy):
            found = mesh.test()
            accuracy += [found.accuracy] * (quarters - len(accuracy))  # of three rounds the last ends two quarters
            loss = found.loss_sum / found.n
    figures = {
        "local_steps": steps,
        "outer": outer,
        "seed": seed,
        "rounds": rounds,
        "steps_taken": mesh.steps // options.peers,
        "accuracy": accuracy,
        "loss": loss,
        "sent_mb": mesh.exchanges.sent_bytes / 1e6,
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(json.dumps(figures), file=sys.stderr, flush=True)
    return figures
