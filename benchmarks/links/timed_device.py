"""One device that does what `mdl peer` does, and notes when each phase of a round begins and ends here.

`python -m benchmarks turnover` starts it with a folder and settings, once a device and on one state of the code after
the other: only mdl is imported, from wherever PYTHONPATH leads. It prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mdl.config import load_config
from mdl.peers.edge import device, node
from mdl.peers.edge.identity import CODE_VARIABLE, claim_identity
from mdl.protocol.machine import Evaluate, TrainLocally
from mdl.protocol.vector_work import ApplyDelta, DeltaApplied
from mdl.transport.runtime import Runtime
from mdl.transport.trust.keys import Mesh


def main(folder: Path, settings: list[str]) -> int:
    """Run to the end of its rounds; return the exit code."""
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
    config = load_config(None, {}, settings)
    mesh = Mesh.from_code(os.environ[CODE_VARIABLE])
    me, out = claim_identity(folder, f"dev{folder.name}", folder)
    _watch(marks)
    ended = node.run_trainer(config, me, mesh, out)
    print(json.dumps({"marks": marks}))
    return ended.exit_code


def _watch(marks: list[tuple[str, int, float]]) -> None:
    """Note when this device hears that a result is decided, has applied it, and hears of the next round."""
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


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
