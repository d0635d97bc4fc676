"""Motion windows: a shared model against one whose last layer learned from the person, for people it never saw.

    python -m benchmarks personal_motion --data uci-har:UCI_HAR_Dataset.zip --seeds 0 1 2

A model is trained on the data set's training people. Of each test person the first half of their windows, in time and
by whole segments, is learned by the last layer alone (`mdl.peers.deeptype.model`: cached), by all layers (at each of
--rates), or by a vector of 64 numbers that generates patches (`benchmarks/recommend/windows.py`; the basis is learned
from the training people); the other half is the test. Controls: another person's half, and the vector that all start
from.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from statistics import median
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.recommend.windows import WindowSettings, find_junctions, learn_basis, learn_vector, predict
from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_seeds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.config import TrainingSettings
from mdl.data import Windows, default_cache_dir, load_data, take_windows
from mdl.errors import ConfigError
from mdl.learning.evaluation import predict_logits
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer
from mdl.peers.dccl.model.device_step import Basis
from mdl.peers.deeptype.model.compression import FactoredLinear
from mdl.peers.deeptype.model.study import FeatureTask, Ids, Study, StudySettings, tune_all, tune_only

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


def find_output_layer(module: nn.Module) -> str:
    """Return the name of the linear layer that was registered last. Raises ConfigError if there is none."""
    factored = tuple(f"{name}." for name, layer in module.named_modules() if isinstance(layer, FactoredLinear))
    found = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | FactoredLinear) and not name.startswith(factored)
    ]
    if not found or found == [""]:
        raise ConfigError(f"{type(module).__name__} has no linear layer behind others: nothing to tune by itself")
    return str(found[-1])


def cache_features(module: nn.Module, name: str, inputs: Iterable[Tensor]) -> Tensor:
    """Return the inputs of a layer for these batches, one after the other: (n, features); in evaluation mode.

    The layer's own result is not computed twice: `module.get_submodule(name)(features)` is the module's answer.
    """
    kept: list[Tensor] = []
    hook = module.get_submodule(name).register_forward_pre_hook(lambda _, given: kept.append(given[0].detach()))
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            for batch in inputs:
                module(batch)
    finally:
        hook.remove()
        module.train(was_training)
    return torch.cat(kept)


def add_options(parser: Parser) -> None:
    add_data(parser, "motion", "with test people of its own, as uci-har:PATH")
    add_model(parser)
    add_seeds(parser)
    parser.add_argument("--shared-epochs", type=int, default=4)
    parser.add_argument("--shared-rate", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=10, help="of a person's windows")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.001, help="of Adam, of the last layer")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3], help="of Adam, of all layers")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure all ways with each seed, on one thread. Raises DataError."""
    torch.set_num_threads(1)
    data = load_data(options.data, default_cache_dir(), 0)
    rows = [row for seed in options.seeds for row in measure(options, data.train, data.test, data.classes, seed)]
    shown: dict[str, dict[str, float]] = {}
    for name in rows[0]:
        gains = np.array([row[name] - row["shared"] for row in rows])
        shown[name] = {"median": median(row[name] for row in rows), "mean": float(np.mean([row[name] for row in rows])),
                       "mean gain": float(gains.mean()), "better": int((gains > 0).sum()),
                       "worse": int((gains < 0).sum())}  # fmt: skip
    head = ("", *next(iter(shown.values())))
    show(head, [(name, *(round(value, 4) for value in found.values())) for name, found in shown.items()])
    sheet.tell({"rows": len(rows), "found": shown})


def measure(options: Namespace, train: Windows, test: Windows, classes: tuple[str, ...], seed: int) -> list[Row]:
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
    rows, patches = [], _Patches(module, train, seed)
    for (mine, later), (theirs, _) in zip(halves, halves[1:] + halves[:1], strict=True):
        row = {
            "shared": _accuracy(module, later),
            "last layer": _accuracy(_personalise(options, module, mine, False, options.rate, seed), later),
        }
        for rate in options.rates:
            row[f"all layers, {rate:g}"] = _accuracy(_personalise(options, module, mine, True, rate, seed), later)
        row["another's, last layer"] = _accuracy(
            _personalise(options, module, theirs, False, options.rate, seed), later
        )
        for name, given in (("64 numbers", mine), ("another's, 64 numbers", theirs), ("64 numbers of all", None)):
            row[name] = patches.test(given, later)
        rows.append(row)
    print(f"seed {seed}: {rows}", file=sys.stderr)
    return rows


class _Patches:
    """A frozen model, the basis of its patches, and where everybody's vector starts."""

    def __init__(self, module: nn.Module, train: Windows, seed: int) -> None:
        self._module, self._seed = module, seed
        torch.manual_seed(seed)
        self._basis = Basis(find_junctions(module), 64)
        _, people = np.unique(train.subject, return_inverse=True)
        settings = WindowSettings(epochs=3, batch=32)
        self._start = learn_basis(module, self._basis, *_tensors(train), people, settings, seed).mean(dim=0)

    def test(self, mine: Windows | None, later: Windows) -> float:
        """Accuracy of the vector that learned these windows; None: of the start."""
        vector = self._start
        if mine is not None:
            vector = learn_vector(self._module, self._basis, vector, *_tensors(mine), WindowSettings(), self._seed)
        x, y = _tensors(later)
        return float((predict(self._module, self._basis, vector, x).argmax(dim=1) == y).float().mean())


def _tensors(windows: Windows) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(windows.x)), torch.from_numpy(np.array(windows.y))


def _halve(person: Windows) -> tuple[Windows, Windows]:
    """In the order of the recording, between two groups of overlapping windows, of each class its first half."""
    first = np.zeros(len(person), bool)
    for label in np.unique(person.y):
        places = np.flatnonzero(person.y == label)
        groups = list(dict.fromkeys(person.group[places].tolist()))
        first[places] = np.isin(person.group[places], groups[: max(1, len(groups) // 2)])
    return take_windows(person, first), take_windows(person, ~first)


def _personalise(
    options: Namespace, module: nn.Module, mine: Windows, everything: bool, rate: float, seed: int
) -> nn.Module:
    own = copy.deepcopy(module).eval()
    x, y = _tensors(mine)
    settings = StudySettings(options.epochs, options.batch, "adam", rate, decay=1.0, seed=seed)
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
