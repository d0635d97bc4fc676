"""The files of a cloud and of a device that learns from it, and the slow work of the cloud on them.

    cloud.json              version, groups, and the updates in it. It is written last: a cycle is whole or not.
    lessons/00002/          large-G.safetensors and small-G.safetensors of each group G, "base" among them, and the
                            cloud.json of this version.
    pupils/NAME.safetensors the pupil's model as the cloud decoded it.
    cycles.jsonl            one line a cycle: pupils, groups, scores, seconds.

A device keeps, between its studies:

    personal.safetensors    its model, for people and `mdl predict`.
    own.safetensors         the same for the next study, and the origin of its updates, which the cloud has too.

Every file appears whole or not at all, and has its checksum (`mdl/files/kept.py`). If the newest version is damaged,
the cloud goes on from the one before. It teaches that under a new number: no number is ever two lessons.
No user data is here: the cloud only ever has models of its pupils.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import nn

from mdl.bounds import Count, Group, HexDigest, PeerId
from mdl.errors import DataError, RemoteProtocolError, StorageError
from mdl.files.checkpoint import read_safetensors, write_kept_safetensors, write_safetensors
from mdl.files.figures import Journal
from mdl.files.kept import damaged, read_kept, read_sealed, seal, tell_previous
from mdl.peers.cloud.names import NAME_FILES
from mdl.peers.colla.machine import CloudState
from mdl.peers.colla.model.classroom import BASE, Classroom, Cycle, Pupil, TeacherPair
from mdl.peers.colla.model.model_kinds import ModelKind
from mdl.peers.colla.model.update_codec import OtherOriginError, pack_parts, unpack_parts
from mdl.peers.edge.resume import Origin, refuse_to_overwrite, set_aside
from mdl.protocol.cloud_messages import LessonMessage
from mdl.protocol.delta import digest_of
from mdl.protocol.machine import CycleTaught, StoreUpdate, TeachCycle, UpdateStored
from mdl.protocol.vocabulary import Packed
from mdl.reading import decode_json
from mdl.writing import make_private_folder, write_bytes

logger = logging.getLogger(__name__)

# Versions that an update may still be based on.
KEPT_VERSIONS = 16
# A line of 100 bytes a pupil.
_LARGEST_CATALOGUE_BYTES = 16 << 20
_MODEL, _CATALOGUE = "model", "cloud.json"
_CURE = "give --fresh, which sets all of it aside and starts anew"


class Catalogue(msgspec.Struct, frozen=True):
    """cloud.json. version 0: nothing is taught yet. groups, learned: as in CycleTaught, digests in hexadecimal.

    large: the cloud's own model; seed: of its run; both unknown in the files of older versions.
    """

    schema_hash: str
    model: str
    version: Count = 0
    groups: dict[PeerId, Group] = {}
    learned: dict[PeerId, HexDigest] = {}
    large: str = ""
    seed: int | None = None


class CloudFiles:
    """The cloud's directory. Raises ConfigError if it is another task's, or of another large model or seed.

    fresh: sets aside the files that are there.

    store and teach are called by worker threads, each by one; they share only the lessons on the disk.
    """

    def __init__(
        self, directory: Path, kind: ModelKind, classroom: Classroom, seed: int | None = None, fresh: bool = False
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._classroom = classroom
        self._stopped = threading.Event()
        if fresh:
            set_aside(directory, (_CATALOGUE, "lessons", "pupils", "cycles.jsonl", *NAME_FILES))
        self._cycles = Journal(directory / "cycles.jsonl")
        self._newest = 0  # the last version handed out, as far as known
        self.catalogue = self._load_catalogue(seed)

    def stop(self) -> None:
        """End a cycle at its next epoch; the next process does it again."""
        self._stopped.set()

    def state(self) -> CloudState:
        """Return what the machine starts from. Raises DamagedError if no version is whole."""
        stored = {}
        for path in sorted((self._directory / "pupils").glob("*.safetensors")):
            try:
                metadata = read_safetensors(path)[1]
                stored[path.stem] = bytes.fromhex(metadata["digest"])
            except (DataError, KeyError, ValueError) as error:
                logger.warning("pupil skipped: %s: %s", path, error)
        return CloudState(self._find_taught() if self.catalogue.version else None, stored)

    def store(self, effect: StoreUpdate) -> UpdateStored:
        """Decode an update and keep the model that it makes."""
        update, sender = effect.update, effect.sender
        pulled_path = self._lesson(max(update.version, 1), "small", update.group if update.version else BASE)
        if not pulled_path.exists():
            return UpdateStored(sender, update, f"version {update.version} is not kept any more", pull_again=True)
        if digest_of(effect.packed) != update.digest:
            return UpdateStored(sender, update, "its bytes are not what was announced")
        try:
            pulled = self._read(pulled_path)
        except DataError as error:
            logger.warning("an update of version %d is refused: %s", update.version, error)
            return UpdateStored(sender, update, f"version {update.version} is damaged here", pull_again=True)
        try:
            model = self._kind.apply_update(pulled, effect.packed)
        except OtherOriginError as error:
            return UpdateStored(sender, update, str(error), pull_again=True)
        except RemoteProtocolError as error:
            return UpdateStored(sender, update, str(error))
        metadata = {"number": str(update.number), "digest": update.digest.hex(), "from": sender.peer_id}
        self._write(self._pupil(update.pupil), self._kind.pack(model), metadata)
        return UpdateStored(sender, update)

    def teach(self, effect: TeachCycle) -> CycleTaught:
        """Run one cycle and write all of it: version 1 from the cloud's own data, each later one from the pupils."""
        started, version = time.perf_counter(), effect.version
        learned: dict[str, str] = {}
        if version == 1:
            cycle = Cycle({BASE: self._classroom.bootstrap(self._stopped.is_set)}, {}, {}, {}, ())
        else:
            pupils, learned = self._read_pupils()
            cycle = self._classroom.teach(version, self._read_base(), pupils, self._stopped.is_set)
        shutil.rmtree(self._folder(version), ignore_errors=True)  # left by a cycle that did not end
        for group, teacher in cycle.teachers.items():
            for name, model in (("large", teacher.large), ("small", teacher.small)):
                self._write(self._lesson(version, name, group), self._kind.pack(model), {})
        self._keep(msgspec.structs.replace(self.catalogue, version=version, groups=cycle.groups, learned=learned))
        self._record(cycle, version, time.perf_counter() - started)
        shutil.rmtree(self._folder(version - KEPT_VERSIONS), ignore_errors=True)
        return self._taught(self.catalogue)

    def _read_pupils(self) -> tuple[list[Pupil], dict[str, str]]:
        pupils, learned = [], {}
        for path in sorted((self._directory / "pupils").glob("*.safetensors")):
            try:
                arrays, metadata = read_safetensors(path)
                pupils.append(Pupil(path.stem, self._kind.unpack(arrays[_MODEL].tobytes())))
                learned[path.stem] = metadata["digest"]
            except (DataError, RemoteProtocolError, KeyError) as error:
                logger.warning("pupil %s does not teach: %s", path.stem, error)
        return pupils, learned

    def _read_base(self) -> TeacherPair:
        """Return the last whole base lesson, for pupils of no group."""
        problem = ""
        for catalogue in self._catalogues():
            large, small = (self._lesson(catalogue.version, name, BASE) for name in ("large", "small"))
            try:
                found = TeacherPair(self._read(large, large=True), self._read(small))
            except DataError as error:
                problem = problem or str(error)
                continue
            if problem:
                tell_previous(problem, large, "what was learned since then is learned again")
            return found
        raise damaged(self._directory / _CATALOGUE, problem, _CURE)

    def _find_taught(self) -> CycleTaught:
        """Return the newest whole version; one older than the last handed out is taught under a new number."""
        problem = ""
        for catalogue in self._catalogues():
            try:
                taught = self._taught(catalogue)
            except DataError as error:
                problem = problem or str(error)
                continue
            if catalogue.version == self._newest:
                return taught
            lost = f"it is taught as version {self._newest + 1}, and what was learned since then is learned again"
            tell_previous(problem or f"version {self._newest} is damaged", self._folder(catalogue.version), lost)
            self._copy_lessons(catalogue.version, self._newest + 1)
            self._keep(msgspec.structs.replace(catalogue, version=self._newest + 1))
            return msgspec.structs.replace(taught, version=self.catalogue.version)
        raise damaged(self._directory / _CATALOGUE, problem, _CURE)

    def _catalogues(self) -> Iterator[Catalogue]:
        """Yield the newest catalogue, then the whole ones of earlier versions."""
        yield self.catalogue
        for path in self._copies():
            try:
                found = decode_json(read_sealed(path, _LARGEST_CATALOGUE_BYTES), Catalogue, str(path))
            except DataError:
                continue
            if found.version < self.catalogue.version:
                yield found

    def _copies(self) -> list[Path]:
        """Return the paths of the catalogues of single versions, the newest first."""
        return sorted((self._directory / "lessons").glob(f"[0-9]*/{_CATALOGUE}"), reverse=True)

    def _keep(self, catalogue: Catalogue) -> None:
        content = seal(msgspec.json.format(msgspec.json.encode(catalogue)))
        for folder in (self._folder(catalogue.version), self._directory):
            write_bytes(folder / _CATALOGUE, content)
        self.catalogue, self._newest = catalogue, catalogue.version

    def _copy_lessons(self, version: int, to: int) -> None:
        """Give the lessons of a version the names of another one too."""
        target = self._folder(to)
        shutil.rmtree(target, ignore_errors=True)
        try:
            make_private_folder(target)
            for path in self._folder(version).glob("*.safetensors"):
                try:
                    os.link(path, target / path.name)
                except OSError:  # a disk without links
                    shutil.copy2(path, target / path.name)
        except OSError as error:
            raise StorageError(target, error) from None

    def _taught(self, catalogue: Catalogue) -> CycleTaught:
        lessons, pairs, named = {}, {}, self._kind.large.encode()
        for group in [BASE, *sorted(set(catalogue.groups.values()) - {BASE})]:
            small, large = (self._bytes(self._lesson(catalogue.version, name, group)) for name in ("small", "large"))
            lessons[str(group)], pairs[str(group)] = Packed(small), Packed(pack_parts([small, large, named]))
        learned = {pupil: bytes.fromhex(digest) for pupil, digest in catalogue.learned.items()}
        return CycleTaught(catalogue.version, lessons, catalogue.groups, learned, pairs)

    def _record(self, cycle: Cycle, version: int, seconds: float) -> None:
        sizes: dict[str, list[str]] = {}
        for name, group in sorted(cycle.groups.items()):
            sizes.setdefault(str(group), []).append(name)
        line = {
            "version": version,
            "groups": sizes,
            "silhouettes": {str(count): score for count, score in cycle.silhouettes.items()},
            "scores": {name: round(score, 4) for name, score in cycle.scores.items()},
            "left_out": list(cycle.left_out),
            "seconds": round(seconds, 3),
        }
        self._cycles.add(msgspec.json.encode(line))
        if version == 1:
            logger.info("the base model is ready after %.1f s", seconds)
        else:
            logger.info("cycle %d: %d pupils in %d groups, %.1f s", version - 1, len(cycle.groups), len(sizes), seconds)

    def _load_catalogue(self, seed: int | None) -> Catalogue:
        kind, path, copies = self._kind, self._directory / _CATALOGUE, self._copies()
        fresh = Catalogue(kind.schema_hash, kind.summary, large=kind.large, seed=seed)
        if not path.exists() and not copies:
            return fresh
        found, source = self._read_newest(path, copies)
        origin = Origin("", kind.schema_hash, kind.summary, seed, kind.older_hashes)
        conflict = origin.conflict("", found.schema_hash, found.model, found.seed)
        if not conflict and found.large and found.large != kind.large:
            conflict = found.model, kind.summary
        if conflict:
            raise refuse_to_overwrite(self._directory, f"version {found.version} of a cloud", conflict)
        if found.version:
            logger.info("continuing at version %d (%s); --fresh would start anew", found.version, self._directory)
        numbers = [int(each.name) for each in (self._directory / "lessons").glob("[0-9]*") if each.name.isdecimal()]
        # A folder newer than a whole catalogue belongs to a cycle that did not end.
        self._newest = found.version if source == path else max(found.version, *numbers)
        known = {"version": found.version, "groups": found.groups, "learned": found.learned}
        catalogue = msgspec.structs.replace(fresh, **known)
        if found.version and not (self._folder(found.version) / _CATALOGUE).exists():  # an older version wrote it
            self._keep(catalogue)
        return catalogue

    def _read_newest(self, path: Path, copies: list[Path]) -> tuple[Catalogue, Path]:
        """Return the newest whole catalogue, and its path. Raises DamagedError if none is whole."""
        problem = "" if path.exists() else f"{path} is missing"
        for each in (path, *copies) if path.exists() else copies:
            try:
                found = decode_json(read_sealed(each, _LARGEST_CATALOGUE_BYTES), Catalogue, str(each))
            except DataError as error:
                problem = problem or str(error)
                continue
            if problem:
                tell_previous(problem, each, f"version {found.version} of the cloud")
            return found, each
        raise damaged(path, problem, _CURE)

    def _folder(self, version: int) -> Path:
        return self._directory / "lessons" / f"{version:05d}"

    def _lesson(self, version: int, name: str, group: int) -> Path:
        return self._folder(version) / f"{name}-{'base' if group == BASE else group}.safetensors"

    def _pupil(self, name: str) -> Path:
        return self._directory / "pupils" / f"{name}.safetensors"

    def _write(self, path: Path, packed: bytes, metadata: dict[str, str]) -> None:
        write_safetensors(path, {_MODEL: np.frombuffer(packed, np.uint8)}, metadata)

    def _bytes(self, path: Path) -> bytes:
        arrays = read_safetensors(path)[0]
        if _MODEL not in arrays:
            raise DataError(f"{path} holds no model of a cloud")
        return arrays[_MODEL].tobytes()

    def _read(self, path: Path, *, large: bool = False) -> nn.Module:
        return self._kind.unpack(self._bytes(path), large=large)


