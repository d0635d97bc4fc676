"""One device that does what `mdl peer` does, but that its training lasts as long as on a recorded phone.

`python -m benchmarks waiting_live` starts it with a folder, a file about its owner's use and settings. It keeps each
model of the mesh as `models/ROUND.npy`, where several devices of a mesh share the folder `models`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from mdl.config import load_config
from mdl.devices.usage import Periods, active_end_s
from mdl.peers.edge import device, node
from mdl.peers.edge.identity import CODE_VARIABLE, claim_identity
from mdl.protocol.machine import LocalDeltaReady, SaveModel, TrainLocally
from mdl.transport.trust.keys import Mesh


class Pace(msgspec.Struct, frozen=True):
    """begun_s: time.monotonic() at which the world began. train_s: of a training while nobody uses the device.

    busy: seconds from then on in which training stands still. seed: of the spread of trainings.
    """

    begun_s: float
    train_s: float
    busy: Periods
    seed: int


def main(folder: Path, pace: Pace, settings: list[str]) -> int:
    """Run until it is ended; return the exit code."""
    torch.set_num_threads(1)
    rng, models = np.random.default_rng(pace.seed), folder.parent / "models"

    class Paced(device.Device):
        def work(self) -> Any:
            work = super().work()
            return work | {TrainLocally: self._paced(work[TrainLocally]), SaveModel: self._kept(work[SaveModel])}

        def _paced(self, train: Any) -> Any:
            def done(effect: TrainLocally) -> Any:
                begun_s = time.monotonic() - pace.begun_s
                ends_s = active_end_s((pace.busy,), begun_s, pace.train_s * float(np.exp(rng.normal(0.0, 0.1))))
                answer = train(effect)
                threading.Event().wait(max(0.0, pace.begun_s + ends_s - time.monotonic()))
                if not isinstance(answer, LocalDeltaReady):
                    return answer
                training = msgspec.structs.replace(answer.training, seconds=ends_s - begun_s)
                return msgspec.structs.replace(answer, training=training)

            return done

        def _kept(self, save: Any) -> Any:
            def done(effect: SaveModel) -> Any:
                path = models / f"{effect.round_id}.npy"
                if not path.exists():
                    half = models / f"{effect.round_id}.{os.getpid()}"
                    with half.open("wb") as file:
                        np.save(file, effect.parameters)
                    with suppress(FileExistsError):
                        os.link(half, path)
                    half.unlink()
                return save(effect)

            return done

    device.Device = Paced  # type: ignore[misc]
    config = load_config(None, {}, settings)
    me, out = claim_identity(folder, f"dev{folder.name}", folder)
    return node.run_trainer(config, me, Mesh.from_code(os.environ[CODE_VARIABLE]), out).exit_code


if __name__ == "__main__":
    pace = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Pace)
    sys.exit(main(Path(sys.argv[1]), pace, sys.argv[3:]))
