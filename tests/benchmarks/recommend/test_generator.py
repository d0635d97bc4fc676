"""Vectors that are made of what was met last: whose they are, what they learn, and what stays as it was."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.recommend.rivals.generator import Generator, learn_generator
from mdl.errors import TrainingCancelledError
from mdl.peers.dccl.model.device_step import score_with_vectors
from mdl.peers.dccl.model.din import FitSettings, click_loss, fit_model
from mdl.peers.dccl.model.interactions import Interactions, Negatives, make_samples, training_places
from mdl.peers.dccl.model.momodistill import CloudModel

HISTORY = 5
SETTINGS = FitSettings(epochs=20, batch=16, history=HISTORY, learning_rate=0.01)


def test_a_vector_follows_from_the_history_and_its_order_alone() -> None:
    torch.manual_seed(0)
    generator = Generator(20, 4)
    vectors = generator(torch.tensor([[0, 0, 3, 4], [0, 0, 3, 4], [0, 0, 4, 3]]))
    assert vectors.shape == (3, 4)
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.allclose(vectors[0], vectors[2])


def test_the_generator_and_its_basis_learn_and_the_model_stays(cloud: CloudModel, log: Interactions) -> None:
    places, negatives = training_places(log), Negatives.before(log)
    torch.manual_seed(1)
    half_way = FitSettings(epochs=8, batch=16, history=HISTORY, learning_rate=0.01)
    fit_model(cloud.model, log, places, negatives, half_way, np.random.default_rng(0))
    before = copy.deepcopy(cloud)
    made = learn_generator(cloud, log, places, negatives, SETTINGS, np.random.default_rng(0))
    for name, value in before.model.state_dict().items():
        assert torch.equal(made.model.state_dict()[name], value)
    assert torch.equal(cloud.basis.theta, before.basis.theta), "the cloud's own basis is another one"
    samples = make_samples(log, places, negatives, 20, HISTORY, np.random.default_rng(1))
    scores = made.score(samples)
    assert scores.shape == (len(samples), 21)
    with torch.no_grad():
        plain = score_with_vectors(cloud.model, cloud.basis, None, samples)
    assert click_loss(scores) < click_loss(plain)
    rows = replace(samples, users=np.arange(len(samples)))
    vectors = made.generator(torch.from_numpy(samples.history))
    assert torch.allclose(score_with_vectors(made.model, made.basis, vectors, rows), scores, atol=1e-4)
    assert float(vectors.detach().std(0).min()) > 0.01, "each context has a vector of its own"


def test_it_is_the_same_for_the_same_seed_and_ends_when_told(cloud: CloudModel, log: Interactions) -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        places, rng = training_places(log), np.random.default_rng(0)
        few = FitSettings(epochs=1, batch=16, history=HISTORY)
        made = learn_generator(cloud, log, places, Negatives.before(log), few, rng)
        found.append(made.basis.theta)
    assert torch.equal(*found)
    with pytest.raises(TrainingCancelledError):
        learn_generator(cloud, log, places, Negatives.before(log), few, rng, must_end=lambda: True)
