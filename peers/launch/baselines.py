"""The baselines of a mesh: each device alone, and all data in one place, with the same budget of epochs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch

from mdl.config import Config
from mdl.data import DataSet, Windows, default_cache_dir, load_data, private_part, split_windows, take_windows
from mdl.learning.evaluation import evaluate
from mdl.learning.training import LocalTrainer, make_turn
from mdl.own import own_data
from mdl.peers.edge.device import build_flat_model, device_seed
from mdl.protocol.counts import Evaluation


def train_baselines(config: Config, peers: int, rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Train every device alone, and all data centrally; return the scores, and the median of the lone ones.

    A score is accuracy, R² of numbers, or micro F1 of labels, on the whole test set.
    """
    torch.set_num_threads(1)  # like the peers: several wait for each other for minutes if another program has a core
    data = load_data(own_data(config.data.spec), default_cache_dir(), config.seed)
    data = private_part(data, config.cloud.people, config.seed)
    alone = []
    for index, rows in enumerate(split_windows(data.train, config.data.split, peers, config.seed), 1):
        progress(f"baseline: device {index} of {peers} alone, {len(rows)} windows")
        alone.append(
            _train(config, data, take_windows(data.train, rows), rounds, device_seed(config.seed, index)).score or 0.0
        )
    progress(f"baseline: central, {len(data.train)} windows")
    central = _train(config, data, data.train, rounds, device_seed(config.seed, 0))
    found = {"alone": alone, "score_alone": median(alone), "score_central": central.score}
    if data.targets == "classes":
        found |= {"accuracy_alone": found["score_alone"], "accuracy_central": central.score}
    return found


def _train(config: Config, data: DataSet, windows: Windows, rounds: int, seed: int) -> Evaluation:
    model = build_flat_model(config, data)
    settings = msgspec.structs.replace(config.training, seed=seed, planned_rounds=rounds)
    turn = make_turn(settings.rotate_deg, data.channels)
    trainer = LocalTrainer(model, windows.x, windows.y, settings, augment=turn)
    parameters = model.values().copy()
    for round_id in range(1, rounds + 1):
        np.copyto(parameters, trainer.train_round(parameters, round_id).values)
    return evaluate(model.module, data.test.x, data.test.y, len(data.classes))
