"""Eq. 3 and Eq. 5 to 7 on a small log: who learns, from whom, and what stays."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from mdl.errors import TrainingCancelledError
from mdl.peers.dccl.model.device_step import VectorSettings, learn_vectors, score_with_vectors
from mdl.peers.dccl.model.din import DinSettings, FitSettings, click_loss, fit_model, score
from mdl.peers.dccl.model.interactions import Interactions, Negatives, keep_users, make_samples, training_places
from mdl.peers.dccl.model.momodistill import (
    CloudModel,
    MoMoDistillSettings,
    agreement_loss,
    distill_basis,
    distill_model,
    make_cloud_model,
)

SMALL = DinSettings(embedding=8, hidden=16, history=5, dropout=0.0, has_user=False)
SHORT = FitSettings(epochs=2, batch=16, history=5)
SETTINGS = MoMoDistillSettings(0.5, SHORT, SHORT)


def _learn(cloud: CloudModel, log: Interactions, start: torch.Tensor, ids: np.ndarray | None = None) -> torch.Tensor:
    settings = VectorSettings(steps=5, batch=8)
    places, negatives = training_places(log, (0.5, 1)), Negatives.before(log)
    return learn_vectors(cloud.model, cloud.basis, start, log, places, negatives, settings, seed=7, ids=ids)


def _arguments(log: Interactions) -> tuple[object, ...]:
    return log, training_places(log), Negatives.before(log), SETTINGS, np.random.default_rng(0)


def test_many_devices_learn_the_vectors_that_each_would_by_itself(cloud: CloudModel, log: Interactions) -> None:
    start = torch.randn(6, 4)
    together = _learn(cloud, log, start)
    assert (together != start).any(dim=1).all()
    for user in range(6):
        numbers = np.array([user])
        alone = _learn(cloud, keep_users(log, numbers), start[numbers], numbers)
        assert torch.allclose(alone[0], together[user], atol=1e-5)


def test_a_device_leaves_model_and_basis_as_they_are_and_learns_the_same_again(
    cloud: CloudModel, log: Interactions
) -> None:
    before = copy.deepcopy(cloud)
    first, again = (_learn(cloud, log, torch.ones(6, 4)) for _ in range(2))
    assert torch.equal(first, again)
    for mine, theirs in ((cloud.model, before.model), (cloud.basis, before.basis)):
        assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in mine.state_dict().items())


def test_what_a_device_learns_fits_its_own_clicks_better(cloud: CloudModel, log: Interactions) -> None:
    places = training_places(log, (0.5, 1))
    settings = VectorSettings(steps=60, batch=8, learning_rate=0.05)
    start = torch.ones(6, 4)
    negatives = Negatives.before(log)
    learned = learn_vectors(cloud.model, cloud.basis, start, log, places, negatives, settings, seed=7)
    samples = make_samples(log, places, negatives, 20, 5, np.random.default_rng(1))
    with torch.no_grad():
        before, after = (
            click_loss(score_with_vectors(cloud.model, cloud.basis, vectors, samples)) for vectors in (start, learned)
        )
    assert after < before


def test_who_has_no_new_clicks_keeps_the_vector(cloud: CloudModel, log: Interactions) -> None:
    start, places = torch.ones(6, 4), training_places(log, (0.5, 1))
    only = places.take(np.flatnonzero(places.users == 2))
    found = learn_vectors(cloud.model, cloud.basis, start, log, only, Negatives.before(log), VectorSettings(steps=2), 0)
    assert [bool((found[user] != 1).any()) for user in range(6)] == [user == 2 for user in range(6)]


def test_kl_is_that_of_bernoulli_teacher_first() -> None:
    teacher, scores = torch.tensor([0.3, -1.0]), torch.tensor([1.0, 2.0])
    p, q = torch.sigmoid(teacher), torch.sigmoid(scores)
    by_hand = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    assert agreement_loss(teacher, scores).item() == pytest.approx(by_hand.item(), abs=1e-6)
    assert agreement_loss(teacher, teacher).item() == pytest.approx(0, abs=1e-6)


def test_step_1_teaches_the_model_alone_and_with_beta_0_it_is_eq_4(cloud: CloudModel, log: Interactions) -> None:
    vectors = torch.randn(6, 4)
    data, places, negatives, _, _ = _arguments(log)
    found = distill_model(cloud, vectors, *_arguments(log))  # type: ignore[arg-type]
    assert found.basis is cloud.basis
    plain = distill_model(  # type: ignore[call-arg]
        cloud, vectors, data, places, negatives, MoMoDistillSettings(0.0, SHORT, SHORT), np.random.default_rng(0)
    )
    continued = copy.deepcopy(cloud.model)
    fit_model(continued, log, training_places(log), Negatives.before(log), SHORT, np.random.default_rng(0))
    for name, value in continued.state_dict().items():
        assert torch.allclose(plain.model.state_dict()[name], value, atol=1e-6)
    moved = [not torch.equal(found.model.state_dict()[name], value) for name, value in continued.state_dict().items()]
    assert any(moved)


def test_the_teacher_is_the_model_as_it_was_with_each_devices_patches(cloud: CloudModel, log: Interactions) -> None:
    """With beta far above the labels' weight the new model comes to what the devices' models said."""
    vectors = 2 * torch.randn(6, 4)
    data, places, negatives, _, _ = _arguments(log)
    settings = MoMoDistillSettings(1000.0, FitSettings(epochs=150, batch=64, history=5, learning_rate=0.01), SHORT)
    samples = make_samples(log, places, negatives, 4, 5, np.random.default_rng(2))  # type: ignore[arg-type]
    with torch.no_grad():
        said = score_with_vectors(cloud.model, cloud.basis, vectors, samples)
        before = agreement_loss(said, score_with_vectors(cloud.model, cloud.basis, None, samples))
    found = distill_model(cloud, vectors, data, places, negatives, settings, np.random.default_rng(0))  # type: ignore[arg-type]
    with torch.no_grad():
        after = agreement_loss(said, score_with_vectors(found.model, found.basis, None, samples))
    assert after < 0.5 * before


def test_zero_vectors_still_teach_the_basis_through_the_profile(cloud: CloudModel, log: Interactions) -> None:
    """Algorithm 1's pretraining: Theta * 0 is no patch, Theta * U(0, u) is one."""
    found = distill_basis(cloud, cloud, None, *_arguments(log))  # type: ignore[arg-type]
    assert not torch.equal(found.basis.theta, cloud.basis.theta)
    assert found.model is cloud.model
    start = found.warm_start(torch.zeros(6, 4), log.profiles)
    assert start.abs().min() > 0
    assert torch.equal(start[0], start[2])  # the same profile
    assert not torch.equal(start[0], start[1])


