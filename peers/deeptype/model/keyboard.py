"""A person's keyboard: suggestions after each character, online learning from each word, and counts of words.

With the filter, recent words count beside the network (`RecentWords`): no step of learning has reached them yet. The
state of the network after the words so far is kept, so that a character costs one step of it. A history as long as a
sample begins again with its last words, like a piece of a sentence.

N-grams count one to three words of a person (DeepType 3.2, Fig. 1b), with or without the typed characters as a filter.
Scores back off as in "stupid backoff" (Brants et al. 2007): the share of a word among the followers of the same words,
or 0.4 times its score with one word less. Without the filter such a model does not read characters: it suggests the
same at each of them.

The mixture is an extension of the paper. Three sources judge the words that begin as typed, each with shares that sum
to 1. The network knows people's words after such words and characters; n-grams know this person's repetitions; recent
words count at once, without a step of learning. A source that knows none of these words leaves its share to the
network.

Online training that reuses the inference (DeepType 5.5): a step after thirty words costs as much as after three.

The results of a suggestion are kept: the last layer's input features, and the probabilities it gave. Once the meant
word is known, the gradient of the last layer needs no forward pass: (p - onehot(target)) x features. Samples are
collected, 16 to a step.

Probabilities are those of the layer that gave them. A suggestion before a step that is learned after it has stale ones:
these are dropped, or computed again from their features, which no step of the last layer changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.errors import ConfigError
from mdl.peers.deeptype.model.compression import FactoredLinear
from mdl.peers.deeptype.model.efficiency import (
    NEVER,
    Alphabet,
    Scores,
    characters_needed,
    efficiency,
    iterate_scores,
    rank_among,
    rank_of,
)
from mdl.peers.deeptype.model.next_word import NextWordModel, State
from mdl.peers.deeptype.model.text import (
    LONGEST_WORD,
    MOST_STEPS,
    OVERLAP,
    UNKNOWN,
    Ids,
    Speller,
    Text,
    TokenTable,
    cut_pieces,
)

# 5.5: "a pre-defined batch size (16)".
STEP_SAMPLES = 16
# Suggestions kept of one sample: the first ones, since they can save most; they bound a step's time.
KEPT_SUGGESTIONS = 3


@dataclass(frozen=True)
class Inference:
    """One forward pass. features: (F,). probabilities: (classes,). version: of the layer that gave them."""

    features: Tensor
    probabilities: Tensor
    version: int


class OnlineLearner:
    """Learns the last layer of a model in place. layer: linear, or factored.

    learning_rate: of a step along the mean over its suggestions. samples: of a step. kept: suggestions of a sample.
    stale: treatment of inferences that are older than an update. steps: made so far; dropped: stale suggestions.
    """

    def __init__(
        self,
        layer: nn.Module,
        learning_rate: float,
        samples: int = STEP_SAMPLES,
        kept: int = KEPT_SUGGESTIONS,
        stale: Literal["recompute", "drop"] = "recompute",
    ) -> None:
        if not isinstance(layer, nn.Linear | FactoredLinear):
            raise ConfigError(f"a {type(layer).__name__} cannot learn online: only a linear last layer can")
        self.steps = self.dropped = 0
        self._layer = layer
        self._rate, self._samples, self._kept, self._stale = learning_rate, samples, kept, stale
        self._version = 0
        self._waiting: list[tuple[Inference, int]] = []
        self._collected = 0

    @torch.no_grad()
    def infer(self, features: Tensor) -> Inference:
        """Return the probabilities of all classes, (classes,), for features (F,), to suggest and perhaps to learn."""
        return Inference(features, torch.softmax(self._layer(features), dim=-1), self._version)

    def learn(self, suggestions: Sequence[Inference], target: int) -> bool:
        """Add a sample: its inferences, in order, and the class that was meant. Return True if a step was made."""
        self._waiting += [(inference, target) for inference in suggestions[: self._kept]]
        self._collected += 1
        if self._collected < self._samples:
            return False
        return self.flush()

    def flush(self) -> bool:
        """Take a step with the waiting samples; return False if there are none."""
        fresh = self._refresh()
        self._waiting, self._collected = [], 0
        if not fresh:
            return False
        features = torch.stack([inference.features for inference, _ in fresh])
        error = torch.stack([inference.probabilities for inference, _ in fresh])
        error[torch.arange(len(fresh)), torch.tensor([target for _, target in fresh])] -= 1
        self._step(features, error, self._rate / len(fresh))
        self._version += 1
        self.steps += 1
        return True

    def _refresh(self) -> list[tuple[Inference, int]]:
        stale = [pair for pair in self._waiting if pair[0].version != self._version]
        if stale and self._stale == "drop":
            self.dropped += len(stale)
            return [pair for pair in self._waiting if pair[0].version == self._version]
        return [
            pair if pair[0].version == self._version else (self.infer(pair[0].features), pair[1])
            for pair in self._waiting
        ]

    @torch.no_grad()
    def _step(self, features: Tensor, error: Tensor, rate: float) -> None:
        """Step along the gradient of the cross-entropy. features: (R, F). error: (R, classes), p - onehot."""
        layer = self._layer
        last = layer.widen if isinstance(layer, FactoredLinear) else layer
        seen = features
        if isinstance(layer, FactoredLinear):
            seen = layer.narrow(features)
            layer.narrow.weight.addmm_((error @ last.weight).T, features, alpha=-rate)
        last.weight.addmm_(error.T, seen, alpha=-rate)
        if last.bias is not None:
            last.bias.sub_(error.sum(dim=0), alpha=rate)


# Weights of n-grams and recent words, tuned on two authors that nothing is judged on; 0.2 to 0.35, and 0.1 to 0.2, did
# equally well there.
COUNTS_WEIGHT, RECENT_WEIGHT = 0.3, 0.15
# A word's count halves after so many words: 100 to 1,000 did equally well.
_HALF_LIFE_WORDS = 300
_BACKOFF = 0.4


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


# Leaves room for the characters of most words within the steps of training.
_LONGEST_HISTORY = MOST_STEPS - 6


class Keyboard:
    """One person's typing. learner: of the model's last layer; without, nothing is learned.

    top: suggestions shown. filtered: only words that begin as typed. recent: recent words raise the rank of these.
    typed: characters of the word so far.
    """

    def __init__(
        self,
        model: NextWordModel,
        table: TokenTable,
        learner: OnlineLearner | None = None,
        top: int = 3,
        filtered: bool = True,
        recent: bool = True,
    ) -> None:
        self.typed = ""
        self._model, self._table = model, table
        self._learner = learner
        self._infers = learner or OnlineLearner(model.output, 0)
        self._recent = RecentWords(table.classes) if recent else None
        self._speller, self._alphabet = Speller(table), Alphabet(table)
        self._top, self._filtered = top, filtered
        self._history: list[int] = []
        self._before: State | None = None
        self._inferred: list[Inference | None] = [None]
        self._states: list[State | None] = [None]

    def suggest(self) -> list[str]:
        """Return the best words now, best first; none before the first character of a sentence."""
        inference = self._inferred[-1]
        if inference is None:
            return []
        if self._filtered:
            begun = self._alphabet.begun(self.typed)
            classes, shares = torch.from_numpy(begun), inference.probabilities.numpy()[begun]
            if self._recent:
                shares = mix(shares, (self._recent.counts[begun], RECENT_WEIGHT))
            best = classes[torch.from_numpy(shares).topk(min(self._top, len(classes))).indices]
        else:
            scores = inference.probabilities.clone()
            scores[UNKNOWN] = -1
            best = scores.topk(min(self._top, len(scores) - 1)).indices
        return [self._table.word(number) for number in best.tolist()]

    def type(self, character: str) -> None:
        """Add one more character of the word."""
        self.typed += character
        if len(self.typed) > LONGEST_WORD:
            # No model was trained on so many: no more suggestions, and nothing is kept.
            self._inferred.append(None)
            self._states.append(None)
            return
        token = self._speller.character_ids(character)[0]
        inference, state = self._read(token, self._states[-1])
        self._inferred.append(inference)
        self._states.append(state)

    def erase(self) -> None:
        """Take the last character back, if there is one."""
        if self.typed:
            self.typed = self.typed[:-1]
            self._inferred.pop()
            self._states.pop()

    def finish(self, word: str) -> bool:
        """End the word, chosen or typed. Return True if the model made a step of learning."""
        target = self._speller.word_id(word)
        learned = False
        if self._learner and target != UNKNOWN:
            shown = [inference for inference in self._inferred if inference is not None]
            learned = self._learner.learn(shown, target)
        if self._recent:
            self._recent.add(target)
        self._history.append(target)
        start = self._states[0]
        if len(self._history) > _LONGEST_HISTORY:
            self._history, start = self._history[-OVERLAP:], None
            for token in self._history[:-1]:
                start = self._read(token, start)[1]
        inference, state = self._read(target, start)
        self.typed, self._inferred, self._states = "", [inference], [state]
        return learned

    def end_sentence(self) -> None:
        """End the sentence: the next word begins another."""
        self._history = []
        self.typed, self._inferred, self._states = "", [None], [None]

    def _read(self, token: int, state: State | None) -> tuple[Inference, State]:
        with torch.no_grad():
            features, after = self._model.read(torch.tensor([[token]]), state)
        return self._infers.infer(features[0, 0]), after
