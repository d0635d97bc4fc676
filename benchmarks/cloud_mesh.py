"""What a cloud gives a mesh whose devices have seen few activities each: `mdl up` with one and without one.

    python -m benchmarks cloud_mesh --out cloud_mesh.json
    python -m benchmarks cloud_mesh --data uci-har:PATH --donors 4 --out cloud_mesh_har.json
    python -m benchmarks cloud_mesh --arms first with --epochs 20 --out cloud_cycles.json

Real processes. Arms: without (a cloud), first (the cloud's first model as start and teacher; nothing goes up, so no
cycle is taught), with (every few rounds the mesh's model goes up, and the cloud teaches from it). The same people are
the cloud's in all of them: without a cloud their windows are nobody's. The test people are in none. The cloud's own
models stand beside the mesh: what devices would have if they only pulled. Seeds that the file at --out has are not run
again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.tool.options import Namespace, Parser, add_data, add_seeds, add_settings
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show
from mdl.config import load_config
from mdl.data import default_cache_dir, load_data
from mdl.errors import ConfigError
from mdl.files.checkpoint import read_safetensors
from mdl.learning.evaluation import evaluate
from mdl.own import own_data, own_model
from mdl.peers.colla.model.model_kinds import kind_of

# More rounds than any run has: the mesh's model stays at home.
_NEVER = 1_000_000
# On a machine that has other work a lesson may take longer than a device waits for it, and a mesh that starts cold says
# nothing of cycles.
_WITH = ("--cloud", "--set", "cloud.warm_start_s=900")
ARMS = {"without": (), "first": (*_WITH, "--set", f"cloud.upload_every={_NEVER}"), "with": _WITH}
# Other options measure something else, and nothing that was kept can be used.
_ASKED = ("split", "peers", "epochs", "donors", "arms", "set")
_MODELS = ("cloud_small", "cloud_large", "last_small", "last_large")


def add_options(parser: Parser) -> None:
    add_data(parser, "motion")
    parser.add_argument("--split", default="dirichlet:0.1")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--donors", type=int, default=6)
    add_seeds(parser)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["without", "with"])
    add_settings(parser)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure the seeds that the file of --out lacks. Raises ConfigError, Failed."""
    if options.arms[-1] != "with" or len(options.arms) < 2:
        raise ConfigError("--arms: name what stands beside it, then with")
    torch.set_num_threads(1)
    asked = {name: getattr(options, name) for name in _ASKED} | {"data": options.data.partition(":")[0]}
    before = sheet.before()
    runs = before["runs"] if before.get("asked") == asked else []
    for seed in options.seeds:
        if seed in [run["seed"] for run in runs]:
            continue
        runs.append(measure_seed(options, seed))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        _tell(options, sheet, asked, runs)
        sheet.save()
    _tell(options, sheet, asked, runs)
    columns = (*options.arms, *_MODELS)
    rows = [[run["seed"], *(f"{run[name]:.3f}" for name in columns)] for run in runs]
    middle = ["median", *(f"{value:.3f}" for value in sheet.figures["median"].values())]
    show(("accuracy by seed", *columns), [*rows, middle])


def measure_seed(options: Namespace, seed: int) -> dict[str, Any]:
    """Accuracies of each arm, and of the cloud's small and large models: the first, and those of its last cycle."""
    with tempfile.TemporaryDirectory() as folder:
        arms = {arm: run_up(options, seed, Path(folder) / arm, *ARMS[arm]) for arm in options.arms}
        if (run := arms.get("first")) and run["cloud"]["version"] != 1:
            heard = run["cloud"]["version"] - 1
            raise Failed(f"seed {seed}: the arm first, which is to hear of no cycle, heard of {heard}")
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


def _tell(options: Namespace, sheet: Sheet, asked: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """gain_points: of the arm "with" over the first of the others."""
    beside, columns = options.arms[0], (*options.arms, *_MODELS)
    medians = {name: median((run[name] for run in runs), 6) for name in columns}
    gains = [round(100 * (run["with"] - run[beside]), 1) for run in runs]
    sheet.tell({"asked": asked, "median": medians, "gain_points": gains, "runs": runs})


def run_up(options: Namespace, seed: int, out: Path, *more: str) -> dict[str, Any]:
    """One `mdl up`; its result."""
    words = describe_up(options, seed, out, *more)
    done = subprocess.run([sys.executable, "-m", "mdl", *words], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"mdl up failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def describe_up(options: Namespace, seed: int, out: Path, *more: str) -> list[str]:
    """The words of one `mdl up`. What an arm says comes last, and so goes before what all of them have."""
    words = [
        *("up", "--json", "-n", options.peers, "--data", options.data, "--split", options.split),
        *("--epochs", options.epochs, "--donors", options.donors, "--seed", seed, "--out", out),
        *(word for setting in options.set for word in ("--set", setting)),
        *more,
    ]
    return [str(word) for word in words]


def test_cloud(options: Namespace, seed: int, folder: Path, version: int) -> tuple[float, float]:
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
