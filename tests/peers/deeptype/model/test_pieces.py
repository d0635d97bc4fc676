"""2, 5.3: a sample for each word, targets at every step, masks, and how samples are batched."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from mdl.peers.deeptype.model.text import (
    BUCKETS,
    MOST_STEPS,
    OVERLAP,
    Speller,
    batch_pieces,
    build_table,
    collate,
    cut_pieces,
    draw_bucketed,
    draw_exact,
    draw_longest,
    encode,
    list_samples,
)
from tests.peers.deeptype.model.examples import invented_text


def _generator() -> np.random.Generator:
    return np.random.default_rng(5)


def test_2_the_example_of_the_paper() -> None:
    sentence = ["health", "is", "priceless"]
    table = build_table([sentence], 20)
    speller, samples = Speller(table), list_samples(cut_pieces(encode([sentence], table)))
    assert samples.steps.tolist() == [6, 3, 11]  # "is" has step size 3, "priceless" 11
    batch = collate(samples, np.array([1, 2]), 11)
    health, known_is, priceless = (speller.word_id(word) for word in sentence)
    assert batch.inputs[0].tolist() == [health, *speller.character_ids("is")] + [0] * 8
    assert batch.targets[0].tolist() == [known_is] * 3 + [0] * 8
    assert batch.mask.sum(dim=1).tolist() == [3, 11]
    assert batch.inputs[1].tolist() == [health, known_is, *speller.character_ids("priceless")]
    assert batch.targets[1].tolist() == [known_is] + [priceless] * 10


def test_every_word_is_one_sample_of_at_most_30_steps() -> None:
    _, text = invented_text()
    pieces = cut_pieces(text)
    samples = list_samples(pieces)
    assert samples.word.tolist() == list(range(len(text)))
    assert samples.steps.max() <= MOST_STEPS
    assert len(pieces) > len(text.starts)  # some sentences are longer than that


def test_a_long_sentence_is_cut_and_the_rest_keeps_some_history() -> None:
    sentence = ["ab"] * 40
    pieces = cut_pieces(encode([sentence], build_table([sentence], 5)))
    assert pieces.first.tolist() == [0, *pieces.stop[:-1].tolist()]
    assert (pieces.first - pieces.start).tolist() == [0] + [OVERLAP] * (len(pieces) - 1)


def test_5_3_exact_buckets_pad_nothing() -> None:
    _, text = invented_text()
    samples = list_samples(cut_pieces(text))
    batches = draw_exact(samples, 16, _generator())
    assert sorted(np.concatenate([rows for rows, _ in batches]).tolist()) == list(range(len(text)))
    for rows, length in batches:
        assert len(rows) <= 16
        assert bool(collate(samples, rows, length).mask.all())


def test_5_3_four_buckets_and_one_pad_to_their_ends() -> None:
    _, text = invented_text()
    samples = list_samples(cut_pieces(text))
    for buckets in (BUCKETS, (30,)):
        batches = draw_bucketed(samples, 16, _generator(), buckets)
        assert sum(len(rows) for rows, _ in batches) == len(text)
        assert {length for _, length in batches} == set(buckets)
        for low, high in pairwise((0, *buckets)):
            steps = [samples.steps[rows] for rows, length in batches if length == high]
            assert all(low < step <= high for part in steps for step in part)


def test_batches_of_any_lengths_are_padded_to_their_longest() -> None:
    _, text = invented_text()
    samples = list_samples(cut_pieces(text))
    batches = draw_longest(samples, 16, _generator())
    assert sum(len(rows) for rows, _ in batches) == len(text)
    for rows, length in batches:
        assert samples.steps[rows].max() == length


def test_the_same_seed_draws_the_same_batches() -> None:
    _, text = invented_text()
    samples = list_samples(cut_pieces(text))
    once, again = (draw_exact(samples, 16, _generator()) for _ in range(2))
    assert all(np.array_equal(a, b) and m == n for (a, m), (b, n) in zip(once, again, strict=True))


def test_batches_of_pieces_have_about_so_many_samples_and_all_pieces() -> None:
    _, text = invented_text()
    pieces = cut_pieces(text)
    for generator in (None, _generator()):
        batches = batch_pieces(pieces, 32, generator)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(pieces)))
        sizes = [int(pieces.samples[rows].sum()) for rows in batches]
        assert max(sizes) < 32 + MOST_STEPS
        assert np.mean(sizes) > 20
