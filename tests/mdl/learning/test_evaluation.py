import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from mdl.bounds import MAX_LOSS
from mdl.errors import DataError, RemoteProtocolError
from mdl.learning.evaluation import count_labels, count_predictions, evaluate, predict_logits, sum_errors
from mdl.learning.models import build_model
from mdl.protocol.counts import MAX_SUM, Evaluation, is_confusion_of, no_evaluation


def _windows(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((count, 3, 32), np.float32), generator.integers(0, 4, count)


def test_counts_accuracy_and_f1_follow_their_definitions() -> None:
    result = count_predictions(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), 4, 2.0)
    confusion = ((1, 1, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0))
    assert result == Evaluation((1, 1, 0, 0), (0, 2, 0, 0), (1, 0, 1, 0), 2.0, 4, confusion)
    assert result.accuracy == 0.5
    # Class 3 occurs neither as truth nor as prediction, so it is no part of the mean.
    assert result.macro_f1 == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    assert result.loss == 0.5


def test_the_sum_over_devices_equals_one_evaluation_of_all_windows() -> None:
    module, (x, y) = build_model("lenet", 3, 32, 4, seed=0), _windows(700)
    whole = evaluate(module, x, y, 4)
    parts = sum((evaluate(module, x[k::3], y[k::3], 4) for k in range(3)), no_evaluation(4))
    assert (parts.true_positive, parts.false_positive, parts.n) == (whole.true_positive, whole.false_positive, 700)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.confusion == whole.confusion
    assert is_confusion_of(parts)


def test_beyond_32_classes_no_device_tells_which_it_took_for_which() -> None:
    labels = np.arange(33)
    assert len(count_predictions(labels[:32], labels[:32], 32, 0.0).confusion) == 32
    assert count_predictions(labels, labels, 33, 0.0).confusion == ()


def test_a_confusion_that_is_not_told_changes_no_sum() -> None:
    told = count_predictions(np.array([0, 1]), np.array([1, 1]), 2, 0.0)
    old = Evaluation((1, 0), (0, 0), (0, 0), 0.0, 1)
    assert (told + old).confusion == (old + told).confusion == told.confusion == ((0, 1), (0, 1))
    with pytest.raises(RemoteProtocolError, match="confusions of 2 and 1 classes"):
        told + Evaluation((1, 0), (0, 0), (0, 0), 0.0, 1, ((1,),))


def test_the_loss_is_torchs_cross_entropy() -> None:
    module, (x, y) = build_model("lenet", 3, 32, 4, seed=0).eval(), _windows(40)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).item()
    assert evaluate(module, x, y, 4).loss == pytest.approx(expected, rel=1e-6)


def test_evaluating_moves_no_statistic_and_restores_every_mode() -> None:
    module, (x, y) = build_model("lenet", 3, 32, 4, seed=0), _windows(5)
    module[0].eval()
    modes = [part.training for part in module.modules()]
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    evaluate(module, x, y, 4)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())


def test_no_windows_give_zeros() -> None:
    x, y = _windows(0)
    result = evaluate(build_model("lenet", 3, 32, 4, seed=0), x, y, 4)
    assert result == no_evaluation(4)
    assert (result.accuracy, result.macro_f1, result.loss) == (0, 0, 0)


def test_labels_outside_the_classes_are_refused() -> None:
    x, _ = _windows(2)
    with pytest.raises(DataError, match=r"test labels 1\.\.4 where the model has classes 0\.\.3"):
        evaluate(build_model("lenet", 3, 32, 4, seed=0), x, np.array([1, 4]), 4)


def test_a_model_with_other_classes_is_refused() -> None:
    x, y = _windows(5)
    with pytest.raises(DataError, match="the model tells 5 classes apart where the data has 4"):
        evaluate(build_model("lenet", 3, 32, 5, seed=0), x, y, 4)


def test_a_peers_evaluation_over_other_classes_is_its_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="4 and 3 classes"):
        no_evaluation(4) + no_evaluation(3)


