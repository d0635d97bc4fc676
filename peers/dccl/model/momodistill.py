"""MoMoDistill: the cloud learns from the devices' vectors as from features (Eq. 5 to 7), and its side of Algorithm 1.

Step 1 teaches the model: each sample's teacher is the former model, with the patches of the sample's device. Step 2
holds that model and teaches the basis, through an encoder that evens the vectors out and uses the profile of a user
without a vector. Devices' vectors are rows of one table: nothing is loaded for any of them, and memory is that of a
batch. The algorithm makes the first model and basis, and does one round after the devices' vectors have come.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdl.peers.dccl.model.device_step import Basis, Junction, score_features, score_with_vectors
from mdl.peers.dccl.model.din import (
    JUNCTIONS,
    Din,
    DinSettings,
    FitSettings,
    as_tensors,
    click_loss,
    fit,
    fit_model,
    score,
)
from mdl.peers.dccl.model.interactions import (
    TEST_NEGATIVES,
    Feature,
    Integers,
    Interactions,
    ItemSamples,
    Negatives,
    SampleEnds,
    make_test,
    ranks,
    top_metrics,
    training_places,
)

logger = logging.getLogger(__name__)

# Table 5: the size of a profile. W3 maps it to the size of a vector.
PROFILE_SIZE = 8


class Encoder(nn.Module):
    """U(vector, u) = W1 tanh(W2 vector + W3 u), u the sum of the embeddings of a profile's categories (Eq. 6)."""

    def __init__(self, size: int, features: tuple[Feature, ...]) -> None:
        super().__init__()
        self.features = features
        self.outer, self.inner = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.of_profile = nn.Linear(PROFILE_SIZE, size, bias=False)
        self.everybody = nn.Parameter(torch.randn(PROFILE_SIZE))
        self.categories = nn.ModuleList(nn.Embedding(1 + len(each.categories), PROFILE_SIZE) for each in features)

    def forward(self, vectors: Tensor, profiles: Tensor) -> Tensor:
        """Return (B, size) for vectors (B, size) and profiles (B, C)."""
        u = self.everybody.expand(len(profiles), -1)
        for place, table in enumerate(self.categories):
            u = u + table(profiles[:, place])
        encoded: Tensor = self.outer(torch.tanh(self.inner(vectors) + self.of_profile(u)))
        return encoded


@dataclass(frozen=True)
class CloudModel:
    """The models that the cloud has and sends: f, Theta and the encoder."""

    model: Din
    basis: Basis
    encoder: Encoder

    @torch.no_grad()
    def warm_start(self, vectors: Tensor, profiles: Integers) -> Tensor:
        """Return the devices' starts under this basis, (U, size): U(vector, u); without a vector, U(0, u)."""
        start: Tensor = self.encoder(vectors, torch.from_numpy(profiles))
        return start


class MoMoDistillSettings(msgspec.Struct, frozen=True):
    """beta: weight of the devices' models as teachers. model, basis: settings of step 1 and step 2."""

    beta: float = 0.01
    model: FitSettings = FitSettings(epochs=1)
    basis: FitSettings = FitSettings(epochs=1)


def make_cloud_model(
    data: Interactions, din: DinSettings, size: int = 32, junctions: tuple[str, ...] = JUNCTIONS
) -> CloudModel:
    """Make fresh models from torch's generator. size: of a device's vector."""
    model = Din(len(data.users), len(data.titles), din)
    basis = Basis([Junction(name, din.hidden) for name in junctions], size)
    return CloudModel(model, basis, Encoder(size, data.features))


def agreement_loss(teacher: Tensor, scores: Tensor) -> Tensor:
    """Return the mean KL(teacher, model) of clicks with these scores, teacher first as printed (Eq. 5)."""
    sure = torch.sigmoid(teacher)
    cross = F.binary_cross_entropy_with_logits(scores, sure)
    return cross - F.binary_cross_entropy_with_logits(teacher, sure)


def distill_model(
    cloud: CloudModel,
    vectors: Tensor | None,
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: MoMoDistillSettings,
    rng: np.random.Generator,
    must_end: Callable[[], bool] = lambda: False,
) -> CloudModel:
    """Run step 1 (Eq. 5): a new f, from its former self and the data. vectors: (U, size), NaN rows if a user has none.

    Without vectors, or with beta 0, it is the ordinary incremental training (Eq. 4).
    """
    learner, teacher = copy.deepcopy(cloud.model), cloud.model.eval()

    def loss_of(samples: ItemSamples) -> Tensor:
        scores = score_with_vectors(learner, cloud.basis, None, samples)
        return click_loss(scores) + _by_devices(teacher, cloud.basis, vectors, settings.beta, samples, scores)

    _learn(learner, learner.parameters(), loss_of, data, places, negatives, settings.model, rng, must_end)
    return replace(cloud, model=learner.eval())


def distill_basis(
    cloud: CloudModel,
    former: CloudModel,
    vectors: Tensor | None,
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: MoMoDistillSettings,
    rng: np.random.Generator,
    must_end: Callable[[], bool] = lambda: False,
) -> CloudModel:
    """Run step 2 (Eq. 7): a new basis and encoder for cloud's f, which stays. former: the models behind the vectors.

    vectors None is the pretraining of Algorithm 1: of zero vectors, which generate patches through the profile alone.
    """
    basis, encoder = copy.deepcopy(cloud.basis), copy.deepcopy(cloud.encoder)
    known = torch.zeros(len(data.users), basis.size) if vectors is None else torch.nan_to_num(vectors)
    profiles = torch.from_numpy(data.profiles)
    model, teacher = cloud.model.eval(), former.model.eval()

    def loss_of(samples: ItemSamples) -> Tensor:
        users = torch.from_numpy(samples.users)
        proxies = encoder(known[users], profiles[users])
        with torch.no_grad():
            features = model.features(*as_tensors(samples))
        scores = score_features(model, basis, proxies, features)
        return click_loss(scores) + _by_devices(teacher, former.basis, vectors, settings.beta, samples, scores)

    learned = [*basis.parameters(), *encoder.parameters()]
    _learn(basis, learned, loss_of, data, places, negatives, settings.basis, rng, must_end)
    return CloudModel(model, basis, encoder)


def _by_devices(
    teacher: Din, basis: Basis, vectors: Tensor | None, beta: float, samples: ItemSamples, scores: Tensor
) -> Tensor:
    """Return beta KL over the samples of devices with a vector, as a part of the mean over all samples."""
    if vectors is None or not beta:
        return scores.new_zeros(())
    rows = torch.nonzero(~vectors[torch.from_numpy(samples.users), 0].isnan()).squeeze(-1)
    if not len(rows):
        return scores.new_zeros(())
    with torch.no_grad():
        said = score_with_vectors(teacher, basis, vectors, samples.take(rows.numpy()))
    return beta * len(rows) / len(samples) * agreement_loss(said, scores[rows])


def _learn(
    trained: nn.Module,
    parameters: Iterable[nn.Parameter],
    loss_of: Callable[[ItemSamples], Tensor],
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: FitSettings,
    rng: np.random.Generator,
    must_end: Callable[[], bool],
) -> None:
    def loss_in_training(samples: ItemSamples) -> Tensor:
        trained.train()
        return loss_of(samples)

    fit(loss_in_training, parameters, data, places, negatives, settings, rng, must_end=must_end)


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
