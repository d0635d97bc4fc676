"""What a cloud keeps: its lessons, version by version, and the last model of each pupil; and the slow work on them.

    cloud.json              version, groups, and which updates are in it: written last, so that a cycle is whole or not
    lessons/00002/          large-G.safetensors and small-G.safetensors of each group G, "base" among them
    pupils/NAME.safetensors the pupil's model as the cloud decoded it
    cycles.jsonl            one line a cycle: pupils, groups, scores, seconds

Every file appears whole or not at all. Nothing here is anybody's data: the cloud only ever has models of its pupils.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
from torch import nn

from mdl.bounds import Count, Group, HexDigest, PeerId
from mdl.cloud.classroom import BASE, Classroom, Cycle, Pupil, Teacher
from mdl.cloud.lesson_codec import pack_parts
from mdl.cloud.model_kinds import ModelKind
from mdl.cloud.update_codec import OtherOriginError
from mdl.errors import DataError, RemoteProtocolError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.files.journal import Journal
from mdl.protocol.bulk import Packed
from mdl.protocol.cloud_work import CycleTaught, StoreUpdate, TeachCycle, UpdateStored
from mdl.protocol.delta import digest_of
from mdl.reading import decode_json, read_bytes
from mdl.writing import write_bytes
from peers.edge.cloud.names import DEVICES
from peers.edge.resume import Origin, refuse_to_overwrite, set_aside
from peers.roles.cloud.cloud import CloudState

logger = logging.getLogger(__name__)

# Versions that an update may still be a change of.
KEPT_VERSIONS = 16
# A line of 100 bytes a pupil.
_LARGEST_CATALOGUE_BYTES = 16 << 20
_MODEL, _CATALOGUE = "model", "cloud.json"


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

    fresh: what is there is set aside.

    store and teach are called by worker threads, each by one; they share the lessons on the disk alone.
    """

    def __init__(
        self, directory: Path, kind: ModelKind, classroom: Classroom, seed: int | None = None, fresh: bool = False
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._classroom = classroom
        self._stopped = threading.Event()
        if fresh:
            set_aside(directory, (_CATALOGUE, "lessons", "pupils", "cycles.jsonl", DEVICES))
        self._cycles = Journal(directory / "cycles.jsonl")
        self.catalogue = self._load_catalogue(seed)

    def stop(self) -> None:
        """End a cycle at its next epoch; it is done again by the next process."""
        self._stopped.set()

    def state(self) -> CloudState:
        """What the machine starts from."""
        stored = {}
        for path in sorted((self._directory / "pupils").glob("*.safetensors")):
            try:
                metadata = read_safetensors(path)[1]
                stored[path.stem] = bytes.fromhex(metadata["digest"])
            except (DataError, KeyError, ValueError) as error:
                logger.warning("pupil skipped: %s: %s", path, error)
        return CloudState(self._taught() if self.catalogue.version else None, stored)

    def store(self, effect: StoreUpdate) -> UpdateStored:
        """Decode an update and keep the model that it makes."""
        update, sender = effect.update, effect.sender
        pulled_path = self._lesson(max(update.version, 1), "small", update.group if update.version else BASE)
        if not pulled_path.exists():
            return UpdateStored(sender, update, f"version {update.version} is not kept any more", pull_again=True)
        if digest_of(effect.packed) != update.digest:
            return UpdateStored(sender, update, "its bytes are not what was announced")
        try:
            model = self._kind.apply_update(self._read(pulled_path), effect.packed)
        except OtherOriginError as error:
            return UpdateStored(sender, update, str(error), pull_again=True)
        except RemoteProtocolError as error:
            return UpdateStored(sender, update, str(error))
        metadata = {"number": str(update.number), "digest": update.digest.hex(), "from": sender.peer_id}
        self._write(self._pupil(update.pupil), self._kind.pack(model), metadata)
        return UpdateStored(sender, update)

    def teach(self, effect: TeachCycle) -> CycleTaught:
        """One cycle: version 1 from the cloud's own data, each later one from the pupils. Writes all of it."""
        started, version = time.perf_counter(), effect.version
        learned: dict[str, str] = {}
        if version == 1:
            cycle = Cycle({BASE: self._classroom.bootstrap(self._stopped.is_set)}, {}, {}, {}, ())
        else:
            pupils, learned = self._read_pupils()
            cycle = self._classroom.teach(version, self._read_base(), pupils, self._stopped.is_set)
        folder = self._directory / "lessons" / f"{version:05d}"
        shutil.rmtree(folder, ignore_errors=True)  # of a cycle that did not end
        for group, teacher in cycle.teachers.items():
            for name, model in (("large", teacher.large), ("small", teacher.small)):
                self._write(self._lesson(version, name, group), self._kind.pack(model), {})
        catalogue = msgspec.structs.replace(self.catalogue, version=version, groups=cycle.groups, learned=learned)
        write_bytes(self._directory / _CATALOGUE, msgspec.json.format(msgspec.json.encode(catalogue)))
        self.catalogue = catalogue
        self._record(cycle, version, time.perf_counter() - started)
        shutil.rmtree(self._directory / "lessons" / f"{version - KEPT_VERSIONS:05d}", ignore_errors=True)
        return self._taught()

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

    def _read_base(self) -> Teacher:
        """What was taught last to whoever belongs to no group."""
        version = self.catalogue.version
        return Teacher(
            self._read(self._lesson(version, "large", BASE), large=True),
            self._read(self._lesson(version, "small", BASE)),
        )

    def _taught(self) -> CycleTaught:
        catalogue = self.catalogue
        lessons, pairs, named = {}, {}, self._kind.large.encode()
        for group in self._groups():
            small, large = (self._bytes(self._lesson(catalogue.version, name, group)) for name in ("small", "large"))
            lessons[str(group)], pairs[str(group)] = Packed(small), Packed(pack_parts([small, large, named]))
        learned = {pupil: bytes.fromhex(digest) for pupil, digest in catalogue.learned.items()}
        return CycleTaught(catalogue.version, lessons, catalogue.groups, learned, pairs)

    def _groups(self) -> list[int]:
        return [BASE, *sorted(set(self.catalogue.groups.values()) - {BASE})]

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
        kind, path = self._kind, self._directory / _CATALOGUE
        fresh = Catalogue(kind.schema_hash, kind.summary, large=kind.large, seed=seed)
        if not path.exists():
            return fresh
        found = decode_json(read_bytes(path, _LARGEST_CATALOGUE_BYTES), Catalogue, str(path))
        origin = Origin("", kind.schema_hash, kind.summary, seed, kind.older_hashes)
        conflict = origin.conflict("", found.schema_hash, found.model, found.seed)
        if not conflict and found.large and found.large != kind.large:
            conflict = found.model, kind.summary
        if conflict:
            raise refuse_to_overwrite(self._directory, f"version {found.version} of a cloud", conflict)
        if found.version:
            logger.info("continuing at version %d (%s); --fresh would start anew", found.version, self._directory)
        known = {"version": found.version, "groups": found.groups, "learned": found.learned}
        return msgspec.structs.replace(fresh, **known)

    def _lesson(self, version: int, name: str, group: int) -> Path:
        return (
            self._directory / "lessons" / f"{version:05d}" / f"{name}-{'base' if group == BASE else group}.safetensors"
        )

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
