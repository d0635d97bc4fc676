"""Counts of one to three words (DeepType 3.2, Fig. 1b), with or without the typed characters as a filter.

Scores back off as in "stupid backoff" (Brants et al. 2007): the share of a word among the followers of the same words,
or 0.4 times its score with one word less. Without the filter such a model does not read characters: it suggests the
same at each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mdl.personal.words.efficiency import (
    NEVER,
    Alphabet,
    Scores,
    characters_needed,
    efficiency,
    rank_among,
    rank_of,
)
from mdl.personal.words.text import LONGEST_WORD, UNKNOWN, Ids, Text

_BACKOFF = 0.4


@dataclass(frozen=True)
class Ngrams:
    """The seen runs of words of each length from 1 to `order`, as sorted keys, and their counts.

    A key is the words' classes as digits of a number to the base `classes`. counts: float64, users may weigh more.
    """

    classes: int
    keys: tuple[Ids, ...]
    counts: tuple[NDArray[np.float64], ...]

    @property
    def order(self) -> int:
        return len(self.keys)

    def merged(self, other: Ngrams, weight: float = 1.0) -> Ngrams:
        """Return both together; the other's counts weigh `weight` times. They have the same table and order."""
        pairs = zip(zip(self.keys, self.counts, strict=True), zip(other.keys, other.counts, strict=True), strict=True)
        sums = [_sum(np.concatenate([a, b]), np.concatenate([m, n * weight])) for (a, m), (b, n) in pairs]
        return Ngrams(self.classes, tuple(keys for keys, _ in sums), tuple(counts for _, counts in sums))

    def up_to(self, order: int) -> Ngrams:
        """Return the shorter runs only."""
        return Ngrams(self.classes, self.keys[:order], self.counts[:order])

    def followers(self, history: tuple[int, ...]) -> tuple[Ids, NDArray[np.float64]]:
        """Return the classes that came after these words, and the count of each."""
        keys, start = self.keys[len(history)], 0
        for word in history:
            start = (start + word) * self.classes
        low, high = np.searchsorted(keys, [start, start + self.classes])
        return keys[low:high] - start, self.counts[len(history)][low:high]

    def scores(self, history: tuple[int, ...]) -> Scores:
        """Return each word's score after this history, float32 (classes,); at most its last `order` - 1 words count."""
        result = np.zeros(self.classes, np.float32)
        longest = min(self.order - 1, len(history))
        for used in range(longest + 1):
            classes, counts = self.followers(history[len(history) - used :])
            if len(classes):
                result *= _BACKOFF
                result[classes] = counts / counts.sum()
        return result


def count_ngrams(text: Text, classes: int, order: int = 3) -> Ngrams:
    """Count runs within sentences; runs with `<unk>` as their last word teach nothing and are left out."""
    words, sentence = text.classes, np.repeat(np.arange(len(text.starts) - 1), np.diff(text.starts))
    found = []
    for length in range(1, order + 1):
        keys = np.zeros(max(0, len(words) - length + 1), np.int64)
        for at in range(length):
            keys = keys * classes + words[at : at + len(keys)]
        inside = sentence[: len(keys)] == sentence[length - 1 :]
        keys = keys[inside & (keys % classes != UNKNOWN)]
        found.append(_sum(keys, np.ones(len(keys))))
    return Ngrams(classes, tuple(keys for keys, _ in found), tuple(counts for _, counts in found))


def evaluate_ngrams(ngrams: Ngrams, text: Text, alphabet: Alphabet, top: int = 3) -> tuple[float, float]:
    """Return top-k efficiency without and with the character filter; words and rules as in `evaluate_next_word`."""
    plain = np.full((len(text), LONGEST_WORD + 1), NEVER, np.int32)
    filtered = np.full_like(plain, NEVER)
    classes = text.classes
    for start, stop in pairwise(text.starts.tolist()):
        for word in range(start, stop):
            target, form = int(classes[word]), text.forms[word]
            if target == UNKNOWN:
                continue
            scores = ngrams.scores(tuple(classes[max(start, word - ngrams.order + 1) : word].tolist()))
            # Before the first word nothing is suggested until a character is typed; after it the list stays.
            first = 0 if word > start else 1
            plain[word, first] = rank_of(scores, target)
            for typed in range(first, min(int(text.lengths[form]), LONGEST_WORD + 1)):
                filtered[word, typed] = rank_among(scores, target, alphabet.begun(text.spelled[form][:typed]))
                if filtered[word, typed] < top:
                    break
    lengths = text.lengths[text.forms]
    return tuple(efficiency(lengths, characters_needed(ranks, lengths, top)) for ranks in (plain, filtered))  # type: ignore[return-value]


def _sum(keys: Ids, counts: NDArray[np.float64]) -> tuple[Ids, NDArray[np.float64]]:
    unique, place = np.unique(keys, return_inverse=True)
    return unique, np.bincount(place, counts, minlength=len(unique)).astype(np.float64)
