"""What each coding of segments costs in accuracy, over several seeds, with rounds as a mesh has them, in one process.

    python benchmarks/codings.py --data uci-har:PATH --rounds 20 --rounds-per-epoch 5 --seeds 0 1 2
    python benchmarks/codings.py --data 'semg:PATH?split=series' --rounds 20 --rounds-per-epoch 5
    python benchmarks/codings.py --data 'benchmarks.training.characters:read_articles?path=PATH' \
        --model benchmarks.training.characters:NextCharacter --rounds 20 --rounds-per-epoch 5

Prints a table (mean over the seeds; the difference to "none", seed by seed; bytes) and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.told import tell_measured
from benchmarks.training.in_process import Mesh
from mdl.config import TrainingSettings
from mdl.data import DataSet, default_cache_dir, load_data
from mdl.own import own_data, own_model
from mdl.protocol.coding import CODINGS


def main() -> int:
    return tell_measured("codings", _parse_options(), measure, lambda told: table(told["codings"]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = msgspec.structs.replace(
        TrainingSettings(rounds_per_epoch=options.rounds_per_epoch, planned_rounds=options.rounds),
        **(json.loads(options.set) if options.set else {}),
    )
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
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread used, torch {torch.__version__}",
    }


def table(codings: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Markdown: one row for each coding."""
    lines = ["| | accuracy, % | beside none, by seed | loss | MB sent |", "|---|---|---|---|---|"]
    for coding, runs in codings.items():
        off = ", ".join(
            f"{100 * (run['accuracy'] - none['accuracy']):+.2f}"
            for run, none in zip(runs, codings["none"], strict=True)
        )
        mean = {name: fmean(run[name] for run in runs) for name in ("accuracy", "loss", "sent_mb")}
        lines.append(
            f"| {coding} | {100 * mean['accuracy']:.2f} | {off} | {mean['loss']:.3f} | {mean['sent_mb']:.1f} |"
        )
    return lines


def _run(
    data: DataSet, settings: TrainingSettings, options: argparse.Namespace, coding: Any, seed: int
) -> dict[str, Any]:
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


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a data spec, as `mdl data inspect` takes it")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rounds-per-epoch", type=int, default=5)
    parser.add_argument("--split", default="subject")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--codings", nargs="+", choices=CODINGS, default=CODINGS, help="beside none")
    parser.add_argument("--set", help='training settings as JSON, for example {"learning_rate": 0.001}')
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
