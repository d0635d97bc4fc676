"""Samples that share their history, computed once, and the softmax over a part of the classes.

The first has the same loss and the same gradients as each by itself; the second the same loss if these are all, and
right in the mean if not.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl.peers.deeptype.model.next_word import (
    NextWordModel,
    StepRows,
    count_once,
    draw_classes,
    mean_loss,
    sample_rows,
    sampled_loss,
    shared_rows,
)
from mdl.peers.deeptype.model.personalise import TextTask
from mdl.peers.deeptype.model.study import Study, StudySettings, tune_all
from mdl.peers.deeptype.model.text import collate, collate_pieces, cut_pieces, list_samples
from tests.peers.deeptype.model.examples import invented_text, small_model


@pytest.mark.parametrize("rank", [0, 5])
def test_2_the_shared_prefix_gives_the_naive_loss_and_gradients(rank: int) -> None:
    table, text = invented_text(12)
    pieces = cut_pieces(text)
    rows = np.arange(len(pieces))
    samples = list_samples(pieces)
    model = small_model(table, rank=rank).double()
    naive = mean_loss(model.output, sample_rows(model, collate(samples, np.arange(len(text)), 30)))
    naive.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    shared = mean_loss(model.output, shared_rows(model, collate_pieces(pieces, rows)))
    shared.backward()
    assert abs(float(shared.detach() - naive.detach())) < 1e-12
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(found) == len(expected) == len(list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_in_float32_they_are_equal_to_a_millionth() -> None:
    table, text = invented_text(12)
    pieces, model = cut_pieces(text), small_model(table)
    naive = mean_loss(model.output, sample_rows(model, collate(list_samples(pieces), np.arange(len(text)), 30)))
    shared = mean_loss(model.output, shared_rows(model, collate_pieces(pieces, np.arange(len(pieces)))))
    assert float(shared.detach()) == pytest.approx(float(naive.detach()), abs=1e-6)


def test_a_word_step_that_counted_once_would_be_another_loss() -> None:
    """The weights have teeth: without them the losses differ by far more than rounding."""
    table, text = invented_text(12)
    pieces, model = cut_pieces(text), small_model(table).double()
    rows = shared_rows(model, collate_pieces(pieces, np.arange(len(pieces))))
    once = torch.nn.functional.cross_entropy(model.output(rows.features), rows.targets)
    assert abs(float((once - mean_loss(model.output, rows)).detach())) > 1e-6


def test_steps_that_count_once_are_those_at_which_somebody_may_take_a_suggestion() -> None:
    table, text = invented_text(12)
    pieces, model = cut_pieces(text), small_model(table).double()
    assert len(pieces) > 12  # some have history that is no sample of theirs
    naive = count_once(sample_rows(model, collate(list_samples(pieces), np.arange(len(text)), 30)))
    batch = collate_pieces(pieces, np.arange(len(pieces)))
    shared = count_once(shared_rows(model, batch))
    assert len(naive.targets) == len(shared.targets) == int(batch.fed.sum()) + len(text) - len(text.starts) + 1
    one, other = (mean_loss(model.output, rows) for rows in (naive, shared))
    assert abs(float((one - other).detach())) < 1e-12
    spelled = batch.words[batch.sample_piece, batch.sample_place]
    for rows in (naive, shared):
        assert torch.equal(rows.targets, spelled[rows.sample])


def test_each_sample_has_a_row_before_its_first_character_and_one_for_each() -> None:
    table, text = invented_text(8)
    pieces, model = cut_pieces(text), small_model(table)
    batch = collate_pieces(pieces, np.arange(len(pieces)))
    rows = shared_rows(model, batch)
    own = rows.sample >= 0
    begins_sentence = (batch.sample_place == 0).sum()
    assert int((rows.typed[own] == 0).sum()) == len(text) - begins_sentence
    assert int((rows.typed > 0).sum()) == int(batch.fed.sum())
    spelled = batch.words[batch.sample_piece, batch.sample_place]
    assert torch.equal(rows.targets[own], spelled[rows.sample[own]])
    # 13.4 steps a word become 4.8 in the paper's data; here the sentences are longer.
    assert len(rows.targets) < list_samples(pieces).steps.sum() / 2


def _rows(rank: int = 0) -> tuple[NextWordModel, StepRows]:
    table, text = invented_text(12)
    model, pieces = small_model(table, rank=rank).double(), cut_pieces(text)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # an untrained model gives all classes about the same
    return model, shared_rows(model, collate_pieces(pieces, np.arange(len(pieces))))


@pytest.mark.parametrize("rank", [0, 5])
def test_over_all_classes_it_is_the_loss_and_its_gradient(rank: int) -> None:
    model, rows = _rows(rank)
    whole = mean_loss(model.output, rows)
    expected = torch.autograd.grad(whole, list(model.parameters()), retain_graph=True)
    found = sampled_loss(model.output, rows, *draw_classes(40, 40, np.random.default_rng(1)))
    gradients = torch.autograd.grad(found, list(model.parameters()))
    assert float(found.detach()) == pytest.approx(float(whole.detach()), abs=1e-12)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_is_drawn_stands_for_the_rest() -> None:
    model, rows = _rows()
    whole = float(mean_loss(model.output, rows).detach())
    generator = np.random.default_rng(2)
    drawn = [float(sampled_loss(model.output, rows, *draw_classes(40, 24, generator)).detach()) for _ in range(200)]
    # The logarithm of a sum that is right in the mean is a little low in the mean.
    assert np.mean(drawn) == pytest.approx(whole, rel=0.02)
    assert min(drawn) < whole < max(drawn)


def test_a_study_that_was_interrupted_draws_the_same() -> None:
    table, text = invented_text(20)
    ended = []
    for stops in (False, True):
        model = small_model(table)
        study = Study(tune_all(model), TextTask(model, text, "shared", 32, 15), StudySettings(2, 32, "adam", 0.01))
        if stops:
            for _ in range(3):
                study.step()
            state = {name: tensor.clone() for name, tensor in study.state().items()}
            progress, model = study.progress, small_model(table)
            study = Study(tune_all(model), TextTask(model, text, "shared", 32, 15), StudySettings(2, 32, "adam", 0.01))
            study.restore(state, progress)
        study.run()
        ended.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ended, strict=True))
