"""Motion windows: a shared model against one whose last layer learned from the person, for people it never saw.

    python benchmarks/personal_motion.py --data uci-har:UCI_HAR_Dataset.zip --seeds 3

A model is trained on the data set's training people. Of each test person the first half of their windows, in time and
by whole segments, is learned by the last layer alone (`mdl.personal`: features cached), or by all layers; the other
half is the test. The control learns another person's half.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from mdl.config import TrainingSettings
from mdl.data import Windows, default_cache_dir, load_data, take_windows
from mdl.errors import MdlError
from mdl.learning.evaluation import predict_logits
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer
from mdl.personal.output_layer import cache_features, find_output_layer, tune_all, tune_only
from mdl.personal.study import FeatureTask, Ids, Study, StudySettings

Row: TypeAlias = dict[str, float]


class WindowTask:
    """All layers learn from windows; batch norms keep the statistics of all people."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor, size: int) -> None:
        self._module, self._x, self._y, self._size = module, x, y, size

    def draw(self, generator: np.random.Generator) -> list[Ids]:
        order = generator.permutation(len(self._y))
        return [order[at : at + self._size] for at in range(0, len(order), self._size)]

    def loss(self, batch: Ids) -> Tensor:
        rows = torch.from_numpy(batch)
        return nn.functional.cross_entropy(self._module(self._x[rows]), self._y[rows])


def main() -> int:
    options = _parse_options()
    torch.set_num_threads(1)
    try:
        data = load_data(options.data, default_cache_dir(), 0)
        rows = [row for seed in range(options.seeds) for row in run(options, data.train, data.test, data.classes, seed)]
    except MdlError as error:
        print(f"personal_motion: {error}", file=sys.stderr)
        return error.exit_code
    shown = {}
    for name in rows[0]:
        gains = np.array([row[name] - row["shared"] for row in rows])
        shown[name] = {"median": median(row[name] for row in rows), "mean": float(np.mean([row[name] for row in rows])),
                       "mean gain": float(gains.mean()), "better": int((gains > 0).sum()),
                       "worse": int((gains < 0).sum())}  # fmt: skip
        print(f"{name:<28} {shown[name]}")
    print(json.dumps({"part": "motion", "seeds": options.seeds, "rows": len(rows), "found": shown}))
    return 0


def run(options: argparse.Namespace, train: Windows, test: Windows, classes: tuple[str, ...], seed: int) -> list[Row]:
    channels, time = train.x.shape[1:]
    module = build_model(options.model, channels, time, len(classes), seed)
    flat = FlatModel(module)
    settings = TrainingSettings(seed=seed, learning_rate=options.shared_rate, batch_size=32, rounds_per_epoch=1)
    trainer = LocalTrainer(flat, train.x, train.y, settings)
    values = flat.values().copy()
    for epoch in range(options.shared_epochs):
        values = trainer.train_round(values, epoch + 1).values.copy()
    flat.load(values)
    people = [take_windows(test, test.subject == person) for person in np.unique(test.subject)]
    halves = [_halve(person) for person in people]
    rows = []
    for (mine, later), (theirs, _) in zip(halves, halves[1:] + halves[:1], strict=True):
        rows.append(
            {
                "shared": _accuracy(module, later),
                "last layer": _accuracy(_personalise(options, module, mine, False, seed), later),
                "all layers": _accuracy(_personalise(options, module, mine, True, seed), later),
                "another person's windows": _accuracy(_personalise(options, module, theirs, False, seed), later),
            }
        )
    print(f"seed {seed}: {rows}", file=sys.stderr)
    return rows


def _halve(person: Windows) -> tuple[Windows, Windows]:
    """In the order of the recording, between two groups of overlapping windows, of each class its first half."""
    first = np.zeros(len(person), bool)
    for label in np.unique(person.y):
        places = np.flatnonzero(person.y == label)
        groups = list(dict.fromkeys(person.group[places].tolist()))
        first[places] = np.isin(person.group[places], groups[: max(1, len(groups) // 2)])
    return take_windows(person, first), take_windows(person, ~first)


def _personalise(
    options: argparse.Namespace, module: nn.Module, mine: Windows, everything: bool, seed: int
) -> nn.Module:
    own = copy.deepcopy(module).eval()
    x, y = torch.from_numpy(np.array(mine.x)), torch.from_numpy(np.array(mine.y))
    settings = StudySettings(options.epochs, options.batch, "adam", options.rate, decay=1.0, seed=seed)
    if everything:
        Study(tune_all(own), WindowTask(own, x, y, options.batch), settings).run()
        return own
    name = find_output_layer(own)
    features = cache_features(own, name, [x]).half()
    task = FeatureTask(own.get_submodule(name), features, y, torch.ones(len(y)), np.arange(len(y)), options.batch)
    Study(tune_only(own, name), task, settings).run()
    return own


def _accuracy(module: nn.Module, windows: Windows) -> float:
    return float((predict_logits(module, windows.x).argmax(axis=1) == windows.y).mean())


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="motion", help="with test people of its own, as uci-har:PATH")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shared-epochs", type=int, default=4)
    parser.add_argument("--shared-rate", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=10, help="of a person's windows")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.001, help="of Adam")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
