"""What a cloud gives a mesh whose devices have seen few activities each: `mdl up` with one and without one.

    python benchmarks/cloud_mesh.py --out benchmarks/results/cloud_mesh.json
    python benchmarks/cloud_mesh.py --data uci-har:PATH --donors 4 --out benchmarks/results/cloud_mesh_har.json
    python benchmarks/cloud_mesh.py --arms first with --epochs 20 --out benchmarks/results/cloud_cycles.json

Real processes. Arms: without (a cloud), first (the cloud's first model as start and teacher; nothing goes up, so no
cycle is taught), with (every few rounds the mesh's model goes up, and the cloud teaches from it). The same people are
the cloud's in all of them: without a cloud their windows are nobody's. The test people are in none. The cloud's own
models stand beside the mesh: what devices would have if they only pulled. Seeds that the file at --out has are not run
again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mdl.cloud.model_kinds import kind_of
from mdl.config import load_config
from mdl.data import default_cache_dir, load_data
from mdl.files.checkpoint import read_safetensors
from mdl.learning.evaluation import evaluate
from mdl.own import own_data, own_model

# More rounds than any run has: the mesh's model stays at home.
_NEVER = 1_000_000
# On a machine that has other work a lesson may take longer than a device waits for it, and a mesh that starts cold says
# nothing of cycles.
_WITH = ("--cloud", "--set", "cloud.warm_start_s=900")
ARMS = {"without": (), "first": (*_WITH, "--set", f"cloud.upload_every={_NEVER}"), "with": _WITH}
_MODELS = ("cloud_small", "cloud_large", "last_small", "last_large")


def main() -> None:
    options = _parse_options()
    torch.set_num_threads(1)
    command, runs = _describe_command(options), []
    if options.out.is_file() and (found := json.loads(options.out.read_text()))["command"] == command:
        runs = found["runs"]
    for seed in options.seeds:
        if seed in [run["seed"] for run in runs]:
            continue
        runs.append(measure_seed(options, seed))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        _write(options, command, runs)
    print(json.dumps({key: json.loads(options.out.read_text())[key] for key in ("median", "gain_points")}))


def measure_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Accuracies of each arm, and of the cloud's small and large models: the first, and those of its last cycle."""
    with tempfile.TemporaryDirectory() as folder:
        arms = {arm: run_up(options, seed, Path(folder) / arm, *ARMS[arm]) for arm in options.arms}
        if (run := arms.get("first")) and run["cloud"]["version"] != 1:
            heard = run["cloud"]["version"] - 1
            raise SystemExit(f"seed {seed}: the arm first, which is to hear of no cycle, heard of {heard}")
        cloud, taught = Path(folder) / "with" / "cloud", arms["with"]
        small, large = test_cloud(options, seed, cloud, 1)
        last_small, last_large = test_cloud(options, seed, cloud, taught["cloud"]["version"])
    return {
        "seed": seed,
        **{arm: round(run["accuracy"], 4) for arm, run in arms.items()},
        "cloud_small": round(small, 4),
        "cloud_large": round(large, 4),
        "last_small": round(last_small, 4),
        "last_large": round(last_large, 4),
        "round_s": [round(run["round_s_median"], 2) for run in arms.values()],
        "wire_bytes": [run["wire_bytes"] for run in arms.values()],
        "cloud": taught["cloud"],
    }


def _write(options: argparse.Namespace, command: str, runs: list[dict[str, Any]]) -> None:
    """gain_points: of the arm "with" over the first of the others."""
    beside = options.arms[0]
    result = {
        "command": command,
        "median": {key: median(run[key] for run in runs) for key in (*options.arms, *_MODELS)},
        "gain_points": [round(100 * (run["with"] - run[beside]), 1) for run in runs],
        "runs": runs,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def run_up(options: argparse.Namespace, seed: int, out: Path, *more: str) -> dict[str, Any]:
    """One `mdl up`; its result."""
    words = describe_up(options, seed, out, *more)
    done = subprocess.run([sys.executable, "-m", "mdl", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"mdl up failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def describe_up(options: argparse.Namespace, seed: int, out: Path, *more: str) -> list[str]:
    """The words of one `mdl up`. What an arm says comes last, and so goes before what all of them have."""
    words = [
        *("up", "--json", "-n", options.peers, "--data", options.data, "--split", options.split),
        *("--epochs", options.epochs, "--donors", options.donors, "--seed", seed, "--out", out),
        *(word for setting in options.set for word in ("--set", setting)),
        *more,
    ]
    return [str(word) for word in words]


def test_cloud(options: argparse.Namespace, seed: int, folder: Path, version: int) -> tuple[float, float]:
    """Accuracy of the small and the large base model that the cloud had by this version, on the same test people."""
    settings = [f"cloud.people={options.donors}", *options.set]
    config = load_config(None, {"data.spec": options.data, "seed": seed}, settings)
    data = load_data(own_data(options.data), default_cache_dir(), seed)
    kind = kind_of(data, own_model(config.model.name), own_model(config.cloud.large), seed)
    accuracies = []
    for name in ("small", "large"):
        packed = read_safetensors(folder / "lessons" / f"{version:05}" / f"{name}-base.safetensors")[0][
            "model"
        ].tobytes()
        model = kind.unpack(packed, large=name == "large")
        accuracies.append(evaluate(model, data.test.x, data.test.y, len(data.classes)).accuracy)
    return accuracies[0], accuracies[1]


def _describe_command(options: argparse.Namespace) -> str:
    """The command, without where anything lies on this machine."""
    source, colon, _ = options.data.partition(":")
    words = [
        *("--data", source + (":PATH" if colon else ""), "--split", options.split, "--peers", options.peers),
        *("--epochs", options.epochs, "--donors", options.donors, "--arms", *options.arms),
        *(word for setting in options.set for word in ("--set", setting)),
    ]
    return " ".join(["python benchmarks/cloud_mesh.py", *map(str, words)])


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="motion")
    parser.add_argument("--split", default="dirichlet:0.1")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--donors", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["without", "with"])
    parser.add_argument("--set", action="append", default=[], help="key=value for `mdl up`")
    options = parser.parse_args()
    if options.arms[-1] != "with" or len(options.arms) < 2:
        parser.error("--arms: name what stands beside it, then with")
    return options


if __name__ == "__main__":
    main()
