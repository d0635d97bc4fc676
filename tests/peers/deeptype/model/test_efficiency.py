"""3.2: R(x) and top-k efficiency, by hand-made cases, and the fast way against the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mdl.peers.deeptype.model.efficiency import (
    NEVER,
    Alphabet,
    characters_needed,
    efficiency,
    evaluate_next_word,
    rank_among,
    rank_of,
)
from mdl.peers.deeptype.model.next_word import NextWordModel, State
from mdl.peers.deeptype.model.text import UNKNOWN, Speller, TokenTable, encode
from tests.peers.deeptype.model.examples import invent, invented_text, needed_by, small_model

LISTS = {
    "": ["the", "a", "of"],
    "p": ["priority", "paramount", "precious"],
    "pr": ["priority", "precious", "priceless"],
}


def _suggest(prefix: str) -> Sequence[str]:
    return LISTS.get(prefix, [])


def test_3_2_the_example_of_the_paper() -> None:
    assert needed_by(_suggest, "priceless", 3) == 2


@pytest.mark.parametrize(
    ("word", "top", "needed"),
    [
        ("the", 3, 0),  # suggested before a character
        ("of", 2, 2),  # beyond the first two, and never again: typed whole
        ("precious", 3, 1),
        ("precious", 2, 2),
        ("other", 3, 5),  # never suggested
        ("p", 3, 1),  # no list of a whole word is needed
    ],
)
def test_r_of_x_is_the_fewest_characters_after_which_it_is_listed(word: str, top: int, needed: int) -> None:
    assert needed_by(_suggest, word, top) == needed


def test_efficiency_is_the_share_of_characters_saved() -> None:
    # the: 3 of 3 saved; priceless: 7 of 9; other: 0 of 5.
    assert efficiency([3, 9, 5], [0, 2, 5]) == pytest.approx(10 / 17)
    assert efficiency([4, 4], [4, 4]) == 0  # a keyboard without suggestions
    assert efficiency([], []) == 0


def test_the_ranks_of_a_word_give_its_r() -> None:
    ranks = np.array([[5, 3, 2, 0], [NEVER, 0, 0, 0], [9, 9, 9, 9], [0, 9, 9, 9], [9, 9, 9, 0]], np.int32)
    lengths = np.array([4, 4, 3, 4, 2], np.int64)
    assert characters_needed(ranks, lengths, 3).tolist() == [2, 1, 3, 0, 2]


def test_equal_scores_stand_by_number_and_unknown_never_stands() -> None:
    scores = np.array([9, 1, 5, 5, 7], np.float32)
    assert [rank_of(scores, target) for target in range(5)] == [NEVER, 3, 1, 2, 0]
    assert rank_among(scores, 3, np.array([1, 2, 3])) == 1
    assert rank_among(scores, 2, np.array([3, 2])) == 0


class _Suggester:
    """The same lists the slow way: history and characters are read anew for each."""

    def __init__(self, model: NextWordModel, table: TokenTable, history: list[str], filtered: bool) -> None:
        self._model, self._table, self._filtered = model, table, filtered
        speller = Speller(table)
        self._history = [speller.word_id(word) for word in history]
        self._spell = speller.character_ids

    def __call__(self, prefix: str) -> list[str]:
        tokens = self._history + self._spell(prefix)
        if not tokens:
            return []
        state: State | None = None
        with torch.no_grad():
            features, state = self._model.read(torch.tensor([tokens]), state)
            scores = self._model.output(features[0, -1]).tolist()
        ranked = sorted(range(1, self._table.classes), key=lambda number: (-scores[number], number))
        words = [self._table.word(number) for number in ranked]
        return [word for word in words if word.startswith(prefix)] if self._filtered else words


@pytest.mark.parametrize("filtered", [False, True])
def test_the_fast_evaluation_is_the_definition(filtered: bool) -> None:
    sentences = invent(15, seed=3, longest=8)  # short ones: one piece a sentence
    table, _ = invented_text(words=30)
    text, model = encode(sentences, table), small_model(table, seed=4)
    lengths, needed = [], []
    for sentence in sentences:
        for place, word in enumerate(sentence):
            suggest = _Suggester(model, table, sentence[:place], filtered)
            lengths.append(len(word))
            needed.append(needed_by(suggest, word, 3))
    found = evaluate_next_word(model, text, 3, Alphabet(table))
    expected = efficiency(lengths, needed)
    assert 0 < expected < 1
    assert (found.filtered if filtered else found.efficiency) == pytest.approx(expected)
    assert found.words == len(lengths)
    assert found.characters == sum(lengths)
    assert found.unknown == pytest.approx(np.mean([Speller(table).word_id(w) == UNKNOWN for s in sentences for w in s]))


def test_without_an_alphabet_there_is_no_filtered_figure_and_a_text_may_be_empty() -> None:
    table, text = invented_text()
    model = small_model(table)
    assert math.isnan(evaluate_next_word(model, text).filtered)
    assert evaluate_next_word(model, text.first(0)).words == 0


def test_perplexity_is_of_words_before_a_character() -> None:
    """A model that finds all words alike is as perplexed as there are classes."""
    table, text = invented_text()
    model = small_model(table)
    torch.nn.init.zeros_(model.output.weight)  # type: ignore[arg-type]
    torch.nn.init.zeros_(model.output.bias)  # type: ignore[arg-type]
    assert evaluate_next_word(model, text).perplexity == pytest.approx(table.classes, rel=1e-5)


def test_an_alphabet_finds_the_words_that_begin_as_typed() -> None:
    table = TokenTable(("be", "by", "b", "a", "bet", "b'z"), "abety'z")
    alphabet = Alphabet(table)

    def begin(typed: str) -> set[str]:
        return {table.word(number) for number in alphabet.begun(typed).tolist()}

    assert begin("") == set(table.words)
    assert begin("b") == {"be", "by", "b", "bet", "b'z"}
    assert begin("be") == {"be", "bet"}
    assert begin("bet") == {"bet"}
    assert begin("bets") == begin("x") == begin("\u1234") == set()


def test_words_that_begin_alike_are_found_as_far_as_enough_do() -> None:
    alphabet = Alphabet(TokenTable(("tea", "ox", "team", "tell", "yew"), "a"))
    assert alphabet.alike("teach", 2).tolist() == [1, 3]
    assert alphabet.alike("teach", 3).tolist() == [1, 3, 4]
    assert sorted(alphabet.alike("teach", 4).tolist()) == [1, 2, 3, 4, 5]
    assert sorted(alphabet.alike("teach", 9).tolist()) == [1, 2, 3, 4, 5]
