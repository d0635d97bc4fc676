"""From the last delta of a round ready to the next round's training begun, by phases, with real training and tests.

    python -m benchmarks turnover --devices 8 --data 'motion?people=8' --rounds 40
    python -m benchmarks turnover --code ../before,. --runs 3        # one state of the code against another, in turns

Devices are processes of this machine that do what `mdl peer` does, on loopback, with encryption. Their clocks are one
clock, so that the end of a training here and the begin of one there can be compared. Rounds from the third on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_data, add_rounds, add_runs, add_settings, need_more_rounds
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.spread import quartiles
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.transport.trust.keys import new_join_code

# It imports the state of the code that PYTHONPATH leads to.
_DEVICE = str(ROOT / "benchmarks" / "links" / "timed_device.py")
# The first rounds fill caches and show the links.
_WARM_UP = 2
_END_S = 300.0


def add_options(parser: Parser) -> None:
    parser.add_argument("--code", default=str(ROOT), help="source trees, separated by commas")
    parser.add_argument("--devices", type=int, default=8)
    add_data(parser, "motion?people=8")
    add_rounds(parser, 30)
    add_runs(parser, 1)
    add_settings(parser)


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure each state of the code, in turns. Raises ConfigError, Failed."""
    need_more_rounds(given.rounds, _WARM_UP + 1)
    rounds: dict[str, list[dict[str, float]]] = {}
    for _, code in in_turns(given.runs, given.code.split(",")):
        rounds.setdefault(code, []).extend(_run_mesh(given, Path(code).resolve()))
        print(f"{code}: {_summarise(rounds[code])['whole']}", file=sys.stderr, flush=True)
    told = {Path(code).resolve().name: _summarise(each) for code, each in rounds.items()}
    rows = [
        (name, *(f"{each[name][0]:.1f} ({each[name][1]:.1f} to {each[name][2]:.1f})" for each in told.values()))
        for name in next(iter(told.values()))
    ]
    show(("ms, median (quartiles)", *told), rows)
    sheet.tell({"milliseconds": told})


def _run_mesh(given: Namespace, code: Path) -> list[dict[str, float]]:
    """Each round that counts, in seconds. Raises Failed."""
    environment = {**os.environ, CODE_VARIABLE: new_join_code("turnover"), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(code)}
    settings = ["mesh.loopback=true", f"round.min_peers={given.devices}", f"round.rounds={given.rounds}"]
    settings += ["round.policy=greedy", "round.relearn=false", "busy.cpu_percent=100", "faults.lost_after_s=30"]
    settings += [f"data.spec={given.data}", "round.exchange=chain", *given.set]
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"HOME": folder, "XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}
        devices = [
            subprocess.Popen(
                [sys.executable, _DEVICE, f"{folder}/{number}", f"data.shard={number}/{given.devices}", *settings],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(1, given.devices + 1)
        ]
        try:
            said = [device.communicate(timeout=_END_S)[0] for device in devices]
        finally:
            for device in devices:
                device.kill()
                device.wait()
    if any(device.returncode for device in devices):
        raise Failed(f"a device ended with {[device.returncode for device in devices]}")
    told = [json.loads(text.splitlines()[-1]) for text in said]
    marks: dict[str, dict[int, list[float]]] = {}
    for each in told:
        for name, round_id, at in each["marks"]:
            marks.setdefault(name, {}).setdefault(round_id, []).append(at)
    return [_measure(marks, round_id) for round_id in range(_WARM_UP + 1, given.rounds)]


def _measure(marks: dict[str, dict[int, list[float]]], round_id: int) -> dict[str, float]:
    """Of one round: decided, applied, opened and begun are how long after the phase before the last device is there.

    whole: from the last delta until the last training has begun; first begun: until the first has. test, training: how
    long one takes. cycle: from one round's last delta to the next one's.
    """
    ready = max(marks["training done"][round_id])
    ends = [
        max(marks["decided"][round_id]),
        max(marks["applied"][round_id]),
        max(marks["opened"][round_id + 1]),
        max(marks["training begun"][round_id + 1]),
    ]
    names = ("decided", "applied", "opened", "begun")
    found = {name: end - start for name, start, end in zip(names, [ready, *ends[:-1]], ends, strict=True)}
    tests = zip(marks["test begun"][round_id], marks["test done"][round_id], strict=True)
    begun, done = marks["training begun"][round_id], marks["training done"][round_id]
    return {
        **found,
        "whole": ends[-1] - ready,
        "first begun": min(marks["training begun"][round_id + 1]) - ready,
        "test": float(np.mean([end - start for start, end in tests])),
        "training": float(np.mean([end - start for start, end in zip(begun, done, strict=True)])),
        "cycle": max(marks["training done"][round_id + 1]) - ready,
    }


def _summarise(rounds: list[dict[str, float]]) -> dict[str, list[float]]:
    """Median and quartiles, in milliseconds."""
    return {name: quartiles([1000 * each[name] for each in rounds], 2) for name in rounds[0]}