def test_step_2_learns_the_basis_and_the_encoder_and_keeps_the_model(cloud: CloudModel, log: Interactions) -> None:
    vectors = torch.randn(6, 4)
    vectors[3] = float("nan")  # it sent none
    before = copy.deepcopy(cloud.model)
    found = distill_basis(cloud, cloud, vectors, *_arguments(log))  # type: ignore[arg-type]
    assert found.basis.theta.isfinite().all()
    assert not torch.equal(found.basis.theta, cloud.basis.theta)
    assert not torch.equal(found.encoder.inner.weight, cloud.encoder.inner.weight)
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in found.model.state_dict().items())


def test_a_vector_that_nobody_sent_teaches_nothing(cloud: CloudModel, log: Interactions) -> None:
    nobody = torch.full((6, 4), float("nan"))
    found = distill_model(cloud, nobody, *_arguments(log))  # type: ignore[arg-type]
    without = distill_model(cloud, None, *_arguments(log))  # type: ignore[arg-type]
    for name, value in without.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)


def test_a_distillation_ends_at_its_next_batch(cloud: CloudModel, log: Interactions) -> None:
    with pytest.raises(TrainingCancelledError):
        distill_model(cloud, None, *_arguments(log), must_end=lambda: True)  # type: ignore[arg-type]


def test_training_is_the_same_for_the_same_seed(log: Interactions) -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        model = make_cloud_model(log, SMALL, 4).model
        fit_model(model, log, training_places(log), Negatives.before(log), SHORT, np.random.default_rng(5))
        found.append(
            score(model, make_samples(log, training_places(log), Negatives.before(log), 3, 5, np.random.default_rng(0)))
        )
    assert (found[0] == found[1]).all()
