"""What each coding of segments costs in accuracy, over several seeds, with rounds as a mesh has them, in one process.

    python -m benchmarks codings --data uci-har:PATH --rounds 20 --rounds-per-epoch 5 --seeds 0 1 2
    python -m benchmarks codings --data 'semg:PATH?split=series' --rounds 20 --rounds-per-epoch 5
    python -m benchmarks codings --data 'benchmarks.training.characters:read_articles?path=PATH' \
        --model benchmarks.training.characters:NextCharacter --rounds 20 --rounds-per-epoch 5

The table has means over the seeds, the difference to "none", seed by seed, and bytes.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import fmean
from typing import Any

import msgspec
import torch

from benchmarks.tool.options import Namespace, Parser, add_recipe, training_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.training.in_process import Mesh
from mdl.config import TrainingSettings
from mdl.data import DataSet, default_cache_dir, load_data
from mdl.own import own_data, own_model
from mdl.protocol.coding import CODINGS


def add_options(parser: Parser) -> None:
    add_recipe(parser)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds-per-epoch", type=int, default=5)
    parser.add_argument("--split", default="subject")
    parser.add_argument("--codings", nargs="+", choices=CODINGS, default=CODINGS, help="beside none")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each coding on one thread. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    show(("", "accuracy, %", "beside none, by seed", "loss", "MB sent"), table(sheet.figures["codings"]))


def measure(options: Namespace) -> dict[str, Any]:
    start = TrainingSettings(rounds_per_epoch=options.rounds_per_epoch, planned_rounds=options.rounds)
    settings = training_of(options, start)
    data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    chosen = [coding for coding in CODINGS if coding == "none" or coding in options.codings]
    codings = {coding: [_run(data, settings, options, coding, seed) for seed in options.seeds] for coding in chosen}
    return {
        "data": data.name,
        "windows": {"train": len(data.train), "test": len(data.test), "shape": data.shape},
        "model": options.model,
        "peers": options.peers,
        "rounds": options.rounds,
        "split": options.split,
        "training": msgspec.to_builtins(settings),
        "codings": codings,
    }


def table(codings: dict[str, list[dict[str, Any]]]) -> list[tuple[str, ...]]:
    """Return one row for each coding."""
    rows: list[tuple[str, ...]] = []
    for coding, runs in codings.items():
        off = ", ".join(
            f"{100 * (run['accuracy'] - none['accuracy']):+.2f}"
            for run, none in zip(runs, codings["none"], strict=True)
        )
        mean = {name: fmean(run[name] for run in runs) for name in ("accuracy", "loss", "sent_mb")}
        rows.append((coding, f"{100 * mean['accuracy']:.2f}", off, f"{mean['loss']:.3f}", f"{mean['sent_mb']:.1f}"))
    return rows


def _run(data: DataSet, settings: TrainingSettings, options: Namespace, coding: Any, seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    mesh = Mesh(data, own_model(options.model), settings, options.peers, options.split, coding, seed)
    for round_id in range(1, options.rounds + 1):
        mesh.apply(mesh.train_round(round_id).values)
    found = mesh.test()
    figures = {
        "seed": seed,
        "accuracy": found.accuracy,
        "macro_f1": found.macro_f1,
        "loss": found.loss_sum / found.n,
        "sent_mb": mesh.exchanges.sent_bytes / 1e6,
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(coding, json.dumps(figures), file=sys.stderr, flush=True)
    return figures
