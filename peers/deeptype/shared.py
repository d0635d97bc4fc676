"""The model that a person's device shares with a mesh, beside the personal one, which never leaves the device.

The shared model comes from a file that has nothing of the person, and reads their text with its own words: words that
only they use are `<unk>` there. So neither its tensors' names and shapes nor the meaning of its outputs depend on the
person. The personal model is the shared one and a difference to it (`peers/deeptype/model/personalise.py`): words,
their rows, and what the last layer has learned. It names the shared model that it stands on. So an interrupted
take-over is finished or dropped, and never done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from blake3 import blake3

from mdl.errors import ConfigError
from mdl.learning.training import Optimizer
from mdl.peers.deeptype.home import MODEL, NEXT, SHARED, prepare_folder
from mdl.peers.deeptype.model.model_file import NextWordFile, load_next_word, save_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel
from mdl.peers.deeptype.model.personalise import TextTask, rebase, suit_rate
from mdl.peers.deeptype.model.study import StudySettings, check_loss, tune_all
from mdl.peers.deeptype.model.text import Text, TokenTable, encode
from mdl.writing import check_writable

Shared = tuple[NextWordModel, NextWordFile]


class MeshRound(Protocol):
    """One round of a mesh (`mdl.Round`). given_up: the device must pause, the round comes again."""

    round_id: int
    loss: float
    samples: int
    given_up: bool


@dataclass(frozen=True)
class TextLesson:
    """The lesson of one device in each round: one pass over its text, at most so many words of it.

    must_pause: asked before each batch. sampled: words that a step scores, 0 for all. once: as in `Techniques`.
    """

    text: Text
    settings: StudySettings
    words: int
    must_pause: Callable[[], bool]
    sampled: int = 0
    once: bool = False


def read_shared(folder: Path, start: Path | None) -> Shared:
    """Return the shared model of the file, or of the last time. Raises ConfigError if there is neither."""
    prepare_folder(folder)
    settle(folder)
    if start is None and not (folder / SHARED).exists():
        raise ConfigError(
            f"no shared model is named, and none is in {folder}: give --model FILE, the same on all devices"
        )
    check_writable(folder / SHARED)
    return load_next_word(start or folder / SHARED)


def teach(rounds: Iterable[MeshRound], model: NextWordModel, lesson: TextLesson) -> int:
    """Train all layers of the shared model in every round of a mesh; return the number of trained rounds."""
    settings = suit_rate(lesson.settings, model)
    task = TextTask(model, lesson.text, "shared", settings.batch, lesson.sampled, lesson.once)
    optimizer = Optimizer(tune_all(model), settings.optimizer, settings.clip)
    trained = 0
    for this in rounds:
        batches = task.draw(np.random.default_rng([settings.seed, this.round_id]))
        total = 0.0
        most = -(-lesson.words // settings.batch) if lesson.words else len(batches)
        for number, batch in enumerate(batches[:most], 1):
            if lesson.must_pause():
                this.given_up = True
                break
            loss = task.loss(batch)
            value = check_loss(loss, f"round {this.round_id}, batch {number}", settings.learning_rate)
            optimizer.clear()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(settings.learning_rate)
            total += value
            this.loss, this.samples = total / number, number * settings.batch
        trained += not this.given_up
    return trained


def words_of(sentences: list[list[str]], table: TokenTable) -> Text:
    """Encode a person's text for the shared model. Raises ConfigError if it knows none of the words."""
    text = encode(sentences, table)
    if not text.classes.any():
        raise ConfigError("the shared model knows no word of this text: is it of another language?")
    return text


def take_over(folder: Path, new: Shared, began_with: Path | None = None) -> None:
    """Put the personal part onto a new shared model; without one the shared model becomes the personal one.

    began_with: a file of the shared model that the personal one began with, if the folder does not hold it. Raises
    ConfigError if neither does, or the new one did not go on from there.
    """
    model, described = new
    base = identify(model, described.table)
    settle(folder)
    path, trained = folder / MODEL, described.trained_words
    if not path.exists():
        save_next_word(folder / NEXT, model, described.table, trained)
        save_next_word(path, model, described.table, trained, base=base)
        return settle(folder)
    personal, mine = load_next_word(path)
    if mine.base != base:
        old, begun = _find_base(folder, mine.base, began_with)
        rebase(personal, mine.table, (old, begun.table), (model, described.table))
    save_next_word(folder / NEXT, model, described.table, trained)
    save_next_word(path, personal, mine.table, trained, mine.personal_words, base, mine.own_words)
    settle(folder)


def settle(folder: Path) -> None:
    """Finish a take-over that was cut off after its decision, or drop one that was cut off before."""
    if not (folder / NEXT).exists():
        return
    waiting = load_next_word(folder / NEXT)
    done = (folder / MODEL).exists() and load_next_word(folder / MODEL)[1].base == identify(
        waiting[0], waiting[1].table
    )
    if done:
        (folder / NEXT).replace(folder / SHARED)
    else:
        (folder / NEXT).unlink()


def identify(model: NextWordModel, table: TokenTable) -> str:
    """Return a hash of a shared model, hexadecimal, by which a personal one names it; it stays on the device."""
    found = blake3("\n".join((*table.words, table.characters)).encode())
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def _find_base(folder: Path, base: str, began_with: Path | None) -> Shared:
    for path in (folder / SHARED, began_with):
        if path is not None and path.exists():
            found = load_next_word(path)
            if identify(found[0], found[1].table) == base:
                return found
    raise ConfigError(
        f"{folder / MODEL} did not begin with the shared model that is here. Give the one that it began with by "
        "--began-with, or learn it again from text: mdl personal train TEXT --model NEW"
    )
