"""Devices that train one model together, in one process, without a network: rounds of local training and their mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from benchmarks.evaluation.merging import mean_by_chain
from mdl.config import TrainingSettings
from mdl.data import DataSet, Windows
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta
from mdl.own import own_model
from mdl.peers.edge.device import device_seed
from mdl.protocol.delta import Contributor, ModelDelta, apply_delta
from mdl.protocol.grid import Vector


def train_together(
    data: DataSet,
    held: Sequence[Windows],
    model: str,
    settings: TrainingSettings,
    rounds: int,
    seed: int,
    *,
    by_samples: bool,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> tuple[LocalTrainer, Vector]:
    """Return the first device's trainer, and the parameters after all rounds, float32 (P,).

    held: what each device trains on; one of everything is central training. by_samples: a device weighs as many windows
    as it holds (`round.theta`), else 1.
    """
    trainers = [
        LocalTrainer(
            FlatModel(build_model(own_model(model), data.shape[0], data.shape[1], len(data.classes), seed)),
            own.x,
            own.y,
            msgspec.structs.replace(settings, seed=device_seed(seed, index)),
            augment=augment,
        )
        for index, own in enumerate(held, start=1)
    ]
    parameters = trainers[0].model.values().copy()
    for round_id in range(1, rounds + 1):
        deltas = (
            ModelDelta(
                model_delta(parameters, trainer.train_round(parameters, round_id).values),
                float(len(own)) if by_samples else 1.0,
                frozenset({Contributor(str(index), 1)}),
            )
            for index, (trainer, own) in enumerate(zip(trainers, held, strict=True))
        )
        theta = float(sum(map(len, held)) if by_samples else len(held))
        parameters = apply_delta(parameters, mean_by_chain(parameters, deltas, theta), eta=1.0)
    return trainers[0], parameters