PERSONAL, OWN = "personal.safetensors", "own.safetensors"
_PAIR = "own and origin"
# A cloud keeps 16 versions; a device takes a newer origin well before the cloud forgets the present one.
_OLDEST_ORIGIN = 8


class CloudProgress(msgspec.Struct, frozen=True):
    """own: the device's model. origin: the small model that it pulled; version, group: of that one's lesson."""

    own: nn.Module
    origin: nn.Module
    version: int
    group: int

    def fits(self, lesson: LessonMessage, studied: int) -> bool:
        """Return True if updates can still be changes of the origin. studied: version of the last lesson studied.

        If the same lesson comes again, the device asked for it again: the cloud may not know the origin any more.
        """
        return lesson.version != studied and 0 <= lesson.version - self.version < _OLDEST_ORIGIN


def write_progress(folder: Path, kind: ModelKind, progress: CloudProgress) -> None:
    pair = pack_parts([kind.pack(progress.own), kind.pack(progress.origin)])
    metadata = {"version": str(progress.version), "group": str(progress.group)}
    write_kept_safetensors(folder / OWN, {_PAIR: np.frombuffer(pair, np.uint8)}, metadata)


def read_progress(folder: Path, kind: ModelKind) -> CloudProgress | None:
    """Read the progress; None if there is none, as in the directories of older versions. Raises DamagedError."""

    def read(path: Path) -> CloudProgress:
        try:
            arrays, metadata = read_safetensors(path)
            own, origin = unpack_parts(arrays[_PAIR].tobytes(), 2)
            version, group = int(metadata["version"]), int(metadata["group"])
            return CloudProgress(kind.unpack(own), kind.unpack(origin), version, group)
        except (RemoteProtocolError, KeyError, ValueError) as error:
            raise DataError(f"{path} is no model of this device ({error})") from None

    return read_kept(folder / OWN, read, "what the last lesson taught is learned again with the next one")


def write_personal(folder: Path, model: nn.Module, metadata: dict[str, str]) -> None:
    """Write the model as named tensors."""
    named: dict[str, NDArray[Any]] = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    write_safetensors(folder / PERSONAL, named, metadata)
