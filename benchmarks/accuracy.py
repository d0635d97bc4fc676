"""Accuracy of the mesh against central and alone, on real recordings, over several seeds (MDLdroid Table 3, Fig. 3).

    python benchmarks/accuracy.py --data uci-har:PATH --epochs 20 --seeds 0 1 2 --json

Each seed is one `mdl up --baselines`: real peer processes on this machine, the official split, the training people
shared out among the peers. Prints each run and the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_FIGURES = ("accuracy", "macro_f1", "accuracy_alone", "accuracy_central", "seconds", "round_s_median")


def run_seed(given: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "mdl", "up", "-n", str(given.peers), "--data", given.data]
    command += ["--model", given.model, "--epochs", str(given.epochs), "--policy", given.policy, "--seed", str(seed)]
    command += ["--rounds-per-epoch", str(given.rounds_per_epoch), "--split", given.split]
    command += ["--baselines", "--json", "--out", str(folder / f"seed-{seed}")]
    for assignment in given.set or []:
        command += ["--set", assignment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"seed {seed}: exit code {done.returncode}: {done.stderr.splitlines()[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, "rounds": result["rounds"], **{name: result[name] for name in _FIGURES}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="for example uci-har:PATH or semg:PATH")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds-per-epoch", type=int, default=1)
    parser.add_argument("--policy", default="greedy")
    parser.add_argument("--split", default="subject")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", help="key=value, as for mdl up")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            runs.append(run_seed(given, seed, Path(folder)))
            print(runs[-1], file=sys.stderr)
    median = {name: statistics.median(run[name] for run in runs) for name in _FIGURES}
    settings = {key: value for key, value in vars(given).items() if key not in ("json", "seeds", "data")}
    # Only the source's name: where the files lie is nobody's business.
    result = {"data": given.data.split(":")[0], **settings, "runs": runs, "median": median}
    print(json.dumps(result) if given.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
