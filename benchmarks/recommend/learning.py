"""What the tables share: a first model of the first halves, one round of devices and cloud, and ranks that are kept.

Ranks are of each user's last item among 100 others, (U,); all measures follow from them. What was learned is kept in a
folder, if one is given, and used again: a run that was ended goes on, and other settings need another folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.peers.dccl.model.device_step import VectorSettings, learn_vectors, score_with_vectors
from mdl.peers.dccl.model.din import JUNCTIONS, DinSettings, FitSettings, fit_model, score
from mdl.peers.dccl.model.interactions import (
    Interactions,
    ItemSamples,
    Negatives,
    make_test,
    ranks,
    top_metrics,
    training_places,
)
from mdl.peers.dccl.model.momodistill import (
    CloudModel,
    MoMoDistillSettings,
    distill_basis,
    distill_model,
    make_cloud_model,
)

Ranks = NDArray[np.int64]
Rows = dict[str, Ranks]

HALF = 0.5
# Of every learning from one half more, on the cloud: the fair DIN's and MoMoDistill's.
ONE_PASS = FitSettings(epochs=1, learning_rate=1e-3, batch=1024)


@dataclass(frozen=True)
class Options:
    """epochs: passes at most of each first learning; passes: of each learning from one half more, on the cloud.

    steps, rate: of Eq. 3. keep: folder of what was learned.
    """

    din: DinSettings = field(default_factory=lambda: DinSettings(dropout=0.1))
    epochs: int = 10
    steps: int = 20
    rate: float = 0.02
    beta: float = 0.01
    keep: Path | None = None
    passes: int = 1

    def path(self, name: str) -> Path | None:
        return None if self.keep is None else self.keep / name

    def distill(self, beta: float) -> MoMoDistillSettings:
        # Learning again on the same samples is f's matter; the basis has one pass, as in its pretraining.
        return MoMoDistillSettings(beta, msgspec.structs.replace(ONE_PASS, epochs=self.passes), ONE_PASS)


def kept_rows(path: Path | None, make: Callable[[], Rows]) -> Rows:
    """The ranks at path, or what `make` finds, which are written there."""
    if path is not None and path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    rows = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Keyword arguments cannot have names such as "DIN (fair)" in the stubs; numpy takes any text.
        np.savez(path, **rows)  # type: ignore[arg-type]
    return rows


def fit_best(
    model: nn.Module,
    learn: Callable[[Callable[[int, float], bool]], None],
    tuning: ItemSamples,
    told: str,
    every: int = 1,
    patience: int = 3,
) -> None:
    """Learn, and leave the model as it was after the pass with the best NDCG@10 on `tuning`.

    every: passes between two tests; patience: tests without a better one that end the learning.
    """
    best, waited, began = -1.0, 0, time.process_time()
    state: dict[str, Tensor] = {}

    def judge(epoch: int, loss: float) -> bool:
        nonlocal best, waited
        if (epoch + 1) % every:
            return True
        found = top_metrics(ranks(score(model, tuning)))
        spent = time.process_time() - began
        shown = f"HR@10 {found['HR@10']:.2f} NDCG@10 {found['NDCG@10']:.2f}"
        print(f"{told}: pass {epoch + 1}, loss {loss:.4f}, {shown}, {spent:.0f} s", flush=True)
        waited += 1
        if found["NDCG@10"] > best:
            best, waited = found["NDCG@10"], 0
            state.update({name: value.clone() for name, value in model.state_dict().items()})
        return waited < patience

    learn(judge)
    model.load_state_dict(state)


def learn_stale(data: Interactions, seed: int, options: Options) -> CloudModel:
    """f and Theta from the first half of each user's sequence; Theta by Eq. 7 from zero vectors."""
    torch.manual_seed(seed)
    cloud = make_cloud_model(data, options.din)
    path = options.path(f"stale-{seed}-{'user' if options.din.has_user else 'no-user'}.safetensors")
    if path is not None and path.exists():
        _load(path, cloud)
        return cloud
    first, negatives, rng = training_places(data, (0, HALF)), Negatives.before(data, HALF), np.random.default_rng(seed)
    how = FitSettings(epochs=options.epochs, learning_rate=3e-3, batch=1024)
    fit_best(
        cloud.model,
        lambda judge: fit_model(cloud.model, data, first, negatives, how, rng, judge),
        make_test(data, 2, options.din.history, seed),
        f"seed {seed}, stale",
    )
    made = pretrain_basis(cloud, data, rng)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(path, {key: value.numpy() for key, value in _state(made).items()}, {})
    return made


