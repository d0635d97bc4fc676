"""Accuracy with members that lie, with and without the defence, and who is left out of rounds where nobody lies.

    python -m benchmarks poisoning --data uci-har:PATH --rounds 8 --seeds 0 1 2
    python -m benchmarks poisoning --data uci-har:PATH --attacks none --splits dirichlet:0.3 --rounds 200 --defences on

A simulated mesh of the product's machines, in which each device really trains (`benchmarks/training/simulated.py`);
the liars are `benchmarks/training/attacks.py`; "absent" is a mesh of the others alone.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_rounds, add_seeds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.training.attacks import ABSENT, ATTACKS, TARGET, with_trigger
from benchmarks.training.simulated import TrainingMesh
from mdl.config import TrainingSettings
from mdl.data import DataSet, default_cache_dir, load_data, take_windows
from mdl.own import own_data

NONE = "none"


def add_options(parser: Parser) -> None:
    add_data(parser, what="for example uci-har:PATH")
    add_model(parser)
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--liars", type=int, default=3)
    add_rounds(parser, 8)
    parser.add_argument("--windows", type=int, default=0, help="to train with, drawn from all; 0: all")
    parser.add_argument("--splits", nargs="+", default=["iid", "dirichlet:0.3"])
    parser.add_argument("--attacks", nargs="+", default=[NONE, ABSENT, *ATTACKS], choices=[NONE, ABSENT, *ATTACKS])
    parser.add_argument("--defences", nargs="+", default=["on", "off"], choices=["on", "off"])
    parser.add_argument("--exchange", default="chain", choices=["chain", "shares"])
    add_seeds(parser)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each split, attack and defence with each seed, on one thread. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    if options.windows:
        rows = np.sort(np.random.default_rng(0).permutation(len(data.train))[: options.windows])
        data = replace(data, train=take_windows(data.train, rows))
    runs: list[dict[str, Any]] = []
    sheet.tell({"data": data.name, "peers": options.peers, "liars": options.liars, "runs": runs})
    for split, attack, defence, seed in itertools.product(
        options.splits, options.attacks, options.defences, options.seeds
    ):
        runs.append(_run(data, options, split, attack, defence == "on", seed))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        sheet.save()
    head = ("split, attack", "with the defence", "without", "liars left out", "honest left out, rounds missed")
    show(head, table(runs))


def table(runs: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each split and attack; accuracies in percent, mean over seeds."""
    rows: list[tuple[str, ...]] = []
    for split, attack in dict.fromkeys((run["split"], run["attack"]) for run in runs):
        on, off = ([run for run in runs if _key(run) == (split, attack, is_on)] for is_on in (True, False))
        out = fmean(run["liars_quarantined"] for run in on) if on else 0.0
        wrongly = fmean(run["honest_quarantined"] for run in on) if on else 0.0
        missed = fmean(run["honest_missed"] for run in on) if on else 0.0
        told = (_percent(on), _percent(off), f"{out:.1f}", f"{wrongly:.1f}, {missed:.1f}")
        rows.append((f"{split}, {attack}", *told))
    return rows


def _key(run: dict[str, Any]) -> tuple[str, str, bool]:
    return run["split"], run["attack"], run["defence"]


def _percent(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    told = f"{100 * fmean(run['accuracy'] for run in runs):.2f}"
    hits = [run["backdoor"] for run in runs if run["backdoor"] is not None]
    return f"{told} (trigger works in {100 * fmean(hits):.0f} %)" if hits else told


def _run(data: DataSet, options: Namespace, split: str, attack: str, is_defended: bool, seed: int) -> dict[str, Any]:
    started = time.process_time()
    rng = np.random.default_rng([seed, 0x11A5])
    count = 0 if attack == NONE else options.liars
    liars = frozenset(int(number) for number in rng.permutation(options.peers)[:count])
    settings = TrainingSettings(planned_rounds=options.rounds)
    mesh = TrainingMesh(
        *(data, options.model, settings, options.peers, split, seed, liars, attack, is_defended, options.exchange)
    )
    mesh.finish()
    names, quarantined = {f"p{number}" for number in liars}, {who for each in mesh.rounds for who in each.quarantined}
    backdoor = None
    if attack == "backdoor":
        found = mesh.test(with_trigger(data.test.x))
        others = sum(found.true_positive[TARGET + 1 :]) + sum(found.false_negative[TARGET + 1 :])
        backdoor = found.false_positive[TARGET] / others
    return {
        "split": split,
        "attack": attack,
        "defence": is_defended,
        "seed": seed,
        "rounds": len(mesh.rounds),
        "accuracy": mesh.test().accuracy,
        "backdoor": backdoor,
        "liars_quarantined": len(quarantined & names),
        "honest_quarantined": len(quarantined - names),
        "honest_missed": sum(options.peers - count - len({*each.contributors} - names) for each in mesh.rounds),
        "seconds": round(time.process_time() - started, 1),
    }
