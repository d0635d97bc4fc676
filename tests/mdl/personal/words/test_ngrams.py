"""3.2, Fig. 1b: n-grams of one to three words, with and without the typed characters as a filter."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.personal.words.efficiency import Alphabet, efficiency
from mdl.personal.words.ngrams import Ngrams, count_ngrams, evaluate_ngrams
from mdl.personal.words.text import Speller, TokenTable, build_table, encode
from tests.mdl.personal.words.examples import invent, needed_by

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
