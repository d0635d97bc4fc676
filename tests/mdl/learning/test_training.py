from functools import reduce

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from mdl.errors import ConfigError, DataError, MdlError
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import (
    LocalTrainer,
    TrainingSettings,
    check_trained,
    draw_batches,
    find_device,
    model_delta,
    schedule_rate,
)
from mdl.protocol.delta import Contributor, ModelDelta, apply_delta, pair_aggregate
from mdl.protocol.grid import room_for
from mdl.protocol.vector_work import global_delta, hold_own

PLAIN = TrainingSettings(optimizer="sgd", momentum=0.0, learning_rate=0.1, schedule="constant", batch_size=16)


def _windows(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 4, count)
    x = generator.standard_normal((count, 3, 32), np.float32)
    x[np.arange(count), y % 3] += 2 * y[:, None].astype(np.float32)
    return x, y


def _dense(seed: int = 0) -> FlatModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(96, 20), nn.Tanh(), nn.Linear(20, 4)))


def _lenet(settings: TrainingSettings, count: int = 60) -> LocalTrainer:
    return LocalTrainer(FlatModel(build_model("lenet", 3, 32, 4, seed=0)), *_windows(count), settings)


def _delta(trainer: LocalTrainer, start: np.ndarray, peer: int) -> ModelDelta:
    trained = trainer.train_round(start, 1)
    return ModelDelta(model_delta(start, trained.values), 1.0, frozenset({Contributor(f"p{peer}", 1)}))


@pytest.mark.parametrize("peers", [2, 3, 5, 9])
def test_eq_1_one_step_on_n_peers_equals_one_machine_with_the_n_fold_batch(peers: int) -> None:
    x, y = _windows(16 * peers)
    start = _dense().values().copy()
    deltas = [_delta(LocalTrainer(_dense(), x[k::peers], y[k::peers], PLAIN), start, k) for k in range(peers)]
    sums = (hold_own(start, delta, room_for(float(peers))).sum for delta in deltas)
    mesh = apply_delta(start, global_delta(reduce(pair_aggregate, sums), start), eta=1.0)
    central = LocalTrainer(_dense(), x, y, msgspec.structs.replace(PLAIN, batch_size=16 * peers))
    alone = central.train_round(start, 1)
    assert alone.steps == 1
    assert np.abs(mesh - alone.values).max() < 1e-6
    assert np.abs(mesh - start).max() > 1e-3


