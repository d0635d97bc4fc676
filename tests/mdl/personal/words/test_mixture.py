"""The extension: the network and a person's counts together."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.personal.words.efficiency import Alphabet, evaluate_next_word
from mdl.personal.words.mixture import RecentWords, evaluate_mixture, mix
from mdl.personal.words.ngrams import count_ngrams, evaluate_ngrams
from mdl.personal.words.text import UNKNOWN, encode
from tests.mdl.personal.words.examples import invent, invented_text, small_model


def test_each_is_shares_of_the_words_that_begin_as_typed() -> None:
    network, counts = np.array([0.1, 0.1, 0.3], np.float32), np.array([0.06, 0.02, 0], np.float32)
    none = np.zeros(3, np.float32)
    np.testing.assert_allclose(mix(network, (counts, 0.5)), [0.475, 0.225, 0.3], rtol=1e-5)
    np.testing.assert_allclose(mix(network, (counts, 0)), [0.2, 0.2, 0.6], rtol=1e-5)
    np.testing.assert_allclose(mix(network, (none, 0.9)), [0.2, 0.2, 0.6], rtol=1e-5)
    np.testing.assert_allclose(mix(network, (counts, 0.3), (none, 0.2)), [0.365, 0.215, 0.42], rtol=1e-5)
    assert len(mix(network[:0], (counts[:0], 0.5))) == 0


def test_a_word_that_came_lately_counts_most_and_fades() -> None:
    recent = RecentWords(4)
    for number in (1, 2, UNKNOWN, 2):
        recent.add(number)
    assert recent.counts[2] > recent.counts[1] > recent.counts[UNKNOWN] == 0
    for _ in range(300):
        recent.add(UNKNOWN)
    assert recent.counts[2] == pytest.approx((1 + 0.5 ** (2 / 300)) / 2, rel=1e-3)


def test_words_of_the_text_before_are_suggested_again() -> None:
    table, _ = invented_text(words=60)
    word = next(word for word in reversed(table.words) if len(word) > 3)
    text, alphabet, model = encode([[word, word]] * 20, table), Alphabet(table), small_model(table, seed=4)
    ngrams = count_ngrams(encode(invent(40, seed=2), table), table.classes)
    without, found = (evaluate_mixture(model, ngrams, text, alphabet, (0.0, share), 1) for share in (0.0, 0.9))
    # A character where it begins its sentence, none behind itself, from its second time on.
    assert found >= 1 - (20 + 2 * len(word)) / (40 * len(word)) > without


@pytest.mark.parametrize(("weight", "alone"), [(0.0, "network"), (1.0, "counts")])
def test_at_its_ends_it_is_the_network_or_the_counts(weight: float, alone: str) -> None:
    table, _ = invented_text(words=60)
    text, alphabet, model = encode(invent(15, seed=3, longest=12), table), Alphabet(table), small_model(table, seed=4)
    # A text that has every word, so that counts are never silent.
    ngrams = count_ngrams(encode([*invent(40, seed=2), list(table.words)], table), table.classes)
    found = evaluate_mixture(model, ngrams, text, alphabet, (weight, 0.0))
    expected = {
        "network": evaluate_next_word(model, text, 3, alphabet).filtered,
        "counts": evaluate_ngrams(ngrams, text, alphabet)[1],
    }
    # Equal scores stand by number in one, by the alphabet in the other: of counts, a word more or less.
    assert found == pytest.approx(expected[alone], abs=1e-9 if alone == "network" else 0.02)
