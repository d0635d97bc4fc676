"""The state of a run in its directory: an earlier run goes on, or is refused; and what a training loop keeps.

Trained state is never lost because an option changed: a state of another model, mesh or seed is refused in a line that
names both. `--fresh` sets it aside instead of deleting it. Facts that an older version did not write down are unknown,
and fit.

`LoopState` is what a training loop keeps between rounds beside the model: optimizer, schedule, gradient scaler.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mdl.bounds import MAX_RATE_MB_S, UNREADABLE, printable, whole_number
from mdl.errors import ConfigError, DataError, MdlError
from mdl.files.checkpoint import CachedModel, ModelCache, read_safetensors
from mdl.files.export import find_model_file
from mdl.files.state_file import StateFile, load_kept
from mdl.learning.flat import FlatModel
from mdl.peers.roles.build import TrainerStart
from mdl.peers.roles.trainer.trainer import TrainerSettings
from mdl.protocol.delta import digest_of
from mdl.protocol.grid import Vector
from mdl.protocol.machine import SaveModel
from mdl.protocol.vector_work import Outer
from mdl.protocol.vocabulary import Ballot, History
from mdl.writing import make_private_folder

logger = logging.getLogger(__name__)

# Files that a device's run leaves in its directory. Its story is not among them: each start writes it anew. Its ballot
# is not either: a promise holds for every later run.
DEVICE_FILES = (
    "model.safetensors",
    "model.previous.safetensors",
    "optimizer.safetensors",
    "optimizer.previous.safetensors",
    "global.safetensors",
    "best.safetensors",
    "metrics.jsonl",
    "deltas",
)
# At this many states set aside in one directory, the user should look at them.
_MOST_ASIDE = 1000


class ResumeState(msgspec.Struct, frozen=True):
    """The state that a device goes on from: w(round_id) and its history. momentum: of its outer optimizer, if known.

    link_mb_s: speed of its link when that was saved, in MB/s; 0.0: not known.
    """

    parameters: Vector
    round_id: int = 0
    history: History = History()
    momentum: Vector | None = None
    link_mb_s: float = 0.0

    def start(
        self, schema_hash: str, model: str, ballot: Ballot | None, outer: Outer, theta: float = 1.0
    ) -> TrainerStart:
        """Return what a trainer needs to go on. model: one line for people; ballot: its promises, if known.

        theta: weight of its deltas.
        """
        size, digest = self.parameters.size, digest_of(outer.begin(self.parameters, self.momentum))
        told = (schema_hash, model, self.round_id, self.history, ballot)
        return TrainerStart(size, digest, *told, TrainerSettings(outer, theta=theta, link_mb_s=self.link_mb_s))


class Begin(NamedTuple):
    """The beginning of a device. fresh: sets aside the files of an earlier run. init: a model to begin with."""

    fresh: bool = False
    init: Path | None = None


class Origin(msgspec.Struct, frozen=True):
    """The origin of a state. model: one line for people. seed: None if unknown.

    older_hashes: hashes of the schema as older versions wrote them, without rates or channel names.
    """

    mesh: str
    schema_hash: str
    model: str = ""
    seed: int | None = None
    older_hashes: tuple[str, ...] = ()

    def conflict(self, mesh: str, schema_hash: str, model: str, seed: int | None) -> tuple[str, str] | None:
        """Return (kept, ours) in words if a state is not of this origin, else None; None, "" and unknown fit."""
        if mesh and mesh != self.mesh:
            return f"mesh {mesh!r}", f"mesh {self.mesh!r}"
        if schema_hash and schema_hash not in (self.schema_hash, *self.older_hashes):
            return model or "another model", self.model or "this model"
        if seed is not None and self.seed is not None and seed != self.seed:
            return f"seed {seed}", f"seed {self.seed}"
        return None


def refuse_to_overwrite(where: Path, what: str, conflict: tuple[str, str]) -> ConfigError:
    """Return the error for a state at `where`, a directory or file, of another origin.

    The state is described by `what`, as in "round 7".
    """
    there, here = conflict
    return ConfigError(
        f"{where} has {what} of {printable(there)}, and this is {printable(here)}: --fresh sets that aside and starts "
        "anew (fresh=True in mdl.join), another --out keeps both"
    )


def describe_state(effect: SaveModel, origin: Origin) -> CachedModel:
    """Return the entry for the file cache."""
    extra = {
        "history": msgspec.json.encode(effect.history).decode(),
        "model": origin.model,
        "link_kb_s": str(round(1e3 * effect.link_mb_s)),
        **({} if origin.seed is None else {"seed": str(origin.seed)}),
    }
    told = (origin.schema_hash, origin.mesh, extra, effect.digest, effect.momentum)
    return CachedModel(effect.parameters, effect.round_id, *told)


def keep_state(cache: ModelCache, effect: SaveModel, origin: Origin) -> None:
    """Save the state.

    If the disk refuses, this device only loses its shortcut after a restart: the mesh has the model.
    """
    try:
        cache.save(describe_state(effect, origin))
    except (MdlError, OSError) as error:
        logger.warning("round %d is not in the file cache: %s", effect.round_id, error)


def restore_state(cache: ModelCache, origin: Origin) -> ResumeState | None:
    """Return the last whole state of this model in this mesh, or None. An older cache has no history.

    A model with an unreadable history is skipped: the mesh could not go on from it. Raises ConfigError if the state is
    trained and of another origin.
    """
    cached = cache.load()
    if cached is None:
        return None
    seed, model = whole_number(cached.extra.get("seed", ""), 1 << 63), cached.extra.get("model", "")
    if conflict := origin.conflict(cached.mesh, cached.schema_hash, model, seed):
        if cached.round_id == 0:
            return None
        raise refuse_to_overwrite(cache.path.parent, f"round {cached.round_id}", conflict)
    try:
        history = msgspec.json.decode(cached.extra.get("history", "{}"), type=History)
    except UNREADABLE as error:
        logger.warning("file cache skipped: %s: its history cannot be read (%s)", cache.path, error)
        return None
    if cached.round_id:
        logger.info("continuing at round %d (%s); --fresh would start anew", cached.round_id, cache.path.parent)
    link_mb_s = 1e-3 * (whole_number(cached.extra.get("link_kb_s", ""), int(1e3 * MAX_RATE_MB_S)) or 0)
    return ResumeState(cached.values, cached.round_id, history, cached.momentum, link_mb_s)


def initial_values(path: Path, model: FlatModel) -> Vector:
    """Return the model's w with all tensors of a file that match its names and shapes, float32 (P,).

    All other tensors keep their new values. path: any .safetensors, or the directory of an earlier run. Raises
    DataError if the file has no such tensor, or a parameter is not finite.
    """
    file = find_model_file(path)
    there, values, at, new = read_safetensors(file)[0], model.values().copy(), 0, list[str]()
    for name, shape in model.schema:
        size, tensor = math.prod(shape), there.get(name)
        if tensor is not None and tensor.shape == shape and tensor.dtype.kind in "fiu":
            values[at : at + size] = tensor.reshape(-1)
        else:
            new.append(f"{name} ({'x'.join(map(str, tensor.shape)) if tensor is not None else 'none'} there)")
        at += size
    if not np.isfinite(values).all():
        raise DataError(f"--init {file}: a parameter is not finite")
    if len(new) == len(model.schema):
        names = printable(", ".join(new), 300)
        raise DataError(f"--init {file} has no tensor of this model's names and shapes: {names}")
    told = f"; begun anew: {printable(', '.join(new), 300)}" if new else ""
    logger.info("beginning with %d of %d tensors of %s%s", len(model.schema) - len(new), len(model.schema), file, told)
    return values


def refuse_begun(where: Path, round_id: int) -> None:
    """Raise ConfigError if a run has begun there that `--init` would overwrite."""
    if round_id:
        raise ConfigError(
            f"{where} has round {round_id}, and --init begins a run: --fresh sets it aside, --run NAME keeps both"
        )


def set_aside(directory: Path, names: Iterable[str]) -> Path | None:
    """Move the existing ones of these files into a new folder; return it, or None if there are none.

    Raises ConfigError.
    """
    there = [directory / name for name in names if (directory / name).exists()]
    if not there:
        return None
    folder = next(path for path in _numbered(directory, "before-{}") if not path.exists())
    try:
        make_private_folder(folder)
        for path in there:
            path.rename(folder / path.name)
    except OSError as error:
        raise ConfigError(f"--fresh: cannot move {there[0]} to {folder}: {error.strerror}") from None
    logger.info("the earlier state is set aside in %s", folder)
    return folder


def set_file_aside(file: Path) -> Path:
    """Rename one file to NAME.before-1.ENDING, or the next free number; return the new path. Raises ConfigError."""
    target = next(path for path in _numbered(file.parent, f"{file.stem}.before-{{}}{file.suffix}") if not path.exists())
    try:
        file.rename(target)
    except OSError as error:
        raise ConfigError(f"--fresh: cannot move {file} to {target}: {error.strerror}") from None
    logger.info("the earlier state is set aside in %s", target)
    return target


def _numbered(directory: Path, form: str) -> Iterable[Path]:
    yield from (directory / form.format(number) for number in range(1, _MOST_ASIDE))
    raise ConfigError(f"--fresh: {directory} has {_MOST_ASIDE - 1} states set aside; move some of them away")


told = logging.getLogger("mdl")


class LoopState:
    """Saves and restores the parts of a loop. parts: objects with `state_dict` and `load_state_dict`, by name.

    schema_hash: of the model they train.
    """

    def __init__(self, directory: Path, schema_hash: str, parts: Mapping[str, Any]) -> None:
        self._directory, self._parts = directory, parts
        self._file = StateFile(directory, schema_hash)

    def keep(self, round_id: int) -> None:
        """Keep the parts after a round's training. If the disk refuses, only the momentum is lost at a restart."""
        try:
            if self._parts:
                self._file.save(round_id, {name: _described(part) for name, part in self._parts.items()})
        except (MdlError, OSError) as error:
            logger.warning("the state of the optimizer in round %d is not kept: %s", round_id, error)

    def restore(self, round_id: int) -> None:
        """Go on from round_id; the state of another optimizer or schedule is logged and left."""
        kept = self._file.load(round_id) if round_id and self._parts else None
        for name, part in self._parts.items():
            if not kept or name not in kept:
                continue
            try:
                if kept[name]["kind"] != type(part).__name__:
                    raise ValueError(f"it was {kept[name]['kind']}, it is {type(part).__name__}")
                load_kept(part, kept[name]["state"])
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                why = " ".join(str(error).split())[:200]
                logger.warning("the %s starts anew, since it differs from the one of round %d: %s", name, round_id, why)
                continue
            told.info("the %s goes on where it was in round %d, with the rates of then", name, round_id)


def _described(part: Any) -> dict[str, Any]:
    return {"kind": type(part).__name__, "state": part.state_dict()}