def test_a_batch_as_large_as_the_shard_is_exactly_one_plain_sgd_step() -> None:
    x, y = _windows(16)
    flat, by_hand = _dense(), _dense().module
    result = LocalTrainer(flat, x, y, PLAIN).train_round(flat.values().copy(), 1)
    nn.functional.cross_entropy(by_hand(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    stepped = [parameter.detach() - 0.1 * parameter.grad for parameter in by_hand.parameters()]
    assert result.steps == 1
    assert np.allclose(result.values, np.concatenate([tensor.numpy().ravel() for tensor in stepped]), atol=1e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_proximal_term_steps_as_its_gradient_in_the_loss_does(optimizer: str) -> None:
    # Li et al. 2020, Eq. 2, by autograd: 12 steps with mu/2 ||w - w(t)||^2 added to the loss.
    x, y = _windows(96)
    settings = msgspec.structs.replace(PLAIN, optimizer=optimizer, learning_rate=0.02, batch_size=8, proximal=5.0)
    flat, other = _dense(), _dense()
    start = flat.values().copy()
    result = LocalTrainer(flat, x, y, settings).train_round(start, 1)
    anchor = [parameter.detach().clone() for parameter in other.module.parameters()]

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        far = sum(((p - a) ** 2).sum() for p, a in zip(other.module.parameters(), anchor, strict=True))
        return nn.functional.cross_entropy(logits, labels) + 2.5 * far

    by_hand = LocalTrainer(other, x, y, msgspec.structs.replace(settings, proximal=0.0), loss).train_round(start, 1)
    assert np.allclose(result.values, by_hand.values, atol=1e-6)
    assert result.loss < by_hand.loss  # what is told is the loss of the windows alone
    plain = LocalTrainer(_dense(), x, y, msgspec.structs.replace(settings, proximal=0.0)).train_round(start, 1)
    assert np.linalg.norm(result.values - start) < 0.7 * np.linalg.norm(plain.values - start)


def test_the_same_seed_gives_the_same_round_bit_for_bit() -> None:
    start = FlatModel(build_model("lenet", 3, 32, 4, seed=0)).values().copy()
    one, again = (_lenet(TrainingSettings(seed=3)).train_round(start, 1).values for _ in range(2))
    assert (one == again).all()
    assert (one != _lenet(TrainingSettings(seed=4)).train_round(start, 1).values).any()


def test_a_restart_in_the_middle_trains_the_same_batches_again() -> None:
    # Without momentum nothing lives between rounds, so the restarted device's round is the same bit for bit.
    settings = msgspec.structs.replace(PLAIN, rounds_per_epoch=3, seed=5)
    steady = _lenet(settings)
    parameters = steady.model.values().copy()
    for round_id in (1, 2, 3, 4):
        before, parameters = parameters, steady.train_round(parameters, round_id).values.copy()
    assert (_lenet(settings).train_round(before, 4).values == parameters).all()


def test_training_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    trainer = _lenet(TrainingSettings())
    trainer.train_round(trainer.model.values().copy(), 1)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_loss_falls_over_rounds(optimizer: str) -> None:
    trainer = _lenet(TrainingSettings(optimizer=optimizer, learning_rate=0.01))
    losses = []
    for round_id in range(1, 6):
        result = trainer.train_round(trainer.model.values().copy(), round_id)
        losses.append(result.loss)
        assert (result.samples, result.steps) == (60, 2)
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(("count", "rounds", "batch"), [(100, 1, 32), (100, 3, 7), (5, 5, 1), (65, 2, 32), (33, 1, 32)])
def test_the_rounds_of_an_epoch_see_every_window_once(count: int, rounds: int, batch: int) -> None:
    settings = TrainingSettings(batch_size=batch, rounds_per_epoch=rounds)
    batches = [rows for round_id in range(1, rounds + 1) for rows in draw_batches(count, settings, round_id)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert max(map(len, batches)) <= batch
    assert draw_batches(count, settings, 1)[0].tolist() == batches[0].tolist()


def test_every_epoch_has_an_order_of_its_own() -> None:
    first, second = (draw_batches(100, TrainingSettings(), round_id)[0].tolist() for round_id in (1, 2))
    assert first != second


def test_the_cosine_falls_to_one_percent_and_stays_there() -> None:
    settings = TrainingSettings(learning_rate=1.0, planned_rounds=4)
    assert schedule_rate(settings, 0) == 1
    assert schedule_rate(settings, 2) == pytest.approx(0.5)
    assert schedule_rate(settings, 4) == schedule_rate(settings, 40) == 0.01
    assert schedule_rate(PLAIN, 4) == PLAIN.learning_rate


def test_a_run_without_an_end_keeps_its_learning_rate() -> None:
    settings = TrainingSettings(learning_rate=0.5)
    assert [schedule_rate(settings, done) for done in (0, 5, 5000)] == [0.5, 0.5, 0.5]


def test_a_loss_of_ones_own_is_used() -> None:
    def loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (logits**2).mean() + 7

    flat = _dense()
    assert LocalTrainer(flat, *_windows(20), PLAIN, loss).train_round(flat.values().copy(), 1).loss > 7


def test_frozen_parameters_bring_a_delta_of_zero() -> None:
    flat = _dense()
    flat.module[1].requires_grad_(False)
    start = flat.values().copy()
    delta = model_delta(start, LocalTrainer(flat, *_windows(20), PLAIN).train_round(start, 1).values)
    assert np.abs(delta[: 97 * 20]).max() == 0
    assert np.abs(delta[97 * 20 :]).min() > 0


def test_a_window_that_is_not_finite_is_named() -> None:
    x, y = _windows(20)
    x[13, 1, 5] = np.nan
    flat = _dense()
    with pytest.raises(DataError, match=r"round 1: the training loss is nan, because window 13 of the shard"):
        LocalTrainer(flat, x, y, PLAIN).train_round(flat.values().copy(), 1)


def test_training_that_diverges_says_which_value_to_lower() -> None:
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(96, 4)))
    x, y = _windows(20)
    settings = msgspec.structs.replace(PLAIN, learning_rate=1000.0, batch_size=5)
    trainer = LocalTrainer(flat, np.float32(1e18) * x, y, settings)
    with pytest.raises(DataError, match=r"diverged, lower training\.learning_rate \(it is 1000\)"):
        trainer.train_round(flat.values().copy(), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e6])
def test_an_own_delta_that_would_poison_a_mean_is_a_training_that_diverged(value: float) -> None:
    with pytest.raises(MdlError, match=r"training diverged in round 3: .*; try a lower learning rate"):
        check_trained(np.array([1.0, value], np.float32), 3)
    check_trained(np.array([1.0, -1.0], np.float32), 3)


def test_a_label_beyond_the_models_classes_is_named() -> None:
    x, y = _windows(20)
    y[0] = 4
    flat = _dense()
    trainer = LocalTrainer(flat, x, y, msgspec.structs.replace(PLAIN, batch_size=20))
    with pytest.raises(DataError, match=r"label 4 in the shard, but the model has classes 0\.\.3"):
        trainer.train_round(flat.values().copy(), 1)


def test_a_shard_that_does_not_fit_is_refused() -> None:
    x, y = _windows(4)
    with pytest.raises(DataError, match="4 windows: too few for 5 rounds per epoch"):
        LocalTrainer(_dense(), x, y, TrainingSettings(rounds_per_epoch=5))
    with pytest.raises(DataError, match="0 windows"):
        LocalTrainer(_dense(), x[:0], y[:0], PLAIN)
    with pytest.raises(DataError, match="4 windows but 3 labels"):
        LocalTrainer(_dense(), x, y[:3], PLAIN)
    with pytest.raises(DataError, match="label -1"):
        LocalTrainer(_dense(), x, y - 5 + 4 - y, PLAIN)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0),
        ("rounds_per_epoch", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("label_smoothing", 1.0),
    ],
)
def test_settings_out_of_range_are_refused_by_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"training\.{key} is {value}: it must be"):
        TrainingSettings(**{key: value})


