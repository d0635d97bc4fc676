"""The files of one person, in one directory for its owner alone: nothing else of mdl reads or sends it.

personal.safetensors    the model and the person's words. personal.previous.safetensors: the one before.
shared.safetensors      the model shared with a mesh that the personal one stands on. It has nothing of the person.
study.safetensors       an unfinished training.
record.json             the costs of the trainings.
typing.jsonl            the times of suggestions and steps while typing: times and counts, never text.

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

import msgspec
import numpy as np
import platformdirs
from blake3 import blake3

from mdl.bounds import Bytes, Count, Seconds
from mdl.devices.energy import TRAINING_W
from mdl.errors import ConfigError, DataError, MdlError, StorageError
from mdl.files.kept import read_kept, read_sealed, with_previous, write_kept
from mdl.learning.training import Optimizer
from mdl.peers.deeptype.model.model_file import NextWordFile, load_next_word, save_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel
from mdl.peers.deeptype.model.personalise import TextTask, rebase, suit_rate
from mdl.peers.deeptype.model.study import StudySettings, check_loss, tune_all
from mdl.peers.deeptype.model.text import Text, TokenTable, encode
from mdl.reading import decode_json
from mdl.sim.timing.scenario import energy_percent
from mdl.writing import check_writable, make_private_folder

MODEL, PREVIOUS = "personal.safetensors", "personal.previous.safetensors"
SHARED, NEXT = "shared.safetensors", "shared.next.safetensors"
STUDY, RECORD, LOG = "study.safetensors", "record.json", "typing.jsonl"
# All files that `mdl personal forget` deletes.
PERSONAL_FILES = (MODEL, PREVIOUS, SHARED, NEXT, STUDY, *with_previous(RECORD), LOG)
_LARGEST_RECORD_BYTES = 1 << 16


class PersonalRecord(msgspec.Struct, frozen=True):
    """The record of what was learned. words: of the person's text. seconds: of processor time, of all trainings.

    trainings: the finished ones. typed, saved: characters while typing, and those that were not needed.
    """

    words: Count = 0
    seconds: Seconds = 0.0
    trainings: Count = 0
    steps: Count = 0
    typed: Count = 0
    saved: Count = 0
    online_steps: Count = 0


class Status(msgspec.Struct, frozen=True):
    """`mdl personal status`. joules and battery_percent are modelled: TRAINING_W for the processor's seconds.

    disk_bytes: of all personal files; model_bytes: of the model's, which equals its memory.
    """

    directory: str
    classes: Count
    hidden: Count
    rank: Count
    model_bytes: Bytes
    disk_bytes: Bytes
    unfinished: bool
    record: PersonalRecord
    joules_a_training: float
    battery_percent_a_training: float


def default_home() -> Path:
    return Path(platformdirs.user_state_dir("mdl")) / "personal"


def prepare_folder(folder: Path) -> None:
    """Make the directory, for its owner alone. Raises MdlError if that is impossible."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise StorageError(folder, error) from None


def read_record(folder: Path) -> PersonalRecord:
    def read(path: Path) -> PersonalRecord:
        return decode_json(read_sealed(path, _LARGEST_RECORD_BYTES), PersonalRecord, str(path))

    return read_kept(folder / RECORD, read, "the last training is not counted") or PersonalRecord()


def write_record(folder: Path, record: PersonalRecord) -> None:
    write_kept(folder / RECORD, msgspec.json.encode(record))


def describe(folder: Path) -> Status:
    """Return the status. Raises DataError if there is nothing personal."""
    there = [folder / name for name in PERSONAL_FILES if (folder / name).exists()]
    if not (folder / MODEL).exists() and not (folder / STUDY).exists():
        raise DataError(f"{folder}: nobody has trained a personal model here; mdl personal train TEXT does")
    record, size = read_record(folder), None
    if (folder / MODEL).exists():
        size = load_next_word(folder / MODEL)[1].size
    joules = TRAINING_W * record.seconds / max(record.trainings, 1)
    return Status(
        str(folder),
        size.classes if size else 0,
        size.hidden if size else 0,
        size.rank if size else 0,
        (folder / MODEL).stat().st_size if size else 0,
        sum(path.stat().st_size for path in there),
        (folder / STUDY).exists(),
        record,
        joules,
        energy_percent(joules),
    )


def forget(folder: Path) -> list[str]:
    """Delete everything personal here; return the names of the deleted files. Raises MdlError if one stays."""
    gone = []
    for name in PERSONAL_FILES:
        # An interrupted write leaves a part beside the file.
        for path in (folder / name, *sorted(folder.glob(f".{name}.*"))):
            try:
                if path.exists():
                    path.unlink()
                    gone.append(path.name)
            except OSError as error:
                raise MdlError(f"{path} could not be deleted: {error.strerror}") from None
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise StorageError(folder, error) from None
    return gone


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
