"""The savings by typing suggestions (DeepType 3.2): R(x), top-k efficiency, and perplexity.

R(x) is the smallest number of typed characters after which x is among the first k suggestions; len(x) if never.
Efficiency is the share of characters that need not be typed. `<unk>` is never suggested, and nothing is suggested
before the first character of a sentence's first word.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mdl.peers.deeptype.model.next_word import NextWordModel, shared_rows
from mdl.peers.deeptype.model.text import (
    LONGEST_WORD,
    UNKNOWN,
    Ids,
    Pieces,
    Text,
    TokenTable,
    cut_pieces,
    iterate_pieces,
)

Scores: TypeAlias = NDArray[np.float32]

# A rank beyond any list: of `<unk>`, or without a suggestion.
NEVER = np.iinfo(np.int32).max
# Words of a batch: their scores take 5 rows a word, of 80 KB each.
_BATCH_WORDS = 128


class SuggestionScore(msgspec.Struct, frozen=True):
    """efficiency: of the first k suggestions; filtered: if only words that begin as typed are suggested.

    perplexity: of the next word before a character of it is typed. words, characters: of the text; saved: characters.
    unknown: share of words that are not in the table.
    """

    efficiency: float
    filtered: float
    perplexity: float
    words: int
    characters: int
    saved: int
    unknown: float


def efficiency(lengths: Sequence[int] | Ids, typed: Sequence[int] | Ids) -> float:
    """Return sum(len(x) - R(x)) / sum(len(x)); 0 for no words."""
    total = int(np.sum(lengths))
    return float(total - np.sum(typed)) / total if total else 0.0


def characters_needed(ranks: NDArray[np.int32], lengths: Ids, top: int) -> Ids:
    """Return R(x) of each word. ranks: (n, steps), words before x after 0, 1, ... characters; NEVER if no list.

    lengths: (n,), the upper bound of R(x): x is then typed whole.
    """
    shown = ranks < top
    first = np.where(shown.any(axis=1), shown.argmax(axis=1), lengths)
    return np.minimum(first, lengths)


class Alphabet:
    """The words of a table in alphabetical order, so that words with one beginning stand together."""

    def __init__(self, table: TokenTable) -> None:
        ranked = sorted((word, number) for number, word in enumerate(table.words, 1))
        self._words = [word for word, _ in ranked]
        self._order = np.array([number for _, number in ranked], np.int64)

    def begun(self, typed: str) -> Ids:
        """Return the classes of all words that begin so."""
        # Behind these words stands their beginning with the last character of all.
        return self._order[bisect_left(self._words, typed) : bisect_left(self._words, typed + "\U0010ffff")]

    def alike(self, word: str, least: int) -> Ids:
        """Return the classes of words with its longest beginning that at least so many words share; else of all."""
        lists = (self.begun(word[:end]) for end in range(len(word), 0, -1))
        return next((found for found in lists if len(found) >= least), self.begun(""))


def rank_of(scores: Scores, target: int) -> int:
    """Count the classes before `target`: higher scores, and equal ones of smaller numbers; `<unk>` is left out."""
    own = scores[target]
    before = int((scores[1:] > own).sum()) + int((scores[1:target] == own).sum())
    return before if target != UNKNOWN else NEVER


def rank_among(scores: Scores, target: int, classes: Ids) -> int:
    """Count likewise among these classes alone."""
    own, others = scores[target], scores[classes]
    return int(((others > own) | ((others == own) & (classes < target))).sum()) if target != UNKNOWN else NEVER


def evaluate_next_word(
    model: NextWordModel, text: Text, top: int = 3, alphabet: Alphabet | None = None
) -> SuggestionScore:
    """Test a model on a text of its table, without learning. alphabet: of the table; without, `filtered` is NaN."""
    pieces, was_training = cut_pieces(text), model.training
    model.eval()
    plain, filtered, lost, predicted = _rank_all(model, pieces, alphabet)
    model.train(was_training)
    lengths = text.lengths[text.forms]
    needed = characters_needed(plain, lengths, top)
    share = efficiency(lengths, characters_needed(filtered, lengths, top)) if alphabet else math.nan
    return SuggestionScore(
        efficiency(lengths, needed), share, math.exp(lost / max(predicted, 1)), len(text), int(lengths.sum()),
        int((lengths - needed).sum()), float((text.classes == UNKNOWN).mean()) if len(text) else 0.0,
    )  # fmt: skip


def _rank_all(
    model: NextWordModel, pieces: Pieces, alphabet: Alphabet | None
) -> tuple[NDArray[np.int32], NDArray[np.int32], float, int]:
    """Return ranks (n, LONGEST_WORD + 1) without and with the filter, the loss of word steps in nats, their number."""
    plain = np.full((len(pieces.text), LONGEST_WORD + 1), NEVER, np.int32)
    filtered = np.full_like(plain, NEVER)
    lost, predicted = 0.0, 0
    for words, sample, typed, scores, targets in iterate_scores(model, pieces):
        log = torch.from_numpy(scores[typed == 0]), torch.from_numpy(targets[typed == 0])
        lost += float(nn.functional.cross_entropy(*log, reduction="sum"))
        predicted += len(log[1])
        known = targets != UNKNOWN
        at, spent, goal = words[sample[known]], typed[known], targets[known]
        plain[at, spent] = _rank_rows(scores[known], goal)
        if alphabet:
            filtered[at, spent] = _rank_filtered(scores[known], goal, alphabet, pieces.text, at, spent)
    return plain, filtered, lost, predicted


def iterate_scores(model: NextWordModel, pieces: Pieces) -> Iterator[tuple[Ids, Ids, Ids, Scores, Ids]]:
    """Yield batch by batch: running words of the samples; for each row its sample, characters typed, logits and target.

    Rows after the last character of a word are left out: nothing can be saved there.
    """
    for words, batch in iterate_pieces(pieces, _BATCH_WORDS):
        with torch.no_grad():
            rows = shared_rows(model, batch)
            lengths = torch.from_numpy(pieces.text.lengths[batch.sample_form])
            keep = (rows.sample >= 0) & (rows.typed < lengths[rows.sample])
            scores = model.output(rows.features[keep]).numpy()
        yield words, rows.sample[keep].numpy(), rows.typed[keep].numpy(), scores, rows.targets[keep].numpy()


def _rank_rows(scores: Scores, targets: Ids) -> NDArray[np.int32]:
    own = scores[np.arange(len(targets)), targets][:, None]
    before = (scores[:, 1:] > own).sum(axis=1)
    # Equal scores are rare in a trained model; the smaller number stands first.
    equal = (scores[:, 1:] == own).sum(axis=1) > 1
    for row in np.flatnonzero(equal):
        before[row] = rank_of(scores[row], int(targets[row]))
    return np.asarray(before, np.int32)


def _rank_filtered(
    scores: Scores, targets: Ids, alphabet: Alphabet, text: Text, words: Ids, typed: Ids
) -> NDArray[np.int32]:
    ranks = np.empty(len(targets), np.int32)
    for row, (form, spent) in enumerate(zip(text.forms[words].tolist(), typed.tolist(), strict=True)):
        ranks[row] = rank_among(scores[row], int(targets[row]), alphabet.begun(text.spelled[form][:spent]))
    return ranks
