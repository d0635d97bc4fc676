"""Small texts and models that several tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, build_next_word
from mdl.peers.deeptype.model.text import Text, TokenTable, build_table, encode

SYLLABLES = ("ba", "be", "bi", "ka", "ke", "ki", "ma", "me", "mi", "to", "tu", "ra")


def invent(sentences: int, seed: int, words: int = 60, longest: int = 40) -> list[list[str]]:
    """Sentences of an invented language, in which the next word depends on the last one."""
    language = np.random.default_rng(99)
    lexicon = sorted({"".join(language.choice(SYLLABLES, size=language.integers(1, 5))) for _ in range(words)})
    follows = language.integers(0, len(lexicon), (len(lexicon), 3))
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(sentences):
        at, sentence = int(generator.integers(len(lexicon))), []
        for _ in range(int(generator.integers(1, longest))):
            sentence.append(lexicon[at])
            at = int(follows[at, generator.integers(3)])
        made.append(sentence)
    return made


def invented_text(sentences: int = 30, seed: int = 1, words: int = 40) -> tuple[TokenTable, Text]:
    """A table that lacks some of the words, and a text of it."""
    made = invent(sentences, seed)
    table = build_table(made, words)
    return table, encode(made, table)


def small_model(table: TokenTable, hidden: int = 12, rank: int = 0, seed: int = 0) -> NextWordModel:
    return build_next_word(NextWordSize(table.classes, table.size, hidden, rank=rank), seed)


def needed_by(suggest: Callable[[str], Sequence[str]], word: str, top: int) -> int:
    """Return R(x) by its definition. suggest: the list after these characters, best first."""
    lists = (suggest(word[:typed])[:top] for typed in range(len(word)))
    return next((typed for typed, shown in enumerate(lists) if word in shown), len(word))
