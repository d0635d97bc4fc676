"""Words and characters as tokens of one table (DeepType 2), and text as numbers of that table.

A word is a run of letters with apostrophes inside, in lower case; digits, links and @names are not words. Sentences end
at . ! ? and at the end of a line. Class 0 is `<unk>`, all words that the table lacks; the other words follow, and then
the characters. So classes of the output are the first rows of the embedding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]

UNKNOWN = 0
UNKNOWN_WORD = "<unk>"
# Characters fed of a word: one in ten thousand words of written English is longer, most of them "aaaaaah".
LONGEST_WORD = 20
# The paper has about a hundred characters; alphabets of one language have fewer.
MOST_CHARACTERS = 128
# Ten times the paper's table; a file with more is none of ours.
MOST_WORDS = 1 << 18
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?…\r\n]+")
_NOT_TYPED = re.compile(r"(?:https?://|www\.|@)\S+")
_APOSTROPHES = str.maketrans("’‘ʼ`", "''''")

Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


def split_words(line: str) -> Iterator[list[str]]:
    """Yield the sentences of a text, as lists of words; none is empty."""
    line = _NOT_TYPED.sub(" ", line.translate(_APOSTROPHES).lower())
    for sentence in _SENTENCE_END.split(line):
        if words := _WORD.findall(sentence):
            yield words


class TokenTable(msgspec.Struct, frozen=True):
    """The rows of tokens. words: without `<unk>`, the most frequent first. characters: each once."""

    words: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MOST_WORDS)]
    characters: Annotated[str, msgspec.Meta(max_length=MOST_CHARACTERS)]

    @property
    def classes(self) -> int:
        """The number of output classes: the words and `<unk>`."""
        return len(self.words) + 1

    @property
    def size(self) -> int:
        """The number of rows of the embedding: classes, characters, and one for any other character."""
        return self.classes + len(self.characters) + 1

    def word(self, class_id: int) -> str:
        return self.words[class_id - 1] if class_id else UNKNOWN_WORD


class Speller:
    """Looks words and characters up in one table."""

    def __init__(self, table: TokenTable) -> None:
        self.table = table
        self._words = {word: number for number, word in enumerate(table.words, 1)}
        self._characters = {letter: number for number, letter in enumerate(table.characters, table.classes)}

    def word_id(self, word: str) -> int:
        return self._words.get(word, UNKNOWN)

    def character_ids(self, word: str) -> list[int]:
        """Return the rows of the first LONGEST_WORD characters."""
        other = self.table.size - 1
        return [self._characters.get(letter, other) for letter in word[:LONGEST_WORD]]


@dataclass(frozen=True)
class Text:
    """Running words as numbers; each distinct word is spelled once.

    forms: int64 (n,), the distinct word of each running one. starts: (sentences + 1,), the first word of each sentence.
    Fields of distinct words: spelled; class_ids (F,); characters (F, LONGEST_WORD), 0 beyond their end; fed (F,), the
    number of characters fed; lengths (F,), in characters.
    """

    forms: Ids
    starts: Ids
    spelled: tuple[str, ...]
    class_ids: Ids
    characters: Ids
    fed: Ids
    lengths: Ids

    def __len__(self) -> int:
        return len(self.forms)

    def first(self, words: int) -> Text:
        """Return the first sentences, with at most so many words."""
        return self.between(0, words)

    def between(self, first: int, last: int) -> Text:
        """Return the sentences that begin and end between these two running words."""
        low = int(np.searchsorted(self.starts, first))
        high = max(low, int(np.searchsorted(self.starts, last, side="right")) - 1)
        starts = self.starts[low : high + 1]
        return replace(self, forms=self.forms[starts[0] : starts[-1]], starts=starts - starts[0])

    @property
    def classes(self) -> Ids:
        """The class of each running word, int64 (n,)."""
        return self.class_ids[self.forms]


def build_table(sentences: Iterable[Sequence[str]], words: int, counts: Counter[str] | None = None) -> TokenTable:
    """Build a table of the most frequent words, `<unk>` counted too, and all characters (DeepType 2: 20,000 words).

    counts: of the words, if they are counted already. Equally frequent words are sorted.
    """
    counts = counts or Counter(word for sentence in sentences for word in sentence)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    common = sorted(letters, key=lambda letter: (-letters[letter], letter))[:MOST_CHARACTERS]
    return TokenTable(tuple(ranked[: words - 1]), "".join(sorted(common)))


def encode(sentences: Iterable[Sequence[str]], table: TokenTable) -> Text:
    """Encode sentences as numbers of a table; their order stays."""
    speller, known = Speller(table), dict[str, int]()
    forms: list[int] = []
    starts = [0]
    for sentence in sentences:
        forms += [known.setdefault(word, len(known)) for word in sentence]
        starts.append(len(forms))
    characters = np.zeros((len(known), LONGEST_WORD), np.int64)
    for row, word in enumerate(known):
        ids = speller.character_ids(word)
        characters[row, : len(ids)] = ids
    lengths = np.array([len(word) for word in known], np.int64)
    class_ids = np.array([speller.word_id(word) for word in known], np.int64)
    fed = np.minimum(lengths, LONGEST_WORD)
    arrays = np.array(forms, np.int64), np.array(starts, np.int64)
    return Text(*arrays, tuple(known), class_ids, characters, fed, lengths)
