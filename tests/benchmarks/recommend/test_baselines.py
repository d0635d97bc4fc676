"""MF, FM, NeuMF, DeepFM and SASRec against closed forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.recommend.rivals.factorisation import (
    DeepFactorisation,
    FactorisationMachine,
    MatrixFactorisation,
    NeuralFactorisation,
    cross,
)
from benchmarks.recommend.rivals.sasrec import SelfAttentiveRecommender, SequenceSettings, fit_sequences, windows
from mdl.peers.dccl.model.din import FitSettings, fit_model, score
from mdl.peers.dccl.model.interactions import Negatives, hits, make_samples, ranks, training_places
from tests.peers.dccl.model.logs import small_log

USERS, ITEMS = 6, 200
MODELS: dict[str, Callable[[], nn.Module]] = {
    "MF": lambda: MatrixFactorisation(USERS, ITEMS),
    "FM": lambda: FactorisationMachine(USERS, ITEMS),
    "NeuMF": lambda: NeuralFactorisation(USERS, ITEMS),
    "DeepFM": lambda: DeepFactorisation(USERS, ITEMS),
    "SASRec": lambda: SelfAttentiveRecommender(ITEMS, 16, 5, dropout=0.0),
}
CONTEXT = torch.tensor([1, 2]), torch.tensor([[0, 0, 3, 4, 5], [0, 0, 0, 0, 0]]), torch.tensor([[7, 8, 9], [1, 2, 3]])


@pytest.mark.parametrize("name", MODELS)
def test_each_candidate_has_a_score_of_its_own(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    users, history, candidates = CONTEXT
    scores = model(users, history, candidates)
    assert scores.shape == (2, 3)
    assert scores.isfinite().all()
    alone = model(users[:1], history[:1], candidates[:1, 1:2])
    assert torch.allclose(alone[0, 0], scores[0, 1], atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_each_learns_a_log_that_it_can_learn(name: str) -> None:
    log = small_log()
    places, negatives, rng = training_places(log), Negatives.before(log), np.random.default_rng(0)
    torch.manual_seed(0)
    model = MODELS[name]()
    fit_model(model, log, places, negatives, FitSettings(epochs=60, batch=64, learning_rate=0.02, history=5), rng)
    samples = make_samples(log, places, negatives, 50, 5, rng)
    assert hits(ranks(score(model, samples)), 10).mean() > 0.6  # 0.2 by chance


def test_mf_is_biases_and_a_product() -> None:
    model = MatrixFactorisation(USERS, ITEMS)
    nn.init.normal_(model.item_bias.weight)
    found = model(*CONTEXT)[0, 2]
    by_hand = (
        model.users.weight[1] @ model.items.weight[9] + model.item_bias.weight[9, 0] + model.user_bias.weight[1, 0]
    )
    assert torch.allclose(found, by_hand)


def test_fm_crosses_all_pairs_of_fields() -> None:
    fields = torch.randn(2, 4, 5)
    pairs = sum((fields[:, a] * fields[:, b]).sum(dim=-1) for a in range(4) for b in range(a))
    assert torch.allclose(cross(fields), torch.as_tensor(pairs), atol=1e-5)
    model = FactorisationMachine(USERS, ITEMS)
    p, q, h = model.fields.users.weight[1], model.fields.items.weight[7], model.fields.met.weight[[3, 4, 5]].mean(dim=0)
    assert torch.allclose(model(*CONTEXT)[0, 0], p @ q + p @ h + q @ h, atol=1e-6)


def test_deepfm_adds_a_tower_to_the_machine() -> None:
    model = DeepFactorisation(USERS, ITEMS)
    nn.init.zeros_(model.score.weight)
    nn.init.constant_(model.score.bias, 0.5)
    assert torch.allclose(model(*CONTEXT), model.machine(*CONTEXT) + 0.5)


def test_sasrec_sees_nothing_of_what_comes_later_and_nothing_of_padding() -> None:
    torch.manual_seed(0)
    model = SelfAttentiveRecommender(ITEMS, 16, 5).eval()
    whole = model.read(torch.tensor([[1, 2, 3, 4, 5]]))
    other = model.read(torch.tensor([[1, 2, 3, 9, 8]]))
    assert torch.allclose(whole[:, :3], other[:, :3], atol=1e-5)
    assert not torch.allclose(whole[:, 3:], other[:, 3:], atol=1e-3)
    short, padded = model.read(torch.tensor([[4, 5]])), model.read(torch.tensor([[0, 0, 0, 4, 5]]))
    assert torch.allclose(short[:, -1], padded[:, -1], atol=1e-5)
    score_of = model(torch.tensor([0]), torch.tensor([[4, 5]]), torch.tensor([[7]]))
    assert torch.allclose(score_of[0, 0], short[0, -1] @ model.items.weight[7], atol=1e-5)


def test_sasrec_learns_in_sequences_what_comes_next() -> None:
    log = small_log()
    torch.manual_seed(0)
    model, negatives = SelfAttentiveRecommender(ITEMS, 16, 5, dropout=0.0), Negatives.before(log)
    heard: list[float] = []

    def hear(epoch: int, loss: float) -> bool:
        heard.append(loss)
        return epoch < 119

    settings = SequenceSettings(epochs=200, batch=4, learning_rate=0.02, history=5)
    fit_sequences(model, log, negatives, settings, np.random.default_rng(0), hear)
    assert len(heard) == 120, "it ends when it is told"
    assert heard[-1] < 0.5 * heard[0]
    samples = make_samples(log, training_places(log), negatives, 50, 5, np.random.default_rng(1))
    assert hits(ranks(score(model, samples)), 10).mean() > 0.6  # 0.2 by chance


def test_a_window_ends_before_the_last_two_items_and_begins_with_the_user() -> None:
    """Each position's next item is the one after it; over many passes all of a long sequence is seen."""
    log, seen = small_log(users=2), set()
    for seed in range(40):
        history, clicked = windows(log, np.array([0, 1]), 4, np.random.default_rng(seed))
        for user in (0, 1):
            own = log.of(user).tolist()
            for item, later in zip(history[user], clicked[user], strict=True):
                assert own.index(later) == own.index(item) + 1
                assert own.index(later) < len(own) - 2
                seen.add((user, int(later)))
    assert seen == {(user, int(item)) for user in (0, 1) for item in log.of(user)[1:-2]}
    short, nothing = windows(log, np.array([0]), 30, np.random.default_rng(0))
    assert short[0, -9:].tolist() == log.of(0)[:9].tolist()
    assert not short[0, :-9].any()
    assert not nothing[0, :-9].any()