def test_a_fully_frozen_model_is_refused() -> None:
    flat = _dense()
    flat.module.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        LocalTrainer(flat, *_windows(20), PLAIN)


def test_two_devices_that_share_a_module_train_as_two_with_their_own() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((60, 3, 32), dtype=np.float32), np.arange(60) % 4
    settings = TrainingSettings(optimizer="sgd", batch_size=10)

    def train(models: list[FlatModel]) -> list[np.ndarray]:
        trainers = [LocalTrainer(model, x[start::2], y[start::2], settings) for start, model in enumerate(models)]
        first = models[0].values().copy()
        return [trainer.train_round(first, 1).values.copy() for trainer in trainers]

    shared = FlatModel(build_model("lenet", 3, 32, 4, 0))
    own = [FlatModel(build_model("lenet", 3, 32, 4, 0)) for _ in range(2)]
    for together, apart in zip(train([shared, shared]), train(own), strict=True):
        np.testing.assert_array_equal(together, apart)


def test_accumulated_batches_step_as_one_large_batch() -> None:
    results = []
    for size, accumulate in ((20, 1), (5, 4)):
        flat = _dense()
        settings = TrainingSettings(optimizer="sgd", batch_size=size, accumulate=accumulate, learning_rate=0.01)
        done = LocalTrainer(flat, *_windows(40), settings).train_round(flat.values().copy(), 1)
        results.append((done.steps, done.samples, done.values.copy()))
    assert results[0][:2] == results[1][:2] == (2, 40)
    np.testing.assert_allclose(results[0][2], results[1][2], atol=1e-5)


def test_bfloat16_forward_passes_learn_in_float32_parameters() -> None:
    settings = TrainingSettings(precision="bfloat16", learning_rate=0.01)
    flat, plain = _dense(), _dense()
    start = flat.values().copy()
    found = LocalTrainer(flat, *_windows(20), settings).train_round(start, 1)
    exact = LocalTrainer(plain, *_windows(20), TrainingSettings(learning_rate=0.01)).train_round(start, 1)
    assert found.values.dtype == np.float32
    assert 0 < abs(found.loss - exact.loss) < 0.05
    assert np.abs(found.values - start).max() > 0


def test_a_device_that_is_not_here_is_named() -> None:
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type in ("cpu", "cuda", "mps")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"training\.device is cuda: torch finds none here"):
            find_device("cuda")


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_training_goes_on_from_the_optimizers_state(kind: str) -> None:
    settings = TrainingSettings(optimizer=kind, learning_rate=0.01)
    flat = _dense()
    trainer = LocalTrainer(flat, *_windows(20), settings)
    first = trainer.train_round(flat.values().copy(), 1).values.copy()
    state = {name: part.clone() if isinstance(part, torch.Tensor) else part
             for name, part in trainer.optimizer.state_dict().items()}  # fmt: skip
    second = trainer.train_round(first, 2).values.copy()
    again = LocalTrainer(_dense(), *_windows(20), settings)
    again.optimizer.load_state_dict(state)
    np.testing.assert_array_equal(again.train_round(first, 2).values, second)
    without = LocalTrainer(_dense(), *_windows(20), settings)
    assert not np.array_equal(without.train_round(first, 2).values, second)


def test_the_state_of_another_optimizer_changes_nothing() -> None:
    sgd, adam = (LocalTrainer(_dense(), *_windows(20), TrainingSettings(optimizer=kind)) for kind in ("sgd", "adam"))
    with pytest.raises(ValueError, match="it has other parts"):
        sgd.optimizer.load_state_dict(adam.optimizer.state_dict())


def test_a_delta_may_take_the_memory_of_the_model_that_it_began_at() -> None:
    start, trained = np.array([3.0, 1.0], np.float32), np.array([1.0, 2.0], np.float32)
    apart = model_delta(start, trained)
    assert (apart.tolist(), start.tolist()) == ([2.0, -1.0], [3.0, 1.0])
    assert model_delta(start, trained, in_place=True) is start
    assert start.tolist() == [2.0, -1.0]
