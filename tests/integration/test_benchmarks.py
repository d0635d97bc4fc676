"""Benchmarks in a short form: that they run to their end and print what they promise, not what they measure.

Each takes seconds here. Those that need root, real data or minutes are only begun: tests/test_documented_commands.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A busy machine takes many times the 3 to 12 s of an idle one.
_PATIENCE_S = 240.0


def _run(home: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_STATE_HOME": str(home)}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S)


def _last(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr[-2000:]
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return told


def test_memory_tells_what_each_device_took_in_each_round(tmp_path: Path) -> None:
    told = _last(_run(tmp_path, "benchmarks/memory.py", "--peers", 2, "--rounds", 2, "--values", 10_000, "--json"))
    assert told["values"] == 10_000
    (mesh,) = told["results"]
    assert (mesh["peers"], mesh["rounds"]) == (2, 2)
    assert [len(each) for each in mesh["extra_deltas_by_peer_and_round"]] == [2, 2]
    assert mesh["round_s_median"] > 0.0


def test_parts_of_the_scheduler_benchmark_are_measured_written_and_drawn(tmp_path: Path) -> None:
    parts = ["cells", "energy", "dying", "fig9-10"]
    asked = [word for part in parts for word in ("--part", part)]
    small = ["--cell", "dynamic 5", "--count", 1, "--runs", 1, "--meshes", 1, "--policies", "greedy,tree,ring"]
    out = tmp_path / "scheduler.json"
    told = _last(_run(tmp_path, "benchmarks/scheduler.py", *asked, *small, "--out", out))
    assert set(told) == {"fig9-10"}
    assert set(json.loads(out.read_text())) == set(parts)
    assert "<svg" in out.with_suffix(".svg").read_text()


def test_an_accuracy_recipe_trains_a_mesh_in_one_process(tmp_path: Path) -> None:
    small = ["--data", "motion?people=4&windows=12", "--peers", 2, "--rounds", 1, "--seeds", 0, "--cache", tmp_path]
    told = _last(_run(tmp_path, "benchmarks/accuracy_recipe.py", *small))
    assert (told["peers"], told["rounds"], told["windows"]["train"]) == (2, 1, 48)


def test_bare_rounds_run_on_loopback(tmp_path: Path) -> None:
    small = ["--mbit", 0, "--megabytes", 0.1, "--sizes", 2, "--rounds", 4, "--runs", 1]
    told = _last(_run(tmp_path, "benchmarks/bare_round.py", *small))
    assert told["median_and_quartiles_s"]["N=2 ."]["total"][0] > 0.0


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["benchmarks/bare_round.py", "--rounds", "1"], "only warm up"),
        (["benchmarks/scheduler.py", "--part", "fig9-10", "--policies", "greedy"], "tree and ring"),
    ],
)
def test_too_little_to_measure_is_one_line(tmp_path: Path, command: list[str], complaint: str) -> None:
    run = _run(tmp_path, *command)
    assert run.returncode == 2
    assert complaint in run.stderr.splitlines()[-1]
