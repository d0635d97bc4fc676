"""A small language model: the next character of a news article from the 24 before it.

    --data 'benchmarks.training.characters:read_articles?path=PATH' --model benchmarks.training.characters:NextCharacter

PATH: bbc.zip, a text file an article, in folders by topic. Topics are the people, so that a split by subject gives each
device topics of its own; every sixth article is for testing. All but letters, digits, blanks and some marks is one
character.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mdl.data import DataSet, take_windows
from mdl.data.windows import make_windows

_CHARACTERS = " abcdefghijklmnopqrstuvwxyz0123456789.,'\"-$"
_OTHER = "~"
_BEFORE = 24
# From one character that is asked for to the next: neighbours have nearly the same before them.
_STEP = 4
_EMBEDDED, _HIDDEN = 24, 192
_IS_TESTED = 6


class NextCharacter(nn.Module):
    """Numbers of characters, float32 (n, 1, 24) -> logits (n, 44). 157,388 parameters."""

    def __init__(self, time: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, _EMBEDDED)
        self.read = nn.Linear(time * _EMBEDDED, _HIDDEN)
        self.turn = nn.Linear(_HIDDEN, _HIDDEN)
        self.classify = nn.Linear(_HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        # A model is tried with values that are no characters, before it is trained.
        ids = x[:, 0].long().clamp(0, self.embed.num_embeddings - 1)
        hidden = torch.relu(self.turn(torch.relu(self.read(self.embed(ids).flatten(1)))))
        logits: Tensor = self.classify(hidden)
        return logits


def read_articles(path: str, articles: str = "24") -> DataSet:
    """See the module. articles: of each topic."""
    texts = _read(Path(path), int(articles))
    topics = sorted({topic for topic, _, _ in texts})
    known = {character: place for place, character in enumerate(_CHARACTERS + _OTHER)}
    x, y, of = [], [], []
    for place, (_, _, text) in enumerate(texts):
        ids = np.array([known.get(character, known[_OTHER]) for character in text])
        runs = np.lib.stride_tricks.sliding_window_view(ids, _BEFORE + 1)[::_STEP]
        x.append(runs[:, None, :-1])
        y.append(runs[:, -1])
        of.append(np.full(len(runs), place))
    group = np.concatenate(of)
    subject = np.array([topics.index(topic) for topic, _, _ in texts])[group]
    windows = make_windows(np.concatenate(x), np.concatenate(y), subject, group)
    test = np.array([number % _IS_TESTED == 0 for _, number, _ in texts])[group]
    train, tested = take_windows(windows, ~test), take_windows(windows, test)
    return DataSet("news", train, tested, tuple(known), "given", subject_names=tuple(topics))


def _read(path: Path, articles: int) -> list[tuple[str, int, str]]:
    """Topic, number and text of the first articles of each topic."""
    texts = []
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if (found := re.fullmatch(r"bbc/([a-z]+)/(\d+)\.txt", name)) and int(found[2]) <= articles:
                text = " ".join(archive.read(name).decode("latin-1").lower().split())
                texts.append((found[1], int(found[2]), text))
    return texts
