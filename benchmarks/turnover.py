"""From the last delta of a round ready to the next round's training begun, by phases, with real training and tests.

    python benchmarks/turnover.py --devices 8 --data 'motion?people=8' --rounds 40
    python benchmarks/turnover.py --code ../before,. --runs 3        # one state of the code against another, in turns

Devices are processes of this machine that do what `mdl peer` does, on loopback, with encryption. Their clocks are one
clock, so that the end of a training here and the begin of one there can be compared. Rounds from the third on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
# Of a device: the state of the code that it runs.
_CODE = "MDL_CODE_TREE"
sys.path.insert(0, os.environ.get(_CODE, str(HERE)))

from mdl.config import load_config  # noqa: E402
from mdl.peers.edge.identity import CODE_VARIABLE, claim_identity  # noqa: E402
from mdl.transport.trust.keys import Mesh, new_join_code  # noqa: E402

# The first rounds fill caches and show the links.
_WARM_UP = 2
_END_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", default=str(HERE), help="source trees, separated by commas")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--data", default="motion?people=8")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], help="key=value of the configuration")
    parser.add_argument("--device", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device:
        return _run_device(given)
    if given.rounds <= _WARM_UP + 1:
        parser.error(f"--rounds {given.rounds}: the first {_WARM_UP} only warm up and are not counted; take more")
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(given.runs):
        for code in given.code.split(","):
            rounds.setdefault(code, []).extend(_run_mesh(given, Path(code).resolve()))
            print(f"{code}: {_summarise(rounds[code])['whole']}", file=sys.stderr, flush=True)
    told = {code: _summarise(each) for code, each in rounds.items()}
    _print_table(told)
    print(json.dumps({"command": " ".join(sys.argv), "milliseconds": told}))
    return 0


# -- one device -------------------------------------------------------------------------------------------------------


def _run_device(given: argparse.Namespace) -> int:
    import torch

    from mdl.peers.edge import device, node
    from mdl.protocol.machine import Evaluate, TrainLocally

    torch.set_num_threads(1)
    marks: list[tuple[str, int, float]] = []

    def timed(name: str, work: Any) -> Any:
        def done(effect: Any) -> Any:
            marks.append((f"{name} begun", effect.round_id, time.monotonic()))
            answer = work(effect)
            marks.append((f"{name} done", effect.round_id, time.monotonic()))
            return answer

        return done

    class Timed(device.Device):
        def work(self) -> Any:
            work = super().work()
            named: dict[Any, str] = {TrainLocally: "training", Evaluate: "test"}
            return work | {kind: timed(name, work[kind]) for kind, name in named.items()}

    device.Device = Timed  # type: ignore[misc]
    name = given.device.name
    settings = ["mesh.loopback=true", f"round.min_peers={given.devices}", f"round.rounds={given.rounds}"]
    settings += ["round.policy=greedy", "round.relearn=false", "busy.cpu_percent=100", "faults.lost_after_s=30"]
    settings += [f"data.spec={given.data}", f"data.shard={name}/{given.devices}", *given.set]
    config = load_config(None, {}, settings)
    mesh = Mesh.from_code(os.environ[CODE_VARIABLE])
    me, out = claim_identity(given.device, f"dev{name}", given.device)
    _watch(marks)
    ended = node.run_trainer(config, me, mesh, out)
    print(json.dumps({"marks": marks}))
    return ended.exit_code


def _watch(marks: list[tuple[str, int, float]]) -> None:
    """Note when this device hears that a result is decided, has applied it, and hears of the next round."""
    from mdl.protocol.machine import TrainLocally
    from mdl.protocol.vector_work import ApplyDelta, DeltaApplied
    from mdl.transport.runtime import Runtime

    step, carry_out = Runtime._step, Runtime._carry_out

    def watched_step(self: Any, event: Any, now: float) -> None:
        step(self, event, now)
        if isinstance(event, DeltaApplied):
            marks.append(("applied", event.round_id, time.monotonic()))

    def watched_carry_out(self: Any, effect: Any, now: float, cause: str = "") -> None:
        if isinstance(effect, TrainLocally | ApplyDelta):
            name = "opened" if isinstance(effect, TrainLocally) else "decided"
            marks.append((name, effect.round_id, time.monotonic()))
        carry_out(self, effect, now, cause)

    Runtime._step = watched_step  # type: ignore[method-assign]
    Runtime._carry_out = watched_carry_out  # type: ignore[method-assign]


# -- the mesh ---------------------------------------------------------------------------------------------------------


def _run_mesh(given: argparse.Namespace, code: Path) -> list[dict[str, float]]:
    """Each round that counts, in seconds. Raises RuntimeError."""
    environment = {**os.environ, CODE_VARIABLE: new_join_code("turnover"), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(code), _CODE: str(code)}
    words = [
        "--devices",
        given.devices,
        "--data",
        given.data,
        "--rounds",
        given.rounds,
        "--set",
        "round.exchange=chain",
        *given.set,
    ]
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"HOME": folder, "XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}
        devices = [
            subprocess.Popen(
                [sys.executable, __file__, "--device", f"{folder}/{number}", *map(str, words)],
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
        raise RuntimeError(f"a device ended with {[device.returncode for device in devices]}")
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
    return {
        name: [round(1000 * float(value), 2) for value in np.percentile([each[name] for each in rounds], [50, 25, 75])]
        for name in rounds[0]
    }


def _print_table(told: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'ms, median (quartiles)':24}" + "".join(f"{code[-28:]:>30}" for code in told))
    for name in next(iter(told.values())):
        cells = [f"{each[name][0]:.1f} ({each[name][1]:.1f} to {each[name][2]:.1f})" for each in told.values()]
        print(f"{name:24}" + "".join(f"{cell:>30}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
