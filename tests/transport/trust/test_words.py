"""Words that are read out: never mistaken for each other, drawn evenly, and typed as people type."""

from __future__ import annotations

import pytest

from mdl.errors import ConfigError
from mdl.transport.trust.keys import COUNT, WORDS, draw_words, parse_words


def test_the_list_has_512_short_words_with_beginnings_of_their_own() -> None:
    assert len(WORDS) == 512
    assert len({word[:3] for word in WORDS}) == len(WORDS)
    assert all(4 <= len(word) <= 6 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_each_word_is_drawn_by_itself_from_all_of_them() -> None:
    numbers = iter([0, 511, 7])
    asked = []

    def below(most: int) -> int:
        asked.append(most)
        return next(numbers)

    assert draw_words(below) == f"{WORDS[0]} {WORDS[511]} {WORDS[7]}"
    assert asked == [512] * COUNT


def test_the_system_draws_others_each_time() -> None:
    assert len({draw_words() for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "typed", ["maple otter violin", " Maple  OTTER violin ", "maple-otter-violin", "map ott vio", "maple,otter, viol"]
)
def test_words_are_known_however_they_are_typed(typed: str) -> None:
    assert parse_words(typed) == "maple otter violin"


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("", "0 words: an invitation has 3"),
        ("maple otter", "2 words"),
        ("maple otter violin violin", "4 words"),
        ("maple otter vi", "'vi' is in no invitation"),
        ("maple otter violas", "'violas' is in no invitation; is it 'violin'"),
        ("maple otter qqq\x1b", r"'qqq\\x1b' is in no invitation: a typo"),
    ],
)
def test_what_is_no_invitation_is_named(typed: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_words(typed)
