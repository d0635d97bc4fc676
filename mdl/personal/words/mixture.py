"""An extension that the paper has not: the network's suggestions together with counts of what a person wrote.

Both are restricted to words that begin as typed, brought to a sum of 1 there, and mixed. The network knows what people
write after such words and characters; counts know at once, without a step of learning, what this person repeats.
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
from mdl.personal.words.text import LONGEST_WORD, UNKNOWN, Ids, Text

# How much counts weigh: neither is trusted more, without a text to tune it on.
COUNTS_WEIGHT = 0.5


def mix(logits: Scores, counts: Scores, begun: Ids, weight: float = COUNTS_WEIGHT) -> Scores:
    """Scores of the classes `begun`, in their order. logits, counts: (classes,), of the network and of `Ngrams`.

    Where one of the two knows none of these words, the other one decides.
    """
    exponents = np.exp(logits[begun] - logits[begun].max(initial=-np.inf)) if len(begun) else np.zeros(0)
    shares = exponents / exponents.sum() if len(begun) else exponents
    known = counts[begun]
    total = float(known.sum())
    mixed = (1 - weight) * shares + weight * known / total if total else shares
    return np.asarray(mixed, np.float32)


def evaluate_mixture(
    model: NextWordModel, ngrams: Ngrams, text: Text, alphabet: Alphabet, weight: float = COUNTS_WEIGHT, top: int = 3
) -> float:
    """Top-k efficiency, only words that begin as typed; the same words and rules as `evaluate_next_word`."""
    ranks: NDArray[np.int32] = np.full((len(text), LONGEST_WORD + 1), NEVER, np.int32)
    classes, starts = text.classes, text.starts
    begins = starts[np.searchsorted(starts, np.arange(len(text)), side="right") - 1]
    counted: dict[int, Scores] = {}
    for words, sample, typed, logits, targets in iterate_scores(model, cut_pieces(text)):
        counted.clear()
        for row in np.flatnonzero(targets != UNKNOWN):
            word, spent = int(words[sample[row]]), int(typed[row])
            if word not in counted:
                start = max(int(begins[word]), word - ngrams.order + 1)
                counted[word] = ngrams.scores(tuple(classes[start:word].tolist()))
            begun = alphabet.begun(text.spelled[text.forms[word]][:spent])
            place = np.flatnonzero(begun == targets[row])
            mixed = mix(logits[row], counted[word], begun, weight)
            # `rank_of` leaves the first one out, where `<unk>` stands elsewhere.
            ranks[word, spent] = rank_of(np.concatenate([[-1], mixed]).astype(np.float32), 1 + int(place[0]))
    lengths = text.lengths[text.forms]
    return efficiency(lengths, characters_needed(ranks, lengths, top))
