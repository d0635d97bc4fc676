"""Colla's dual distillation, against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from mdl.errors import ConfigError, DataError
from mdl.learning.models import soft_cross_entropy
from mdl.peers.colla.model.classroom import PLACES_PRESETS
from mdl.peers.colla.model.distillation import (
    DistillSettings,
    Examples,
    client_loss,
    keep_best,
    locate_classes,
    pad_classes,
    pick_classes,
    predict_probabilities,
    soften,
    train_student,
)

HALF = DistillSettings(label_weight=0.5)


def _log(*p: float) -> Tensor:
    return torch.tensor([p]).log()


def test_equation_2_is_the_cross_entropy_of_teacher_and_student() -> None:
    loss = soft_cross_entropy(_log(0.5, 0.25, 0.25), torch.tensor([[0.5, 0.5, 0.0]]))
    assert loss.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))


def test_equation_3_lambda_weighs_the_hard_label() -> None:
    logits, y, teacher = _log(0.5, 0.25, 0.25), torch.tensor([1]), torch.tensor([[1.0, 0.0, 0.0]])
    settings = DistillSettings(label_weight=0.75)
    assert client_loss(logits, y, teacher, settings).item() == pytest.approx(0.75 * math.log(4) + 0.25 * math.log(2))


def test_4_2_lambda_is_a_half_on_both_sides() -> None:
    assert DistillSettings().label_weight == 0.5
    for preset in PLACES_PRESETS.values():
        assert preset.client.label_weight == preset.teaching.cloud_update.label_weight == 0.5


def test_without_a_teacher_equation_3_is_plain_cross_entropy() -> None:
    assert client_loss(_log(0.5, 0.5), torch.tensor([0]), None, HALF).item() == pytest.approx(math.log(2))


def test_a_temperature_softens_both_sides_and_keeps_the_gradients_size() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    assert soften(logits, 2.0)[0, 0].item() == pytest.approx(math.e / (math.e + 1))
    loss = soft_cross_entropy(logits, torch.tensor([[1.0, 0.0]]), 2.0)
    assert loss.item() == pytest.approx(4 * math.log(1 + math.exp(-1)))


def test_the_gradient_is_student_less_teacher_and_reaches_no_teacher() -> None:
    logits = torch.tensor([[0.3, -0.2, 0.1]], requires_grad=True)
    raw = torch.tensor([[1.0, 0.0, 2.0]], requires_grad=True)
    soft_cross_entropy(logits, torch.softmax(raw, 1)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.allclose(logits.grad, (torch.softmax(logits, 1) - torch.softmax(raw, 1)).detach(), atol=1e-6)
    assert raw.grad is None


def test_the_teacher_is_picked_and_renormalised_for_the_clients_classes() -> None:
    teacher, classes = torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([10, 20, 30, 40])
    picked = pick_classes(teacher, classes, torch.tensor([40, 20]))
    assert torch.allclose(picked, torch.tensor([[2 / 3, 1 / 3]]))


def test_a_class_the_teacher_does_not_know_gets_nothing() -> None:
    picked = pick_classes(torch.tensor([[0.25, 0.75]]), torch.tensor([1, 2]), torch.tensor([7, 2, 1]))
    assert torch.allclose(picked, torch.tensor([[0.0, 0.75, 0.25]]))


def test_where_the_teacher_gives_the_clients_classes_nothing_it_teaches_nothing() -> None:
    picked = pick_classes(torch.tensor([[0.0, 1.0]]), torch.tensor([1, 2]), torch.tensor([1, 5]))
    logits = torch.zeros(1, 2, requires_grad=True)
    soft_cross_entropy(logits, picked).backward()  # type: ignore[no-untyped-call]
    assert picked.tolist() == [[0.0, 0.0]]
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0.0, 0.0]]


def test_a_client_is_padded_with_zeros_and_not_renormalised() -> None:
    padded = pad_classes(torch.tensor([[0.6, 0.4]]), torch.tensor([30, 99]), torch.tensor([10, 20, 30]))
    assert torch.allclose(padded, torch.tensor([[0.0, 0.0, 0.6]]))


def test_padding_and_picking_back_gives_the_client_again() -> None:
    client, cloud = torch.tensor([4, 0, 2]), torch.arange(6)
    probabilities = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0]])
    assert torch.allclose(pick_classes(pad_classes(probabilities, client, cloud), cloud, client), probabilities)


def test_class_numbers_become_positions_and_unknown_ones_minus_one() -> None:
    assert locate_classes(torch.tensor([5, 8, 3]), torch.tensor([3, 5])).tolist() == [1, -1, 0]


def test_only_the_best_client_models_teach() -> None:
    assert keep_best([0.1, 0.9, 0.5, 0.9], 2) == [1, 3]
    assert keep_best([0.1, 0.9, 0.5, 0.4], 0.7) == [1, 2, 3]
    assert keep_best([0.1, 0.2], 70) == [0, 1]
    assert keep_best([0.5, 0.5, 0.5], 0.01) == [0]


@pytest.mark.parametrize("keep", [0, -1, 1.5, 0.0])
def test_keeping_nothing_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError, match="keep is"):
        keep_best([1.0], keep)


@pytest.mark.parametrize("key", ["label_weight", "temperature", "learning_rate", "batch_size", "epochs", "patience"])
def test_a_setting_out_of_range_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"distill.{key} is -1"):
        DistillSettings(**{key: -1})


def _examples(count: int, seed: int) -> Examples:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return Examples(x, (x[:, 0] > 0).long())


def _linear() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(2, 2)


def test_a_student_learns_its_teacher_where_labels_say_nothing() -> None:
    train = _examples(64, 0)
    teacher = nn.functional.one_hot(train.y, 2).float()
    student = _linear()
    settings = DistillSettings(label_weight=0.0, learning_rate=0.1, epochs=20, patience=0)
    wrong_labels = Examples(train.x, 1 - train.y, teacher)
    train_student(student, wrong_labels, None, settings, torch.Generator().manual_seed(0))
    assert (predict_probabilities(student, train.x).argmax(1) == train.y).float().mean() > 0.9


def test_training_stops_early_and_keeps_the_best_epoch_of_its_own() -> None:
    """The start is none of them: an update that validation likes less than what was before stands all the same."""
    train, student = _examples(64, 0), _linear()
    opposite = Examples(train.x, 1 - train.y)
    settings = DistillSettings(learning_rate=0.1, epochs=50, patience=3)
    with torch.no_grad():
        student.weight.copy_(torch.tensor([[3.0, 0.0], [-3.0, 0.0]]))
        before = student.weight.clone()
    done = train_student(student, train, opposite, settings, torch.Generator().manual_seed(0))
    assert (done.epochs, done.best_epoch) == (4, 1)
    assert list(done.losses) == sorted(done.losses)
    assert not torch.equal(student.weight, before)


def test_4_2_epochs_are_judged_by_the_loss_that_is_trained_on() -> None:
    """Who listens to a teacher alone gets better at what the teacher says, however wrong the labels find that."""
    train, held = _examples(64, 0), _examples(64, 1)
    told, judged = (Examples(one.x, 1 - one.y, nn.functional.one_hot(one.y, 2).float()) for one in (train, held))
    settings = DistillSettings(label_weight=0.0, learning_rate=0.02, epochs=20, patience=3)
    student = _linear()
    done = train_student(student, told, judged, settings, torch.Generator().manual_seed(0))
    assert done.best_epoch == 20
    loss = client_loss(student(held.x).detach(), judged.y, judged.teacher, settings)
    assert done.losses[-1] == pytest.approx(float(loss))
    assert (predict_probabilities(student, held.x).argmax(1) == held.y).float().mean() > 0.9


def test_only_what_requires_a_gradient_moves_and_the_seed_decides_how() -> None:
    frozen, again = _linear(), _linear()
    bias = frozen.bias.detach().clone()
    for model in (frozen, again):
        model.bias.requires_grad_(False)
        state = torch.get_rng_state()
        train_student(
            model, _examples(20, 1), None, DistillSettings(epochs=2, patience=0), torch.Generator().manual_seed(3)
        )
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(frozen.bias, bias)
    assert torch.equal(frozen.weight, again.weight)
    assert not torch.equal(frozen.weight, _linear().weight)


def test_a_loss_that_is_not_finite_stops_with_a_reason() -> None:
    broken = Examples(torch.full((4, 2), math.inf), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="learning_rate"):
        train_student(_linear(), broken, None, HALF, torch.Generator().manual_seed(0))
