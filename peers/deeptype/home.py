"""The files of one person, in one directory for its owner alone: nothing else of mdl reads or sends it.

personal.safetensors    the model and the person's words. personal.previous.safetensors: the one before.
shared.safetensors      the model shared with a mesh that the personal one stands on. It has nothing of the person.
study.safetensors       an unfinished training.
record.json             the costs of the trainings.
typing.jsonl            the times of suggestions and steps while typing: times and counts, never text.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import platformdirs

from mdl.bounds import Bytes, Count, Seconds
from mdl.devices.energy import TRAINING_W
from mdl.errors import DataError, MdlError, StorageError
from mdl.files.kept import read_kept, read_sealed, with_previous, write_kept
from mdl.peers.deeptype.model.model_file import load_next_word
from mdl.reading import decode_json
from mdl.sim.timing.scenario import energy_percent
from mdl.writing import make_private_folder

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
