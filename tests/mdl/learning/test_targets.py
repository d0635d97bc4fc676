"""Numbers are learned around 0 and given in their units; the mesh agrees on their scale by averaging."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl.config import TrainingSettings
from mdl.data.windows import to_input
from mdl.learning.evaluation import OwnLoss, evaluate, predict_logits
from mdl.learning.flat import FlatModel
from mdl.learning.models import Numbers, build_model, built_in_shapes, loss_of
from mdl.learning.training import LocalTrainer
from mdl.own import Own

SETTINGS = TrainingSettings(batch_size=16, learning_rate=0.03, planned_rounds=30)


def waves(count: int, seed: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Windows whose height is the number to learn, in steps of 100 above 5,000."""
    dice = np.random.default_rng(seed)
    height = dice.uniform(low, high, count)
    x = height[:, None, None] * np.sin(np.arange(16) / 2)[None, None] + dice.normal(0, 0.05, (count, 2, 16))
    return x.astype(np.float32), (5000 + 100 * height[:, None]).astype(np.float32)


def linear(channels: int, time: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * time, outputs))


LINEAR = Own("m:linear", linear)


def model(seed: int = 0) -> FlatModel:
    return FlatModel(build_model(LINEAR, 2, 16, 1, seed, targets="numbers"))


def scale_of(flat: FlatModel, values: np.ndarray) -> tuple[float, float]:
    flat.load(values)
    assert isinstance(flat.module, Numbers)
    return float(flat.module.target_mean[0]), float(flat.module.target_deviation[0])


def averaged(shards: list[tuple[np.ndarray, np.ndarray]], rounds: int = 30) -> tuple[np.ndarray, FlatModel]:
    """What a mesh of these devices comes to, which weigh alike."""
    flats = [model() for _ in shards]
    trainers = [LocalTrainer(flat, *shard, SETTINGS) for flat, shard in zip(flats, shards, strict=True)]
    w = flats[0].values().copy()
    for round_id in range(1, rounds + 1):
        w = np.mean([trainer.train_round(w, round_id).values.copy() for trainer in trainers], axis=0, dtype=np.float32)
    return w, flats[0]


def test_a_mesh_agrees_on_mean_and_spread_though_each_device_has_others() -> None:
    """Two devices whose numbers do not overlap: the spread that is agreed on is the one over both."""
    shards = [waves(64, 1, 0.0, 1.0), waves(64, 2, 3.0, 4.0)]
    assert scale_of(model(), model().values().copy()) == (0.0, 0.0)
    w, flat = averaged(shards, rounds=4)
    y = np.concatenate([shard[1] for shard in shards])
    mean, spread = scale_of(flat, w)
    assert mean == pytest.approx(float(y.mean()), rel=1e-5)
    assert spread == pytest.approx(float(y.std()), rel=0.02)


def test_a_mesh_learns_numbers_in_their_unit() -> None:
    w, flat = averaged([waves(64, 1, 0.0, 4.0), waves(64, 2, 0.0, 4.0)])
    flat.load(w)
    told = evaluate(flat.module, *waves(100, 3, 0.0, 4.0), 1)
    assert told.score is not None
    assert told.score > 0.75
    assert told.fits[0].rmse < 60  # the numbers spread by 115


def test_one_device_takes_its_own_scale_at_once() -> None:
    x, y = waves(64, 1, 0.0, 4.0)
    flat = model()
    done = LocalTrainer(flat, x, y, SETTINGS).train_round(flat.values().copy(), 1)
    assert done.loss < 5  # of spread 1, not of some 5,000 squared
    assert scale_of(flat, done.values.copy()) == (pytest.approx(y.mean(), rel=1e-5), pytest.approx(y.std(), rel=1e-3))


def test_a_constant_number_does_not_divide_by_nothing() -> None:
    x, y = waves(32, 1, 2.0, 2.0)
    flat = model()
    done = LocalTrainer(flat, x, y, SETTINGS).train_round(flat.values().copy(), 1)
    assert np.isfinite(done.values).all()
    assert np.isfinite(done.loss)


def test_numbers_are_judged_by_a_spread_of_one_and_labels_by_guessing() -> None:
    x, y = waves(32, 1, 0.0, 4.0)
    flat = model()
    flat.module.take(y.mean(axis=0), y.std(axis=0))  # type: ignore[union-attr, operator]
    loss = OwnLoss(model, x, y, 1, 16, 0)
    assert loss.classes == 3
    assert 0.1 < loss(flat.values().copy()) < 5
    assert OwnLoss(model, x, (y > 5200).astype(np.uint8), 1, 16, 0).classes == 2


def test_labels_are_learned_each_by_itself() -> None:
    x, y = waves(128, 1, 0.0, 4.0)
    flags = np.concatenate([y > 5200, y > 5300], axis=1).astype(np.uint8)
    flat = FlatModel(build_model(LINEAR, 2, 16, 2, 0, targets="labels"))
    trainer, w = LocalTrainer(flat, x, flags, SETTINGS), flat.values().copy()
    for round_id in range(1, 31):
        w = trainer.train_round(w, round_id).values.copy()
    flat.load(w)
    told = evaluate(flat.module, x, flags, 2)
    assert told.labelling.micro_f1 > 0.9
    assert told.labelling.exact > 0.85


def test_losses_are_those_of_the_targets() -> None:
    outputs, plain = torch.tensor([[1.0, 2.0]]), torch.nn.Identity()
    of_classes, of_labels = (loss_of(plain, y) for y in (np.zeros(1, np.int64), np.zeros((1, 2), np.uint8)))
    assert of_classes(outputs, torch.tensor([1])) == pytest.approx(np.log1p(np.exp(-1)), abs=1e-5)
    expected = (np.log1p(np.exp(-1)) + np.log1p(np.exp(2))) / 2
    assert of_labels(outputs, torch.tensor([[1.0, 0.0]])) == pytest.approx(expected, abs=1e-5)
    scaled = Numbers(torch.nn.Identity(), 2)
    scaled.take(np.array([0.0, 0.0]), np.array([2.0, 0.0]))
    assert loss_of(scaled, np.zeros((1, 2), np.float32))(outputs, torch.zeros(1, 2)) == pytest.approx((0.25 + 4) / 2)


def test_an_own_model_gives_numbers_around_zero_and_is_scaled_around_itself() -> None:
    module = build_model(LINEAR, 2, 16, 3, 0, targets="numbers")
    assert isinstance(module, Numbers)
    x, _ = waves(4, 0, 0.0, 1.0)
    before = predict_logits(module.network, x)
    module.take(np.array([10.0, 0.0, -5.0]), np.array([2.0, 1.0, 0.5]))
    np.testing.assert_allclose(predict_logits(module, to_input(x)), before * (2, 1, 0.5) + (10, 0, -5), rtol=1e-5)


def test_the_scale_has_its_place_among_the_shapes_of_a_file() -> None:
    shapes = built_in_shapes("lenet", 2, 16, 3, "numbers")
    assert (shapes["target_mean"], shapes["target_deviation"]) == ((3,), (3,))
    assert "network.0.weight" in shapes
    assert "0.weight" in built_in_shapes("lenet", 2, 16, 3, "labels")
