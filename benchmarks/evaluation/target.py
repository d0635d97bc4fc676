"""Seconds until the model is so accurate, on recordings, with six devices on limited links: mesh, master, Flower.

All train alike (`shares.py`), so that after as many rounds they stand at the same model but for rounding; what differs
is how long rounds take. The clock begins when the first device begins to train, and a round is over when its result is
at the last device. Test windows are not looked at meanwhile: the models of all rounds are kept, and tested afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.lan import Told, run_devices
from benchmarks.links.places import Case, read_all
from benchmarks.tool import table
from mdl.data import default_cache_dir, load_data
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model

_SCRIPT = Path(__file__).resolve().parents[1] / "links" / "flower_trainer.py"
_PORT = 29_500
_PATIENCE_S = 400.0


def measure(case: Case, system: str, given: argparse.Namespace) -> dict[str, Any]:
    """One run of one system. Raises RuntimeError, TimeoutError."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as models:
        asked = {name: getattr(given, name) for name in ("rounds", "data", "model", "training")} | {"keep": models}
        if system == "flower":
            told = _run_flower(case, asked | {"split": "subject", "seed": 0}, given.flower, Path(folder))
        else:
            told = run_devices(case, system, asked, Path(folder))
        accuracies = test_models(Path(models), given)
    return judge(told, accuracies, given.target)


def judge(told: Told, accuracies: list[float], target: float) -> dict[str, Any]:
    """When the models of rounds 1, 2, ... were there, and the first that is accurate enough."""
    begun = min(each["begun"][0] for each in told)
    ends = [max(moments) - begun for moments in zip(*(each["applied"] for each in told), strict=False)]
    reached = next((number for number, accuracy in enumerate(accuracies) if accuracy >= target), None)
    steps = [after - before for before, after in pairwise(ends)]
    return {
        "target": target,
        "round": None if reached is None else reached + 1,
        "seconds": None if reached is None or reached >= len(ends) else round(ends[reached], 2),
        "round_s_median": round(statistics.median(steps), 3),
        "rounds": len(ends),
        "best": max(accuracies),
        "last": accuracies[-1],
        "values": told[0]["values"],
    }


def test_models(models: Path, given: argparse.Namespace) -> list[float]:
    """Accuracy of w(1), w(2), ... on all test windows."""
    data = load_data(given.data, default_cache_dir(), seed=0)
    model = FlatModel(build_model(given.model, data.shape[0], data.shape[1], len(data.classes), 0))
    accuracies = []
    for number in range(1, 1 + len(list(models.glob("*.npy")))):
        model.load(np.load(models / f"{number}.npy"))
        accuracies.append(round(evaluate(model.module, data.test.x, data.test.y, len(data.classes)).accuracy, 4))
    return accuracies


def _run_flower(case: Case, asked: dict[str, Any], python: str, folder: Path) -> Told:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    log = (folder / "log").open("w+")
    with case.open(more=1) as net:
        asked |= {"size": case.size, "packages": packages, "server": f"{net.hosts[-1]}:{_PORT}"}
        everybody = [
            net.start(rank, _SCRIPT, json.dumps(asked | {"rank": rank}), stderr=log.fileno(), python=python)
            for rank in range(case.size + 1)
        ]
        said = read_all(everybody, _PATIENCE_S)
    told = [json.loads(text.splitlines()[-1]) for text in said if text]
    if len(told) < case.size:
        log.seek(0)
        raise RuntimeError(f"{case.size - len(told)} devices said nothing: {log.read()[-400:]}")
    return told


def show(case: Case, results: dict[str, dict[str, Any]]) -> None:
    """Print a row for each system."""
    flower, rows = results.get("flower", {}).get("seconds"), []
    for system, one in results.items():
        if "failed" in one:
            rows.append((system, f"failed: {one['failed']}", *[None] * 6))
            continue
        times = f"{flower / one['seconds']:.2f}" if flower and one["seconds"] else None
        reached = (f"{100 * one['target']:.1f}", one["seconds"] or "not", one["round"], one["rounds"])
        rows.append((system, *reached, f"{one['round_s_median']:.3f}", f"{100 * one['best']:.1f}", times))
    head = ("", "target", "seconds", "round", "of", "round s", "best %", "Flower / it")
    table.show(head, rows, f"{case.text.partition('@')[0]}: seconds until the target")
