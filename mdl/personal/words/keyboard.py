"""A person's keyboard: suggestions after each character, and online learning from each word.

With the filter, recent words count beside the network (`mixture`): no step of learning has reached them yet. The state
of the network after the words so far is kept, so that a character costs one step of it. A history as long as a sample
begins again with its last words, like a piece of a sentence.
"""

from __future__ import annotations

import torch

from mdl.personal.online import Inference, OnlineLearner
from mdl.personal.words.efficiency import Alphabet
from mdl.personal.words.mixture import RECENT_WEIGHT, RecentWords, mix
from mdl.personal.words.next_word import NextWordModel, State
from mdl.personal.words.pieces import MOST_STEPS, OVERLAP
from mdl.personal.words.text import LONGEST_WORD, UNKNOWN, Speller, TokenTable

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
