"""Algorithm 1 from the cloud's side: the first model and basis, and one round after the devices' vectors have come."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import numpy as np
import torch
from torch import Tensor

from mdl.recommend.din import DinSettings
from mdl.recommend.interactions import Interactions
from mdl.recommend.metrics import ranks, top_metrics
from mdl.recommend.momodistill import CloudModel, MoMoDistillSettings, distill_basis, distill_model, make_cloud_model
from mdl.recommend.splits import TEST_NEGATIVES, ItemSamples, Negatives, make_test, training_places
from mdl.recommend.training import FitSettings, fit_model, score

logger = logging.getLogger(__name__)


class RecommenderSettings(msgspec.Struct, frozen=True):
    """din: sizes of f. vector: entries of a device's. first: of f's pretraining. rounds: of each round after it.

    patience: pretraining ends after so many epochs without a better NDCG@10 on the last items but one.
    """

    din: DinSettings = DinSettings(has_user=False)
    vector: int = 32
    first: FitSettings = FitSettings(epochs=40, learning_rate=3e-3, batch=1024)
    rounds: MoMoDistillSettings = MoMoDistillSettings()
    patience: int = 3


def pretrain(
    data: Interactions, settings: RecommenderSettings, seed: int, must_end: Callable[[], bool] = lambda: False
) -> CloudModel:
    """Learn f by Eq. 4, then Theta and the encoder by Eq. 7 from zero vectors. Everything follows from the seed."""
    rng, negatives, places = np.random.default_rng([seed, 0]), Negatives.before(data), training_places(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cloud = make_cloud_model(data, settings.din, settings.vector)
        judge = _Judge(cloud, _tuning(data, settings, seed), settings.patience)
        fit_model(cloud.model, data, places, negatives, settings.first, rng, judge, must_end)
        judge.restore()
        return distill_basis(cloud, cloud, None, data, places, negatives, settings.rounds, rng, must_end)


def next_round(
    cloud: CloudModel,
    vectors: Tensor,
    data: Interactions,
    settings: RecommenderSettings,
    seed: int,
    must_end: Callable[[], bool] = lambda: False,
) -> CloudModel:
    """Run Eq. 5, then Eq. 7. vectors: (U, size) under this cloud's basis; rows of NaN: users without a vector."""
    rng, negatives, places = np.random.default_rng([seed, 1]), Negatives.before(data), training_places(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learned = distill_model(cloud, vectors, data, places, negatives, settings.rounds, rng, must_end)
        return distill_basis(learned, cloud, vectors, data, places, negatives, settings.rounds, rng, must_end)


def _tuning(data: Interactions, settings: RecommenderSettings, seed: int) -> ItemSamples | None:
    """Return the last items but one with stored negatives; None if the log has too few items."""
    if len(data.titles) - data.lengths.max() < TEST_NEGATIVES:
        return None
    return make_test(data, 2, settings.din.history, seed)


class _Judge:
    """Keeps the best epoch by NDCG@10, and ends the pretraining when it does not get better."""

    def __init__(self, cloud: CloudModel, tuning: ItemSamples | None, patience: int) -> None:
        self._model, self._tuning, self._patience = cloud.model, tuning, patience
        self._best, self._waited = -1.0, 0
        self._state: dict[str, Tensor] | None = None

    def __call__(self, epoch: int, loss: float) -> bool:
        if self._tuning is None:
            return True
        found = top_metrics(ranks(score(self._model, self._tuning)))
        told = "epoch %d: loss %.4f, HitRate@10 %.1f %%, NDCG@10 %.1f %% on the last items but one"
        logger.info(told, epoch + 1, loss, found["HR@10"], found["NDCG@10"])
        self._waited += 1
        if found["NDCG@10"] > self._best:
            self._best, self._waited = found["NDCG@10"], 0
            self._state = {name: value.clone() for name, value in self._model.state_dict().items()}
        return self._waited < self._patience

    def restore(self) -> None:
        if self._state is not None:
            self._model.load_state_dict(self._state)
