"""The Q-network: the same in torch and NumPy, whatever the order and number of devices; saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mdl.errors import DataError
from mdl.scheduler.policies.chain import Bools, Floats
from mdl.scheduler.policies.features import FEATURES, UNVARIED
from mdl.scheduler.policies.qnet_numpy import INVALID_Q, NumpyQ, Weights, draw_weights
from mdl.scheduler.training.qnet_torch import QNetwork, load_policy, save_policy
from mdl.scheduler.training.train import Adam, LabelJob, Labels, Passes, find_gradients, produce_labels


def _inputs(rows: int, count: int, seed: int = 0) -> tuple[Floats, Bools, Bools]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, count, len(FEATURES))).astype(np.float32)
    exists = rng.random((rows, count)) < 0.8
    exists[:, 0] = True
    features[:, :, FEATURES.index("may_pick")] = rng.random((rows, count)) < 0.6
    features *= exists[:, :, None]
    valid = np.concatenate([features[:, :, FEATURES.index("may_pick")] > 0, np.ones((rows, 1), dtype=bool)], axis=1)
    return features, exists, valid


def _weights(seed: int) -> Weights:
    """Those of a network that has learned something, be it nonsense: fresh ones value all picks alike."""
    rng = np.random.default_rng(seed)
    weights = draw_weights(rng)
    return {name: values + rng.normal(0, 0.1, values.shape).astype(np.float32) for name, values in weights.items()}


def _q(network: QNetwork, features: Floats, exists: Bools, valid: Bools) -> Floats:
    with torch.no_grad():
        q: Floats = network(*map(torch.from_numpy, (features, exists, valid))).numpy()
    return q


@pytest.mark.parametrize("count", [2, 9, 64])
def test_torch_and_numpy_give_the_same_values(count: int) -> None:
    network = QNetwork(weights=_weights(3))
    inputs = _inputs(8, count)
    assert np.allclose(_q(network, *inputs), network.plain()(*inputs), atol=1e-5)


@pytest.mark.parametrize("count", [2, 9, 64])
def test_one_chain_alone_has_the_values_it_has_among_others(count: int) -> None:
    q = NumpyQ(_weights(2))
    features, exists, valid = _inputs(6, count)
    exists[:] = True
    together = q(features, exists, valid)
    for row in range(6):
        alone = q(features[row : row + 1], exists[row : row + 1], valid[row : row + 1])
        assert np.allclose(alone[0], together[row], atol=1e-5)


def test_a_device_has_the_same_value_wherever_it_stands() -> None:
    features, exists, valid = _inputs(4, 9)
    order = np.random.default_rng(1).permutation(9)
    q = NumpyQ(_weights(0))
    there = q(features[:, order], exists[:, order], valid[:, [*order, 9]])
    assert np.allclose(q(features, exists, valid)[:, [*order, 9]], there, atol=1e-5)


def test_padding_changes_no_value() -> None:
    features, exists, valid = _inputs(4, 5)
    q = NumpyQ(_weights(0))
    wider = np.concatenate([features, np.zeros((4, 3, len(FEATURES)), np.float32)], axis=1)
    none = np.zeros((4, 3), dtype=bool)
    padded = q(
        wider, np.concatenate([exists, none], axis=1), np.concatenate([valid[:, :5], none, valid[:, 5:]], axis=1)
    )
    assert np.allclose(q(features, exists, valid), padded[:, [0, 1, 2, 3, 4, 8]], atol=1e-5)


def test_what_may_not_be_picked_is_masked() -> None:
    features, exists, valid = _inputs(4, 5)
    q = NumpyQ(_weights(0))(features, exists, valid)
    assert (q[~valid] == np.float32(INVALID_Q)).all()
    assert (q[valid] > -1e6).all()


def test_columns_that_training_never_varied_have_no_effect() -> None:
    features, exists, valid = _inputs(4, 5)
    weights = draw_weights(np.random.default_rng(0))
    weights["advantage.weight"][:] = 1.0
    q = NumpyQ(weights)
    changed = features.copy()
    for name in UNVARIED:
        changed[:, :, FEATURES.index(name)] = 5.0
    assert np.array_equal(q(features, exists, valid), q(changed, exists, valid))


def test_a_policy_is_saved_and_loaded_with_its_metadata(tmp_path: Path) -> None:
    network = QNetwork(seed=1)
    save_policy(tmp_path / "policy.safetensors", network, {"seed": 1, "command": "train"})
    loaded, metadata = load_policy(tmp_path / "policy.safetensors")
    assert metadata["command"] == "train"
    assert all(np.array_equal(values, loaded.weights()[name]) for name, values in network.weights().items())


def test_a_file_that_is_no_policy_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"nothing of that kind")
    with pytest.raises(DataError, match=r"policy\.safetensors: no policy file"):
        load_policy(path)


def test_a_policy_of_other_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(path, QNetwork(), {})
    monkeypatch.setattr("mdl.scheduler.policies.qnet_numpy.FEATURES", (*FEATURES, "another"))
    with pytest.raises(DataError, match="another observation"):
        load_policy(path)


def test_the_gradient_in_numpy_is_that_of_torch() -> None:
    weights = _weights(5)
    features, exists, valid = _inputs(32, 7)
    network, passes = QNetwork(weights=weights), Passes(weights)
    values = torch.tensor(np.random.default_rng(1).normal(size=valid.shape).astype(np.float32))
    q = network(*map(torch.from_numpy, (features, exists, valid)))
    torch.where(torch.from_numpy(valid), q * values, 0.0).sum().backward()  # type: ignore[no-untyped-call]
    found = passes.forward(features, exists)
    assert np.allclose(found[valid], q.detach().numpy()[valid], atol=1e-5)
    gradients = passes.backward(np.where(valid, values.numpy(), np.float32(0.0)))
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        assert np.allclose(gradients[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-4), name


def test_adam_in_numpy_takes_the_steps_of_torchs() -> None:
    weights = _weights(6)
    network = QNetwork(weights=weights)
    ours, theirs = Adam(weights), torch.optim.Adam(network.parameters(), lr=1e-3)
    rng = np.random.default_rng(2)
    for _ in range(3):
        gradients = {name: rng.normal(0, 0.3, each.shape).astype(np.float32) for name, each in weights.items()}
        for name, parameter in network.named_parameters():
            parameter.grad = torch.from_numpy(gradients[name].copy())
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        theirs.step()
        ours.step(gradients, 1e-3)
    for name, values in network.weights().items():
        assert np.allclose(weights[name], values, atol=1e-6), name


def test_the_loss_of_labels_is_what_its_gradient_descends() -> None:
    """Against finite differences of the loss that `mdl scheduler train` shows, with the state's value left out."""
    found = produce_labels(LabelJob(1, 0, 12, (3, 6)))
    weights = {name: values.astype(np.float64) for name, values in _weights(7).items()}
    gradients, _ = find_gradients(weights, found)  # type: ignore[arg-type]
    for name, index in (("advantage.weight", (0, 3)), ("encode1.bias", (5,)), ("state1.weight", (1, 2))):
        ends = []
        for step in (-1e-5, 1e-5):
            moved = {each: values.copy() for each, values in weights.items()}
            moved[name][index] += step
            ends.append(find_loss(moved, found))
        assert gradients[name][index] == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-3, abs=1e-6), name


def find_loss(weights: dict[str, npt.NDArray[np.float64]], found: Labels) -> float:
    """As the learner states it in words: squares of the advantages' errors, a hundredth of the state's value's."""
    tried = found.tried
    q = np.where(tried, Passes(weights).forward(found.features, found.exists), 0.0)  # type: ignore[arg-type]
    count = np.maximum(1, tried.sum(axis=1, keepdims=True))
    mean_q, mean = q.sum(axis=1, keepdims=True) / count, found.values.sum(axis=1, keepdims=True) / count
    error = np.where(tried, q - mean_q - np.clip(found.values - mean, -5.0, 5.0), 0.0)
    apart = np.abs(mean_q - mean)
    state = np.where(apart < 1.0, 0.5 * apart**2, apart - 0.5)
    return float(np.square(error).sum(axis=1).mean() + 0.01 * state.mean())
