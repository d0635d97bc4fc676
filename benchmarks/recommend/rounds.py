"""Figure 5: what comes later is learned in one round, or in more and shorter ones, cut by the calendar."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.recommend.learning import ONE_PASS, Options, Rows, fit_best, kept_rows, rank_with
from benchmarks.recommend.picture import draw
from benchmarks.recommend.report import difference, show, tell
from mdl.errors import DataError
from mdl.peers.dccl.model.device_step import VectorSettings, learn_vectors
from mdl.peers.dccl.model.din import FitSettings, fit_model
from mdl.peers.dccl.model.interactions import (
    Integers,
    Interactions,
    Negatives,
    SampleEnds,
    gains,
    make_test,
    training_places,
)
from mdl.peers.dccl.model.momodistill import (
    CloudModel,
    MoMoDistillSettings,
    distill_basis,
    distill_model,
    make_cloud_model,
)

ROUNDS = (1, 2, 4, 8)


def places_between(data: Interactions, begin: float, end: float) -> SampleEnds:
    """Return the places with begin <= time < end, without each user's first item. Raises DataError without times."""
    if data.times is None:
        raise DataError("this log has an order and no times: it cannot be cut by the calendar")
    inside = (data.times >= begin) & (data.times < end)
    inside[data.starts[:-1][data.lengths > 0]] = False
    users = np.repeat(np.arange(len(data.users)), data.lengths)
    return SampleEnds(users[inside], np.flatnonzero(inside))


@dataclass(frozen=True)
class _Log:
    """usable: places of data before the last two clicks of each user; cut, end: when the later half begins and ends."""

    data: Interactions
    negatives: Negatives
    usable: Integers
    cut: float
    end: float

    def between(self, begin: float, end: float) -> SampleEnds:
        found = places_between(self.data, begin, end)
        return found.take(np.flatnonzero(np.isin(found.places, self.usable)))


def figure5(data: Interactions, seeds: Sequence[int], options: Options) -> dict[str, Any]:
    """Ranks of each user's last click after all rounds, by their number, with and without the devices' vectors."""
    found = [kept_rows(options.path(f"rounds-{seed}.npz"), partial(_learn, data, seed, options)) for seed in seeds]
    told = show(found, ("before", _name("DIN", ROUNDS[0])))
    for count in ROUNDS:
        beside = difference(found, _name("DCCL-m", count), _name("DIN", count), gains)
        print(f"NDCG@10 of {_name('DCCL-m', count)} over DIN in as many: {tell(beside)}")
        told[f"DCCL-m over DIN, {count}"] = asdict(beside)
    return told


def plot_rounds(found: dict[str, Any], path: Path | None) -> None:
    if path is None:
        return
    axes, save = draw(path)
    for name in ("DIN", "DCCL-e", "DCCL-m"):
        values = [found[_name(name, count)]["mean"]["NDCG@10"] for count in ROUNDS]
        axes.plot(range(len(ROUNDS)), values, "o-", label=name)
    axes.axhline(found["before"]["mean"]["NDCG@10"], color="grey", label="before")
    axes.set(xticks=range(len(ROUNDS)), xticklabels=ROUNDS, xlabel="rounds in the later half", ylabel="NDCG@10, %")
    axes.legend()
    save()


def _learn(data: Interactions, seed: int, options: Options) -> Rows:
    assert data.times is not None, "this log has an order and no times: it cannot be cut by the calendar"
    cut = float(np.median(data.times))
    log = _Log(data, Negatives.before(data), training_places(data).places, cut, float(data.times.max()) + 1)
    test = make_test(data, 1, options.din.history, seed)
    first = _first(log, seed, options)
    rows: Rows = {"before": rank_with(first, None, test)}
    for count in ROUNDS:
        edges = np.linspace(log.cut, log.end, count + 1)
        plain = cloud = given = first
        vectors = torch.full((len(data.users), first.basis.size), torch.nan)
        own = first.warm_start(torch.nan_to_num(vectors), data.profiles)
        for number, (begin, end) in enumerate(itertools.pairwise(edges)):
            places, rng = log.between(begin, end), np.random.default_rng([seed, count, number])
            torch.manual_seed(seed)
            plain = distill_model(plain, None, data, places, log.negatives, options.distill(0), rng)
            given, vectors, own = cloud, *_on_devices(log, cloud, vectors, places, seed, options)
            how = options.distill(options.beta)
            torch.manual_seed(seed)
            step = distill_model(cloud, vectors, data, places, log.negatives, how, rng)
            cloud = distill_basis(step, cloud, vectors, data, places, log.negatives, how, rng)
        started = cloud.warm_start(torch.nan_to_num(vectors), data.profiles)
        rows |= {
            _name("DIN", count): rank_with(plain, None, test),
            _name("DCCL-e", count): rank_with(given, own, test),
            _name("DCCL-m", count): rank_with(cloud, started, test),
        }
    return rows


def _first(log: _Log, seed: int, options: Options) -> CloudModel:
    torch.manual_seed(seed)
    data, rng = log.data, np.random.default_rng(seed)
    cloud = make_cloud_model(data, options.din)
    places = log.between(-np.inf, log.cut)
    how = FitSettings(epochs=options.epochs, learning_rate=3e-3, batch=1024)
    tuning = make_test(data, 2, options.din.history, seed)
    fit_best(
        cloud.model,
        lambda judge: fit_model(cloud.model, data, places, log.negatives, how, rng, judge),
        tuning,
        f"seed {seed}, before {np.datetime64(int(log.cut), 's')}",
    )
    pretraining = MoMoDistillSettings(0.0, basis=ONE_PASS)
    return distill_basis(cloud, cloud, None, data, places, log.negatives, pretraining, rng)


def _on_devices(
    log: _Log, cloud: CloudModel, vectors: Tensor, places: SampleEnds, seed: int, options: Options
) -> tuple[Tensor, Tensor]:
    """What the devices with clicks in this round send, NaN of all others, and what each device would use, (U, size)."""
    start = cloud.warm_start(torch.nan_to_num(vectors), log.data.profiles)
    settings = VectorSettings(steps=options.steps, learning_rate=options.rate)
    own = learn_vectors(cloud.model, cloud.basis, start, log.data, places, log.negatives, settings, seed)
    sent = torch.full_like(own, torch.nan)
    active = torch.from_numpy(np.unique(places.users))
    sent[active] = own[active]
    return sent, own


def _name(method: str, count: int) -> str:
    return f"{method}, {count} round{'s' if count > 1 else ''}"
