"""Rounds of training in one process, without a network: accuracy by how deltas are merged, N, and how often.

Options are written as the paper writes them: 10-E20 is ten aggregations in each of 20 epochs (4.5.3).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import torch

from benchmarks.evaluation.merging import MERGES, Merge
from mdl.config import TrainingSettings
from mdl.data import DataSet, split_windows, take_windows
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta
from mdl.peers.edge.device import device_seed
from mdl.protocol.delta import apply_delta

_OPTION = re.compile(r"(\d{1,3})-E(\d{1,4})")


@dataclass(frozen=True)
class Option:
    """rounds_per_epoch: aggregations in each of so many epochs."""

    rounds_per_epoch: int
    epochs: int

    def __str__(self) -> str:
        return f"{self.rounds_per_epoch}-E{self.epochs}"

    @property
    def rounds(self) -> int:
        return self.rounds_per_epoch * self.epochs


def parse_option(text: str) -> Option:
    """Raises ValueError."""
    if (match := _OPTION.fullmatch(text)) and int(match[1]) and int(match[2]):
        return Option(int(match[1]), int(match[2]))
    raise ValueError(f"option {text!r}: write ROUNDS-EEPOCHS, as in 1-E20 or 10-E20")


def train(
    data: DataSet, model: str, devices: int, option: Option, merge: str, settings: TrainingSettings, seed: int
) -> dict[str, Any]:
    """Accuracy of one run on the test windows, and what local training took. One device is central training."""
    torch.set_num_threads(1)
    settings = msgspec.structs.replace(
        settings, rounds_per_epoch=option.rounds_per_epoch, planned_rounds=option.rounds, seed=seed
    )
    trainers = _trainers(data, model, devices, settings, seed)
    how: Merge = MERGES[merge]
    parameters, started, steps = trainers[0].model.values().copy(), time.process_time(), 0
    for round_id in range(1, option.rounds + 1):
        deltas = []
        for trainer in trainers:
            done = trainer.train_round(parameters, round_id)
            deltas.append(model_delta(parameters, done.values))
            steps += done.steps
        parameters = apply_delta(parameters, how(deltas), eta=1.0)
    seconds = time.process_time() - started
    trainers[0].model.load(parameters)
    told = evaluate(trainers[0].model.module, data.test.x, data.test.y, len(data.classes))
    return {
        "accuracy": round(told.accuracy, 4),
        "rounds": option.rounds,
        "train_s": round(seconds, 2),
        "windows": option.epochs * len(data.train),
        "steps": steps,
        "values": int(parameters.size),
    }


def over_seeds(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of runs that differ by their seed."""
    figures = [run["accuracy"] for run in runs]
    return {"accuracy": median(figures), "seeds": figures, "train_s": median(run["train_s"] for run in runs)}


def _trainers(data: DataSet, model: str, devices: int, settings: TrainingSettings, seed: int) -> list[LocalTrainer]:
    shares = split_windows(data.train, "subject", devices, seed)
    return [
        LocalTrainer(
            FlatModel(build_model(model, data.shape[0], data.shape[1], len(data.classes), seed)),
            *(share.x, share.y, msgspec.structs.replace(settings, seed=device_seed(seed, index))),
        )
        for index, share in enumerate((take_windows(data.train, rows) for rows in shares), start=1)
    ]
