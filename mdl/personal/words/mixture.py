"""An extension that the paper has not: the network's suggestions together with counts of what a person wrote.

Three judge the words that begin as typed, each with shares of a sum of 1 there, and are mixed: the network knows what
people write after such words and characters; n-grams what this person repeats; and the words that came lately are at
hand at once, without a step of learning. One that knows none of these words leaves its share to the network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdl.personal.words.efficiency import (
    NEVER,
    Alphabet,
    Scores,
    characters_needed,
    efficiency,
    iterate_scores,
    rank_of,
)
from mdl.personal.words.next_word import NextWordModel
from mdl.personal.words.ngrams import Ngrams
from mdl.personal.words.pieces import cut_pieces
from mdl.personal.words.text import LONGEST_WORD, UNKNOWN, Text

# How much n-grams and recent words weigh, from two authors that nothing is judged on; 0.2 to 0.35, and 0.1 to 0.2, were
# as good there.
COUNTS_WEIGHT, RECENT_WEIGHT = 0.3, 0.15
# After so many words one counts half: 100 to 1,000 were as good.
_HALF_LIFE_WORDS = 300


class RecentWords:
    """How often each class came lately. counts: float32 (classes,)."""

    def __init__(self, classes: int) -> None:
        self.counts: Scores = np.zeros(classes, np.float32)

    def add(self, number: int) -> None:
        """This class was typed; `<unk>` is none."""
        self.counts *= 0.5 ** (1 / _HALF_LIFE_WORDS)
        if number != UNKNOWN:
            self.counts[number] += 1


def mix(network: Scores, *others: tuple[Scores, float]) -> Scores:
    """Shares of some classes. network: (n,), theirs in the network. others: (n,) counts, and how much they weigh."""
    shares = _shares(network)
    if shares is None:
        return network
    mixed = (1 - sum(weight for _, weight in others)) * shares
    for counts, weight in others:
        known = _shares(counts)
        mixed += weight * (shares if known is None else known)
    return mixed


def evaluate_mixture(
    model: NextWordModel,
    ngrams: Ngrams,
    text: Text,
    alphabet: Alphabet,
    weights: tuple[float, float] = (COUNTS_WEIGHT, RECENT_WEIGHT),
    top: int = 3,
) -> float:
    """Top-k efficiency, only words that begin as typed; the same words and rules as `evaluate_next_word`.

    weights: of the n-grams, and of the words of the text that were typed before.
    """
    ranks: NDArray[np.int32] = np.full((len(text), LONGEST_WORD + 1), NEVER, np.int32)
    classes, starts = text.classes, text.starts
    begins = starts[np.searchsorted(starts, np.arange(len(text)), side="right") - 1]
    recent, typed_words = RecentWords(ngrams.classes), 0
    for words, sample, typed, logits, targets in iterate_scores(model, cut_pieces(text)):
        at, counted = words[sample], (-1, recent.counts)
        order = np.argsort(at, kind="stable")  # as they were typed
        for row in order[targets[order] != UNKNOWN]:
            word, spent = int(at[row]), int(typed[row])
            while typed_words < word:
                recent.add(int(classes[typed_words]))
                typed_words += 1
            if counted[0] != word:
                start = max(int(begins[word]), word - ngrams.order + 1)
                counted = word, ngrams.scores(tuple(classes[start:word].tolist()))
            begun = alphabet.begun(text.spelled[text.forms[word]][:spent])
            shares = np.exp(logits[row][begun] - logits[row][begun].max(initial=-np.inf))
            mixed = mix(shares, (counted[1][begun], weights[0]), (recent.counts[begun], weights[1]))
            # `rank_of` leaves the first one out, where `<unk>` stands elsewhere.
            place = np.flatnonzero(begun == targets[row])
            ranks[word, spent] = rank_of(np.concatenate([[-1], mixed]).astype(np.float32), 1 + int(place[0]))
    lengths = text.lengths[text.forms]
    return efficiency(lengths, characters_needed(ranks, lengths, top))


def _shares(counts: Scores) -> Scores | None:
    total = float(counts.sum())
    return counts / np.float32(total) if total else None
