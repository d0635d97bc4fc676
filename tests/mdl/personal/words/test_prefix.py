"""Samples that share their history, computed once: the same loss and the same gradients as each by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl.personal.words.pieces import collate, collate_pieces, cut_pieces, list_samples
from mdl.personal.words.prefix import count_once, mean_loss, sample_rows, shared_rows
from tests.mdl.personal.words.examples import invented_text, small_model


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