def pretrain_basis(cloud: CloudModel, data: Interactions, rng: np.random.Generator) -> CloudModel:
    """Algorithm 1's first basis for cloud's f, from the first halves."""
    how = MoMoDistillSettings(0.0, basis=FitSettings(epochs=1, batch=1024))
    first, negatives = training_places(data, (0, HALF)), Negatives.before(data, HALF)
    return distill_basis(cloud, cloud, None, data, first, negatives, how, rng)


def patch_at(stale: CloudModel, junctions: tuple[str, ...], data: Interactions, seed: int) -> CloudModel:
    """The same f with patches at these junctions alone, under a basis of its own (Table 4)."""
    if junctions == JUNCTIONS:
        return stale
    torch.manual_seed(seed)
    fresh = make_cloud_model(data, stale.model.settings, junctions=junctions)
    cloud = CloudModel(stale.model, fresh.basis, fresh.encoder)
    return pretrain_basis(cloud, data, np.random.default_rng([seed, 1]))


def learn_on_devices(stale: CloudModel, data: Interactions, seed: int, options: Options) -> tuple[Tensor, Tensor]:
    """Where all devices begin, and the vectors that they learn from the second halves, (U, size) both."""
    start = stale.warm_start(torch.zeros(len(data.users), stale.basis.size), data.profiles)
    settings = VectorSettings(steps=options.steps, learning_rate=options.rate)
    places, negatives = training_places(data, (HALF, 1)), Negatives.before(data)
    return start, learn_vectors(stale.model, stale.basis, start, data, places, negatives, settings, seed)


def learn_round(
    stale: CloudModel, vectors: Tensor | None, data: Interactions, seed: int, options: Options
) -> CloudModel:
    """MoMoDistill with the second halves; without vectors the fair DIN, continued by Eq. 4 on the same samples."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 9])
    second, negatives = training_places(data, (HALF, 1)), Negatives.before(data)
    how = options.distill(0.0 if vectors is None else options.beta)
    cloud = distill_model(stale, vectors, data, second, negatives, how, rng)
    if vectors is None:
        return cloud
    return distill_basis(cloud, stale, vectors, data, second, negatives, how, rng)


@torch.no_grad()
def rank_with(cloud: CloudModel, vectors: Tensor | None, test: ItemSamples) -> Ranks:
    cloud.model.eval()
    pieces = [test.take(slice(begin, begin + 512)) for begin in range(0, len(test), 512)]
    scores = [score_with_vectors(cloud.model, cloud.basis, vectors, piece) for piece in pieces]
    return ranks(torch.cat(scores).numpy())


def _state(cloud: CloudModel) -> dict[str, Tensor]:
    parts = {"model": cloud.model, "basis": cloud.basis, "encoder": cloud.encoder}
    return {f"{part}.{key}": value for part, it in parts.items() for key, value in it.state_dict().items()}


def _load(path: Path, cloud: CloudModel) -> None:
    arrays, _ = read_safetensors(path)
    for part, module in (("model", cloud.model), ("basis", cloud.basis), ("encoder", cloud.encoder)):
        mine = {key.partition(".")[2]: torch.from_numpy(it) for key, it in arrays.items() if key.startswith(part)}
        module.load_state_dict(mine)
