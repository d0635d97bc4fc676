"""Accuracy of the mesh against central and alone, on real recordings, over several seeds (MDLdroid Table 3, Fig. 3).

    python -m benchmarks accuracy --data uci-har:PATH --epochs 20 --seeds 0 1 2

Each seed is one `mdl up --baselines`: real peer processes on this machine, the official split, the training people
shared out among the peers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_seeds, add_settings
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show

_FIGURES = ("accuracy", "macro_f1", "accuracy_alone", "accuracy_central", "seconds", "round_s_median")


def run_seed(given: Namespace, seed: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "mdl", "up", "-n", str(given.peers), "--data", given.data]
    command += ["--model", given.model, "--epochs", str(given.epochs), "--policy", given.policy, "--seed", str(seed)]
    command += ["--rounds-per-epoch", str(given.rounds_per_epoch), "--split", given.split]
    command += ["--baselines", "--json", "--out", str(folder / f"seed-{seed}")]
    for assignment in given.set:
        command += ["--set", assignment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"seed {seed}: exit code {done.returncode}: {done.stderr.splitlines()[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, "rounds": result["rounds"], **{name: result[name] for name in _FIGURES}}


def add_options(parser: Parser) -> None:
    add_data(parser, what="for example uci-har:PATH or semg:PATH")
    add_model(parser)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds-per-epoch", type=int, default=1)
    parser.add_argument("--policy", default="greedy")
    parser.add_argument("--split", default="subject")
    add_seeds(parser)
    add_settings(parser)


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure one `mdl up` a seed. Raises Failed."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            runs.append(run_seed(given, seed, Path(folder)))
            print(runs[-1], file=sys.stderr)
    show(("seed", *_FIGURES), [[run["seed"], *(f"{run[name]:.3f}" for name in _FIGURES)] for run in runs])
    sheet.tell({"runs": runs, "median": {name: median((run[name] for run in runs), 6) for name in _FIGURES}})
