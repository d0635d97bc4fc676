"""The softmax over a part of the classes: the same loss if these are all, and right in the mean if not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl.personal.output_layer import tune_all
from mdl.personal.study import Study, StudySettings
from mdl.personal.words.next_word import NextWordModel
from mdl.personal.words.pieces import collate_pieces, cut_pieces
from mdl.personal.words.prefix import Rows, mean_loss, shared_rows
from mdl.personal.words.sampled import draw_classes, sampled_loss
from mdl.personal.words.text_task import TextTask
from tests.mdl.personal.words.examples import invented_text, small_model


def _rows(rank: int = 0) -> tuple[NextWordModel, Rows]:
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
