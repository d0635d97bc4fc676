"""3.2, Fig. 1b: n-grams of one to three words, with or without a filter; the network and a person's counts together."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.peers.deeptype.model.efficiency import Alphabet, efficiency, evaluate_next_word
from mdl.peers.deeptype.model.keyboard import Ngrams, RecentWords, count_ngrams, evaluate_mixture, evaluate_ngrams, mix
from mdl.peers.deeptype.model.text import UNKNOWN, Speller, TokenTable, build_table, encode
from tests.peers.deeptype.model.examples import invent, invented_text, needed_by, small_model

SENTENCES = [["i", "like", "tea"], ["i", "like", "tea"], ["i", "like", "milk"], ["you", "like", "x"], ["i"]]
TABLE = TokenTable(("i", "like", "tea", "milk", "you"), "aeiklmoty")


def _counted(order: int = 3) -> Ngrams:
    return count_ngrams(encode(SENTENCES, TABLE), TABLE.classes, order)


def _score(ngrams: Ngrams, *words: str) -> float:
    speller = Speller(TABLE)
    history = tuple(speller.word_id(word) for word in words[:-1])
    return float(ngrams.scores(history)[speller.word_id(words[-1])])


def test_shares_of_what_followed_and_0_4_of_the_shorter_history() -> None:
    ngrams = _counted()
    assert _score(ngrams, "tea") == pytest.approx(2 / 12)  # 13 words, one of them unknown
    assert _score(ngrams, "like", "tea") == pytest.approx(2 / 3)
    assert _score(ngrams, "i", "like", "milk") == pytest.approx(1 / 3)
    assert _score(ngrams, "i", "like", "you") == pytest.approx(0.4 * 0.4 * 1 / 12)
    assert _score(ngrams, "milk", "tea") == pytest.approx(2 / 12)  # nothing ever followed milk
    assert _score(ngrams.up_to(1), "like", "tea") == pytest.approx(2 / 12)


def test_sentences_do_not_run_into_each_other_and_unknown_is_never_learned() -> None:
    ngrams, speller = _counted(), Speller(TABLE)
    assert ngrams.followers((speller.word_id("tea"),))[0].tolist() == []
    assert 0 not in ngrams.followers((speller.word_id("like"),))[0].tolist()
    assert len(count_ngrams(encode([["i"]], TABLE), TABLE.classes).keys[2]) == 0


def test_a_user_and_the_public_merge_by_weight() -> None:
    user = count_ngrams(encode([["i", "like", "you"]], TABLE), TABLE.classes)
    merged = _counted().merged(user, 3)
    assert _score(merged, "like", "you") == pytest.approx(3 / 6)
    assert _score(merged, "like", "tea") == pytest.approx(2 / 6)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_evaluation_is_the_definition(order: int) -> None:
    table = build_table(train := invent(40, seed=1), 40)
    sentences = invent(12, seed=2, longest=12)
    ngrams, text = count_ngrams(encode(train, table), table.classes, order), encode(sentences, table)
    plain, filtered = evaluate_ngrams(ngrams, text, Alphabet(table))
    expected: dict[bool, list[int]] = {False: [], True: []}
    lengths = [len(word) for sentence in sentences for word in sentence]
    speller = Speller(table)
    for sentence in sentences:
        for place, word in enumerate(sentence):
            scores = ngrams.scores(tuple(speller.word_id(w) for w in sentence[max(0, place - order + 1) : place]))
            ranked = [table.word(int(c)) for c in np.argsort(-scores, kind="stable") if c]
            for only, needed in expected.items():

                def suggest(prefix: str, only: bool = only, ranked: list[str] = ranked, at: int = place) -> list[str]:
                    if not prefix and not at:
                        return []
                    return [word for word in ranked if word.startswith(prefix)] if only else ranked

                needed.append(needed_by(suggest, word, 3))
    assert plain == pytest.approx(efficiency(lengths, expected[False]))
    assert filtered == pytest.approx(efficiency(lengths, expected[True]))
    assert plain < filtered < 1


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
