"""`mdl personal pretrain`, `train` and `eval`: from text and options to a model file.

A study runs to its end: it waits while the device may not train, and stops when it is asked to. It is saved after a
batch, as often as costs at most a twentieth of the time, always before it waits, and when it stops. After kill -9 it
goes on from there; later batches are learned again, with the same result.

`mdl personal words`: lists the words that a model has from its person, and adds or removes single ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from blake3 import blake3

from mdl.bounds import Count
from mdl.errors import ConfigError, did_you_mean
from mdl.peers.deeptype.home import MODEL, PREVIOUS, STUDY, identify, read_record, write_record
from mdl.peers.deeptype.model.compression import VocabularyChange, count_bytes
from mdl.peers.deeptype.model.corpus import NoTextError, read_lines_of
from mdl.peers.deeptype.model.efficiency import Alphabet, SuggestionScore, evaluate_next_word
from mdl.peers.deeptype.model.keyboard import count_ngrams, evaluate_mixture, evaluate_ngrams
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, build_next_word
from mdl.peers.deeptype.model.personalise import (
    Batching,
    Techniques,
    TextTask,
    begin_study,
    change_words,
    compress_global,
    count_words,
    plan_words,
    suit_rate,
)
from mdl.peers.deeptype.model.study import Study, StudySettings, load_study, save_study, tune_all
from mdl.peers.deeptype.model.text import Text, TokenTable, build_table, encode, split_words
from mdl.peers.edge.gatekeeper import Gatekeeper, make_gatekeeper
from mdl.peers.interrupts import handled
from mdl.writing import check_writable

# Saving may take this share of the time: a small model is saved after each batch, a large one twice a minute.
_SAVING_SHARE = 0.05


class MayTrain(Protocol):
    """Tells if a device may train (`mdl.peers.edge.gatekeeper`)."""

    forbidden_by: str

    def hold(self) -> bool: ...


class StudyRun:
    """One study and its file.

    show: is given name, done and total after each batch. now: seconds, for the saving share.
    """

    def __init__(
        self,
        study: Study,
        path: Path,
        origin: str,
        gate: MayTrain,
        show: Callable[..., Any],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = 0.0
        self._study, self._path, self._origin = study, path, origin
        self._gate, self._show, self._now = gate, show, now
        self._save_after = 0.0
        self._saved_at = 0

    def run(self) -> bool:
        """Learn on; return True if the end was reached. `seconds`: of processor time."""
        began, study = time.process_time(), self._study
        try:
            while not study.is_done:
                if self._gate.forbidden_by:
                    self.save()
                if self._gate.hold():
                    return False
                loss = study.step()
                at = study.progress
                done, total = at.epoch * study.batches + at.batch, study.settings.epochs * study.batches
                self._show("training", done, total, f"loss {loss:.3f}")
                if self._now() >= self._save_after and not study.is_done:
                    self.save()
            return True
        finally:
            self.seconds = time.process_time() - began
            if not study.is_done:
                self.save()

    def save(self) -> None:
        """Save the study if anything has been learned since the last time."""
        if self._saved_at == self._study.progress.steps:
            return
        began = self._now()
        save_study(self._path, self._study, self._origin)
        self._saved_at = self._study.progress.steps
        ended = self._now()
        self._save_after = ended + (ended - began) / _SAVING_SHARE


Sentences = list[list[str]]


class TrainingEnded(msgspec.Struct, frozen=True):
    """The end of a training. finished: False if it was interrupted; the next start goes on where it was.

    words: of the text. steps: batches learned from. seconds: of processor time, this time. bytes: of the model.
    before, after: on the part of the text that was held out, if any was.
    """

    finished: bool
    words: Count
    classes: Count
    new_words: Count
    steps: Count
    seconds: float
    bytes: Count
    before: SuggestionScore | None = None
    after: SuggestionScore | None = None


def read_sentences(path: Path, author: str = "", limit: int = 0) -> Sentences:
    """Read sentences. limit: of words, 0 for all. Raises NoTextError for a place without words."""
    sentences: Sentences = []
    count = 0
    for line in read_lines_of(path, author):
        for words in split_words(line):
            sentences.append(words)
            count += len(words)
        if limit and count >= limit:
            break
    if not sentences:
        raise NoTextError(f"{path}: there is no word in it")
    return sentences


def pretrain(
    corpus: Path,
    out: Path,
    size: tuple[int, int, int],
    settings: StudySettings,
    batching: Batching = "shared",
    start: Path | None = None,
    limit: int = 0,
    sampled: int = 0,
    when: str = "",
    fresh: bool = False,
    show: Callable[..., Any] = lambda *_: None,
) -> TrainingEnded:
    """Train a global model. size: (words, hidden, rank). start: a model to go on from; a rank compresses it first.

    sampled: words that a step scores, 0 for all. If interrupted, it leaves the model so far in `out`, and beside it the
    study that the same call goes on from.
    """
    gate = make_gatekeeper(when)
    check_writable(out)
    words, hidden, rank = size
    sentences = read_sentences(corpus, limit=limit)
    if start is not None:
        model, described = load_next_word(start)
        table = described.table
    else:
        table = build_table(sentences, words)
        model = build_next_word(NextWordSize(table.classes, table.size, hidden, rank=rank), settings.seed)
    text = encode(sentences, table)
    study_path = out.with_name(f"{out.name}.study")
    if fresh:
        study_path.unlink(missing_ok=True)
    origin = fingerprint(model, text, repr((settings, batching, sampled, rank)))
    compress_global(model, rank, text)
    study = Study(tune_all(model), TextTask(model, text, batching, settings.batch, sampled), settings)
    finished, seconds = _run(study, study_path, origin, gate, show)
    is_origin = start is not None and out.exists() and out.samefile(start)
    if finished or (study.progress.steps and not is_origin):  # the model that it goes on from stays as it is
        save_next_word(out, model, table, trained_words=len(text))
    if finished:
        study_path.unlink(missing_ok=True)
    return TrainingEnded(finished, len(text), table.classes, 0, study.progress.steps, seconds, count_bytes(model))


def train(
    source: Path,
    folder: Path,
    start: Path | None,
    techniques: Techniques,
    settings: StudySettings,
    author: str = "",
    test_share: float = 0.0,
    limit: int = 0,
    when: str = "",
    fresh: bool = False,
    show: Callable[..., Any] = lambda *_: None,
) -> TrainingEnded:
    """Train one person's model on their own text, from a global model or from this person's.

    The last part of the text is held out for a test. Raises ConfigError if there is neither model.
    """
    gate = make_gatekeeper(when)
    began_from = start or folder / MODEL
    if start is None and not began_from.exists():
        raise ConfigError(
            f"no global model is named, and none is in {folder}: give --model FILE, as `mdl personal pretrain` makes it"
        )
    check_writable(folder / MODEL)
    model, described = load_next_word(began_from)
    base = identify(model, described.table) if start else described.base
    sentences = read_sentences(source, author, limit)
    mine, held_out = split_sentences(sentences, test_share)
    before = assess(model, described.table, held_out) if held_out else None
    change = plan_words(described.table, count_words(mine), techniques)
    table = change_words(model, described.table, change)
    text = encode(mine, table)
    if fresh:
        (folder / STUDY).unlink(missing_ok=True)
    settings = suit_rate(settings, model)
    origin = fingerprint(model, text, repr((settings, techniques)))
    study = begin_study(model, text, techniques, settings)
    finished, seconds = _run(study, folder / STUDY, origin, gate, show)
    if finished:
        if (folder / MODEL).exists():
            (folder / MODEL).replace(folder / PREVIOUS)
        known = set(described.table.words).difference(described.own_words)
        own = tuple(word for word in table.words if word not in known)
        save_next_word(folder / MODEL, model, table, described.trained_words, len(text), base, own)
        (folder / STUDY).unlink(missing_ok=True)
    _add_to_record(folder, seconds, study.progress.steps if finished else 0, len(text) if finished else None)
    after = assess(model, table, held_out) if held_out and finished else None
    return TrainingEnded(
        finished, len(text), table.classes, change.new, study.progress.steps, seconds, count_bytes(model), before, after
    )


def assess(model: NextWordModel, table: TokenTable, sentences: Sentences, top: int = 3) -> SuggestionScore:
    """Evaluate how much typing a model saves on a text."""
    return evaluate_next_word(model, encode(sentences, table), top, Alphabet(table))


def compare_ngrams(
    model: NextWordModel, table: TokenTable, learned: Sentences, sentences: Sentences, top: int = 3
) -> dict[str, dict[str, float | None]]:
    """Return the efficiency of n-grams of the `learned` text, without and with the character filter, and mixed in."""
    text = encode(sentences, table)
    ngrams, alphabet = count_ngrams(encode(learned, table), table.classes), Alphabet(table)
    found: dict[str, dict[str, float | None]] = {}
    for order in (1, 2, 3):
        plain, filtered = evaluate_ngrams(ngrams.up_to(order), text, alphabet, top)
        found[f"{order}-gram"] = {"efficiency": plain, "filtered": filtered}
    mixed = evaluate_mixture(model, ngrams, text, alphabet, top=top)
    return {**found, "mixed": {"efficiency": None, "filtered": mixed}}


def split_sentences(sentences: Sentences, test_share: float) -> tuple[Sentences, Sentences]:
    """Return the first part in order, and the last one with about this share of the words."""
    total = sum(map(len, sentences))
    left = round(total * (1 - test_share))
    for at, words in enumerate(sentences):
        if left <= 0:
            return sentences[:at], sentences[at:]
        left -= len(words)
    return sentences, []


def fingerprint(model: NextWordModel, text: Text, settings: str) -> str:
    """Return a hash that identifies a study: its first parameters, the text, and how it learns."""
    found = blake3(settings.encode())
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    for array in (text.forms, text.starts, text.class_ids, text.characters):
        found.update(array.tobytes())
    return found.hexdigest()


def _add_to_record(folder: Path, seconds: float, steps: int, words: int | None) -> None:
    """Add a training to the record. words: of the text, if the training was finished."""
    record = read_record(folder)
    changed = msgspec.structs.replace(record, seconds=record.seconds + seconds, steps=record.steps + steps)
    if words is not None:
        changed = msgspec.structs.replace(changed, words=words, trainings=record.trainings + 1)
    write_record(folder, changed)


def _run(study: Study, path: Path, origin: str, gate: Gatekeeper, show: Callable[..., Any]) -> tuple[bool, float]:
    load_study(path, study, origin)
    run = StudyRun(study, path, origin, gate, show)
    with _stopped_by_interrupts(gate), gate.looking(lambda _: None):
        finished = run.run()
    return finished, round(run.seconds, 3)


@contextmanager
def _stopped_by_interrupts(gate: Gatekeeper) -> Iterator[None]:
    """Stop within a batch and save at the first interrupt; stop at once at the second, with the last save."""
    wishes: list[float] = []

    def wish(_: int, __: object) -> None:
        wishes.append(time.monotonic())
        gate.stop()
        if len(wishes) > 1:
            raise KeyboardInterrupt

    with handled(wish):
        yield


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