def _numbers(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(3)
    truth = (dice.normal(size=(count, 2)) * (1, 30) + (0, 500)).astype(np.float32)
    return truth, (truth + dice.normal(size=truth.shape) * (0.5, 10)).astype(np.float32)


def test_errors_of_numbers_add_up_to_those_of_all_windows() -> None:
    truth, found = _numbers()
    parts = sum_errors(truth[:13], found[:13], 1.0) + sum_errors(truth[13:], found[13:], 2.0)
    away = found.astype(np.float64) - truth
    for column, fit in enumerate(parts.fits):
        spread = np.square(truth[:, column].astype(np.float64) - truth[:, column].mean(dtype=np.float64)).sum()
        assert fit.rmse == pytest.approx(np.sqrt(np.square(away[:, column]).mean()))
        assert fit.mae == pytest.approx(np.abs(away[:, column]).mean())
        assert fit.r2 == pytest.approx(1 - np.square(away[:, column]).sum() / spread)
    assert parts.score == pytest.approx(np.mean([fit.r2 for fit in parts.fits]))
    assert (parts.n, parts.loss_sum) == (40, 3.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(parts), type=Evaluation) == parts


def test_numbers_that_are_no_numbers_can_still_be_told() -> None:
    truth, found = _numbers()
    found[0], found[1, 0] = np.nan, np.inf
    counts = sum_errors(truth, found, 0.0)
    assert counts.errors[0].squared == MAX_SUM
    assert counts.score == -MAX_LOSS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(counts), type=Evaluation) == counts
    constant = sum_errors(np.full((5, 1), 7.3, np.float32), np.full((5, 1), 8.3, np.float32), 0.0)
    assert (constant.fits[0].r2, constant.score) == (None, None)
    assert constant.fits[0].rmse == pytest.approx(1.0)
    assert sum_errors(truth[:0], found[:0], 0.0).fits == ()


def test_labels_are_counted_one_by_one_and_all_together() -> None:
    truth = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0]], np.uint8)
    found = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], bool)
    counts = count_labels(truth, found, 0.5)
    assert (counts.true_positive, counts.false_positive, counts.false_negative) == ((2, 1, 0), (0, 0, 1), (0, 0, 1))
    assert (counts.exact, counts.labelling.exact) == (1, 1 / 3)
    assert counts.score == counts.labelling.micro_f1 == pytest.approx(2 * 3 / (2 * 3 + 2))
    assert counts.macro_f1 == pytest.approx(2 / 3)
    assert (counts + counts).labelling == counts.labelling
    assert (counts + counts).exact == 2


def test_what_is_of_other_targets_does_not_add_up() -> None:
    truth, found = _numbers()
    with pytest.raises(RemoteProtocolError, match="evaluations of numbers and labels"):
        _ = sum_errors(truth, found, 0.0) + count_labels(np.ones((2, 2), np.uint8), np.ones((2, 2), bool), 0.0)


def test_a_model_of_labels_or_numbers_is_tested_as_it_is_trained() -> None:
    truth, _ = _numbers()
    x = np.random.default_rng(0).normal(size=(40, 2, 3)).astype(np.float32)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 2))
    told = evaluate(module, x, truth, 2)
    outputs = predict_logits(module, x)
    assert (told.targets, told.loss) == ("numbers", pytest.approx(np.square(outputs - truth).mean(), rel=1e-5))
    flags = (truth > truth.mean(axis=0)).astype(np.uint8)
    told = evaluate(module, x, flags, 2)
    assert (told.targets, told.exact) == ("labels", int(((outputs > 0) == flags).all(axis=1).sum()))
    assert told.loss == pytest.approx(float(np.log1p(np.exp(outputs * (1 - 2.0 * flags))).mean()), rel=1e-5)
    with pytest.raises(DataError, match="gives 2 numbers where the data has 1"):
        evaluate(module, x, truth[:, :1], 1)
