"""FedBN: weights and statistics of batch norms are trained like all others, and stay where they are."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from mdl.config import TrainingSettings
from mdl.errors import ConfigError
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel, OwnState, own_names
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta

SETTINGS = TrainingSettings(learning_rate=0.01, schedule="constant", batch_size=16, seed=1)


def _flat(batch_norm: str = "own", **options: bool) -> FlatModel:
    module = build_model("lenet", 3, 32, 4, seed=0)
    return FlatModel(module, own=own_names(module, batch_norm), **options)


def _windows(count: int, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 4, count)
    x = generator.standard_normal((count, 3, 32), np.float32)
    x[np.arange(count), y % 3] += 1.5 * (1 + y[:, None]).astype(np.float32)
    return (scale * x + shift).astype(np.float32), y


def test_what_travels_has_no_batch_norm_and_devices_must_agree_on_that() -> None:
    shared, own = _flat("shared"), _flat()
    names = {name for name, _ in own.schema}
    assert names == {"1.weight", "1.bias", "5.weight", "5.bias", "11.weight", "11.bias", "13.weight", "13.bias"}
    assert own.size == shared.size - sum(tensor.numel() for tensor in own.own_state().values())
    assert own.own_state().keys() == {name for name, _ in shared.schema} - names
    assert own.schema_hash != shared.schema_hash
    assert own.task_schema != shared.task_schema
    assert own.buffers() == []


@pytest.mark.parametrize("apart", [False, True])
def test_a_device_alone_trains_as_if_all_were_shared(apart: bool) -> None:
    x, y = _windows(48)
    trainers = [LocalTrainer(flat, x, y, SETTINGS) for flat in (_flat("shared"), _flat(apart=apart))]
    for trainer in trainers:
        for round_id in (1, 2, 3):
            trainer.train_round(trainer.model.values().copy(), round_id)
    one, other = (trainer.model.module.state_dict() for trainer in trainers)
    for name in one:
        assert torch.allclose(one[name], other[name], atol=1e-6), name


@pytest.mark.parametrize("apart", [False, True])
def test_loading_the_meshs_model_leaves_them_as_they_are(apart: bool) -> None:
    flat = _flat(apart=apart)
    x, y = _windows(48)
    start = flat.values().copy()
    LocalTrainer(flat, x, y, SETTINGS).train_round(start, 1)
    before = {name: tensor.clone() for name, tensor in flat.own_state().items()}
    assert not torch.equal(before["0.running_mean"], torch.zeros(3))
    moved = flat.module[0]
    moved.weight.data = moved.weight.data.clone()  # type: ignore[union-attr]
    flat.load(np.zeros(flat.size, np.float32))
    assert not flat.gather().any()
    for name, tensor in flat.own_state().items():
        assert torch.equal(tensor, before[name]), name
    state = flat.named(start)
    assert torch.equal(state["0.running_mean"], before["0.running_mean"])
    assert torch.equal(state["13.bias"], torch.from_numpy(start[-4:]))


def test_a_restart_goes_on_with_them() -> None:
    flat, again = _flat(), _flat()
    LocalTrainer(flat, *_windows(48), SETTINGS).train_round(flat.values().copy(), 1)
    kept = {name: tensor.clone() for name, tensor in OwnState(flat.own_state).state_dict().items()}
    OwnState(again.own_state).load_state_dict(kept)
    for name, tensor in flat.own_state().items():
        assert torch.equal(tensor, again.module.state_dict()[name])
    with pytest.raises(ValueError, match=r"4.weight is not there, or has another shape|0.weight is not there"):
        OwnState(again.own_state).load_state_dict({})


def test_the_proximal_term_holds_what_is_shared_and_nothing_else() -> None:
    flat, free = _flat(), _flat()
    start = flat.values().copy()
    held = msgspec.structs.replace(SETTINGS, optimizer="sgd", momentum=0.0, proximal=50.0)
    LocalTrainer(flat, *_windows(96), held).train_round(start, 1)
    LocalTrainer(free, *_windows(96), msgspec.structs.replace(held, proximal=0.0)).train_round(start, 1)
    assert np.linalg.norm(flat.values() - start) < 0.8 * np.linalg.norm(free.values() - start)
    weights = flat.own_state()["0.weight"]
    assert not torch.equal(weights, torch.ones(3))


def _mesh(batch_norm: str) -> float:
    """Two devices whose sensors differ in scale and offset; accuracy of the mean model on each one's own windows."""
    places = [(1.0, 0.0), (-0.2, 40.0)]
    flats = [_flat(batch_norm) for _ in places]
    shards = [_windows(96, seed, *place) for seed, place in enumerate(places)]
    trainers = [LocalTrainer(flat, *shard, SETTINGS) for flat, shard in zip(flats, shards, strict=True)]
    parameters = flats[0].values().copy()
    for round_id in range(1, 9):
        deltas = [model_delta(parameters, trainer.train_round(parameters, round_id).values) for trainer in trainers]
        parameters = parameters - np.mean(deltas, axis=0, dtype=np.float32)
    right = []
    for seed, (flat, place) in enumerate(zip(flats, places, strict=True)):
        flat.load(parameters)
        right.append(evaluate(flat.module, *_windows(96, 10 + seed, *place), 4).accuracy)
    return min(right)


def test_devices_whose_sensors_differ_learn_what_one_batch_norm_cannot() -> None:
    assert _mesh("own") > _mesh("shared") + 0.1


def test_a_model_without_a_batch_norm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training.batch_norm = own: Linear has no batch norm"):
        own_names(nn.Linear(2, 2), "own")
    assert own_names(nn.BatchNorm1d(2), "own") == {"weight", "bias", "running_mean", "running_var"}
