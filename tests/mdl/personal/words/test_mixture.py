"""The extension: the network and a person's counts together."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.personal.words.efficiency import Alphabet, evaluate_next_word
from mdl.personal.words.mixture import evaluate_mixture, mix
from mdl.personal.words.ngrams import count_ngrams, evaluate_ngrams
from mdl.personal.words.text import encode
from tests.mdl.personal.words.examples import invent, invented_text, small_model


def test_both_are_shares_of_the_words_that_begin_as_typed() -> None:
    logits = np.log(np.array([0.5, 0.1, 0.3, 0.1], np.float32))
    counts = np.array([0, 0.02, 0, 0.06], np.float32)
    begun = np.array([3, 1, 2])
    np.testing.assert_allclose(mix(logits, counts, begun, 0.5), [0.475, 0.225, 0.3], rtol=1e-5)
    np.testing.assert_allclose(mix(logits, counts, begun, 0), [0.2, 0.2, 0.6], rtol=1e-5)
    np.testing.assert_allclose(mix(logits, np.zeros(4, np.float32), begun, 0.9), [0.2, 0.2, 0.6], rtol=1e-5)
    assert len(mix(logits, counts, np.zeros(0, np.int64))) == 0


@pytest.mark.parametrize(("weight", "alone"), [(0.0, "network"), (1.0, "counts")])
def test_at_its_ends_it_is_the_network_or_the_counts(weight: float, alone: str) -> None:
    table, _ = invented_text(words=60)
    text, alphabet, model = encode(invent(15, seed=3, longest=12), table), Alphabet(table), small_model(table, seed=4)
    # A text that has every word, so that counts are never silent.
    ngrams = count_ngrams(encode([*invent(40, seed=2), list(table.words)], table), table.classes)
    found = evaluate_mixture(model, ngrams, text, alphabet, weight)
    expected = {
        "network": evaluate_next_word(model, text, 3, alphabet).filtered,
        "counts": evaluate_ngrams(ngrams, text, alphabet)[1],
    }
    # Equal scores stand by number in one, by the alphabet in the other: of counts, a word more or less.
    assert found == pytest.approx(expected[alone], abs=1e-9 if alone == "network" else 0.02)
