"""`mdl personal words`: lists the words that a model has from its person, and adds or removes single ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdl.errors import ConfigError, did_you_mean
from mdl.peers.personal.home import MODEL, PREVIOUS, STUDY
from mdl.personal.compression import VocabularyChange
from mdl.personal.words.model_file import load_next_word, save_next_word
from mdl.personal.words.personalise import change_words
from mdl.personal.words.text import split_words


def own_words(folder: Path) -> tuple[str, ...]:
    """Return the words that came from the person. Raises DataError if there is no model."""
    return load_next_word(folder / MODEL)[1].own_words


def edit_words(folder: Path, add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """Add and remove single words of a person's model; return the person's words after that.

    An added word begins like words that are spelled alike, and goes to the front, where no training takes its place.
    Removing a word also deletes the model before, which has it too. Raises ConfigError naming the word.
    """
    if (folder / STUDY).exists():
        raise ConfigError(f"{folder}: a training is unfinished: the same `mdl personal train` ends it, or --fresh")
    model, described = load_next_word(folder / MODEL)
    names = described.table.words
    added = [word for word in dict.fromkeys(map(_one_word, add)) if word not in names]
    gone = dict.fromkeys(map(_one_word, remove))
    for word in gone:
        if word not in names:
            raise ConfigError(
                f"--remove {word}: the model has no such word{did_you_mean(word, names, '; did you mean {}?')}"
            )
    kept = [row for row, name in enumerate(names) if name not in gone]
    rows = np.array([*(0 for _ in added), *kept], np.int64)
    table = change_words(
        model, described.table, VocabularyChange((*added, *(names[row] for row in kept)), rows, len(added))
    )
    own = (*described.own_words, *added)
    own = tuple(word for word in own if word not in gone)
    told = described.trained_words, described.personal_words, described.base
    save_next_word(folder / MODEL, model, table, *told, own)
    if gone:
        (folder / PREVIOUS).unlink(missing_ok=True)
    return own


def _one_word(text: str) -> str:
    words = list(split_words(text))
    if len(words) != 1 or words[0] != [text.lower()] or len(text) > 256:
        raise ConfigError(f"{text[:40]!r} is not one word: expected letters, with apostrophes inside")
    return words[0][0]
