"""Accuracy with members that lie, with and without the defence, and who is left out of rounds where nobody lies.

    python benchmarks/poisoning.py --data uci-har:PATH --rounds 8 --seeds 0 1 2
    python benchmarks/poisoning.py --data uci-har:PATH --attacks none --splits dirichlet:0.3 --rounds 200 --defences on

A simulated mesh of the product's machines, in which each device really trains (`benchmarks/training/simulated.py`);
the liars are `benchmarks/training/attacks.py`; "absent" is a mesh of the others alone.
Prints a line of JSON a run, and a table.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.training.attacks import ABSENT, ATTACKS, TARGET, with_trigger
from benchmarks.training.simulated import TrainingMesh
from mdl.config import TrainingSettings
from mdl.data import DataSet, default_cache_dir, load_data, take_windows
from mdl.errors import MdlError
from mdl.own import own_data

NONE = "none"


def main() -> int:
    options = _parse_options()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    except MdlError as error:
        print(f"poisoning: {error}", file=sys.stderr)
        return error.exit_code
    if options.windows:
        rows = np.sort(np.random.default_rng(0).permutation(len(data.train))[: options.windows])
        data = replace(data, train=take_windows(data.train, rows))
    runs = []
    for split in options.splits:
        for attack in options.attacks:
            for defence in options.defences:
                for seed in options.seeds:
                    runs.append(_run(data, options, split, attack, defence == "on", seed))
                    print(json.dumps(runs[-1]), flush=True)
    for line in table(runs):
        print(line)
    told = {"data": data.name, "peers": options.peers, "liars": options.liars, "runs": runs}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, 1 thread used, torch {torch.__version__}"
    print(json.dumps({**told, "machine": machine}))
    return 0


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: a row for each split and attack; accuracies in percent, mean over seeds."""
    lines = [
        "| split | attack | with the defence | without | liars left out | honest left out, rounds missed |",
        "|---|---|---|---|---|---|",
    ]
    for split, attack in dict.fromkeys((run["split"], run["attack"]) for run in runs):
        on, off = ([run for run in runs if _key(run) == (split, attack, is_on)] for is_on in (True, False))
        out = fmean(run["liars_quarantined"] for run in on) if on else 0.0
        wrongly = fmean(run["honest_quarantined"] for run in on) if on else 0.0
        missed = fmean(run["honest_missed"] for run in on) if on else 0.0
        lines.append(
            f"| {split} | {attack} | {_percent(on)} | {_percent(off)} | {out:.1f} | {wrongly:.1f}, {missed:.1f} |"
        )
    return lines


def _key(run: dict[str, Any]) -> tuple[str, str, bool]:
    return run["split"], run["attack"], run["defence"]


def _percent(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    told = f"{100 * fmean(run['accuracy'] for run in runs):.2f}"
    hits = [run["backdoor"] for run in runs if run["backdoor"] is not None]
    return f"{told} (trigger works in {100 * fmean(hits):.0f} %)" if hits else told


def _run(
    data: DataSet, options: argparse.Namespace, split: str, attack: str, is_defended: bool, seed: int
) -> dict[str, Any]:
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


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="for example uci-har:PATH")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--liars", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--windows", type=int, default=0, help="to train with, drawn from all; 0: all")
    parser.add_argument("--splits", nargs="+", default=["iid", "dirichlet:0.3"])
    parser.add_argument("--attacks", nargs="+", default=[NONE, ABSENT, *ATTACKS], choices=[NONE, ABSENT, *ATTACKS])
    parser.add_argument("--defences", nargs="+", default=["on", "off"], choices=["on", "off"])
    parser.add_argument("--exchange", default="chain", choices=["chain", "shares"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
