"""An extension of the paper: the network's suggestions together with counts of a person's words.

Three sources judge the words that begin as typed, each with shares that sum to 1, and are mixed. The network knows
people's words after such words and characters; n-grams know this person's repetitions; recent words count at once,
without a step of learning. A source that knows none of these words leaves its share to the network.
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

# Weights of n-grams and recent words, tuned on two authors that nothing is judged on; 0.2 to 0.35, and 0.1 to 0.2, did
# equally well there.
COUNTS_WEIGHT, RECENT_WEIGHT = 0.3, 0.15
# A word's count halves after so many words: 100 to 1,000 did equally well.
_HALF_LIFE_WORDS = 300


class RecentWords:
    """Decaying counts of recent classes. counts: float32 (classes,)."""

    def __init__(self, classes: int) -> None:
        self.counts: Scores = np.zeros(classes, np.float32)

    def add(self, number: int) -> None:
        """Count a typed class; `<unk>` does not count."""
        self.counts *= 0.5 ** (1 / _HALF_LIFE_WORDS)
        if number != UNKNOWN:
            self.counts[number] += 1


def mix(network: Scores, *others: tuple[Scores, float]) -> Scores:
    """Return mixed shares of some classes. network: (n,), the network's. others: (n,) counts, and their weight."""
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
    """Return top-k efficiency, only words that begin as typed; the same words and rules as `evaluate_next_word`.

    weights: of the n-grams, and of the text's words typed so far.
    """
    ranks: NDArray[np.int32] = np.full((len(text), LONGEST_WORD + 1), NEVER, np.int32)
    classes, starts = text.classes, text.starts
    begins = starts[np.searchsorted(starts, np.arange(len(text)), side="right") - 1]
    recent, typed_words = RecentWords(ngrams.classes), 0
    for words, sample, typed, logits, targets in iterate_scores(model, cut_pieces(text)):
        at, counted = words[sample], (-1, recent.counts)
        order = np.argsort(at, kind="stable")  # in the order of typing
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
            # `rank_of` leaves the first one out, since `<unk>` stands there elsewhere.
            place = np.flatnonzero(begun == targets[row])
            ranks[word, spent] = rank_of(np.concatenate([[-1], mixed]).astype(np.float32), 1 + int(place[0]))
    lengths = text.lengths[text.forms]
    return efficiency(lengths, characters_needed(ranks, lengths, top))


def _shares(counts: Scores) -> Scores | None:
    total = float(counts.sum())
    return counts / np.float32(total) if total else None
